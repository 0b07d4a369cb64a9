//! The word of a frame: who latches and pins it, and what state it is in. One method per transition.
//!
//! A *pin* keeps the frame's page in memory; a latch holder has one, a waiter too. Lookups pin and latch in
//! one compare-and-swap, release both in one subtraction.

use crate::sync::AtomicU64;
use std::sync::atomic::Ordering;

const SHARED: u64 = 1;
const SHARED_MASK: u64 = 0xffff;
/// So many readers at once that the next ones wait, long before the count could run over into the bits beside
/// it.
const SHARED_FULL: u64 = 1 << 15;
const EXCLUSIVE: u64 = 1 << 16;
/// A task waits for the latch: newcomers queue up behind, so that writers are not starved.
const WAITERS: u64 = 1 << 17;
/// The frame holds no page (any more): no pin may be taken.
const GONE: u64 = 1 << 18;
/// Gone while pinned: the last pin to be dropped frees the frame.
const ORPHAN: u64 = 1 << 19;
const DIRTY: u64 = 1 << 20;
const CLEANING: u64 = 1 << 21;
const PIN: u64 = 1 << 32;

/// The state of a frame.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

/// Shared with other readers, or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// How an attempt to latch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// Pinned and latched.
    Latched,
    /// Another task has the latch or waits for it.
    Busy,
    /// The frame has no page.
    Gone,
}

/// What a release leaves to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Released {
    /// The latch may be free for a waiter.
    pub(crate) wake: bool,
    /// The last pin of a frame without a page: free it.
    pub(crate) free: bool,
}

impl Mode {
    fn taken(self, word: u64) -> Option<u64> {
        match self {
            Self::Shared if word & (EXCLUSIVE | SHARED_FULL) == 0 => Some(word + SHARED),
            Self::Exclusive if word & (EXCLUSIVE | SHARED_MASK) == 0 => Some(word | EXCLUSIVE),
            _ => None,
        }
    }

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

    fn update(&self, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
    }

    /// Pins and latches, if the latch is free and no task waits for it.
    pub(crate) fn try_latch(&self, mode: Mode) -> Attempt {
        let open = |w: u64| if w & (GONE | WAITERS) != 0 { None } else { mode.taken(w).map(|w| w + PIN) };
        match self.update(open) {
            Ok(_) => Attempt::Latched,
            Err(w) if w & GONE != 0 => Attempt::Gone,
            Err(_) => Attempt::Busy,
        }
    }

    /// Pins, to wait for the latch. False when the frame has no page.
    pub(crate) fn pin(&self) -> bool {
        self.update(|w| (w & GONE == 0).then_some(w + PIN)).is_ok()
    }

    /// Drops a pin without a latch.
    pub(crate) fn unpin(&self) -> Released {
        released(self.0.fetch_sub(PIN, Ordering::AcqRel), PIN)
    }

    /// For a pinned waiter whose turn it is: latches past the waiters' flag.
    pub(crate) fn grant(&self, mode: Mode) -> bool {
        self.update(|w| mode.taken(w)).is_ok()
    }

    /// Gives up latch and pin.
    pub(crate) fn release(&self, mode: Mode) -> Released {
        let given_up = mode.held() + PIN;
        released(self.0.fetch_sub(given_up, Ordering::AcqRel), given_up)
    }

    /// The exclusive holder becomes a shared one; waiting readers may come in.
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

    /// A free frame gets a page: pinned and exclusively latched by the task that fills it.
    pub(crate) fn begin_fill(&self) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), GONE);
        self.0.store(PIN | EXCLUSIVE, Ordering::Release);
    }

    /// A clean, unpinned frame loses its page.
    pub(crate) fn try_evict(&self) -> bool {
        self.0.compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether [`Word::try_evict`] would succeed now.
    pub(crate) fn is_evictable(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The exclusive holder takes the page out: dirty or not, it is gone. The frame is freed with the last
    /// pin.
    pub(crate) fn orphan(&self) {
        let set = |w: u64| Some((w | GONE | ORPHAN) & !(DIRTY | CLEANING));
        let _ = self.update(set);
    }

    /// The last pin of an orphan is gone: the word of a free frame again.
    pub(crate) fn reset(&self) {
        self.0.store(GONE, Ordering::Release);
    }

    /// Whether the frame lost its page.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    /// Marks dirty. What it was before: `(dirty, being written)`.
    pub(crate) fn dirty(&self) -> (bool, bool) {
        let before = self.0.fetch_or(DIRTY, Ordering::AcqRel);
        (before & DIRTY != 0, before & CLEANING != 0)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.0.load(Ordering::Acquire) & DIRTY != 0
    }

    pub(crate) fn is_cleaning(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLEANING != 0
    }

    /// Dirty, not being written, and the shared latch could be had.
    pub(crate) fn is_cleanable(&self) -> bool {
        let w = self.0.load(Ordering::Relaxed);
        w & (DIRTY | CLEANING | EXCLUSIVE | WAITERS | GONE) == DIRTY
    }

    /// A copy has been staged: dirty becomes being-written. False when it is not dirty or being written
    /// already.
    pub(crate) fn begin_clean(&self) -> bool {
        self.update(|w| (w & (DIRTY | CLEANING) == DIRTY).then_some((w & !DIRTY) | CLEANING)).is_ok()
    }

    /// The write is over. When it failed the page is dirty again. True when the page is clean now.
    pub(crate) fn end_clean(&self, ok: bool) -> bool {
        let set = |w: u64| Some((w & !CLEANING) | if ok { 0 } else { DIRTY });
        self.update(set).is_ok_and(|before| ok && before & DIRTY == 0)
    }

    pub(crate) fn pins(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }
}

fn released(before: u64, given_up: u64) -> Released {
    debug_assert!(before >= PIN, "a pin too many was dropped");
    let after = before - given_up;
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
    fn a_waiter_keeps_newcomers_out_and_is_told_of_the_last_release() {
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
    fn the_count_of_readers_never_runs_over() {
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
