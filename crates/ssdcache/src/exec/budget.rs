//! The SSD's write budget: what was written is read off the device now and then, and the price of a write is
//! told to the policy and to the slots.

use crate::exec::Core;
use crate::protocol::Protocol;
use pagetier_devio::SharedDevice;
use pagetier_policy::{Costs, Millis, WriteBudget};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The interval at which the bytes written are read off the device.
const EVERY_MS: u64 = 1000;

/// By how much the factor changes before it is told again.
const TELL: f64 = 1.1;

/// The state of the write budget.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct BudgetStats {
    /// The budget, in bytes per day.
    pub bytes_per_day: u64,
    /// What was written to the SSD lately, in bytes per day: a mean over about an hour.
    pub written_per_day: u64,
    /// By how many bytes the budget is overdrawn.
    pub overdrawn_bytes: u64,
    /// What the cost of a write to the SSD is multiplied by; 1 within the budget.
    pub factor: f64,
}

#[derive(Debug)]
struct Spending {
    budget: WriteBudget,
    /// What the device had written when it was looked at last.
    device_bytes: u64,
    /// The factor in force; not a number: none was told to what is in use now.
    told: f64,
    /// The policy's costs, without the factor.
    costs: Costs,
}

/// See the module. A leaf in the locking order.
#[derive(Debug)]
pub(crate) struct Budget {
    /// When to look next, in milliseconds; never without a budget.
    next: AtomicU64,
    spending: Mutex<Option<Spending>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX), spending: Mutex::new(None) }
    }
}

fn tell_price(state: &mut Protocol, costs: Costs, factor: f64) {
    let ssd_write_ms = costs.ssd_write_ms * factor;
    state.slots.policy().set_costs(Costs { ssd_write_ms, ..costs });
    state.slots.set_write_price((factor > 1.0).then_some(ssd_write_ms));
    if factor > 1.0 {
        tracing::debug!(factor, "the write budget is overdrawn");
    }
}

fn written_bytes(device: &SharedDevice) -> u64 {
    device.stats().totals().write.bytes
}

impl Core {
    /// Sets the budget, or none.
    pub(crate) fn set_budget(&self, bytes_per_day: Option<u64>, costs: Costs) {
        let now = self.now();
        let mut state = self.state.lock();
        let device_bytes = written_bytes(&self.ssd());
        let budget = bytes_per_day.map(|bytes| WriteBudget::new(bytes, now));
        *self.budget.spending.lock() =
            budget.map(|budget| Spending { budget, device_bytes, told: 1.0, costs });
        self.budget.next.store(if budget.is_some() { 0 } else { u64::MAX }, Ordering::Relaxed);
        tell_price(&mut state, costs, 1.0);
    }

    /// Charges what was written since the last look, if it is time for one.
    pub(crate) fn charge(&self, state: &mut Protocol, now: Millis) {
        if now.0 < self.budget.next.load(Ordering::Relaxed) {
            return;
        }
        self.budget.next.store(now.0 + EVERY_MS, Ordering::Relaxed);
        let written = written_bytes(&self.ssd());
        let mut spending = self.budget.spending.lock();
        let Some(Spending { budget, device_bytes, told, costs }) = &mut *spending else { return };
        budget.spend(written.saturating_sub(*device_bytes), now);
        *device_bytes = written;
        let factor = budget.factor();
        let close = factor < *told * TELL && factor * TELL > *told && (factor > 1.0) == (*told > 1.0);
        if !close {
            *told = factor;
            tell_price(state, *costs, factor);
        }
    }

    /// New costs for the policy, which the factor in force applies to.
    pub(crate) fn set_costs(&self, costs: Costs) {
        let mut state = self.state.lock();
        let told = self.budget.spending.lock().as_mut().map(|spending| {
            spending.costs = costs;
            spending.told
        });
        tell_price(&mut state, costs, told.filter(|told| !told.is_nan()).unwrap_or(1.0));
    }

    /// Another policy, or another SSD, is in use: what was told is not known there.
    pub(crate) fn budget_starts_anew(&self) {
        if let Some(spending) = &mut *self.budget.spending.lock() {
            spending.device_bytes = written_bytes(&self.ssd());
            spending.told = f64::NAN;
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
