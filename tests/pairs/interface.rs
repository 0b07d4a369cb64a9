//! Compares the table of operations with the public methods of an open store.

use crate::methods::methods as in_file;
use crate::operations;
use std::collections::BTreeSet;
use std::path::Path;

/// The types whose methods are operations on an open store.
const TYPES: [&str; 7] = ["PageStore", "Spaces", "Ssd", "HotSet", "Policies", "Estimates", "Trace"];

/// Methods that are no operation of the table, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("PageStore::builder", "there is no store yet"),
    (
        "PageStore::close",
        "takes the store by value, so that no other call can overlap; `shutdown` does the same",
    ),
    ("PageStore::wait_closed", "waits for the end of a store that was dropped: no other call can overlap"),
    ("PageStore::validate", "for tests; follows every case"),
    ("PageStore::moment", "for tests"),
    ("PageStore::free_noting", "`free` with a call in between, for the log"),
    ("PageStore::flush_waits_for_guard", "reads two counters, for the log"),
    ("PageStore::claim", "a handle on the claim that the store has from its open, for the log"),
    ("PageStore::export_metrics", "reads the statistics that `views` reads, in a task of its own"),
];

fn methods() -> BTreeSet<String> {
    let mut methods = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                // The blocking interface calls this one.
                folders.extend(Some(entry).filter(|folder| !folder.ends_with("blocking")));
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(entry).unwrap();
                let found = in_file(&text).into_iter().filter(|m| TYPES.contains(&m.of) && !m.is_const);
                methods.extend(found.map(|method| format!("{}::{}", method.of, method.name)));
            }
        }
    }
    methods
}

#[test]
fn every_method_is_an_operation_or_has_a_reason_not_to_be() {
    let methods = methods();
    assert!(methods.len() > 50, "{methods:?}");
    let table: BTreeSet<&str> = operations::all().flat_map(|operation| operation.methods).copied().collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(name, _)| *name).collect();
    let missing: Vec<&String> = methods
        .iter()
        .filter(|name| !table.contains(name.as_str()) && !exempt.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "neither in the table of operations nor exempt: {missing:?}");
    let gone: Vec<&&str> = table.union(&exempt).filter(|name| !methods.contains(**name)).collect();
    assert!(gone.is_empty(), "no such method: {gone:?}");
    assert!(table.is_disjoint(&exempt));
}

#[test]
fn names_are_unique() {
    let names: Vec<&str> = operations::all().map(|operation| operation.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}
