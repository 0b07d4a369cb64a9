//! The house rules that a program can check: widths, words, `unsafe`, dead files, links, and that every
//! policy and document stands in its list.

use pagetier::{PoolPolicy, SsdPolicy};
use std::fs;
use std::path::{Path, PathBuf};

/// The widest line of a comment, and of prose in a document, in characters.
const WIDTH_MAX: usize = 110;

/// The widest row of a table in a document.
const ROW_WIDTH_MAX: usize = 700;

/// Where `unsafe` may appear; each use says there why it is sound.
const UNSAFE: [&str; 16] = [
    "benches/hit_path.rs",
    "crates/bufpool/src/arena.rs",
    "crates/bufpool/src/clean.rs",
    "crates/bufpool/src/evict.rs",
    "crates/bufpool/src/guard.rs",
    "crates/bufpool/src/inner.rs",
    "crates/bufpool/src/load.rs",
    "crates/devio/src/buf.rs",
    "crates/devio/src/conformance.rs",
    "crates/devio/src/ticket_models.rs",
    "crates/devio/src/uring.rs",
    "crates/devio/src/uring_ring.rs",
    "crates/devio/tests/conformance.rs",
    "crates/devio/tests/open.rs",
    "crates/devio/tests/reactor.rs",
    "crates/sim/tests/fuzz_corpus.rs",
];

/// Words that leave the actor unnamed, and home-made ones that the field has a term for.
const BANNED: [&str; 6] = ["somebody", "nobody", "whoever", "anybody", "homeward", "courier"];

/// Folders of pure code: what is decided there is decided from plain values.
const PURE: [&str; 2] = ["crates/ssdcache/src/format/", "crates/ssdcache/src/protocol/"];

/// What pure code does not touch: waiting, locks, clocks, I/O, and what carries it out.
const IMPURE: [&str; 16] = [
    "async",
    "await",
    "tokio",
    "futures_util",
    "parking_lot",
    "Mutex",
    "RwLock",
    "Condvar",
    "RefCell",
    "AtomicU64",
    "Instant",
    "SystemTime",
    "pagetier_devio",
    "pagetier_bufpool",
    "exec",
    "tier",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below the root whose name ends in `.extension`, each by its path from there; built and hidden
/// folders are left out.
fn files(extension: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(root(), extension, &mut found);
    found.sort();
    let text = |path: &PathBuf| fs::read_to_string(path).expect("a text file");
    let name = |path: &PathBuf| path.strip_prefix(root()).expect("below the root").display().to_string();
    found.iter().map(|path| (name(path), text(path))).collect()
}

/// The lines of a file that break a rule, as `file:line: text`.
fn breaches(files: &[(String, String)], breaks: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let at = |(file, text): &(String, String)| {
        let lines = text.lines().enumerate().filter(|(_, line)| breaks(file, line));
        lines.map(|(n, line)| format!("{file}:{}: {}", n + 1, line.trim())).collect::<Vec<_>>()
    };
    files.iter().flat_map(at).collect()
}

fn none(what: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{what}:\n{}", breaches.join("\n"));
}

/// What stands behind `//` in a line that is a comment as a whole.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//")
}

/// A document, or a source with its comments, with fenced code left out, line by line.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let prose = |line: &str| {
        let fence = line.trim_start_matches(['/', '!', ' ']).starts_with("```");
        fenced ^= fence;
        if fenced || fence { String::new() } else { line.to_owned() }
    };
    text.lines().map(prose).collect::<Vec<_>>().join("\n")
}

fn is_row(line: &str) -> bool {
    line.trim_start_matches(['/', '!', ' ']).starts_with('|')
}

#[test]
fn comments_and_prose_are_not_too_wide() {
    let wide = |line: &str| line.chars().count() > WIDTH_MAX && line.contains(' ');
    let mut sources = files("rs");
    sources.iter_mut().for_each(|(_, text)| *text = without_code(text));
    let comments = breaches(&sources, |_, line| comment(line).is_some_and(|_| wide(line) && !is_row(line)));
    none("comments over the width", &comments);
    let mut documents = files("md");
    documents.iter_mut().for_each(|(_, text)| *text = without_code(text));
    let prose = breaches(&documents, |_, line| {
        let limit = if is_row(line) { ROW_WIDTH_MAX } else { WIDTH_MAX };
        line.chars().count() > limit && line.trim().contains(' ')
    });
    none("prose over the width", &prose);
}

#[test]
fn comments_and_documents_name_the_actor() {
    let banned = |text: &str| {
        let text = text.to_lowercase();
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| BANNED.contains(&word))
    };
    let in_code = breaches(&files("rs"), |file, line| {
        file != "tests/tidy.rs" && line.split_once("//").is_some_and(|(_, text)| banned(text))
    });
    none("banned words in comments", &in_code);
    none("banned words in documents", &breaches(&files("md"), |_, line| banned(line)));
}

#[test]
fn unsafe_code_stays_in_its_files() {
    let is_unsafe = |line: &str| {
        comment(line).is_none()
            && ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|form| line.contains(form))
    };
    let elsewhere = breaches(&files("rs"), |file, line| {
        !UNSAFE.contains(&file) && !file.starts_with("fuzz/") && file != "tests/tidy.rs" && is_unsafe(line)
    });
    none("unsafe code outside of its files", &elsewhere);
    let all = files("rs");
    for listed in UNSAFE {
        let used = all.iter().any(|(file, text)| file == listed && text.lines().any(is_unsafe));
        assert!(used, "{listed} has no unsafe code: take it off the list");
    }
}

/// The protocol is a state machine without a clock, and its imports lead downwards.
#[test]
fn pure_folders_stay_pure() {
    let impure = |line: &str| {
        let code = line.split("//").next().unwrap_or(line);
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| IMPURE.contains(&word))
            || ["std::fs", "std::io", "std::net"].iter().any(|io| code.contains(io))
    };
    let pure = |file: &str| PURE.iter().any(|folder| file.starts_with(folder));
    none("impure code in a pure folder", &breaches(&files("rs"), |file, line| pure(file) && impure(line)));
    for folder in PURE {
        assert!(files("rs").iter().any(|(file, _)| file.starts_with(folder)), "{folder} holds no code");
    }
}

/// A file that no `mod` names is not compiled.
#[test]
fn every_file_belongs_to_a_crate() {
    let all = files("rs");
    let is_root = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or(file);
        ["lib.rs", "main.rs"].contains(&name)
            || ["tests/", "benches/", "examples/", "bin/", "fuzz_targets/"].iter().any(|folder| {
                file.rsplit_once('/').is_some_and(|(parent, _)| format!("{parent}/").ends_with(folder))
            })
    };
    let mut dead = Vec::new();
    for (file, _) in all.iter().filter(|(file, _)| !is_root(file)) {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let (folder, module) = match name {
            "mod.rs" => folder.rsplit_once('/').unwrap_or(("", folder)),
            name => (folder, name.trim_end_matches(".rs")),
        };
        let declared = format!("mod {module};");
        // In the folder's own module, the file named like the folder, or a root beside it.
        let declares = |other: &str, text: &str| {
            let near = other.rsplit_once('/').is_some_and(|(parent, _)| parent == folder);
            (near || other == format!("{folder}.rs")) && text.contains(&declared)
        };
        if !all.iter().any(|(other, text)| declares(other, text)) {
            dead.push(file.clone());
        }
    }
    none("files that no module names", &dead);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for (file, text) in files("md") {
        let folder = root().join(&file).parent().map(Path::to_path_buf).expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)) {
            let path = link.split('#').next().unwrap_or(link);
            if !link.starts_with("http") && !path.is_empty() && !folder.join(path).exists() {
                broken.push(format!("{file}: {link}"));
            }
        }
        for named in text.split('`').skip(1).step_by(2).filter(|span| span.starts_with("docs/")) {
            if !root().join(named).exists() {
                broken.push(format!("{file}: {named}"));
            }
        }
    }
    none("links that lead nowhere", &broken);
}

/// `docs/recovery.md` names the file that decides each invariant.
#[test]
fn invariants_name_files() {
    let text = fs::read_to_string(root().join("docs/recovery.md")).expect("docs/recovery.md");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| **I")).collect();
    assert!(rows.len() > 20, "the invariants have moved");
    for row in rows {
        let files = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = files.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no file decides it: {row}");
        for file in named {
            let folder = if file.starts_with("src/") { "" } else { "crates/ssdcache/src" };
            assert!(root().join(folder).join(file).exists(), "{file} does not exist: {row}");
        }
    }
}

#[test]
fn every_policy_and_document_stands_in_its_list() {
    let read = |file: &str| fs::read_to_string(root().join(file)).expect(file);
    let policies = read("docs/policies.md");
    let pool = PoolPolicy::ALL.iter().map(ToString::to_string);
    for name in pool.chain(SsdPolicy::ALL.iter().map(ToString::to_string)).filter(|name| name != "none") {
        assert!(policies.contains(&format!("`{name}`")), "docs/policies.md does not describe {name}");
    }
    for part in SsdPolicy::PARTS {
        assert!(policies.contains(part), "docs/policies.md does not describe the option {part}");
    }
    let readme = read("README.md");
    for (file, _) in
        files("md").iter().filter(|(file, _)| file.matches('/').count() == 1 && file.starts_with("docs/"))
    {
        assert!(readme.contains(file.as_str()), "README.md does not name {file}");
    }
}
