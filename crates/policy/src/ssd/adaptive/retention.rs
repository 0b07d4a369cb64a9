//! How long the pool retains pages that have no copy on the SSD.
//!
//! Under GreedyDual a page with a copy leaves the pool at once, and one without stays until L has risen to
//! its H. So the misses do depend on which pages the SSD holds: a page that the setting in force put on the
//! SSD is missed more often than it would be without its copy. A ghost that does not hold such a page must
//! not pay a read from the HDD for each of these misses.

/// The quantile of the times that is estimated. A low one: pages differ in how long the pool retains them,
/// and a read is left out only if nearly every page would have been retained that long.
const QUANTILE: f64 = 0.15;

/// The relative size of a step of the estimate.
const STEP: f64 = 1.0 / 64.0;

/// A low quantile of the times between a page's last physical access and its departure from the pool, over
/// pages without a copy, in ticks. A dirty page departs when it is written home: its frame is reused soon
/// after.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retention {
    ticks: f64,
}

impl Retention {
    /// Records that the pool retained a page without a copy until `idle` ticks after its last physical
    /// access.
    pub(super) fn ended(&mut self, idle: u32) {
        let idle = f64::from(idle);
        if self.ticks == 0.0 {
            self.ticks = idle.max(0.5);
        } else if idle > self.ticks {
            self.ticks *= 1.0 + STEP * QUANTILE;
        } else {
            self.ticks /= 1.0 + STEP * (1.0 - QUANTILE);
        }
    }

    /// Whether the pool would still hold a page `idle` ticks after its last physical access.
    pub(super) fn covers(&self, idle: u32) -> bool {
        f64::from(idle) < self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Adaptive, AutoOptions};
    use super::*;
    use crate::{Access, Costs, Location, Millis, PageId, SlotPolicy, SlotPolicyParams, SpaceId};

    #[test]
    fn a_page_counts_once_when_it_leaves_clean_or_is_written_home() {
        // One access per tick.
        let mut policy = Adaptive::new(AutoOptions::DEFAULT, &SlotPolicyParams::new(Costs::PAPER, 64, 64));
        let (page, now) = (|no: u32| PageId::new(SpaceId(1), no), Millis(0));
        for no in 0..4_000 {
            policy.read(page(no), Some(Location::Hdd), Access::Random, now);
            let Some(old) = no.checked_sub(20) else { continue };
            if old % 2 == 0 {
                policy.wrote(page(old), Location::Hdd, now);
            }
            policy.left_pool(page(old), now);
        }
        // Twenty reads and ten writes later. A written page leaves at once, which must not count.
        assert!((25.0..35.0).contains(&policy.retention.ticks), "{:?}", policy.retention);
    }

    #[test]
    fn the_estimate_approaches_the_quantile() {
        let mut retention = Retention::default();
        assert!(!retention.covers(0));
        for at in 0..100_000u32 {
            retention.ended(at * 7919 % 1000);
        }
        assert!((120.0..180.0).contains(&retention.ticks), "{retention:?}");
        assert!(retention.covers(100) && !retention.covers(200));
        // It follows a pool that retains pages for a tenth of the time.
        for at in 0..100_000u32 {
            retention.ended(at * 7919 % 100);
        }
        assert!((12.0..18.0).contains(&retention.ticks), "{retention:?}");
    }
}
