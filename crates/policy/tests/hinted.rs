//! A pool policy under hints: hand-made cases, and every policy against the obligations of a policy.

use pagetier_policy::pool::{HintedPool, Resident, Retention};
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, FrameState, Location, PageId,
    PoolPolicy, SpaceId,
};
use pagetier_rivals::POOL_POLICIES;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FRAMES: u32 = 16;

fn hinted(policy: PoolPolicy, frames: u32) -> HintedPool {
    let params = FramePolicyParams::new(frames as usize, Costs::PAPER);
    HintedPool::new(policy.build(&params), frames as usize)
}

fn put(pool: &mut HintedPool, frame: u32, space: u32) {
    pool.insert(FrameId(frame), PageId::new(SpaceId(space), frame), Location::Hdd, Access::Random);
}

/// Evicts until nothing is left; the frames in their order.
fn evicted(pool: &mut HintedPool) -> Vec<u32> {
    let next = || {
        let victim = pool.victim(&mut |_| true)?;
        pool.remove(victim, true);
        pool.validate().unwrap();
        Some(victim.0)
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn kept_pages_leave_last_and_the_one_used_longest_ago_first() {
    for &policy in POOL_POLICIES {
        let mut pool = hinted(policy, FRAMES);
        pool.set_retention(SpaceId(1), Retention::KeepInMemory, &[]);
        (0..4).for_each(|frame| put(&mut pool, frame, 1));
        (4..8).for_each(|frame| put(&mut pool, frame, 2));
        pool.hit(FrameId(1), false);
        let order = evicted(&mut pool);
        let mut others = order[..4].to_vec();
        others.sort_unstable();
        assert_eq!((others, &order[4..]), (vec![4, 5, 6, 7], &[0, 2, 3, 1][..]), "{policy}");
    }
}

#[test]
fn kept_pages_leave_a_quarter_of_the_frames_to_others() {
    for &policy in POOL_POLICIES {
        let mut pool = hinted(policy, FRAMES);
        pool.set_retention(SpaceId(1), Retention::KeepInMemory, &[]);
        (0..13).for_each(|frame| put(&mut pool, frame, 1));
        (13..16).for_each(|frame| put(&mut pool, frame, 2));
        assert_eq!(pool.victim(&mut |_| true), Some(FrameId(0)), "{policy}: 13 of 16 are kept");
        pool.remove(FrameId(0), true);
        let next = pool.victim(&mut |_| true).unwrap();
        assert!(next.0 >= 13, "{policy}: {next:?}");
        // With none else to evict, kept pages leave.
        assert_eq!(pool.victim(&mut |frame| frame.0 < 13), Some(FrameId(1)), "{policy}");
    }
}

#[test]
fn scan_only_pages_leave_first_once_they_exceed_their_share_or_their_time() {
    for &policy in POOL_POLICIES {
        let mut pool = hinted(policy, FRAMES);
        pool.set_retention(SpaceId(1), Retention::ScanOnly, &[]);
        (4..10).for_each(|frame| put(&mut pool, frame, 2));
        (0..3).for_each(|frame| put(&mut pool, frame, 1));
        pool.hit(FrameId(0), false);
        // An eighth of the frames is 2: the first of three goes, however often it was used.
        assert_eq!(pool.victim(&mut |_| true), Some(FrameId(0)), "{policy}");
        pool.remove(FrameId(0), true);
        // The others stay for two evictions, of which that was one.
        let next = pool.victim(&mut |_| true).unwrap();
        assert!(next.0 >= 4, "{policy}: {next:?}");
        pool.remove(next, true);
        assert_eq!(evicted(&mut pool)[..2], [1, 2], "{policy}");
    }
}

#[test]
fn what_leaves_early_because_of_hints_takes_half_of_a_cleaners_batch() {
    let mut pool = hinted(PoolPolicy::Lru, FRAMES);
    pool.set_retention(SpaceId(1), Retention::ScanOnly, &[]);
    pool.set_retention(SpaceId(3), Retention::KeepInMemory, &[]);
    (0..2).for_each(|frame| put(&mut pool, frame, 3));
    (2..6).for_each(|frame| put(&mut pool, frame, 2));
    (6..10).for_each(|frame| put(&mut pool, frame, 1));
    let clean = |pool: &mut HintedPool, depth, max| {
        let mut set = Vec::new();
        pool.clean_set(depth, max, &mut |_| FrameState::Dirty, &mut set);
        set.into_iter().map(|frame| frame.0).collect::<Vec<_>>()
    };
    // The first scan-only pages, then those of the pool.
    assert_eq!(clean(&mut pool, 8, 4), [6, 7, 2, 3]);
    assert_eq!(clean(&mut pool, 8, 2), [6, 2]);
    // As deep as all frames: the kept ones come last.
    assert_eq!(clean(&mut pool, 16, 16)[8..], [0, 1]);
    assert!(!clean(&mut pool, 4, 16).contains(&0), "kept pages are far from leaving");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Put(u32, u32, Access),
    Hit(u32, bool),
    Dirtied(u32),
    /// Evicts a page; the bits mark the frames that are refused.
    Evict(u32),
    Discard(u32),
    Cleaned(u32),
    Clean(usize, usize),
    Frames(u32),
    Retention(u32, Retention),
    Switch(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let (frame, space) = (|| 0..FRAMES, || 1..4_u32);
    let access = prop_oneof![Just(Access::Random), Just(Access::Sequential)];
    let retention =
        || prop_oneof![Just(Retention::Usual), Just(Retention::KeepInMemory), Just(Retention::ScanOnly)];
    let refused = || prop_oneof![Just(0), any::<u32>()];
    prop_oneof![
        8 => (frame(), space(), access).prop_map(|(f, s, a)| Event::Put(f, s, a)),
        8 => (frame(), any::<bool>()).prop_map(|(f, w)| Event::Hit(f, w)),
        4 => frame().prop_map(Event::Dirtied),
        5 => refused().prop_map(Event::Evict),
        1 => frame().prop_map(Event::Discard),
        3 => frame().prop_map(Event::Cleaned),
        3 => (0..12usize, 0..12usize).prop_map(|(d, m)| Event::Clean(d, m)),
        1 => (1..2 * FRAMES).prop_map(Event::Frames),
        3 => (space(), retention()).prop_map(|(s, r)| Event::Retention(s, r)),
        1 => (0..POOL_POLICIES.len()).prop_map(Event::Switch),
    ]
}

/// A policy under hints and its caller's state: the space of each frame that holds a page, and whether it is
/// dirty.
struct Caller {
    pool: HintedPool,
    held: BTreeMap<u32, (u32, bool)>,
}

impl Caller {
    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        let Self { pool, held } = self;
        match event {
            Event::Put(frame, space, access) => {
                pool.insert(FrameId(frame), PageId::new(SpaceId(space), frame), Location::Hdd, access);
                held.insert(frame, (space, false));
            }
            Event::Hit(frame, write) => pool.hit(FrameId(frame), write),
            Event::Dirtied(frame) => {
                pool.dirtied(FrameId(frame));
                held.entry(frame).and_modify(|(_, dirty)| *dirty = true);
            }
            Event::Evict(refused) => {
                let accepts = |frame: u32| refused & 1 << frame == 0;
                match pool.victim(&mut |frame| accepts(frame.0)) {
                    Some(victim) => {
                        prop_assert!(accepts(victim.0) && held.contains_key(&victim.0), "{:?}", victim);
                        pool.remove(victim, true);
                        held.remove(&victim.0);
                    }
                    None => prop_assert!(!held.keys().any(|frame| accepts(*frame))),
                }
            }
            Event::Discard(frame) => {
                pool.remove(FrameId(frame), false);
                held.remove(&frame);
            }
            Event::Cleaned(frame) => {
                pool.cleaned(FrameId(frame), Location::Ssd, CleanReason::Replacement);
                held.entry(frame).and_modify(|(_, dirty)| *dirty = false);
            }
            Event::Clean(depth, max) => {
                let mut set = Vec::new();
                let state = |frame: FrameId| match held.get(&frame.0) {
                    Some((_, true)) => FrameState::Dirty,
                    _ => FrameState::Clean,
                };
                pool.clean_set(depth, max, &mut { state }, &mut set);
                let mut frames: Vec<u32> = set.iter().map(|frame| frame.0).collect();
                frames.sort_unstable();
                frames.dedup();
                prop_assert!(frames.len() == set.len() && set.len() <= max, "{:?}", set);
                prop_assert!(set.iter().all(|frame| state(*frame) == FrameState::Dirty));
            }
            Event::Frames(frames) => pool.set_frames(frames as usize),
            Event::Retention(space, retention) => {
                let mut resident = Vec::new();
                pool.first_to_go(&mut |frame| {
                    let (of, dirty) = held[&frame.0];
                    if of == space {
                        let page = PageId::new(SpaceId(space), frame.0);
                        resident.push(Resident { frame, page, location: Location::Hdd, dirty });
                    }
                    false
                });
                pool.set_retention(SpaceId(space), retention, &resident);
            }
            Event::Switch(to) => {
                let params = FramePolicyParams::new(FRAMES as usize, Costs::PAPER);
                let mut new = POOL_POLICIES[to].build(&params);
                pool.inner().first_to_go(&mut |frame| {
                    let (space, dirty) = held[&frame.0];
                    let page = PageId::new(SpaceId(space), frame.0);
                    new.insert(frame, page, Location::Hdd, Access::Random);
                    if dirty {
                        new.dirtied(frame);
                    }
                    false
                });
                pool.set_inner(new);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.pool.validate()?;
        let mut order = Vec::new();
        self.pool.first_to_go(&mut |frame| {
            order.push(frame.0);
            false
        });
        order.sort_unstable();
        let held: Vec<u32> = self.held.keys().copied().collect();
        let len = self.pool.len();
        if order != held || len != held.len() {
            return Err(format!("{held:?} are held, {order:?} offered, {len} counted"));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_keeps_its_word_under_hints_that_change(events in prop::collection::vec(event(), 1..200)) {
        for &policy in POOL_POLICIES {
            let pool = hinted(policy, FRAMES);
            let mut caller = Caller { pool, held: BTreeMap::new() };
            for &event in &events {
                caller.apply(event)?;
                caller.check().map_err(|e| TestCaseError::fail(format!("{policy}: {e}, after {event:?}")))?;
            }
        }
    }

    #[test]
    fn without_hints_a_policy_is_what_it_was(events in prop::collection::vec(event(), 1..200)) {
        for &policy in POOL_POLICIES {
            let params = FramePolicyParams::new(FRAMES as usize, Costs::PAPER);
            let (mut plain, mut pool) = (policy.build(&params), hinted(policy, FRAMES));
            for &event in &events {
                let both: [&mut dyn FramePolicy; 2] = [&mut *plain, &mut pool];
                let [a, b] = both.map(|one| match event {
                    Event::Put(frame, space, access) => {
                        let page = PageId::new(SpaceId(space), frame);
                        one.insert(FrameId(frame), page, Location::Hdd, access);
                        Vec::new()
                    }
                    Event::Hit(frame, write) => {
                        one.hit(FrameId(frame), write);
                        Vec::new()
                    }
                    Event::Dirtied(frame) => {
                        one.dirtied(FrameId(frame));
                        Vec::new()
                    }
                    Event::Evict(refused) => {
                        let victim = one.victim(&mut |frame| refused & 1 << frame.0 == 0);
                        victim.into_iter().for_each(|victim| one.remove(victim, true));
                        victim.into_iter().collect()
                    }
                    Event::Clean(depth, max) => {
                        let mut set = Vec::new();
                        one.clean_set(depth, max, &mut |_| FrameState::Dirty, &mut set);
                        set
                    }
                    _ => Vec::new(),
                });
                prop_assert_eq!(a, b, "{} after {:?}", policy, event);
            }
        }
    }
}
