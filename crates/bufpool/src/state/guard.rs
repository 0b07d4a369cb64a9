//! Guards: a page in memory, latched and pinned until the guard is dropped. They are `Send` and may be held
//! across `.await`. A guard borrows its pool, or keeps it alive.

use crate::state::inner::PoolInner;
use crate::tier::Tier;
use crate::waits::holders::TaskId;
use crate::word::Mode;
use pagetier_page::{HEADER_BYTES, Header, Lsn, PageId};
use pagetier_policy::{FrameId, FramePolicy};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// How a guard refers to its pool: by reference, or by an `Arc`. Only this crate implements it.
pub trait Held: Clone + Deref<Target = PoolInner<Self::Tier>> {
    /// The storage below the pool.
    type Tier: Tier;
}

impl<T: Tier> Held for &PoolInner<T> {
    type Tier = T;
}

impl<T: Tier> Held for Arc<PoolInner<T>> {
    type Tier = T;
}

/// A page latched and pinned until this is dropped: exclusively, or in shared mode. Derefs to its payload;
/// the first mutable access marks the page dirty.
pub struct Guard<P: Held, const EXCLUSIVE: bool> {
    pool: P,
    frame: FrameId,
    holder: TaskId,
    modified: bool,
    /// The page is dirty without a change through this guard.
    dirty: bool,
    lsn_set: bool,
    /// The latch has been passed on: dropping the guard does nothing.
    passed_on: bool,
}

/// A guard of a page latched in shared mode, which borrows its pool.
pub type PageRef<'a, T> = Guard<&'a PoolInner<T>, false>;

/// A guard of a page latched exclusively, which borrows its pool.
pub type PageMut<'a, T> = Guard<&'a PoolInner<T>, true>;

/// A [`PageRef`] that keeps its pool alive.
pub type OwnedPageRef<T> = Guard<Arc<PoolInner<T>>, false>;

/// A [`PageMut`] that keeps its pool alive.
pub type OwnedPageMut<T> = Guard<Arc<PoolInner<T>>, true>;

impl<P: Held, const EXCLUSIVE: bool> Guard<P, EXCLUSIVE> {
    const MODE: Mode = if EXCLUSIVE { Mode::Exclusive } else { Mode::Shared };

    /// Takes over the caller's latch and pin. In debug builds, records that the current task holds a guard of
    /// the page.
    #[inline]
    pub(crate) fn new(pool: P, frame: FrameId) -> Self {
        // A release build does not even look at the frame.
        let page = if cfg!(debug_assertions) { pool.frames.at(frame).page() } else { None };
        let holder = page.map_or_else(TaskId::current, |page| pool.stalls.holders.add(page));
        Self { pool, frame, holder, modified: false, dirty: false, lsn_set: false, passed_on: false }
    }

    /// Gives up the latch without releasing it. Removes the record that [`Guard::new`] made, on behalf of the
    /// task that made it.
    #[inline]
    fn pass_on(&mut self) {
        self.passed_on = true;
        if cfg!(debug_assertions) {
            self.pool.stalls.holders.remove(self.id(), self.holder);
        }
    }

    /// The pool of the page.
    pub(crate) fn pool(&self) -> &PoolInner<P::Tier> {
        &self.pool
    }

    /// The guard with another reference to its pool.
    pub(crate) fn with_pool<Q: Held<Tier = P::Tier>>(self, pool: Q) -> Guard<Q, EXCLUSIVE> {
        // The latch, and the record of its holder, pass to the result: nothing is to be released here.
        let this = ManuallyDrop::new(self);
        let Self { frame, holder, modified, dirty, lsn_set, passed_on, .. } = *this;
        Guard { pool, frame, holder, modified, dirty, lsn_set, passed_on }
    }

    fn image(&self) -> &[u8] {
        // SAFETY: the guard holds the latch for as long as it lives.
        unsafe { self.pool.frames.arena.bytes(self.frame.at()) }
    }

    /// The page's id.
    pub fn id(&self) -> PageId {
        Header::peek(self.image()).page
    }

    /// The embedder's log position of the last change.
    pub fn lsn(&self) -> Lsn {
        Header::peek(self.image()).lsn
    }

    pub(crate) fn frame(&self) -> FrameId {
        self.frame
    }

    /// Gives a page without an LSN the log's durable position, after a change that no record describes: redo
    /// must not apply to it what it finds of an earlier page with this number, nor free it. (A number is free
    /// once the record that freed it is durable, so that position is no smaller.) The page can be written at
    /// once, whatever becomes of the log.
    #[cold]
    fn follow_log(&self) {
        if EXCLUSIVE && self.lsn() == Lsn(0) {
            let durable = self.pool.gate.as_ref().map_or(Lsn(0), |gate| gate.durable());
            // SAFETY: the guard holds the exclusive latch.
            let image = unsafe { self.pool.frames.arena.bytes_mut(self.frame.at()) };
            Header { lsn: durable, ..Header::peek(image) }.put(image);
        }
    }

    /// Marks a changed page dirty, before the latch is released: a cleaner may latch the page next. Not in a
    /// forked process, where the policy's lock may be held forever.
    #[inline]
    fn publish(&mut self) {
        if EXCLUSIVE && (self.modified || self.dirty) && self.pool.frames.owner.is_here() {
            let logged = self.lsn_set || !self.pool.gate_tells;
            let lsn = match (self.modified, logged) {
                (false, _) => Lsn::BLANK,
                (true, true) => self.lsn(),
                // No part of the log suffices for the change, whatever LSN the page has.
                (true, false) => Lsn(0),
            };
            if !logged {
                self.follow_log();
            }
            (self.modified, self.dirty) = (false, false);
            self.pool.became_dirty(self.frame, self.id(), lsn);
        }
    }
}

impl<P: Held> Guard<P, false> {
    /// Another guard of the same page. `None` if there are too many already.
    pub(crate) fn share(&self) -> Option<Self> {
        let again = self.pool.frames.at(self.frame).word.share_again();
        again.then(|| Self::new(self.pool.clone(), self.frame))
    }
}

impl<P: Held> Guard<P, true> {
    /// As [`Guard::new`]; the page is dirty from the start, without a change that redo would need.
    pub(crate) fn dirty(pool: P, frame: FrameId) -> Self {
        let mut guard = Self::new(pool, frame);
        guard.dirty = true;
        guard
    }

    fn image_mut(&mut self) -> &mut [u8] {
        // SAFETY: the guard holds the exclusive latch, and is itself borrowed exclusively.
        unsafe { self.pool.frames.arena.bytes_mut(self.frame.at()) }
    }

    /// Records that the change made through this guard is logged at `lsn`: the page is not written before the
    /// log is durable up to there. The first LSN after the page was clean is its recovery LSN. Marks the page
    /// dirty.
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.modified = true;
        let header = Header { lsn, ..Header::peek(self.image()) };
        header.put(self.image_mut());
        // LSNs only grow, and redo starts at the oldest: later ones through the same guard change nothing.
        if !self.lsn_set {
            self.lsn_set = true;
            self.pool.frames.note_lsn(self.frame, lsn);
            self.pool.note_lsn(lsn);
        }
    }

    /// The payload, for a change that no log describes: the page becomes dirty and keeps its LSN, and redo
    /// need not go back for it. For contents that a crash may take back.
    pub fn unlogged(&mut self) -> &mut [u8] {
        self.dirty = true;
        &mut self.image_mut()[HEADER_BYTES..]
    }

    /// Converts the exclusive latch into a shared one: other readers may enter.
    #[must_use]
    pub fn downgrade(mut self) -> Guard<P, false> {
        // While the latch is still exclusive: the readers that are let in, a cleaner among them, must see
        // the page dirty.
        self.publish();
        self.pass_on();
        let (pool, frame) = (self.pool.clone(), self.frame);
        if pool.frames.at(frame).word.downgrade() {
            pool.frames.waiters.grant(frame, &pool.frames.at(frame).word);
        }
        Guard::new(pool, frame)
    }

    /// Removes the page and its changes from memory, unless the tier cannot discard it yet.
    ///
    /// # Errors
    /// The guard, if so.
    pub(crate) fn discard(mut self) -> Result<(), Self> {
        let (frame, page) = (self.frame, self.id());
        // Under one lock: see `Pool::with_pages`.
        let mut policy = self.pool.policy.lock();
        if !self.pool.tier.discarded(page) {
            drop(policy);
            return Err(self);
        }
        // The tier has forgotten the page, so its changes must not be written any more: `abandon` drops
        // them.
        policy.remove(frame, false);
        drop(policy);
        self.pass_on();
        self.pool.frames.abandon(frame, page);
        Ok(())
    }
}

impl<P: Held, const EXCLUSIVE: bool> Deref for Guard<P, EXCLUSIVE> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

impl<P: Held> DerefMut for Guard<P, true> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.modified = true;
        &mut self.image_mut()[HEADER_BYTES..]
    }
}

impl<P: Held, const EXCLUSIVE: bool> Drop for Guard<P, EXCLUSIVE> {
    fn drop(&mut self) {
        // Only an exclusive guard can have passed its latch on; for a shared one the compiler drops the
        // test.
        if EXCLUSIVE && self.passed_on {
            return;
        }
        // The list of holders, which debug builds keep, has a lock: in a forked process it may be held for
        // ever. The other locks of the way back are not taken there (`publish`, `Frames::release`).
        if cfg!(debug_assertions) && !self.pool.frames.owner.is_here() {
            return;
        }
        self.publish();
        self.pass_on();
        self.pool.frames.release(self.frame, Self::MODE);
    }
}

impl<P: Held, const EXCLUSIVE: bool> std::fmt::Debug for Guard<P, EXCLUSIVE> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", if EXCLUSIVE { "PageMut" } else { "PageRef" }, self.id())
    }
}
