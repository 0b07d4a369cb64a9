//! What an engine knows of its pages and its log: every record in order, how far the log was acknowledged,
//! and what no record covers.
//!
//! A log that recovers up to a position has every record up to there and none after it. So each page has
//! exactly one version that it may read as, except for changes without a record: these follow the contract of
//! the pages alone.

use pagetier::{PageId, SpaceId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// When a change is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// With the record that ends there; 0: it was found by an open.
    Lsn(u64),
    /// Its call has begun, and its record's position is not known yet.
    Call(u32),
    /// Never: it has no record. Once synced, it is durable like a page without a log.
    Unlogged { synced: bool },
    /// Never: the page was handed out, and nothing was written to it.
    Handed,
}

/// A version of a page; `None`: it is free.
#[derive(Clone, Debug)]
struct Version {
    at: At,
    bytes: Option<Arc<[u8]>>,
}

/// What is known of a page, or of a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Absent,
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
struct Space {
    name: String,
    state: SpaceState,
    /// Tasks that are about to use one of its pages.
    users: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpaceState {
    Live,
    /// A call that drops it has begun, or was dropped.
    Leaving,
    /// The record that drops it is durable, and it left the store.
    Gone,
}

/// A commit of several steps, and whether all of it was applied.
#[derive(Clone, Copy, Debug)]
struct Steps {
    commit: u64,
    applied: Option<u64>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pages: BTreeMap<PageId, Vec<Version>>,
    spaces: BTreeMap<u32, Space>,
    steps: Vec<Steps>,
    /// The calls whose records have no position yet, and where the log ended when they began.
    calls: BTreeMap<u32, u64>,
    last_call: u32,
    last_space: u32,
    /// Every record up to here was reported durable, or found by an open.
    pub(super) acked: u64,
    /// The number of the open, and whether one of its records was acknowledged.
    pub(super) opens: u32,
    pub(super) acked_since: bool,
    /// The pages must know that the log goes at least that far.
    pub(super) known: u64,
    /// Where each write to the log's medium began.
    pub(super) batches: BTreeSet<u64>,
    /// How far the log was acknowledged at the open.
    opened: u64,
    /// Pages were changed without a record: the log does not have them if the SSD is lost.
    pub(super) loaded: bool,
    /// The number of the last content.
    pub(super) content: u64,
    /// An open may have recovered the log up to any position from `acked` on, and continued it from there:
    /// records after `acked` may be there or not.
    pub(super) uncertain: bool,
}

impl Model {
    /// The same, with other numbers for the contents that follow.
    pub(super) fn going_on_at(mut self, content: u64) -> Self {
        self.content = content;
        self
    }

    /// What a backup that ended now, and began at `before`, must hold: of the changes without a record, those
    /// that were synced then.
    pub(super) fn as_backed_up(&self, before: &Self) -> Self {
        let mut model = self.clone();
        // The backup may be from before the creation of a space, which is no record, or before its removal.
        model.pages.retain(|page, _| before.has_space(page.space));
        for (id, space) in &mut model.spaces {
            if before.spaces.get(id).map(|then| then.state) != Some(space.state) {
                space.state = SpaceState::Leaving;
            }
        }
        // A later record may have changed a part of a page that the backup does not have otherwise.
        model.pages.retain(|page, versions| {
            let then = || before.pages.get(page).into_iter().flatten();
            let is_there = |v: &Version| then().any(|then| then.at == v.at && then.bytes == v.bytes);
            versions.iter().filter(|v| v.at == (At::Unlogged { synced: true })).all(is_there)
        });
        model
    }

    /// Whether pages were changed without a record since `before`: a later log does not bring such changes to
    /// restored pages.
    pub(super) fn loaded_since(&self, before: &Self) -> bool {
        let unlogged = |v: &&Version| matches!(v.at, At::Unlogged { .. });
        let loaded = |model: &Self, page: &PageId| -> usize {
            model.pages.get(page).map_or(0, |versions| versions.iter().filter(unlogged).count())
        };
        self.pages.keys().any(|page| loaded(self, page) > loaded(before, page))
    }

    /// As it is for a moment during an open's recovery, if `recovering`.
    pub(super) fn at_moment(&self, recovering: bool) -> Self {
        let mut model = self.clone();
        model.uncertain |= recovering;
        model
    }

    /// A page whose newest version an engine may change by a record.
    fn is_usable(&self, page: PageId) -> bool {
        let live = self.spaces.get(&page.space.0).is_some_and(|space| space.state == SpaceState::Live);
        let last = self.pages.get(&page).and_then(|versions| versions.last());
        let settled = |v: &Version| match v.at {
            At::Lsn(_) | At::Call(_) | At::Unlogged { synced: true } => v.bytes.is_some(),
            // A crash may leave such a page without its contents, and a record of some of its bytes could
            // not restore them.
            At::Unlogged { synced: false } | At::Handed => false,
        };
        live && last.is_some_and(settled)
    }

    pub(super) fn usable(&self) -> Vec<PageId> {
        self.pages.keys().copied().filter(|page| self.is_usable(*page)).collect()
    }

    /// What the page reads as at this moment, if an engine may use it.
    pub(super) fn current(&self, page: PageId) -> Option<Arc<[u8]>> {
        if !self.is_usable(page) {
            return None;
        }
        self.pages.get(&page)?.last()?.bytes.clone()
    }

    /// Whether the page is in use: the store must not hand it out.
    pub(super) fn is_in_use(&self, page: PageId) -> bool {
        let last = self.pages.get(&page).and_then(|versions| versions.last());
        last.is_some_and(|version| version.bytes.is_some() && version.at != At::Handed)
    }

    /// The number of pages that are in use.
    pub(super) fn pages_in_use(&self) -> usize {
        self.pages.keys().filter(|page| self.is_in_use(**page)).count()
    }

    /// A new page was handed out.
    pub(super) fn handed(&mut self, page: PageId, len: usize) {
        let zeroes = Some(vec![0; len].into());
        self.pages.entry(page).or_default().push(Version { at: At::Handed, bytes: zeroes });
    }

    /// A record that ends at `lsn` changes these pages and frees those.
    pub(super) fn recorded(&mut self, lsn: u64, changes: &[(PageId, Arc<[u8]>)], freed: &[PageId]) {
        self.add(At::Lsn(lsn), changes, freed);
    }

    fn add(&mut self, at: At, changes: &[(PageId, Arc<[u8]>)], freed: &[PageId]) {
        for (page, bytes) in changes {
            self.pages.entry(*page).or_default().push(Version { at, bytes: Some(Arc::clone(bytes)) });
        }
        for page in freed {
            self.pages.entry(*page).or_default().push(Version { at, bytes: None });
        }
    }

    /// A call begins that will append such a record, if it gets that far.
    pub(super) fn call(&mut self, end: u64, changes: &[(PageId, Arc<[u8]>)], freed: &[PageId]) -> u32 {
        self.last_call += 1;
        self.calls.insert(self.last_call, end);
        self.add(At::Call(self.last_call), changes, freed);
        self.last_call
    }

    /// The log ends at `end`: calls that began before it ended there have appended their records. Where these
    /// end is not known, since the time of a write may follow; where they begin is, and a recovery ends at
    /// the end of a record.
    pub(super) fn resolve(&mut self, end: u64) {
        let appended: Vec<(u32, u64)> = self
            .calls
            .iter()
            .filter(|(_, before)| **before < end)
            .map(|(call, before)| (*call, *before))
            .collect();
        for (call, before) in appended {
            self.calls.remove(&call);
            for version in self.pages.values_mut().flatten().filter(|v| v.at == At::Call(call)) {
                version.at = At::Lsn(before + 1);
            }
        }
    }

    /// The call has appended no record, and its pages are as they were. Returns whether that is so.
    pub(super) fn refused(&mut self, call: u32) -> bool {
        let open = self.calls.remove(&call).is_some();
        if open {
            for versions in self.pages.values_mut() {
                versions.retain(|version| version.at != At::Call(call));
            }
        }
        open
    }

    /// These pages are changed without a record.
    pub(super) fn unlogged(&mut self, changes: &[(PageId, Arc<[u8]>)]) {
        self.loaded = true;
        self.add(At::Unlogged { synced: false }, changes, &[]);
    }

    /// The versions that have no record and are not synced.
    pub(super) fn unsynced(&self) -> Vec<(PageId, Option<Arc<[u8]>>)> {
        let mut all = Vec::new();
        for (page, versions) in &self.pages {
            let of = versions.iter().filter(|version| version.at == At::Unlogged { synced: false });
            all.extend(of.map(|version| (*page, version.bytes.clone())));
        }
        all
    }

    /// These versions, which were there when a sync began, are durable. Since then a page may have been
    /// freed, and its number used again.
    pub(super) fn synced(&mut self, then: &[(PageId, Option<Arc<[u8]>>)]) {
        for (page, bytes) in then {
            for version in self.pages.get_mut(page).into_iter().flatten() {
                if version.at == (At::Unlogged { synced: false }) && version.bytes == *bytes {
                    version.at = At::Unlogged { synced: true };
                }
            }
        }
    }

    /// The log is durable up to `lsn`, as a call reported.
    pub(super) fn acknowledged(&mut self, lsn: u64) {
        self.acked_since |= lsn > self.acked;
        self.acked = self.acked.max(lsn);
        // The manifest names the open's generation before its first record (I45), so an acknowledged one
        // proves that the pages know of all that the open found.
        if self.acked_since {
            self.know(self.opened);
        }
    }

    /// The pages know that the log goes as far as `end`. Of a new segment they learn soon, and no commit
    /// waits for that: a model cannot tell when, so a test of the log checks it
    /// (`a_log_without_its_newest_segment_is_refused_after_a_crash`).
    pub(super) fn know(&mut self, end: u64) {
        self.known = self.known.max(end);
    }

    /// A record of a transaction of several steps ends at `commit`.
    pub(super) fn began_steps(&mut self, commit: u64) {
        self.steps.push(Steps { commit, applied: None });
    }

    /// The record that a transaction of several steps was applied ends at `lsn`.
    pub(super) fn applied(&mut self, commit: u64, lsn: u64) {
        if let Some(steps) = self.steps.iter_mut().find(|steps| steps.commit == commit) {
            steps.applied = Some(lsn);
        }
    }

    /// The oldest transaction of several steps that was not applied.
    pub(super) fn unapplied(&self) -> Option<u64> {
        self.steps.iter().find(|steps| steps.applied.is_none()).map(|steps| steps.commit)
    }

    /// The transactions that a recovery up to `end` must return.
    pub(super) fn to_repeat(&self, end: u64) -> Vec<u64> {
        // The record that all was applied may be lost with the log's end: then the transaction is to be
        // repeated.
        let open = |s: &&Steps| s.commit <= end && s.applied.is_none_or(|lsn| lsn > end);
        self.steps.iter().filter(open).map(|steps| steps.commit).collect()
    }

    pub(super) fn space_name(&mut self) -> String {
        self.last_space += 1;
        format!("space-{}", self.last_space)
    }

    pub(super) fn created(&mut self, space: SpaceId, name: String) {
        self.spaces.insert(space.0, Space { name, state: SpaceState::Live, users: 0 });
    }

    /// The spaces in use.
    pub(super) fn live(&self) -> Vec<SpaceId> {
        let live = self.spaces.iter().filter(|(_, space)| space.state == SpaceState::Live);
        live.map(|(id, _)| SpaceId(*id)).collect()
    }

    /// Every space with its name and state.
    pub(super) fn spaces(&self) -> Vec<(SpaceId, String, SpaceState)> {
        self.spaces.iter().map(|(id, space)| (SpaceId(*id), space.name.clone(), space.state)).collect()
    }

    pub(super) fn has_space(&self, space: SpaceId) -> bool {
        self.spaces.contains_key(&space.0)
    }

    /// A task is about to use pages of the space; false: it must not.
    pub(super) fn enter(&mut self, space: SpaceId) -> bool {
        let space = self.spaces.get_mut(&space.0).filter(|space| space.state == SpaceState::Live);
        space.map(|space| space.users += 1).is_some()
    }

    pub(super) fn leave(&mut self, space: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&space.0) {
            space.users = space.users.saturating_sub(1);
        }
    }

    /// Whether the space may be dropped: no task uses it. From then on none does.
    pub(super) fn begin_drop(&mut self, space: SpaceId) -> bool {
        let space = self.spaces.get_mut(&space.0).filter(|s| s.state == SpaceState::Live && s.users == 0);
        space.map(|space| space.state = SpaceState::Leaving).is_some()
    }

    /// What became of a space that a call was to drop.
    pub(super) fn space_is(&mut self, space: SpaceId, state: SpaceState) {
        if let Some(found) = self.spaces.get_mut(&space.0) {
            found.state = state;
        }
        if state == SpaceState::Gone {
            self.pages.retain(|page, _| page.space != space);
        }
    }

    /// The versions that the page may read as once the log is recovered up to `end`; `None` for one that is
    /// free or was never written.
    fn allowed<'v>(&self, versions: &'v [Version], end: u64) -> Vec<Option<&'v Version>> {
        let (mut base, mut later) = (None, Vec::new());
        for version in versions {
            match version.at {
                At::Lsn(lsn) if self.uncertain && lsn > self.acked => later.push(Some(version)),
                // Redo applies the record, so nothing from before it may show, also nothing without a
                // record.
                At::Lsn(lsn) if lsn <= end => (base, later) = (Some(version), Vec::new()),
                At::Unlogged { synced: true } => (base, later) = (Some(version), Vec::new()),
                At::Unlogged { synced: false } | At::Handed => later.push(Some(version)),
                // The log is the gate: no page is on a device before its record is durable, so no such
                // version can show.
                At::Lsn(_) | At::Call(_) => {}
            }
        }
        let mut all = vec![base];
        all.extend(later);
        all
    }

    /// Compares a page with what a recovery up to `end` must show, or `newer` than that.
    pub(super) fn judge(&self, page: PageId, found: &Found, end: u64, newer: bool) -> Result<(), String> {
        let Some(versions) = self.pages.get(&page) else { return Ok(()) };
        let is = |version: &Option<&Version>| match (version.and_then(|v| v.bytes.as_ref()), found) {
            (None, Found::Absent) => true,
            (Some(bytes), Found::Bytes(found)) => bytes == found,
            _ => false,
        };
        if self.allowed(versions, end).iter().any(is) {
            return Ok(());
        }
        // It shows none of the allowed versions: which one it shows instead says what went wrong.
        let nth = versions.iter().rposition(|version| is(&Some(version)));
        let Some(nth) = nth else {
            return Err(match found {
                Found::Absent => format!("page {page} does not exist; {}", describe(versions, end)),
                Found::Bytes(bytes) if bytes.iter().all(|byte| *byte == 0) => {
                    format!("page {page} is blank; {}", describe(versions, end))
                }
                Found::Bytes(bytes) => {
                    let begins = &bytes[..bytes.len().min(16)];
                    let described = describe(versions, end);
                    format!("page {page} is mixed, or another page, {begins:x?}; {described}")
                }
            });
        };
        let base = self.allowed(versions, end)[0].map(|base| base.at);
        let at = versions.iter().position(|version| Some(version.at) == base);
        match at {
            Some(at) if nth > at && newer => Ok(()),
            None if newer => Ok(()),
            Some(at) if nth > at => {
                Err(format!("page {page} is newer than the log: version {nth}; {}", describe(versions, end)))
            }
            _ => Err(format!("page {page} is older: version {nth}; {}", describe(versions, end))),
        }
    }

    pub(super) fn known_pages(&self) -> Vec<PageId> {
        self.pages.keys().copied().collect()
    }

    /// Records that an open has recovered up to `end`, and what it found of each page.
    pub(super) fn settle(&mut self, end: u64, mut found: impl FnMut(PageId) -> Found) {
        // What follows the last record of the engine's is the log's own.
        let lsns = self.pages.values().flatten().filter_map(|version| match version.at {
            At::Lsn(lsn) => Some(lsn),
            _ => None,
        });
        let all = lsns.chain(self.steps.iter().map(|steps| steps.commit));
        let last = all.filter(|lsn| *lsn <= end).max().unwrap_or(0);
        for (page, mut versions) in std::mem::take(&mut self.pages) {
            let found = found(page);
            let matches = |version: &&Version| match (&version.bytes, &found) {
                (None, Found::Absent) => true,
                (Some(bytes), Found::Bytes(found)) => bytes == found,
                _ => false,
            };
            let allowed = self.allowed(&versions, end);
            let base = allowed[0].cloned();
            // Of the versions without a guarantee, the one that was found goes on; no other comes back.
            let later = allowed.into_iter().skip(1).flatten().rfind(matches).cloned();
            let is_base = base.as_ref().is_some_and(|base| matches(&base));
            versions = base.into_iter().chain(later.filter(|_| !is_base)).collect();
            for version in versions.iter_mut().filter(|v| matches!(v.at, At::Lsn(_))) {
                // The next open goes on from `end`, and may give out positions again that were cut off.
                version.at = At::Lsn(0);
            }
            self.pages.insert(page, versions);
        }
        self.uncertain = false;
        self.calls.clear();
        self.steps.retain(|steps| steps.commit <= end);
        for steps in &mut self.steps {
            steps.applied = steps.applied.filter(|lsn| *lsn <= end);
        }
        self.steps.retain(|steps| steps.applied.is_none());
        // Writes beyond the end were cut off, and their positions are given out again.
        self.batches = self.batches.iter().copied().filter(|at| *at < end).collect();
        self.spaces.values_mut().for_each(|space| space.users = 0);
        (self.acked, self.acked_since) = (self.acked.max(last), false);
        self.opens += 1;
        // Before the first record of this open is acknowledged, the pages know of these.
        self.opened = self.acked;
    }
}

fn describe(versions: &[Version], end: u64) -> String {
    let one = |v: &Version| {
        let what = v.bytes.as_ref().map_or("free".to_owned(), |b| format!("{:02x}{:02x}", b[0], b[8]));
        format!("{:?} {what}", v.at)
    };
    let all: Vec<String> = versions.iter().map(one).collect();
    format!("recovered up to {end}, versions {}", all.join(", "))
}
