//! The generated workloads: kinds of reference streams that page stores serve, with parameters that depend on
//! a seed.

use super::stack::Stack;
use crate::zipf::Ranks;
use pagetier_ghost::{Reference, Use};
use pagetier_policy::{PageId, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Appends all references of a workload.
type Generator = fn(&mut Stream);

/// The kinds of workloads, with their names in tables.
pub(crate) const KINDS: [(&str, Generator); 17] = [
    ("stack-narrow", stack_narrow),
    ("stack-middle", stack_middle),
    ("stack-wide", stack_wide),
    ("stack-far", stack_far),
    ("phases", phases),
    ("day-night", day_night),
    ("tenants", tenants),
    ("drift", drift),
    ("append", append),
    ("cyclic", cyclic),
    ("loop-hot", loop_hot),
    ("queue", queue),
    ("latest", latest),
    ("scans", scans),
    ("zipf", zipf),
    ("moving", moving),
    ("index", index),
];

/// The space of a workload's main table; other tables have spaces of their own.
const TABLE: SpaceId = SpaceId(1);
const SECOND: SpaceId = SpaceId(2);
const THIRD: SpaceId = SpaceId(3);
const FOURTH: SpaceId = SpaceId(4);

/// The share of references by scans in the workloads that are scanned beside.
const SCANNED: f64 = 0.25;

/// Which references write.
#[derive(Clone, Copy, Debug)]
enum Writes {
    /// References to any page, with this probability.
    Anywhere(f64),
    /// References to a third of the pages; overall, a reference writes with this probability, and no more
    /// often than it is to one of them.
    SomePages(f64),
}

/// A reference stream under construction.
#[derive(Debug)]
pub(crate) struct Stream {
    rng: SmallRng,
    writes: Writes,
    /// The number of the parameter set: 0, 1 or 2.
    set: usize,
    /// Pages of the main table.
    pages: u32,
    length: usize,
    out: Vec<Reference>,
}

impl Stream {
    /// Generates `length` references of kind number `kind`, with parameter set `set` of this seed.
    pub(crate) fn generate(kind: usize, set: usize, seed: u64, length: usize) -> Vec<Reference> {
        // The shifts keep the three numbers apart, so that no two workloads draw from the same stream.
        let mut rng = SmallRng::seed_from_u64((seed << 16) ^ ((kind as u64) << 8) ^ set as u64);
        // Kind and set together choose: no kind has one share of writes throughout.
        let share = [0.08, 0.25, 0.5][(set + kind) % 3] * rng.random_range(0.7..1.3);
        let writes = if (set + kind / 3).is_multiple_of(2) {
            Writes::Anywhere(share)
        } else {
            Writes::SomePages(share)
        };
        let pages = rng.random_range(8_000..16_000);
        // A third of the workloads are scanned beside.
        let scanned = (kind + set).is_multiple_of(3);
        // The scans are added later, and the whole has the length that was asked for.
        let length = if scanned { length - (length as f64 * SCANNED) as usize } else { length };
        let out = Vec::with_capacity(length + 64);
        let mut stream = Self { rng, writes, set, pages, length, out };
        KINDS[kind].1(&mut stream);
        // A generator checks the length only between its steps, which may append several references.
        stream.out.truncate(length);
        if scanned { stream.scanned() } else { stream.out }
    }

    /// The stream with scans woven in, of parts of the main table and of a table that is only scanned.
    fn scanned(mut self) -> Vec<Reference> {
        let mean = [100.0, 400.0, 2_000.0][self.set];
        // A scan begins so often that scans of this mean length have their share of all references.
        let share = SCANNED / (1.0 - SCANNED) / mean;
        let mut out = Vec::with_capacity(self.length * 2);
        for reference in std::mem::take(&mut self.out) {
            out.push(reference);
            if self.chance(share) {
                let space = if self.chance(0.5) { TABLE } else { FOURTH };
                let (start, length) = (self.below(self.pages), self.exponential(mean) as u32 + 1);
                let read = |no| Reference { sequential: true, ..Reference::read(PageId::new(space, no)) };
                out.extend((start..start + length).map(|no| read(no % self.pages)));
            }
        }
        out
    }

    fn more(&self) -> bool {
        self.out.len() < self.length
    }

    /// The share of the stream generated so far, from 0 to 1.
    fn progress(&self) -> f64 {
        self.out.len() as f64 / self.length as f64
    }

    /// The set's value, multiplied by a random factor from 0.8 to 1.25.
    fn pick(&mut self, of: [f64; 3]) -> f64 {
        of[self.set] * self.rng.random_range(0.8..1.25)
    }

    fn chance(&mut self, share: f64) -> bool {
        self.rng.random_bool(share.clamp(0.0, 1.0))
    }

    fn below(&mut self, n: u32) -> u32 {
        self.rng.random_range(0..n.max(1))
    }

    /// Draws from the exponential distribution with this mean.
    fn exponential(&mut self, mean: f64) -> f64 {
        // The random number may be 0, but not 1: so the logarithm is finite.
        -mean * (1.0 - self.rng.random::<f64>()).ln()
    }

    fn read(&mut self, space: SpaceId, no: u32) {
        self.out.push(Reference::read(PageId::new(space, no)));
    }

    fn write(&mut self, space: SpaceId, no: u32) {
        self.out.push(Reference::write(PageId::new(space, no)));
    }

    fn create(&mut self, space: SpaceId, no: u32) {
        self.out.push(Reference { page: PageId::new(space, no), used: Use::Create, sequential: false });
    }

    /// Reads or writes a page, according to the workload's share of writes.
    fn touch(&mut self, space: SpaceId, no: u32) {
        let writes = match self.writes {
            Writes::Anywhere(share) => self.chance(share),
            // A third of the pages takes all writes, hence three times the share. `chance` clamps that to
            // 1, so a share above a third is not reached.
            Writes::SomePages(share) => scattered(no, u32::MAX).is_multiple_of(3) && self.chance(3.0 * share),
        };
        if writes { self.write(space, no) } else { self.read(space, no) }
    }

    /// Reads or writes a page of the main table's first `pages`, by a rank that is scattered over them.
    fn touch_ranked(&mut self, ranks: &Ranks, pages: u32) {
        let rank = ranks.draw(&mut self.rng);
        self.touch(TABLE, scattered(rank, pages));
    }
}

/// Scatters the ranks below `n`, so that neighbours are far apart. Nearly one-to-one.
fn scattered(rank: u32, n: u32) -> u32 {
    let hash = rank.wrapping_mul(0x9E37_79B1);
    // The multiplication alone would place consecutive ranks a constant distance apart. The xor breaks
    // that pattern, which could fall in step with clusters or with a scan.
    ((u64::from(hash ^ (hash >> 15)) * u64::from(n)) >> 32) as u32
}

/// References by LRU stack depth, which `depth` draws as a share of the pages.
fn stacked(stream: &mut Stream, mut depth: impl FnMut(&mut Stream) -> f64) {
    let pages = stream.pages;
    let mut stack = Stack::new(pages, stream.length);
    while stream.more() {
        let at = depth(stream) * f64::from(pages);
        // A draw beyond the stack takes the deepest page, so the tail of the distribution loops over cold
        // ones.
        let page = stack.take(at as usize);
        stream.touch(TABLE, page);
    }
}

fn stack_narrow(stream: &mut Stream) {
    let mean = stream.pick([0.015, 0.03, 0.06]);
    let anywhere = stream.pick([0.0, 0.02, 0.05]);
    stacked(stream, |s| if s.chance(anywhere) { s.rng.random() } else { s.exponential(mean) });
}

fn stack_middle(stream: &mut Stream) {
    let mean = stream.pick([0.09, 0.14, 0.22]);
    stacked(stream, |s| s.exponential(mean));
}

fn stack_wide(stream: &mut Stream) {
    let near = stream.pick([0.75, 0.55, 0.35]);
    stacked(stream, |s| if s.chance(near) { s.exponential(0.04) } else { s.rng.random() });
}

fn stack_far(stream: &mut Stream) {
    let (middle, spread) = (stream.pick([0.2, 0.4, 0.6]), stream.pick([0.05, 0.08, 0.1]));
    let near = stream.pick([0.6, 0.4, 0.25]);
    stacked(stream, |s| {
        // Two uniform numbers add up to a triangle around the middle.
        let far = middle + spread * (s.rng.random::<f64>() + s.rng.random::<f64>() - 1.0);
        if s.chance(near) { s.exponential(0.02) } else { far }
    });
}

/// A hot set that changes as a whole a few times.
fn phases(stream: &mut Stream) {
    let hot_pages = (f64::from(stream.pages) * stream.pick([0.15, 0.3, 0.5])) as u32;
    let times = [3.0, 6.0, 12.0][stream.set];
    let ranks = Ranks::new(hot_pages, stream.pick([0.7, 0.9, 0.6]));
    let pages = stream.pages;
    while stream.more() {
        let phase = (stream.progress() * times) as u32;
        let page = if stream.chance(0.9) {
            let rank = ranks.draw(&mut stream.rng);
            // The hot set of each phase begins where that of the one before ends.
            scattered(rank + phase * hot_pages, pages)
        } else {
            stream.below(pages)
        };
        stream.touch(TABLE, page);
    }
}

/// Skewed transactions by day; by night a sequential batch over a part of the pages.
fn day_night(stream: &mut Stream) {
    let pages = stream.pages;
    let ranks = Ranks::new(pages, stream.pick([0.8, 1.0, 0.9]));
    let days = [3.0, 5.0, 8.0][stream.set];
    let (night, part) = (stream.pick([0.25, 0.3, 0.4]), stream.pick([0.8, 0.5, 0.3]));
    let batch = (f64::from(pages) * part.min(1.0)) as u32;
    let mut at = 0;
    while stream.more() {
        if (stream.progress() * days).fract() < 1.0 - night {
            stream.touch_ranked(&ranks, pages);
        } else {
            // The batch does not declare itself: a policy has to cope with a scan that no hint announces.
            at = (at + 1) % batch.max(1);
            stream.touch(TABLE, at);
        }
    }
}

/// Tenants with tables of their own, each busy for a while.
fn tenants(stream: &mut Stream) {
    let count = [4, 8, 20][stream.set];
    let each = stream.pages / count;
    let ranks = Ranks::new(each, stream.pick([0.6, 0.8, 1.0]));
    let turns = [8.0, 16.0, 30.0][stream.set];
    let busy_share = stream.pick([0.8, 0.6, 0.7]);
    while stream.more() {
        // 7 has no factor in common with any of the counts, so each tenant has its turn.
        let busy = (stream.progress() * turns) as u32 * 7 % count;
        let tenant = if stream.chance(busy_share) { busy } else { stream.below(count) };
        let rank = ranks.draw(&mut stream.rng);
        stream.touch(TABLE, tenant * each + scattered(rank, each));
    }
}

/// A hot window that slides over the pages.
fn drift(stream: &mut Stream) {
    let pages = stream.pages;
    let window = (f64::from(pages) * stream.pick([0.1, 0.25, 0.4])) as u32;
    let travels = stream.pick([0.8, 1.5, 3.0]);
    let ranks = Ranks::new(window, stream.pick([0.5, 0.8, 0.3]));
    while stream.more() {
        let front = (stream.progress() * travels * f64::from(pages)) as u32;
        let rank = ranks.draw(&mut stream.rng);
        let page =
            if stream.chance(0.93) { (front + scattered(rank, window)) % pages } else { stream.below(pages) };
        stream.touch(TABLE, page);
    }
}

/// A table that only grows, read in bursts while its pages are new, beside master data.
fn append(stream: &mut Stream) {
    let master = stream.pages / 4;
    let ranks = Ranks::new(master, stream.pick([0.7, 0.9, 1.0]));
    let (grows, reach) = (stream.pick([0.03, 0.05, 0.08]), stream.pick([150.0, 500.0, 1500.0]));
    let burst = stream.pick([6.0, 3.0, 10.0]);
    let mut tail = stream.pages / 2;
    while stream.more() {
        if stream.chance(grows) {
            tail += 1;
            stream.create(SECOND, tail);
            stream.write(SECOND, tail);
        } else if stream.chance(0.5) {
            let back = stream.exponential(reach) as u32;
            let page = tail - back.min(tail);
            for _ in 0..1 + stream.exponential(burst) as u32 / 2 {
                stream.touch(SECOND, page);
            }
        } else if stream.chance(0.1) {
            let page = stream.below(tail);
            stream.read(SECOND, page);
        } else {
            stream.touch_ranked(&ranks, master);
        }
    }
}

/// Batches that repeatedly update the same pages in the same order.
fn cyclic(stream: &mut Stream) {
    let round = (f64::from(stream.pages) * [0.3, 0.6, 1.0][stream.set]) as u32;
    let other = Ranks::new(stream.pages, stream.pick([0.8, 0.9, 0.7]));
    let share = stream.pick([0.7, 0.8, 0.9]);
    let mut at = 0;
    while stream.more() {
        if stream.chance(share) {
            // Each page returns after a whole round, so LRU misses all of them once a round exceeds the
            // cache.
            at = (at + 1) % round;
            stream.read(SECOND, at);
            if stream.chance(0.7) {
                stream.write(SECOND, at);
            }
        } else {
            stream.touch_ranked(&other, stream.pages);
        }
    }
}

/// A loop of reads, and a hot set.
fn loop_hot(stream: &mut Stream) {
    let round = (f64::from(stream.pages) * stream.pick([0.2, 0.5, 0.9])) as u32;
    let hot = stream.pages / 5;
    let ranks = Ranks::new(hot, stream.pick([0.8, 0.6, 0.9]));
    let share = stream.pick([0.4, 0.5, 0.6]);
    let mut at = 0;
    while stream.more() {
        if stream.chance(share) {
            at = (at + 1) % round;
            stream.read(SECOND, at);
        } else {
            stream.touch_ranked(&ranks, hot);
        }
    }
}

/// A queue, written at one end and read at the other some time later, beside a table.
fn queue(stream: &mut Stream) {
    let lag = (f64::from(stream.pages) * stream.pick([0.05, 0.2, 0.5])) as u32;
    let ranks = Ranks::new(stream.pages / 2, stream.pick([0.8, 0.9, 1.0]));
    let share = stream.pick([0.15, 0.2, 0.3]);
    // Pages are used again in a circle, like a log's.
    let round = 2 * lag;
    let mut tail = lag;
    while stream.more() {
        if stream.chance(share) {
            tail += 1;
            // Several records share a page, and each of them writes it. A policy may clean the page in
            // between, which then costs another write.
            for _ in 0..3 {
                stream.write(THIRD, tail % round);
            }
            stream.read(THIRD, (tail - lag) % round);
        } else {
            stream.touch_ranked(&ranks, stream.pages / 2);
        }
    }
}

/// References that prefer the newest pages.
fn latest(stream: &mut Stream) {
    let ranks = Ranks::new(stream.pages, stream.pick([0.7, 0.9, 1.05]));
    let grows = stream.pick([0.005, 0.015, 0.03]);
    let mut newest = stream.pages;
    while stream.more() {
        if stream.chance(grows) {
            newest += 1;
            stream.create(TABLE, newest);
        }
        let back = ranks.draw(&mut stream.rng);
        // The newest page is never below the number of ranks, so this does not underflow.
        stream.touch(TABLE, newest - back);
    }
}

/// Skewed references, and scans of ranges; one parameter set declares them as sequential.
fn scans(stream: &mut Stream) {
    let pages = stream.pages;
    let ranks = Ranks::new(pages, stream.pick([0.8, 1.0, 0.9]));
    let often = stream.pick([0.0005, 0.002, 0.004]);
    let long = stream.pick([1500.0, 300.0, 100.0]);
    let declared = stream.set == 1;
    while stream.more() {
        if stream.chance(often) {
            let (start, length) = (stream.below(pages), stream.exponential(long) as u32 + 1);
            for no in start..start + length {
                let page = PageId::new(TABLE, no % pages);
                stream.out.push(Reference { page, used: Use::Read, sequential: declared });
            }
        } else {
            stream.touch_ranked(&ranks, pages);
        }
    }
}

/// A hot set that does not change.
fn zipf(stream: &mut Stream) {
    let pages = stream.pages;
    let ranks = Ranks::new(pages, stream.pick([0.6, 0.85, 1.05]));
    while stream.more() {
        stream.touch_ranked(&ranks, pages);
    }
}

/// Skewed references whose pages exchange their ranks, two at a time.
fn moving(stream: &mut Stream) {
    let pages = stream.pages;
    let ranks = Ranks::new(pages, stream.pick([0.9, 0.8, 1.0]));
    let exchanges = stream.pick([0.005, 0.02, 0.06]);
    let mut page_of: Vec<u32> = (0..pages).map(|rank| scattered(rank, pages)).collect();
    while stream.more() {
        if stream.chance(exchanges) {
            let (a, b) = (stream.below(pages), stream.below(pages));
            page_of.swap(a as usize, b as usize);
        }
        let rank = ranks.draw(&mut stream.rng);
        stream.touch(TABLE, page_of[rank as usize]);
    }
}

/// Index lookups from the root to a leaf and a row, and some range scans over leaves.
fn index(stream: &mut Stream) {
    let leaves = stream.pages / 3;
    let inner = (leaves / 60).max(1);
    let keys = Ranks::new(leaves, stream.pick([0.3, 0.6, 0.9]));
    let ranges = stream.pick([0.0, 0.05, 0.15]);
    while stream.more() {
        let leaf = scattered(keys.draw(&mut stream.rng), leaves);
        stream.read(SECOND, 0);
        stream.read(SECOND, 1 + leaf % inner);
        if stream.chance(ranges) {
            for no in leaf..leaf + 8 {
                stream.read(THIRD, no % leaves);
            }
        } else {
            stream.touch(THIRD, leaf);
            // A row is nowhere near its neighbours in the index.
            stream.touch(TABLE, scattered(leaf ^ 0x5555, stream.pages));
        }
    }
}
