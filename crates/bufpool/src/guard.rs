//! Guards: a page in memory, latched and pinned until the guard is dropped. They are `Send` and may be held
//! across `.await`. A guard borrows its pool, or keeps it alive.

use crate::frame::NO_LSN;
use crate::inner::Inner;
use crate::stalls::TaskId;
use crate::tier::Tier;
use crate::word::Mode;
use pagetier_page::{HEADER_BYTES, Header, Lsn, PageId};
use pagetier_policy::FrameId;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a guard refers to its pool: by reference, or by an `Arc`. Only this crate implements it.
pub trait Held: Clone + Deref<Target = Inner<Self::Tier>> {
    /// The storage below the pool.
    type Tier: Tier;
}

impl<T: Tier> Held for &Inner<T> {
    type Tier = T;
}

impl<T: Tier> Held for Arc<Inner<T>> {
    type Tier = T;
}

/// A [`SharedGuard`] that borrows its pool.
pub type PageRef<'a, T> = SharedGuard<&'a Inner<T>>;

/// An [`ExclusiveGuard`] that borrows its pool.
pub type PageMut<'a, T> = ExclusiveGuard<&'a Inner<T>>;

/// A [`SharedGuard`] that keeps its pool alive.
pub type OwnedPageRef<T> = SharedGuard<Arc<Inner<T>>>;

/// An [`ExclusiveGuard`] that keeps its pool alive.
pub type OwnedPageMut<T> = ExclusiveGuard<Arc<Inner<T>>>;

/// A page latched in shared mode. Derefs to its payload.
pub struct SharedGuard<P: Held> {
    pool: P,
    frame: FrameId,
    holder: TaskId,
}

/// A page latched exclusively. Derefs to its payload; the first mutable access marks it dirty.
pub struct ExclusiveGuard<P: Held> {
    pool: P,
    frame: FrameId,
    modified: bool,
    lsn_set: bool,
    holder: TaskId,
    /// The latch has been passed on: dropping the guard does nothing.
    passed_on: bool,
}

/// In debug builds, records that the current task holds a guard of the page in `frame`.
#[inline]
fn hold<T: Tier>(pool: &Inner<T>, frame: FrameId) -> TaskId {
    match pool.frames.at(frame).page() {
        Some(page) if cfg!(debug_assertions) => pool.stalls.holders.add(page),
        _ => TaskId::current(),
    }
}

/// Removes the record that [`hold`] made, on behalf of the task that made it.
#[inline]
fn let_go<T: Tier>(pool: &Inner<T>, frame: FrameId, holder: TaskId) {
    if cfg!(debug_assertions) {
        // SAFETY: the caller holds a latch of the frame.
        let image = unsafe { pool.frames.arena.bytes(frame.at()) };
        pool.stalls.holders.remove(Header::peek(image).page, holder);
    }
}

impl<P: Held> SharedGuard<P> {
    /// Takes over the shared latch and the pin of the caller.
    pub(crate) fn new(pool: P, frame: FrameId) -> Self {
        let holder = hold(&pool, frame);
        Self { pool, frame, holder }
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

impl<P: Held> Deref for SharedGuard<P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

impl<P: Held> Drop for SharedGuard<P> {
    fn drop(&mut self) {
        let_go(&self.pool, self.frame, self.holder);
        self.pool.frames.release(self.frame, Mode::Shared);
    }
}

impl<P: Held> std::fmt::Debug for SharedGuard<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRef({})", self.id())
    }
}

impl<P: Held> ExclusiveGuard<P> {
    /// Takes over the exclusive latch and the pin of the caller. A `fresh` page is dirty from the start.
    pub(crate) fn new(pool: P, frame: FrameId, fresh: bool) -> Self {
        let holder = hold(&pool, frame);
        Self { pool, frame, modified: fresh, lsn_set: false, holder, passed_on: false }
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
    pub fn downgrade(mut self) -> SharedGuard<P> {
        self.publish();
        let_go(&self.pool, self.frame, self.holder);
        self.passed_on = true;
        let (pool, frame) = (self.pool.clone(), self.frame);
        if pool.frames.at(frame).word.downgrade() {
            pool.frames.waiters.grant(frame, &pool.frames.at(frame).word);
        }
        SharedGuard::new(pool, frame)
    }

    /// Marks the page dirty before the latch is released: a cleaner may latch the page next.
    fn publish(&mut self) {
        if std::mem::take(&mut self.modified) {
            let page = self.id();
            let lsn = self.lsn();
            self.pool.became_dirty(self.frame, page, lsn);
        }
    }

    /// Removes the page and its changes from memory.
    pub(crate) fn discard(mut self) {
        let_go(&self.pool, self.frame, self.holder);
        self.passed_on = true;
        let (frame, page) = (self.frame, self.id());
        self.pool.policy.lock().remove(frame);
        self.pool.frames.abandon(frame, page);
    }

    pub(crate) fn frame(&self) -> FrameId {
        self.frame
    }
}

impl<P: Held> Deref for ExclusiveGuard<P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

impl<P: Held> DerefMut for ExclusiveGuard<P> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.modified = true;
        &mut self.image_mut()[HEADER_BYTES..]
    }
}

impl<P: Held> Drop for ExclusiveGuard<P> {
    fn drop(&mut self) {
        if self.passed_on {
            return;
        }
        self.publish();
        let_go(&self.pool, self.frame, self.holder);
        self.pool.frames.release(self.frame, Mode::Exclusive);
    }
}

impl<P: Held> std::fmt::Debug for ExclusiveGuard<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageMut({})", self.id())
    }
}
