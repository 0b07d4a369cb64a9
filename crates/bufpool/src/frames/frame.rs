//! A frame's metadata.

use crate::frames::uses::Uses;
use crate::sync::{AtomicU32, AtomicU64};
use crate::word::Word;
use pagetier_page::{Lsn, PageId};
use std::sync::atomic::Ordering;

/// Marks the absence of a page.
pub(crate) const NO_PAGE: u64 = u64::MAX;
/// Marks the absence of a recovery LSN: the page is clean.
pub(crate) const NO_LSN: u64 = u64::MAX;
/// The recovery LSN of a page that is dirty because it was created, and has no change.
const BLANK: u64 = Lsn::BLANK.0;

/// A frame's metadata: 32 bytes, so that none straddles two cache lines.
///
/// Invariants, under the lock of the page's bucket: `page` is set if and only if the frame is in that
/// bucket's chain, and then the word is not that of a free frame. Under the exclusive latch: a dirty page has
/// a `recovery_lsn`, be it [`Lsn::BLANK`].
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) word: Word,
    /// The page, or [`NO_PAGE`]. Changes only under the bucket's lock; any thread may read it at any time.
    pub(crate) page: AtomicU64,
    /// The LSN of the first change since the page was last clean, or was last staged to be written: that of
    /// the staged version is in `Writing`.
    pub(crate) recovery_lsn: AtomicU64,
    /// The next frame in the page table's chain; of a free frame, the next free one.
    pub(crate) next: AtomicU32,
    pub(crate) uses: Uses,
}

// A model's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Frame>() == 32);

impl Frame {
    /// A frame without a page. `end` ends the page table's chains.
    pub(crate) fn new(end: u32) -> Self {
        Self {
            word: Word::new(),
            page: AtomicU64::new(NO_PAGE),
            recovery_lsn: AtomicU64::new(NO_LSN),
            next: AtomicU32::new(end),
            uses: Uses::new(),
        }
    }

    pub(crate) fn page(&self) -> Option<PageId> {
        let word = self.page.load(Ordering::Acquire);
        (word != NO_PAGE).then(|| PageId::from_u64(word))
    }

    /// Notes that the page is dirty from `lsn` on, unless an earlier change is noted.
    pub(crate) fn note_lsn(&self, lsn: Lsn) {
        let first = |noted| (noted >= BLANK && lsn.0 < noted).then_some(lsn.0);
        let _ = self.recovery_lsn.fetch_update(Ordering::AcqRel, Ordering::Relaxed, first);
    }

    /// Whether the page has, or is about to have, changes that the storage below lacks: it is dirty or being
    /// written, or a change was logged whose guard still lives.
    pub(crate) fn is_unwritten(&self) -> bool {
        // The LSN first. A logged change has one from the start; once staging takes it away, the page is
        // being written, and it is dirty again before that ends in a failure.
        self.recovery_lsn.load(Ordering::Acquire) != NO_LSN || self.word.is_unwritten()
    }
}
