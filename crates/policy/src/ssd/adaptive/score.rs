//! What a page was worth lately, at several memories at once.

use super::ghosts::Held;
use crate::Costs;

/// Ticks of the clock in as many accesses as there are slots.
pub(crate) const TICKS_PER_SLOT: u32 = 64;

/// How long scores remember: the accesses per slot after which an access counts half. The first never
/// forgets.
pub(crate) const HALF_LIVES: [f64; 5] = [f64::INFINITY, 16.0, 4.0, 1.0, 0.25];

pub(crate) const RATES: usize = HALF_LIVES.len();

/// What accesses of a page would have cost the HDD more than the SSD, in milliseconds: one sum for each
/// memory, whose parts have decayed since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    sums: [f32; RATES],
    /// The tick up to which the sums have decayed.
    stamp: u32,
    /// Which ghosts hold the page, and which of these in a version newer than the HDD's.
    pub(crate) ghosts: Held,
    /// Writes since the page is tracked, up to 255.
    writes: u8,
    /// Reads that a sketch remembered.
    restored: u8,
}

impl Seen {
    /// An access at `tick`, which cost the HDD `saved_ms` more than it would the SSD.
    pub(crate) fn add(&mut self, tick: u32, saved_ms: f64, write: bool) {
        let ticks = f64::from(tick.saturating_sub(self.stamp));
        for (sum, half_life) in self.sums.iter_mut().zip(HALF_LIVES) {
            *sum = (f64::from(*sum) * kept(ticks, half_life) + saved_ms) as f32;
        }
        self.writes = self.writes.saturating_add(u8::from(write));
        self.stamp = tick;
    }

    /// The sum of memory `rate` at `tick`, in milliseconds.
    pub(crate) fn sum(&self, rate: usize, tick: u32) -> f64 {
        let ticks = f64::from(tick.saturating_sub(self.stamp));
        f64::from(self.sums[rate]) * kept(ticks, HALF_LIVES[rate])
    }

    /// The sum of memory `rate` at the last access, and the tick of that.
    pub(crate) fn at_stamp(&self, rate: usize) -> (f64, u32) {
        (f64::from(self.sums[rate]), self.stamp)
    }

    /// The share of its writes that another one followed, about.
    pub(crate) fn rewritten(&self) -> f64 {
        1.0 - 1.0 / f64::from(self.writes).max(1.0)
    }

    /// What a sketch remembered of the page: reads from the HDD.
    pub(crate) fn restore(&mut self, tick: u32, reads: u8) {
        self.stamp = tick;
        self.restored = reads;
    }

    /// Reads that a sketch remembered.
    pub(crate) fn restored(&self) -> f64 {
        f64::from(self.restored)
    }

    /// About how many reads the longest memory holds.
    pub(crate) fn reads(&self, costs: &Costs) -> u32 {
        (f64::from(self.sums[0]) / costs.read_saving_ms()) as u32 + u32::from(self.restored)
    }
}

/// What is left of 1 after `ticks`.
fn kept(ticks: f64, half_life: f64) -> f64 {
    if ticks == 0.0 || half_life.is_infinite() {
        1.0
    } else {
        (-ticks / (half_life * f64::from(TICKS_PER_SLOT))).exp2()
    }
}
