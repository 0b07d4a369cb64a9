//! The power supply of simulated devices.

use parking_lot::Mutex;
use std::sync::Arc;

/// The power supply of one or several simulated devices: counts their operations, and is cut for all of them
/// at once.
#[derive(Clone, Debug, Default)]
pub struct SimPower {
    state: Arc<Mutex<Supply>>,
}

#[derive(Debug, Default)]
struct Supply {
    ops: u64,
    cut_at: Option<u64>,
    cut: bool,
    refused: u64,
    refused_max: Option<u64>,
}

impl SimPower {
    /// A supply that stays on until it is cut.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Operations begun so far on all devices: reads, writes, flushes, discards, and refused ones while the
    /// power is on.
    pub fn ops(&self) -> u64 {
        self.state.lock().ops
    }

    /// Cuts the power right after the `n`-th operation has begun. Later operations, and those still in flight
    /// then, fail with [`Gone`](pagetier_devio::DeviceErrorKind::Gone) and do not land (except as
    /// [`super::SimDevice::after_power_cut`] decides).
    pub fn cut_at(&self, n: u64) {
        self.state.lock().cut_at = Some(n);
    }

    /// Panics from the `n`-th refused operation on: a caller that retries forever would otherwise hang the
    /// test.
    pub fn panic_after_refusals(&self, n: u64) {
        self.state.lock().refused_max = Some(n);
    }

    /// Cuts the power at once.
    pub fn cut_now(&self) {
        self.state.lock().cut = true;
    }

    /// Whether the power is off. After [`SimPower::cut_at`]: whether an operation was refused for lack of
    /// power, or the `n`-th has begun.
    pub fn is_cut(&self) -> bool {
        let state = self.state.lock();
        state.cut || state.cut_at.is_some_and(|n| state.ops >= n)
    }

    /// The number of an operation that begins (from 1); `None` if the power is off.
    pub(super) fn begin(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.cut || state.cut_at.is_some_and(|n| state.ops >= n) {
            // From the first refusal on, so that a later `cut_at` with a larger number cannot bring the
            // power back.
            state.cut = true;
            state.refused += 1;
            let stuck = state.refused_max.is_some_and(|max| state.refused >= max);
            drop(state);
            assert!(!stuck, "operations without end on devices without power");
            return None;
        }
        state.ops += 1;
        Some(state.ops)
    }

    /// Whether an operation that ends at this moment has power: the `n`-th itself does, if it takes no time.
    pub(super) fn is_on_for(&self, op: u64) -> bool {
        let state = self.state.lock();
        !state.cut && state.cut_at.is_none_or(|n| state.ops < n || (state.ops == n && op == n))
    }
}
