//! Policies that answer at random or maliciously: a bad policy costs speed, never data.
//!
//! For tests only. [`register`] makes them known by the names `hostile:SEED`. Every answer is one that the
//! traits' types allow: slots and frames that do not exist, are in use, were just written or are named twice;
//! an empty list; a list longer than requested; second chances for every slot. The answers follow from the
//! seed and the reported events, so a run is reproducible.

use pagetier_policy::{
    Access, Catalogue, Cause, CleanReason, FrameId, FramePolicy, FramePolicyParams, Location, Millis, PageId,
    PoolPolicyFactory, SlotId, SlotPolicy, SlotPolicyParams, SlotReport, SsdPolicyFactory, StateOf, Usable,
    Verdict,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Pseudo-random numbers derived from a seed.
#[derive(Clone, Copy, Debug)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }
}

fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// How a policy answers; derived from its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Temper {
    /// Draws every answer at random.
    Random,
    /// Says yes to everything; names the latest written first.
    Eager,
    /// Says no to everything; names no victims.
    Stubborn,
    /// Says yes to everything; names slot or frame 0, repeatedly.
    Narrow,
    /// Names slots or frames that do not exist.
    Wild,
}

impl Temper {
    fn of(seed: u64) -> Self {
        [Self::Random, Self::Eager, Self::Stubborn, Self::Narrow, Self::Wild][(seed % 5) as usize]
    }
}

/// The number of latest writes that a policy remembers.
const RECENT: usize = 8;

/// A seed's temper, and the latest writes among the indices below `end`.
#[derive(Clone, Debug)]
struct Malice {
    temper: Temper,
    dice: Dice,
    end: u32,
    recent: Vec<u32>,
}

impl Malice {
    fn new(seed: u64, end: usize) -> Self {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        Self { temper: Temper::of(seed), dice: Dice::new(seed), end, recent: Vec::new() }
    }

    fn note(&mut self, index: u32) {
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(index);
    }

    fn any(&mut self) -> u32 {
        self.dice.below(u64::from(self.end)) as u32
    }

    fn absent(&mut self) -> u32 {
        match self.dice.below(3) {
            0 => self.end,
            1 => u32::MAX,
            _ => self.end.saturating_add(self.dice.below(1000) as u32),
        }
    }

    fn newest(&mut self) -> u32 {
        self.recent.last().copied().unwrap_or(0)
    }

    /// Returns one index.
    fn pick(&mut self) -> u32 {
        match self.temper {
            Temper::Eager => self.newest(),
            Temper::Stubborn => self.any(),
            Temper::Narrow => 0,
            Temper::Wild => self.absent(),
            Temper::Random => match self.dice.below(4) {
                0 => self.newest(),
                1 => self.absent(),
                _ => self.any(),
            },
        }
    }

    /// Returns a list where up to `n` indices were requested.
    fn list(&mut self, n: usize) -> Vec<u32> {
        // Return more than requested, but bounded: the tests stay fast.
        let n = n.min(1 << 12) as u64;
        let len = match self.temper {
            Temper::Stubborn => 0,
            Temper::Random => self.dice.below(2 * n + 2),
            _ => 2 * n + 2,
        };
        (0..len).map(|_| self.pick()).collect()
    }

    fn says_yes(&mut self) -> bool {
        match self.temper {
            Temper::Eager | Temper::Narrow => true,
            Temper::Stubborn => false,
            Temper::Random | Temper::Wild => self.dice.below(2) == 0,
        }
    }
}

/// A malicious SSD policy. The seed also decides whether it appends (and the group size), writes through, and
/// admits on reads.
#[derive(Debug)]
pub struct HostileSsd {
    seed: u64,
    malice: Malice,
}

impl HostileSsd {
    /// The policy of `seed`, for `slots` slots.
    #[must_use]
    pub fn new(seed: u64, slots: usize) -> Self {
        Self { seed, malice: Malice::new(seed, slots) }
    }
}

impl SlotPolicy for HostileSsd {
    fn read(&mut self, _page: PageId, _from: Option<Location>, _access: Access, _now: Millis) {}

    fn consider(
        &mut self,
        _page: PageId,
        _cause: Cause,
        _free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        let slot = SlotId(self.malice.pick());
        let is_usable = usable(slot);
        match self.malice.dice.below(4) {
            _ if !self.malice.says_yes() => Verdict::Reject,
            0 => Verdict::AdmitOver(SlotId(self.malice.pick())),
            1 if is_usable => Verdict::AdmitOver(slot),
            _ => Verdict::AdmitFree,
        }
    }

    fn inserted(&mut self, _page: PageId, slot: SlotId, _now: Millis) {
        self.malice.note(slot.0);
    }

    fn removed(&mut self, _page: PageId, _evicted: bool, _now: Millis) {}

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        // Include eligible slots: otherwise admissions would rarely replace a page.
        let any = (0..self.malice.end.min(1 << 12)).map(SlotId).filter(|slot| eligible(*slot)).take(k / 2);
        if self.malice.says_yes() {
            out.extend(any);
        }
        out.extend(self.malice.list(k).into_iter().map(SlotId));
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        out.extend(self.malice.list(n).into_iter().map(SlotId));
    }

    fn write_through(&self) -> bool {
        self.seed / 5 % 4 == 3
    }

    fn admits_on_read(&self) -> bool {
        self.seed / 20 % 2 == 1
    }

    fn append_group(&self) -> Option<usize> {
        [Some(64), None, Some(usize::MAX), Some(0)][(self.seed / 5 % 7 % 4) as usize]
    }

    fn second_chance(&self, slot: SlotId) -> bool {
        match self.malice.temper {
            Temper::Eager | Temper::Narrow => true,
            Temper::Stubborn => false,
            Temper::Random | Temper::Wild => mixed(self.malice.dice.0 ^ u64::from(slot.0)).is_multiple_of(2),
        }
    }
}

impl SlotReport for HostileSsd {}

/// A malicious pool policy.
#[derive(Debug)]
pub struct HostilePool {
    malice: Malice,
    tracked: Vec<bool>,
    count: usize,
}

impl HostilePool {
    /// The policy of `seed`, for `frames` frames.
    #[must_use]
    pub fn new(seed: u64, frames: usize) -> Self {
        Self { malice: Malice::new(seed, frames), tracked: vec![false; frames], count: 0 }
    }

    fn track(&mut self, frame: FrameId, on: bool) {
        if let Some(tracked) = self.tracked.get_mut(frame.at()) {
            self.count = self.count + usize::from(on) - usize::from(*tracked);
            *tracked = on;
        }
    }
}

impl FramePolicy for HostilePool {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.track(frame, true);
        self.malice.note(frame.0);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        self.malice.note(frame.0);
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.malice.clone().list(4).into_iter().map(FrameId).find(|frame| accept(*frame))
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let frame = FrameId(self.malice.pick());
        // May return a frame that `evictable` refused.
        (evictable(frame) || self.malice.says_yes()).then_some(frame)
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        self.track(frame, false);
    }

    fn dirtied(&mut self, frame: FrameId) {
        self.malice.note(frame.0);
    }

    fn cleaned(&mut self, _frame: FrameId, _location: Location, _reason: CleanReason) {}

    fn clean_set(&mut self, _depth: usize, max: usize, state: StateOf<'_>, out: &mut Vec<FrameId>) {
        for frame in self.malice.list(max).into_iter().map(FrameId) {
            state(frame);
            out.push(frame);
        }
    }

    fn len(&self) -> usize {
        self.count
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The hostile policies of a seed.
#[derive(Debug)]
pub struct Hostile(u64);

impl Hostile {
    /// The policies of `seed`. Each seed takes a few bytes for the life of the process.
    pub fn of(seed: u64) -> &'static Self {
        static KNOWN: Mutex<BTreeMap<u64, &'static Hostile>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock();
        known.entry(seed).or_insert_with(|| Box::leak(Box::new(Self(seed))))
    }

    fn named(name: &str) -> Option<&'static Self> {
        Some(Self::of(name.strip_prefix("hostile:")?.parse().ok()?))
    }
}

impl PoolPolicyFactory for Hostile {
    fn name(&self) -> String {
        format!("hostile:{}", self.0)
    }

    fn build(&self, params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        Box::new(HostilePool::new(self.0, params.frames))
    }
}

impl SsdPolicyFactory for Hostile {
    fn name(&self) -> String {
        format!("hostile:{}", self.0)
    }

    fn build(&self, params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
        Box::new(HostileSsd::new(self.0, params.slots))
    }
}

static CATALOGUE: Catalogue = Catalogue {
    pool_names: &[],
    pool: |name| Hostile::named(name).map(|policy| policy as _),
    ssd_names: &[],
    ssd: |name| Hostile::named(name).map(|policy| policy as _),
};

/// Makes `hostile:SEED` a name of a pool policy and of an SSD policy in this process.
pub fn register() {
    pagetier_policy::register(&CATALOGUE);
}
