//! The counters of a campaign, and what it counts of one crash.

use super::coverage::{Coverage, States};
use crate::campaign::contract::running::{Drawn, Running};
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of a check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checked {
    pub(crate) pages: u64,
    pub(crate) corrupt: u64,
    pub(crate) states: States,
    /// The operations that were in progress.
    pub(crate) running: Running,
}

/// Counts of a campaign, or of a part of it.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Seeds begun.
    pub seeds: u64,
    /// Lives of stores.
    pub lives: u64,
    /// Crashes whose recovery was checked.
    pub crashes: u64,
    /// The number of those taken during the recovery from another crash, or right after it.
    pub crashes_in_recovery: u64,
    /// The number of those of engines with a log.
    pub log_crashes: u64,
    /// Stores that were dropped with I/O in flight and opened again on the same devices.
    pub reopenings: u64,
    /// Devices and manifests that were corrupted or replaced by older, foreign or truncated ones, counted by
    /// event and outcome.
    pub tampered: BTreeMap<String, u64>,
    /// Page reads compared with the contract.
    pub pages_checked: u64,
    /// Pages whose only copy was bad after a fault that allows this: an error named them.
    pub pages_refused: u64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Crashes by the protocol state in which they were taken.
    pub coverage: Coverage,
    /// The operations drawn, the crashes during each, and those that overlapped.
    pub drawn: Drawn,
}

impl Totals {
    pub(crate) fn crash(&mut self, checked: &Checked) {
        self.crashes += 1;
        self.pages_checked += checked.pages;
        self.pages_refused += checked.corrupt;
        self.coverage.count(checked.states);
        self.drawn.crash(&checked.running);
    }

    pub(crate) fn fault(&mut self, kind: &str) {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
    }

    pub(crate) fn tamper(&mut self, what: &str, ended: &str) {
        *self.tampered.entry(format!("{what}: {ended}")).or_default() += 1;
    }

    /// Adds the counts of another part.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.lives += other.lives;
        self.crashes += other.crashes;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.log_crashes += other.log_crashes;
        self.reopenings += other.reopenings;
        self.pages_checked += other.pages_checked;
        self.pages_refused += other.pages_refused;
        for (counts, more) in [(&mut self.tampered, &other.tampered), (&mut self.faults, &other.faults)] {
            for (kind, count) in more {
                *counts.entry(kind.clone()).or_default() += count;
            }
        }
        self.coverage.add(&other.coverage);
        self.drawn.add(&other.drawn);
    }
}
