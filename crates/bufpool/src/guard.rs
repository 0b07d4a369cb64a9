//! Guards: a page in memory, latched and pinned until the guard is dropped. They are `Send` and may be held
//! across `.await`.

use crate::frame::NO_LSN;
use crate::inner::Inner;
use crate::tier::Tier;
use crate::word::Mode;
use pagetier_page::{HEADER_BYTES, Header, Lsn, PageId};
use pagetier_policy::FrameId;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// A page latched in shared mode. Derefs to its payload.
pub struct PageRef<'a, T: Tier> {
    pool: &'a Inner<T>,
    frame: FrameId,
}

/// A page latched exclusively. Derefs to its payload; the first mutable access marks it dirty.
pub struct PageMut<'a, T: Tier> {
    pool: &'a Inner<T>,
    frame: FrameId,
    modified: bool,
    lsn_set: bool,
}

impl<'a, T: Tier> PageRef<'a, T> {
    /// Takes over the caller's shared latch and pin.
    pub(crate) fn new(pool: &'a Inner<T>, frame: FrameId) -> Self {
        Self { pool, frame }
    }

    fn image(&self) -> &[u8] {
        // SAFETY: the guard holds the shared latch for as long as it lives.
        unsafe { self.pool.frames.arena.bytes(self.frame.at()) }
    }

    /// The page's id.
    #[must_use]
    pub fn id(&self) -> PageId {
        Header::peek(self.image()).page
    }

    /// The embedder's log position of the last change.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        Header::peek(self.image()).lsn
    }
}

impl<T: Tier> Deref for PageRef<'_, T> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

impl<T: Tier> Drop for PageRef<'_, T> {
    fn drop(&mut self) {
        self.pool.frames.release(self.frame, Mode::Shared);
    }
}

impl<T: Tier> std::fmt::Debug for PageRef<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRef({})", self.id())
    }
}

impl<'a, T: Tier> PageMut<'a, T> {
    /// Takes over the caller's exclusive latch and pin. A `fresh` page is dirty from the start.
    pub(crate) fn new(pool: &'a Inner<T>, frame: FrameId, fresh: bool) -> Self {
        Self { pool, frame, modified: fresh, lsn_set: false }
    }

    fn image(&self) -> &[u8] {
        // SAFETY: the guard holds the exclusive latch for as long as it lives.
        unsafe { self.pool.frames.arena.bytes(self.frame.at()) }
    }

    fn image_mut(&mut self) -> &mut [u8] {
        // SAFETY: the guard holds the exclusive latch, and is itself borrowed exclusively.
        unsafe { self.pool.frames.arena.bytes_mut(self.frame.at()) }
    }

    /// The page's id.
    #[must_use]
    pub fn id(&self) -> PageId {
        Header::peek(self.image()).page
    }

    /// The embedder's log position of the last change.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        Header::peek(self.image()).lsn
    }

    /// Records that the change made through this guard is logged at `lsn`: the page is not written before the
    /// log is durable up to there. The first LSN after the page was clean is its recovery LSN. Marks the page
    /// dirty.
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.modified = true;
        let header = Header { lsn, ..Header::peek(self.image()) };
        header.put(self.image_mut());
        if !self.lsn_set {
            self.lsn_set = true;
            let first = &self.pool.frames.at(self.frame).recovery_lsn;
            let _ = first.compare_exchange(NO_LSN, lsn.0, Ordering::AcqRel, Ordering::Relaxed);
            self.pool.note_lsn(lsn);
        }
    }

    /// Converts the exclusive latch into a shared one: other readers may enter.
    #[must_use]
    pub fn downgrade(mut self) -> PageRef<'a, T> {
        self.publish();
        let (pool, frame) = (self.pool, self.frame);
        std::mem::forget(self);
        if pool.frames.at(frame).word.downgrade() {
            pool.frames.waiters.grant(frame, &pool.frames.at(frame).word);
        }
        PageRef::new(pool, frame)
    }

    /// Marks the page dirty before the latch is released: a cleaner that could write it must know.
    fn publish(&mut self) {
        if std::mem::take(&mut self.modified) {
            let page = self.id();
            let lsn = self.lsn();
            self.pool.became_dirty(self.frame, page, lsn);
        }
    }

    /// Removes the page and its changes from memory.
    pub(crate) fn discard(mut self) {
        self.modified = false;
        let (pool, frame, page) = (self.pool, self.frame, self.id());
        std::mem::forget(self);
        pool.policy.lock().remove(frame);
        pool.frames.abandon(frame, page);
    }

    pub(crate) fn frame(&self) -> FrameId {
        self.frame
    }
}

impl<T: Tier> Deref for PageMut<'_, T> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

impl<T: Tier> DerefMut for PageMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.modified = true;
        &mut self.image_mut()[HEADER_BYTES..]
    }
}

impl<T: Tier> Drop for PageMut<'_, T> {
    fn drop(&mut self) {
        self.publish();
        self.pool.frames.release(self.frame, Mode::Exclusive);
    }
}

impl<T: Tier> std::fmt::Debug for PageMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageMut({})", self.id())
    }
}
