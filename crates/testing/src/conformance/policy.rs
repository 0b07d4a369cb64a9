//! What the callers of a policy rely on.
//!
//! A test of a policy of your own is one line: `conformance::check_pool(|params| MY_FACTORY.build(params))`,
//! or `check_ssd`.
//!
//! Each check plays random but reproducible lives of a pool or an SSD against the policy, and calls the
//! policy's own `validate` after every event. The store does not depend on any of it: a policy that breaks
//! its word is slow, not dangerous.

use pagetier_policy::{
    Access, Cause, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, FrameState, Location, Millis,
    PageId, SlotId, SlotPolicy, SlotPolicyParams, SpaceId, Verdict,
};
use std::collections::BTreeMap;

/// Frames of the pools.
const FRAMES: u32 = 24;

/// Lives per check, and the maximum number of events of each.
const LIVES: u64 = 100;
const EVENTS: u64 = 300;

/// A reproducible source of random numbers: SplitMix64 (Steele, Lea & Flood 2014), to need no dependency.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % n
    }

    fn no(&mut self, n: u32) -> u32 {
        self.below(u64::from(n)) as u32
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Mostly no bits, otherwise random ones.
    fn bits(&mut self) -> u32 {
        if self.below(3) < 2 { 0 } else { self.below(1 << 32) as u32 }
    }

    fn location(&mut self) -> Location {
        self.pick(&[Location::Ssd, Location::Hdd])
    }

    fn access(&mut self) -> Access {
        self.pick(&[Access::Random, Access::Random, Access::Random, Access::Sequential])
    }

    fn costs(&mut self) -> Costs {
        let (hdd_read_ms, hdd_write_ms) = (self.below(98) as f64 + 2.0, self.below(98) as f64 + 2.0);
        Costs { hdd_read_ms, hdd_write_ms, ..Costs::PAPER }
    }
}

/// Plays `LIVES` lives: `begin` starts one, `step` draws and applies an event.
fn play<W>(begin: impl Fn() -> W, mut step: impl FnMut(&mut W, &mut Dice) -> Result<String, String>) {
    for life in 0..LIVES {
        let (mut world, mut dice) = (begin(), Dice(life));
        let mut past = Vec::new();
        for _ in 0..=dice.below(EVENTS) {
            match step(&mut world, &mut dice) {
                Ok(event) => past.push(event),
                Err(wrong) => {
                    let last = past.iter().rev().take(12).rev().cloned().collect::<Vec<_>>().join("; ");
                    panic!("life {life}, after {} events, the last of them {last}: {wrong}", past.len());
                }
            }
        }
    }
}

fn check(holds: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(wrong()) }
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
    Costs(Costs),
    /// Resizes the pool; frames of larger numbers may stay.
    Frames(u32),
}

/// A policy and its caller's state: the frames that hold pages, and whether each page is dirty.
struct Caller {
    policy: Box<dyn FramePolicy>,
    held: BTreeMap<u32, bool>,
}

impl Caller {
    fn apply(&mut self, event: Event) -> Result<(), String> {
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
            Event::Costs(costs) => policy.set_costs(costs),
            Event::Frames(frames) => policy.set_frames(frames as usize),
        }
        Ok(())
    }

    fn evict(&mut self, refused: u32) -> Result<(), String> {
        let held = &self.held;
        let mut asked = Vec::new();
        let accepts = |frame: u32| refused & 1 << frame == 0;
        let victim = self.policy.victim(&mut |frame| {
            asked.push(frame.0);
            accepts(frame.0)
        });
        asked.sort_unstable();
        let asked_once = asked.windows(2).all(|two| two[0] != two[1]);
        check(asked_once && asked.iter().all(|frame| held.contains_key(frame)), || {
            format!("asked for {asked:?}")
        })?;
        match victim {
            Some(victim) => {
                check(accepts(victim.0), || format!("{victim:?} was refused"))?;
                self.policy.remove(victim, true);
                self.held.remove(&victim.0);
            }
            None => {
                check(!held.keys().any(|&frame| accepts(frame)), || "some frame would have gone".to_owned())?
            }
        }
        Ok(())
    }

    fn clean(&mut self, depth: usize, max: usize, busy: u32) -> Result<(), String> {
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
        check(frames.windows(2).all(|two| two[0] != two[1]), || format!("twice in {frames:?}"))?;
        check(set.len() <= max, || "set.len() <= max does not hold".to_owned())?;
        check(set.iter().all(|&frame| state(frame) == FrameState::Dirty), || format!("not dirty: {set:?}"))?;
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

impl Event {
    fn draw(dice: &mut Dice) -> Self {
        let frame = dice.no(FRAMES);
        match dice.below(44) {
            0..8 => Self::Insert(frame, dice.no(3), dice.location(), dice.access()),
            8..16 => Self::Hit(frame, dice.below(2) == 0),
            16..21 => Self::Dirtied(frame),
            21..26 => Self::Evict(dice.bits()),
            26 => Self::Discard(frame),
            27..30 => {
                let reason = dice.pick(&[CleanReason::Replacement, CleanReason::Recoverability]);
                Self::Cleaned(frame, dice.location(), reason)
            }
            30..33 => Self::Clean(dice.below(12) as usize, dice.below(12) as usize, dice.bits()),
            33..36 => Self::SsdEvicted(frame),
            36..39 => Self::SsdInvalidated(frame),
            39..41 => Self::Costs(dice.costs()),
            _ => Self::Frames(1 + dice.no(2 * FRAMES)),
        }
    }
}

/// Checks the pool policy that `build` builds against the contract of [`FramePolicy`].
///
/// # Panics
/// On a violation, with the life's number and its last events.
pub fn check_pool(build: impl Fn(&FramePolicyParams) -> Box<dyn FramePolicy>) {
    let params =
        FramePolicyParams { cluster_pages: 4, ..FramePolicyParams::new(FRAMES as usize, Costs::PAPER) };
    let begin = || Caller { policy: build(&params), held: BTreeMap::new() };
    play(begin, |caller, dice| {
        let event = Event::draw(dice);
        caller.apply(event)?;
        caller.agrees().map_err(|wrong| format!("{wrong}, after {event:?}"))?;
        Ok(format!("{event:?}"))
    });
    untracked_frames_are_ignored(build(&params));
    the_pool_may_grow(build(&params));
    one_frame_is_enough(build(&FramePolicyParams::new(1, Costs::PAPER)));
}

impl Caller {
    /// Checks what holds after every event.
    fn agrees(&mut self) -> Result<(), String> {
        self.policy.validate()?;
        let held = self.held.len();
        check(self.policy.len() == held, || format!("{} frames are tracked, not {held}", self.policy.len()))?;
        check(self.policy.is_empty() == (held == 0), || "is_empty contradicts len".to_owned())?;
        let order = self.order();
        check(order.len() == held, || format!("{held} pages, of which it offers {order:?}"))?;
        let again = self.order();
        check(again == order, || format!("a pick without an eviction changed {order:?} to {again:?}"))
    }
}

/// Hits reach a policy late, in batches, so a frame may have been vacated meanwhile.
fn untracked_frames_are_ignored(mut policy: Box<dyn FramePolicy>) {
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
    assert_eq!(policy.validate(), Ok(()), "after events of untracked frames");
    assert_eq!((policy.len(), policy.victim(&mut |_| true)), (1, Some(FrameId(1))), "of one tracked frame");
}

/// A running store may resize its pool.
fn the_pool_may_grow(mut policy: Box<dyn FramePolicy>) {
    for frame in 0..4 * FRAMES {
        policy.insert(FrameId(frame), PageId::new(SpaceId(9), frame), Location::Hdd, Access::Random);
        policy.dirtied(FrameId(frame));
    }
    assert_eq!(policy.validate(), Ok(()), "after growth");
    assert_eq!(policy.len(), 4 * FRAMES as usize, "frames after growth");
}

fn one_frame_is_enough(mut policy: Box<dyn FramePolicy>) {
    for no in 0..4 {
        policy.insert(FrameId(0), PageId::new(SpaceId(1), no), Location::Hdd, Access::Random);
        policy.hit(FrameId(0), true);
        policy.dirtied(FrameId(0));
        policy.cleaned(FrameId(0), Location::Hdd, CleanReason::Replacement);
        assert_eq!(policy.victim(&mut |_| true), Some(FrameId(0)), "the victim of one frame");
        policy.remove(FrameId(0), true);
        assert_eq!(policy.validate(), Ok(()), "with one frame");
    }
}

const SLOTS: u32 = 12;
const PAGES: u32 = 40;

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
    Costs(Costs),
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

    fn apply(&mut self, event: SsdEvent) -> Result<(), String> {
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
                check(zone.len() <= k, || "zone.len() <= k does not hold".to_owned())?;
                let fits = |slot: &SlotId| self.slots[slot.at()].is_some() && refused & 1 << slot.0 == 0;
                check(zone.iter().all(fits), || format!("{zone:?}"))?;
                self.zone = zone;
            }
            SsdEvent::Victims(n) => {
                let mut victims = Vec::new();
                self.policy.next_victims(n, now, &mut victims);
                check(victims.len() <= n && victims.iter().all(|slot| self.zone.contains(slot)), || {
                    "victims.len() <= n && victims.iter().all(|slot| self.zone.contains(slot)) does not hold"
                        .to_owned()
                })?;
            }
            SsdEvent::Costs(costs) => self.policy.set_costs(costs),
        }
        Ok(())
    }

    fn consider(&mut self, no: u32, cause: Cause, refused: u32) -> Result<(), String> {
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
        check(asked.iter().all(|slot| self.zone.contains(slot)), || {
            format!("outside of the zone: {asked:?}")
        })?;
        let slot = match (verdict, free) {
            (Verdict::Reject, _) => return Ok(()),
            (Verdict::AdmitFree, Some(free)) => SlotId(free as u32),
            (Verdict::AdmitFree, None) => return Err("no slot is free".to_owned()),
            (Verdict::AdmitOver(slot), _) => {
                check(free.is_none() && refused & 1 << slot.0 == 0 && self.zone.contains(&slot), || {
                    "free.is_none() && refused & 1 << slot.0 == 0 && self.zone.contains(&slot) does not hold"
                        .to_owned()
                })?;
                self.lose(self.slots[slot.at()].expect("occupied"), true);
                slot
            }
        };
        self.slots[slot.at()] = Some(no);
        self.policy.inserted(p(no), slot, now);
        Ok(())
    }
}

impl SsdEvent {
    fn draw(dice: &mut Dice) -> Self {
        let no = dice.no(PAGES);
        match dice.below(38) {
            0..8 => Self::Read(no, dice.access()),
            8..10 => Self::Logical(no, 1 + dice.no(8)),
            10..18 => {
                Self::Consider(no, dice.pick(&[Cause::Cleaned, Cause::Evicted, Cause::Read]), dice.bits())
            }
            18..21 => Self::Rewrite(no),
            21..23 => Self::Invalidate(no),
            23..25 => Self::CopiedHome(no, dice.no(SLOTS)),
            25..28 => Self::LeavePool(no),
            28 => Self::Forget(no),
            29..33 => Self::Zone(dice.below(20) as usize, dice.bits()),
            33..35 => Self::Victims(dice.below(9) as usize),
            _ => Self::Costs(dice.costs()),
        }
    }
}

/// Checks the SSD policy that `build` builds against the contract of [`SlotPolicy`].
///
/// # Panics
/// On a violation, with the life's number and its last events.
pub fn check_ssd(build: impl Fn(&SlotPolicyParams) -> Box<dyn SlotPolicy>) {
    // Small, so that the outqueue overflows within a life.
    let params =
        SlotPolicyParams { outqueue_entries: 8, ..SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, 8) };
    // An empty SSD, and one on which an open finds a page in all slots but every fifth.
    for is_found in [|_: u32| false, |slot: u32| !slot.is_multiple_of(5)] {
        let begin = || {
            let mut policy = build(&params);
            let slots: Vec<Option<u32>> = (0..SLOTS).map(|slot| is_found(slot).then_some(3 * slot)).collect();
            for (no, slot) in slots.iter().zip(0..).filter_map(|(no, slot)| Some(((*no)?, slot))) {
                policy.recovered(p(no), SlotId(slot));
            }
            Ssd { policy, slots, zone: Vec::new(), now: Millis(0) }
        };
        play(begin, |ssd, dice| {
            let event = SsdEvent::draw(dice);
            ssd.apply(event).map_err(|wrong| format!("{wrong}, in {event:?}"))?;
            ssd.policy.validate().map_err(|wrong| format!("{wrong}, after {event:?}"))?;
            Ok(format!("{event:?}"))
        });
    }
    unknown_pages_are_ignored(build(&params));
}

fn unknown_pages_are_ignored(mut policy: Box<dyn SlotPolicy>) {
    let (page, now) = (p(3), Millis(1));
    policy.logical(page, 2, Location::Ssd, now);
    policy.wrote(page, Location::Ssd, now);
    policy.wrote(page, Location::Hdd, now);
    policy.copied_home(page, SlotId(0));
    policy.removed(page, true, now);
    policy.removed(page, false, now);
    policy.left_pool(page, now);
    policy.forget(page);
    assert_eq!(policy.validate(), Ok(()), "after events of unknown pages");
    let mut zone = Vec::new();
    policy.start_zone(9, &mut |_| true, now, &mut zone);
    policy.next_victims(9, now, &mut zone);
    assert_eq!((zone.len(), policy.benefit(page)), (0, None), "without pages on the SSD");
    assert!(!policy.second_chance(SlotId(0)), "a second chance for an empty slot");
}
