//! How large the project is: the table of `ARCHITECTURE.md` is true, nothing grows unnoticed, and the core
//! does not import what stands around it.

use super::{INVARIANTS, breaches, files, invariants, none, read};
use std::collections::{BTreeMap, BTreeSet};

/// How much less than the table says a part may have: a line of the table that is far off is not true.
const SLACK: usize = 300;

/// A row of the table: a folder with Rust sources, what it is to the store, its lines at most.
struct Part {
    path: String,
    kind: String,
    lines_max: usize,
}

impl Part {
    /// Whether it holds `file`: directly in the folder of a package, or below one of `src/`.
    fn holds(&self, file: &str) -> bool {
        let sources =
            if self.path.starts_with("src") { self.path.clone() } else { format!("{}/src", self.path) };
        file.strip_prefix(&sources).is_some_and(|rest| rest.starts_with(['/', '.']))
    }
}

fn table() -> Vec<Part> {
    let document = read("ARCHITECTURE.md");
    let section = document.split("\n## Size").nth(1).expect("its section");
    let rows =
        section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| "));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let lines = cells[3].replace(',', "").parse().expect("a number of lines");
        Part { path: cells[1].trim_matches('`').to_owned(), kind: cells[2].to_owned(), lines_max: lines }
    })
    .collect()
}

/// The files that their parents declare as tests.
fn test_files(all: &[(String, String)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (file, text) in all {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let below = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
            _ => file.trim_end_matches(".rs").to_owned(),
        };
        let lines: Vec<&str> = text.lines().collect();
        let tests = lines.windows(2).filter(|pair| pair[0].starts_with("#[cfg(") && pair[0].contains("test"));
        let modules = tests.filter_map(|pair| pair[1].strip_prefix("mod ")?.strip_suffix(';'));
        found.extend(modules.map(|module| format!("{below}/{module}.rs")));
    }
    found
}

/// The lines of `text` before its tests, comments and blank ones among them.
fn lines_of(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begin = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(")
            && pair[0].contains("test")
            && pair[1].starts_with("mod ")
            && pair[1].ends_with('{')
    };
    lines.windows(2).position(begin).unwrap_or(lines.len())
}

/// The part of each file that is not a test: the one with the longest path that holds it.
fn by_part<'p, 'f>(parts: &'p [Part], files: &'f [(String, String)]) -> Vec<(&'p Part, &'f str, &'f str)> {
    let part = |file: &str| parts.iter().filter(|part| part.holds(file)).max_by_key(|part| part.path.len());
    let tests = test_files(files);
    let is_test =
        |file: &String| tests.contains(file) || file.contains("tests/") || file.contains("src/testing/");
    let files = files.iter().filter(|(file, _)| !is_test(file));
    files.filter_map(|(file, text)| Some((part(file)?, file.as_str(), text.as_str()))).collect()
}

/// Prints the sizes, and the numbers that the section states in words.
#[test]
fn each_part_has_its_size() {
    let (parts, all) = (table(), files("rs"));
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (part, _, text) in by_part(&parts, &all) {
        *sizes.entry(&part.path).or_default() += lines_of(text);
        *kinds.entry(&part.kind).or_default() += lines_of(text);
    }
    let mut wrong = Vec::new();
    for Part { path, kind, lines_max } in &parts {
        let is = sizes.get(path.as_str()).copied().unwrap_or(0);
        println!("{path} ({kind}): {is} of at most {lines_max}");
        if is > *lines_max || is + SLACK < *lines_max {
            wrong.push(format!("{path} has {is}, the table says at most {lines_max}"));
        }
    }
    let lines: usize = all.iter().map(|(_, text)| text.lines().count()).sum();
    let rules: usize = INVARIANTS.map(|(document, _)| invariants(&read(document)).len()).iter().sum();
    let kind = |kind: &str| kinds.get(kind).copied().unwrap_or(0);
    let counts = [
        ("core", kind("core")),
        ("core and satellites", kind("core") + kind("satellite")),
        ("all Rust, tests among it", lines),
        ("invariants", rules),
    ];
    for (what, is) in counts {
        println!("{what}: {is}");
        let most = stated(what);
        let slack = if what == "invariants" { 0 } else { SLACK };
        if is > most || is + slack < most {
            wrong.push(format!("{what}: {is}, the section says at most {most}"));
        }
    }
    none("sizes", &wrong);
}

/// The lines at most of documents that are read from end to end.
const DOCUMENTS: [(&str, usize); 6] = [
    ("CHANGELOG.md", 60),
    ("docs/BENCHMARKS.md", 300),
    ("docs/EVALUATION.md", 250),
    ("docs/RELIABILITY.md", 280),
    ("docs/log.md", 450),
    ("docs/recovery.md", 450),
];

#[test]
fn documents_are_short_enough_to_be_read() {
    let lines = DOCUMENTS.map(|(document, most)| (document, read(document).lines().count(), most));
    println!("{lines:?}");
    let long = lines.iter().filter(|(_, is, most)| is > most);
    none("long documents", &long.map(|long| format!("{long:?}")).collect::<Vec<_>>());
}

/// The number in the section's list, as in `- core: 40,000`.
fn stated(what: &str) -> usize {
    let document = read("ARCHITECTURE.md");
    let section = document.split("\n## Size").nth(1).expect("its section");
    let line = section.lines().find_map(|line| line.strip_prefix(&format!("- {what}: ")));
    let number = line.and_then(|line| line.split([' ', ';']).next()).unwrap_or_default();
    number.replace(',', "").parse().unwrap_or_else(|_| panic!("the section states no number for {what}"))
}

/// What stands around the core may be wrong without losing a page, so the core must not need it.
#[test]
fn the_core_imports_no_satellite() {
    let (parts, all) = (table(), files("rs"));
    let outside: BTreeSet<String> = parts
        .iter()
        .filter(|part| part.kind != "core")
        .map(|part| match part.path.strip_prefix("src/") {
            Some(room) => format!("crate::{room}::"),
            None => format!("pagetier_{}::", part.path.rsplit('/').next().unwrap_or_default()),
        })
        .collect();
    let core: Vec<(String, String)> = by_part(&parts, &all)
        .into_iter()
        .filter(|(part, ..)| part.kind == "core")
        .map(|(_, file, text)| {
            let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
            (file.to_owned(), code.to_owned())
        })
        // The list of what the crate exports; and the store's handle, which holds the running ghosts.
        .filter(|(file, _)| !["src/lib.rs", "src/store/page_store.rs"].contains(&file.as_str()))
        .collect();
    assert!(core.len() > 100 && outside.len() > 10, "{} files, {outside:?}", core.len());
    let imports = |line: &str| {
        let code = line.trim_start();
        !code.starts_with("//") && outside.iter().any(|path| code.contains(path.as_str()))
    };
    none("imports of the core from outside of it", &breaches(&core, |_, line| imports(line)));
}
