//! The cost of the default policies' simulations: `cargo bench --bench adaptive [-- --quick]`.
//!
//! The default, `auto+auto`, runs beside itself pinned to its initial settings, which simulates nothing. Both
//! take turns over the same requests. The table has the medians, the median of the ratios of neighbouring
//! turns, and the ratio of the best turns, which other work on the machine disturbs least. Time is the
//! CPU time of the one thread that does all the work.
//!
//! | row | meaning |
//! | --- | --- |
//! | `tiers, LEVEL` | both policies alone (`pagetier_ghost::Tiers`), by the share of misses; a quarter of the requests write |
//! | `SLOTS slots, filling` | the same with a large SSD, until the SSD is full; nearly all requests miss |
//! | `SLOTS slots, full` | the same once the SSD is full |
//!
//! The last columns are the difference of the best turns and that of all turns, per missed request, in
//! nanoseconds: the best turns lack the work that is done only occasionally. A second table has the memory
//! that the simulations take, relative to the pool's.

mod common;

use common::Length;
use pagetier::{PageId, SpaceId};
use pagetier_ghost::{Reference, TierParams, Tiers};
use pagetier_policy::{
    Access, Costs, FrameId, FramePolicyParams, Location, Millis, PoolPolicy, SlotPolicyParams, SsdPolicy,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

const PAGE_BYTES: u64 = 16_384;
const PAIRS: [(&str, &str); 2] = [("gd2l:frequency,write-back", "auto:pin=plain"), ("auto", "auto")];

fn main() {
    pagetier_rivals::register();
    let length = Length::selected();
    let rounds = length.pick(1, 15, 61);
    println!(
        "| requests | pinned, ns | adaptive, ns | ratio | of bests | missed | ns more per miss | in all turns |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, pages) in [("tiers, few missed", 2_100), ("tiers, half", 4_000), ("tiers, most", 60_000)] {
        let mut subjects = PAIRS.map(|pair| Alone::new(pair, pages));
        turns(name, rounds, &mut subjects, |subject| subject.apply(50_000));
    }
    for slots in [1 << 20, 10_000_000].into_iter().take(length.pick(0, 1, 2)) {
        large(slots);
    }
    println!("\n| frames | slots | simulations, of the pool's memory |\n| --- | --- | --- |");
    for (frames, slots) in [(1_000, 10_000), (4_000, 16_000), (65_536, 655_360)] {
        println!("| {frames} | {slots} | {:.2}% |", 100.0 * share_of_memory(frames, slots));
    }
}

/// The rows of an SSD of `slots` slots, whose pool has a twentieth of that.
fn large(slots: u32) {
    let mut subjects = PAIRS.map(|pair| Alone::empty(pair, slots / 20, slots, 10 * slots));
    // No turn finds the SSD full: a page takes a slot when it leaves the pool.
    turns(&format!("{slots} slots, filling"), 20, &mut subjects, |subject| subject.apply(slots / 21));
    for subject in &mut subjects {
        black_box(subject.apply(slots / 2));
    }
    turns(&format!("{slots} slots, full"), 20, &mut subjects, |subject| subject.apply(slots / 20));
}

/// Lets the pinned and the adaptive subject take turns. `run` returns nanoseconds and misses per request.
fn turns<S>(name: &str, rounds: usize, subjects: &mut [S; 2], mut run: impl FnMut(&mut S) -> (f64, f64)) {
    for subject in subjects.iter_mut() {
        black_box(run(subject));
    }
    let (mut all, mut ratios, mut missed) = ([Vec::new(), Vec::new()], Vec::new(), 0.0);
    for _ in 0..rounds {
        let [pinned, adaptive] = subjects.each_mut().map(&mut run);
        all[0].push(pinned.0);
        all[1].push(adaptive.0);
        ratios.push(adaptive.0 / pinned.0);
        missed = adaptive.1;
    }
    let [pinned, adaptive] = all.each_ref().map(|all| all.iter().copied().fold(f64::INFINITY, f64::min));
    let [pinned_sum, adaptive_sum] = all.each_ref().map(|all| all.iter().sum::<f64>());
    let per_miss = |ns: f64| if missed > 0.0 { format!("{:.0}", ns / missed) } else { String::new() };
    let (of_bests, of_all) = (adaptive - pinned, (adaptive_sum - pinned_sum) / rounds as f64);
    let [pinned_median, adaptive_median] = all.map(median);
    println!(
        "| {name} | {pinned_median:.0} | {adaptive_median:.0} | {:.3} | {:.3} | {:.1}% | {} | {} |",
        median(ratios),
        adaptive / pinned,
        100.0 * missed,
        per_miss(of_bests),
        per_miss(of_all)
    );
}

/// The policies without a store.
struct Alone {
    tiers: Tiers,
    pages: u32,
    rng: SmallRng,
}

impl Alone {
    const FRAMES: u32 = 2_000;
    const SLOTS: u32 = 20_000;

    fn new(pair: (&str, &str), pages: u32) -> Self {
        let mut alone = Self::empty(pair, Self::FRAMES, Self::SLOTS, pages);
        alone.apply(20 * Self::SLOTS);
        alone
    }

    /// With an empty pool and SSD.
    fn empty((pool, ssd): (&str, &str), frames: u32, slots: u32, pages: u32) -> Self {
        let tiers = Tiers::new(
            TierParams::new(frames, slots),
            pool_policy(pool).build(&FramePolicyParams::new(frames as usize, Costs::PAPER)),
            ssd_policy(ssd).build(&slot_params(frames as usize, slots as usize)),
        );
        Self { tiers, pages, rng: SmallRng::seed_from_u64(1) }
    }

    fn apply(&mut self, requests: u32) -> (f64, f64) {
        let Self { tiers, pages, rng } = self;
        let draws = (0..requests).map(|_| {
            let page = PageId::new(SpaceId(1), rng.random_range(0..*pages));
            if rng.random_bool(0.25) { Reference::write(page) } else { Reference::read(page) }
        });
        let draws: Vec<Reference> = draws.collect();
        let before = tiers.counts().pool_misses;
        let began = cpu_ns();
        draws.into_iter().for_each(|reference| tiers.apply(reference));
        let ns = cpu_ns() - began;
        let missed = tiers.counts().pool_misses - before;
        (ns / f64::from(requests), missed as f64 / f64::from(requests))
    }
}

/// The share of memory that the adaptive policies take beyond the pinned ones, whose tables reserve the same
/// for their records.
fn share_of_memory(frames: usize, slots: usize) -> f64 {
    let before = ssd_policy("cac").build(&slot_params(frames, slots));
    let mut ssd = ssd_policy("auto").build(&slot_params(frames, slots));
    let mut pool = pool_policy("auto").build(&FramePolicyParams::new(frames, Costs::PAPER));
    // Ten times as many pages as the tables have room for fill every one of them.
    for no in 0..10 * slots as u32 {
        let (page, frame) = (PageId::new(SpaceId(1), no), FrameId(no % frames as u32));
        ssd.read(page, Some(Location::Hdd), Access::Random, Millis(0));
        ssd.left_pool(page, Millis(0));
        pool.insert(frame, page, Location::Hdd, Access::Random);
    }
    let more = ssd.memory_bytes().saturating_sub(before.memory_bytes()) + pool.extra_memory_bytes();
    more as f64 / (frames as f64 * PAGE_BYTES as f64)
}

fn slot_params(frames: usize, slots: usize) -> SlotPolicyParams {
    SlotPolicyParams::new(Costs::PAPER, slots, frames)
}

fn pool_policy(name: &str) -> PoolPolicy {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn ssd_policy(name: &str) -> SsdPolicy {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The CPU time of this thread, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
