//! The campaign draws the whole public interface: every public method of every type that the published crates
//! for embedders export, and every option, stands in one of its tables of operations or in the list below,
//! with a reason. A new one fails this test until it is drawn.

use crate::interface::{Declared, calls};
use pagetier_sim::campaign::drawn;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

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
    ("Wal::has_room", "the checkpoints of `LoggedStore` call it"),
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

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folders() -> impl Iterator<Item = PathBuf> {
    CRATES.into_iter().map(|folder| source().join(folder))
}

/// The setters that the list of options declares: those with a type in parentheses.
fn options(text: &str) -> Vec<String> {
    let body = text.split_once("\nmacro_rules! option_table {").expect("the list of options").1;
    let body = body.split_once("\n}").map_or(body, |(table, _)| table);
    let lines = body.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let setters = lines.filter_map(|line| line.split_once('(')?.0.into());
    setters
        .filter(|name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .map(str::to_owned)
        .collect()
}

fn declared() -> Declared {
    let mut all = Declared::default();
    folders().for_each(|folder| all.add(Declared::read(&folder)));
    let text = fs::read_to_string(source().join("../../src/config/options.rs")).unwrap();
    options(&text).iter().for_each(|name| all.add_method("Builder", name, "Builder"));
    all
}

#[test]
fn every_public_method_and_option_is_drawn() {
    let all = declared().methods();
    let drawn: BTreeSet<String> = drawn().map(str::to_owned).collect();
    for known in ["Builder::redo_span_max", "LoggedStore::backup", "Media::append", "PageStore::get"] {
        assert!(all.contains(known), "the parser misses {known}: {all:?}");
    }
    let excuses = |excused: &str, name: &str| match excused.split_once('*') {
        Some((before, after)) => {
            let after = after.trim_end_matches('*');
            name.starts_with(before) && (name.ends_with(after) || name[before.len()..].contains(after))
        }
        None => excused == name,
    };
    let excused = |name: &str| EXCEPTIONS.iter().any(|(excused, _)| excuses(excused, name));
    let missing: Vec<&String> = all.iter().filter(|name| !drawn.contains(*name) && !excused(name)).collect();
    assert!(missing.is_empty(), "neither drawn by the campaign nor excused here: {missing:#?}");
    for (excused, reason) in EXCEPTIONS {
        let excuses_some = all.iter().any(|name| excuses(excused, name) && !drawn.contains(name));
        assert!(excuses_some, "{excused} excuses nothing that there is ({reason})");
        let both = drawn.iter().find(|name| *name == excused);
        assert!(both.is_none(), "{both:?} is drawn, but excused here ({reason})");
    }
}

#[test]
fn what_the_tables_name_is_called_on_its_type() {
    let derefs = [("LoggedStore", "PageStore")];
    let called = calls(&source().join("src/campaign"), declared(), &derefs);
    let all = declared();
    let unknown: Vec<&str> = drawn().filter(|name| !all.knows(name)).collect();
    let uncalled: Vec<&str> = drawn().filter(|name| !called.contains(*name)).collect();
    assert!(unknown.is_empty() && uncalled.is_empty(), "unknown: {unknown:?}; not called: {uncalled:?}");
}
