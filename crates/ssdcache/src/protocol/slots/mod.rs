//! Which slot holds what, and which slot may be written next: the protocol's state machine, without I/O.
//!
//! Invariant N (the newest survives): a slot is given out for writing only when it is free, and it becomes
//! free only when its page's newest version is durable elsewhere. Invariant Z (zone): only slots of the zone
//! of every checkpoint that a crash could find are given out. The third, R, is the journal's.
//!
//! A slot goes `Free → Writing → Live → (Retired →) Free`; [`Slots::validate`] recounts. Under a policy that
//! appends, free slots are not listed: they are given out in circular order ([`circle`]).

mod circle;
mod copies;
#[cfg(feature = "mutations")]
mod moment;
mod recovered;
mod second_chance;
mod through;
mod types;
mod zone;

pub use types::{
    Capture, FreeSlots, Located, MapWork, Move, Plan, SlotCounts, SlotParams, Ticket, WriteBack,
};

use crate::format::map::Entry;
use crate::mutation::{Broken, Mutation};
use circle::Circle;
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{Access, Cause, Home, Millis, SlotId, SlotPolicy, Verdict};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing that counts; listed in `writable` or `waiting` unless the policy appends.
    Free,
    /// A page image is on its way into the slot.
    Writing,
    /// The newest version of its page below memory.
    Live,
    /// An obsolete version: free once the flush numbered `durable_at` has completed and it has no reader.
    Retired,
    /// A write into it failed: not used again before the next opening.
    Bad,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: PageId,
    stamp: Stamp,
    /// The number of the SSD flush that makes (Live) its content or (Retired) its successor durable.
    durable_at: u64,
    /// Of a dirty version: the HDD has every change older than this.
    lsn: Lsn,
    readers: u16,
    state: State,
    /// Newer than the HDD's version.
    dirty: bool,
    /// In the zone of the durable checkpoint.
    in_zone: bool,
    /// In the zone of the checkpoint being written.
    in_next: bool,
    /// Writing: the page changed meanwhile, the image will be obsolete.
    abandoned: bool,
    /// It backs a home write of this very version, which is under way or not yet flushed.
    backs: bool,
    /// A copy of what was written home: dirty until a flush of the HDD made that durable.
    waits_for_home: bool,
    /// Its page is being copied to another slot.
    moving: bool,
    /// Live: a newer version of its page has its stamp and is on its way to another slot.
    overtaken: bool,
    /// Its page is on the SSD alone and cannot be read.
    stuck: bool,
    /// Writing: a copy of what was just written home.
    #[cfg_attr(not(feature = "mutations"), allow(dead_code, reason = "for the simulator's coverage"))]
    renews: bool,
}

/// Check whether the zone is nearly spent once per this many rejections.
const REJECTIONS_PER_LOOK: u64 = 64;

/// The slots and the policy that fills them.
#[derive(Debug)]
pub struct Slots {
    params: SlotParams,
    policy: Box<dyn SlotPolicy>,
    slots: Vec<Slot>,
    by_page: FxHashMap<PageId, SlotId>,
    /// Images of pages without a copy so far, on their way.
    pending: FxHashMap<PageId, SlotId>,
    /// Writes in flight for pages without a copy so far, `pending` ones among them.
    arriving: usize,
    bad: usize,
    writable: Vec<SlotId>,
    waiting: Vec<SlotId>,
    retired: VecDeque<(u64, SlotId)>,
    generation: u64,
    /// The newest checkpoint that is durable.
    in_force: u64,
    capturing: bool,
    /// Slot writes and evictions since the last capture: a checkpoint without any would change nothing.
    changes: u64,
    /// Rejections up to the last checkpoint.
    rejected_before: u64,
    /// At so many rejections, [`Slots::wants_look`] says yes.
    next_look: u64,
    starved: bool,
    /// The policy rejected a page when its zone had no candidate left.
    spent: bool,
    /// Since the last write-back a dirty page went home that would have replaced a victim, had that not been
    /// dirty still.
    held_up: bool,
    /// Reads go home: the SSD is being taken out of use.
    hidden: bool,
    counts: SlotCounts,
    /// Pages whose write-back is under way: until the HDD was flushed, a slot is all that mends a torn home.
    going_home: Vec<PageId>,
    /// Copies that wait for a flush of the HDD to be clean, by slot and version.
    waiting_for_home: Vec<(SlotId, Stamp)>,
    /// Of a policy that appends.
    circle: Option<Circle>,
    /// By page, the slot that a second chance copies it to.
    moving: FxHashMap<PageId, SlotId>,
    /// Pages that lost their copies, which the pool is still to be told.
    untold: VecDeque<PageId>,
    /// Write-backs fail.
    home_fails: bool,
    /// The policy writes through.
    through: bool,
    /// It admits on reading.
    on_read: bool,
    broken: Broken,
}

impl Slots {
    /// Slots as `map` (of checkpoint `generation`, recovered or empty) describes them. Nothing may be written
    /// before a first checkpoint of this opening named a zone.
    #[must_use]
    pub fn new(
        params: SlotParams,
        policy: Box<dyn SlotPolicy>,
        map: &[Option<Entry>],
        generation: u64,
    ) -> Self {
        let free = Slot {
            page: PageId::default(),
            stamp: Stamp::ZERO,
            durable_at: 0,
            lsn: Lsn(0),
            readers: 0,
            state: State::Free,
            dirty: false,
            in_zone: false,
            in_next: false,
            abandoned: false,
            backs: false,
            waits_for_home: false,
            moving: false,
            overtaken: false,
            stuck: false,
            renews: false,
        };
        let group = policy.append_group().filter(|_| params.slots > 0);
        let circle = group.map(|group| Circle::new(group, params.zone, params.slots));
        let (through, on_read) = (policy.write_through(), policy.admits_on_read());
        let mut this = Self {
            params,
            policy,
            slots: vec![free; params.slots as usize],
            by_page: FxHashMap::with_capacity_and_hasher(map.iter().flatten().count(), FxBuildHasher),
            pending: FxHashMap::default(),
            arriving: 0,
            bad: 0,
            writable: Vec::new(),
            waiting: Vec::new(),
            retired: VecDeque::new(),
            generation,
            in_force: generation,
            capturing: false,
            changes: 1,
            rejected_before: 0,
            next_look: REJECTIONS_PER_LOOK,
            starved: false,
            spent: false,
            held_up: false,
            hidden: false,
            counts: SlotCounts::default(),
            going_home: Vec::new(),
            waiting_for_home: Vec::new(),
            circle,
            moving: FxHashMap::default(),
            untold: VecDeque::new(),
            home_fails: false,
            through,
            on_read,
            broken: Broken::default(),
        };
        this.apply_recovered(map);
        this
    }

    pub(crate) fn set_broken(&mut self, broken: Broken) {
        self.broken = broken;
    }

    // ---- reads
    // ----------------------------------------------------------------------------------------------

    /// Finds the newest version of `page` below memory, and holds its slot for a read.
    pub fn begin_read(&mut self, page: PageId) -> Located {
        if self.pending.contains_key(&page) {
            return Located::Pending;
        }
        let Some(&slot) = self.by_page.get(&page) else { return Located::Hdd };
        let s = &mut self.slots[slot.at()];
        if self.hidden {
            return if s.dirty { Located::Pending } else { Located::Hdd };
        }
        s.readers += 1;
        Located::Slot { slot, stamp: s.stamp, dirty: s.is_only() }
    }

    /// The read of `slot` is over.
    pub fn end_read(&mut self, slot: SlotId) {
        let s = &mut self.slots[slot.at()];
        debug_assert!(s.readers > 0, "unbalanced end_read of slot {}", slot.0);
        s.readers -= 1;
        if s.readers == 0 && s.state == State::Retired && s.durable_at == 0 {
            self.release(slot);
        }
    }

    /// Whether `page` has a copy on the SSD.
    #[must_use]
    pub fn home(&self, page: PageId) -> Home {
        if self.by_page.contains_key(&page) || self.pending.contains_key(&page) {
            Home::Ssd
        } else {
            Home::Hdd
        }
    }

    /// A physical read happened.
    pub fn note_read(&mut self, page: PageId, from: Option<Home>, access: Access, now: Millis) {
        self.policy.read(page, from, access, now);
    }

    /// The clean copy of `page` in `slot` turned out to be bad: it is forgotten, the HDD has the page. False
    /// when the mapping has changed meanwhile.
    pub fn drop_bad_copy(&mut self, page: PageId, slot: SlotId, now: Millis) -> bool {
        let current = self.by_page.get(&page) == Some(&slot) && !self.slots[slot.at()].is_only();
        if current {
            self.unmap(page);
            self.policy.removed(page, false, now);
            self.counts.healed += 1;
            self.release(slot);
        }
        current
    }

    // ---- writes
    // ---------------------------------------------------------------------------------------------

    /// Decides where the dirty page `page` goes. A page that is on the SSD stays there, in another slot.
    pub fn plan_dirty(&mut self, page: PageId, now: Millis, fresh: &mut dyn FnMut() -> Stamp) -> Plan {
        if self.appends() {
            return self.plan_appended(page, now, fresh);
        }
        if self.broken.is(Mutation::RewriteInPlace) {
            self.give_up_in_place(page);
        }
        if self.by_page.contains_key(&page) {
            return match self.take_writable() {
                Some(slot) => {
                    self.counts.rewritten += 1;
                    Plan::Ssd(self.start(slot, page, true, None, now, fresh()))
                }
                None if !self.waiting.is_empty() || !self.retired.is_empty() => Plan::Wait,
                None if self.broken.is(Mutation::RewriteWaits) => Plan::Wait,
                None => self.plan_without_reserve(page, now, fresh),
            };
        }
        if self.has_room() && self.writable.is_empty() {
            self.starved = true;
            return Plan::Wait;
        }
        match self.admit(page, Cause::Cleaned, now) {
            Some((slot, displaced)) => Plan::Ssd(self.start(slot, page, true, displaced, now, fresh())),
            None => Plan::Hdd,
        }
    }

    /// Every slot holds a page, as a recovery may leave them, and none will be free by itself: `page` takes
    /// the place of a clean copy, or goes home.
    fn plan_without_reserve(&mut self, page: PageId, now: Millis, fresh: &mut dyn FnMut() -> Stamp) -> Plan {
        let mut next = Vec::new();
        self.policy.next_victims(self.params.clean_ahead as usize, now, &mut next);
        next.extend((0..self.params.slots).map(SlotId));
        let usable = |slot: &SlotId| {
            self.slots.get(slot.at()).is_some_and(|s| {
                let clean = s.state == State::Live && !s.dirty && s.readers == 0 && s.page != page;
                clean && s.writable(self.capturing, self.broken)
            })
        };
        let Some(victim) = next.into_iter().find(usable) else { return Plan::Hdd };
        let displaced = self.slots[victim.at()].page;
        self.unmap(displaced);
        self.policy.removed(displaced, true, now);
        self.release(victim);
        self.counts.evicted += 1;
        self.counts.rewritten += 1;
        match self.take_writable() {
            Some(slot) => Plan::Ssd(self.start(slot, page, true, Some(displaced), now, fresh())),
            None => Plan::Wait,
        }
    }

    fn plan_appended(&mut self, page: PageId, now: Millis, fresh: &mut dyn FnMut() -> Stamp) -> Plan {
        match self.append(page, Cause::Cleaned, now) {
            Ok((slot, displaced)) => {
                let mut ticket = self.start(slot, page, true, displaced, now, fresh());
                ticket.backs_home = self.backs_home();
                self.slots[slot.at()].backs = ticket.backs_home;
                Plan::Ssd(ticket)
            }
            // The ring is there for those that a doublewrite buffer has no room for.
            Err(soon) if soon && !self.through => Plan::Wait,
            Err(_) => Plan::Hdd,
        }
    }

    /// Whether an eviction that came to nothing is a reason to look for map work: slots ran out, the zone has
    /// no candidate left, or (seen now and then) it has few.
    #[must_use]
    pub fn wants_look(&mut self) -> bool {
        let due = self.counts.rejected >= self.next_look;
        if due {
            self.next_look = self.counts.rejected + REJECTIONS_PER_LOOK;
        }
        due || self.starved || self.zone_may_be_spent()
    }

    /// Whether a checkpoint would name a new zone for one without candidates.
    fn zone_may_be_spent(&self) -> bool {
        self.spent && !self.capturing && self.is_stale()
    }

    /// Whether the copy of `page` on the SSD is the version `stamp`.
    #[must_use]
    pub fn holds(&self, page: PageId, stamp: Stamp) -> bool {
        self.by_page.get(&page).is_some_and(|slot| self.slots[slot.at()].stamp == stamp)
    }

    /// The write of `ticket` is over. `durable_at` is the number of the first SSD flush that will cover it.
    pub fn end_write(&mut self, ticket: Ticket, ok: bool, durable_at: u64, now: Millis) {
        let Ticket { slot, page, stamp, dirty, arrives, .. } = ticket;
        debug_assert_eq!(self.slots[slot.at()].state, State::Writing);
        self.arriving -= usize::from(arrives);
        let abandoned = self.slots[slot.at()].abandoned;
        for on_its_way in [&mut self.pending, &mut self.moving] {
            if on_its_way.get(&page) == Some(&slot) {
                on_its_way.remove(&page);
            }
        }
        if !ok {
            (self.slots[slot.at()].state, self.slots[slot.at()].backs) = (State::Bad, false);
            self.bad += 1;
            if !abandoned {
                match self.by_page.get(&page) {
                    Some(&old) => {
                        self.slots[old.at()].overtaken = false;
                        self.policy.inserted(page, old, now);
                    }
                    None => self.policy.removed(page, false, now),
                }
            }
            return;
        }
        let s = &mut self.slots[slot.at()];
        s.state = State::Live;
        (s.page, s.stamp, s.dirty, s.durable_at) = (page, stamp, dirty, durable_at);
        if abandoned {
            return self.release(slot);
        }
        let before = self.by_page.insert(page, slot);
        if before.is_none() && !arrives {
            // The old copy was evicted meanwhile, and the policy told so.
            self.policy.inserted(page, slot, now);
        }
        if let Some(old) = before {
            if self.broken.is(Mutation::SlotReusedEarly) {
                return self.release(old);
            }
            let o = &mut self.slots[old.at()];
            o.state = State::Retired;
            o.durable_at = durable_at;
            self.retired.push_back((durable_at, old));
        }
    }

    /// SSD flush number `number` (and all before it) is over: slots retired before it are free.
    pub fn flushed(&mut self, number: u64) {
        while let Some(&(at, slot)) = self.retired.front().filter(|(at, _)| *at <= number) {
            debug_assert!(at > 0);
            self.retired.pop_front();
            self.slots[slot.at()].durable_at = 0;
            if self.slots[slot.at()].readers == 0 {
                self.release(slot);
            }
        }
    }

    /// The buffered page `page` was changed. True when it had a copy identical to the HDD's, which is now
    /// invalid (2013 paper, section 5); a newer copy stays.
    pub fn dirtied(&mut self, page: PageId, logical: u32, now: Millis) -> bool {
        let home = self.home(page);
        self.policy.logical(page, logical, home, now);
        if self.through || self.appends() {
            // The copy is what the HDD has until a newer version is written.
            self.cancel_move(page);
            return false;
        }
        if let Some(slot) = self.pending.remove(&page) {
            self.slots[slot.at()].abandoned = true;
        } else if let Some(&slot) = self.by_page.get(&page) {
            if self.slots[slot.at()].dirty {
                return false;
            }
            self.unmap(page);
            self.release(slot);
        } else {
            return false;
        }
        self.policy.removed(page, false, now);
        self.counts.invalidated += 1;
        true
    }

    /// Whether a write-back of `page` is under way. It must not lose its copy then: a crash might leave its
    /// home torn, and nothing to mend it.
    #[must_use]
    pub fn is_going_home(&self, page: PageId) -> bool {
        self.going_home.contains(&page)
    }

    /// The home of `page` is being written from elsewhere: as for a write-back.
    pub(crate) fn hold_home(&mut self, page: PageId) {
        self.going_home.push(page);
    }

    /// That is over.
    pub(crate) fn release_home(&mut self, page: PageId) {
        if let Some(at) = self.going_home.iter().position(|other| *other == page) {
            self.going_home.swap_remove(at);
        }
    }

    /// The pages of `space` whose write-back is under way.
    pub(crate) fn going_home_of(&self, space: pagetier_page::SpaceId) -> Vec<PageId> {
        self.going_home.iter().copied().filter(|page| page.space == space).collect()
    }

    /// The page is of no value any more: its copy is dropped, written back or not.
    pub fn discard(&mut self, page: PageId) {
        self.give_up_copy(page);
        self.policy.forget(page);
    }

    fn give_up_copy(&mut self, page: PageId) {
        self.overtake(page);
        if let Some(slot) = self.unmap(page) {
            let s = &mut self.slots[slot.at()];
            if s.dirty {
                // A checkpoint that names this copy, or an older one of the page, as the newest version may
                // be what a crash finds. It must find this one then, or take the page for damaged; so the
                // slot waits for a checkpoint that does not name the page.
                (s.in_zone, s.in_next) = (false, false);
            }
            self.release(slot);
        }
    }

    /// What is on its way to the SSD of `page` is not its newest version any more.
    fn overtake(&mut self, page: PageId) {
        if let Some(slot) = self.pending.remove(&page) {
            self.slots[slot.at()].abandoned = true;
        }
        self.overtake_move(page);
    }

    /// Takes the page's copy out of the map. What is being copied from it counts for nothing.
    fn unmap(&mut self, page: PageId) -> Option<SlotId> {
        let slot = self.by_page.remove(&page)?;
        self.cancel_move(page);
        Some(slot)
    }

    /// The page was changed, or a version from the pool is about to be written home: what is being copied to
    /// the front is not to become its copy.
    pub(crate) fn cancel_move(&mut self, page: PageId) {
        if !self.broken.is(Mutation::MoveSurvives) {
            self.overtake_move(page);
        }
    }

    /// Pages of `keep`-less spaces: every page for which `gone` says so is discarded.
    pub fn discard_where(&mut self, gone: &mut dyn FnMut(PageId) -> bool) {
        let pages: Vec<PageId> =
            self.by_page.keys().chain(self.pending.keys()).copied().filter(|p| gone(*p)).collect();
        for page in pages {
            self.discard(page);
        }
    }

    fn admit(&mut self, page: PageId, cause: Cause, now: Millis) -> Option<(SlotId, Option<PageId>)> {
        let room = if self.has_room() { self.writable.len() } else { 0 };
        let slots = &self.slots;
        let capturing = self.capturing;
        // A policy may name any slot, also one that does not exist.
        let usable = |slot: SlotId| {
            slots.get(slot.at()).is_some_and(|s| {
                s.state == State::Live && !s.dirty && s.readers == 0 && s.writable(capturing, self.broken)
            })
        };
        let (mut refused_dirty, mut has_candidates) = (false, false);
        let mut asked = |slot: SlotId| {
            has_candidates = true;
            refused_dirty |= slots.get(slot.at()).is_some_and(|s| s.dirty);
            usable(slot)
        };
        match self.policy.consider(page, cause, room, &mut asked, now) {
            Verdict::AdmitFree if room > 0 => {
                self.counts.admitted_free += 1;
                self.take_writable().map(|slot| (slot, None))
            }
            Verdict::AdmitOver(victim) if usable(victim) => {
                let displaced = self.slots[victim.at()].page;
                self.unmap(displaced);
                self.policy.removed(displaced, true, now);
                self.release(victim);
                self.counts.admitted_over += 1;
                self.counts.evicted += 1;
                self.take_writable().map(|slot| (slot, Some(displaced)))
            }
            _ => {
                self.counts.rejected += 1;
                self.held_up |= refused_dirty && cause == Cause::Cleaned && !self.through;
                self.spent |= room == 0 && !has_candidates && self.victims(1, now).is_empty();
                None
            }
        }
    }

    fn start(
        &mut self,
        slot: SlotId,
        page: PageId,
        dirty: bool,
        displaced: Option<PageId>,
        now: Millis,
        stamp: Stamp,
    ) -> Ticket {
        self.overtake(page);
        let s = &mut self.slots[slot.at()];
        debug_assert_eq!((s.state, s.readers), (State::Free, 0));
        (s.page, s.stamp, s.dirty, s.state, s.abandoned) = (page, stamp, dirty, State::Writing, false);
        (s.lsn, s.backs, s.stuck, s.renews) = (Lsn(0), false, false, false);
        s.waits_for_home = false;
        s.overtaken = false;
        if let Some(old) = self.by_page.get(&page) {
            self.slots[old.at()].overtaken = true;
        }
        let (arrives, over_only_copy) = (!self.by_page.contains_key(&page), self.is_only_copy(page));
        self.arriving += usize::from(arrives);
        self.changes += 1;
        self.policy.inserted(page, slot, now);
        let (backs_home, waits_for_home) = (false, false);
        Ticket { slot, page, stamp, dirty, arrives, displaced, backs_home, over_only_copy, waits_for_home }
    }

    /// For [`Mutation::RewriteInPlace`]: the page's own slot is the next to be given out.
    fn give_up_in_place(&mut self, page: PageId) {
        let Some(&slot) = self.by_page.get(&page) else { return };
        if self.slots[slot.at()].readers == 0 && self.slots[slot.at()].writable(self.capturing, self.broken) {
            self.by_page.remove(&page);
            self.release(slot);
        }
    }

    fn has_room(&self) -> bool {
        let taken = self.by_page.len() + self.arriving + self.bad;
        taken < self.params.slots.saturating_sub(self.params.reserve) as usize
    }

    fn take_writable(&mut self) -> Option<SlotId> {
        let slot = self.writable.pop();
        self.starved |= slot.is_none();
        slot
    }

    fn release(&mut self, slot: SlotId) {
        let capturing = self.capturing;
        let s = &mut self.slots[slot.at()];
        s.durable_at = 0;
        if s.readers > 0 {
            s.state = State::Retired;
            return;
        }
        s.state = State::Free;
        match s.writable(capturing, self.broken) {
            _ if self.circle.is_some() => {}
            true => self.writable.push(slot),
            false => self.waiting.push(slot),
        }
    }

    // ---- views
    // ----------------------------------------------------------------------------------------------

    /// The policy, for its statistics.
    pub fn policy(&mut self) -> &mut dyn SlotPolicy {
        &mut *self.policy
    }

    /// Slots without a page.
    #[must_use]
    pub fn free_slots(&self) -> FreeSlots {
        let (writable, waiting) = self.count_free();
        FreeSlots { writable, waiting, retired: self.retired.len(), checkpointing: self.capturing }
    }

    /// Free slots that may be written now, and those that may not.
    fn count_free(&self) -> (usize, usize) {
        if self.circle.is_none() {
            return (self.writable.len(), self.waiting.len());
        }
        let free = || self.slots.iter().filter(|s| s.state == State::Free);
        let now = free().filter(|s| s.writable(self.capturing, self.broken)).count();
        (now, free().count() - now)
    }

    /// Pages that have a copy on the SSD.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.by_page.len()
    }

    /// Copies that are newer than the HDD's version.
    #[must_use]
    pub fn dirty_pages(&self) -> usize {
        self.slots.iter().filter(|s| s.state == State::Live && s.dirty).count()
    }

    /// The highest page number of `space` that has a copy.
    #[must_use]
    pub fn highest_page(&self, space: pagetier_page::SpaceId) -> Option<u32> {
        self.by_page.keys().filter(|p| p.space == space).map(|p| p.no).max()
    }

    /// The generation of the checkpoint in force: the newest that is durable.
    #[must_use]
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// The sizes it was made with.
    #[must_use]
    pub fn params(&self) -> SlotParams {
        self.params
    }

    /// Counters so far.
    #[must_use]
    pub fn counts(&self) -> SlotCounts {
        self.counts
    }

    /// The memory of the slot table, the page map and the policy, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let map = self.by_page.capacity() * (size_of::<(PageId, SlotId)>() + 1);
        self.slots.capacity() * size_of::<Slot>() + map + self.policy.memory_bytes()
    }

    /// Recounts; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        let count = |state| self.slots.iter().filter(|s| s.state == state).count();
        let (writable, waiting) = self.count_free();
        let listed = writable + waiting;
        if count(State::Free) != listed || (self.appends() && self.writable.len() + self.waiting.len() > 0) {
            return Err(format!("{} free slots, {listed} listed", count(State::Free)));
        }
        if let Some(slot) =
            self.writable.iter().find(|s| !self.slots[s.at()].writable(self.capturing, self.broken))
        {
            return Err(format!("slot {} is listed as writable outside the zone", slot.0));
        }
        if count(State::Live) != self.by_page.len() {
            return Err(format!("{} live slots, {} pages", count(State::Live), self.by_page.len()));
        }
        for (page, slot) in &self.by_page {
            if self.slots[slot.at()].page != *page {
                return Err(format!("page {page} is mapped to slot {} of another", slot.0));
            }
        }
        let on_its_way = self.pending.iter().chain(&self.moving);
        if let Some((page, slot)) = on_its_way.into_iter().find(|(page, slot)| {
            let s = &self.slots[slot.at()];
            (s.state, s.page, s.abandoned) != (State::Writing, **page, false)
        }) {
            return Err(format!("page {page} is not on its way to slot {}", slot.0));
        }
        self.policy.validate()
    }
}

impl Slot {
    /// Newer than what the HDD can be read as.
    fn is_only(&self) -> bool {
        self.dirty && !self.waits_for_home
    }

    fn writable(&self, capturing: bool, broken: Broken) -> bool {
        let now = self.in_zone || broken.is(Mutation::ZoneIgnored);
        let next = self.in_next || broken.is(Mutation::ZoneIgnored) || broken.is(Mutation::NextZoneIgnored);
        now && (!capturing || next)
    }
}
