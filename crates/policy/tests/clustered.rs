//! CFDC, CASA and SAWC (Ou, Jin & Härder, section 3): by hand, and beside the paper's pseudo-code over lists that are searched.

mod buffer;

use buffer::{Buffer, Done, page};
use pagetier_policy::{
    Access, Cfdc, Costs, FrameId, FrameState, Home, PageId, PoolPolicy, PoolPolicyParams, SpaceId,
    WindowPercent,
};
use proptest::prelude::*;

fn f(n: u32) -> FrameId {
    FrameId(n)
}

fn params(frames: usize) -> PoolPolicyParams {
    PoolPolicyParams { cluster_pages: 8, ..PoolPolicyParams::new(frames, Costs::PAPER) }
}

fn run(buffer: &mut Buffer, requests: &[i32]) {
    requests.iter().for_each(|&no| drop(buffer.request(no.unsigned_abs(), no < 0)));
}

/// CFDC with everything but the page used last in P, and dirty: `pages` go into frames 0, 1, ... and enter their clusters in that order.
fn clustered(pages: &[u32]) -> Cfdc {
    let percent = WindowPercent::new(100).unwrap();
    let mut cfdc = Cfdc::new(64, percent, 8);
    for (frame, &no) in pages.iter().chain(&[99_999]).enumerate() {
        cfdc.insert(f(frame as u32), page(no), Home::Hdd, Access::Random);
        cfdc.dirtied(f(frame as u32));
    }
    cfdc
}

#[test]
fn formula_1_by_hand() {
    // The paper's clusters {0, 1, 2, 3} and {7, 5, 4, 6}, here 8 apart: IPD 3 and 5, stamped at times 1 and 5 of 8.
    let cfdc = clustered(&[0, 1, 2, 3, 15, 13, 12, 14]);
    assert_eq!(cfdc.priority(f(0)), Some(3.0 / (16.0 * 7.0)));
    assert_eq!(cfdc.priority(f(7)), Some(5.0 / (16.0 * 3.0)));
    // A cluster of one page has IPD 1; the cluster that was just made is of infinite priority.
    let cfdc = clustered(&[0, 8, 16]);
    assert_eq!([0, 1, 2].map(|n| cfdc.priority(f(n))), [1.0 / 2.0, 1.0 / 1.0, f64::INFINITY].map(Some));
    // Neither for the page in W.
    assert_eq!(cfdc.priority(f(3)), None);
}

#[test]
fn a_page_that_leaves_brings_its_neighbours_together() {
    let mut cfdc = clustered(&[0, 6, 1, 40]);
    assert_eq!(cfdc.priority(f(0)), Some((6.0 + 5.0) / (9.0 * 3.0)));
    // Discarded: no hit, the time stamp stays.
    cfdc.remove(f(1), false);
    assert_eq!(cfdc.priority(f(0)), Some(1.0 / (4.0 * 3.0)));
    cfdc.validate().unwrap();
}

#[test]
fn a_hit_stamps_the_cluster_anew_and_changes_places_with_the_lru_page_of_w() {
    let mut cfdc = clustered(&[0, 1, 40]);
    // Frame 3 was the only page of W; it is dirty, and demoted before frame 0 is promoted. Global time is 4 then.
    cfdc.hit(f(0), false);
    assert_eq!([0, 3].map(|n| cfdc.priority(f(n))), [None, Some(f64::INFINITY)]);
    assert_eq!(cfdc.priority(f(1)), Some(f64::INFINITY), "stamped 4");
    assert_eq!(cfdc.priority(f(2)), Some(1.0 / (4.0 - 3.0)));
}

#[test]
fn a_page_demoted_to_a_cluster_leaves_its_stamp() {
    let mut cfdc = clustered(&[0, 40]);
    cfdc.insert(f(10), page(1), Home::Hdd, Access::Random);
    cfdc.dirtied(f(10));
    cfdc.insert(f(11), page(80), Home::Hdd, Access::Random);
    // Page 1 came at time 4, to the cluster that page 0 made at time 1.
    assert_eq!(cfdc.priority(f(10)), Some(1.0 / (4.0 * 3.0)));
}

#[test]
fn clean_pages_go_before_dirty_clusters_and_these_one_at_a_time() {
    let mut b = Buffer::new(params(8), "cfdc-75");
    // W holds two. In P: clean 7, 30 and 100; 40, 1 and 8 dirty in clusters of their own, of priority 1/2, 1/1 and infinite at time 3.
    run(&mut b, &[7, 30, -40, -1, -8, 100, 101, 102]);
    assert_eq!(b.order(), [7, 30, 100, 40, 1, 8, 101, 102]);
    assert_eq!(b.request(103, false), Done { written: vec![], evicted: Some(7) });
    // A clean page demoted is the newest of the clean ones.
    assert_eq!(b.order(), [30, 100, 101, 40, 1, 8, 102, 103]);
    // Flushed for another reason, a page joins them at their midpoint.
    b.flush(40);
    assert_eq!(b.order(), [40, 30, 100, 101, 1, 8, 102, 103]);
}

#[test]
fn the_victim_cluster_is_written_whole_and_evicted_page_by_page() {
    let mut b = Buffer::new(params(8), "cfdc-75");
    // W holds two, the rest is dirty: cluster 0 with 1, 3, 2, cluster 2 with 16 and 17, cluster 4 with 32.
    run(&mut b, &[-1, -16, -3, -17, -2, -32, -64, -65]);
    // IPD and stamps: cluster 0: 2 + 1 over 9 at 1; cluster 2: 1 over 4 at 2; cluster 4: 1 at 6, the global time.
    // 3 / (9 · 5) is below 1 / (4 · 4), which is 0.0625, against 0.0667: cluster 2 goes first.
    assert_eq!(b.order(), [16, 17, 1, 3, 2, 32, 64, 65]);
    assert_eq!(b.request(100, false), Done { written: vec![16, 17], evicted: Some(16) });
    // 64 was demoted to make room in W; 17, now clean, follows without a write, before the clean 100 that came later.
    assert_eq!(b.request(101, false), Done { written: vec![], evicted: Some(17) });
    assert_eq!(b.request(102, false).written, [1, 3, 2]);
}

#[test]
fn a_cluster_of_which_a_page_went_is_the_victim_cluster_until_it_is_hit() {
    let mut cfdc = clustered(&[0, 7, 40, 41, 42]);
    // Cluster 5: 2 / (9 · 2); cluster 0: 7 / (4 · 4).
    assert_eq!(cfdc.victim(&mut |_| true), Some(f(2)));
    // Should something else than the first choice go (what comes first may be pinned), its cluster is the one to go on with.
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
        cfdc.insert(f(space), PageId::new(SpaceId(space), 0), Home::Hdd, Access::Random);
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
    // The cluster in which the depth is reached comes whole, up to the most that is wanted.
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
    /// Pages that an earlier pick wrote; they are clean, and go next.
    written: Vec<u32>,
}

struct Cluster {
    no: u32,
    /// In order of entering.
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

    /// A hit in P.
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

    /// The cluster is written when its first page is chosen; the others follow as the next victims.
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
}
