//! The public interface is one readable list: few names at the crate's root, and none in two places.

use super::{files, methods, read};
use std::collections::BTreeMap;

/// The names at the root, modules included.
const ROOT_MAX: usize = 60;

/// The names that a list of exports (`a::{B, C as D}`) makes public.
fn names(list: &str) -> Vec<String> {
    let inner = list.split_once('{').map_or(list, |(_, inner)| inner.trim_end_matches('}'));
    let last = |name: &str| {
        let name = name.rsplit(" as ").next().unwrap_or(name);
        name.rsplit("::").next().unwrap_or(name).trim().to_owned()
    };
    inner.split(',').map(last).filter(|name| !name.is_empty()).collect()
}

/// Each public name of `source`, with the module that has it; `root` for those outside of modules.
fn exports(source: &str, root: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut module, mut hidden) = (root.to_owned(), false);
    let mut statements = source.lines();
    while let Some(line) = statements.next() {
        let code = line.trim();
        hidden |= code == "#[doc(hidden)]";
        if let Some(name) = code.strip_prefix("pub mod ") {
            let name = name.trim_end_matches([';', '{', '}', ' ']);
            found.push((name.to_owned(), root.to_owned()));
            if code.ends_with('{') {
                name.clone_into(&mut module);
            }
        } else if let Some(list) = code.strip_prefix("pub use ") {
            let mut list = list.to_owned();
            while !list.ends_with(';') {
                list += statements.next().map(str::trim).unwrap_or(";");
            }
            let list = list.trim_end_matches(';');
            if !hidden {
                found.extend(names(list).into_iter().map(|name| (name, module.clone())));
            }
        } else if line == "}" {
            root.clone_into(&mut module);
        }
        hidden &= code.starts_with("#[");
    }
    found
}

/// The files in which the store's methods may stand.
const METHOD_FILES_MAX: usize = 4;

/// A method of the store is found by opening few files; the rooms have what it does.
#[test]
fn the_stores_methods_stand_in_few_files() {
    let has_methods = |text: &str| {
        let blocks = text.split("\nimpl PageStore {\n").skip(1);
        blocks.map(|block| block.split("\n}\n").next().unwrap_or(block)).any(|b| {
            b.contains("\n    pub fn ") || b.contains("\n    pub async fn ") || b.starts_with("    pub ")
        })
    };
    let mut found = files("rs");
    // The blocking store is another type.
    found.retain(|(file, text)| {
        file.starts_with("src/") && !file.starts_with("src/blocking/") && has_methods(text)
    });
    let found: Vec<&str> = found.iter().map(|(file, _)| file.as_str()).collect();
    assert!((1..=METHOD_FILES_MAX).contains(&found.len()), "methods of the store in {found:?}");
}

#[test]
fn the_interface_is_one_readable_list() {
    let mut all = exports(&read("src/lib.rs"), "pagetier");
    let root = all.iter().filter(|(_, module)| module == "pagetier").count();
    assert!(root > 30, "only {root} names were found at the root");
    assert!(root <= ROOT_MAX, "{root} names at the root; at most {ROOT_MAX} stay readable: use a module");
    all.extend(exports(&read("src/device.rs"), "device"));
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Modules of one name in two places hold different things.
    for (name, module) in all.into_iter().filter(|(name, _)| name.starts_with(char::is_uppercase)) {
        places.entry(name).or_default().push(module);
    }
    places.retain(|_, modules| modules.len() > 1);
    assert!(places.is_empty(), "exported twice: {places:?}");
}

/// The most options of a store, and the most methods of its types.
const OPTIONS_MAX: usize = 22;
const METHODS_MAX: usize = 130;

/// The types by which a program operates a store; in `src/blocking`, the store alone.
const STORE_TYPES: [&str; 9] =
    ["Builder", "PageStore", "Spaces", "Ssd", "Policies", "Trace", "Estimates", "HotSet", "Backups"];

/// The public methods of the store's types, as `Type::name`. Counted is each that a program may call: what
/// stands in an `impl` block of the type, and the setters that the table of options declares. Not counted is
/// what `#[doc(hidden)]` hides, and what the results of calls have: guards, scans, reports, plain options.
fn methods() -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (file, text) in files("rs").iter().filter(|(file, _)| file.starts_with("src/")) {
        let prefix = if file.starts_with("src/blocking/") { "blocking::" } else { "" };
        let mut declared = methods::methods(text);
        declared.retain(|m| STORE_TYPES.contains(&m.of) && !m.hidden && !m.is_const);
        found.extend(declared.iter().map(|method| format!("{prefix}{}::{}", method.of, method.name)));
    }
    let options = read("src/config/options.rs");
    let setters = methods::options(&options).into_iter().filter(|(_, sets)| *sets);
    found.extend(setters.map(|(name, _)| format!("Builder::{name}")));
    found.sort();
    found
}

#[test]
fn options_and_methods_stay_few() {
    let (source, methods) = (read("src/config/options.rs"), methods());
    let names: Vec<&str> = methods::options(&source).into_iter().map(|(name, _)| name).collect();
    println!("{} options: {}", names.len(), names.join(", "));
    println!("{} methods: {}", methods.len(), methods.join(", "));
    for known in ["directory", "ring_pages", "ssd_policy"] {
        assert!(names.contains(&known), "the parser misses {known}: {names:?}");
    }
    for known in ["Builder::ring_pages", "PageStore::get", "Ssd::replace", "blocking::PageStore::get"] {
        assert!(methods.iter().any(|method| method == known), "the parser misses {known}: {methods:?}");
    }
    assert!(names.len() <= OPTIONS_MAX, "{} options, at most {OPTIONS_MAX}: {names:?}", names.len());
    assert!(methods.len() <= METHODS_MAX, "{} methods, at most {METHODS_MAX}: {methods:?}", methods.len());
}

/// The calls of a page's life, and what any other needs.
const BLOCKING: [&str; 12] = [
    "allocate",
    "block_on",
    "close",
    "free",
    "get",
    "get_mut",
    "get_or_create",
    "open",
    "open_read_only",
    "overwrite",
    "scan",
    "sync",
];

/// The blocking store has the calls of a page's life; `block_on` waits for any other.
#[test]
fn blocking_calls_are_those_of_a_pages_life() {
    let methods = methods();
    let found: Vec<&str> = methods.iter().filter_map(|m| m.strip_prefix("blocking::PageStore::")).collect();
    assert_eq!(found, BLOCKING);
}
