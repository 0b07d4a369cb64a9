//! The default pool policy: GreedyDual by a page's uses, and by the cost of reading it again and of writing
//! it if dirty (`gd2l:frequency,write-back`), with one term that adapts.
//!
//! A page on the HDD costs more to read and write than one on the SSD. This extra cost counts in full while
//! the HDD is the busier device, and otherwise for a fifth. Where the pages in use fit the SSD, the pages
//! that are not there are those that it rejects, because they are hardly used. At full cost one of them would
//! outlast 65 uses of a page on the SSD, while the SSD is the device that everything waits for. Should this
//! make the HDD the busier device, its extra cost counts in full again.
//!
//! Without an SSD, no other policy remembers the pages that left. So the pool does, until it first uses an
//! SSD: a page that returns has the uses that it had, as far as a sketch knows them.

use super::{FramePolicy, Gd2lOptions, Gd2lWeighted};
use crate::collections::sketch::Sketch;
use crate::{Access, CleanReason, Costs, FrameId, Location, PageId};

/// The share of the HDD's extra cost that counts while the SSD is the busier device. At full cost, TPC-C at
/// 15:10:1 costs 20% more on the store; by the ratio of their times, some 0.5 there, 3%.
const HDD_IDLER: f64 = 0.2;

/// What the pool remembers counts half after this many operations per frame: device times after as many reads
/// and writes, uses of pages that left after as many departures. With fewer, the share follows the SSD's own
/// bursts of writes; with more, a change of workload is followed late. Without an SSD, remembering uses saves
/// 1% of the device time and 1.4% of the misses; for ten departures, half of the misses and none of the time.
const PERIOD: usize = 3;

/// The uses of pages that left the pool.
#[derive(Debug)]
struct Past {
    uses: Sketch,
    /// Departures since the counts were halved.
    departures: usize,
}

/// The default pool policy; see the module's text.
#[derive(Debug)]
pub struct AdaptivePool {
    ranked: Gd2lWeighted,
    costs: Costs,
    frames: usize,
    /// Recent device time in milliseconds: of the SSD, and of the HDD.
    spent_ms: [f64; 2],
    /// Reads and writes since the share was computed.
    since: usize,
    /// The share of the HDD's extra cost that counts, from 0 to 1.
    share: f64,
    /// `None` once an SSD is in use.
    past: Option<Past>,
}

impl AdaptivePool {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs) -> Self {
        let ranked = Gd2lWeighted::new(frames, costs, Gd2lOptions::BOTH);
        let past = Some(Past::new(frames));
        Self { ranked, costs, frames, spent_ms: [0.0; 2], since: 0, share: 1.0, past }
    }

    /// The share of the HDD's extra cost over the SSD's that counts, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Records a read or write that took `ms` on the device of `location`.
    fn spend(&mut self, location: Location, ms: f64) {
        if location == Location::Ssd {
            // Its policy remembers the pages.
            self.past = None;
        }
        self.spent_ms[usize::from(location == Location::Hdd)] += ms;
        self.since += 1;
        if self.since >= PERIOD * self.frames {
            self.since = 0;
            let [ssd, hdd] = self.spent_ms;
            self.share = if hdd < ssd { HDD_IDLER } else { 1.0 };
            self.spent_ms = [ssd / 2.0, hdd / 2.0];
            self.reprice();
        }
    }

    /// Lets the costs count.
    fn reprice(&mut self) {
        let Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms } = self.costs;
        let part = |hdd: f64, ssd: f64| ssd + self.share * (hdd - ssd);
        self.ranked.set_costs(Costs {
            hdd_read_ms: part(hdd_read_ms, ssd_read_ms),
            hdd_write_ms: part(hdd_write_ms, ssd_write_ms),
            ..self.costs
        });
    }
}

impl Past {
    fn new(frames: usize) -> Self {
        // The pages that leave in a period, and those in the pool, which have uses from before.
        let uses = Sketch::of_pages((PERIOD + 1) * frames);
        Self { uses, departures: 0 }
    }

    /// Records that `page` leaves a pool of `frames` frames after this many uses.
    fn left(&mut self, page: PageId, uses: u8, frames: usize) {
        self.uses.raise(page, u32::from(uses));
        self.departures += 1;
        if self.departures >= PERIOD * frames {
            self.departures = 0;
            self.uses.halve();
        }
    }
}

impl FramePolicy for AdaptivePool {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        self.spend(location, self.costs.of(location).0);
        let before = self.past.as_ref().map_or(0, |past| past.uses.estimate(page));
        self.ranked.insert_used(frame, location, access, before);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        self.ranked.hit(frame, write);
    }

    fn uses_seen(&self) -> u8 {
        self.ranked.uses_seen()
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.ranked.first_to_go(accept)
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.ranked.victim(evictable)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        self.ranked.remove(frame, evicted);
    }

    fn evicted(&mut self, frame: FrameId, page: PageId) {
        if let Some(past) = &mut self.past {
            past.left(page, self.ranked.uses(frame), self.frames);
        }
        self.remove(frame, true);
    }

    fn dirtied(&mut self, frame: FrameId) {
        self.ranked.dirtied(frame);
    }

    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        self.spend(location, self.costs.of(location).1);
        self.ranked.cleaned(frame, location, reason);
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        self.ranked.ssd_evicted(frame);
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        self.ranked.ssd_invalidated(frame);
    }

    fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        self.ranked.worth_ms(frame)
    }

    fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        self.reprice();
    }

    fn set_frames(&mut self, frames: usize) {
        self.frames = frames;
    }

    fn extra_memory_bytes(&self) -> usize {
        self.past.as_ref().map_or(0, |past| past.uses.memory_bytes())
    }

    fn len(&self) -> usize {
        self.ranked.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.ranked.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    /// A pool of four frames after reads of this many pages from each device.
    fn after(ssd_reads: u32, hdd_reads: u32) -> AdaptivePool {
        let (mut pool, mut pages) = (AdaptivePool::new(4, Costs::PAPER), [PageId::default(); 4]);
        for no in 0..ssd_reads + hdd_reads {
            let location = if no < ssd_reads { Location::Ssd } else { Location::Hdd };
            let frame = if pool.len() == 4 { pool.victim(&mut |_| true).unwrap() } else { FrameId(no) };
            if pool.len() == 4 {
                pool.evicted(frame, pages[frame.at()]);
            }
            pages[frame.at()] = PageId::new(SpaceId(1), no);
            pool.insert(frame, pages[frame.at()], location, Access::Random);
        }
        pool.validate().unwrap();
        pool
    }

    #[test]
    fn the_hdds_extra_cost_counts_in_full_while_it_is_the_busier_device() {
        // One read of 7.2 ms beside eleven of 0.11 ms: the HDD is the busier device.
        let round = 4 * PERIOD as u32;
        assert_eq!(after(round - 1, 1).share(), 1.0);
        assert_eq!(after(0, round).share(), 1.0);
        assert_eq!(after(round, 0).share(), HDD_IDLER);
        // Reads of rounds before count half each time: a round's 0.11 ms, halved again and again, sum to less
        // than twice that.
        let share = after(10 * round - 1, 1).share();
        assert!(share == 1.0, "{share}");
    }

    #[test]
    fn a_page_on_the_hdd_outlasts_many_uses_of_one_on_the_ssd_only_at_full_cost() {
        for (share, first) in [(1.0, 1), (0.2, 0)] {
            let mut pool = AdaptivePool::new(2, Costs::PAPER);
            pool.share = share;
            pool.reprice();
            pool.insert(FrameId(0), PageId::new(SpaceId(1), 0), Location::Hdd, Access::Random);
            pool.insert(FrameId(1), PageId::new(SpaceId(1), 1), Location::Ssd, Access::Random);
            pool.dirtied(FrameId(1));
            (0..9).for_each(|_| pool.hit(FrameId(1), true));
            // 7.2 ms, or a fifth of the way from 0.11 to 7.2 ms; against ten times (0.11 + 0.27) ms.
            assert_eq!(pool.victim(&mut |_| true), Some(FrameId(first)), "{share}");
        }
    }

    #[test]
    fn a_share_that_was_high_for_a_while_leaves_nothing_behind() {
        let mut pool = AdaptivePool::new(3, Costs::PAPER);
        let page = |no| PageId::new(SpaceId(1), no);
        let use_often = |pool: &mut AdaptivePool, frame| (0..9).for_each(|_| pool.hit(frame, false));
        pool.insert(FrameId(0), page(0), Location::Hdd, Access::Random);
        use_often(&mut pool, FrameId(0));
        pool.share = 0.01;
        pool.reprice();
        // Another page joins the first one's queue, whose H was 72 ms.
        pool.insert(FrameId(1), page(1), Location::Hdd, Access::Random);
        use_often(&mut pool, FrameId(1));
        let ten_uses = 10.0 * (0.11 + 0.01 * 7.09);
        for frame in [0, 1] {
            let worth = pool.worth_ms(FrameId(frame)).unwrap();
            assert!((worth - ten_uses).abs() < 1e-9, "{frame}: {worth}");
        }
        pool.validate().unwrap();
    }

    #[test]
    fn new_costs_keep_the_share() {
        let mut pool = AdaptivePool::new(1, Costs::PAPER);
        pool.share = 0.5;
        pool.set_costs(Costs { hdd_read_ms: 9.0, ssd_read_ms: 1.0, ..Costs::PAPER });
        pool.insert(FrameId(0), PageId::new(SpaceId(1), 0), Location::Hdd, Access::Random);
        assert_eq!(pool.worth_ms(FrameId(0)), Some(5.0));
    }

    #[test]
    fn a_page_that_returns_has_its_uses_until_an_ssd_is_in_use() {
        let page = |no| PageId::new(SpaceId(1), no);
        for (location, outlives) in [(Location::Hdd, true), (Location::Ssd, false)] {
            let mut pool = AdaptivePool::new(2, Costs::PAPER);
            pool.insert(FrameId(0), page(0), Location::Hdd, Access::Random);
            (0..3).for_each(|_| pool.hit(FrameId(0), false));
            pool.evicted(FrameId(0), page(0));
            pool.insert(FrameId(1), page(1), location, Access::Random);
            pool.insert(FrameId(0), page(0), Location::Hdd, Access::Random);
            // Four uses and this one, or this one alone.
            let uses = if outlives { 5.0 } else { 1.0 };
            let worth = pool.worth_ms(FrameId(0)).unwrap();
            assert!((worth - uses * Costs::PAPER.hdd_read_ms).abs() < 1e-9, "{worth}");
            assert_eq!(pool.extra_memory_bytes() > 0, outlives);
        }
    }
}
