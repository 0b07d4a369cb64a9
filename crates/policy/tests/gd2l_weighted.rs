//! GD2L with options: hand-computed traces, equality with GD2L without options, and comparison with an O(n)
//! model on random events.

use crate::common::{COSTS, Event, FRAMES, apply, drain, event, f, order};
use pagetier_policy::pool::{FREQUENCY_MAX, Gd2l, Gd2lOptions, Gd2lWeighted};
use pagetier_policy::{Access, CleanReason, FramePolicy, Location, PageId, SpaceId};
use proptest::prelude::*;

const FREQUENCY: Gd2lOptions = Gd2lOptions { frequency: true, write_back: false };
const WRITE_BACK: Gd2lOptions = Gd2lOptions { frequency: false, write_back: true };
const BOTH: Gd2lOptions = Gd2lOptions { frequency: true, write_back: true };
const NEITHER: Gd2lOptions = Gd2lOptions { frequency: false, write_back: false };

/// Loads a page per home into the frames from 0 on, oldest first.
fn loaded(options: Gd2lOptions, homes: &[Location]) -> Gd2lWeighted {
    let mut policy = Gd2lWeighted::new(homes.len(), COSTS, options);
    for (n, &location) in (0..).zip(homes) {
        policy.insert(f(n), PageId::new(SpaceId(1), n), location, Access::Random);
    }
    policy
}

#[test]
fn uses_multiply_what_a_page_is_worth() {
    let mut policy = loaded(FREQUENCY, &[Location::Hdd, Location::Hdd, Location::Ssd, Location::Ssd]);
    assert_eq!([0, 1, 2, 3].map(|n| policy.h(f(n))), [70.0, 70.0, 1.0, 1.0].map(Some));
    policy.hit(f(0), false);
    policy.hit(f(2), true);
    policy.hit(f(2), false);
    assert_eq!([0, 1, 2, 3].map(|n| policy.h(f(n))), [140.0, 70.0, 3.0, 1.0].map(Some));
    assert_eq!(drain(&mut policy), [3, 2, 1, 0]);
    assert_eq!(policy.inflation(), 140.0);
}

#[test]
fn uses_count_up_to_the_most_and_from_one_after_a_reload() {
    let mut policy = loaded(FREQUENCY, &[Location::Ssd]);
    (0..100).for_each(|_| policy.hit(f(0), false));
    assert_eq!(policy.h(f(0)), Some(f64::from(FREQUENCY_MAX)));
    assert_eq!(drain(&mut policy), [0]);
    policy.insert(f(0), PageId::default(), Location::Ssd, Access::Random);
    assert_eq!(policy.h(f(0)), Some(11.0));
}

#[test]
fn what_was_used_often_long_ago_goes() {
    let mut policy = loaded(FREQUENCY, &[Location::Hdd, Location::Hdd]);
    policy.hit(f(0), false);
    // Frame 0 has H = 140. Frame 1 has H = 70; once reloaded and hit, it has H = L + 2 · 70 = 210.
    for (no, goes) in [(1, 1), (1, 0)] {
        let victim = policy.victim(&mut |_| true).unwrap();
        assert_eq!(victim, f(goes), "load {no}");
        policy.remove(victim, true);
        policy.insert(victim, PageId::new(SpaceId(1), 9), Location::Hdd, Access::Random);
        policy.hit(victim, false);
    }
}

#[test]
fn a_dirty_page_is_worth_its_write_too() {
    let mut policy = loaded(WRITE_BACK, &[Location::Hdd, Location::Hdd, Location::Ssd, Location::Ssd]);
    policy.dirtied(f(0));
    policy.dirtied(f(2));
    policy.hit(f(3), false);
    assert_eq!([0, 1, 2, 3].map(|n| policy.h(f(n))), [120.0, 70.0, 4.0, 1.0].map(Some));
    // A recoverability write moves the page to the midpoint of the clean pages, with the H there.
    policy.cleaned(f(0), Location::Hdd, CleanReason::Recoverability);
    assert_eq!(policy.h(f(0)), Some(70.0));
    assert_eq!(drain(&mut policy), [3, 2, 0, 1]);
}

#[test]
fn a_page_cleaned_to_go_is_no_further_from_going() {
    let mut policy = loaded(BOTH, &[Location::Hdd, Location::Hdd, Location::Ssd]);
    policy.dirtied(f(0));
    policy.hit(f(0), true);
    assert_eq!(policy.h(f(0)), Some(240.0));
    policy.cleaned(f(0), Location::Hdd, CleanReason::Replacement);
    // The queue of clean pages used twice is empty: H is such a page's own cost.
    assert_eq!(policy.h(f(0)), Some(140.0));
    policy.dirtied(f(1));
    policy.cleaned(f(1), Location::Ssd, CleanReason::Replacement);
    assert_eq!(policy.h(f(1)), Some(1.0));
    assert_eq!(drain(&mut policy), [1, 2, 0]);
}

/// A page of the model.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Page {
    frame: u32,
    uses: u32,
    dirty: bool,
    location: Location,
    h: f64,
}

/// All pages in one list, least recently used first. The pages of one home, dirty state and number of uses
/// form a queue, in list order.
struct Model {
    options: Gd2lOptions,
    pages: Vec<Page>,
    inflation: f64,
}

impl Model {
    fn kind(page: &Page) -> (u32, bool, bool) {
        (page.uses, page.dirty, page.location == Location::Hdd)
    }

    fn take(&mut self, frame: u32) -> Option<Page> {
        let at = self.pages.iter().position(|page| page.frame == frame)?;
        Some(self.pages.remove(at))
    }

    /// The positions in the list of the pages of this page's queue.
    fn queue(&self, of: &Page) -> Vec<usize> {
        (0..self.pages.len()).filter(|&at| Self::kind(&self.pages[at]) == Self::kind(of)).collect()
    }

    fn fresh(&self, page: &Page) -> f64 {
        let (read, write) = if page.location == Location::Ssd { (1.0, 3.0) } else { (70.0, 50.0) };
        self.inflation + f64::from(page.uses) * if page.dirty { read + write } else { read }
    }

    fn mru(&mut self, page: Page) {
        let h = self.fresh(&page);
        self.pages.push(Page { h, ..page });
    }

    fn midpoint(&mut self, page: Page) {
        let queue = self.queue(&page);
        match queue.get((queue.len() * 3 / 8).saturating_sub(1)) {
            Some(&at) => self.pages.insert(at, Page { h: self.pages[at].h, ..page }),
            None => self.mru(page),
        }
    }

    fn lru(&mut self, page: Page) {
        let queue = self.queue(&page);
        let behind = queue.first().map_or(self.fresh(&page), |&at| self.pages[at].h);
        self.pages.insert(queue.first().copied().unwrap_or(0), Page { h: page.h.min(behind), ..page });
    }

    /// The eviction order: by H; among equals by number of uses, dirty state (clean first) and home (SSD
    /// first); then by age.
    fn order(&self) -> Vec<u32> {
        let mut all: Vec<_> = self
            .pages
            .iter()
            .enumerate()
            .map(|(at, page)| (page.h, Self::kind(page), at, page.frame))
            .collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all.into_iter().map(|entry| entry.3).collect()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Insert(frame, location, access) => {
                self.take(frame);
                let page = Page { frame, uses: 1, dirty: false, location, h: 0.0 };
                match access {
                    Access::Random => self.mru(page),
                    Access::Sequential => self.midpoint(page),
                }
            }
            Event::Hit(frame) => {
                if let Some(page) = self.take(frame) {
                    let more = u32::from(self.options.frequency && page.uses < u32::from(FREQUENCY_MAX));
                    self.mru(Page { uses: page.uses + more, ..page });
                }
            }
            Event::Dirtied(frame) => {
                if self.options.write_back
                    && let Some(page) = self.take(frame)
                {
                    self.mru(Page { dirty: true, ..page });
                }
            }
            Event::Evict(refused) => {
                let order = self.order();
                let Some(at) = order.iter().position(|&f| refused & 1 << f == 0) else { return };
                let passed = order[at.saturating_sub(1)];
                let level = self.pages.iter().find(|page| page.frame == passed).map_or(0.0, |page| page.h);
                self.inflation = self.inflation.max(level);
                self.take(order[at]);
            }
            Event::Discard(frame) => {
                self.take(frame);
            }
            Event::Cleaned(frame, location, reason) => {
                let Some(page) = self.pages.iter().find(|page| page.frame == frame).copied() else { return };
                if page.location == location && !page.dirty {
                    return;
                }
                self.take(frame);
                let lost_its_copy = page.location == Location::Ssd && location == Location::Hdd;
                let page = Page { dirty: false, location, ..page };
                match reason {
                    CleanReason::Replacement if !lost_its_copy => self.lru(page),
                    _ => self.midpoint(page),
                }
            }
            Event::SsdEvicted(frame) | Event::SsdInvalidated(frame) => {
                let on_ssd =
                    self.pages.iter().any(|page| page.frame == frame && page.location == Location::Ssd);
                let Some(page) = self.take_if(on_ssd, frame) else { return };
                let page = Page { location: Location::Hdd, ..page };
                match event {
                    Event::SsdEvicted(_) => self.midpoint(page),
                    _ => self.mru(page),
                }
            }
        }
    }

    fn take_if(&mut self, wanted: bool, frame: u32) -> Option<Page> {
        wanted.then(|| self.take(frame)).flatten()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_options_it_is_gd2l(events in prop::collection::vec(event(), 1..300)) {
        let mut weighted = Gd2lWeighted::new(FRAMES as usize, COSTS, NEITHER);
        let mut gd2l = Gd2l::new(FRAMES as usize, COSTS);
        for event in events {
            apply(&mut weighted, event);
            apply(&mut gd2l, event);
            prop_assert_eq!(order(&weighted), order(&gd2l), "after {:?}", event);
            prop_assert_eq!(weighted.inflation(), gd2l.inflation());
            for frame in 0..FRAMES {
                prop_assert_eq!(weighted.h(f(frame)), gd2l.h(f(frame)));
            }
        }
    }

    #[test]
    fn it_agrees_with_one_list(
        events in prop::collection::vec(event(), 1..300),
        options in prop::sample::select(vec![FREQUENCY, WRITE_BACK, BOTH]),
    ) {
        let mut weighted = Gd2lWeighted::new(0, COSTS, options);
        let mut model = Model { options, pages: Vec::new(), inflation: 0.0 };
        for event in events {
            apply(&mut weighted, event);
            model.apply(event);
            weighted.validate().map_err(TestCaseError::fail)?;
            prop_assert_eq!(order(&weighted), model.order(), "after {:?}", event);
            prop_assert_eq!(weighted.inflation(), model.inflation);
            for page in &model.pages {
                prop_assert_eq!(weighted.h(f(page.frame)), Some(page.h));
            }
        }
    }
}
