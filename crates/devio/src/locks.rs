//! Async locks whose order is checked: in debug builds, a task that takes them in another order than
//! [`Rank`]'s fails at once, even if no other task is near and nothing would hang this time.
//!
//! A declared order takes less than a recorded one. A graph of the orders seen needs both halves of a cycle
//! in one process before it can report; against a declared order the first wrong half is an error, and the
//! order is the one that `ARCHITECTURE.md` states ("Locking order"; a test compares the two).
//!
//! **Who holds a lock.** Not the task: one task may poll several futures in turn (`join`), each of which
//! holds locks that the others do not wait for. So locks belong to a *flow*, a future whose parts run one
//! after the other. [`flow`] makes one. A flow that is made within another holds what that one holds, too,
//! since the outer flow waits for it. A lock that is taken outside any flow is not checked. The futures of
//! [`task::spawn`](crate::task::spawn) are flows; a future that is polled beside others of the same flow must
//! be one of its own. `tests/pairs` runs every public operation as a flow.
//!
//! In release builds the locks are tokio's, and a flow is the future itself.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use tokio::sync;

/// A class of locks, or what a task waits for. A flow takes them in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// The operations in progress, for which a shutdown waits.
    Operations,
    /// The mutex of an exchange or readmission of the SSD.
    SsdChange,
    /// The mutex of the memory budget.
    Budget,
    /// The mutex of a change of the pool's size.
    Resizing,
    /// The latch of a page: a wait for the embedder, who may hold a guard and call any operation that takes a
    /// lock of a later rank.
    Latch,
    /// The manifest's mutex.
    Manifest,
    /// The tier's writers: shared by each write, exclusive for an exchange of the SSD.
    Writers,
    /// The write-back's duty.
    HomeDuty,
    /// The checkpoint's duty.
    MapDuty,
}

impl Rank {
    /// Every rank, in order.
    pub const ALL: [Self; 9] = [
        Self::Operations,
        Self::SsdChange,
        Self::Budget,
        Self::Resizing,
        Self::Latch,
        Self::Manifest,
        Self::Writers,
        Self::HomeDuty,
        Self::MapDuty,
    ];

    /// What `ARCHITECTURE.md` calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Operations => "the operations in progress",
            Self::SsdChange => "the mutex of an exchange or readmission of the SSD",
            Self::Budget => "the mutex of the memory budget",
            Self::Resizing => "the mutex of a change of the pool's size",
            Self::Latch => "the latch of a page",
            Self::Manifest => "the manifest's mutex",
            Self::Writers => "the tier's writers",
            Self::HomeDuty => "the write-back's duty",
            Self::MapDuty => "the checkpoint's duty",
        }
    }
}

#[doc(hidden)]
pub use check::abort_on_violation;
pub use check::{CallSite, Violation, apart, flow, observed, waits_for};

use check::Held;

/// Test-only: what [`observed`] found.
#[derive(Clone, Default, Debug)]
pub struct Violations(Arc<parking_lot::Mutex<Vec<Violation>>>);

impl Violations {
    /// Every one, in order.
    #[must_use]
    pub fn all(&self) -> Vec<Violation> {
        self.0.lock().clone()
    }
}

/// A [`tokio::sync::Mutex`] with a rank.
#[derive(Debug)]
pub struct Mutex<T> {
    rank: Rank,
    inner: Arc<sync::Mutex<T>>,
}

/// A [`tokio::sync::RwLock`] with a rank. Shared holders count like exclusive ones: a task that waits for it
/// exclusively keeps later readers out.
#[derive(Debug)]
pub struct RwLock<T> {
    rank: Rank,
    inner: sync::RwLock<T>,
}

/// A held lock. The lock is released when this is dropped.
#[derive(Debug)]
pub struct Locked<G> {
    guard: G,
    _held: Held,
}

/// A held [`Mutex`].
pub type MutexGuard<'a, T> = Locked<sync::MutexGuard<'a, T>>;
/// A held [`Mutex`] that keeps it alive.
pub type OwnedMutexGuard<T> = Locked<sync::OwnedMutexGuard<T>>;
/// An [`RwLock`] held shared.
pub type RwLockReadGuard<'a, T> = Locked<sync::RwLockReadGuard<'a, T>>;
/// An [`RwLock`] held exclusively.
pub type RwLockWriteGuard<'a, T> = Locked<sync::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

async fn take<G>(rank: Rank, site: CallSite, guard: impl Future<Output = G>) -> Locked<G> {
    // Before the wait: a wrong order is an error even if the lock is free.
    check::wants(rank, site);
    let guard = guard.await;
    Locked { guard, _held: check::holds(rank, site) }
}

impl<T> Mutex<T> {
    /// A mutex of rank `rank`.
    pub fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Arc::new(sync::Mutex::new(value)) }
    }

    /// As [`tokio::sync::Mutex::lock`].
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = MutexGuard<'_, T>> {
        take(self.rank, CallSite::here(), self.inner.lock())
    }

    /// As [`tokio::sync::Mutex::try_lock`]. It never waits, so it may come in any order.
    ///
    /// # Errors
    /// It is held.
    #[track_caller]
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, sync::TryLockError> {
        let guard = self.inner.try_lock()?;
        Ok(Locked { guard, _held: check::holds(self.rank, CallSite::here()) })
    }

    /// As [`tokio::sync::Mutex::lock_owned`].
    #[track_caller]
    pub fn lock_owned(&self) -> impl Future<Output = OwnedMutexGuard<T>> + use<T> {
        take(self.rank, CallSite::here(), Arc::clone(&self.inner).lock_owned())
    }
}

impl<T> RwLock<T> {
    /// A lock of rank `rank`.
    pub fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: sync::RwLock::new(value) }
    }

    /// As [`tokio::sync::RwLock::read`].
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = RwLockReadGuard<'_, T>> {
        take(self.rank, CallSite::here(), self.inner.read())
    }

    /// As [`tokio::sync::RwLock::write`].
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = RwLockWriteGuard<'_, T>> {
        take(self.rank, CallSite::here(), self.inner.write())
    }

    /// As [`tokio::sync::RwLock::try_read`]. It never waits, so it may come in any order.
    ///
    /// # Errors
    /// It is held, or waited for, exclusively.
    #[track_caller]
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, sync::TryLockError> {
        let guard = self.inner.try_read()?;
        Ok(Locked { guard, _held: check::holds(self.rank, CallSite::here()) })
    }
}

#[cfg(debug_assertions)]
mod check {
    //! The flows of a debug build.

    use super::{Rank, Violations};
    use parking_lot::Mutex;
    use std::cell::RefCell;
    use std::fmt;
    use std::future::{Future, poll_fn};
    use std::io::Write;
    use std::panic::Location;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static ABORTS: AtomicBool = AtomicBool::new(false);

    thread_local! {
        /// The flow that this thread polls.
        static CURRENT: RefCell<Option<Arc<Node>>> = const { RefCell::new(None) };
    }

    /// Where a lock is taken.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CallSite(&'static Location<'static>);

    impl CallSite {
        /// The line of code that calls this.
        #[must_use]
        #[track_caller]
        pub fn here() -> Self {
            Self(Location::caller())
        }
    }

    /// A lock was taken, or waited for, while one of a later or the same rank was held.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Violation {
        /// The lock held, and where it was taken.
        pub held: (Rank, CallSite),
        /// The lock wanted, and where.
        pub wanted: (Rank, CallSite),
    }

    impl fmt::Display for Violation {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let ((held, at), (wanted, here)) = (self.held, self.wanted);
            write!(
                f,
                "a task waits for {} at {} while it holds {}, taken at {}: this is against the locking order",
                wanted.name(),
                here.0,
                held.name(),
                at.0
            )
        }
    }

    /// What a flow holds.
    #[derive(Default, Debug)]
    struct Node {
        outer: Option<Arc<Self>>,
        held: Mutex<Vec<(u64, Rank, CallSite)>>,
        /// Gets the violations instead of the process's end.
        observer: Option<Violations>,
    }

    /// This flow, and those around it.
    fn around() -> impl Iterator<Item = Arc<Node>> {
        let innermost = CURRENT.with_borrow(Clone::clone);
        std::iter::successors(innermost, |node| node.outer.clone())
    }

    /// A lock in its flow's list; taken off when it is dropped, wherever the lock has moved.
    #[derive(Debug)]
    pub(super) struct Held(Option<(Arc<Node>, u64)>);

    impl Drop for Held {
        fn drop(&mut self) {
            if let Some((node, id)) = self.0.take() {
                node.held.lock().retain(|(one, ..)| *one != id);
            }
        }
    }

    pub(super) fn holds(rank: Rank, site: CallSite) -> Held {
        static IDS: AtomicU64 = AtomicU64::new(0);
        // Outside any flow there is no telling what belongs together: a test may hold one lock and drive
        // two operations by hand.
        let Some(node) = CURRENT.with_borrow(Clone::clone) else { return Held(None) };
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        node.held.lock().push((id, rank, site));
        Held(Some((node, id)))
    }

    pub(super) fn wants(rank: Rank, site: CallSite) {
        let later = |node: Arc<Node>| {
            let held = node.held.lock();
            // `>=`: two locks of one rank have no order between them, so each could wait for the other.
            held.iter().find(|(_, held, _)| *held >= rank).map(|(_, held, at)| (*held, *at))
        };
        if let Some(held) = around().find_map(later) {
            report(Violation { held, wanted: (rank, site) });
        }
    }

    /// Checks a wait for what has no lock of this module: `rank` says what for.
    #[track_caller]
    pub fn waits_for(rank: Rank) {
        wants(rank, CallSite::here());
    }

    /// Lets a violation end the process from now on. Simulated devices ask for it: a panic would end in a
    /// background task, or be caught, and the test could still pass.
    pub fn abort_on_violation() {
        ABORTS.store(true, Ordering::Relaxed);
    }

    fn report(violation: Violation) {
        // A test that provokes a violation must see it instead of ending the process.
        if let Some(observer) = around().find_map(|node| node.observer.clone()) {
            observer.0.lock().push(violation);
            return;
        }
        if ABORTS.load(Ordering::Relaxed) {
            let trace = std::backtrace::Backtrace::force_capture();
            // Not `eprintln!`: the test harness would keep it.
            let _ = writeln!(std::io::stderr(), "{violation}\n{trace}");
            std::process::abort();
        }
        panic!("{violation}");
    }

    /// Restores the outer flow after a poll.
    struct Polling(Option<Arc<Node>>);

    impl Drop for Polling {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }

    fn polled<F: Future>(node: Node, future: F) -> impl Future<Output = F::Output> {
        let node = Arc::new(node);
        async move {
            let mut future = pin!(future);
            poll_fn(move |context| {
                // Per poll, since the task may move to another thread in between. Restored by a drop, so
                // that a panic of the future leaves the outer flow in force.
                let _polling = Polling(CURRENT.replace(Some(Arc::clone(&node))));
                future.as_mut().poll(context)
            })
            .await
        }
    }

    /// Makes `future` a flow for which no other waits.
    pub fn apart<F: Future>(future: F) -> impl Future<Output = F::Output> {
        polled(Node::default(), future)
    }

    /// Makes `future` a flow, within the flow that calls this.
    pub fn flow<F: Future>(future: F) -> impl Future<Output = F::Output> {
        // Captured when the flow is made, not when it is polled: the maker is the one that waits for it,
        // perhaps from another task (`task::outcome`).
        let outer = CURRENT.with_borrow(Clone::clone);
        polled(Node { outer, ..Node::default() }, future)
    }

    /// Test-only: makes `future` a flow whose violations, and those of the flows within, are added to
    /// `found`.
    pub fn observed<F: Future>(found: &Violations, future: F) -> impl Future<Output = F::Output> + use<F> {
        let outer = CURRENT.with_borrow(Clone::clone);
        polled(Node { outer, observer: Some(found.clone()), ..Node::default() }, future)
    }
}

#[cfg(not(debug_assertions))]
mod check {
    //! Nothing is checked in a release build.

    use super::{Rank, Violations};
    use std::future::Future;

    /// Never found in release builds.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Violation {}

    impl std::fmt::Display for Violation {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match *self {}
        }
    }

    /// Where a lock is taken: unknown in release builds.
    #[derive(Clone, Copy, Debug)]
    pub struct CallSite;

    impl CallSite {
        /// The line of code that calls this.
        #[inline]
        #[must_use]
        pub fn here() -> Self {
            Self
        }
    }

    #[derive(Debug)]
    pub(super) struct Held;

    #[inline]
    pub(super) fn holds(_rank: Rank, _site: CallSite) -> Held {
        Held
    }

    #[inline]
    pub(super) fn wants(_rank: Rank, _site: CallSite) {}

    /// Checks a wait in debug builds.
    #[inline]
    pub fn waits_for(_rank: Rank) {}

    /// Does nothing in a release build.
    pub fn abort_on_violation() {}

    /// The future itself.
    #[inline]
    pub fn apart<F: Future>(future: F) -> F {
        future
    }

    /// The future itself.
    #[inline]
    pub fn flow<F: Future>(future: F) -> F {
        future
    }

    /// The future itself.
    #[inline]
    pub fn observed<F: Future>(_found: &Violations, future: F) -> F {
        future
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;
    use std::future::pending;
    use std::time::Duration;

    fn ranks(found: &Violations) -> Vec<(Rank, Rank)> {
        found.all().iter().map(|one| (one.held.0, one.wanted.0)).collect()
    }

    fn two() -> (Mutex<()>, RwLock<()>) {
        (Mutex::new(Rank::Manifest, ()), RwLock::new(Rank::Writers, ()))
    }

    #[tokio::test]
    async fn the_declared_order_passes_and_the_opposite_one_is_found_though_nothing_hangs() {
        let (manifest, gate) = two();
        let found = Violations::default();
        observed(&found, async {
            let one = manifest.lock().await;
            drop(gate.read().await);
            drop(one);
            drop(gate.write().await);
            drop(manifest.lock().await);
        })
        .await;
        assert_eq!(ranks(&found), []);
        observed(&found, async {
            let _shared = gate.read().await;
            drop(manifest.lock().await);
        })
        .await;
        assert_eq!(ranks(&found), [(Rank::Writers, Rank::Manifest)]);
        let said = found.all()[0].to_string();
        assert_eq!(said.matches("locks.rs:").count(), 2, "both places: {said}");
    }

    #[tokio::test]
    async fn a_wait_for_a_latch_is_found_under_the_manifest_and_allowed_under_an_exchange() {
        let (manifest, _) = two();
        let (exchange, found) = (Mutex::new(Rank::SsdChange, ()), Violations::default());
        observed(&found, async {
            let _exchange = exchange.lock().await;
            waits_for(Rank::Latch);
            let _manifest = manifest.lock().await;
            waits_for(Rank::Latch);
        })
        .await;
        assert_eq!(ranks(&found), [(Rank::Manifest, Rank::Latch)]);
    }

    #[tokio::test]
    async fn futures_that_one_task_polls_in_turn_do_not_hold_each_others_locks() {
        let (manifest, gate) = two();
        let found = Violations::default();
        observed(&found, async {
            let one = flow(async {
                let _shared = gate.read().await;
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            });
            let other = flow(async {
                tokio::task::yield_now().await;
                drop(manifest.lock().await);
            });
            tokio::join!(one, other);
        })
        .await;
        assert_eq!(ranks(&found), []);
    }

    #[tokio::test]
    async fn a_flow_within_another_holds_what_that_one_holds_even_in_another_task() {
        let (manifest, gate) = two();
        let (manifest, found) = (Arc::new(manifest), Violations::default());
        let runtime = tokio::runtime::Handle::current();
        observed(&found, async {
            let _shared = gate.read().await;
            flow(async { drop(manifest.lock().await) }).await;
            let theirs = Arc::clone(&manifest);
            crate::task::outcome(&runtime, async move { drop(theirs.lock().await) }).await;
            // Nothing waits for a task of its own.
            let theirs = Arc::clone(&manifest);
            let task = crate::task::spawn(&runtime, async move { drop(theirs.lock().await) });
            while !task.is_finished() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(ranks(&found), [(Rank::Writers, Rank::Manifest); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_counts_until_it_is_dropped_wherever_it_moved() {
        let (manifest, gate) = two();
        let (manifest, found) = (Arc::new(manifest), Violations::default());
        observed(&found, async {
            let moved = Arc::clone(&manifest).lock_owned().await;
            waits_for(Rank::Latch);
            let _ = tokio::time::timeout(
                Duration::from_secs(1),
                flow(async move {
                    let _moved = moved;
                    pending::<()>().await;
                }),
            )
            .await;
            waits_for(Rank::Latch);
            let waiting = flow(async { gate.write().await });
            drop(waiting);
            waits_for(Rank::Latch);
        })
        .await;
        assert_eq!(ranks(&found), [(Rank::Manifest, Rank::Latch)]);
    }
}
