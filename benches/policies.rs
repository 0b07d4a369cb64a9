//! The cost of a policy's decisions by the number of frames: `cargo bench --bench policies [-- --quick]`.
//!
//! Every operation of the pool policies should take the same time in a pool of any size. The share of a
//! policy's lists that the CPU caches hold does depend on the size, and would hide a dependence of the
//! operation itself. There are therefore two series:
//!
//! - **near**: the lists are as long as the pool, but the operations touch only a part that the caches can
//!   hold or prefetch. Hits cycle through 64 frames spread over the pool, which soon become neighbours in the
//!   list. Pages are inserted and discarded in 64 further frames. The page that replaces a victim is written
//!   to the SSD at once, which makes it the next victim in GD2L; in the other policies, victims lie in memory
//!   in list order, so the next one has been prefetched. This series shows the operation itself, and should
//!   be flat.
//! - **far**: the same operations on frames in random order, as a large pool sees them, cache misses
//!   included.
//!
//! | operation | meaning |
//! | --- | --- |
//! | `hit` | one hit |
//! | `discard` | a page inserted and discarded |
//! | `replace` | the victim found and evicted, another page inserted in its frame; near, also cleaned to the SSD |
//! | `use` (SSD policies) | one logical read reported |
//! | `miss` (SSD policies) | a page read, considered for the SSD and evicted from the pool; far, with admissions and renewals of the zone |
//!
//! The table at the end compares each figure with that of 1,000 frames.

mod common;

use common::Length;
use common::board::Board;
use criterion::Criterion;
use pagetier_policy::ssd::CacOptions;
use pagetier_policy::{
    Access, Cause, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, Location, Millis, PageId,
    PoolPolicy, SlotId, SlotPolicy, SlotPolicyParams, SpaceId, SsdPolicy, Verdict,
};
use pagetier_rivals::POOL_POLICIES;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// The number of frames that the near series cycles through.
const NEAR: u32 = 64;
/// The number of pre-drawn references.
const DRAWS: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Series {
    Near,
    Far,
}

impl Series {
    const BOTH: [Self; 2] = [Self::Near, Self::Far];

    fn name(self) -> &'static str {
        if self == Self::Near { "near" } else { "far" }
    }

    /// A sequence of frames (or pages) below `count` to touch.
    fn draws(self, count: u32) -> Vec<u32> {
        let mut rng = SmallRng::seed_from_u64(u64::from(count));
        if self == Self::Far {
            return (0..DRAWS).map(|_| rng.random_range(0..count)).collect();
        }
        let mut round: Vec<u32> = (0..NEAR).map(|i| count / NEAR * i).collect();
        round.shuffle(&mut rng);
        round
    }

    /// All frames below `count`, in the initial order of the lists.
    fn order(self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        if self == Self::Far {
            order.shuffle(&mut SmallRng::seed_from_u64(1));
        }
        order
    }
}

fn main() {
    pagetier_rivals::register();
    let mut criterion = Criterion::default().configure_from_args();
    let board = Board::default();
    // A short run leaves out the large pools.
    for frames in SIZES.into_iter().take(Length::selected().pick(2, SIZES.len(), SIZES.len())) {
        for series in Series::BOTH {
            for &policy in POOL_POLICIES {
                pool_benches(&mut criterion, &board, policy, series, frames);
            }
            for policy in [SsdPolicy::Cac(CacOptions::CAC), SsdPolicy::Cac(CacOptions::CC)] {
                ssd_benches(&mut criterion, &board, policy, series, frames);
            }
        }
    }
    criterion.final_summary();
    board.print("policy, operation, series, frames", |name| {
        let without = name.rsplit_once('/').map_or(name, |(rest, _)| rest);
        format!("{without}/{}", SIZES[0])
    });
}

/// The page of `frame`; every other page has an SSD copy.
fn page_in(frame: u32) -> (PageId, Location) {
    (PageId::new(SpaceId(1), frame), if frame.is_multiple_of(2) { Location::Ssd } else { Location::Hdd })
}

fn insert(policy: &mut dyn FramePolicy, frame: u32) {
    let (page, home) = page_in(frame);
    policy.insert(FrameId(frame), page, home, Access::Random);
}

fn pool_benches(criterion: &mut Criterion, board: &Board, choice: PoolPolicy, series: Series, frames: u32) {
    let name = &choice.to_string();
    let mut policy = choice.build(&FramePolicyParams::new((frames + NEAR) as usize, Costs::PAPER));
    series.order(frames).into_iter().for_each(|frame| insert(policy.as_mut(), frame));

    // Measured first, while the lists are in order.
    bench(criterion, board, [name, "replace", series.name()], frames, |operations| {
        for _ in 0..operations {
            let Some(victim) = policy.victim(&mut |_| true) else { continue };
            policy.remove(victim, true);
            insert(policy.as_mut(), victim.0);
            if series == Series::Near {
                policy.cleaned(victim, Location::Hdd, CleanReason::Replacement);
                policy.cleaned(victim, Location::Ssd, CleanReason::Replacement);
            }
        }
    });
    let draws = series.draws(frames);
    bench(criterion, board, [name, "hit", series.name()], frames, |operations| {
        for &frame in draws.iter().cycle().take(operations as usize) {
            policy.hit(FrameId(frame), false);
        }
    });
    bench(criterion, board, [name, "discard", series.name()], frames, |operations| {
        for (frame, spare) in
            draws.iter().cycle().zip((frames..frames + NEAR).cycle()).take(operations as usize)
        {
            // Far: a frame from the middle of the lists makes room.
            let frame = if series == Series::Far { *frame } else { spare };
            policy.remove(FrameId(frame), false);
            insert(policy.as_mut(), frame);
        }
    });
    policy.validate().expect("sound");
}

fn ssd_benches(criterion: &mut Criterion, board: &Board, choice: SsdPolicy, series: Series, slots: u32) {
    // Twice as many pages as slots, and outqueue entries for the pages without slots.
    let params = SlotPolicyParams::new(Costs::PAPER, slots as usize, slots as usize / 4);
    let name = &choice.to_string();
    let policy = choice.build(&params);
    let mut ssd = Ssd { policy, slots, now: 0, zone: Vec::new() };
    for page in series.order(slots) {
        ssd.fill(page);
    }
    let draws = series.draws(2 * slots);
    bench(criterion, board, [name, "use", series.name()], slots, |operations| {
        for &page in draws.iter().cycle().take(operations as usize) {
            ssd.now += 1;
            ssd.policy.logical(page_of(page), 1, Location::Ssd, Millis(ssd.now / 64));
        }
    });
    bench(criterion, board, [name, "miss", series.name()], slots, |operations| {
        for &page in draws.iter().cycle().take(operations as usize) {
            ssd.miss(page, series);
        }
    });
    ssd.policy.validate().expect("sound");
}

/// An SSD policy with the tier's actions around it.
struct Ssd {
    policy: Box<dyn SlotPolicy>,
    slots: u32,
    now: u64,
    zone: Vec<SlotId>,
}

fn page_of(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

impl Ssd {
    /// Puts page `no` into the slot of the same number.
    fn fill(&mut self, no: u32) {
        let now = Millis(0);
        self.policy.read(page_of(no), Some(Location::Hdd), Access::Random, now);
        self.policy.inserted(page_of(no), SlotId(no), now);
        self.policy.left_pool(page_of(no), now);
    }

    fn miss(&mut self, no: u32, series: Series) {
        self.now += 1;
        let (page, now) = (page_of(no), Millis(self.now / 64));
        self.policy.read(page, Some(Location::Hdd), Access::Random, now);
        match self.policy.consider(page, Cause::Evicted, 0, &mut |_| true, now) {
            Verdict::AdmitOver(slot) if series == Series::Far => self.policy.inserted(page, slot, now),
            verdict => drop(black_box(verdict)),
        }
        self.policy.left_pool(page, now);
        if series == Series::Far && self.now.is_multiple_of(u64::from(self.slots / 10)) {
            self.zone.clear();
            self.policy.start_zone(self.slots as usize / 10, &mut |_| true, now, &mut self.zone);
        }
    }
}

fn bench(criterion: &mut Criterion, board: &Board, name: [&str; 3], frames: u32, mut work: impl FnMut(u64)) {
    let name = format!("{}/{frames}", name.join("/"));
    let mut group = criterion.benchmark_group("policies");
    let length = Length::selected();
    group.sample_size(length.pick(10, 20, 20)).nresamples(length.pick(2000, 100_000, 100_000));
    group.warm_up_time(Duration::from_millis(length.pick(1, 200, 200)));
    group.measurement_time(Duration::from_millis(length.pick(2, 500, 500)));
    group.bench_function(&name, |b| b.iter_custom(|n| board.time(&name, n, || work(n))));
    group.finish();
}
