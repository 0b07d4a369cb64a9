//! Policies of one's own: SIEVE for the pool, and first in, first out for the SSD.
//!
//! SIEVE (Zhang et al., NSDI 2024) keeps pages in the order in which they arrived, and a bit per page that a
//! hit sets. A hand moves from the oldest page to the newest; it clears the bits that it finds set, and
//! evicts the first page without one. The SSD's policy admits every page that leaves, over the one that came
//! first.
//!
//! ```sh
//! cargo run --release --example own_policy
//! ```
//!
//! The program reads a store under both, and under LRU. A test checks them against what their callers rely
//! on.

use pagetier::device::{MemoryDevice, SharedDevice};
use pagetier::policy::{
    Access, Catalogue, Cause, CleanReason, FrameId, FramePolicy, FramePolicyParams, Millis,
    PoolPolicyFactory, SlotId, SlotPolicy, SlotPolicyParams, SlotReport, SsdPolicyFactory, Usable, Verdict,
    ZonePercent, register,
};
use pagetier::{Location, PageId, PageStore, PoolPolicy, SsdPolicy};
use std::collections::BTreeMap;
use std::sync::Arc;

/// SIEVE's queue: by the number of its arrival, each page's frame and its bit.
#[derive(Debug, Default)]
struct Sieve {
    queue: BTreeMap<u64, (FrameId, bool)>,
    /// By frame, the number of its page's arrival.
    arrived: BTreeMap<u32, u64>,
    arrivals: u64,
    /// Where the hand continues.
    hand: u64,
}

impl Sieve {
    /// The queue from the hand on, then from the oldest page to the hand.
    fn in_turn(&self) -> impl Iterator<Item = (u64, FrameId, bool)> + '_ {
        let around = self.queue.range(self.hand..).chain(self.queue.range(..self.hand));
        around.map(|(at, (frame, bit))| (*at, *frame, *bit))
    }
}

impl FramePolicy for Sieve {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.remove(frame, false);
        self.queue.insert(self.arrivals, (frame, false));
        self.arrived.insert(frame.0, self.arrivals);
        self.arrivals += 1;
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        // Hits are reported late, in batches: the page may have left.
        if let Some(entry) = self.arrived.get(&frame.0).and_then(|at| self.queue.get_mut(at)) {
            entry.1 = true;
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        // A page whose bit is set goes in the hand's next round.
        let first = self.in_turn().filter(|(_, _, bit)| !bit);
        let second = self.in_turn().filter(|(_, _, bit)| *bit);
        first.chain(second).map(|(_, frame, _)| frame).find(|frame| accept(*frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        let Some(at) = self.arrived.remove(&frame.0) else { return };
        if evicted {
            // The hand has passed the pages up to this one, and all of them if this one's bit was set.
            let passed: Vec<u64> = self.in_turn().map(|(no, ..)| no).take_while(|no| *no != at).collect();
            let all = if self.queue[&at].1 { self.queue.keys().copied().collect() } else { passed };
            for no in all {
                self.queue.entry(no).and_modify(|entry| entry.1 = false);
            }
            self.hand = at + 1;
        }
        self.queue.remove(&at);
    }

    fn dirtied(&mut self, _frame: FrameId) {}

    fn cleaned(&mut self, _frame: FrameId, _location: Location, _reason: CleanReason) {}

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn validate(&self) -> Result<(), String> {
        let agree =
            self.arrived.iter().all(|(frame, at)| self.queue.get(at).is_some_and(|e| e.0.0 == *frame));
        if agree && self.arrived.len() == self.queue.len() { Ok(()) } else { Err(format!("{self:?}")) }
    }
}

/// The SSD's pages in the order in which they came.
#[derive(Debug, Default)]
struct Fifo {
    queue: BTreeMap<u64, (PageId, SlotId)>,
    by_page: BTreeMap<PageId, u64>,
    arrivals: u64,
    /// The only slots that may be evicted now, the oldest first.
    zone: Vec<SlotId>,
}

impl SlotPolicy for Fifo {
    fn read(&mut self, _page: PageId, _from: Option<Location>, _access: Access, _now: Millis) {}

    fn consider(
        &mut self,
        _page: PageId,
        _cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        self.zone.iter().copied().find(|slot| usable(*slot)).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis) {
        self.removed(page, false, now);
        self.queue.insert(self.arrivals, (page, slot));
        self.by_page.insert(page, self.arrivals);
        self.arrivals += 1;
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        if let Some((_, slot)) = self.by_page.remove(&page).and_then(|at| self.queue.remove(&at)) {
            self.zone.retain(|candidate| *candidate != slot);
        }
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        let slots = self.queue.values().map(|(_, slot)| *slot);
        self.zone = slots.filter(|slot| eligible(*slot)).take(k).collect();
        out.extend(&self.zone);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        out.extend(self.zone.iter().take(n));
    }
}

impl SlotReport for Fifo {
    fn memory_bytes(&self) -> usize {
        self.queue.len() * size_of::<(u64, (PageId, SlotId), PageId, u64)>()
    }

    fn validate(&self) -> Result<(), String> {
        if self.queue.len() == self.by_page.len() { Ok(()) } else { Err(format!("{self:?}")) }
    }
}

#[derive(Debug)]
struct Own;

impl PoolPolicyFactory for Own {
    fn name(&self) -> String {
        "sieve".to_owned()
    }

    fn build(&self, _params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        Box::new(Sieve::default())
    }
}

impl SsdPolicyFactory for Own {
    fn name(&self) -> String {
        "fifo".to_owned()
    }

    fn build(&self, _params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
        Box::new(Fifo::default())
    }
}

/// Makes the policies known by name, for configuration files and command lines.
pub(crate) static CATALOGUE: Catalogue = Catalogue {
    pool_names: &["sieve"],
    pool: |name| (name == "sieve").then_some(&Own),
    ssd_names: &["fifo"],
    ssd: |name| (name == "fifo").then_some(&Own),
};

/// Reads 40,000 pages of 1,000, most of them from the first 200, and returns the share found in memory.
async fn hit_ratio(pool: PoolPolicy, ssd: SsdPolicy) -> Result<f64, Box<dyn std::error::Error>> {
    let device = |name: &str| Arc::new(MemoryDevice::new(name, 0)) as SharedDevice;
    let builder = PageStore::builder().in_memory(Arc::default()).hdd(device("hdd")).ssd(device("ssd"));
    let builder = builder.pool_bytes(8 << 20).ssd_bytes(8 << 20);
    let store = builder.pool_policy(pool).ssd_policy(ssd).open().await?;
    let space = store.spaces().create("pages").await?;
    for _ in 0..1_000 {
        store.allocate(space).await?;
    }
    store.sync().await?;
    let before = store.stats().pool;
    let mut drawn = 1_u64;
    for no in 0..40_000 {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let among = if no % 4 == 0 { 1_000 } else { 200 };
        store.get(PageId::new(space, (drawn >> 33) as u32 % among)).await?;
    }
    let now = store.stats().pool;
    store.close().await?;
    let (hits, misses) = ((now.hits - before.hits) as f64, (now.misses - before.misses) as f64);
    Ok(hits / (hits + misses))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    register(&CATALOGUE);
    println!("sieve and fifo: {:.1}% hits", 100.0 * hit_ratio("sieve".parse()?, "fifo".parse()?).await?);
    println!(
        "lru and fifo:   {:.1}% hits",
        100.0 * hit_ratio(PoolPolicy::Lru, SsdPolicy::Custom(&Own, ZonePercent::DEFAULT)).await?
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_testing::conformance;

    #[test]
    fn both_policies_keep_their_word() {
        conformance::check_pool(|params| PoolPolicyFactory::build(&Own, params));
        conformance::check_ssd(|params| SsdPolicyFactory::build(&Own, params));
    }
}
