//! Pages that are freed, and whose numbers are reused. Once `free` returns, the page does not exist, in this
//! run and after a crash. Reuse begins a new life, of which a `sync` makes a version durable; until then a
//! crash leaves the page free. No read shows an earlier life, except after a discard or a loss of the SSD.

use super::{Model, PageModel, SpaceState};
use pagetier::{PageId, SpaceId};

/// Whether a page exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Existence {
    #[default]
    There,
    /// A call that frees it is in progress: a crash may show either.
    Leaving,
    /// It exists, but a call that frees it has failed: a crash may show that it succeeded, until a `sync`
    /// that began after at least this number of such calls returns.
    Unverified(u32),
    Free,
    /// It was free, and a dropped call may have reused its number without writing it.
    Loose,
}

/// A change after which no page refers to one that a `sync` is to free: the free must not last without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::campaign) struct Unlinked {
    /// The page that is changed.
    from: PageId,
    version: u32,
    /// How often `from` had been discarded then: after another discard any version of it may show.
    discards: u32,
}

impl PageModel {
    /// Whether it does not exist, unless a dropped call has made it exist again, blank.
    pub(in crate::campaign) fn is_free(&self) -> bool {
        matches!(self.existence, Existence::Free | Existence::Loose)
    }

    /// Whether it must not exist.
    pub(in crate::campaign) fn is_absent(&self) -> bool {
        self.existence == Existence::Free
    }

    /// Whether it exists for certain, so that no other page can have its number.
    pub(in crate::campaign) fn is_in_use(&self) -> bool {
        let exists = matches!(self.existence, Existence::There | Existence::Unverified(_));
        exists && self.published > 0 && !self.uncertain && !self.gone
    }

    /// Whether a check after a crash may find this: a version, or that it does not exist.
    pub(in crate::campaign) fn may_be(&self, found: Option<u32>) -> bool {
        match (self.existence, found) {
            (_, None) => self.allows(0),
            // The free is recorded before the call returns, and recovery ignores every version of a
            // listed page (I28).
            (Existence::Free, Some(_)) => false,
            // The dropped call wrote nothing, so the page can only be blank: any version would be of its
            // earlier life.
            (Existence::Loose, Some(version)) => version == 0,
            (_, Some(0)) => self.floor == 0,
            (_, Some(version)) => self.allows(version),
        }
    }

    /// Records what a check after a crash found.
    pub(in crate::campaign) fn was_found(&mut self, found: Option<u32>, power_was_cut: bool) {
        let freed = match self.existence {
            Existence::Free => true,
            // With floor 0 it may have been lost instead, and exist.
            Existence::Leaving | Existence::Unverified(_) => found.is_none() && self.floor > 0,
            Existence::Loose => found.is_none(),
            // Its reuse was not recorded.
            Existence::There => found.is_none() && !self.earlier.is_empty() && !self.bared,
        };
        if freed {
            self.freed(u32::MAX);
        } else {
            self.existence = Existence::There;
            // A number that no call here has freed may have been free all the same: a shrink frees the rest
            // of the last extent along, and such a number was used before its reuse was recorded.
            self.was_freed |= found.is_none();
            self.found(found.unwrap_or(0), power_was_cut);
        }
    }

    /// Begins a new life, if it was free.
    pub(super) fn exists_again(&mut self) {
        if self.is_free() {
            (self.existence, self.bared, self.unlinked) = (Existence::There, false, None);
        }
    }

    /// Notes that a `sync` has returned that began after this number of such calls.
    pub(super) fn settle(&mut self, calls: u32) {
        if matches!(self.existence, Existence::Unverified(call) if call <= calls) {
            self.existence = Existence::There;
        }
    }

    /// Notes that the page was discarded, or lost with the SSD: its home may show, of any life.
    pub(super) fn bare(&mut self) {
        if !self.is_free() {
            let mut versions = std::mem::take(&mut self.earlier);
            versions.append(&mut self.versions);
            versions.append(&mut self.home_may_have);
            versions.sort_unstable();
            (self.versions, self.bared) = (versions, true);
            self.bares += 1;
        }
    }

    /// Ends the life of the versions up to `upto`; later ones are of a new life.
    fn freed(&mut self, upto: u32) {
        let (ended, next): (Vec<u32>, Vec<u32>) = self.versions.iter().partition(|v| **v <= upto);
        self.earlier.extend(ended);
        self.existence = if next.is_empty() { Existence::Free } else { Existence::There };
        if next.is_empty() {
            self.published = 0;
        }
        self.versions = next;
        // Another task may have reused the number before this call returned, and a `sync` may have
        // covered that life already.
        self.floor = if self.floor > upto { self.floor } else { 0 };
        (self.uncertain, self.gone, self.bared, self.given_up) = (false, false, false, true);
        (self.worthless, self.discards) = (0, self.discards + 1);
    }

    /// Whether it was freed since it was `before`.
    pub(in crate::campaign) fn was_freed_since(&self, before: Option<&Self>) -> bool {
        self.is_free() || before.is_none_or(|p| p.discards != self.discards || p.existence != self.existence)
    }

    /// Whether a backup may hold `copied`: a version, or that the page does not exist. `before` is the page
    /// when the backup began, `last` the newest version of all pages then; `self` is the page when it ended.
    /// `listed`: the report of a loss lists it, before or after.
    pub(in crate::campaign) fn may_be_copied(
        &self,
        before: Option<&Self>,
        last: u32,
        copied: Option<u32>,
        listed: bool,
    ) -> bool {
        let all = [&self.versions, &self.earlier, &self.forgotten];
        let known = |version: &u32| all.iter().any(|versions| versions.contains(version));
        let uncertain = |p: &Self| p.uncertain || p.gone;
        // Discarded or lost meanwhile, or uncertain at the beginning or end: any version may show.
        let bared =
            listed || uncertain(self) || before.is_some_and(|p| uncertain(p) || p.bares != self.bares);
        // Freed meanwhile, or at the beginning or end: it may be absent, but is not in an older version.
        let there = before.filter(|p| !p.is_free() && p.existence != Existence::Leaving);
        let freed = there.is_none_or(|p| p.discards != self.discards)
            || self.is_free()
            || self.existence == Existence::Leaving;
        match (copied, before) {
            (None | Some(0), _) => bared || freed || before.is_none_or(|p| p.published == 0),
            // An earlier life has ended.
            (Some(version), Some(before)) if !bared && before.is_absent() => {
                version > last && known(&version)
            }
            // The copy is no older than a read at the begin of the backup: every write that was in flight
            // then has been waited for (I30).
            (Some(version), Some(before)) if !bared && before.published > 0 => {
                version >= before.published && known(&version)
            }
            (Some(version), _) => known(&version),
        }
    }
}

impl Model {
    /// Records that a call begins to free the page.
    pub(in crate::campaign) fn freeing(&mut self, page: PageId) {
        if let Some(p) = self.page(page).filter(|p| !p.is_free()) {
            (p.existence, p.was_freed) = (Existence::Leaving, true);
        }
    }

    /// Records that a `sync` may free the page, and that `from` refers to it up to this version.
    pub(in crate::campaign) fn unlinked(&mut self, page: PageId, from: PageId, version: u32) {
        let discards = self.page(from).map_or(0, |from| from.discards);
        // One that never became durable may be absent after a crash without a free.
        if let Some(p) = self.page(page).filter(|p| p.floor > 0) {
            p.unlinked = Some(Unlinked { from, version, discards });
        }
    }

    /// A `sync` of the space begins, which frees its pages: a change of another space's page that ceased to
    /// refer to one need not be durable.
    pub(in crate::campaign) fn sync_of_space(&mut self, space: SpaceId) {
        for p in self.spaces.get_mut(&space.0).into_iter().flat_map(|s| s.pages.values_mut()) {
            p.unlinked = p.unlinked.take().filter(|unlinked| unlinked.from.space == space);
        }
    }

    /// After a crash: the changes that pages were freed after, each with the freed page, unless the changed
    /// page may show any version.
    pub(in crate::campaign) fn take_unlinked(&mut self) -> Vec<(PageId, PageId, u32)> {
        let mut all = Vec::new();
        for page in self.live_pages() {
            let Some(Unlinked { from, version, discards }) =
                self.page(page).filter(|p| p.existence != Existence::There).and_then(|p| p.unlinked.take())
            else {
                continue;
            };
            // A page that was discarded or lost may rightly show a version from before the change.
            let is_sure = |p: &mut PageModel| {
                p.existence == Existence::There && p.discards == discards && !p.uncertain && !p.gone
            };
            if self.live_page(from).is_some_and(is_sure) {
                all.push((page, from, version));
            }
        }
        all
    }

    /// Records that the page, with versions up to `upto`, was freed. Its number may have been reused since.
    pub(in crate::campaign) fn freed(&mut self, page: PageId, upto: u32) {
        if let Some(p) = self.page(page) {
            p.freed(upto);
        }
    }

    /// Records that a call that should have freed the page has failed, and that it exists.
    pub(in crate::campaign) fn not_freed(&mut self, page: PageId) {
        // The save may be in force although it failed, so a crash may show the page free until a later
        // save has replaced that one (I41).
        self.unverified_calls += 1;
        let call = self.unverified_calls;
        if let Some(p) = self.page(page).filter(|p| p.existence == Existence::Leaving) {
            p.existence = Existence::Unverified(call);
        }
    }

    /// Records that the page did not exist when it was to be freed, and was never free.
    pub(in crate::campaign) fn not_there(&mut self, page: PageId) {
        if let Some(p) = self.page(page).filter(|p| p.existence == Existence::Leaving) {
            p.existence = Existence::There;
        }
    }

    /// Whether the page has a version above `upto`.
    pub(in crate::campaign) fn is_above(&mut self, page: PageId, upto: u32) -> bool {
        self.page(page).is_some_and(|p| p.versions.last().is_some_and(|v| *v > upto))
    }

    /// Records that a dropped call may reuse a free number of `space`, or only `no`.
    pub(in crate::campaign) fn loosen(&mut self, space: u32, no: Option<u32>) {
        let Some(s) = self.spaces.get_mut(&space) else { return };
        for (_, p) in s.pages.iter_mut().filter(|(at, _)| no.is_none_or(|no| no == **at)) {
            if p.existence == Existence::Free {
                p.existence = Existence::Loose;
            }
        }
    }

    /// The pages of live spaces that are free, and those whose numbers were reused.
    pub(in crate::campaign) fn free_and_reused(&self) -> (bool, bool) {
        let live = self.spaces.values().filter(|s| s.state == SpaceState::Live);
        live.flat_map(|s| s.pages.values()).fold((false, false), |(free, reused), p| {
            (free || p.is_free(), reused || (!p.is_free() && !p.earlier.is_empty()))
        })
    }

    /// A run of pages from `first` on that exist and that no operation uses, of at most `count` pages; with
    /// `holes`, free pages may lie among them.
    pub(in crate::campaign) fn run(&self, first: PageId, count: u32, holes: bool) -> Vec<PageId> {
        let Some(s) = self.spaces.get(&first.space.0) else { return Vec::new() };
        let pages = (first.no..first.no.saturating_add(count)).map_while(|no| Some((no, s.pages.get(&no)?)));
        // A page in use ends the run: the model could not order its user's operation and the free.
        let fine = |p: &PageModel| if p.is_free() { holes } else { !p.reserved && p.users == 0 };
        let run = pages.take_while(|(_, p)| fine(p));
        run.map(|(no, _)| PageId::new(SpaceId(first.space.0), no)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId::new(SpaceId(1), 3);

    fn written(versions: u32) -> Model {
        let mut model = Model::default();
        model.created(SpaceId(1), "s".into());
        for _ in 0..versions {
            let version = model.wrote(PAGE);
            model.published(PAGE, version);
        }
        let promise = model.promise(u32::MAX);
        model.keep(promise);
        model
    }

    #[test]
    fn a_freed_page_is_absent_and_its_next_life_shows_nothing_of_the_one_before() {
        let mut model = written(2);
        model.freeing(PAGE);
        let p = model.page(PAGE).unwrap();
        assert!(p.may_be(None) && p.may_be(Some(2)) && !p.may_be(Some(1)) && !p.may_be(Some(0)));
        model.freed(PAGE, 2);
        let p = model.page(PAGE).unwrap();
        assert!(p.may_be(None) && (0..=2).all(|version| !p.may_be(Some(version))));
        let version = model.wrote(PAGE);
        model.published(PAGE, version);
        let p = model.page(PAGE).unwrap();
        assert!(p.may_be(None) && p.may_be(Some(3)) && !p.may_be(Some(2)) && p.reads_as(3));
        let promise = model.promise(u32::MAX);
        model.keep(promise);
        assert!(!model.page(PAGE).unwrap().may_be(None));
        model.discarded(PAGE);
        assert!(model.page(PAGE).unwrap().may_be(Some(2)), "a discard bares the home");
    }

    #[test]
    fn a_page_whose_freeing_failed_is_there_and_in_doubt_until_the_next_sync() {
        let mut model = written(2);
        model.freeing(PAGE);
        let early = model.promise(u32::MAX);
        model.not_freed(PAGE);
        model.keep(early);
        let p = model.page(PAGE).unwrap();
        assert!(p.may_be(None) && p.may_be(Some(2)) && !p.may_be(Some(1)) && p.reads_as(2) && !p.reads_as(0));
        let promise = model.promise(u32::MAX);
        model.keep(promise);
        assert!(!model.page(PAGE).unwrap().may_be(None));
    }

    #[test]
    fn a_crash_before_a_sync_leaves_a_page_used_again_free() {
        let mut model = written(1);
        model.freeing(PAGE);
        model.freed(PAGE, 1);
        let _ = model.wrote(PAGE);
        let p = model.page(PAGE).unwrap();
        p.was_found(None, true);
        assert!(p.is_absent() && !p.may_be(Some(2)));
    }

    #[test]
    fn what_a_crash_left_of_a_free_page_may_show_after_a_discard_alone() {
        for by_a_call in [true, false] {
            let mut model = Model::default();
            model.created(SpaceId(1), "s".into());
            let _ = model.wrote(PAGE);
            // The crash finds it free, though its home has version 1.
            if by_a_call {
                model.freeing(PAGE);
            }
            model.page(PAGE).unwrap().was_found(None, true);
            let version = model.wrote(PAGE);
            model.published(PAGE, version);
            assert!(!model.page(PAGE).unwrap().may_be(Some(1)));
            model.discarded(PAGE);
            assert!(model.page(PAGE).unwrap().may_be(Some(1)));
        }
    }

    #[test]
    fn a_chain_may_hold_a_version_that_was_discarded_and_no_crash_brought_back() {
        for discarded in [true, false] {
            let mut model = written(2);
            if discarded {
                model.discarded(PAGE);
            }
            model.page(PAGE).unwrap().found(1, true);
            let p = model.page(PAGE).unwrap();
            let before = p.clone();
            assert_eq!(p.may_be_copied(Some(&before), 2, Some(2), false), discarded);
            assert!(p.may_be_copied(Some(&before), 2, Some(1), false));
            assert!(!p.may_be_copied(Some(&before), 2, None, false));
        }
    }

    #[test]
    fn a_backup_holds_no_version_older_than_its_beginning_and_no_earlier_life() {
        let mut model = written(2);
        let before = model.clone();
        let version = model.wrote(PAGE);
        model.published(PAGE, version);
        let then = before.spaces[&1].pages.get(&3);
        let p = model.page(PAGE).unwrap();
        let may = |copied| p.may_be_copied(then, 2, copied, false);
        assert!(may(Some(2)) && may(Some(3)) && !may(Some(1)) && !may(None) && !may(Some(0)));
        let mut freed = written(2);
        freed.freeing(PAGE);
        freed.freed(PAGE, 2);
        let before = freed.clone();
        let version = freed.wrote(PAGE);
        freed.published(PAGE, version);
        let then = before.spaces[&1].pages.get(&3);
        let p = freed.page(PAGE).unwrap();
        let may = |copied| p.may_be_copied(then, 2, copied, false);
        assert!(may(None) && may(Some(3)) && !may(Some(2)) && !may(Some(1)));
    }
}
