//! The atomic word of a frame: its latch, pins and state. One method per transition.
//!
//! A *pin* keeps the frame's page in memory; every latch holder and every waiter has one. Lookups pin and
//! latch in one compare-and-swap, and release both in one subtraction.

use crate::sync::AtomicU64;
use std::sync::atomic::Ordering;

const SHARED: u64 = 1;
const SHARED_MASK: u64 = 0xffff;
/// The number of readers at which further ones wait, long before the count could overflow into the
/// neighbouring bits.
const SHARED_FULL: u64 = 1 << 15;
const EXCLUSIVE: u64 = 1 << 16;
/// A task waits for the latch: newcomers queue behind it, so that writers are not starved.
const WAITERS: u64 = 1 << 17;
/// The frame holds no page: it cannot be pinned.
const GONE: u64 = 1 << 18;
/// The page was removed while the frame was pinned: dropping the last pin frees the frame.
const ORPHAN: u64 = 1 << 19;
const DIRTY: u64 = 1 << 20;
const CLEANING: u64 = 1 << 21;
const PIN: u64 = 1 << 32;

/// The state of a frame.
///
/// Invariants: `EXCLUSIVE` excludes readers; the pins number at least the latch's holders; `ORPHAN` implies
/// `GONE`; without `ORPHAN`, `GONE` is alone in the word; neither `DIRTY` nor `CLEANING` is set with `GONE`.
/// The frame can be evicted if and only if the word is 0.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

/// Shared with other readers, or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// The result of an attempt to latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// Pinned and latched.
    Latched,
    /// Another task has the latch or waits for it.
    Busy,
    /// The frame has no page.
    Gone,
}

/// What remains to do after a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Released {
    /// The latch may be free for a waiter.
    pub(crate) wake: bool,
    /// The frame has no page and lost its last pin: free it.
    pub(crate) free: bool,
}

impl Mode {
    #[inline]
    fn taken(self, word: u64) -> Option<u64> {
        match self {
            Self::Shared if word & (EXCLUSIVE | SHARED_FULL) == 0 => Some(word + SHARED),
            Self::Exclusive if word & (EXCLUSIVE | SHARED_MASK) == 0 => Some(word | EXCLUSIVE),
            _ => None,
        }
    }

    #[inline]
    fn held(self) -> u64 {
        match self {
            Self::Shared => SHARED,
            Self::Exclusive => EXCLUSIVE,
        }
    }
}

impl Word {
    /// A frame without a page.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(GONE))
    }

    #[inline]
    fn update(&self, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        // One ordering for every transition. Taking a latch must acquire what its last holder wrote to the
        // page; setting a state (being written, gone) must release what led to it. On x86 a locked
        // instruction orders both ways anyhow, so nothing cheaper is lost.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
    }

    /// Pins and latches, if the latch is free and no task waits for it.
    #[inline]
    pub(crate) fn try_latch(&self, mode: Mode) -> Attempt {
        // Behind a waiter even a reader queues: with readers coming and going, a writer would never see
        // the count at zero.
        let open = |w: u64| if w & (GONE | WAITERS) != 0 { None } else { mode.taken(w).map(|w| w + PIN) };
        match self.update(open) {
            Ok(_) => Attempt::Latched,
            Err(w) if w & GONE != 0 => Attempt::Gone,
            Err(_) => Attempt::Busy,
        }
    }

    /// Pins and latches once more for a holder of the shared latch, whatever waits: a writer that does could
    /// only wait for ever for a task that waits behind it.
    pub(crate) fn share_again(&self) -> bool {
        self.update(|w| (w & SHARED_MASK < SHARED_MASK).then_some(w + SHARED + PIN)).is_ok()
    }

    /// As [`Word::try_latch`] for a flush, beside other shared holders even if a task waits for them: behind
    /// that task, the flush would wait for a guard of the embedder. It keeps the latch only for a copy.
    pub(crate) fn share_beside(&self) -> bool {
        self.update(|w| {
            let shared = (1..SHARED_MASK).contains(&(w & SHARED_MASK));
            (shared && w & GONE == 0).then_some(w + SHARED + PIN)
        })
        .is_ok()
    }

    /// Pins the frame, to wait for the latch. Returns false when the frame has no page.
    pub(crate) fn pin(&self) -> bool {
        self.update(|w| (w & GONE == 0).then_some(w + PIN)).is_ok()
    }

    /// Drops a pin without a latch.
    pub(crate) fn unpin(&self) -> Released {
        released(self.0.fetch_sub(PIN, Ordering::AcqRel), PIN)
    }

    /// Latches for a pinned waiter that is next in line, despite the waiters' flag.
    pub(crate) fn grant(&self, mode: Mode) -> bool {
        self.update(|w| mode.taken(w)).is_ok()
    }

    /// Releases latch and pin.
    #[inline]
    pub(crate) fn release(&self, mode: Mode) -> Released {
        let given_up = mode.held() + PIN;
        // A subtraction, which cannot fail and repeat: releases are as frequent as hits. `Release` hands
        // the page's bytes to the next holder; `Acquire` because the last pin of an orphan recycles the
        // frame, after everything that other holders did.
        released(self.0.fetch_sub(given_up, Ordering::AcqRel), given_up)
    }

    /// Converts the exclusive latch into a shared one; returns whether waiting readers may enter.
    pub(crate) fn downgrade(&self) -> bool {
        let before = self.0.fetch_sub(EXCLUSIVE - SHARED, Ordering::AcqRel);
        before & WAITERS != 0
    }

    pub(crate) fn set_waiters(&self, some: bool) {
        if some {
            self.0.fetch_or(WAITERS, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!WAITERS, Ordering::AcqRel);
        }
    }

    /// Gives a free frame a page: pinned and exclusively latched by the task that fills it.
    pub(crate) fn begin_fill(&self) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), GONE);
        // A plain store: no other transition succeeds on a frame that is gone, so there is none to
        // overwrite.
        self.0.store(PIN | EXCLUSIVE, Ordering::Release);
    }

    /// Takes the page from a clean, unpinned frame.
    pub(crate) fn try_evict(&self) -> bool {
        // Zero says everything at once: clean, not being written, unpinned, no waiters. After a failure
        // the caller reads nothing of the frame, hence `Relaxed`.
        self.0.compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether [`Word::try_evict`] would succeed at this moment.
    pub(crate) fn is_evictable(&self) -> bool {
        // A hint for the policy's search: `try_evict` decides.
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Removes the page, dirty or not, on behalf of the exclusive holder. The last unpin frees the frame.
    pub(crate) fn orphan(&self) {
        let set = |w: u64| Some((w | GONE | ORPHAN) & !(DIRTY | CLEANING));
        let _ = self.update(set);
    }

    /// Resets the word to that of a free frame, after the last pin of an orphan was dropped.
    pub(crate) fn reset(&self) {
        self.0.store(GONE, Ordering::Release);
    }

    /// Whether the frame has lost its page.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    /// Marks the frame dirty. Returns the previous `(dirty, being written)`.
    pub(crate) fn dirty(&self) -> (bool, bool) {
        let before = self.0.fetch_or(DIRTY, Ordering::AcqRel);
        (before & DIRTY != 0, before & CLEANING != 0)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.0.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Whether a task holds the exclusive latch.
    pub(crate) fn is_exclusive(&self) -> bool {
        // Read after the release, this also shows what was noted before it: that the page is dirty.
        self.0.load(Ordering::Acquire) & EXCLUSIVE != 0
    }

    pub(crate) fn is_cleaning(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLEANING != 0
    }

    /// Whether memory has changes that no completed write covers.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.0.load(Ordering::Acquire) & (DIRTY | CLEANING) != 0
    }

    /// Whether the frame is dirty, and whether it is being written, at one moment.
    pub(crate) fn unwritten(&self) -> (bool, bool) {
        let word = self.0.load(Ordering::Acquire);
        (word & DIRTY != 0, word & CLEANING != 0)
    }

    /// Whether the frame is dirty, not being written, and its shared latch is available.
    pub(crate) fn is_cleanable(&self) -> bool {
        let w = self.0.load(Ordering::Relaxed);
        w & (DIRTY | CLEANING | EXCLUSIVE | WAITERS | GONE) == DIRTY
    }

    /// Changes the state from dirty to being-written, after a copy was staged. Returns false when the frame
    /// is clean or already being written.
    pub(crate) fn begin_clean(&self) -> bool {
        self.update(|w| (w & (DIRTY | CLEANING) == DIRTY).then_some((w & !DIRTY) | CLEANING)).is_ok()
    }

    /// Ends a write; after a failure the page is dirty again. Returns whether the page is clean.
    pub(crate) fn end_clean(&self, ok: bool) -> bool {
        let set = |w: u64| Some((w & !CLEANING) | if ok { 0 } else { DIRTY });
        self.update(set).is_ok_and(|before| ok && before & DIRTY == 0)
    }

    pub(crate) fn pins(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }
}

#[inline]
fn released(before: u64, given_up: u64) -> Released {
    debug_assert!(before >= PIN, "more pins dropped than taken");
    let after = before - given_up;
    if before & (WAITERS | ORPHAN) == 0 {
        return Released { wake: false, free: false };
    }
    Released {
        wake: after & WAITERS != 0 && after & SHARED_MASK == 0,
        free: after >= ORPHAN && after & ORPHAN != 0 && after >> 32 == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Word {
        let word = Word::new();
        assert_eq!(word.try_latch(Mode::Shared), Attempt::Gone);
        word.begin_fill();
        word
    }

    #[test]
    fn readers_share_and_a_writer_excludes() {
        let word = filled();
        assert_eq!(word.try_latch(Mode::Shared), Attempt::Busy);
        assert!(!word.downgrade());
        assert_eq!(word.try_latch(Mode::Shared), Attempt::Latched);
        assert_eq!(word.try_latch(Mode::Exclusive), Attempt::Busy);
        assert!(!word.try_evict());
        word.release(Mode::Shared);
        word.release(Mode::Shared);
        assert_eq!(word.try_latch(Mode::Exclusive), Attempt::Latched);
        word.release(Mode::Exclusive);
        assert!(word.try_evict());
        assert!(!word.pin());
    }

    #[test]
    fn a_waiter_keeps_newcomers_out_and_is_woken_by_the_last_release() {
        let word = filled();
        word.downgrade();
        assert!(word.pin());
        word.set_waiters(true);
        assert_eq!(word.try_latch(Mode::Shared), Attempt::Busy);
        assert!(!word.grant(Mode::Exclusive));
        assert!(word.release(Mode::Shared).wake);
        assert!(word.grant(Mode::Exclusive));
        word.set_waiters(false);
        assert_eq!(word.release(Mode::Exclusive), Released { wake: false, free: false });
    }

    #[test]
    fn the_count_of_readers_never_overflows() {
        let word = filled();
        word.downgrade();
        while word.try_latch(Mode::Shared) == Attempt::Latched {}
        assert_eq!(u64::from(word.pins()), SHARED_FULL);
        assert_eq!(word.try_latch(Mode::Exclusive), Attempt::Busy);
        for _ in 0..SHARED_FULL {
            word.release(Mode::Shared);
        }
        assert_eq!(word.try_latch(Mode::Exclusive), Attempt::Latched);
    }

    #[test]
    fn a_page_changed_while_it_is_written_stays_dirty() {
        let word = filled();
        assert_eq!(word.dirty(), (false, false));
        assert!(word.begin_clean());
        assert_eq!(word.dirty(), (false, true));
        assert!(!word.begin_clean());
        assert!(!word.end_clean(true));
        assert!(word.begin_clean());
        assert!(!word.end_clean(false));
        assert!(word.is_dirty());
    }

    #[test]
    fn the_last_pin_of_an_orphan_frees_the_frame() {
        let word = filled();
        assert!(word.pin());
        word.orphan();
        assert!(!word.release(Mode::Exclusive).free);
        assert!(word.unpin().free);
    }
}
