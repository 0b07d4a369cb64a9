//! Experts weighted by regret: the second family of adaptive policies, kept for comparison with the default.
//!
//! LeCaR (Vietri et al., HotStorage 2018) with whole policies as experts: all events are reported to each,
//! and a draw by their weights selects the one that decides. The pages that an expert evicted are remembered,
//! as many as the tier has places. When such a page is read, the expert loses weight: the more, the sooner
//! after the eviction and the more expensive the read.
//!
//! Every expert keeps its full tables, which a store could not afford: this is for the suite only.

use pagetier_policy::{
    Access, Cause, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, Location, Millis, PageId,
    PoolPolicy, SlotId, SlotPolicy, SlotPolicyParams, SsdPolicy, Verdict,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The experts of the pool.
const POOL: [&str; 3] = ["gd2l:frequency,write-back", "gd2l", "lru"];

/// The experts of the SSD.
const SSD: [&str; 3] = ["cc", "cac:ageing=5,write-at-hand,rewrite,sketch", "lru2"];

/// LeCaR's learning rate.
const LEARNING_RATE: f64 = 0.45;

/// The share of a regret that remains after as many decisions as the tier has places.
const DISCOUNT: f64 = 0.005;

/// The minimum weight of an expert, so that each can recover.
const WEIGHT_MIN: f64 = 0.01;

/// The experts' weights, and the pages that each evicted recently.
#[derive(Debug)]
struct Weights<const N: usize> {
    weights: [f64; N],
    given_up: [FxHashMap<PageId, u64>; N],
    oldest: [VecDeque<(PageId, u64)>; N],
    places: usize,
    decisions: u64,
    rng: SmallRng,
    drawn: usize,
}

impl<const N: usize> Weights<N> {
    fn new(places: usize) -> Self {
        Self {
            weights: [1.0 / N as f64; N],
            given_up: std::array::from_fn(|_| FxHashMap::default()),
            oldest: std::array::from_fn(|_| VecDeque::new()),
            places: places.max(1),
            decisions: 0,
            rng: SmallRng::seed_from_u64(1),
            drawn: 0,
        }
    }

    /// Records that the drawn expert evicted `page`, and draws an expert for the next decision.
    fn gave_up(&mut self, page: PageId) {
        self.decisions += 1;
        self.given_up[self.drawn].insert(page, self.decisions);
        self.oldest[self.drawn].push_back((page, self.decisions));
        if self.oldest[self.drawn].len() > self.places
            && let Some((page, at)) = self.oldest[self.drawn].pop_front()
            && self.given_up[self.drawn].get(&page) == Some(&at)
        {
            self.given_up[self.drawn].remove(&page);
        }
        self.draw();
    }

    fn draw(&mut self) {
        let mut left = self.rng.random::<f64>();
        self.drawn = N - 1;
        for (at, weight) in self.weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                self.drawn = at;
                break;
            }
        }
    }

    /// Records a read of `page`; `cost` is relative to the most expensive read.
    fn missed(&mut self, page: PageId, cost: f64) {
        for at in 0..N {
            let Some(since) = self.given_up[at].remove(&page) else { continue };
            let age = (self.decisions - since) as f64 / self.places as f64;
            self.weights[at] *= (-LEARNING_RATE * cost * DISCOUNT.powf(age)).exp();
        }
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight = (*weight / sum).max(WEIGHT_MIN));
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// Methods that pass their arguments on to every expert.
macro_rules! report_to_all {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $name(&mut self, $($argument: $type),*) {
            self.experts.iter_mut().for_each(|expert| expert.$name($($argument),*));
        })*
    };
}

/// The pool's experts.
#[derive(Debug)]
pub(crate) struct RegretPool {
    experts: [Box<dyn FramePolicy>; POOL.len()],
    weights: Weights<{ POOL.len() }>,
    pages: Vec<PageId>,
    costs: Costs,
}

impl RegretPool {
    pub(crate) fn new(params: &FramePolicyParams, costs: Costs, frames: usize) -> Self {
        let expert = |name: &str| match name.parse::<PoolPolicy>() {
            Ok(policy) => policy.build(params),
            Err(error) => unreachable!("{error}"),
        };
        let pages = vec![PageId::default(); frames];
        Self { experts: POOL.map(expert), weights: Weights::new(frames), pages, costs }
    }
}

impl FramePolicy for RegretPool {
    report_to_all! {
        fn hit(frame: FrameId, write: bool);
        fn dirtied(frame: FrameId);
        fn cleaned(frame: FrameId, home: Location, reason: CleanReason);
        fn ssd_evicted(frame: FrameId);
        fn ssd_invalidated(frame: FrameId);
    }

    fn insert(&mut self, frame: FrameId, page: PageId, home: Location, access: Access) {
        let read_ms = if home == Location::Ssd { self.costs.ssd_read_ms } else { self.costs.hdd_read_ms };
        self.weights.missed(page, read_ms / self.costs.hdd_read_ms);
        self.pages[frame.at()] = page;
        self.experts.iter_mut().for_each(|expert| expert.insert(frame, page, home, access));
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.experts[self.weights.drawn].first_to_go(accept)
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.experts[self.weights.drawn].victim(evictable)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        let drawn = self.weights.drawn;
        for (at, expert) in self.experts.iter_mut().enumerate() {
            // The others did not choose it: they keep their inflation.
            expert.remove(frame, evicted && at == drawn);
        }
        if evicted {
            self.weights.gave_up(self.pages[frame.at()]);
        }
    }

    fn len(&self) -> usize {
        self.experts[0].len()
    }

    fn validate(&self) -> Result<(), String> {
        self.experts.iter().try_for_each(|expert| expert.validate())
    }
}

/// The SSD's experts.
#[derive(Debug)]
pub(crate) struct RegretSsd {
    experts: [Box<dyn SlotPolicy>; SSD.len()],
    weights: Weights<{ SSD.len() }>,
    zone: usize,
    /// Scratch: the slots of a zone that one expert names.
    named: Vec<SlotId>,
}

impl RegretSsd {
    pub(crate) fn new(params: &SlotPolicyParams) -> Self {
        let expert = |name: &str| match name.parse::<SsdPolicy>() {
            Ok(policy) => policy.build(params),
            Err(error) => unreachable!("{error}"),
        };
        Self { experts: SSD.map(expert), weights: Weights::new(params.slots), zone: 1, named: Vec::new() }
    }
}

impl SlotPolicy for RegretSsd {
    report_to_all! {
        fn logical(page: PageId, n: u32, home: Location, now: Millis);
        fn wrote(page: PageId, home: Location, now: Millis);
        fn inserted(page: PageId, slot: SlotId, now: Millis);
        fn copied_home(page: PageId, slot: SlotId);
        fn left_pool(page: PageId, now: Millis);
        fn forget(page: PageId);
    }

    fn read(&mut self, page: PageId, from: Option<Location>, access: Access, now: Millis) {
        if from == Some(Location::Hdd) {
            self.weights.missed(page, 1.0);
        }
        self.experts.iter_mut().for_each(|expert| expert.read(page, from, access, now));
    }

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
    ) -> Verdict {
        let expert = &mut self.experts[self.weights.drawn];
        // The store starts a new zone for all experts when that of one is exhausted; each has its own zone.
        self.named.clear();
        expert.next_victims(1, now, &mut self.named);
        if free_slots == 0 && self.named.is_empty() {
            expert.start_zone(self.zone, &mut |_| true, now, &mut self.named);
        }
        let verdict = expert.consider(page, cause, free_slots, usable, now);
        if verdict == Verdict::Reject {
            self.weights.gave_up(page);
        }
        verdict
    }

    fn removed(&mut self, page: PageId, evicted: bool, now: Millis) {
        self.experts.iter_mut().for_each(|expert| expert.removed(page, evicted, now));
        if evicted {
            self.weights.gave_up(page);
        }
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        self.zone = k;
        for at in 0..self.experts.len() {
            self.named.clear();
            self.experts[at].start_zone(k, eligible, now, &mut self.named);
            if at == self.weights.drawn {
                out.extend_from_slice(&self.named);
            }
        }
    }

    fn next_victims(&mut self, n: usize, now: Millis, out: &mut Vec<SlotId>) {
        self.experts[self.weights.drawn].next_victims(n, now, out);
    }

    fn memory_bytes(&self) -> usize {
        self.experts.iter().map(|expert| expert.memory_bytes()).sum()
    }

    fn validate(&self) -> Result<(), String> {
        self.experts.iter().try_for_each(|expert| expert.validate())
    }
}
