//! The campaign draws the whole public interface: every public method of every type that the published crates
//! for embedders export, and every option, stands in one of its tables of operations or in the list below,
//! with a reason. A new one fails this test until it is drawn.

use crate::methods::{methods, options};
use pagetier_sim::campaign::drawn;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The crates that embedders use; the others are parts of the first one, and not used by themselves.
const CRATES: [&str; 2] = ["../../src", "../wal/src"];

/// What is not drawn, and why. `Type::*` stands for all methods of the type.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("*::advice", "a table of what to do; the campaign compares what errors say"),
    ("Backup*::*", "tests/backup_files.rs and tests/backup.rs: lists, extracts and options of backups"),
    ("Builder::accept_log_loss", "of a log that is gone for good: crates/wal/src/log/unfit.rs"),
    ("Builder::direct_io", "of files"),
    ("Builder::from_options", "the same as the setters"),
    ("Builder::io", "of files"),
    ("Builder::options", "returns what was set"),
    ("Builder::page_size", "drawn with the plan: 4 or 16 KiB"),
    ("CostSource::online", "makes a `CostSource::Online`, which is drawn"),
    ("DrainOptions::*", "plain options"),
    ("Error::page", "plain data"),
    ("FileMedia::open", "of files"),
    ("Guard::*", "the guards of calls that are drawn"),
    ("Hold::advance", "of engines that copy the log piece by piece: crates/wal/src/log/tests.rs"),
    ("LoggedStore::recovered_from", "the second half of `LoggedStore::on`"),
    ("Media::*", "the log calls its medium"),
    ("MemoryManifest::*", "the campaign's own manifest"),
    ("MiniTx::id", "plain data"),
    ("OnHdd::lease", "sets `lease_ms`, which is drawn"),
    ("Owned*::*", "the guards of calls that are drawn"),
    ("PageMut::*", "the guards of calls that are drawn"),
    ("PageRef::into_owned", "of the guards that `read owned` reads"),
    ("PageStore::export_metrics", "only reads counters, from a thread"),
    ("PageStore::export_stats", "only reads counters"),
    ("PageStore::is_owner", "only looks at the claim, as every request does"),
    ("PageStore::page_size", "a constant of the store"),
    ("Scan::*", "what `PageStore::scan` returns"),
    ("ScrubOptions::*", "plain options"),
    ("SpaceHints::*", "plain options; not retention, which tests/hints.rs draws"),
    ("SsdEvents::*", "what `Ssd::events` returns"),
    ("SsdLoss::*", "plain data"),
    ("Stats::memory_bytes", "plain data"),
    ("Wal::abandon", "of engines that end without a store"),
    ("Wal::can_truncate", "the checkpoints of `LoggedStore` call it"),
    ("Wal::capacity_bytes", "only looks at the log"),
    ("Wal::copy_to", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::durable", "only looks at the log"),
    ("Wal::gate", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::grown", "the checkpoints of `LoggedStore` call it"),
    ("Wal::has_space", "the checkpoints of `LoggedStore` call it"),
    ("Wal::hold", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::id", "only looks at the log"),
    ("Wal::in_memory", "a log that is lost with the process"),
    ("Wal::is_abandoned", "only looks at the log"),
    ("Wal::is_failing", "only looks at the log"),
    ("Wal::is_new", "only looks at the log"),
    ("Wal::is_whole", "only looks at the log"),
    ("Wal::mark", "the checkpoints of `LoggedStore` record it"),
    ("Wal::oldest", "only looks at the log"),
    ("Wal::oldest_unfinished", "only looks at the log"),
    ("Wal::on_device", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::open", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::open_when_free", "a part of `LoggedStore::open`, `on` and `backup`"),
    ("Wal::record_bytes_max", "only looks at the log"),
    ("Wal::segment", "only looks at the log"),
    ("Wal::segment_starts", "only looks at the log"),
    ("Wal::signal_grown", "the checkpoints of `LoggedStore` call it"),
    ("Wal::truncate", "the checkpoints of `LoggedStore` call it"),
    ("WhatIfOptions::*", "plain options"),
];

/// The sources below `folder`. The blocking forms have the asynchronous types' names.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("blocking")) {
            continue;
        } else if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
    found
}

/// The public methods, each with whether the documentation shows it.
fn declared() -> BTreeMap<String, bool> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = BTreeMap::new();
    for text in CRATES.iter().flat_map(|folder| sources(&here.join(folder))) {
        let found = methods(&text).into_iter();
        all.extend(found.map(|method| (format!("{}::{}", method.of, method.name), !method.hidden)));
    }
    let text = fs::read_to_string(here.join("../../src/config/options.rs")).unwrap();
    let setters = options(&text).into_iter().filter(|(_, sets)| *sets);
    all.extend(setters.map(|(name, _)| (format!("Builder::{name}"), true)));
    all
}

#[test]
fn every_public_method_and_option_is_drawn() {
    let mut all = declared();
    all.retain(|_, shown| *shown);
    let drawn: BTreeSet<String> = drawn().map(str::to_owned).collect();
    for known in ["Builder::redo_span_max", "LoggedStore::backup", "Media::append", "PageStore::get"] {
        assert!(all.contains_key(known), "the parser misses {known}: {all:?}");
    }
    let excuses = |excused: &str, name: &str| match excused.split_once('*') {
        Some((before, after)) => {
            let after = after.trim_end_matches('*');
            name.starts_with(before) && (name.ends_with(after) || name[before.len()..].contains(after))
        }
        None => excused == name,
    };
    let excused = |name: &str| EXCEPTIONS.iter().any(|(excused, _)| excuses(excused, name));
    let missing: Vec<&String> = all.keys().filter(|name| !drawn.contains(*name) && !excused(name)).collect();
    assert!(missing.is_empty(), "neither drawn by the campaign nor excused here: {missing:#?}");
    for (excused, reason) in EXCEPTIONS {
        let excuses_some = all.keys().any(|name| excuses(excused, name) && !drawn.contains(name));
        assert!(excuses_some, "{excused} excuses nothing that there is ({reason})");
        let both = drawn.iter().find(|name| *name == excused);
        assert!(both.is_none(), "{both:?} is drawn, but excused here ({reason})");
    }
}

#[test]
fn what_the_tables_name_is_called() {
    let all = declared();
    let campaign = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/campaign")).concat();
    let is_called = |name: &&str| {
        let (_, method) = name.split_once("::").unwrap();
        [format!(".{method}("), format!("::{method}("), format!("::{method})")]
            .iter()
            .any(|c| campaign.contains(c))
    };
    let unknown: Vec<&str> = drawn().filter(|name| !all.contains_key(*name)).collect();
    let uncalled: Vec<&str> = drawn().filter(|name| !is_called(name)).collect();
    assert!(unknown.is_empty() && uncalled.is_empty(), "unknown: {unknown:?}; not called: {uncalled:?}");
}
