//! What the callers of a policy rely on, for every policy: one table of policies, one set of rules.

use pagetier_policy::{
    Access, Cause, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, FrameState, Location, Millis,
    PageId, PoolPolicy, SlotId, SlotPolicy, SlotPolicyParams, SpaceId, SsdPolicy, Verdict,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const FRAMES: u32 = 24;

/// Every policy with its options, and with windows of several sizes.
fn pool_choices() -> Vec<PoolPolicy> {
    let windowed = ["cflru-1", "cflru-100", "ref-10", "ref-100", "cfdc-25", "cfdc-75", "cfdc-100"];
    let weighted = ["gd2l:frequency", "gd2l:write-back"];
    let named = windowed.iter().chain(&weighted).map(|name| name.parse().expect(name));
    PoolPolicy::ALL.iter().copied().chain(named).collect()
}

/// Builds these policies with clusters of four pages.
fn pool_policies() -> Vec<(PoolPolicy, Box<dyn FramePolicy>)> {
    let params =
        FramePolicyParams { cluster_pages: 4, ..FramePolicyParams::new(FRAMES as usize, Costs::PAPER) };
    pool_choices().into_iter().map(|choice| (choice, choice.build(&params))).collect()
}

/// One of three pages of `frame`, so that no page is in two frames.
fn page(frame: u32, which: u32) -> PageId {
    PageId::new(SpaceId(1 + which / 2), frame + FRAMES * (which % 2))
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Insert(u32, u32, Location, Access),
    Hit(u32, bool),
    Dirtied(u32),
    /// Evicts a page; the bits mark the frames that are refused.
    Evict(u32),
    Discard(u32),
    Cleaned(u32, Location, CleanReason),
    /// Cleans the set for a depth and a maximum; the bits mark the busy frames.
    Clean(usize, usize, u32),
    SsdEvicted(u32),
    SsdInvalidated(u32),
    Costs(u32, u32),
    /// Resizes the pool; frames of larger numbers may stay.
    Frames(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let frame = || 0..FRAMES;
    let location = || prop_oneof![Just(Location::Ssd), Just(Location::Hdd)];
    let access = prop_oneof![3 => Just(Access::Random), 1 => Just(Access::Sequential)];
    let reason = prop_oneof![Just(CleanReason::Replacement), Just(CleanReason::Recoverability)];
    let refused = || prop_oneof![2 => Just(0), 1 => any::<u32>()];
    prop_oneof![
        8 => (frame(), 0..3u32, location(), access).prop_map(|(f, w, h, a)| Event::Insert(f, w, h, a)),
        8 => (frame(), any::<bool>()).prop_map(|(f, w)| Event::Hit(f, w)),
        5 => frame().prop_map(Event::Dirtied),
        5 => refused().prop_map(Event::Evict),
        1 => frame().prop_map(Event::Discard),
        3 => (frame(), location(), reason).prop_map(|(f, h, r)| Event::Cleaned(f, h, r)),
        3 => (0..12usize, 0..12usize, refused()).prop_map(|(d, m, r)| Event::Clean(d, m, r)),
        2 => frame().prop_map(Event::SsdEvicted),
        2 => frame().prop_map(Event::SsdInvalidated),
        1 => (1..100u32, 1..100u32).prop_map(|(r, w)| Event::Costs(r, w)),
        1 => (1..2 * FRAMES).prop_map(Event::Frames),
    ]
}

/// A policy and its caller's state: the frames that hold pages, and whether each page is dirty.
struct Caller {
    policy: Box<dyn FramePolicy>,
    held: BTreeMap<u32, bool>,
}

impl Caller {
    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        let Self { policy, held } = self;
        match event {
            Event::Insert(frame, which, location, access) => {
                policy.insert(FrameId(frame), page(frame, which), location, access);
                held.insert(frame, false);
            }
            Event::Hit(frame, write) => policy.hit(FrameId(frame), write),
            Event::Dirtied(frame) => {
                policy.dirtied(FrameId(frame));
                held.entry(frame).and_modify(|dirty| *dirty = true);
            }
            Event::Evict(refused) => self.evict(refused)?,
            Event::Discard(frame) => {
                policy.remove(FrameId(frame), false);
                held.remove(&frame);
            }
            Event::Cleaned(frame, location, reason) => {
                policy.cleaned(FrameId(frame), location, reason);
                held.entry(frame).and_modify(|dirty| *dirty = false);
            }
            Event::Clean(depth, max, busy) => self.clean(depth, max, busy)?,
            Event::SsdEvicted(frame) => policy.ssd_evicted(FrameId(frame)),
            Event::SsdInvalidated(frame) => policy.ssd_invalidated(FrameId(frame)),
            Event::Costs(read, write) => policy.set_costs(Costs {
                hdd_read_ms: f64::from(read),
                hdd_write_ms: f64::from(write),
                ..Costs::PAPER
            }),
            Event::Frames(frames) => policy.set_frames(frames as usize),
        }
        Ok(())
    }

    fn evict(&mut self, refused: u32) -> Result<(), TestCaseError> {
        let held = &self.held;
        let mut asked = Vec::new();
        let accepts = |frame: u32| refused & 1 << frame == 0;
        let victim = self.policy.victim(&mut |frame| {
            asked.push(frame.0);
            accepts(frame.0)
        });
        asked.sort_unstable();
        let asked_once = asked.windows(2).all(|two| two[0] != two[1]);
        prop_assert!(asked_once && asked.iter().all(|frame| held.contains_key(frame)), "asked for {asked:?}");
        match victim {
            Some(victim) => {
                prop_assert!(accepts(victim.0), "{victim:?} was refused");
                self.policy.remove(victim, true);
                self.held.remove(&victim.0);
            }
            None => prop_assert!(!held.keys().any(|&frame| accepts(frame)), "some frame would have gone"),
        }
        Ok(())
    }

    fn clean(&mut self, depth: usize, max: usize, busy: u32) -> Result<(), TestCaseError> {
        let held = &self.held;
        let mut state = |frame: FrameId| match held.get(&frame.0) {
            _ if busy & 1 << frame.0 != 0 => FrameState::Busy,
            Some(true) => FrameState::Dirty,
            _ => FrameState::Clean,
        };
        let mut set = Vec::new();
        self.policy.clean_set(depth, max, &mut state, &mut set);
        let mut frames: Vec<u32> = set.iter().map(|frame| frame.0).collect();
        frames.sort_unstable();
        prop_assert!(frames.windows(2).all(|two| two[0] != two[1]), "twice in {frames:?}");
        prop_assert!(set.len() <= max);
        prop_assert!(set.iter().all(|&frame| state(frame) == FrameState::Dirty), "not dirty: {set:?}");
        for frame in set {
            self.policy.cleaned(frame, Location::Hdd, CleanReason::Replacement);
            self.held.insert(frame.0, false);
        }
        Ok(())
    }

    /// Returns the frames in the order of eviction.
    fn order(&mut self) -> Vec<u32> {
        let mut order = Vec::new();
        self.policy.victim(&mut |frame| {
            order.push(frame.0);
            false
        });
        order
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pool_policies_keep_their_word(events in prop::collection::vec(event(), 1..300)) {
        for (name, policy) in pool_policies() {
            let mut caller = Caller { policy, held: BTreeMap::new() };
            for &event in &events {
                caller.apply(event)?;
                caller.policy.validate().map_err(|e| TestCaseError::fail(format!("{name}: {e}, after {event:?}")))?;
                prop_assert_eq!(caller.policy.len(), caller.held.len(), "{} after {:?}", name, event);
                prop_assert_eq!(caller.policy.is_empty(), caller.held.is_empty());
                let order = caller.order();
                // A pick without an eviction changes nothing.
                prop_assert_eq!(caller.order(), order.clone(), "{}", name);
                prop_assert_eq!(order.len(), caller.held.len(), "{} after {:?}: {:?}", name, event, order);
            }
        }
    }
}

#[test]
fn a_pool_policy_ignores_frames_that_it_does_not_track() {
    for (name, mut policy) in pool_policies() {
        policy.insert(FrameId(1), page(1, 0), Location::Hdd, Access::Random);
        // A frame within the pool, and one beyond it.
        for frame in [FrameId(2), FrameId(FRAMES + 1000)] {
            policy.hit(frame, true);
            policy.dirtied(frame);
            policy.cleaned(frame, Location::Ssd, CleanReason::Replacement);
            policy.cleaned(frame, Location::Hdd, CleanReason::Recoverability);
            policy.ssd_evicted(frame);
            policy.ssd_invalidated(frame);
            policy.remove(frame, true);
            policy.remove(frame, false);
        }
        policy.validate().unwrap();
        assert_eq!((policy.len(), policy.victim(&mut |_| true)), (1, Some(FrameId(1))), "{}", name);
    }
}

#[test]
fn a_pool_policy_grows_with_its_pool() {
    for (name, mut policy) in pool_policies() {
        for frame in 0..4 * FRAMES {
            policy.insert(FrameId(frame), PageId::new(SpaceId(9), frame), Location::Hdd, Access::Random);
            policy.dirtied(FrameId(frame));
        }
        policy.validate().unwrap();
        assert_eq!(policy.len(), 4 * FRAMES as usize, "{}", name);
    }
}

#[test]
fn one_frame_is_pool_enough() {
    for name in pool_choices() {
        let mut policy = name.build(&FramePolicyParams::new(1, Costs::PAPER));
        for no in 0..4 {
            policy.insert(FrameId(0), PageId::new(SpaceId(1), no), Location::Hdd, Access::Random);
            policy.hit(FrameId(0), true);
            policy.dirtied(FrameId(0));
            policy.cleaned(FrameId(0), Location::Hdd, CleanReason::Replacement);
            assert_eq!(policy.victim(&mut |_| true), Some(FrameId(0)), "{name}");
            policy.remove(FrameId(0), true);
            policy.validate().unwrap();
        }
    }
}

const SLOTS: u32 = 12;
const PAGES: u32 = 40;

/// Every policy, and CAC and CC with each option and with several.
fn ssd_policies() -> impl Iterator<Item = (SsdPolicy, Box<dyn SlotPolicy>)> {
    let params = SlotPolicyParams {
        outqueue_entries: 8,
        sketch_halved_after_per_slot: 3,
        ..SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, 8)
    };
    let many = [
        "cac:ageing=2,write-at-hand,rewrite,sketch",
        "cac:ageing=2,dirty,strict-zone",
        "cc:ageing=2,rewrite",
        "auto:pin=forever",
        "auto:pin=half-life-1",
    ];
    let each = SsdPolicy::PARTS.iter().flat_map(|part| [format!("cac:{part}"), format!("cc:{part}")]);
    let named = each.chain(many.map(str::to_owned)).map(|name| name.parse().expect("a policy"));
    let all: Vec<SsdPolicy> = SsdPolicy::ALL.iter().copied().chain(named).collect();
    all.into_iter().map(move |choice| (choice, choice.build(&params)))
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1 + no % 2), no)
}

#[derive(Clone, Copy, Debug)]
enum SsdEvent {
    Read(u32, Access),
    Logical(u32, u32),
    /// Considers a page; the bits mark the unusable slots.
    Consider(u32, Cause, u32),
    Rewrite(u32),
    Invalidate(u32),
    CopiedHome(u32, u32),
    LeavePool(u32),
    Forget(u32),
    /// Starts a zone of k slots; the bits mark the ineligible ones.
    Zone(usize, u32),
    Victims(usize),
    Costs(u32, u32),
}

fn ssd_event() -> impl Strategy<Value = SsdEvent> {
    let no = || 0..PAGES;
    let access = prop_oneof![3 => Just(Access::Random), 1 => Just(Access::Sequential)];
    let cause = prop_oneof![Just(Cause::Cleaned), Just(Cause::Evicted), Just(Cause::Read)];
    let refused = || prop_oneof![3 => Just(0), 1 => any::<u32>()];
    prop_oneof![
        8 => (no(), access).prop_map(|(n, a)| SsdEvent::Read(n, a)),
        2 => (no(), 1..9u32).prop_map(|(n, r)| SsdEvent::Logical(n, r)),
        8 => (no(), cause, refused()).prop_map(|(n, c, r)| SsdEvent::Consider(n, c, r)),
        3 => no().prop_map(SsdEvent::Rewrite),
        2 => no().prop_map(SsdEvent::Invalidate),
        2 => (no(), 0..SLOTS).prop_map(|(n, slot)| SsdEvent::CopiedHome(n, slot)),
        3 => no().prop_map(SsdEvent::LeavePool),
        1 => no().prop_map(SsdEvent::Forget),
        4 => (0..20usize, refused()).prop_map(|(k, r)| SsdEvent::Zone(k, r)),
        2 => (0..9usize).prop_map(SsdEvent::Victims),
        1 => (2..100u32, 2..100u32).prop_map(|(r, w)| SsdEvent::Costs(r, w)),
    ]
}

/// An SSD policy under a caller that evicts within the zone: the page in each slot, and the slots that may be
/// evicted.
struct Ssd {
    policy: Box<dyn SlotPolicy>,
    slots: Vec<Option<u32>>,
    zone: Vec<SlotId>,
    now: Millis,
}

impl Ssd {
    fn slot_of(&self, no: u32) -> Option<SlotId> {
        self.slots.iter().position(|slot| *slot == Some(no)).map(|at| SlotId(at as u32))
    }

    fn location(&self, no: u32) -> Location {
        if self.slot_of(no).is_some() { Location::Ssd } else { Location::Hdd }
    }

    fn lose(&mut self, no: u32, evicted: bool) {
        if let Some(slot) = self.slot_of(no) {
            self.slots[slot.at()] = None;
            self.zone.retain(|candidate| *candidate != slot);
            self.policy.removed(p(no), evicted, self.now);
        }
    }

    fn apply(&mut self, event: SsdEvent) -> Result<(), TestCaseError> {
        self.now.0 += 700;
        let now = self.now;
        match event {
            SsdEvent::Read(no, access) => self.policy.read(p(no), Some(self.location(no)), access, now),
            SsdEvent::Logical(no, n) => self.policy.logical(p(no), n, self.location(no), now),
            SsdEvent::Consider(no, cause, refused) => self.consider(no, cause, refused)?,
            SsdEvent::Rewrite(no) => self.policy.wrote(p(no), self.location(no), now),
            SsdEvent::Invalidate(no) => self.lose(no, false),
            SsdEvent::CopiedHome(no, slot) => {
                self.policy.copied_home(p(no), self.slot_of(no).unwrap_or(SlotId(slot)));
            }
            SsdEvent::LeavePool(no) => self.policy.left_pool(p(no), now),
            SsdEvent::Forget(no) => {
                if let Some(slot) = self.slot_of(no) {
                    self.slots[slot.at()] = None;
                    self.zone.retain(|candidate| *candidate != slot);
                }
                self.policy.forget(p(no));
            }
            SsdEvent::Zone(k, refused) => {
                let mut zone = Vec::new();
                self.policy.start_zone(k, &mut |slot| refused & 1 << slot.0 == 0, now, &mut zone);
                prop_assert!(zone.len() <= k);
                let fits = |slot: &SlotId| self.slots[slot.at()].is_some() && refused & 1 << slot.0 == 0;
                prop_assert!(zone.iter().all(fits), "{zone:?}");
                self.zone = zone;
            }
            SsdEvent::Victims(n) => {
                let mut victims = Vec::new();
                self.policy.next_victims(n, now, &mut victims);
                prop_assert!(victims.len() <= n && victims.iter().all(|slot| self.zone.contains(slot)));
            }
            SsdEvent::Costs(read, write) => self.policy.set_costs(Costs {
                hdd_read_ms: f64::from(read),
                hdd_write_ms: f64::from(write),
                ..Costs::PAPER
            }),
        }
        Ok(())
    }

    fn consider(&mut self, no: u32, cause: Cause, refused: u32) -> Result<(), TestCaseError> {
        if self.slot_of(no).is_some() || cause == Cause::Read && !self.policy.admits_on_read() {
            return Ok(());
        }
        let now = self.now;
        self.policy.read(p(no), Some(Location::Hdd), Access::Random, now);
        let free = self.slots.iter().position(Option::is_none);
        let mut asked = Vec::new();
        let verdict = self.policy.consider(
            p(no),
            cause,
            usize::from(free.is_some()),
            &mut |slot| {
                asked.push(slot);
                refused & 1 << slot.0 == 0
            },
            now,
        );
        prop_assert!(asked.iter().all(|slot| self.zone.contains(slot)), "outside of the zone: {asked:?}");
        let slot = match (verdict, free) {
            (Verdict::Reject, _) => return Ok(()),
            (Verdict::AdmitFree, Some(free)) => SlotId(free as u32),
            (Verdict::AdmitFree, None) => return Err(TestCaseError::fail("no slot is free")),
            (Verdict::AdmitOver(slot), _) => {
                prop_assert!(free.is_none() && refused & 1 << slot.0 == 0 && self.zone.contains(&slot));
                self.lose(self.slots[slot.at()].expect("occupied"), true);
                slot
            }
        };
        self.slots[slot.at()] = Some(no);
        self.policy.inserted(p(no), slot, now);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ssd_policies_keep_their_word(events in prop::collection::vec(ssd_event(), 1..300)) {
        for (name, policy) in ssd_policies() {
            let mut ssd = Ssd { policy, slots: vec![None; SLOTS as usize], zone: Vec::new(), now: Millis(0) };
            for &event in &events {
                ssd.apply(event).map_err(|e| TestCaseError::fail(format!("{name}: {e}, {event:?}")))?;
                ssd.policy.validate().map_err(|e| TestCaseError::fail(format!("{name}: {e}, after {event:?}")))?;
            }
        }
    }
}

#[test]
fn an_ssd_policy_ignores_pages_that_it_does_not_know() {
    for (name, mut policy) in ssd_policies() {
        let (page, now) = (p(3), Millis(1));
        policy.logical(page, 2, Location::Ssd, now);
        policy.wrote(page, Location::Ssd, now);
        policy.wrote(page, Location::Hdd, now);
        policy.copied_home(page, SlotId(0));
        policy.removed(page, true, now);
        policy.removed(page, false, now);
        policy.left_pool(page, now);
        policy.forget(page);
        policy.validate().unwrap();
        let mut zone = Vec::new();
        policy.start_zone(9, &mut |_| true, now, &mut zone);
        policy.next_victims(9, now, &mut zone);
        assert_eq!((zone.len(), policy.benefit(page)), (0, None), "{}", name);
        assert!(!policy.second_chance(SlotId(0)));
    }
}
