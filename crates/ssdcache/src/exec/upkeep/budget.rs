//! The SSD's write budget: periodically charges the bytes that the device has written, and passes the price
//! of a write to the policy and to the slots.

use crate::exec::Core;
use crate::protocol::Protocol;
use pagetier_devio::SharedDevice;
use pagetier_policy::{Costs, Millis, WriteBudget};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The interval at which the bytes written are read from the device's counters.
const EVERY_MS: u64 = 1000;

/// The ratio by which the factor must change before it is passed on again.
const PRICE_STEP: f64 = 1.1;

/// The state of the write budget.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct BudgetStats {
    /// The budget, in bytes per day.
    #[serde(rename = "budget_per_day")]
    pub bytes_per_day: u64,
    /// The recent rate of writes to the SSD, in bytes per day: a mean over about an hour.
    pub written_per_day: u64,
    /// The overdraft, in bytes.
    #[serde(default)]
    pub overdrawn_bytes: u64,
    /// The factor on the cost of a write to the SSD; 1 within the budget.
    #[serde(rename = "write_factor")]
    pub factor: f64,
}

#[derive(Debug)]
struct Spending {
    budget: WriteBudget,
    /// The bytes that the device had written at the last charge.
    device_bytes: u64,
    /// The factor passed on last; NaN: the policy or SSD in use has not received one.
    passed: f64,
    /// The policy's costs, without the factor.
    costs: Costs,
}

/// The write budget. A leaf in the locking order.
#[derive(Debug)]
pub(crate) struct Budget {
    /// When to charge next, in milliseconds; never without a budget.
    next: AtomicU64,
    spending: Mutex<Option<Spending>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX), spending: Mutex::new(None) }
    }
}

/// Passes the price of a write to the policy and the slots.
fn set_price(state: &mut Protocol, costs: Costs, factor: f64) {
    let ssd_write_ms = costs.ssd_write_ms * factor;
    // The policy sees dearer writes in all its choices. The slots add a rule for mere copies: each must save
    // more than its write costs.
    state.slots.policy_mut().set_costs(Costs { ssd_write_ms, ..costs });
    state.slots.set_write_price((factor > 1.0).then_some(ssd_write_ms));
    if factor > 1.0 {
        tracing::debug!(factor, "the write budget is overdrawn");
    }
}

fn written_bytes(device: &SharedDevice) -> u64 {
    device.stats().totals().write.bytes
}

impl Core {
    /// Sets the budget, or removes it.
    pub(crate) fn set_budget(&self, bytes_per_day: Option<u64>, costs: Costs) {
        let now = self.now();
        let mut state = self.state.lock();
        let device_bytes = written_bytes(&self.ssd());
        let budget = bytes_per_day.map(|bytes| WriteBudget::new(bytes, now));
        *self.budget.spending.lock() =
            budget.map(|budget| Spending { budget, device_bytes, passed: 1.0, costs });
        self.budget.next.store(if budget.is_some() { 0 } else { u64::MAX }, Ordering::Relaxed);
        set_price(&mut state, costs, 1.0);
    }

    /// Charges the bytes written since the last charge, if one is due.
    pub(crate) fn charge(&self, state: &mut Protocol, now: Millis) {
        if now.0 < self.budget.next.load(Ordering::Relaxed) {
            return;
        }
        self.budget.next.store(now.0 + EVERY_MS, Ordering::Relaxed);
        let written = written_bytes(&self.ssd());
        let mut spending = self.budget.spending.lock();
        let Some(Spending { budget, device_bytes, passed, costs }) = &mut *spending else { return };
        budget.spend(written.saturating_sub(*device_bytes), now);
        *device_bytes = written;
        let factor = budget.factor();
        let close = factor < *passed * PRICE_STEP && factor * PRICE_STEP > *passed;
        if !close || (factor > 1.0) != (*passed > 1.0) {
            *passed = factor;
            set_price(state, *costs, factor);
        }
    }

    /// Passes new costs to the policy, with the factor in force applied.
    pub(crate) fn set_costs(&self, costs: Costs) {
        let mut state = self.state.lock();
        let passed = self.budget.spending.lock().as_mut().map(|spending| {
            spending.costs = costs;
            spending.passed
        });
        set_price(&mut state, costs, passed.filter(|factor| !factor.is_nan()).unwrap_or(1.0));
    }

    /// Makes the next charge pass the price on, because another policy or SSD is in use.
    pub(crate) fn resend_price(&self) {
        if let Some(spending) = &mut *self.budget.spending.lock() {
            spending.device_bytes = written_bytes(&self.ssd());
            spending.passed = f64::NAN;
            self.budget.next.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn budget_stats(&self) -> Option<BudgetStats> {
        let spending = self.budget.spending.lock();
        let budget = spending.as_ref()?.budget;
        Some(BudgetStats {
            bytes_per_day: budget.bytes_per_day(),
            written_per_day: budget.rate_per_day(),
            overdrawn_bytes: budget.overdrawn_bytes(),
            factor: budget.factor(),
        })
    }
}
