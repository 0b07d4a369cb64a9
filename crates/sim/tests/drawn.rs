//! The campaign draws the whole public interface: every method of the store and of its parts, and every
//! option, stands in its table of operations or in the list below, with a reason. A new one fails this test
//! until it is drawn.

use pagetier_sim::campaign::drawn;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The types whose public methods are drawn.
const TYPES: [&str; 8] = ["Builder", "Estimates", "PageStore", "Policies", "Scrub", "Spaces", "Ssd", "Trace"];

/// What is not drawn, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("Builder::calibrate", "measures real time"),
    ("Builder::direct_io", "of files"),
    ("Builder::from_options", "the same as the setters"),
    ("Builder::hdd", "a path; the campaign's devices are simulated"),
    ("Builder::io", "of files"),
    ("Builder::options", "returns what was set"),
    ("Builder::page_bytes", "the same as `Builder::page_size`"),
    ("Builder::page_size", "always the smallest: larger pages are torn no differently"),
    ("Builder::slow_saves", "only of tests: saves in a directory take longer"),
    ("Builder::ssd", "a path"),
    ("PageStore::allocate_owned", "as `PageStore::allocate`, with the guard of `PageStore::get_mut_owned`"),
    ("PageStore::export_metrics", "only reads counters, from a thread"),
    ("PageStore::export_stats", "only reads counters"),
    ("PageStore::flush_waits_for_guard", "only reads counters"),
    ("PageStore::free_noting", "as `PageStore::free_pages`, for the log"),
    ("PageStore::get_or_create_owned", "as `PageStore::get_or_create`, with an owned guard"),
    ("PageStore::io_backend", "a name"),
    ("PageStore::moment", "for the campaign itself"),
    ("PageStore::open", "the same as `Builder::open` with a path"),
    ("PageStore::overwrite_owned", "as `PageStore::overwrite`, with an owned guard"),
    ("PageStore::page_size", "a constant of the store"),
    ("PageStore::scan_owned", "as `PageStore::scan`, with owned guards"),
    ("PageStore::try_get_mut_owned", "as `PageStore::try_get_mut`, with an owned guard"),
    ("PageStore::try_get_owned", "as `PageStore::try_get`, with an owned guard"),
];

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The text of all source files below `folder`, without the asynchronous store's blocking form.
fn text_of(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    files(folder, &mut found);
    found.retain(|path| !path.components().any(|part| part.as_os_str() == "blocking"));
    found.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The public methods of [`TYPES`] in a formatted source file, as `Type::name`.
fn methods(text: &str) -> Vec<String> {
    let (mut found, mut of) = (Vec::new(), None);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl") {
            let name = rest.trim_start_matches(|c| c != ' ').trim_start();
            let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
            of = TYPES.into_iter().find(|known| *known == &name[..end] && !line.contains(" for "));
        } else if line.starts_with('}') {
            of = None;
        }
        let public = ["    pub fn ", "    pub async fn "].iter().find_map(|before| line.strip_prefix(before));
        if let (Some(rest), Some(of)) = (public, of) {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            found.push(format!("{of}::{}", &rest[..end]));
        }
    }
    found
}

/// The setters that the list of options declares: those with a type in parentheses.
fn options(text: &str) -> Vec<String> {
    let body = text.split_once("\nmacro_rules! option_table {").expect("the list of options").1;
    let body = body.split_once("\n}").map_or(body, |(table, _)| table);
    let lines = body.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let setters = lines.filter_map(|line| line.split_once('(')?.0.into());
    setters
        .filter(|name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .map(|name| format!("Builder::{name}"))
        .collect()
}

fn public() -> BTreeSet<String> {
    let store = source().join("../../src");
    let mut all: BTreeSet<String> = text_of(&store).iter().flat_map(|text| methods(text)).collect();
    all.extend(options(&fs::read_to_string(store.join("config/options.rs")).unwrap()));
    all
}

#[test]
fn every_public_method_and_option_is_drawn() {
    let (all, drawn): (BTreeSet<String>, BTreeSet<String>) = (public(), drawn().map(str::to_owned).collect());
    assert!(all.len() > 90 && all.contains("Builder::redo_span_max"), "the scanner misses methods: {all:?}");
    let excused = |name: &String| EXCEPTIONS.iter().any(|(excused, _)| excused == name);
    let missing: Vec<&String> = all.iter().filter(|name| !drawn.contains(*name) && !excused(name)).collect();
    assert!(missing.is_empty(), "neither drawn by the campaign nor excused here: {missing:?}");
    for (name, reason) in EXCEPTIONS {
        assert!(all.contains(*name), "{name} does not exist ({reason})");
        assert!(!drawn.contains(*name), "{name} is drawn, but excused here ({reason})");
    }
}

#[test]
fn what_the_table_names_is_called() {
    let (all, text) = (public(), text_of(&source().join("src/campaign")).concat());
    for name in drawn().filter(|name| TYPES.iter().any(|of| name.starts_with(&format!("{of}::")))) {
        assert!(all.contains(name), "{name} does not exist");
        let method = name.rsplit("::").next().unwrap();
        let called = [".", "::"].iter().any(|before| text.contains(&format!("{before}{method}(")));
        assert!(called, "the campaign does not call {name}");
    }
}
