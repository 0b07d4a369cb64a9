//! What a page's accesses were worth: one decaying sum per half-life.

use super::held::Held;
use crate::ssd::tracked::{Kept, PLACE_BITS, Stored};

/// Ticks of the clock per access per slot: as many in the shortest half-life as accesses per slot in the
/// longest. A quarter and four times as many cost the same.
pub(crate) const TICKS_PER_SLOT: u32 = (HALF_LIVES[1] / HALF_LIVES[RATES - 1]) as u32;

/// The half-lives of the sums, in accesses per slot. The first sum never decays.
pub(crate) const HALF_LIVES: [f64; 5] = [f64::INFINITY, 16.0, 4.0, 1.0, 0.25];

pub(crate) const RATES: usize = HALF_LIVES.len();

/// A sum in milliseconds: the sign, the exponent and seven bits of the fraction of an `f32`.
#[derive(Clone, Copy, Debug, Default)]
struct Short(u16);

impl Short {
    fn ms(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.0) << 16))
    }

    /// The nearest. Rounding at random would let single accesses count on average beside a sum of which they
    /// are less than the last bit, some 256 of them; but it costs 0.7%, since it parts pages of equal worth.
    fn of(ms: f64) -> Self {
        Self(((ms as f32).to_bits().saturating_add(1 << 15) >> 16) as u16)
    }
}

/// What a page's accesses cost the HDD more than the SSD, in milliseconds: one decaying sum per half-life.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    sums: [Short; RATES],
    /// The tick of the last access in halves, since the record needs no more than their alignment; the sums
    /// are as of then.
    stamp: [u16; 2],
    /// Which ghosts hold the page, and which of them a version newer than the HDD's.
    pub(crate) ghosts: Held,
    /// The page's place, the round of the ghosts' list, and [`SEEN_TWICE`].
    place: u8,
}

const _: () = assert!(size_of::<Stored<Seen>>() == 22);

const PLACE: u8 = (1 << PLACE_BITS) - 1;
const LISTED: u8 = 3 << PLACE_BITS;
/// Set once two accesses were worth something. Sums do not say so: costs that are measured change.
const SEEN_TWICE: u8 = 1 << (PLACE_BITS + 2);

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
        let mut new = Self::default();
        new.set_stamp(tick);
        new
    }

    /// Adds an access at `tick` that costs the HDD `saved_ms` more than the SSD.
    pub(crate) fn add(&mut self, tick: u32, saved_ms: f64) {
        if saved_ms > 0.0 && self.sums[0].ms() > 0.0 {
            self.place |= SEEN_TWICE;
        }
        let ticks = f64::from(self.idle(tick));
        for (sum, half_life) in self.sums.iter_mut().zip(HALF_LIVES) {
            *sum = Short::of(sum.ms() * kept(ticks, half_life) + saved_ms);
        }
        self.set_stamp(tick);
    }

    /// The sum with half-life number `rate` at `tick`, in milliseconds.
    pub(crate) fn sum(&self, rate: usize, tick: u32) -> f64 {
        self.sums[rate].ms() * kept(f64::from(self.idle(tick)), HALF_LIVES[rate])
    }

    /// The sum with half-life number `rate` at the last access, and the tick of that access.
    pub(crate) fn at_stamp(&self, rate: usize) -> (f64, u32) {
        (self.sums[rate].ms(), self.stamp())
    }

    /// Whether two accesses or more were worth something.
    pub(crate) const fn is_seen_twice(&self) -> bool {
        self.place & SEEN_TWICE != 0
    }

    /// The round of the ghosts' list in which the record was listed or visited last; 0 if it is not listed.
    pub(crate) const fn listed(&self) -> u8 {
        (self.place & LISTED) >> PLACE_BITS
    }

    pub(crate) const fn set_listed(&mut self, round: u8) {
        self.place = self.place & !LISTED | round << PLACE_BITS;
    }

    /// The ticks since the last access.
    pub(crate) fn idle(&self, tick: u32) -> u32 {
        tick.saturating_sub(self.stamp())
    }

    fn stamp(&self) -> u32 {
        u32::from(self.stamp[0]) << 16 | u32::from(self.stamp[1])
    }

    fn set_stamp(&mut self, tick: u32) {
        self.stamp = [(tick >> 16) as u16, tick as u16];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_within_half_a_per_cent_with_its_sign_and_does_not_overflow() {
        for ms in [0.0, 0.11, -4.69, 7.09, 1e-30, 123_456.7, -3e20] {
            let short = Short::of(ms).ms();
            assert!((short - ms).abs() <= 0.004 * ms.abs(), "{ms}: {short}");
        }
        for ms in [f64::MAX, f64::from(f32::MAX)] {
            assert_eq!(Short::of(ms).ms(), f64::INFINITY);
        }
    }

    #[test]
    fn a_page_keeps_its_last_tick_and_its_sums_decay() {
        let mut seen = Seen::new(70_000);
        seen.add(70_000, 7.09);
        assert_eq!((seen.at_stamp(0).1, seen.idle(70_064)), (70_000, 64));
        // One access per slot later: a half-life of one has passed.
        for (rate, of) in [(0, 1.0), (3, 0.5), (4, 1.0 / 16.0)] {
            let sum = seen.sum(rate, 70_000 + TICKS_PER_SLOT);
            assert!((sum - 7.09 * of).abs() < 0.004 * sum, "{rate}: {sum}");
        }
    }
}
