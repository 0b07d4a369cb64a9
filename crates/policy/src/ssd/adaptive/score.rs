//! What a page's accesses were worth: one decaying sum per half-life.

use super::held::Held;
use crate::ssd::tracked::{Kept, PLACE_BITS, Stored};

/// Ticks of the clock per access per slot.
pub(crate) const TICKS_PER_SLOT: u32 = 64;

/// The half-lives of the sums, in accesses per slot. The first sum never decays.
pub(crate) const HALF_LIVES: [f64; 5] = [f64::INFINITY, 16.0, 4.0, 1.0, 0.25];

pub(crate) const RATES: usize = HALF_LIVES.len();

/// What a page's accesses cost the HDD more than the SSD, in milliseconds: one decaying sum per half-life.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    sums: [f32; RATES],
    /// The tick of the last access; the sums are as of then.
    stamp: u32,
    /// Which ghosts hold the page, and which of them a version newer than the HDD's.
    pub(crate) ghosts: Held,
    /// Writes since tracking began, up to 255.
    writes: u8,
    /// The page's place, [`WRITTEN_LAST`], the round of the ghosts' list, and [`SEEN_TWICE`].
    place: u8,
}

const _: () = assert!(size_of::<Stored<Seen>>() == 32);

const PLACE: u8 = WRITTEN_LAST - 1;
/// Set if the last access was a write.
const WRITTEN_LAST: u8 = 1 << PLACE_BITS;
const LISTED_SHIFT: u32 = PLACE_BITS + 1;
const LISTED: u8 = 3 << LISTED_SHIFT;
/// Set once two accesses were worth something. Sums do not say so: costs that are measured change.
const SEEN_TWICE: u8 = 1 << (LISTED_SHIFT + 2);

impl Kept for Seen {
    fn place(&self) -> u8 {
        self.place & PLACE
    }

    fn set_place(&mut self, place: u8) {
        self.place = place | self.place & !PLACE;
    }
}

impl Seen {
    /// Of a page that is first seen at `tick`.
    pub(crate) fn new(tick: u32) -> Self {
        Self { stamp: tick, ..Self::default() }
    }

    /// Adds an access at `tick` that costs the HDD `saved_ms` more than the SSD.
    pub(crate) fn add(&mut self, tick: u32, saved_ms: f64, write: bool) {
        if saved_ms > 0.0 && self.sums[0] > 0.0 {
            self.place |= SEEN_TWICE;
        }
        let ticks = f64::from(tick.saturating_sub(self.stamp));
        for (sum, half_life) in self.sums.iter_mut().zip(HALF_LIVES) {
            *sum = (f64::from(*sum) * kept(ticks, half_life) + saved_ms) as f32;
        }
        self.writes = self.writes.saturating_add(u8::from(write));
        self.place = self.place & !WRITTEN_LAST | if write { WRITTEN_LAST } else { 0 };
        self.stamp = tick;
    }

    /// The sum with half-life number `rate` at `tick`, in milliseconds.
    pub(crate) fn sum(&self, rate: usize, tick: u32) -> f64 {
        let ticks = f64::from(tick.saturating_sub(self.stamp));
        f64::from(self.sums[rate]) * kept(ticks, HALF_LIVES[rate])
    }

    /// The sum with half-life number `rate` at the last access, and the tick of that access.
    pub(crate) fn at_stamp(&self, rate: usize) -> (f64, u32) {
        (f64::from(self.sums[rate]), self.stamp)
    }

    /// Whether two accesses or more were worth something.
    pub(crate) const fn is_seen_twice(&self) -> bool {
        self.place & SEEN_TWICE != 0
    }

    /// Whether the last access was a write.
    pub(crate) const fn written_last(&self) -> bool {
        self.place & WRITTEN_LAST != 0
    }

    /// The round of the ghosts' list in which the record was listed or visited last; 0 if it is not listed.
    pub(crate) const fn listed(&self) -> u8 {
        (self.place & LISTED) >> LISTED_SHIFT
    }

    pub(crate) const fn set_listed(&mut self, round: u8) {
        self.place = self.place & !LISTED | round << LISTED_SHIFT;
    }

    /// The ticks since the last access.
    pub(crate) fn idle(&self, tick: u32) -> u32 {
        tick.saturating_sub(self.stamp)
    }

    /// The approximate share of the page's writes that were followed by another one.
    pub(crate) fn rewritten(&self) -> f64 {
        1.0 - 1.0 / f64::from(self.writes).max(1.0)
    }
}

/// The share of a sum that remains after `ticks`.
fn kept(ticks: f64, half_life: f64) -> f64 {
    if ticks == 0.0 || half_life.is_infinite() {
        1.0
    } else {
        (-ticks / (half_life * f64::from(TICKS_PER_SLOT))).exp2()
    }
}
