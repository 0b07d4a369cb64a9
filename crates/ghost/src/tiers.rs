//! The two tiers without devices: a buffer pool and an SSD cache under the store's own policies.
//!
//! The model follows the system of the 2013 paper (sections 2, 3.1 and 5) and adds nothing: no latches, no
//! crashes, and every I/O has its fixed cost. When the next victim is dirty, the dirty pages among the first
//! `look_ahead` frames in eviction order are written (replacement writes). Recoverability writes clean the
//! page that has been dirty longest when too many frames are dirty. A slot is rewritten in place, and a newer
//! SSD copy is copied to the HDD when it is evicted.
//!
//! SSD policies beyond the paper's define their own behaviour: [`SlotPolicy::write_through`],
//! [`SlotPolicy::admits_on_read`], [`SlotPolicy::append_group`].

use crate::counts::{Counts, LastCluster, TierParams};
use crate::reference::{Reference, Use};
use pagetier_policy::{
    Access, Cause, CleanReason, FrameId, FramePolicy, FrameState, Location, Millis, PageId, SlotId,
    SlotPolicy, Verdict,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Frame {
    page: PageId,
    /// The slot of its SSD copy, or [`NONE`].
    slot: u32,
    dirty: bool,
    /// Logical reads not yet reported to the SSD policy.
    logical: u32,
    /// Identifies the entry of `dirty_since` for this change.
    dirtied_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: PageId,
    /// The frame that buffers its page, or [`NONE`].
    frame: u32,
    used: bool,
    newer_than_hdd: bool,
    in_zone: bool,
}

/// The location of a page. A buffered page's frame knows its slot, so a page is looked up only when it is
/// requested, arrives or leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Buffered, with or without an SSD copy.
    Frame(u32),
    /// On the SSD only.
    Slot(u32),
}

/// Pool, SSD, their policies and the counts.
#[derive(Debug)]
pub struct Tiers {
    params: TierParams,
    pool: Box<dyn FramePolicy>,
    ssd: Box<dyn SlotPolicy>,
    places: FxHashMap<PageId, Place>,
    frames: Vec<Frame>,
    free_frames: Vec<u32>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    used: usize,
    /// For a policy that appends: the next slot to write, and the number of slots that can be written before
    /// some must be reclaimed.
    tail: u32,
    tail_free: u32,
    zone: Vec<SlotId>,
    zone_left: usize,
    /// Buffer for the policy's next victim.
    next_victim: Vec<SlotId>,
    dirty: usize,
    dirty_since: VecDeque<(u32, u64)>,
    to_clean: Vec<FrameId>,
    /// The page read from the HDD last.
    read_last: Option<PageId>,
    written_last: LastCluster,
    requested_last: LastCluster,
    counts: Counts,
}

impl Tiers {
    /// Creates empty tiers under these policies.
    #[must_use]
    pub fn new(params: TierParams, pool: Box<dyn FramePolicy>, ssd: Box<dyn SlotPolicy>) -> Self {
        let page = PageId::default();
        Self {
            params,
            pool,
            ssd,
            places: FxHashMap::with_capacity_and_hasher(
                params.pool_pages as usize + params.ssd_pages as usize,
                FxBuildHasher,
            ),
            frames: vec![
                Frame { page, slot: NONE, dirty: false, logical: 0, dirtied_at: 0 };
                params.pool_pages as usize
            ],
            free_frames: (0..params.pool_pages).rev().collect(),
            slots: vec![
                Slot { page, frame: NONE, used: false, newer_than_hdd: false, in_zone: false };
                params.ssd_pages as usize
            ],
            free_slots: (0..params.ssd_pages).rev().collect(),
            used: 0,
            tail: 0,
            tail_free: params.ssd_pages,
            zone: Vec::new(),
            zone_left: 0,
            next_victim: Vec::new(),
            dirty: 0,
            dirty_since: VecDeque::new(),
            to_clean: Vec::new(),
            read_last: None,
            written_last: LastCluster::default(),
            requested_last: LastCluster::default(),
            counts: Counts::default(),
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The SSD's policy, for its reports.
    #[must_use]
    pub fn ssd_policy(&self) -> &dyn SlotPolicy {
        self.ssd.as_ref()
    }

    /// The pool's policy.
    #[must_use]
    pub fn pool_policy(&self) -> &dyn FramePolicy {
        self.pool.as_ref()
    }

    /// The number of SSD slots in use: those that hold the newest SSD version of a page.
    pub fn ssd_used(&self) -> usize {
        self.used
    }

    /// The clock: the busier device's time plus the CPU's.
    pub fn now(&self) -> Millis {
        let costs = &self.params.costs;
        // The devices work at the same time. Their sum would let the clock of a balanced pair run up to
        // twice too fast.
        let devices = self.counts.hdd_ms(costs).max(self.counts.ssd_ms(costs));
        let all = devices + self.counts.requests as f64 * self.params.cpu_ms;
        Millis((all * self.params.clock_rate) as u64)
    }

    /// Applies one reference.
    pub fn apply(&mut self, reference: Reference) {
        self.counts.requests += 1;
        let page = reference.page;
        self.counts.request_switches += self.requested_last.switch(page, self.params.cluster_pages);
        let write = reference.used != Use::Read;
        let frame = match self.places.get(&page) {
            Some(&Place::Frame(frame)) => {
                self.counts.pool_hits += 1;
                // The SSD's policy learns of hits in sums, as in the store: a call per hit would be most of
                // a ghost's work.
                self.frames[frame as usize].logical += 1;
                self.pool.hit(FrameId(frame), write);
                frame
            }
            _ => self.load(reference),
        };
        if write && !self.frames[frame as usize].dirty {
            self.make_dirty(frame);
        }
    }

    fn load(&mut self, reference: Reference) -> u32 {
        let Reference { page, used, sequential } = reference;
        let access = if sequential { Access::Sequential } else { Access::Random };
        let frame = self.free_frames.pop().unwrap_or_else(|| self.evict());
        // Look the slot up after the eviction, which may have taken it.
        let slot = match self.places.insert(page, Place::Frame(frame)) {
            Some(Place::Slot(slot)) => {
                self.slots[slot as usize].frame = frame;
                slot
            }
            _ => NONE,
        };
        self.frames[frame as usize] = Frame { page, slot, dirty: false, logical: 0, dirtied_at: 0 };
        let mut location = if slot == NONE { Location::Hdd } else { Location::Ssd };
        if used == Use::Create {
            self.counts.pool_hits += 1;
            // Nothing is read, so this is a hit: hits and misses must add up to the requests.
            self.ssd.read(page, None, access, self.now());
        } else {
            self.counts.pool_misses += 1;
            match location {
                Location::Ssd => {
                    self.counts.ssd_hits += 1;
                    self.counts.ssd_reads += 1;
                }
                Location::Hdd => {
                    self.counts.hdd_reads += 1;
                    // Read-ahead would join a scan's read with that of the page before: it counts apart.
                    let before = self.read_last.replace(page);
                    let follows = before == page.no.checked_sub(1).map(|no| PageId::new(page.space, no));
                    self.counts.hdd_run_reads += u64::from(sequential && follows && page.no > 0);
                }
            }
            self.ssd.read(page, Some(location), access, self.now());
            // The policy knows of the read before it decides about the copy, since the read is part of the
            // page's benefit.
            if location == Location::Hdd && self.ssd.admits_on_read() && self.admit_copy(frame, Cause::Read) {
                location = Location::Ssd;
            }
        }
        self.pool.insert(FrameId(frame), page, location, access);
        frame
    }

    fn make_dirty(&mut self, frame: u32) {
        let at = self.counts.requests;
        let f = &mut self.frames[frame as usize];
        f.dirty = true;
        f.dirtied_at = at;
        let Frame { page, slot, .. } = *f;
        self.dirty += 1;
        self.dirty_since.push_back((frame, at));
        self.pool.dirtied(FrameId(frame));
        // A policy that writes through or appends keeps the copy until it is overwritten or superseded.
        let kept = self.ssd.write_through() || self.ssd.append_group().is_some();
        if slot != NONE && !self.slots[slot as usize].newer_than_hdd && !kept {
            self.report_logical(frame);
            self.counts.invalidations += 1;
            self.free_slot(slot);
            self.ssd.removed(page, false, self.now());
            self.pool.ssd_invalidated(FrameId(frame));
        }
        // At least one page stays dirty. A share of a small pool that rounds to none would write each
        // change at once.
        let dirty_max = (self.params.dirty_share_max * self.frames.len() as f64) as usize;
        while self.dirty > dirty_max.max(1) {
            let Some((oldest, since)) = self.dirty_since.pop_front() else { break };
            let f = &self.frames[oldest as usize];
            // The page may have been cleaned since, and changed again: its newest entry counts.
            if f.dirty && f.dirtied_at == since {
                self.clean(oldest, CleanReason::Recoverability);
            }
        }
        self.trim_dirty_since();
    }

    /// Occasionally drops entries of pages that were cleaned meanwhile.
    fn trim_dirty_since(&mut self) {
        // Without recoverability writes nothing takes entries off the queue, so it would grow with every
        // change. Waiting until most entries are stale keeps the cost per change constant.
        if self.dirty_since.len() > 2 * self.frames.len() + 64 {
            let frames = &self.frames;
            self.dirty_since.retain(|&(frame, since)| {
                let f = &frames[frame as usize];
                f.dirty && f.dirtied_at == since
            });
        }
    }

    /// Frees a frame; cleans ahead first if the next victim is dirty.
    fn evict(&mut self) -> u32 {
        let frames = &self.frames;
        let mut next_is_dirty = false;
        let victim = self.pool.victim(&mut |frame| {
            // Every frame is accepted, so the one that the policy asks about is its victim.
            next_is_dirty = frames[frame.at()].dirty;
            true
        });
        let Some(victim) = victim else { unreachable!("a pool has at least one frame") };
        let victim = if next_is_dirty { self.clean_ahead(victim) } else { victim };
        let frame = victim.0;
        self.report_logical(frame);
        // The page leaves memory: from now on a copy would cost a read of the HDD.
        if self.frames[victim.at()].slot == NONE {
            self.admit_copy(frame, Cause::Evicted);
        }
        let Frame { page, slot, .. } = self.frames[victim.at()];
        self.ssd.left_pool(page, self.now());
        self.pool.evicted(victim, page);
        if slot == NONE {
            self.places.remove(&page);
        } else {
            self.slots[slot as usize].frame = NONE;
            self.places.insert(page, Place::Slot(slot));
        }
        frame
    }

    /// Performs replacement writes, then returns the victim, which is clean.
    #[cold]
    fn clean_ahead(&mut self, fallback: FrameId) -> FrameId {
        let mut batch = std::mem::take(&mut self.to_clean);
        let frames = &self.frames;
        let state = &mut |frame: FrameId| match frames[frame.at()].dirty {
            true => FrameState::Dirty,
            false => FrameState::Clean,
        };
        self.pool.clean_set(self.params.look_ahead.max(1), usize::MAX, state, &mut batch);
        for frame in batch.drain(..) {
            self.clean(frame.0, CleanReason::Replacement);
        }
        self.to_clean = batch;
        let frames = &self.frames;
        // The writes may have moved pages between the policy's queues (GD2L has one per location), so its
        // next victim may be another.
        self.pool.victim(&mut |frame| !frames[frame.at()].dirty).unwrap_or(fallback)
    }

    /// Writes a dirty page to the SSD, the HDD, or both.
    fn clean(&mut self, frame: u32, reason: CleanReason) {
        self.report_logical(frame);
        // The reads so far belong to the old location, which the write may change.
        let location = if self.ssd.write_through() { self.write_both(frame) } else { self.write_back(frame) };
        self.frames[frame as usize].dirty = false;
        self.dirty -= 1;
        self.pool.cleaned(FrameId(frame), location, reason);
    }

    fn write_back(&mut self, frame: u32) -> Location {
        let Frame { page, slot, .. } = self.frames[frame as usize];
        let slot = match slot {
            NONE => self.admit(page, Cause::Cleaned),
            old if self.ssd.append_group().is_some() => {
                // The new version supersedes it; the slot is reclaimed in its turn.
                self.free_slot(old);
                self.admit(page, Cause::Cleaned)
            }
            slot => {
                self.slots[slot as usize].newer_than_hdd = true;
                self.counts.ssd_writes += 1;
                self.ssd.wrote(page, Location::Ssd, self.now());
                return Location::Ssd;
            }
        };
        if let Some(slot) = slot {
            self.fill(slot, page, frame, true);
            self.counts.ssd_writes += 1;
            self.ssd.wrote(page, Location::Ssd, self.now());
            Location::Ssd
        } else {
            self.write_hdd(page);
            self.ssd.wrote(page, Location::Hdd, self.now());
            Location::Hdd
        }
    }

    fn write_both(&mut self, frame: u32) -> Location {
        let Frame { page, slot, .. } = self.frames[frame as usize];
        self.write_hdd(page);
        self.ssd.wrote(page, Location::Hdd, self.now());
        match slot {
            NONE => {}
            // The new version supersedes it; the slot is reclaimed in its turn.
            old if self.ssd.append_group().is_some() => self.free_slot(old),
            _ => {
                self.counts.ssd_writes += 1;
                self.ssd.wrote(page, Location::Ssd, self.now());
                return Location::Ssd;
            }
        }
        if self.admit_copy(frame, Cause::Cleaned) { Location::Ssd } else { Location::Hdd }
    }

    fn write_hdd(&mut self, page: PageId) {
        self.counts.hdd_writes += 1;
        self.counts.cluster_switches += self.written_last.switch(page, self.params.cluster_pages);
    }

    fn report_logical(&mut self, frame: u32) {
        let f = &mut self.frames[frame as usize];
        if f.logical > 0 {
            let location = if f.slot == NONE { Location::Hdd } else { Location::Ssd };
            let (page, n) = (f.page, std::mem::take(&mut f.logical));
            self.ssd.logical(page, n, location, self.now());
        }
    }

    /// Copies the page in `frame`, in the HDD's version, to the SSD if the policy admits it.
    fn admit_copy(&mut self, frame: u32, cause: Cause) -> bool {
        let page = self.frames[frame as usize].page;
        let slot = self.admit(page, cause);
        if let Some(slot) = slot {
            self.counts.ssd_writes += 1;
            self.fill(slot, page, frame, false);
        }
        slot.is_some()
    }

    /// Returns an empty slot for `page` if the policy admits it to the SSD.
    fn admit(&mut self, page: PageId, cause: Cause) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let now = self.now();
        if let Some(group) = self.ssd.append_group() {
            let verdict = self.ssd.consider(page, cause, 1, &mut |_| true, now);
            return (verdict == Verdict::AdmitFree).then(|| self.append(group));
        }
        if self.free_slots.is_empty() {
            self.renew_zone();
        }
        match self.ssd.consider(page, cause, self.free_slots.len(), &mut |_| true, now) {
            Verdict::AdmitFree => self.free_slots.pop(),
            Verdict::Reject => {
                // The zone is exhausted when the policy names no victim in it.
                self.next_victim.clear();
                self.ssd.next_victims(1, now, &mut self.next_victim);
                if self.next_victim.is_empty() {
                    self.zone_left = 0;
                }
                None
            }
            // The slot of the evicted page is on top of the free list.
            Verdict::AdmitOver(slot) => {
                self.evict_slot(slot);
                self.free_slots.pop()
            }
        }
    }

    /// Evicts the page in `slot` in favour of another.
    fn evict_slot(&mut self, slot: SlotId) {
        let Slot { page, frame: buffered, newer_than_hdd, .. } = self.slots[slot.at()];
        if newer_than_hdd {
            self.counts.ssd_reads += 1;
            self.counts.write_backs += 1;
            self.write_hdd(page);
        }
        if buffered != NONE {
            self.report_logical(buffered);
        }
        self.free_slot(slot.0);
        self.ssd.removed(page, true, self.now());
        if buffered != NONE {
            self.pool.ssd_evicted(FrameId(buffered));
        }
    }

    /// The next slot in circular order.
    fn append(&mut self, group: usize) -> u32 {
        if self.tail_free == 0 {
            self.reclaim(group.clamp(1, self.slots.len()));
        }
        let slot = self.tail;
        self.tail = (self.tail + 1) % self.slots.len() as u32;
        self.tail_free -= 1;
        slot
    }

    /// Reclaims the `group` slots written longest ago. Pages that get a second chance are appended again at
    /// once, but at least one slot is gained.
    fn reclaim(&mut self, group: usize) {
        let mut again = Vec::new();
        for at in 0..group as u32 {
            let slot = (self.tail + at) % self.slots.len() as u32;
            if !self.slots[slot as usize].used {
                continue;
            }
            if again.len() + 1 < group && self.ssd.second_chance(SlotId(slot)) {
                again.push(self.slots[slot as usize]);
                // Its page is found at its old place until it is appended below.
                self.slots[slot as usize].used = false;
                self.used -= 1;
            } else {
                self.evict_slot(SlotId(slot));
            }
        }
        // All of the group is empty now. Pages with a second chance take their slots from it below.
        self.tail_free = group as u32;
        self.counts.second_chances += again.len() as u64;
        for Slot { page, frame, newer_than_hdd, .. } in again {
            self.counts.ssd_reads += 1;
            self.counts.ssd_writes += 1;
            let slot = self.append(group);
            self.fill(slot, page, frame, newer_than_hdd);
        }
    }

    fn renew_zone(&mut self) {
        // A small sample's SSD has so few slots that its zone could round to none.
        let k = ((self.slots.len() as f64 * self.params.zone_share) as usize).max(1);
        if self.zone_left > 0 {
            return;
        }
        self.counts.zones += 1;
        for slot in self.zone.drain(..) {
            self.slots[slot.at()].in_zone = false;
        }
        let now = self.now();
        self.ssd.start_zone(k, &mut |_| true, now, &mut self.zone);
        self.zone_left = self.zone.len();
        for slot in &self.zone {
            self.slots[slot.at()].in_zone = true;
        }
    }

    /// Records that `page`, buffered in `frame` if any, has its copy in `slot`.
    fn fill(&mut self, slot: u32, page: PageId, frame: u32, newer_than_hdd: bool) {
        self.slots[slot as usize] = Slot { page, frame, used: true, newer_than_hdd, in_zone: false };
        self.used += 1;
        match frame {
            NONE => {
                self.places.insert(page, Place::Slot(slot));
            }
            frame => self.frames[frame as usize].slot = slot,
        }
        self.ssd.inserted(page, SlotId(slot), self.now());
    }

    fn free_slot(&mut self, slot: u32) {
        let s = &mut self.slots[slot as usize];
        s.used = false;
        self.used -= 1;
        if std::mem::take(&mut s.in_zone) {
            self.zone_left = self.zone_left.saturating_sub(1);
        }
        let Slot { page, frame, .. } = *s;
        // A policy that appends writes slots in circular order only, so a slot freed out of turn waits for
        // the tail.
        if self.ssd.append_group().is_none() {
            self.free_slots.push(slot);
        }
        match frame {
            NONE => {
                self.places.remove(&page);
            }
            frame => self.frames[frame as usize].slot = NONE,
        }
    }

    /// Recounts everything, policies included; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.ssd.validate()?;
        let buffered = self.places.values().filter(|place| matches!(place, Place::Frame(_))).count();
        let cached =
            self.places.len() - buffered + self.frames.iter().filter(|frame| frame.slot != NONE).count();
        let dirty = self.frames.iter().filter(|f| f.dirty).count();
        if buffered + self.free_frames.len() != self.frames.len() || buffered != self.pool.len() {
            return Err(format!("{buffered} pages buffered, {} in the policy", self.pool.len()));
        }
        let appends = self.ssd.append_group().is_some();
        // Under a policy that appends, slots freed out of turn are in neither count.
        if !appends && self.used + self.free_slots.len() != self.slots.len() {
            return Err(format!("{} slots used, {} free", self.used, self.free_slots.len()));
        }
        if cached != self.ssd_used() || cached != self.slots.iter().filter(|s| s.used).count() {
            return Err(format!("{cached} pages on the SSD, {} slots used", self.ssd_used()));
        }
        if dirty != self.dirty {
            return Err(format!("{dirty} dirty frames, {} counted", self.dirty));
        }
        for (&page, &place) in &self.places {
            let (frame, slot) = match place {
                Place::Frame(frame) => (frame, self.frames[frame as usize].slot),
                Place::Slot(slot) => (NONE, slot),
            };
            let in_slot = |slot: &Slot| slot.used && slot.page == page && slot.frame == frame;
            if frame != NONE && self.frames[frame as usize].page != page
                || slot != NONE && !in_slot(&self.slots[slot as usize])
            {
                return Err(format!("page {page} is not at its recorded place: {place:?}"));
            }
        }
        let c = &self.counts;
        if c.pool_hits + c.pool_misses != c.requests || c.ssd_hits + c.hdd_reads != c.pool_misses {
            return Err(format!("{c:?}"));
        }
        Ok(())
    }
}
