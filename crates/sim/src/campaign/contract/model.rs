//! The versions that the contract allows every page to read as.
//!
//! Version numbers increase over the whole store and are never reused. A page may read as any version that it
//! was given, but none older than its floor: the newest version that a `sync` covered, or that an earlier
//! recovery found. Version 0 represents a page that was allocated and never became durable.
//!
//! A freed page does not exist until its number is reused (`freed`).

mod freed;

use super::content::fill;
use super::running::Running;
pub(crate) use freed::Existence;
use freed::Unlinked;
use pagetier::{Lsn, OwnedPageMut, PageId, PageMut, SpaceId};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct PageModel {
    /// Every version that it was given and did not lose, ascending; 0 is implied.
    versions: Vec<u32>,
    /// The oldest allowed version.
    floor: u32,
    /// The newest version whose guard was dropped.
    pub(crate) published: u32,
    /// It was discarded after its last write: any version may come back.
    uncertain: bool,
    /// Versions up to this one were discarded: no flush guarantees them.
    worthless: u32,
    /// How often it was discarded.
    discards: u32,
    /// How often it was discarded or lost, so that any version may show; unlike `discards`, without frees.
    bares: u32,
    /// It was discarded once: the store may have given up a failed home write of it.
    given_up: bool,
    /// Its only copy was reported lost: until it is rewritten, reading it may fail.
    pub(crate) gone: bool,
    /// The same of its home: until a later version is durable, a crash may show it.
    home_gone: bool,
    /// Whether it exists.
    existence: Existence,
    /// The versions of its earlier lives, before it was freed last, in ascending order.
    earlier: Vec<u32>,
    /// The page was discarded in its present life, so an earlier life may show.
    bared: bool,
    /// Versions that it had before a discard, and that a crash has not brought back: a chain of backups may
    /// have them.
    forgotten: Vec<u32>,
    /// In a store without a ring: versions that a crash took back. The home of one may have been written, and
    /// its record not: the older copy on the SSD counts, and a discard of it shows the home (I6).
    home_may_have: Vec<u32>,
    home_first: bool,
    /// A call to free it has begun once, or a crash has shown it as free.
    was_freed: bool,
    /// The change after which no page refers to it.
    unlinked: Option<Unlinked>,
    /// Operations that are using it.
    pub(crate) users: u32,
    /// An operation uses it exclusively.
    pub(crate) reserved: bool,
}

impl PageModel {
    /// Whether it may read as `version` after a crash; 0: also that it does not exist.
    pub(crate) fn allows(&self, version: u32) -> bool {
        let absent = version == 0 && self.existence != Existence::There;
        absent || (version >= self.floor && (version == 0 || self.versions.contains(&version)))
    }

    /// Whether it may read as `version` at this moment.
    pub(crate) fn reads_as(&self, version: u32) -> bool {
        if self.uncertain { self.allows(version) } else { version == self.published }
    }

    /// Records that the store reads `version` after a crash. Newer versions never come back. Older ones may
    /// after a discard, and, unless the power was cut, at the next power cut: readable data need not be
    /// durable.
    pub(crate) fn found(&mut self, version: u32, power_was_cut: bool) {
        let (versions, gone): (Vec<u32>, Vec<u32>) = self.versions.iter().partition(|v| **v <= version);
        let (mut earlier, bared, was_freed) = (std::mem::take(&mut self.earlier), self.bared, self.was_freed);
        let (given_up, mut forgotten) = (self.given_up, std::mem::take(&mut self.forgotten));
        let (home_first, mut home_may_have) = (self.home_first, std::mem::take(&mut self.home_may_have));
        if home_first {
            home_may_have.extend(&gone);
        }
        if given_up {
            forgotten.extend(&gone);
        }
        if was_freed {
            // Its home may have them, and show them after a discard.
            earlier.extend(gone);
        }
        // The media hold whatever survives a power cut. After a kill the version may be volatile still, and
        // fall back.
        let kept = if power_was_cut {
            Self { floor: version, given_up, ..Self::default() }
        } else {
            let Self { floor, worthless, discards, .. } = *self;
            Self { floor, worthless, discards, given_up, ..Self::default() }
        };
        let kept = Self { bares: self.bares, home_first, home_may_have, ..kept };
        *self = Self { versions, published: version, earlier, forgotten, bared, was_freed, ..kept };
    }

    /// Whether a failed write may have left its home torn for good: it was discarded before the next attempt,
    /// and has no version that is known to be durable.
    pub(crate) fn may_be_torn(&self) -> bool {
        // With a floor there is a durable version somewhere, from which the open has to repair a torn
        // home (I22).
        self.given_up && self.allows(0)
    }

    /// Records that the report of a loss lists it: it reads as `version`, or not at all. `spared`: not older
    /// than its floor.
    fn lost(&mut self, version: Option<u32>, spared: bool) {
        // A dropped call may have made a free page exist, and the loss shows its home.
        let loose = self.existence == Existence::Loose && version.is_some_and(|version| version > 0);
        if !self.is_free() || loose {
            self.existence = Existence::There;
        }
        self.bare();
        // A readmission may take back versions that no `sync` covered, and no others (I31): the floor
        // stays. Every other loss may take all versions.
        self.floor = if spared { self.floor } else { 0 };
        // No call that has begun can vouch for the versions so far.
        self.worthless = self.versions.last().copied().unwrap_or(0);
        self.discards += 1;
        match version {
            // After a discard a newer version may come back.
            Some(version) if version == self.published || self.uncertain => {}
            Some(version) => {
                self.versions.retain(|v| *v <= version);
                self.published = version;
            }
            None => self.is_gone(),
        }
    }

    fn is_gone(&mut self) {
        (self.uncertain, self.gone, self.home_gone) = (true, true, true);
    }

    /// Whether reading it may fail after a crash, which it does.
    pub(crate) fn fails(&mut self) -> bool {
        // A version written since the loss was in memory alone, or volatile. The crash took it back, and
        // the page is as unreadable as before.
        if self.home_gone {
            self.is_gone();
        }
        self.gone
    }

    /// The versions that may come back, for messages.
    pub(crate) fn allowed(&self) -> String {
        let versions: Vec<u32> = self.versions.iter().copied().filter(|v| *v >= self.floor).collect();
        let existence = match self.existence {
            Existence::There => String::new(),
            other => format!(", {other:?}"),
        };
        let discarded = if self.uncertain { ", discarded" } else { "" };
        format!("{versions:?} from {}{discarded}{existence}", self.floor)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpaceState {
    Live,
    /// After a crash it may exist, with any contents, or not.
    Dropping,
    Dropped,
}

#[derive(Clone, Debug)]
pub(crate) struct SpaceModel {
    pub(crate) name: String,
    pub(crate) state: SpaceState,
    pub(crate) pages: BTreeMap<u32, PageModel>,
    /// A drop of it failed, and a crash may show it as completed; a `sync` that begins later resolves this.
    pub(crate) unverified_drop: Option<u32>,
}

/// What a `sync` that begins at this moment will guarantee when it returns.
pub(crate) struct Promise {
    pages: Vec<(PageId, u32, u32)>,
    unverified_calls: u32,
}

impl Promise {
    /// What a `sync` of `space` alone guarantees.
    pub(crate) fn of(mut self, space: SpaceId) -> Self {
        self.pages.retain(|(page, ..)| page.space == space);
        self
    }
}

/// Calls in progress, for coverage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doing {
    pub(crate) sync: u32,
    pub(crate) flush_to: u32,
    pub(crate) discard: u32,
    pub(crate) drop_space: u32,
    pub(crate) free: u32,
    pub(crate) shrink: u32,
    /// Allocations, and uses of free pages by number: not both at once, or a page gets two owners.
    pub(crate) allocate: u32,
    pub(crate) by_number: u32,
    pub(crate) switch: u32,
    pub(crate) backup: u32,
    pub(crate) closing: bool,
    /// A page is being created far beyond its space's end.
    pub(crate) far: bool,
    /// The operations of the table.
    pub(crate) running: Running,
}

/// The calls that change how the SSD is used: those that may add to a loss, and those that were dropped and
/// may still run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SsdCalls {
    pub(crate) running: u32,
    /// The number of the last call.
    pub(crate) last: u32,
    /// The last call when one was dropped.
    pub(crate) background: Option<u32>,
    pub(crate) acknowledging: bool,
    /// A call failed: what it would have recorded may show after a crash.
    pub(crate) unverified: bool,
}

impl SsdCalls {
    /// Whether a call is running, perhaps without its caller.
    pub(crate) const fn are_running(&self) -> bool {
        self.running > 0 || self.background.is_some()
    }
}

/// The model of the whole store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) spaces: BTreeMap<u32, SpaceModel>,
    pub(crate) doing: Doing,
    /// The maximum number of home writes that the faults so far fail.
    pub(crate) failed_home_writes: u64,
    /// The position up to which the embedder's log is durable.
    pub(crate) log_durable: u64,
    /// Versions up to this one may be missing if the report of a loss lists their page.
    pub(crate) lost_to: u32,
    /// Losses come from readmissions alone: pages may have lost what no `sync` covered.
    pub(crate) loss_spares_synced: bool,
    pub(crate) strict: bool,
    /// Without a ring, a page that supersedes an only copy is written home before its record (I6).
    pub(crate) home_first: bool,
    /// A loss was acknowledged.
    pub(crate) acknowledged: bool,
    pub(crate) ssd_calls: SsdCalls,
    /// The SSD may have been exchanged for the ring, or formatted.
    pub(crate) ssd_touched: bool,
    /// The newest version number issued.
    pub(crate) last_version: u32,
    spaces_made: u32,
    unverified_calls: u32,
}

impl Model {
    /// Whether a home write and its retry may have failed: a discarded page whose home they tore is not
    /// repaired, and may be reported as corrupt instead of missing.
    pub(crate) const fn torn_homes(&self) -> bool {
        self.failed_home_writes > 1
    }

    /// The model of a store whose versions start after `version`, above those of any other store.
    pub(crate) fn starting_at(version: u32) -> Self {
        Self { last_version: version, log_durable: u64::from(version), ..Self::default() }
    }

    /// A name for a new space.
    pub(crate) fn space_name(&mut self) -> String {
        self.spaces_made += 1;
        format!("s{}", self.spaces_made)
    }

    /// Records the creation of a space.
    pub(crate) fn created(&mut self, id: SpaceId, name: String) {
        let space =
            SpaceModel { name, state: SpaceState::Live, pages: BTreeMap::new(), unverified_drop: None };
        self.spaces.insert(id.0, space);
    }

    pub(crate) fn page(&mut self, page: PageId) -> Option<&mut PageModel> {
        self.spaces.get_mut(&page.space.0)?.pages.get_mut(&page.no)
    }

    /// The page, unless its space is being dropped.
    pub(crate) fn live_page(&mut self, page: PageId) -> Option<&mut PageModel> {
        let space = self.spaces.get_mut(&page.space.0).filter(|s| s.state == SpaceState::Live)?;
        space.pages.get_mut(&page.no)
    }

    /// Writes a new version of the page through its exclusive guard; returns the version.
    pub(crate) fn write(&mut self, guard: &mut PageMut<'_>) -> u32 {
        let page = guard.id();
        let version = self.wrote(page);
        fill(guard, page, version);
        // The version serves as the LSN, so that `flush_to` and the gate of the log can be judged by
        // versions.
        guard.set_lsn(Lsn(u64::from(version)));
        version
    }

    /// The same through a guard that owns its store.
    pub(crate) fn write_owned(&mut self, guard: &mut OwnedPageMut) -> u32 {
        let page = guard.id();
        let version = self.wrote(page);
        fill(guard, page, version);
        guard.set_lsn(Lsn(u64::from(version)));
        version
    }

    /// Records a write of the page; returns its version, a new one.
    fn wrote(&mut self, page: PageId) -> u32 {
        self.last_version += 1;
        if let Some(space) = self.spaces.get_mut(&page.space.0) {
            let p = space.pages.entry(page.no).or_default();
            p.home_first = self.home_first;
            p.versions.push(self.last_version);
            p.exists_again();
        }
        self.last_version
    }

    /// Records that the guard was dropped (or is dropped before any other task runs).
    pub(crate) fn published(&mut self, page: PageId, version: u32) {
        if let Some(p) = self.page(page) {
            p.published = version;
            // Memory has a page that was written, whatever the devices lack.
            (p.uncertain, p.gone) = (false, false);
        }
    }

    /// What a `sync` (`up_to`: everything) or `flush_to` that begins at this moment covers.
    pub(crate) fn promise(&self, up_to: u32) -> Promise {
        let mut covered = Vec::new();
        for (space, s) in &self.spaces {
            for (no, p) in &s.pages {
                // A version that is still under its guard is not covered.
                let newest = p.versions.iter().rev().find(|v| **v <= up_to.min(p.published));
                // The call owes nothing to a page that was discarded since: the store may have dropped
                // its versions without writing any.
                if let Some(newest) = newest.filter(|v| !p.uncertain && **v > p.worthless) {
                    covered.push((PageId::new(SpaceId(*space), *no), *newest, p.discards));
                }
            }
        }
        Promise { pages: covered, unverified_calls: self.unverified_calls }
    }

    /// Records that the call returned: those pages are durable.
    pub(crate) fn keep(&mut self, promise: Promise) {
        for (page, version, discards) in promise.pages {
            // The call made a version durable that a discard meanwhile has declared worthless.
            if let Some(p) = self.page(page).filter(|p| p.discards == discards) {
                p.floor = p.floor.max(version);
                p.home_gone = false;
            }
        }
        for space in self.spaces.values_mut() {
            // A `sync` replaces a manifest whose last save failed (I41). That settles the calls that had
            // failed when it began, and none that failed later.
            space.unverified_drop = space.unverified_drop.filter(|call| *call > promise.unverified_calls);
            space.pages.values_mut().for_each(|p| p.settle(promise.unverified_calls));
        }
    }

    /// Records the start or end of a discard: any earlier contents may come back.
    pub(crate) fn discarded(&mut self, page: PageId) {
        if let Some(p) = self.page(page) {
            // The newest version may be on the SSD alone, whose slot the discard gives up. Only the home
            // remains, and it may be of any age.
            p.bare();
            p.floor = 0;
            p.uncertain = true;
            p.worthless = p.versions.last().copied().unwrap_or(0);
            p.discards += 1;
            p.given_up = true;
        }
    }

    /// Records that a space is being dropped: its pages are of no value.
    pub(crate) fn dropping(&mut self, space: u32) {
        if let Some(s) = self.spaces.get_mut(&space) {
            s.state = SpaceState::Dropping;
        }
    }

    /// Records that a drop failed and the space is unchanged; `unverified`: a crash may show otherwise.
    pub(crate) fn not_dropped(&mut self, space: u32, unverified: bool) {
        self.unverified_calls += 1;
        let call = unverified.then_some(self.unverified_calls);
        if let Some(s) = self.spaces.get_mut(&space) {
            // A drop that certainly changed nothing does not settle an earlier one, whose save may be in
            // force.
            (s.state, s.unverified_drop) = (SpaceState::Live, call.or(s.unverified_drop));
        }
    }

    /// Records that a call made the page exist.
    pub(crate) fn exists(&mut self, page: PageId) {
        if let Some(p) = self.page(page) {
            p.exists_again();
        }
    }

    /// Records that the space exists after a crash.
    pub(crate) fn found_space(&mut self, space: u32) {
        if let Some(s) = self.spaces.get_mut(&space) {
            (s.state, s.unverified_drop) = (SpaceState::Live, None);
        }
    }

    /// Records that a space whose drop is uncertain is gone after a crash. Returns false if it was not.
    pub(crate) fn resolve_drop(&mut self, space: u32) -> bool {
        let gone = self.spaces.get(&space).is_some_and(|s| s.unverified_drop.is_some());
        if gone {
            self.dropped(space);
        }
        gone
    }

    /// Records that `page`, listed in a report of a loss, read as `version`, or not at all; `running`: in the
    /// store that reported it. Returns false if the report does not cover that, because a newer version was
    /// written since.
    pub(crate) fn lost(&mut self, page: PageId, version: Option<u32>, running: bool) -> bool {
        let (lost_to, spares) = (self.lost_to, self.loss_spares_synced && self.strict);
        // No loss makes a free page exist.
        let exists = |p: &&mut PageModel| !p.is_absent() || version == Some(0);
        let covered = self.page(page).filter(exists);
        // After a crash only a floor above the loss proves that a durable version is missing: the
        // published one may have been in memory alone. A running store still has it.
        let covered = covered.filter(|p| if running { p.published <= lost_to } else { p.floor <= lost_to });
        let spared = |p: &PageModel| p.floor == 0 || version.is_some_and(|version| version >= p.floor);
        covered.filter(|p| !spares || spared(p)).map(|p| p.lost(version, spares)).is_some()
    }

    /// Records that everything but the HDD is lost before the next open.
    pub(crate) fn bereft(&mut self) {
        (self.lost_to, self.loss_spares_synced, self.ssd_touched) = (u32::MAX, false, true);
    }

    /// Records that the page reads as it did at the last good flush of the SSD again: as a version that a
    /// `sync` covered, or a newer one.
    pub(crate) fn reverted(&mut self, page: PageId) {
        if let Some(p) = self.page(page).filter(|p| !p.is_free()) {
            // The promise of a `sync` in flight was about a version that is gone: the changed count voids
            // it.
            p.uncertain = true;
            p.discards += 1;
        }
    }

    /// Records that the embedder has dealt with the loss of `page`, which reads as `version`.
    pub(crate) fn dealt_with(&mut self, page: PageId, version: Option<u32>) {
        let spares = self.loss_spares_synced && self.strict;
        if let Some(p) = self.page(page) {
            p.lost(version, spares);
        }
    }

    /// Records that the space is durably gone.
    pub(crate) fn dropped(&mut self, space: u32) {
        if let Some(s) = self.spaces.get_mut(&space) {
            // The entry stays, so that each later check sees whether the space has come back.
            s.state = SpaceState::Dropped;
            s.pages.clear();
        }
    }

    /// The live spaces that certainly exist, with their names.
    pub(crate) fn live_names(&self) -> Vec<(u32, String)> {
        let live = self.spaces.iter().filter(|(_, s)| s.state == SpaceState::Live);
        live.map(|(id, s)| (*id, s.name.clone())).collect()
    }

    /// Whether a page's only copy was lost, so that it cannot be read.
    pub(crate) fn any_gone(&self) -> bool {
        self.spaces.values().flat_map(|s| s.pages.values()).any(|p| p.gone)
    }

    /// Whether a space is being dropped.
    pub(crate) fn any_space_leaves(&self) -> bool {
        self.spaces.values().any(|s| s.state == SpaceState::Dropping)
    }

    /// After a crash no call is in progress.
    pub(crate) fn rest(&mut self) {
        (self.doing, self.ssd_calls) = (Doing::default(), SsdCalls::default());
        for p in self.spaces.values_mut().flat_map(|s| s.pages.values_mut()) {
            (p.users, p.reserved) = (0, false);
        }
    }

    /// The live spaces.
    pub(crate) fn live(&self) -> Vec<u32> {
        self.spaces.iter().filter(|(_, s)| s.state == SpaceState::Live).map(|(id, _)| *id).collect()
    }

    /// The number of pages in live spaces, without free ones.
    pub(crate) fn pages(&self) -> usize {
        let exist = |s: &SpaceModel| s.pages.values().filter(|p| !p.is_free()).count();
        self.spaces.values().filter(|s| s.state == SpaceState::Live).map(exist).sum()
    }

    /// The pages of live spaces.
    pub(crate) fn live_pages(&self) -> Vec<PageId> {
        let live = self.spaces.iter().filter(|(_, s)| s.state == SpaceState::Live);
        live.flat_map(|(id, s)| s.pages.keys().map(|no| PageId::new(SpaceId(*id), *no))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(model: &mut Model, page: PageId) {
        let version = model.wrote(page);
        model.published(page, version);
    }

    #[test]
    fn a_sync_raises_the_floor_unless_the_page_was_discarded_meanwhile() {
        let mut model = Model::default();
        let page = PageId::new(SpaceId(1), 3);
        model.created(SpaceId(1), "s".into());
        for _ in 0..2 {
            publish(&mut model, page);
        }
        let promise = model.promise(u32::MAX);
        publish(&mut model, page);
        model.keep(promise);
        let p = model.page(page).unwrap();
        assert!(!p.allows(0) && !p.allows(1) && p.allows(2) && p.allows(3) && !p.allows(4));
        assert!(p.reads_as(3) && !p.reads_as(2));
        let promise = model.promise(u32::MAX);
        model.discarded(page);
        model.keep(promise);
        assert!(model.page(page).unwrap().allows(0) && model.page(page).unwrap().reads_as(2));
        model.page(page).unwrap().found(2, true);
        assert!(!model.page(page).unwrap().allows(3));
    }

    #[test]
    fn without_a_ring_a_discard_may_show_what_a_crash_took_back() {
        for home_first in [false, true] {
            let mut model = Model { home_first, ..Model::default() };
            let page = PageId::new(SpaceId(1), 3);
            model.created(SpaceId(1), "s".into());
            for _ in 0..3 {
                publish(&mut model, page);
            }
            model.page(page).unwrap().found(2, true);
            publish(&mut model, page);
            assert!(!model.page(page).unwrap().allows(3));
            model.discarded(page);
            assert_eq!(model.page(page).unwrap().allows(3), home_first);
        }
    }

    #[test]
    fn what_a_kill_leaves_is_readable_and_becomes_durable_with_the_next_sync() {
        let mut model = Model::default();
        let page = PageId::new(SpaceId(1), 3);
        model.created(SpaceId(1), "s".into());
        for _ in 0..2 {
            publish(&mut model, page);
        }
        model.page(page).unwrap().found(2, false);
        let p = model.page(page).unwrap();
        assert!(p.reads_as(2) && p.allows(0) && p.allows(1) && p.allows(2));
        let promise = model.promise(u32::MAX);
        model.keep(promise);
        assert!(!model.page(page).unwrap().allows(1));
    }
}
