//! GD2L and the LRUs: hand-computed traces, and comparison with O(n) models on random events.

use crate::common::{COSTS, Event, FRAMES, apply, drain, event, evict, f, order};
use pagetier_policy::pool::{Gd2l, Lru, MidpointLru};
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, FrameState, Location, PageId, SpaceId,
};
use proptest::prelude::*;

fn page(frame: u32) -> PageId {
    PageId::new(SpaceId(1), frame)
}

/// Loads `n` pages from the HDD into frames 0 to n-1, oldest first.
fn loaded(n: u32) -> Gd2l {
    let mut gd2l = Gd2l::new(n as usize, COSTS);
    for frame in 0..n {
        gd2l.insert(f(frame), page(frame), Location::Hdd, Access::Random);
    }
    gd2l
}

#[test]
fn figure_2_by_hand() {
    let mut gd2l = Gd2l::new(4, COSTS);
    // L = 0: H is 70, 1, 70, 1.
    for (frame, location) in [(0, Location::Hdd), (1, Location::Ssd), (2, Location::Hdd), (3, Location::Ssd)]
    {
        gd2l.insert(f(frame), page(frame), location, Access::Random);
    }
    assert_eq!([0, 1, 2, 3].map(|n| gd2l.h(f(n))), [70.0, 1.0, 70.0, 1.0].map(Some));
    // The SSD pages go first, in order of use; L becomes 1.
    gd2l.hit(f(1), false);
    assert_eq!(evict(&mut gd2l), Some(3));
    assert_eq!(gd2l.inflation(), 1.0);
    // With L = 1, a page from the SSD gets H = 1 + 1, one from the HDD H = 1 + 70.
    gd2l.insert(f(3), page(9), Location::Ssd, Access::Random);
    gd2l.hit(f(0), false);
    assert_eq!([0, 1, 2, 3].map(|n| gd2l.h(f(n))), [71.0, 1.0, 70.0, 2.0].map(Some));
    assert_eq!(drain(&mut gd2l), [1, 3, 2, 0]);
    assert_eq!(gd2l.inflation(), 71.0);
}

#[test]
fn an_old_hdd_page_goes_before_a_fresh_ssd_page() {
    let mut gd2l = loaded(2);
    // 70 loads from the SSD, each evicted in turn, raise L to 70: then the HDD pages have aged and are
    // evicted.
    for round in 1..=70 {
        gd2l.insert(f(2), page(2), Location::Ssd, Access::Random);
        // The last one also has H = 70: among equals, the SSD page is evicted.
        assert_eq!(evict(&mut gd2l), Some(2), "round {round}");
    }
    gd2l.insert(f(2), page(2), Location::Ssd, Access::Random);
    assert_eq!(drain(&mut gd2l), [0, 1, 2]);
}

#[test]
fn prefetched_pages_enter_at_the_midpoint_and_reach_the_mru_end_when_read() {
    // Sixteen pages: the old six are 0 to 5, the midpoint is 5.
    let mut gd2l = loaded(16);
    gd2l.insert(f(16), page(16), Location::Hdd, Access::Sequential);
    assert_eq!(gd2l.h(f(16)), gd2l.h(f(5)));
    let mut read_later = loaded(16);
    read_later.insert(f(16), page(16), Location::Hdd, Access::Sequential);
    read_later.hit(f(16), false);
    assert_eq!(drain(&mut gd2l)[..7], [0, 1, 2, 3, 4, 16, 5]);
    assert_eq!(drain(&mut read_later).last(), Some(&16));
}

#[test]
fn a_prefetched_page_takes_the_midpoint_pages_h() {
    let mut gd2l = Gd2l::new(9, COSTS);
    for frame in 0..8 {
        // Raises L by one per page: H of frame n is 70 + n.
        gd2l.insert(f(8), page(8), Location::Ssd, Access::Random);
        gd2l.insert(f(frame), page(frame), Location::Hdd, Access::Random);
        assert_eq!(evict(&mut gd2l), Some(8));
    }
    gd2l.insert(f(8), page(8), Location::Hdd, Access::Sequential);
    // Three of eight are old: 0, 1, 2.
    assert_eq!(gd2l.h(f(8)), Some(72.0));
    assert_eq!(drain(&mut gd2l), [0, 1, 8, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_replacement_write_to_the_ssd_makes_the_page_the_next_victim() {
    let mut gd2l = loaded(4);
    gd2l.insert(f(4), page(4), Location::Ssd, Access::Random);
    gd2l.cleaned(f(1), Location::Ssd, CleanReason::Replacement);
    // H is lowered to that of the page it was put behind, so that Q_S stays sorted.
    assert_eq!(gd2l.h(f(1)), Some(1.0));
    assert_eq!(gd2l.queue_lens(), (2, 3));
    assert_eq!(drain(&mut gd2l), [1, 4, 0, 2, 3]);
}

#[test]
fn a_replacement_write_of_a_page_below_q_s_keeps_its_h() {
    let mut gd2l = loaded(1);
    for _ in 0..70 {
        gd2l.insert(f(1), page(1), Location::Ssd, Access::Random);
        evict(&mut gd2l);
    }
    gd2l.insert(f(1), page(1), Location::Ssd, Access::Random);
    gd2l.cleaned(f(0), Location::Ssd, CleanReason::Replacement);
    assert_eq!((gd2l.h(f(0)), gd2l.h(f(1))), (Some(70.0), Some(71.0)));
}

#[test]
fn a_recoverability_write_to_the_ssd_puts_the_page_at_the_midpoint_of_q_s() {
    let mut gd2l = loaded(1);
    for frame in 1..9 {
        gd2l.insert(f(frame), page(frame), Location::Ssd, Access::Random);
    }
    gd2l.cleaned(f(0), Location::Ssd, CleanReason::Recoverability);
    assert_eq!(gd2l.h(f(0)), Some(1.0));
    assert_eq!(drain(&mut gd2l), [1, 2, 0, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_write_to_the_hdd_leaves_the_page_where_it_is() {
    let mut gd2l = loaded(3);
    gd2l.dirtied(f(1));
    gd2l.cleaned(f(1), Location::Hdd, CleanReason::Replacement);
    assert_eq!(drain(&mut gd2l), [0, 1, 2]);
}

#[test]
fn an_ssd_copy_evicted_puts_the_page_at_the_midpoint_of_q_d() {
    let mut gd2l = loaded(8);
    gd2l.insert(f(8), page(8), Location::Ssd, Access::Random);
    gd2l.ssd_evicted(f(8));
    assert_eq!(gd2l.h(f(8)), Some(70.0));
    assert_eq!(drain(&mut gd2l), [0, 1, 8, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn an_ssd_copy_invalidated_makes_the_page_a_fresh_hdd_page() {
    let mut gd2l = loaded(8);
    gd2l.insert(f(8), page(8), Location::Ssd, Access::Random);
    gd2l.ssd_invalidated(f(8));
    assert_eq!(gd2l.h(f(8)), Some(70.0));
    assert_eq!(drain(&mut gd2l), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn victims_that_are_refused_are_passed_over_in_order_of_h() {
    let mut gd2l = loaded(2);
    gd2l.insert(f(2), page(2), Location::Ssd, Access::Random);
    gd2l.insert(f(3), page(3), Location::Ssd, Access::Random);
    let mut asked = Vec::new();
    let victim = gd2l.victim(&mut |frame| {
        asked.push(frame.0);
        frame.0 == 1
    });
    assert_eq!((victim, asked), (Some(f(1)), vec![2, 3, 0, 1]));
    gd2l.remove(f(1), true);
    // L rose past the refused pages, and does not fall when one of them is evicted later.
    assert_eq!(gd2l.inflation(), 70.0);
    assert_eq!(evict(&mut gd2l), Some(2));
    assert_eq!(gd2l.inflation(), 70.0);
    assert_eq!(gd2l.victim(&mut |_| false), None);
}

#[test]
fn a_page_that_goes_in_the_stead_of_cheaper_ones_does_not_raise_l_to_its_own_h() {
    let mut gd2l = loaded(2);
    gd2l.insert(f(2), page(2), Location::Ssd, Access::Random);
    assert_eq!(gd2l.victim(&mut |frame| frame != f(2)), Some(f(0)));
    gd2l.remove(f(0), true);
    assert_eq!(gd2l.inflation(), 1.0);
    // The answer applies to its frame only.
    assert_eq!(gd2l.victim(&mut |frame| frame != f(2)), Some(f(1)));
    gd2l.remove(f(2), true);
    gd2l.remove(f(1), true);
    assert_eq!(gd2l.inflation(), 70.0);
}

#[test]
fn the_cleaner_gets_the_dirty_ones_among_the_next_victims() {
    let mut gd2l = loaded(4);
    for frame in 4..8 {
        gd2l.insert(f(frame), page(frame), Location::Ssd, Access::Random);
    }
    let clean = |gd2l: &mut Gd2l, depth, max| {
        let mut out = Vec::new();
        let state = &mut |frame: FrameId| match frame.0 {
            3 => FrameState::Busy,
            odd if odd % 2 == 1 => FrameState::Dirty,
            _ => FrameState::Clean,
        };
        gd2l.clean_set(depth, max, state, &mut out);
        out.iter().map(|frame| frame.0).collect::<Vec<_>>()
    };
    assert_eq!(clean(&mut gd2l, 6, 9), [5, 7, 1]);
    assert_eq!(clean(&mut gd2l, 6, 2), [5, 7]);
    assert_eq!(clean(&mut gd2l, 1, 9), [0u32; 0]);
    // Busy frames are passed over and not counted.
    assert_eq!(clean(&mut gd2l, 8, 9), [5, 7, 1]);
}

#[test]
fn falling_costs_do_not_upset_the_order() {
    let mut gd2l = loaded(3);
    gd2l.set_costs(Costs { hdd_read_ms: 10.0, ..COSTS });
    gd2l.hit(f(0), false);
    gd2l.insert(f(3), page(3), Location::Hdd, Access::Random);
    gd2l.validate().unwrap();
    assert_eq!(drain(&mut gd2l), [1, 2, 0, 3]);
}

#[test]
fn lru_ignores_homes_and_prefetching() {
    let mut lru = Lru::new(4);
    for (frame, access) in [(0, Access::Random), (1, Access::Sequential), (2, Access::Random)] {
        lru.insert(f(frame), page(frame), Location::Ssd, access);
    }
    lru.hit(f(0), false);
    lru.ssd_evicted(f(1));
    assert_eq!(drain(&mut lru), [1, 2, 0]);
}

#[test]
fn a_scan_passes_through_the_old_part_of_midpoint_lru() {
    let mut lru = MidpointLru::new(32);
    for frame in 0..16 {
        lru.insert(f(frame), page(frame), Location::Hdd, Access::Random);
    }
    // A scan of a hundred pages passes through sixteen frames: the ten young pages stay.
    let mut free = f(16);
    for n in 0..100 {
        lru.insert(free, page(n), Location::Hdd, Access::Sequential);
        free = lru.victim(&mut |_| true).unwrap();
        lru.remove(free, true);
    }
    let left = drain(&mut lru);
    assert!((7..16).all(|frame| left.contains(&frame)), "{left:?}");
}

/// GreedyDual as section 3 first describes it: without L; an eviction lowers the H of all pages by the
/// victim's.
#[derive(Default)]
struct GreedyDual {
    /// Frame, home, H; least recently used first.
    pages: Vec<(u32, Location, f64)>,
}

impl GreedyDual {
    fn reference(&mut self, frame: u32, location: Location) {
        self.pages.retain(|p| p.0 != frame);
        let h = if location == Location::Ssd { COSTS.ssd_read_ms } else { COSTS.hdd_read_ms };
        self.pages.push((frame, location, h));
    }

    fn evict(&mut self) -> Option<u32> {
        let lowest = self.pages.iter().map(|p| p.2).fold(f64::INFINITY, f64::min);
        let ties = |location| self.pages.iter().position(|p| p.2 == lowest && p.1 == location);
        let (frame, ..) = self.pages.remove(ties(Location::Ssd).or(ties(Location::Hdd))?);
        self.pages.iter_mut().for_each(|p| p.2 -= lowest);
        Some(frame)
    }
}

/// Two sorted lists of (frame, H); it finds every position by counting.
struct Model {
    queues: [Vec<(u32, f64)>; 2],
    inflation: f64,
}

impl Model {
    fn find(&self, frame: u32) -> Option<(usize, usize)> {
        (0..2).find_map(|q| Some((q, self.queues[q].iter().position(|e| e.0 == frame)?)))
    }

    fn take(&mut self, frame: u32) -> Option<(usize, f64)> {
        let (q, at) = self.find(frame)?;
        Some((q, self.queues[q].remove(at).1))
    }

    fn fresh(&self, q: usize) -> f64 {
        self.inflation + [COSTS.ssd_read_ms, COSTS.hdd_read_ms][q]
    }

    fn mru(&mut self, q: usize, frame: u32) {
        let h = self.fresh(q);
        self.queues[q].push((frame, h));
    }

    fn midpoint(&mut self, q: usize, frame: u32) {
        let at = (self.queues[q].len() * 3 / 8).saturating_sub(1);
        let h = self.queues[q].get(at).map_or(self.fresh(q), |e| e.1);
        self.queues[q].insert(at, (frame, h));
    }

    fn lru(&mut self, q: usize, frame: u32, h: f64) {
        let behind = self.queues[q].first().map_or(self.fresh(q), |e| e.1);
        self.queues[q].insert(0, (frame, h.min(behind)));
    }

    /// All frames by H; among equals those of Q_S first, then by position.
    fn order(&self) -> Vec<u32> {
        let mut all: Vec<_> = (0..2)
            .flat_map(|q| self.queues[q].iter().enumerate().map(move |(at, e)| (e.1, q, at, e.0)))
            .collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all.into_iter().map(|e| e.3).collect()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Insert(frame, location, access) => {
                self.take(frame);
                let q = usize::from(location == Location::Hdd);
                match access {
                    Access::Random => self.mru(q, frame),
                    Access::Sequential => self.midpoint(q, frame),
                }
            }
            Event::Hit(frame) => {
                if let Some((q, _)) = self.take(frame) {
                    self.mru(q, frame);
                }
            }
            Event::Dirtied(_) => {}
            Event::Evict(refused) => {
                let order = self.order();
                let Some(at) = order.iter().position(|&f| refused & 1 << f == 0) else { return };
                // L rises to the H of the last page passed over, or to the victim's H if none was.
                let (q, level) = self.find(order[at.saturating_sub(1)]).unwrap();
                self.inflation = self.inflation.max(self.queues[q][level].1);
                self.take(order[at]);
            }
            Event::Discard(frame) => {
                self.take(frame);
            }
            Event::Cleaned(frame, location, reason) => {
                let Some((q, at)) = self.find(frame) else { return };
                let to = usize::from(location == Location::Hdd);
                if q == to {
                    return;
                }
                let (_, h) = self.queues[q].remove(at);
                match (to, reason) {
                    (0, CleanReason::Replacement) => self.lru(to, frame, h),
                    _ => self.midpoint(to, frame),
                }
            }
            Event::SsdEvicted(frame) => {
                if let Some((0, at)) = self.find(frame) {
                    self.queues[0].remove(at);
                    self.midpoint(1, frame);
                }
            }
            Event::SsdInvalidated(frame) => {
                if let Some((0, at)) = self.find(frame) {
                    self.queues[0].remove(at);
                    self.mru(1, frame);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gd2l_is_greedy_dual(references in prop::collection::vec((0..64u32, any::<bool>()), 1..400)) {
        // Each page is on the SSD or not throughout; with 16 frames, references miss and hit.
        let mut gd2l = Gd2l::new(64, COSTS);
        let mut dual = GreedyDual::default();
        for (n, odd) in references {
            let frame = if odd { n } else { n % 20 };
            let location = if frame % 3 == 0 { Location::Hdd } else { Location::Ssd };
            if gd2l.h(f(frame)).is_some() {
                gd2l.hit(f(frame), false);
            } else {
                if gd2l.len() == 16 {
                    prop_assert_eq!(evict(&mut gd2l), dual.evict());
                }
                gd2l.insert(f(frame), page(frame), location, Access::Random);
            }
            dual.reference(frame, location);
        }
    }

    #[test]
    fn gd2l_agrees_with_counting(events in prop::collection::vec(event(), 1..300)) {
        let mut gd2l = Gd2l::new(0, COSTS);
        let mut model = Model { queues: [Vec::new(), Vec::new()], inflation: 0.0 };
        for event in events {
            apply(&mut gd2l, event);
            model.apply(event);
            gd2l.validate().map_err(TestCaseError::fail)?;
            prop_assert_eq!(order(&gd2l), model.order(), "after {:?}", event);
            prop_assert_eq!(gd2l.inflation(), model.inflation);
            for (frame, h) in model.queues.iter().flatten() {
                prop_assert_eq!(gd2l.h(f(*frame)), Some(*h));
            }
        }
    }

    #[test]
    fn the_lrus_agree_with_a_list(events in prop::collection::vec(event(), 1..300)) {
        let mut lru = Lru::new(0);
        let mut midpoint = MidpointLru::new(FRAMES as usize);
        let (mut plain_list, mut midpoint_list) = (Vec::new(), Vec::new());
        for event in events {
            apply(&mut lru, event);
            apply(&mut midpoint, event);
            for (list, at_midpoint) in [(&mut plain_list, false), (&mut midpoint_list, true)] {
                apply_to_list(list, event, at_midpoint);
            }
            lru.validate().map_err(TestCaseError::fail)?;
            midpoint.validate().map_err(TestCaseError::fail)?;
            prop_assert_eq!(order(&lru), plain_list.clone());
            prop_assert_eq!(order(&midpoint), midpoint_list.clone());
        }
    }
}

fn apply_to_list(list: &mut Vec<u32>, event: Event, at_midpoint: bool) {
    match event {
        Event::Insert(frame, _, access) => {
            list.retain(|&f| f != frame);
            match access {
                Access::Sequential if at_midpoint => {
                    list.insert((list.len() * 3 / 8).saturating_sub(1), frame);
                }
                _ => list.push(frame),
            }
        }
        Event::Hit(frame) => {
            if let Some(at) = list.iter().position(|&f| f == frame) {
                list.remove(at);
                list.push(frame);
            }
        }
        Event::Evict(refused) => {
            if let Some(at) = list.iter().position(|f| refused & 1 << f == 0) {
                list.remove(at);
            }
        }
        Event::Discard(frame) => list.retain(|&f| f != frame),
        Event::Dirtied(_) | Event::Cleaned(..) | Event::SsdEvicted(_) | Event::SsdInvalidated(_) => {}
    }
}
