//! Random events for pool policies, and helpers for the tests of several policies.

use pagetier_policy::{Access, CleanReason, Costs, FrameId, FramePolicy, Location, PageId};
use proptest::prelude::*;

/// The normalised costs of section 6.2; whole numbers, so that sums are exact.
pub(crate) const COSTS: Costs =
    Costs { hdd_read_ms: 70.0, hdd_write_ms: 50.0, ssd_read_ms: 1.0, ssd_write_ms: 3.0 };

pub(crate) fn f(n: u32) -> FrameId {
    FrameId(n)
}

pub(crate) fn evict(policy: &mut dyn FramePolicy) -> Option<u32> {
    let frame = policy.victim(&mut |_| true)?;
    policy.remove(frame, true);
    Some(frame.0)
}

pub(crate) fn drain(policy: &mut dyn FramePolicy) -> Vec<u32> {
    std::iter::from_fn(|| evict(policy)).collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Insert(u32, Location, Access),
    Hit(u32),
    Dirtied(u32),
    /// Evicts a page; the bits mark the frames that are refused.
    Evict(u32),
    Discard(u32),
    Cleaned(u32, Location, CleanReason),
    SsdEvicted(u32),
    SsdInvalidated(u32),
}

pub(crate) const FRAMES: u32 = 24;

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let frame = || 0..FRAMES;
    let location = || prop_oneof![Just(Location::Ssd), Just(Location::Hdd)];
    let access = prop_oneof![3 => Just(Access::Random), 1 => Just(Access::Sequential)];
    let reason = prop_oneof![Just(CleanReason::Replacement), Just(CleanReason::Recoverability)];
    prop_oneof![
        8 => (frame(), location(), access).prop_map(|(f, h, a)| Event::Insert(f, h, a)),
        9 => frame().prop_map(Event::Hit),
        4 => frame().prop_map(Event::Dirtied),
        6 => prop_oneof![2 => Just(0), 1 => any::<u32>()].prop_map(Event::Evict),
        1 => frame().prop_map(Event::Discard),
        3 => (frame(), location(), reason).prop_map(|(f, h, r)| Event::Cleaned(f, h, r)),
        2 => frame().prop_map(Event::SsdEvicted),
        2 => frame().prop_map(Event::SsdInvalidated),
    ]
}

pub(crate) fn apply(policy: &mut dyn FramePolicy, event: Event) {
    match event {
        Event::Insert(frame, location, access) => {
            policy.insert(f(frame), PageId::default(), location, access)
        }
        Event::Hit(frame) => policy.hit(f(frame), false),
        Event::Dirtied(frame) => policy.dirtied(f(frame)),
        Event::Evict(refused) => {
            if let Some(frame) = policy.victim(&mut |frame| refused & 1 << frame.0 == 0) {
                policy.remove(frame, true);
            }
        }
        Event::Discard(frame) => policy.remove(f(frame), false),
        Event::Cleaned(frame, location, reason) => policy.cleaned(f(frame), location, reason),
        Event::SsdEvicted(frame) => policy.ssd_evicted(f(frame)),
        Event::SsdInvalidated(frame) => policy.ssd_invalidated(f(frame)),
    }
}

/// Returns the frames in the order of eviction.
pub(crate) fn order(policy: &dyn FramePolicy) -> Vec<u32> {
    let mut order = Vec::new();
    policy.first_to_go(&mut |frame| {
        order.push(frame.0);
        false
    });
    order
}
