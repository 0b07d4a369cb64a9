//! Measures device costs while the store runs, by n-point moving averages (Ou et al., section 3.2.2).

use crate::store::shared::Shared;
use pagetier_devio::{RecentCost, task};
use pagetier_policy::Costs;
use std::sync::Arc;
use std::time::Duration;

/// How often the policies are updated.
const INTERVAL: Duration = Duration::from_secs(1);
/// A cost is used once this many operations were measured, or as many as the average covers if that is
/// fewer.
const OPS_MIN: u64 = 64;
/// The policies are updated when a cost changes by more than this share: each update reprices all pages.
const CHANGE_MIN: f64 = 0.02;
/// A cost must be positive.
const COST_MIN_MS: f64 = 1e-3;

impl Shared {
    /// Measures the devices and updates the policies periodically. Ends with the store.
    pub(crate) fn follow_costs(self: &Arc<Self>, points: usize) {
        self.hdd.track_costs(points);
        self.tier.ssd_device().track_costs(points);
        let shared = Arc::downgrade(self);
        task::spawn(&self.runtime, async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let Some(shared) = shared.upgrade() else { return };
                // The SSD may have been attached since the last interval.
                let ssd = shared.tier.ssd_device();
                ssd.track_costs(points);
                let ops_min = OPS_MIN.min(points as u64);
                let (before, page) = (shared.costs(), shared.page_size().bytes());
                let mut now = before;
                if let Some(recent) = shared.hdd.recent_costs() {
                    update(&mut now.hdd_read_ms, &recent.read, page, ops_min);
                    update(&mut now.hdd_write_ms, &recent.write, page, ops_min);
                }
                if let Some(recent) = ssd.recent_costs().filter(|_| shared.tier.slots() > 0) {
                    update(&mut now.ssd_read_ms, &recent.read, page, ops_min);
                    update(&mut now.ssd_write_ms, &recent.write, page, ops_min);
                }
                // A policy reprices every page at a change, so noise must not cause one each second.
                if differ(&before, &now) {
                    tracing::debug!(costs = ?now, "measured costs");
                    shared.set_costs(now);
                }
            }
        });
    }
}

fn update(cost: &mut f64, recent: &RecentCost, page_bytes: usize, ops_min: u64) {
    if let Some(ms) = recent.ms_per(page_bytes).filter(|_| recent.ops >= ops_min) {
        *cost = ms.max(COST_MIN_MS);
    }
}

fn differ(before: &Costs, now: &Costs) -> bool {
    let all = |c: &Costs| [c.hdd_read_ms, c.hdd_write_ms, c.ssd_read_ms, c.ssd_write_ms];
    all(before).iter().zip(all(now)).any(|(before, now)| (now - before).abs() > before * CHANGE_MIN)
}
