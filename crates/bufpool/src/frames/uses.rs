//! The uses of a page in memory: how many the tier has not heard of, and how many the policy has recently.
//!
//! A page that is used all the time would take the policy's lock, and several cache lines of its lists, for
//! each use, and stay where it is: at the end that leaves last. So the policy hears of a page's first uses in
//! each *period* (as many as it says in [`FramePolicy::uses_seen`]) and of no others. A period is the time in
//! which a 64th of the pool is replaced, so a page's place is wrong by at most that share of the pool. While
//! nothing is replaced, hits do not reach the policy at all.
//!
//! [`FramePolicy::uses_seen`]: pagetier_policy::FramePolicy::uses_seen

use crate::sync::AtomicU32;
use std::sync::atomic::{AtomicU8, Ordering};

/// The share of the pool that is replaced in a period: one of these.
const PERIODS: usize = 64;

/// The lowest 20 bits of [`Uses`] are the logical reads; 4 bits for the uses seen and 8 for the period
/// follow.
const LOGICAL: u32 = (1 << 20) - 1;
const SEEN_SHIFT: u32 = 20;
const SEEN_MAX: u8 = 15;
const PERIOD_SHIFT: u32 = 24;

/// The uses of the page in a frame. They are statistics: additions in one step would lock the cache line, so
/// of two changes at the same moment one may be lost.
#[derive(Debug)]
pub(crate) struct Uses(AtomicU32);

/// Which uses the policy wants to hear of, and the present period.
#[derive(Debug)]
pub(crate) struct Periods {
    /// Counted modulo 256: a page that was last used exactly so long ago may be taken for one that was just
    /// used, and lose a use.
    now: AtomicU8,
    seen: AtomicU8,
}

impl Uses {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Of a page that has just arrived.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts a logical read. Returns whether the policy should hear of it.
    #[inline]
    pub(crate) fn add(&self, periods: &Periods) -> bool {
        let uses = self.0.load(Ordering::Relaxed);
        let more = u32::from(uses & LOGICAL < LOGICAL);
        self.0.store(uses + more, Ordering::Relaxed);
        periods.want(uses)
    }

    /// Whether the policy should still hear of a use that was counted: it may have heard of others since.
    pub(crate) fn is_wanted(&self, periods: &Periods) -> bool {
        periods.want(self.0.load(Ordering::Relaxed))
    }

    /// Records that the policy has heard of a use.
    pub(crate) fn saw(&self, periods: &Periods) {
        let (uses, now) = (self.0.load(Ordering::Relaxed), periods.now());
        let seen = u32::from((seen_in(uses, now) + 1).min(SEEN_MAX));
        self.0.store(uses & LOGICAL | seen << SEEN_SHIFT | u32::from(now) << PERIOD_SHIFT, Ordering::Relaxed);
    }

    /// The policy has moved the page for another reason than a use, perhaps to the end that leaves first:
    /// the next use counts.
    pub(crate) fn moved(&self) {
        self.0.fetch_and(LOGICAL, Ordering::Relaxed);
    }

    /// Takes the logical reads that the tier has not heard of.
    pub(crate) fn take_logical(&self) -> u32 {
        self.0.fetch_and(!LOGICAL, Ordering::Relaxed) & LOGICAL
    }
}

/// The uses that the policy saw in the period `now`.
#[inline]
fn seen_in(uses: u32, now: u8) -> u8 {
    if uses >> PERIOD_SHIFT == u32::from(now) { (uses >> SEEN_SHIFT) as u8 & SEEN_MAX } else { 0 }
}

impl Periods {
    /// For a policy that wants to see this many uses of a page in a period.
    pub(crate) fn new(seen: u8) -> Self {
        Self { now: AtomicU8::new(0), seen: AtomicU8::new(seen) }
    }

    pub(crate) fn set_seen(&self, seen: u8) {
        self.seen.store(seen, Ordering::Relaxed);
    }

    #[inline]
    fn want(&self, uses: u32) -> bool {
        let wanted = self.seen.load(Ordering::Relaxed);
        seen_in(uses, self.now()) < wanted || wanted > SEEN_MAX
    }

    #[inline]
    fn now(&self) -> u8 {
        self.now.load(Ordering::Relaxed)
    }

    /// Records that `evicted` pages have left a pool of `frames` frames since its beginning.
    pub(crate) fn evicted(&self, evicted: u64, frames: usize) {
        let now = evicted / (frames / PERIODS).max(1) as u64;
        self.now.store(now as u8, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Uses the page; returns whether the policy saw it.
    fn used(uses: &Uses, periods: &Periods) -> bool {
        let seen = uses.add(periods);
        if seen {
            uses.saw(periods);
        }
        seen
    }

    #[test]
    fn the_policy_sees_so_many_uses_a_period_and_the_tier_all() {
        for wanted in [1, 10] {
            let (uses, periods) = (Uses::new(), Periods::new(wanted));
            for period in 0..600_u64 {
                // A 64th of 6,400 frames.
                periods.evicted(period * 100, 6400);
                let seen = (0..20).filter(|_| used(&uses, &periods)).count();
                assert_eq!(seen, usize::from(wanted), "period {period}");
            }
            assert_eq!(uses.take_logical(), 600 * 20);
            assert_eq!(uses.take_logical(), 0);
            assert!(!used(&uses, &periods), "taking them leaves what the policy saw");
        }
    }

    #[test]
    fn a_policy_that_wants_every_use_sees_it() {
        let (uses, periods) = (Uses::new(), Periods::new(u8::MAX));
        assert!((0..1000).all(|_| used(&uses, &periods)));
    }

    #[test]
    fn a_page_that_was_moved_or_replaced_begins_anew() {
        let (uses, periods) = (Uses::new(), Periods::new(1));
        assert!(used(&uses, &periods) && !used(&uses, &periods));
        uses.moved();
        assert!(used(&uses, &periods));
        assert_eq!(uses.take_logical(), 3);
        uses.reset();
        assert!(used(&uses, &periods));
    }

    #[test]
    fn logical_reads_do_not_overflow_into_what_the_policy_saw() {
        let (uses, periods) = (Uses::new(), Periods::new(1));
        uses.saw(&periods);
        assert!((0..LOGICAL + 5).all(|_| !used(&uses, &periods)));
        assert_eq!(uses.take_logical(), LOGICAL);
    }
}
