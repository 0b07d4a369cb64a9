//! The two tiers without devices: a buffer pool and an SSD cache under the very policies that the store runs.
//!
//! What the 2013 paper says of the system (sections 2, 3.1 and 5) and nothing else: no latches, no crashes, and every I/O costs what it costs.
//! Dirty pages are cleaned when one of them has become the next victim: then the dirty ones among the first `look_ahead` frames in
//! eviction order are written (replacement writes). Recoverability writes clean the page dirty longest when more frames are dirty than
//! allowed. A slot is rewritten in place, and a newer SSD copy is copied to the HDD when it is evicted.

use crate::reference::{Reference, Use};
use pagetier_policy::{
    Access, Cause, CleanReason, Costs, FrameId, FrameState, Home, Millis, PageId, PoolPolicy, SlotId,
    SsdPolicy, Verdict,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Serialize;
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;

/// Rejections between two looks at whether the zone is spent.
const ZONE_CHECK: u64 = 64;

/// How large the tiers are and how they behave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierParams {
    /// Frames of the pool.
    pub pool_pages: u32,
    /// Slots of the SSD.
    pub ssd_pages: u32,
    /// What an I/O costs.
    pub costs: Costs,
    /// How many of the next victims the cleaner looks at when one of them is dirty.
    pub look_ahead: usize,
    /// The most dirty frames, as a share of the pool; 1 for no recoverability writes.
    pub dirty_share_max: f64,
    /// The eviction zone, as a share of the SSD (10 % in section 6.1).
    pub zone_share: f64,
    /// Processor time per reference, in milliseconds; it passes on the clock beside the slower device's.
    pub cpu_ms: f64,
}

impl TierParams {
    /// The defaults: the paper's costs and zone, a look-ahead of 64, no recoverability writes.
    #[must_use]
    pub const fn new(pool_pages: u32, ssd_pages: u32) -> Self {
        Self {
            pool_pages,
            ssd_pages,
            costs: Costs::PAPER,
            look_ahead: 64,
            dirty_share_max: 1.0,
            zone_share: 0.1,
            cpu_ms: 0.002,
        }
    }
}

/// What happened; differences of two give an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Page references.
    pub requests: u64,
    /// References to buffered pages, or to pages just created.
    pub pool_hits: u64,
    /// References that had to read.
    pub pool_misses: u64,
    /// Misses read from the SSD.
    pub ssd_hits: u64,
    /// Reads from the HDD.
    pub hdd_reads: u64,
    /// Writes to the HDD.
    pub hdd_writes: u64,
    /// Reads from the SSD, those that precede a copy to the HDD included.
    pub ssd_reads: u64,
    /// Writes to the SSD.
    pub ssd_writes: u64,
    /// HDD writes that copied a newer SSD version before its slot was given up; in `hdd_writes` too.
    pub write_backs: u64,
    /// SSD copies invalidated by a change.
    pub invalidations: u64,
    /// Zones started.
    pub zones: u64,
}

impl Counts {
    /// The counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            pool_hits: self.pool_hits - before.pool_hits,
            pool_misses: self.pool_misses - before.pool_misses,
            ssd_hits: self.ssd_hits - before.ssd_hits,
            hdd_reads: self.hdd_reads - before.hdd_reads,
            hdd_writes: self.hdd_writes - before.hdd_writes,
            ssd_reads: self.ssd_reads - before.ssd_reads,
            ssd_writes: self.ssd_writes - before.ssd_writes,
            write_backs: self.write_backs - before.write_backs,
            invalidations: self.invalidations - before.invalidations,
            zones: self.zones - before.zones,
        }
    }

    /// Time that the HDD was busy, in milliseconds.
    #[must_use]
    pub fn hdd_ms(&self, costs: &Costs) -> f64 {
        self.hdd_reads as f64 * costs.hdd_read_ms + self.hdd_writes as f64 * costs.hdd_write_ms
    }

    /// Time that the SSD was busy, in milliseconds.
    #[must_use]
    pub fn ssd_ms(&self, costs: &Costs) -> f64 {
        self.ssd_reads as f64 * costs.ssd_read_ms + self.ssd_writes as f64 * costs.ssd_write_ms
    }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    page: PageId,
    dirty: bool,
    /// Logical reads that the SSD policy does not know of yet.
    logical: u32,
    /// The entry of `dirty_since` that speaks of this change.
    dirtied_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: PageId,
    used: bool,
    newer_than_hdd: bool,
    in_zone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    frame: u32,
    slot: u32,
}

/// Pool, SSD, their policies and the counts.
#[derive(Debug)]
pub struct Tiers {
    params: TierParams,
    pool: Box<dyn PoolPolicy>,
    ssd: Box<dyn SsdPolicy>,
    places: FxHashMap<PageId, Place>,
    frames: Vec<Frame>,
    free_frames: Vec<u32>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    zone: Vec<SlotId>,
    zone_left: usize,
    rejections: u64,
    dirty: usize,
    dirty_since: VecDeque<(u32, u64)>,
    to_clean: Vec<FrameId>,
    counts: Counts,
}

impl Tiers {
    /// Empty tiers under these policies.
    #[must_use]
    pub fn new(params: TierParams, pool: Box<dyn PoolPolicy>, ssd: Box<dyn SsdPolicy>) -> Self {
        let page = PageId::default();
        Self {
            params,
            pool,
            ssd,
            places: FxHashMap::with_capacity_and_hasher(
                params.pool_pages as usize + params.ssd_pages as usize,
                FxBuildHasher,
            ),
            frames: vec![Frame { page, dirty: false, logical: 0, dirtied_at: 0 }; params.pool_pages as usize],
            free_frames: (0..params.pool_pages).rev().collect(),
            slots: vec![
                Slot { page, used: false, newer_than_hdd: false, in_zone: false };
                params.ssd_pages as usize
            ],
            free_slots: (0..params.ssd_pages).rev().collect(),
            zone: Vec::new(),
            zone_left: 0,
            rejections: 0,
            dirty: 0,
            dirty_since: VecDeque::new(),
            to_clean: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The SSD's policy, for its reports.
    #[must_use]
    pub fn ssd_policy(&self) -> &dyn SsdPolicy {
        self.ssd.as_ref()
    }

    /// The pool's policy.
    #[must_use]
    pub fn pool_policy(&self) -> &dyn PoolPolicy {
        self.pool.as_ref()
    }

    /// SSD slots in use.
    #[must_use]
    pub fn ssd_used(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// The clock: the busier device's time, and the processor's.
    #[must_use]
    pub fn now(&self) -> Millis {
        let costs = &self.params.costs;
        let devices = self.counts.hdd_ms(costs).max(self.counts.ssd_ms(costs));
        Millis((devices + self.counts.requests as f64 * self.params.cpu_ms) as u64)
    }

    /// One reference.
    pub fn apply(&mut self, reference: Reference) {
        self.counts.requests += 1;
        let page = reference.page;
        let write = reference.used != Use::Read;
        let frame = match self.places.get(&page).map_or(NONE, |place| place.frame) {
            NONE => self.load(reference),
            frame => {
                self.counts.pool_hits += 1;
                self.frames[frame as usize].logical += 1;
                self.pool.hit(FrameId(frame), write);
                frame
            }
        };
        if write && !self.frames[frame as usize].dirty {
            self.make_dirty(frame);
        }
    }

    fn load(&mut self, reference: Reference) -> u32 {
        let Reference { page, used, sequential } = reference;
        let access = if sequential { Access::Sequential } else { Access::Random };
        let frame = self.free_frames.pop().unwrap_or_else(|| self.evict());
        self.frames[frame as usize] = Frame { page, dirty: false, logical: 0, dirtied_at: 0 };
        // Looked up only now: the eviction may just have taken the page's slot.
        let place = self.places.entry(page).or_insert(Place { frame: NONE, slot: NONE });
        place.frame = frame;
        let home = if place.slot == NONE { Home::Hdd } else { Home::Ssd };
        if used == Use::Create {
            self.counts.pool_hits += 1;
            self.ssd.read(page, None, access, self.now());
        } else {
            self.counts.pool_misses += 1;
            match home {
                Home::Ssd => {
                    self.counts.ssd_hits += 1;
                    self.counts.ssd_reads += 1;
                }
                Home::Hdd => self.counts.hdd_reads += 1,
            }
            self.ssd.read(page, Some(home), access, self.now());
        }
        self.pool.insert(FrameId(frame), page, home, access);
        frame
    }

    fn make_dirty(&mut self, frame: u32) {
        let at = self.counts.requests;
        let f = &mut self.frames[frame as usize];
        f.dirty = true;
        f.dirtied_at = at;
        let page = f.page;
        self.dirty += 1;
        self.dirty_since.push_back((frame, at));
        self.pool.dirtied(FrameId(frame));
        let slot = self.places[&page].slot;
        if slot != NONE && !self.slots[slot as usize].newer_than_hdd {
            self.report_logical(frame);
            self.counts.invalidations += 1;
            self.free_slot(slot);
            self.ssd.removed(page, false, self.now());
            self.pool.ssd_invalidated(FrameId(frame));
        }
        let dirty_max = (self.params.dirty_share_max * self.frames.len() as f64) as usize;
        while self.dirty > dirty_max.max(1) {
            let Some((oldest, since)) = self.dirty_since.pop_front() else { break };
            let f = &self.frames[oldest as usize];
            if f.dirty && f.dirtied_at == since {
                self.clean(oldest, CleanReason::Recoverability);
            }
        }
        self.trim_dirty_since();
    }

    /// Forgets entries of pages that were cleaned meanwhile, now and then.
    fn trim_dirty_since(&mut self) {
        if self.dirty_since.len() > 2 * self.frames.len() + 64 {
            let frames = &self.frames;
            self.dirty_since.retain(|&(frame, since)| {
                let f = &frames[frame as usize];
                f.dirty && f.dirtied_at == since
            });
        }
    }

    /// Makes a frame free, cleaning ahead first if the next victim is dirty.
    fn evict(&mut self) -> u32 {
        let frames = &self.frames;
        let mut next_is_dirty = false;
        let victim = self.pool.victim(&mut |frame| {
            next_is_dirty = frames[frame.at()].dirty;
            true
        });
        let Some(victim) = victim else { unreachable!("a pool has at least one frame") };
        let victim = if next_is_dirty { self.clean_ahead(victim) } else { victim };
        let frame = victim.0;
        let page = self.frames[victim.at()].page;
        self.report_logical(frame);
        if self.places[&page].slot == NONE
            && let Some(slot) = self.admit(page, Cause::Evicted)
        {
            self.counts.ssd_writes += 1;
            self.fill(slot, page, false);
        }
        self.ssd.left_pool(page, self.now());
        self.pool.remove(victim, true);
        match self.places.get_mut(&page) {
            Some(place) if place.slot != NONE => place.frame = NONE,
            _ => {
                self.places.remove(&page);
            }
        }
        frame
    }

    /// Replacement writes; then the victim, which is clean.
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
        self.pool.victim(&mut |frame| !frames[frame.at()].dirty).unwrap_or(fallback)
    }

    /// Writes a dirty page to the SSD or the HDD.
    fn clean(&mut self, frame: u32, reason: CleanReason) {
        self.report_logical(frame);
        let page = self.frames[frame as usize].page;
        let slot = match self.places[&page].slot {
            NONE => {
                let slot = self.admit(page, Cause::Cleaned);
                if let Some(slot) = slot {
                    self.fill(slot, page, true);
                }
                slot
            }
            slot => {
                self.slots[slot as usize].newer_than_hdd = true;
                Some(slot)
            }
        };
        let home = if slot.is_some() { Home::Ssd } else { Home::Hdd };
        match home {
            Home::Ssd => self.counts.ssd_writes += 1,
            Home::Hdd => self.counts.hdd_writes += 1,
        }
        self.ssd.wrote(page, home, self.now());
        self.frames[frame as usize].dirty = false;
        self.dirty -= 1;
        self.pool.cleaned(FrameId(frame), home, reason);
    }

    fn report_logical(&mut self, frame: u32) {
        let f = &mut self.frames[frame as usize];
        if f.logical > 0 {
            let home = if self.places[&f.page].slot == NONE { Home::Hdd } else { Home::Ssd };
            let (page, n) = (f.page, std::mem::take(&mut f.logical));
            self.ssd.logical(page, n, home, self.now());
        }
    }

    /// An empty slot for `page`, if the policy wants it on the SSD.
    fn admit(&mut self, page: PageId, cause: Cause) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let now = self.now();
        if self.free_slots.is_empty() {
            self.renew_zone();
        }
        match self.ssd.consider(page, cause, self.free_slots.len(), &mut |_| true, now) {
            Verdict::AdmitFree => self.free_slots.pop(),
            Verdict::Reject => {
                self.rejections += 1;
                if self.rejections.is_multiple_of(ZONE_CHECK) {
                    // A zone whose candidates have all become better pages is spent.
                    let mut next = Vec::new();
                    self.ssd.next_victims(1, now, &mut next);
                    self.zone_left = if next.is_empty() { 0 } else { self.zone_left };
                }
                None
            }
            Verdict::AdmitOver(SlotId(slot)) => {
                let Slot { page: old, newer_than_hdd, .. } = self.slots[slot as usize];
                if newer_than_hdd {
                    self.counts.ssd_reads += 1;
                    self.counts.hdd_writes += 1;
                    self.counts.write_backs += 1;
                }
                let buffered = self.places[&old].frame;
                if buffered != NONE {
                    self.report_logical(buffered);
                }
                self.free_slot(slot);
                self.ssd.removed(old, true, self.now());
                if buffered != NONE {
                    self.pool.ssd_evicted(FrameId(buffered));
                }
                self.free_slots.pop()
            }
        }
    }

    fn renew_zone(&mut self) {
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

    fn fill(&mut self, slot: u32, page: PageId, newer_than_hdd: bool) {
        self.slots[slot as usize] = Slot { page, used: true, newer_than_hdd, in_zone: false };
        if let Some(place) = self.places.get_mut(&page) {
            place.slot = slot;
        }
        self.ssd.inserted(page, SlotId(slot), self.now());
    }

    fn free_slot(&mut self, slot: u32) {
        let s = &mut self.slots[slot as usize];
        s.used = false;
        if std::mem::take(&mut s.in_zone) {
            self.zone_left = self.zone_left.saturating_sub(1);
        }
        let page = s.page;
        self.free_slots.push(slot);
        match self.places.get_mut(&page) {
            Some(place) if place.frame != NONE => place.slot = NONE,
            _ => {
                self.places.remove(&page);
            }
        }
    }

    /// Recounts everything, policies included; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.ssd.validate()?;
        let buffered = self.places.values().filter(|p| p.frame != NONE).count();
        let cached = self.places.values().filter(|p| p.slot != NONE).count();
        let dirty = self.frames.iter().filter(|f| f.dirty).count();
        if buffered + self.free_frames.len() != self.frames.len() || buffered != self.pool.len() {
            return Err(format!("{buffered} pages buffered, {} in the policy", self.pool.len()));
        }
        if cached != self.ssd_used() || cached != self.slots.iter().filter(|s| s.used).count() {
            return Err(format!("{cached} pages on the SSD, {} slots used", self.ssd_used()));
        }
        if dirty != self.dirty {
            return Err(format!("{dirty} dirty frames, {} counted", self.dirty));
        }
        for (page, place) in &self.places {
            if place.frame != NONE && self.frames[place.frame as usize].page != *page
                || place.slot != NONE && self.slots[place.slot as usize].page != *page
            {
                return Err(format!("page {page} is not where it is noted: {place:?}"));
            }
        }
        let c = &self.counts;
        if c.pool_hits + c.pool_misses != c.requests || c.ssd_hits + c.hdd_reads != c.pool_misses {
            return Err(format!("{c:?}"));
        }
        Ok(())
    }
}
