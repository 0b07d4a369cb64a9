//! What CFLRU, REF and CFDC have in common: the least recently used part of the pool is a *window* with an
//! order of its own, and the rest, the *working region*, is plain LRU.
//!
//! The working region holds `(1 - share) · b` pages of a pool of b. A page loaded or used enters it at the
//! MRU end; when it is full, its LRU page is demoted to the window first. While the pool fills, the working
//! region fills before the window: pages leave it only to make room.

use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;

/// The share of the pool that is the window, in per cent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowPercent(u8);

impl WindowPercent {
    /// Half of the pool: the middle of the three settings that Ou et al. measure (section 4.2).
    pub const DEFAULT: Self = Self(50);

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// From 1 to 100 per cent.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// The pages that the working region of a pool of `frames` holds; at least one, because the page just
    /// used is in it.
    const fn working_pages(self, frames: usize) -> usize {
        let window = (frames as u128 * self.0 as u128 / 100) as usize;
        let working = frames - window;
        if working == 0 { 1 } else { working }
    }
}

/// The working region: which of a policy's queues it is, and how long that may become.
#[derive(Debug)]
pub(crate) struct WorkingRegion {
    queue: QueueNo,
    pages: usize,
}

impl WorkingRegion {
    /// Of a pool of `frames` frames, what `window` leaves of it.
    pub(crate) const fn new(queue: QueueNo, frames: usize, window: WindowPercent) -> Self {
        Self { queue, pages: window.working_pages(frames) }
    }

    /// Makes room for a page: takes the LRU page out if the region is full. That one is to go to the window.
    pub(crate) fn demote<V: Copy + Default, const N: usize>(&self, queues: &mut Queues<V, N>) -> Option<u32> {
        let full = queues.len_of(self.queue) >= self.pages;
        let demoted = queues.lru(self.queue).filter(|_| full)?;
        queues.take_out(demoted);
        Some(demoted)
    }

    /// Checks the region's length.
    pub(crate) fn validate<V: Copy + Default, const N: usize>(
        &self,
        queues: &Queues<V, N>,
    ) -> Result<(), String> {
        match queues.len_of(self.queue) {
            len if len > self.pages => Err(format!("{len} pages in a working region of {}", self.pages)),
            _ => Ok(()),
        }
    }
}
