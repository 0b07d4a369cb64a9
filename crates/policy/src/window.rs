//! What CFLRU, REF and CFDC have in common: the least recently used part of the pool is a *window* with an order of its own, and
//! the rest, the *working region*, is plain LRU.
//!
//! The working region holds `(1 - share) · b` pages of a pool of b. A page loaded or used enters it at the MRU end; when it is full, its LRU page
//! is demoted to the window first. While the pool fills, the working region fills before the window: pages leave it only to make room.

/// The share of the pool that is the window, in per cent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowPercent(u8);

impl WindowPercent {
    /// Half of the pool: the middle of the three settings that Ou et al. measure (section 4.2).
    pub const DEFAULT: Self = Self(50);

    /// From 1 to 100 per cent.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// The pages that the working region of a pool of `frames` holds; at least one, because the page just used is in it.
    pub(crate) const fn working_pages(self, frames: usize) -> usize {
        let window = (frames as u128 * self.0 as u128 / 100) as usize;
        let working = frames - window;
        if working == 0 { 1 } else { working }
    }
}
