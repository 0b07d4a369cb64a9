//! What each slot holds, and which slot may be written next: the protocol's state machine, without I/O.
//!
//! I1 (newest survives): a slot is given out for writing only when it is free ([`alloc`]), and it becomes
//! free ([`Slots::release`]) only when its page's newest version is durable elsewhere. I2 (zone): only slots
//! of the zone of every checkpoint that a crash could find are given out (`SlotTable::writable`). The journal
//! is responsible for I3 (no resurrection).
//!
//! [`Slots::validate`] recounts.

mod alloc;
mod checkpoint;
mod copies;
mod kept_off;
#[cfg(feature = "probes")]
mod moment;
mod page_map;
mod readmitted;
mod recovered;
mod second_chance;
mod slot;
mod switch;
mod table;
mod through;
mod types;
mod write_back;

pub use types::{
    Capture, FreeSlots, Located, MapWork, Move, Plan, SlotCounts, SlotParams, Ticket, WriteBack,
};

pub(crate) use kept_off::{Leaving, OnItsWay};
#[cfg(feature = "probes")]
pub use moment::Moment;
pub(crate) use readmitted::{Fallen, ToVerify};
pub(crate) use types::NoSlot;

use crate::format::map::Entry;
use crate::protocol::flushes::SsdFlush;
use alloc::Alloc;
use checkpoint::Discards;
use kept_off::KeptOff;
use page_map::PageMap;
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{Access, Location, Millis, SlotId, SlotPolicy};
use readmitted::Predecessor;
use rustc_hash::FxHashMap;
use slot::{Phase, Slot, Standing};
use std::collections::VecDeque;
use table::{Edited, SlotTable};

/// Check whether the zone is nearly exhausted once per this many rejections.
const REJECTIONS_PER_LOOK: u64 = 64;

/// The maximum number of displaced pages queued for the pool. Beyond it the oldest are forgotten, which costs
/// only precision of the pool's policy.
const UNREPORTED_MAX: usize = 1024;

/// The slots and the policy that fills them.
#[derive(Debug)]
pub struct Slots {
    params: SlotParams,
    policy: Box<dyn SlotPolicy>,
    slots: SlotTable,
    by_page: PageMap,
    /// Slots to which copies are being written for pages without one.
    pending: FxHashMap<PageId, SlotId>,
    /// Writes in flight for pages without a copy, including those of `pending`.
    arriving: usize,
    bad: usize,
    /// Retired slots, in order of the flush that frees them.
    retired: VecDeque<Predecessor>,
    alloc: Alloc,
    generation: u64,
    /// The newest durable checkpoint.
    in_force: u64,
    capturing: bool,
    /// Slot writes and evictions since the last capture: a checkpoint without any would change nothing.
    changes: u64,
    /// Rejections up to the last checkpoint.
    rejected_before: u64,
    /// The number of rejections at which [`Slots::wants_look`] returns true.
    next_look: u64,
    starved: bool,
    /// The slots to keep without a page at present: from the reserve to what a burst needs.
    keep_empty: u32,
    /// Reads are sent to the HDD: the SSD is being taken out of use.
    hidden: bool,
    counts: SlotCounts,
    /// Copies that become clean with a flush of the HDD, by slot and version.
    waiting_for_home: Vec<(SlotId, Stamp)>,
    /// By page, the slot to which a second chance copies it.
    moving: FxHashMap<PageId, SlotId>,
    /// Pages that lost their copies and have not been reported to the pool.
    unreported: VecDeque<PageId>,
    /// Whether the policy writes through.
    through: bool,
    /// Whether the policy admits pages as they are read.
    on_read: bool,
    /// While the write budget is overdrawn: the price of a write to the SSD, in milliseconds.
    write_price_ms: Option<f64>,
    kept_off: KeptOff,
    /// Discards of versions that the HDD lacks.
    discards: Discards,
    /// The oldest log position of the dirty copies that the latest checkpoint has captured, and of those
    /// written since its begin.
    oldest_captured: Option<Lsn>,
}

impl Slots {
    /// Slots as `map` (of checkpoint `generation`, recovered or empty) describes them. No slot may be written
    /// before the first checkpoint of this open has named a zone.
    #[must_use]
    pub fn new(
        params: SlotParams,
        mut policy: Box<dyn SlotPolicy>,
        map: &[Option<Entry>],
        generation: u64,
    ) -> Self {
        let (through, on_read) = (policy.write_through(), policy.admits_on_read());
        let slots = SlotTable::new(params.slots);
        policy.share_pages(slots.pages());
        let mut this = Self {
            params,
            slots,
            by_page: PageMap::new(params.slots),
            pending: FxHashMap::default(),
            arriving: 0,
            bad: 0,
            retired: VecDeque::new(),
            alloc: Alloc::new(policy.append_group(), &params),
            policy,
            generation,
            in_force: generation,
            capturing: false,
            // Not 0: the first checkpoint is due even if nothing is written, since it names the first zone.
            changes: 1,
            rejected_before: 0,
            next_look: REJECTIONS_PER_LOOK,
            starved: false,
            // New stores and recovered ones may be written in bursts from the start.
            keep_empty: params.burst,
            hidden: false,
            counts: SlotCounts::default(),
            waiting_for_home: Vec::new(),
            moving: FxHashMap::default(),
            unreported: VecDeque::new(),
            through,
            on_read,
            write_price_ms: None,
            kept_off: KeptOff::default(),
            discards: Discards::default(),
            oldest_captured: None,
        };
        this.apply_recovered(map);
        this
    }

    /// The slot that the map names for `page`.
    fn slot_of(&self, page: PageId) -> Option<SlotId> {
        self.by_page.get(&self.slots, page)
    }

    /// The slots that hold a page's current copy, in order.
    fn copies_by_slot(&self) -> impl Iterator<Item = (SlotId, Slot)> {
        self.slots.numbered().filter(|(_, slot)| slot.live().is_some())
    }

    /// The pages that have a copy.
    fn mapped(&self) -> impl Iterator<Item = PageId> + '_ {
        self.copies_by_slot().map(|(_, slot)| slot.page)
    }

    /// The slot of the page's copy.
    fn live(&self, page: PageId) -> Option<Slot> {
        self.slot_of(page).and_then(|slot| self.slots.get(slot).live())
    }

    fn live_mut(&mut self, page: PageId) -> Option<(SlotId, Edited<'_>)> {
        let slot = self.slot_of(page)?;
        let stored = self.slots.edit(slot);
        stored.live().is_some().then_some((slot, stored))
    }

    // ---- reads

    /// Finds the newest version of `page` below memory, and holds its slot for a read.
    pub fn begin_read(&mut self, page: PageId) -> Located {
        if self.pending.contains_key(&page) {
            return Located::Pending;
        }
        let hidden = self.hidden;
        let Some((slot, mut stored)) = self.live_mut(page) else { return Located::Hdd };
        // The SSD is being exchanged. The home serves, except for only copies: whether those are lost is
        // about to be decided.
        if hidden {
            return if stored.is_dirty() { Located::Pending } else { Located::Hdd };
        }
        stored.readers += 1;
        Located::Slot { slot, stamp: stored.stamp, dirty: stored.is_only() }
    }

    /// Ends a read of `slot`.
    pub fn end_read(&mut self, slot: SlotId) {
        let mut s = self.slots.edit(slot);
        let retired = s.is_retired();
        let Some(stored) = s.stored_mut().filter(|stored| stored.readers > 0) else {
            debug_assert!(false, "unbalanced end_read of slot {}", slot.0);
            return;
        };
        stored.readers -= 1;
        // Retired during the read, and waiting for no flush.
        let done = retired && stored.readers == 0 && stored.durable_at == SsdFlush::NONE;
        drop(s);
        if done {
            self.release(slot);
        }
    }

    /// Whether `page` has a copy on the SSD.
    pub fn location(&self, page: PageId) -> Location {
        if self.slot_of(page).is_some() || self.pending.contains_key(&page) {
            Location::Ssd
        } else {
            Location::Hdd
        }
    }

    /// Informs the policy of a physical read.
    pub fn note_read(&mut self, page: PageId, from: Option<Location>, access: Access, now: Millis) {
        self.policy.read(page, from, access, now);
    }

    /// Drops the clean copy of `page` in `slot`, which turned out to be bad; the HDD has the page. Returns
    /// false if the mapping has changed meanwhile.
    pub fn drop_bad_copy(&mut self, page: PageId, slot: SlotId, now: Millis) -> bool {
        let here = self.slot_of(page) == Some(slot);
        let current = here && self.live(page).is_some_and(|stored| !stored.is_only());
        if current {
            self.unmap(page);
            self.policy.removed(page, false, now);
            self.counts.healed += 1;
            self.release(slot);
        }
        current
    }

    // ---- writes

    /// Decides where the dirty page `page` goes. A page on the SSD stays there, in another slot, unless its
    /// space is kept off the SSD.
    pub fn plan_dirty(&mut self, page: PageId, now: Millis, fresh: &mut dyn FnMut() -> Stamp) -> Plan {
        if !self.admits(page) {
            return Plan::Hdd;
        }
        match self.place_dirty(page, now) {
            Ok((slot, displaced)) => {
                let mut ticket = self.start(slot, page, Standing::Only, displaced, now, fresh());
                ticket.backs_home = self.backs_home();
                Plan::Ssd(ticket)
            }
            // Pages for which a doublewrite buffer has no room go through the ring.
            Err(NoSlot::Soon) if !self.backs_home() => Plan::Wait,
            Err(_) => Plan::Hdd,
        }
    }

    /// Whether an eviction that was not admitted is a reason to look for map work: slots ran out, the zone
    /// has no candidate left, or (checked from time to time) it has few.
    #[must_use]
    pub fn wants_look(&mut self) -> bool {
        let due = self.counts.rejected >= self.next_look;
        if due {
            self.next_look = self.counts.rejected + REJECTIONS_PER_LOOK;
        }
        due || self.starved || (self.zone_is_spent() && !self.capturing && self.is_stale())
    }

    /// Whether the copy of `page` on the SSD is the version `stamp`.
    pub fn holds(&self, page: PageId, stamp: Stamp) -> bool {
        self.live(page).is_some_and(|stored| stored.stamp == stamp)
    }

    /// Ends the write of `ticket`. SSD flush `durable_at` is the first that covers it.
    pub fn end_write(&mut self, ticket: Ticket, ok: bool, durable_at: SsdFlush, now: Millis) {
        let Ticket { slot, page, arrives, .. } = ticket;
        let Slot { stamp, phase: Phase::Writing { abandoned, .. }, .. } = self.slots.get(slot) else {
            debug_assert!(false, "slot {} is not being written", slot.0);
            return;
        };
        self.arriving -= usize::from(arrives);
        for on_its_way in [&mut self.pending, &mut self.moving] {
            if on_its_way.get(&page) == Some(&slot) {
                on_its_way.remove(&page);
            }
        }
        if !ok {
            // The failed write may still land, in whole or in part. It would destroy the image of a page that
            // got the slot meanwhile.
            self.slots.edit(slot).phase = Phase::Bad;
            self.bad += 1;
            if !abandoned {
                self.keeps_old_copy(page, now);
            }
            return;
        }
        if abandoned {
            return self.release(slot);
        }
        let mut s = self.slots.edit(slot);
        (s.phase, s.durable_at) = (Phase::Live { being_replaced: false }, durable_at);
        drop(s);
        let before = self.by_page.insert(&self.slots, page, slot);
        if before.is_none() && !arrives {
            // The old copy was evicted meanwhile, and the policy has been notified.
            self.policy.inserted(page, slot, now);
        }
        // Not free yet: until the new version is durable, a crash falls back to the old one (I1).
        if let Some(old) = before {
            self.retire(old, stamp, durable_at);
        }
        self.note_copy(page);
    }

    /// Handles the failed write of a newer version of `page`.
    fn keeps_old_copy(&mut self, page: PageId, now: Millis) {
        match self.slot_of(page) {
            Some(old) => {
                self.set_being_replaced(old, false);
                self.policy.inserted(page, old, now);
            }
            None => self.policy.removed(page, false, now),
        }
    }

    fn set_being_replaced(&mut self, slot: SlotId, is: bool) {
        if let Phase::Live { being_replaced } = &mut self.slots.edit(slot).phase {
            *being_replaced = is;
        }
    }

    /// Retires `old`: version `successor` of its page is complete, and flush `until` makes it durable.
    fn retire(&mut self, old: SlotId, successor: Stamp, until: SsdFlush) {
        let mut o = self.slots.edit(old);
        if let Some(stored) = o.live_mut() {
            let durable_at = std::mem::replace(&mut stored.durable_at, until);
            stored.phase = Phase::Retired;
            self.retired.push_back(Predecessor { until, slot: old, durable_at, successor });
        }
    }

    /// Notes that SSD flush number `number` has completed: slots that were retired before it become
    /// free, and live slots no longer have to wait for it.
    pub fn flushed(&mut self, number: SsdFlush) {
        self.free_retired(number);
        self.slots.covered(number);
    }

    /// Frees the retired slots that wait for flush `number` or an earlier one.
    fn free_retired(&mut self, number: SsdFlush) {
        while let Some(one) = self.retired.front().copied().filter(|one| one.until <= number) {
            self.retired.pop_front();
            // A slot that is still being read is freed when the read ends.
            self.release(one.slot);
        }
    }

    /// Notes a change of the buffered page `page`. Returns true if this invalidated a copy identical to the
    /// HDD's (2013 paper, section 5); a newer copy stays.
    pub fn dirtied(&mut self, page: PageId, logical: u32, now: Millis) -> bool {
        let location = self.location(page);
        self.policy.logical(page, logical, location, now);
        if self.through || self.appends() {
            // The copy equals the HDD's version until a newer one is written.
            self.cancel_move(page);
            return false;
        }
        if let Some(slot) = self.pending.remove(&page) {
            self.abandon(slot);
        } else if let Some((slot, stored)) = self.slot_of(page).zip(self.live(page)) {
            // The change is in memory alone, so this version is still the newest durable one (I1).
            if stored.is_dirty() {
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

    /// Drops the copy of the discarded page `page`, whether or not it was written back.
    pub fn discard(&mut self, page: PageId) {
        if self.live(page).is_some_and(|stored| stored.is_dirty()) {
            self.discards.note();
        }
        self.give_up_copy(page);
        self.policy.forget(page);
    }

    fn give_up_copy(&mut self, page: PageId) {
        self.cancel_incoming(page);
        if let Some(slot) = self.unmap(page) {
            if self.slots.get(slot).version().is_some_and(|version| version.is_dirty()) {
                // A crash may find a checkpoint that names this copy, or an older one of the page, as the
                // newest version. Recovery would then look for this one, and report the page as damaged
                // without it. So the slot waits for a checkpoint that does not name the page (I15).
                self.slots.leave_zones(slot);
            }
            self.release(slot);
        }
    }

    /// Discards every page that `gone` selects.
    pub fn discard_where(&mut self, gone: &mut dyn FnMut(PageId) -> bool) {
        for page in self.copies().into_iter().filter(|page| gone(*page)) {
            self.discard(page);
        }
    }

    /// Cancels what is being written to the SSD for `page`: a newer version supersedes it.
    fn cancel_incoming(&mut self, page: PageId) {
        if let Some(slot) = self.pending.remove(&page) {
            self.abandon(slot);
        }
        self.cancel_move(page);
    }

    /// Marks the write into `slot` as obsolete.
    fn abandon(&mut self, slot: SlotId) {
        if let Phase::Writing { abandoned, .. } = &mut self.slots.edit(slot).phase {
            *abandoned = true;
        }
    }

    /// Removes the page's copy from the map, and cancels a second chance in flight.
    fn unmap(&mut self, page: PageId) -> Option<SlotId> {
        let slot = self.by_page.remove(&self.slots, page)?;
        self.cancel_move(page);
        Some(slot)
    }

    /// Gives up the copy in `victim` for another page. Returns the displaced page.
    fn evict(&mut self, victim: SlotId, now: Millis) -> Option<PageId> {
        let page = self.slots.get(victim).live()?.page;
        self.unmap(page);
        self.policy.removed(page, true, now);
        self.release(victim);
        self.counts.evicted += 1;
        Some(page)
    }

    /// Hands out the free `slot` for a write.
    fn start(
        &mut self,
        slot: SlotId,
        page: PageId,
        standing: Standing,
        displaced: Option<PageId>,
        now: Millis,
        stamp: Stamp,
    ) -> Ticket {
        // An older image on its way must not become the page's copy when it lands.
        self.cancel_incoming(page);
        if self.slots.page(slot) != page {
            self.policy.overwritten(slot);
        }
        let mut s = self.slots.edit(slot);
        debug_assert!(s.is_free(), "slot {} is not free", slot.0);
        s.hold(page, stamp, standing, Phase::Writing { abandoned: false, renews: false });
        let dirty = s.is_dirty();
        drop(s);
        let old = self.slot_of(page);
        if let Some(old) = old {
            // A second chance now would give the old content a larger stamp than the new version's (I16).
            self.set_being_replaced(old, true);
        }
        let (arrives, over_only_copy) = (old.is_none(), self.is_only_copy(page));
        self.arriving += usize::from(arrives);
        self.changes += 1;
        self.policy.inserted(page, slot, now);
        let (backs_home, waits_for_home) = (false, false);
        Ticket { slot, page, stamp, dirty, arrives, displaced, backs_home, over_only_copy, waits_for_home }
    }

    /// Releases `slot`, whose version nothing needs (I1). It is free at once, or when its readers have
    /// finished.
    fn release(&mut self, slot: SlotId) {
        let mut s = self.slots.edit(slot);
        s.durable_at = SsdFlush::NONE;
        if s.readers() > 0 {
            s.phase = Phase::Retired;
        } else {
            s.phase = Phase::Free;
            drop(s);
            self.note_free(slot);
        }
    }

    /// Whether another page may get a copy without using the reserve.
    pub(crate) fn has_capacity(&self) -> bool {
        self.empty() > self.keep_empty as usize
    }

    /// Slots that no page has or is about to get.
    fn empty(&self) -> usize {
        (self.params.slots as usize).saturating_sub(self.by_page.len() + self.arriving + self.bad)
    }

    /// Whether `slot` may be written under every checkpoint that a crash could find.
    fn is_writable(&self, slot: SlotId) -> bool {
        self.slots.writable(slot, self.capturing)
    }

    // ---- displaced pages to report to the pool

    /// Queues a page that lost its copy when no write could report it to the pool.
    pub(crate) fn note_unreported(&mut self, displaced: Option<PageId>) {
        self.unreported.extend(displaced);
        if self.unreported.len() > UNREPORTED_MAX {
            self.unreported.pop_front();
        }
    }

    /// The next queued page that still has no copy.
    pub(crate) fn take_unreported(&mut self) -> Option<PageId> {
        loop {
            let page = self.unreported.pop_front()?;
            if self.location(page) == Location::Hdd {
                return Some(page);
            }
        }
    }

    // ---- views

    /// The policy, for its statistics.
    pub fn policy(&self) -> &dyn SlotPolicy {
        &*self.policy
    }

    /// The policy, to be informed.
    pub fn policy_mut(&mut self) -> &mut dyn SlotPolicy {
        &mut *self.policy
    }

    /// The slots without a page.
    pub fn free_slots(&self) -> FreeSlots {
        let (writable, waiting) = self.count_free();
        FreeSlots { writable, waiting, retired: self.retired.len(), checkpointing: self.capturing }
    }

    /// The number of slots.
    pub(crate) fn total(&self) -> u32 {
        self.params.slots
    }

    /// The number of pages that have a copy on the SSD.
    pub fn pages(&self) -> usize {
        self.by_page.len()
    }

    /// The generation of the checkpoint in force: the newest that is durable.
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// Counters since the open.
    pub fn counts(&self) -> SlotCounts {
        self.counts
    }

    /// The memory of the slot table, the page map and the policy, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // Even an empty index has a cell.
        let map = if self.slots.is_empty() { 0 } else { self.by_page.memory_bytes() };
        self.slots.memory_bytes() + map + self.policy.memory_bytes()
    }

    /// The pages and their slots, in order.
    #[cfg(test)]
    fn mappings(&self) -> Vec<(PageId, SlotId)> {
        let mut mappings: Vec<_> = self.copies_by_slot().map(|(slot, stored)| (stored.page, slot)).collect();
        mappings.sort_unstable();
        mappings
    }

    /// Recounts; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_free()?;
        let live = self.copies_by_slot().count();
        if live != self.by_page.len() {
            return Err(format!("{live} live slots, {} pages", self.by_page.len()));
        }
        for (slot, stored) in self.copies_by_slot() {
            if self.slot_of(stored.page) != Some(slot) {
                return Err(format!("page {} is mapped to a slot of another", stored.page));
            }
        }
        for (page, slot) in self.pending.iter().chain(&self.moving) {
            match self.slots.get(*slot) {
                s if s.page == *page && matches!(s.phase, Phase::Writing { abandoned: false, .. }) => {}
                _ => return Err(format!("page {page} is not on its way to slot {}", slot.0)),
            }
        }
        self.policy.validate()
    }
}
