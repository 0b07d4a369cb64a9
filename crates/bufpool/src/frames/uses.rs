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
use std::sync::atomic::Ordering;

/// The share of the pool that is replaced in a period: one of these.
const PERIODS: usize = 64;

/// The lowest 4 bits of [`Uses`] are the uses seen, the next 8 the period: one comparison covers both. The
/// rest are the logical reads.
const SEEN_MAX: u32 = 15;
const PERIOD_SHIFT: u32 = 4;
const PERIOD: u32 = 0xff << PERIOD_SHIFT;
const LOGICAL_SHIFT: u32 = 12;
const LOGICAL: u32 = u32::MAX << LOGICAL_SHIFT;

/// The uses of the page in a frame. They are statistics: additions in one step would lock the cache line, so
/// of two changes at the same moment one may be lost.
#[derive(Debug)]
pub(crate) struct Uses(AtomicU32);

/// Which uses the policy wants to hear of, and the present period. Changes under the policy's lock.
#[derive(Debug)]
pub(crate) struct Periods {
    /// The lowest bits are those of a page of which the policy has just seen enough in this period; the
    /// bits from 16 on count the values from there on that mean the same. The period is counted modulo 256: a
    /// page last used exactly that long ago may be taken for one that was just used, and lose a use.
    enough: std::sync::atomic::AtomicU32,
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
        self.0.store(uses.checked_add(1 << LOGICAL_SHIFT).unwrap_or(uses), Ordering::Relaxed);
        periods.want(uses)
    }

    /// Whether the policy should still hear of a use that was counted: it may have heard of others since.
    pub(crate) fn is_wanted(&self, periods: &Periods) -> bool {
        periods.want(self.0.load(Ordering::Relaxed))
    }

    /// Records that the policy has heard of a use.
    pub(crate) fn saw(&self, periods: &Periods) {
        let (uses, period) =
            (self.0.load(Ordering::Relaxed), periods.enough.load(Ordering::Relaxed) & PERIOD);
        let seen = if uses & PERIOD == period { ((uses & SEEN_MAX) + 1).min(SEEN_MAX) } else { 1 };
        self.0.store(uses & LOGICAL | period | seen, Ordering::Relaxed);
    }

    /// The policy has moved the page for another reason than a use, perhaps to the end that leaves first:
    /// the next use counts.
    pub(crate) fn moved(&self) {
        self.0.fetch_and(LOGICAL, Ordering::Relaxed);
    }

    /// Takes the logical reads that the tier has not heard of.
    pub(crate) fn take_logical(&self) -> u32 {
        self.0.fetch_and(!LOGICAL, Ordering::Relaxed) >> LOGICAL_SHIFT
    }
}

impl Periods {
    /// For a policy that wants to see this many uses of a page in a period.
    pub(crate) fn new(seen: u8) -> Self {
        let periods = Self { enough: 0.into() };
        periods.set_seen(seen);
        periods
    }

    /// A policy that wants more than can be counted sees every use.
    pub(crate) fn set_seen(&self, seen: u8) {
        // No use at all cannot be told from the first one of a period.
        let seen = u32::from(seen).clamp(1, SEEN_MAX + 1);
        let period = self.enough.load(Ordering::Relaxed) & PERIOD;
        self.enough.store((SEEN_MAX + 1 - seen) << 16 | period | seen & SEEN_MAX, Ordering::Relaxed);
    }

    #[inline]
    fn want(&self, uses: u32) -> bool {
        let enough = self.enough.load(Ordering::Relaxed);
        (uses & !LOGICAL).wrapping_sub(enough & !LOGICAL) >= enough >> 16
    }

    /// Records that `evicted` pages have left a pool of `frames` frames since its beginning.
    pub(crate) fn evicted(&self, evicted: u64, frames: usize) {
        let period = ((evicted / (frames / PERIODS).max(1) as u64) as u32) << PERIOD_SHIFT & PERIOD;
        let rest = self.enough.load(Ordering::Relaxed) & !PERIOD;
        self.enough.store(rest | period, Ordering::Relaxed);
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
        assert!((0..(LOGICAL >> LOGICAL_SHIFT) + 5).all(|_| !used(&uses, &periods)));
        assert_eq!(uses.take_logical(), LOGICAL >> LOGICAL_SHIFT);
    }
}
