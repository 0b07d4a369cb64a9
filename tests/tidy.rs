//! The house rules that a program can check: line widths, words, `unsafe`, dead files, links, and the steps
//! that a new policy, bench, format or document requires (`CONTRIBUTING.md`).

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/examples.rs"]
mod examples;
#[path = "tidy/figures.rs"]
mod figures;
#[path = "tidy/glossary.rs"]
mod glossary;
#[path = "tidy/interface.rs"]
mod interface;
#[path = "tidy/lengths.rs"]
mod lengths;
#[path = "tidy/methods.rs"]
mod methods;
#[path = "../crates/sim/src/bin/mutations/patch.rs"]
mod patch;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/size.rs"]
mod size;

use methods::{implemented, name};
use pagetier_policy::SsdPolicy;
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum width of comment lines, and of prose in documents, in characters.
const WIDTH_MAX: usize = 110;

/// The maximum width of table rows in documents.
const ROW_WIDTH_MAX: usize = 300;

/// The maximum number of columns of tables in the README and the documents; notes may have more.
const COLUMNS_MAX: usize = 8;

/// The files that may contain `unsafe`; each use states why it is sound.
const UNSAFE: [&str; 27] = [
    "benches/common/bare.rs",
    "benches/counts.rs",
    "benches/hit_path.rs",
    "crates/bufpool/src/frames/arena.rs",
    "crates/bufpool/src/write/clean.rs",
    "crates/bufpool/src/read/evict.rs",
    "crates/bufpool/src/forked.rs",
    "crates/bufpool/src/frames/set.rs",
    "crates/bufpool/src/state/guard.rs",
    "crates/bufpool/src/state/inner.rs",
    "crates/bufpool/src/read/load.rs",
    "crates/bufpool/src/frames/memory.rs",
    "crates/devio/src/handover/buf.rs",
    "crates/devio/src/process/owner.rs",
    "crates/devio/src/handover/ticket_models.rs",
    "crates/devio/src/kernel/uring/core.rs",
    "crates/devio/src/kernel/uring/ring.rs",
    "crates/devio/tests/conformance.rs",
    "crates/devio/tests/reactor.rs",
    "crates/rbd/src/connection.rs",
    "crates/rbd/src/image.rs",
    "crates/rbd/src/op.rs",
    "crates/sim/tests/fuzz_corpus.rs",
    "crates/testing/src/conformance/device.rs",
    "crates/testing/src/fail_call.rs",
    "crates/wal/tests/forked.rs",
    "tests/world/process.rs",
];

/// Words that leave the actor unnamed, and home-made words for which the field has a term.
const BANNED: [&str; 6] = ["somebody", "nobody", "whoever", "anybody", "homeward", "courier"];

/// Folders of pure code, whose decisions take plain values.
const PURE: [&str; 2] = ["crates/ssdcache/src/format/", "crates/ssdcache/src/protocol/"];

/// Identifiers that pure code must not use: waiting, locks, clocks, I/O, and the layers that perform it.
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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is a folder of the repository")
}

/// The files below the root with this extension, each with its path relative to the root. Skips build output
/// and hidden folders.
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

/// The lines that break a rule, as `file:line: text`.
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

/// The text after `//` in a line that is entirely a comment.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//")
}

/// The lines of a document, or of a source with its comments, without fenced code.
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

/// The cells of a table's row. A `|` inside a cell is written `\|`.
fn columns(row: &str) -> usize {
    row.trim().trim_matches('|').replace("\\|", "").split('|').count()
}

/// Whether `file` is the README, or a document of `docs/` other than a note.
fn is_document(file: &str) -> bool {
    file == "README.md" || (file.starts_with("docs/") && file.matches('/').count() == 1)
}

#[test]
fn tables_are_not_too_wide() {
    let mut documents = files("md");
    documents.retain(|(file, _)| is_document(file));
    documents.iter_mut().for_each(|(_, text)| *text = without_code(text));
    let wide = breaches(&documents, |_, line| is_row(line) && columns(line) > COLUMNS_MAX);
    none("tables with too many columns", &wide);
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

/// English writes a percentage without a space. In code, a number before `%` is a remainder.
#[test]
fn percentages_have_no_space() {
    let spaced = |text: &str| {
        text.match_indices(" %").any(|(at, _)| text[..at].ends_with(|c: char| c.is_ascii_digit()))
    };
    none("percentages with a space in documents", &breaches(&files("md"), |_, line| spaced(line)));
    let in_sources = breaches(&files("rs"), |_, line| {
        let comment = line.split_once("//").is_some_and(|(_, text)| spaced(text));
        comment || line.split('"').skip(1).step_by(2).any(spaced)
    });
    none("percentages with a space in comments and texts", &in_sources);
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

/// The protocol is a state machine without a clock, and imports only from below.
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

/// Whether `file` is a test binary: any file in `tests` is, unless the package lists its test binaries.
fn is_test_root(file: &str) -> bool {
    let Some((package, name)) = file.rsplit_once("tests/").filter(|(_, name)| !name.contains('/')) else {
        return false;
    };
    // The package of the tests lists those of the store and of its tiers.
    let listed = |manifest: &str, key: &str, value: &str| {
        read(manifest).lines().any(|line| line == format!("{key} = \"{value}\""))
    };
    if package.is_empty() {
        return listed("tests/Cargo.toml", "path", name);
    }
    let manifest = format!("{package}Cargo.toml");
    !read(&manifest).contains("autotests = false")
        || listed("tests/Cargo.toml", "path", &format!("../{file}"))
        || listed(&manifest, "name", name.trim_end_matches(".rs"))
}

/// A manifest may say that a target has no tests, which saves building it once more. They would not run.
#[test]
fn targets_built_without_tests_have_none() {
    let (sources, mut hidden) = (files("rs"), Vec::new());
    for (manifest, text) in files("toml").iter().filter(|(file, _)| file.ends_with("Cargo.toml")) {
        let package = manifest.trim_end_matches("Cargo.toml");
        let lib =
            text.split_once("[lib]\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or(rest));
        let bins = text.contains("[[bin]]")
            && !text.split("[[bin]]").skip(1).any(|bin| !bin.contains("test = false"));
        let untested = |file: &str| {
            let bin = file.starts_with("bin/") || file.starts_with("main.rs");
            if bin { bins } else { lib.lines().any(|line| line == "test = false") }
        };
        for (file, code) in &sources {
            let Some(inside) = file.strip_prefix(&format!("{package}src/")) else { continue };
            if untested(inside)
                && code.lines().any(|line| line.trim().starts_with("#[") && line.contains("test]"))
            {
                hidden.push(format!("{file}: a unit test"));
            }
            let example = |line: &str| {
                comment(line).is_some_and(|text| text.trim_start_matches(['/', '!', ' ']).starts_with("```"))
            };
            if lib.contains("doctest = false") && code.lines().any(example) {
                hidden.push(format!("{file}: an example"));
            }
        }
    }
    none("tests that never run", &hidden);
}

/// A file that no `mod` names is not compiled.
#[test]
fn every_file_belongs_to_a_crate() {
    let all = files("rs");
    let is_root = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or(file);
        ["lib.rs", "main.rs"].contains(&name)
            || is_test_root(file)
            || ["benches/", "examples/", "bin/", "fuzz_targets/"].iter().any(|folder| {
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
        // The declaration is in the folder's own module, in the file named like the folder, or in a root
        // beside it.
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
    // rustdoc checks no headings.
    let slug = |line: &str| {
        line.trim_start_matches(['#', ' ']).to_lowercase().replace([',', '?'], "").replace(' ', "-")
    };
    let guide: Vec<String> =
        read("docs/embedding.md").lines().filter(|line| line.starts_with('#')).map(slug).collect();
    for (file, text) in files("rs") {
        for link in
            text.split(concat!("(crate::", "guide#")).skip(1).filter_map(|rest| rest.split(')').next())
        {
            if !guide.iter().any(|heading| heading == link) {
                broken.push(format!("{file}: guide#{link}"));
            }
        }
    }
    none("links that lead nowhere", &broken);
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every policy's name except `none`, which needs no description.
fn policies() -> impl Iterator<Item = String> {
    let pool = POOL_POLICIES.iter().map(ToString::to_string);
    pool.chain(SSD_POLICIES.iter().map(ToString::to_string)).filter(|name| name != "none")
}

#[test]
fn every_policy_is_described_and_drawn_by_the_campaign() {
    let (described, drawn) = (read("docs/policies.md"), read("crates/sim/src/campaign/draw/plan.rs"));
    for name in policies() {
        assert!(described.contains(&format!("`{name}`")), "docs/policies.md does not describe {name}");
        let drawn = drawn.contains(&format!("\"{name}\""));
        assert!(drawn, "crates/sim/src/campaign/draw/plan.rs does not draw {name}");
    }
    for part in SsdPolicy::PARTS {
        assert!(described.contains(part), "docs/policies.md does not describe the option {part}");
    }
}

#[test]
fn every_document_stands_in_the_readme() {
    let readme = read("README.md");
    for (file, _) in files("md").iter().filter(|(file, _)| is_document(file) && file != "README.md") {
        assert!(readme.contains(file.as_str()), "README.md does not name {file}");
    }
}

/// A device is tested under the name of its file: `uring`, `memory`, `emulated`. The suite over all devices
/// is in `crates/devio/tests`.
#[test]
fn every_device_is_tested() {
    let (sources, tests): (Vec<_>, Vec<_>) = files("rs")
        .into_iter()
        .filter(|(file, _)| ["crates/devio/", "crates/testing/src/"].iter().any(|at| file.starts_with(at)))
        .partition(|(file, _)| file.contains("/src/"));
    let is_device = |line: &str| line.starts_with("impl") && line.contains("Device for ");
    let mut found = 0;
    for (file, _) in sources.iter().filter(|(_, text)| text.lines().any(is_device)) {
        found += 1;
        let name = file.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next();
        let name = name.expect("a file's name");
        let tested = tests.iter().any(|(_, text)| text.to_lowercase().contains(name));
        assert!(tested, "no test in crates/devio/tests names the device in {file}");
    }
    assert!(found > 0, "no device was found");
}

/// The documents with invariants, each with the folder below which its table of files names them.
const INVARIANTS: [(&str, &str); 2] = [("docs/recovery.md", "crates/ssdcache/src"), ("docs/log.md", "")];

/// The numbers of the invariants in a document, as in `I12`.
fn invariants(text: &str) -> Vec<String> {
    let items = text.lines().filter_map(|line| line.strip_prefix("- **I")?.split_once("**"));
    items.map(|(number, _)| format!("I{number}")).collect()
}

/// A document with invariants names the file that decides each of them.
#[test]
fn every_invariant_names_its_file() {
    for (document, below) in INVARIANTS {
        let text = read(document);
        let rules = invariants(&text);
        assert!(!rules.is_empty(), "{document} has no invariant");
        // A row has pairs of rules and files: one pair, or two.
        let rows = text.lines().filter(|line| line.starts_with("| I")).map(|row| row.trim_matches('|'));
        let cells: Vec<&str> = rows.flat_map(|row| row.split('|')).collect();
        for rule in rules {
            let decides = |pair: &&[&str]| pair[0].split(',').any(|number| number.trim() == rule);
            let pair = cells.chunks_exact(2).find(decides);
            let files: Vec<&str> =
                pair.into_iter().flat_map(|pair| pair[1].split('`').skip(1).step_by(2)).collect();
            assert!(!files.is_empty(), "{document}: no file decides {rule}");
            for file in files {
                let from_root = ["src/", "crates/"].iter().any(|root| file.starts_with(root));
                let folder = if from_root { "" } else { below };
                assert!(root().join(folder).join(file).exists(), "{rule}: {file} does not exist");
            }
        }
    }
}

/// The mutations that `crates/sim/mutations` describes.
fn mutations() -> Vec<patch::Mutation> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root().join("crates/sim/mutations")).unwrap() {
        let path = entry.unwrap().path();
        let parsed = patch::parse(&fs::read_to_string(&path).unwrap());
        all.extend(parsed.unwrap_or_else(|why| panic!("{}: {why}", path.display())));
    }
    all
}

/// Without a build: `cargo run -p pagetier-sim --bin mutations` checks that each mutation is noticed.
#[test]
fn every_mutation_applies_and_its_test_exists() {
    let all = mutations();
    let mut changed: BTreeMap<&str, Vec<(&str, &patch::Hunk)>> = BTreeMap::new();
    for one in &all {
        assert!(!one.about.is_empty(), "{}: what does it leave out?", one.name);
        assert_eq!(all.iter().filter(|other| other.name == one.name).count(), 1, "{}", one.name);
        one.hunks.iter().for_each(|hunk| changed.entry(&hunk.path).or_default().push((&one.name, hunk)));
    }
    for (path, hunks) in changed {
        let source = read(path);
        for (name, hunk) in &hunks {
            assert_ne!(hunk.old, hunk.new, "{name} changes nothing in {path}");
            patch::edit(&source, hunk).unwrap_or_else(|why| panic!("{name} does not apply: {why}"));
        }
        patch::apply(&source, hunks.iter().map(|(_, hunk)| *hunk))
            .unwrap_or_else(|why| panic!("{path}: {why}"));
    }
    let (sources, targets) = (files("rs"), read("tests/Cargo.toml"));
    for one in &all {
        match &one.caught_by {
            patch::Catcher::Campaign(with) => {
                assert!(with.iter().all(|part| part.contains('=')), "{}: {with:?}", one.name);
            }
            patch::Catcher::Test { target, name } => {
                let of_package = targets.contains(&format!("\nname = \"{target}\"\n"));
                let there = of_package
                    || ["pagetier", "pagetier_ssdcache", "pagetier_wal"].contains(&target.as_str());
                assert!(there, "{}: no target {target}", one.name);
                let function = format!("fn {}()", name.rsplit("::").next().unwrap_or_default());
                let there = sources.iter().any(|(_, text)| text.contains(&function));
                assert!(there, "{}: no test {name}", one.name);
            }
        }
    }
}

#[test]
fn every_mutation_belongs_to_an_invariant() {
    let (all, mut named) = (mutations(), Vec::new());
    assert!(!all.is_empty(), "no mutation was found");
    for (document, _) in INVARIANTS {
        let text = read(document);
        let section = text.split_once("## Invariants").and_then(|(_, rest)| rest.split_once("\n## "));
        let words: Vec<&str> = section.map_or("", |(section, _)| section).split_whitespace().collect();
        let text = words.join(" ");
        let items = text.split(" - **I").skip(1).filter_map(|item| item.split_once("Broken by"));
        let names = items.filter_map(|(_, names)| names.split('.').next());
        named.extend(names.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned));
    }
    for one in &all {
        assert!(named.contains(&one.name), "no invariant names {}", one.name);
    }
    for name in named {
        assert!(all.iter().any(|one| one.name == name), "an invariant names {name}, which is no mutation");
    }
}

#[test]
fn every_bench_stands_in_its_document() {
    let (manifest, document) = (read("benches/Cargo.toml"), read("docs/BENCHMARKS.md"));
    let tables = manifest.split("[[bench]]").skip(1);
    let names: Vec<&str> = tables.filter_map(|table| table.split('"').nth(1)).collect();
    assert!(!names.is_empty(), "benches/Cargo.toml has no bench");
    for name in names {
        let command = format!("cargo bench --bench {name}");
        assert!(document.contains(&command), "docs/BENCHMARKS.md does not say `{command}`");
    }
}

/// A format's version is a constant `FORMAT`, or one that ends so.
#[test]
fn every_format_version_stands_in_its_document() {
    let document = read("docs/format.md");
    let mut found = 0;
    for (file, text) in files("rs").iter().filter(|(file, _)| !file.starts_with("tests/")) {
        for line in text.lines().map(|line| line.trim_start_matches("pub ")) {
            let version = line.strip_prefix("const ").and_then(|rest| rest.split_once(" = "));
            let Some((name, version)) = version else { continue };
            let Some((name, "u16" | "u32")) = name.split_once(": ") else { continue };
            if name == "FORMAT" || name.ends_with("_FORMAT") {
                found += 1;
                let row = format!("| {} | `{name}` in `{file}` |", version.trim_end_matches(';'));
                assert!(document.contains(&row), "docs/format.md has no row that ends in {row}");
            }
        }
    }
    assert!(found > 0, "no constant FORMAT was found");
}

/// Documents name files by their path from the root, such as `crates/page/src/lib.rs`.
#[test]
fn files_named_in_documents_exist() {
    let from_root = |span: &str| {
        ["crates/", "src/", "tests/", "benches/", "examples/", "fuzz/", "tools/"]
            .iter()
            .any(|folder| span.starts_with(folder))
            && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/_-.".contains(c))
    };
    let mut missing = Vec::new();
    let mut documents = files("md");
    documents.retain(|(file, _)| !file.contains('/') || is_document(file));
    for (file, text) in &documents {
        for named in text.split('`').skip(1).step_by(2).filter(|span| from_root(span)) {
            if !root().join(named).exists() {
                missing.push(format!("{file}: {named}"));
            }
        }
    }
    none("files that are not there", &missing);
}

/// The README's first example is the one that `examples/` runs.
#[test]
fn the_readme_shows_the_quickstart() {
    let readme = read("README.md");
    let shown = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = read("examples/quickstart.rs");
    let code = example.split_once("\n\n").map(|(_, code)| code);
    assert_eq!(shown, code, "README.md and examples/quickstart.rs differ");
}

/// The functions that `declared` finds in the lines of `text`, each after its type (if any) and `::`.
fn functions<'t>(text: &'t str, declared: impl Fn(&'t str) -> Option<&'t str>) -> Vec<String> {
    let mut of = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        let part = line.trim().strip_suffix(':').and_then(|part| part.split_once(" by "));
        match (implemented(line), part.filter(|(part, _)| part.chars().all(char::is_alphanumeric))) {
            (Some(subject), _) => of = format!("{subject}::"),
            (None, Some((part, _))) => of = format!("{part}::"),
            (None, None) if line == "}" => of.clear(),
            (None, None) => {}
        }
        if let Some(name) = declared(line) {
            found.push(format!("{of}{name}"));
        }
    }
    found
}

/// The public functions of `src/` that return futures, each after its type.
fn asynchronous() -> Vec<String> {
    let mut found = Vec::new();
    for (_, text) in files("rs").iter().filter(|(file, _)| file.starts_with("src/")) {
        found.extend(functions(text, |line| {
            let line = line.trim();
            let future = line.strip_prefix("pub fn ").filter(|line| line.contains("-> impl Future"));
            line.strip_prefix("pub async fn ").or(future).and_then(name)
        }));
    }
    assert!(found.len() > 40, "{found:?}");
    found
}

#[test]
fn every_public_future_is_checked_to_be_send() {
    let checks = read("tests/futures.rs");
    let unchecked = |function: &String| {
        let name = function.rsplit("::").next().unwrap_or(function);
        !checks.contains(&format!("{name}("))
    };
    let missing: Vec<String> = asynchronous().into_iter().filter(unchecked).collect();
    assert!(missing.is_empty(), "not in tests/futures.rs: {missing:?}");
}
