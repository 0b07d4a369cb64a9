//! CFDC, CASA and SAWC (Ou, Jin & Härder, section 3): hand-computed traces, and comparison with the paper's
//! pseudo-code over lists that are searched.

use crate::buffer::{Buffer, Done, page};
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, FrameState, Location, PageId,
    SpaceId,
};
use pagetier_rivals::pool::{Casa, Cfdc, Sawc, WindowPercent};
use proptest::prelude::*;

fn f(n: u32) -> FrameId {
    FrameId(n)
}

fn params(frames: usize) -> FramePolicyParams {
    FramePolicyParams { cluster_pages: 8, ..FramePolicyParams::new(frames, Costs::PAPER) }
}

fn run(buffer: &mut Buffer, requests: &[i32]) {
    requests.iter().for_each(|&no| drop(buffer.request(no.unsigned_abs(), no < 0)));
}

/// Creates a CFDC whose pages are all dirty and, but for the one used last, in P. `pages` go into frames 0,
/// 1, ... and enter their clusters in that order.
fn clustered(pages: &[u32]) -> Cfdc {
    let percent = WindowPercent::new(100).unwrap();
    let mut cfdc = Cfdc::new(64, percent, 8);
    for (frame, &no) in pages.iter().chain(&[99_999]).enumerate() {
        cfdc.insert(f(frame as u32), page(no), Location::Hdd, Access::Random);
        cfdc.dirtied(f(frame as u32));
    }
    cfdc
}

#[test]
fn formula_1_by_hand() {
    // The paper's clusters {0, 1, 2, 3} and {7, 5, 4, 6}, here 8 apart, have IPD 3 and 5 and timestamps 1 and
    // 5; the global time is 8.
    let cfdc = clustered(&[0, 1, 2, 3, 15, 13, 12, 14]);
    assert_eq!(cfdc.priority(f(0)), Some(3.0 / (16.0 * 7.0)));
    assert_eq!(cfdc.priority(f(7)), Some(5.0 / (16.0 * 3.0)));
    // A cluster of one page has IPD 1; the newest cluster has infinite priority.
    let cfdc = clustered(&[0, 8, 16]);
    assert_eq!([0, 1, 2].map(|n| cfdc.priority(f(n))), [1.0 / 2.0, 1.0 / 1.0, f64::INFINITY].map(Some));
    // The page in W has no priority.
    assert_eq!(cfdc.priority(f(3)), None);
}

#[test]
fn a_page_that_leaves_brings_its_neighbours_together() {
    let mut cfdc = clustered(&[0, 6, 1, 40]);
    assert_eq!(cfdc.priority(f(0)), Some((6.0 + 5.0) / (9.0 * 3.0)));
    // A discarded page is not a hit: the timestamp does not change.
    cfdc.remove(f(1), false);
    assert_eq!(cfdc.priority(f(0)), Some(1.0 / (4.0 * 3.0)));
    cfdc.validate().unwrap();
}

#[test]
fn a_hit_stamps_the_cluster_anew_and_changes_places_with_the_lru_page_of_w() {
    let mut cfdc = clustered(&[0, 1, 40]);
    // Frame 3 holds the only page of W. The page is dirty, and is demoted before frame 0 is promoted, which
    // makes the global time 4.
    cfdc.hit(f(0), false);
    assert_eq!([0, 3].map(|n| cfdc.priority(f(n))), [None, Some(f64::INFINITY)]);
    assert_eq!(cfdc.priority(f(1)), Some(f64::INFINITY), "stamped 4");
    assert_eq!(cfdc.priority(f(2)), Some(1.0 / (4.0 - 3.0)));
}

#[test]
fn a_page_demoted_to_a_cluster_leaves_its_stamp() {
    let mut cfdc = clustered(&[0, 40]);
    cfdc.insert(f(10), page(1), Location::Hdd, Access::Random);
    cfdc.dirtied(f(10));
    cfdc.insert(f(11), page(80), Location::Hdd, Access::Random);
    // Page 1 entered at time 4 the cluster that page 0 created at time 1.
    assert_eq!(cfdc.priority(f(10)), Some(1.0 / (4.0 * 3.0)));
}

#[test]
fn clean_pages_go_before_dirty_clusters_and_these_one_at_a_time() {
    let mut b = Buffer::new(params(8), "cfdc-75");
    // W holds two pages. P holds the clean pages 7, 30 and 100, and the dirty pages 40, 1 and 8, each in its
    // own cluster, of priority 1/2, 1/1 and infinity at time 3.
    run(&mut b, &[7, 30, -40, -1, -8, 100, 101, 102]);
    assert_eq!(b.order(), [7, 30, 100, 40, 1, 8, 101, 102]);
    assert_eq!(b.request(103, false), Done { written: vec![], evicted: Some(7) });
    // A demoted clean page is the newest of P's clean pages.
    assert_eq!(b.order(), [30, 100, 101, 40, 1, 8, 102, 103]);
    // A page flushed for another reason goes to their midpoint.
    b.flush(40);
    assert_eq!(b.order(), [40, 30, 100, 101, 1, 8, 102, 103]);
}

#[test]
fn the_victim_cluster_is_written_whole_and_evicted_page_by_page() {
    let mut b = Buffer::new(params(8), "cfdc-75");
    // W holds two pages. The others are dirty: 1, 3, 2 in cluster 0, 16 and 17 in cluster 2, 32 in cluster 4.
    run(&mut b, &[-1, -16, -3, -17, -2, -32, -64, -65]);
    // IPD, n² and timestamp: cluster 0 has 2 + 1, 9 and 1; cluster 2 has 1, 4 and 2; cluster 4 has 1, 1 and
    // 6, the global time. 1 / (4 · 4) = 0.0625 is below 3 / (9 · 5) = 0.0667: cluster 2 goes first.
    assert_eq!(b.order(), [16, 17, 1, 3, 2, 32, 64, 65]);
    assert_eq!(b.request(100, false), Done { written: vec![16, 17], evicted: Some(16) });
    // The first request demoted 64 to make room in W. 17 is clean and is evicted without a write, before the
    // clean page 100, which came later.
    assert_eq!(b.request(101, false), Done { written: vec![], evicted: Some(17) });
    assert_eq!(b.request(102, false).written, [1, 3, 2]);
}

#[test]
fn a_cluster_of_which_a_page_went_is_the_victim_cluster_until_it_is_hit() {
    let mut cfdc = clustered(&[0, 7, 40, 41, 42]);
    // Cluster 5: 2 / (9 · 2); cluster 0: 7 / (4 · 4).
    assert_eq!(cfdc.victim(&mut |_| true), Some(f(2)));
    // If a page other than the first choice is evicted (the first may be pinned), its cluster becomes the
    // victim cluster.
    cfdc.remove(f(0), true);
    assert_eq!((cfdc.priority(f(1)), cfdc.victim(&mut |_| true)), (Some(0.0), Some(f(1))));
    cfdc.hit(f(1), true);
    assert_eq!(cfdc.victim(&mut |_| true), Some(f(2)));
    cfdc.remove(f(2), true);
    assert_eq!(cfdc.priority(f(4)), Some(0.0));
    cfdc.hit(f(4), false);
    assert!(cfdc.priority(f(3)).unwrap() > 0.0);
}

#[test]
fn clusters_do_not_span_spaces() {
    let mut cfdc = Cfdc::new(8, WindowPercent::new(100).unwrap(), 8);
    for space in 0..3 {
        cfdc.insert(f(space), PageId::new(SpaceId(space), 0), Location::Hdd, Access::Random);
        cfdc.dirtied(f(space));
    }
    let mut set = Vec::new();
    cfdc.clean_set(1, 9, &mut |_| FrameState::Dirty, &mut set);
    assert_eq!(set, [f(0)]);
}

#[test]
fn the_cleaner_gets_no_more_than_it_asks_for() {
    let mut cfdc = clustered(&[0, 1, 2, 3, 4, 40, 41]);
    let mut set = |depth, max| {
        let mut out = Vec::new();
        cfdc.clean_set(depth, max, &mut |_| FrameState::Dirty, &mut out);
        out.iter().map(|frame| frame.0).collect::<Vec<_>>()
    };
    // The set includes the whole cluster in which the depth is reached, up to `max` pages.
    assert_eq!(set(1, 99), [0, 1, 2, 3, 4]);
    assert_eq!(set(6, 99), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(set(6, 3), [0, 1, 2]);
    assert_eq!((set(0, 99).len(), set(1, 0).len(), set(99, 99).len()), (0, 0, 8));
}

/// Algorithm 1 and Function SelectVictimPr, with formula (1) computed for every cluster at every step.
#[derive(Default)]
struct Algorithm1 {
    working: Vec<(u32, bool)>,
    working_pages: usize,
    clean: Vec<u32>,
    clusters: Vec<Cluster>,
    globaltime: u64,
    /// Pages that an earlier pick wrote: they are clean and are evicted next.
    written: Vec<u32>,
}

struct Cluster {
    no: u32,
    /// The pages in order of entering.
    pages: Vec<u32>,
    timestamp: u64,
    ipd_is_0: bool,
}

impl Cluster {
    fn ipd(&self) -> u64 {
        match self.pages.len() {
            1 => 1,
            _ => self.pages.windows(2).map(|two| u64::from(two[0].abs_diff(two[1]))).sum(),
        }
    }

    /// Formula (1), as a fraction.
    fn priority(&self, globaltime: u64) -> (u128, u128) {
        let n = self.pages.len() as u128;
        match self.ipd_is_0 {
            true => (0, 1),
            false => (u128::from(self.ipd()), n * n * u128::from(globaltime - self.timestamp)),
        }
    }
}

impl Algorithm1 {
    fn demote_min_w(&mut self) {
        let (no, dirty) = self.working.remove(0);
        if !dirty {
            return self.clean.push(no);
        }
        self.globaltime += 1;
        match self.clusters.iter_mut().find(|c| c.no == no / 8) {
            Some(cluster) => cluster.pages.push(no),
            None => self.clusters.push(Cluster {
                no: no / 8,
                pages: vec![no],
                timestamp: self.globaltime,
                ipd_is_0: false,
            }),
        }
    }

    fn enter_w(&mut self, no: u32, dirty: bool) {
        self.working.push((no, dirty));
    }

    /// Handles a hit in P.
    fn promote(&mut self, no: u32, write: bool) {
        if self.working.len() == self.working_pages {
            self.demote_min_w();
        }
        let mut dirty = false;
        for list in [&mut self.clean, &mut self.written] {
            list.retain(|&p| p != no);
        }
        if let Some(cluster) = self.clusters.iter_mut().find(|c| c.pages.contains(&no)) {
            cluster.pages.retain(|&p| p != no);
            cluster.timestamp = self.globaltime;
            cluster.ipd_is_0 = false;
            dirty = true;
        }
        self.clusters.retain(|c| !c.pages.is_empty());
        self.enter_w(no, dirty || write);
    }

    /// Writes a cluster when its first page is chosen; its other pages are the next victims.
    fn select_victim(&mut self) -> Done {
        if !self.written.is_empty() {
            return Done { written: vec![], evicted: Some(self.written.remove(0)) };
        }
        if !self.clean.is_empty() {
            return Done { written: vec![], evicted: Some(self.clean.remove(0)) };
        }
        let now = self.globaltime;
        let lower = |a: &Cluster, b: &Cluster| {
            let ((over_a, under_a), (over_b, under_b)) = (a.priority(now), b.priority(now));
            (over_a * under_b)
                .cmp(&(over_b * under_a))
                .then(a.timestamp.cmp(&b.timestamp))
                .then(a.no.cmp(&b.no))
        };
        let lowest = (0..self.clusters.len()).min_by(|&a, &b| lower(&self.clusters[a], &self.clusters[b]));
        match lowest {
            Some(at) => {
                let mut pages = self.clusters.remove(at).pages;
                let done = Done { written: pages.clone(), evicted: Some(pages.remove(0)) };
                self.written = pages;
                done
            }
            None => {
                let (no, dirty) = self.working.remove(0);
                Done { written: Vec::from_iter(dirty.then_some(no)), evicted: Some(no) }
            }
        }
    }

    fn request(&mut self, no: u32, write: bool, full: bool) -> Done {
        if let Some(at) = self.working.iter().position(|p| p.0 == no) {
            let (_, dirty) = self.working.remove(at);
            self.enter_w(no, dirty || write);
            return Done::default();
        }
        let buffered = self.clean.contains(&no)
            || self.written.contains(&no)
            || self.clusters.iter().any(|c| c.pages.contains(&no));
        let done = if full && !buffered { self.select_victim() } else { Done::default() };
        self.promote(no, write);
        done
    }

    fn len(&self) -> usize {
        let in_clusters: usize = self.clusters.iter().map(|c| c.pages.len()).sum();
        self.working.len() + self.clean.len() + self.written.len() + in_clusters
    }
}

/// c_R = 0.2, c_W = 0.8.
const COSTS: Costs = Costs { hdd_read_ms: 1.0, hdd_write_ms: 4.0, ssd_read_ms: 1.0, ssd_write_ms: 1.0 };

/// Loads pages 0 to `clean`-1 as clean and the next `dirty` pages as dirty, in that order, into the frames of
/// their numbers.
fn loaded(policy: &mut dyn FramePolicy, clean: u32, dirty: u32) {
    for n in 0..clean + dirty {
        policy.insert(f(n), page(n), Location::Hdd, Access::Random);
        if n >= clean {
            policy.dirtied(f(n));
        }
    }
}

#[test]
fn tau_rises_in_case_1_and_falls_in_case_2() {
    let mut casa = Casa::new(10, COSTS);
    loaded(&mut casa, 2, 6);
    assert_eq!((casa.list_lens(), casa.tau()), ((2, 6), 0.0));
    // Case 1: 0.2 · 6/2, twice.
    casa.hit(f(0), false);
    casa.hit(f(1), false);
    assert!((casa.tau() - 1.2).abs() < 1e-12);
    // Case 2: 0.8 · 2/6.
    casa.hit(f(5), true);
    assert!((casa.tau() - (1.2 - 0.8 / 3.0)).abs() < 1e-12);
    // Neither case: a read in D, a write in C.
    let tau = casa.tau();
    casa.hit(f(5), false);
    casa.hit(f(0), true);
    casa.dirtied(f(0));
    assert_eq!((casa.list_lens(), casa.tau()), ((1, 7), tau));
    // τ is bounded by 0 and b.
    (0..9).for_each(|_| casa.hit(f(5), true));
    assert_eq!(casa.tau(), 0.0);
    (0..90).for_each(|_| casa.hit(f(1), false));
    assert_eq!(casa.tau(), 10.0);
}

#[test]
fn the_victim_comes_from_the_list_that_tau_says() {
    let mut casa = Casa::new(10, COSTS);
    loaded(&mut casa, 3, 3);
    let first = |casa: &mut Casa| casa.victim(&mut |_| true);
    assert_eq!(first(&mut casa), Some(f(0)));
    // Each hit adds 0.2 to τ; at 3.0 C is not longer than τ.
    for hit in 1..=16 {
        casa.hit(f(0), false);
        let from_clean = casa.tau() < 3.0;
        assert_eq!(first(&mut casa), Some(f(if from_clean { 1 } else { 3 })), "hit {hit}");
    }
    // If all of one list is refused, the victim comes from the other.
    assert_eq!(casa.victim(&mut |frame| frame.0 < 3), Some(f(1)));
    (3..6).for_each(|n| casa.remove(f(n), false));
    assert_eq!(first(&mut casa), Some(f(1)));
}

#[test]
fn the_look_ahead_takes_from_d_until_c_is_long_enough() {
    let mut casa = Casa::new(20, COSTS);
    loaded(&mut casa, 4, 10);
    // τ = 6 and |C| = 4: the look-ahead for reads takes from D until |C| = 7.
    (0..12).for_each(|_| casa.hit(f(0), false));
    assert!((6.0..6.1).contains(&casa.tau()), "{}", casa.tau());
    let mut set = Vec::new();
    casa.clean_set(
        20,
        20,
        &mut |frame| [FrameState::Clean, FrameState::Dirty][usize::from(frame.0 >= 4)],
        &mut set,
    );
    assert_eq!(set.iter().map(|frame| frame.0).collect::<Vec<_>>()[..4], [4, 5, 6, 7]);
    set.clear();
    casa.clean_set(
        5,
        20,
        &mut |frame| [FrameState::Clean, FrameState::Dirty][usize::from(frame.0 >= 4)],
        &mut set,
    );
    assert_eq!(set, [f(4), f(5), f(6)]);
}

#[test]
fn a_page_cleaned_to_go_goes_and_another_waits_at_the_midpoint() {
    let mut casa = Casa::new(20, COSTS);
    loaded(&mut casa, 8, 3);
    casa.cleaned(f(8), Location::Hdd, CleanReason::Replacement);
    casa.cleaned(f(9), Location::Hdd, CleanReason::Replacement);
    casa.cleaned(f(10), Location::Hdd, CleanReason::Recoverability);
    let mut order = Vec::new();
    casa.victim(&mut |frame| {
        order.push(frame.0);
        false
    });
    // Ten pages are clean before the last one: three of them are old, and the third is the midpoint.
    assert_eq!(order, [8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn casa_keeps_its_costs_when_told_nonsense() {
    let mut casa = Casa::new(4, COSTS);
    casa.set_costs(Costs { hdd_read_ms: 0.0, hdd_write_ms: 0.0, ..COSTS });
    loaded(&mut casa, 1, 1);
    casa.hit(f(0), false);
    assert_eq!(casa.tau(), 0.2);
}

/// Returns the pages that the cleaner would write for a look-ahead of one page; every frame from 20 on is
/// clean.
fn clustered_write(sawc: &mut Sawc) -> Vec<u32> {
    let mut set = Vec::new();
    sawc.clean_set(
        1,
        99,
        &mut |frame| [FrameState::Dirty, FrameState::Clean][usize::from(frame.0 >= 20)],
        &mut set,
    );
    set.iter().map(|frame| frame.0).collect()
}

#[test]
fn a_clustered_write_takes_along_what_is_not_updated_more_often() {
    let mut sawc = Sawc::new(32, COSTS, 8);
    // Cluster 0 is 0 to 7, cluster 1 is 8 and 9. Page n is in frame n.
    loaded(&mut sawc, 0, 10);
    (1..3).for_each(|n| sawc.hit(f(n), true));
    (1..8).for_each(|n| sawc.hit(f(n), false));
    // 0 is the victim. 1 and 2 were updated twice; 8 and 9 lie in another cluster.
    assert_eq!(clustered_write(&mut sawc), [0, 3, 4, 5, 6, 7]);
    for n in [0, 3, 4, 5, 6, 7] {
        sawc.cleaned(f(n), Location::Hdd, CleanReason::Replacement);
        sawc.validate().unwrap();
    }
    // 0 is evicted; the others are clean and stay.
    assert_eq!(sawc.victim(&mut |frame| ![1, 2, 8, 9].contains(&frame.0)), Some(f(0)));
    sawc.remove(f(0), true);
    assert_eq!(sawc.casa().list_lens(), (5, 4));
    // 2 is the victim, and 1 is written along, being updated as often.
    (8..10).for_each(|n| sawc.hit(f(n), false));
    sawc.hit(f(2), true);
    sawc.hit(f(1), true);
    (3..8).for_each(|n| sawc.remove(f(n), false));
    (8..10).for_each(|n| sawc.hit(f(n), false));
    assert_eq!(clustered_write(&mut sawc), [2, 1]);
}

#[test]
fn updates_are_counted_as_long_as_the_page_is_buffered() {
    let mut sawc = Sawc::new(32, COSTS, 8);
    loaded(&mut sawc, 0, 2);
    // Page 0 is written three times, page 1 once, then both again after a flush.
    (0..2).for_each(|_| sawc.hit(f(0), true));
    sawc.cleaned(f(0), Location::Hdd, CleanReason::Recoverability);
    sawc.cleaned(f(1), Location::Hdd, CleanReason::Recoverability);
    for n in [1, 0] {
        sawc.hit(f(n), true);
        sawc.dirtied(f(n));
    }
    assert_eq!(clustered_write(&mut sawc), [1]);
    // Once reloaded, page 0 has been updated once.
    sawc.remove(f(0), true);
    sawc.insert(f(0), page(0), Location::Hdd, Access::Random);
    sawc.dirtied(f(0));
    assert_eq!(clustered_write(&mut sawc), [1, 0]);
}

/// Algorithm 2, with Function ClusteredWrite for SAWC, over lists that are searched.
#[derive(Default)]
struct Algorithm2 {
    clustered: bool,
    b: usize,
    /// The pages in LRU order, each with Freq.
    c: Vec<(u32, u32)>,
    d: Vec<(u32, u32)>,
    /// T: the dirty pages, in the order in which they became dirty.
    table: Vec<u32>,
    tau: f64,
}

impl Algorithm2 {
    fn request(&mut self, p: u32, write: bool) -> Done {
        let mut done = Done::default();
        let (c, d) = (self.c.len() as f64, self.d.len() as f64);
        let (in_c, in_d) = (self.c.iter().position(|e| e.0 == p), self.d.iter().position(|e| e.0 == p));
        match (in_c, in_d, write) {
            (Some(at), _, false) => {
                self.tau = (self.tau + 0.2 * d / c).min(self.b as f64);
                let page = self.c.remove(at);
                self.c.push(page);
            }
            (Some(at), _, true) => {
                let (_, freq) = self.c.remove(at);
                self.d.push((p, freq + 1));
                self.table.push(p);
            }
            (_, Some(at), true) => {
                self.tau = (self.tau - 0.8 * c / d).max(0.0);
                let (_, freq) = self.d.remove(at);
                self.d.push((p, freq + 1));
            }
            (_, Some(at), false) => {
                let page = self.d.remove(at);
                self.d.push(page);
            }
            (None, None, _) => {
                if self.c.len() + self.d.len() == self.b {
                    if self.c.len() as f64 > self.tau || self.d.is_empty() {
                        done.evicted = Some(self.c.remove(0).0);
                    } else {
                        let (v, freq) = self.d.remove(0);
                        done = Done { written: vec![v], evicted: Some(v) };
                        if self.clustered {
                            self.clustered_write(v, freq, &mut done);
                        } else {
                            self.table.retain(|&p| p != v);
                        }
                    }
                }
                let list = if write { &mut self.d } else { &mut self.c };
                list.push((p, u32::from(write)));
                self.table.extend(write.then_some(p));
            }
        }
        done
    }

    fn clustered_write(&mut self, v: u32, freq: u32, done: &mut Done) {
        self.table.retain(|&p| p != v);
        let freq_of = |p: &u32| self.d.iter().find(|e| e.0 == *p).map(|e| e.1).unwrap();
        let along = |p: &u32| p / 8 == v / 8 && freq_of(p) <= freq;
        let written: Vec<u32> = self.table.iter().copied().filter(along).collect();
        // v is the LRU page of C until it is evicted; the others go to C's midpoint, behind it.
        self.c.insert(0, (v, freq));
        for &q in &written {
            let at = self.d.iter().position(|e| e.0 == q).unwrap();
            let midpoint = (self.c.len() * 3 / 8).saturating_sub(1).max(1);
            self.c.insert(midpoint, self.d.remove(at));
        }
        self.c.remove(0);
        self.table.retain(|p| !written.contains(p));
        done.written.extend(written);
    }
}

const FRAMES: usize = 32;

fn requests() -> impl Strategy<Value = Vec<(u32, bool)>> {
    let no = prop_oneof![2 => 0..FRAMES as u32, 2 => 0..64u32, 1 => 0..200u32];
    prop::collection::vec((no, prop::bool::weighted(0.5)), 1..500)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cfdc_is_algorithm_1(requests in requests()) {
        for (name, working_pages) in [("cfdc-25", 24), ("cfdc", 16), ("cfdc-75", 8), ("cfdc-100", 1)] {
            let mut buffer = Buffer::new(params(FRAMES), name);
            let mut paper = Algorithm1 { working_pages, ..Algorithm1::default() };
            for &(no, write) in &requests {
                let full = paper.len() == FRAMES;
                let expected = paper.request(no, write, full);
                prop_assert_eq!(buffer.request(no, write), expected, "{} {}", name, no);
            }
        }
    }

    #[test]
    fn casa_is_algorithm_2_and_sawc_with_clustered_writes(requests in requests()) {
        let params = FramePolicyParams { costs: COSTS, ..params(FRAMES) };
        for (name, clustered) in [("casa", false), ("sawc", true)] {
            let mut buffer = Buffer::new(params, name);
            let mut paper = Algorithm2 { b: FRAMES, clustered, ..Algorithm2::default() };
            for &(no, write) in &requests {
                let expected = paper.request(no, write);
                prop_assert_eq!(buffer.request(no, write), expected, "{} {}", name, no);
            }
        }
    }
}
