//! The common part of CFLRU, REF and CFDC: the least recently used part of the pool is a *window* with an
//! order of its own, and the rest, the *working region*, is plain LRU.
//!
//! The working region holds `(1 - share) · b` pages of a pool of b. A page loaded or used enters it at the
//! MRU end; if it is full, its LRU page is first demoted to the window. The working region therefore fills
//! before the window.

use pagetier_policy::collections::{QueueNo, Queues};

/// The share of the pool that is the window, in per cent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowPercent(u8);

impl WindowPercent {
    /// Half of the pool: the middle of the three settings that Ou et al. measure (section 4.2).
    pub const DEFAULT: Self = Self(50);

    /// The percentage.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns `None` unless `percent` is from 1 to 100.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// The capacity of the working region in a pool of `frames`; at least one page, because it holds the page
    /// just used.
    const fn working_pages(self, frames: usize) -> usize {
        let window = (frames as u128 * self.0 as u128 / 100) as usize;
        let working = frames - window;
        // A working region of none would demote the page just used, which then is the first victim.
        if working == 0 { 1 } else { working }
    }
}

/// The working region: its queue among the policy's, and that queue's maximum length.
#[derive(Debug)]
pub(crate) struct WorkingRegion {
    queue: QueueNo,
    window: WindowPercent,
    pages: usize,
}

impl WorkingRegion {
    /// The working region of a pool of `frames` frames with the given `window`.
    pub(crate) const fn new(queue: QueueNo, frames: usize, window: WindowPercent) -> Self {
        Self { queue, window, pages: window.working_pages(frames) }
    }

    /// The pool has `frames` frames. The caller demotes pages while the region has too many.
    pub(crate) const fn set_frames(&mut self, frames: usize) {
        self.pages = self.window.working_pages(frames);
    }

    /// Whether the region holds more pages than it should.
    pub(crate) fn has_too_many<V: Copy + Default, const N: usize>(&self, queues: &Queues<V, N>) -> bool {
        queues.len_of(self.queue) > self.pages
    }

    /// Makes room for a page: if the region is full, takes its LRU page out and returns it for the window.
    pub(crate) fn demote<V: Copy + Default, const N: usize>(&self, queues: &mut Queues<V, N>) -> Option<u32> {
        // The working region fills before the window: nothing is demoted from a pool that is half empty.
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
