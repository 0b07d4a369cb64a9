//! The calls for the store as a whole: its builder, durability, its end, handles, sizes, and views.

use super::handles::{Estimates, HotSet, Policies, Spaces, Ssd, Trace};
use super::page_store::PageStore;
use super::shutdown::{CLOSED_MAX, end};
use super::stats::Stats;
use crate::config::builder::Builder;
use crate::error::Error;
use pagetier_bufpool::Tier;
use pagetier_devio::{Claim, task};
use pagetier_page::{LogMark, Lsn, PageId, PageSize};
use pagetier_policy::Location;
use pagetier_ssdcache::RecoveryReport;
use std::future::Future;
use std::sync::Arc;

/// A loss that the embedder's log must cover. See [`PageStore::redo_from`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// The loss of what is in memory.
    Crash,
    /// The loss of memory and of the SSD.
    Ssd,
}

impl PageStore {
    /// Returns a builder, to open a store with options other than the defaults.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = pagetier::PageStore::builder().directory("/var/lib/db").pool_bytes(1 << 30).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    // ---- durability ----

    /// Makes every change durable whose guard was dropped before this call. A change under a guard that still
    /// lives is not covered: the next `sync` after the guard is dropped covers it. (It is never written
    /// half-finished: a page is copied for its write only while no exclusive guard of it exists.) `sync`
    /// waits for such a guard if its page was dirty before, or if there are pages to free
    /// ([`free_on_sync`](PageStore::free_on_sync)), so the caller must hold no exclusive guard. Writes no map
    /// checkpoint, and needs no HDD flush for pages that go to the HDD. Cancel-safe: writes in flight
    /// complete.
    ///
    /// | method | pages that it writes | use |
    /// | --- | --- | --- |
    /// | `sync` | all dirty ones, in which a guard that was dropped left a change | commit without a log |
    /// | [`flush_to`](PageStore::flush_to) | those with changes up to an LSN | checkpoint, first step |
    /// | [`redo_from`](PageStore::redo_from) | none; makes durable what was written | checkpoint: which log may be removed |
    /// | [`flush`](PageStore::flush) | none; makes durable what was written | included in the others |
    /// | [`min_recovery_lsn`](PageStore::min_recovery_lsn) | none; nothing becomes durable | inspect the oldest change in memory |
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.get_mut(id).await?[0] = 1;
    /// store.sync().await?; // the change is durable
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty in memory.
    pub async fn sync(&self) -> Result<(), Error> {
        self.shared.sync(None).await
    }

    /// Writes every page whose recovery LSN is at most `lsn` and makes it durable. Redo then needs no record
    /// up to and including `lsn` that was on its pages when the call began. To find out which log may be
    /// removed, call [`PageStore::redo_from`] afterwards.
    ///
    /// This holds only if no page gets an LSN that was assigned before the call, so assign an LSN and set it
    /// on the record's pages in one critical section, and read `lsn` in it: see [`LogGate`](crate::LogGate).
    /// Waits for exclusive guards of these pages: the caller must hold none. Cancel-safe.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, lsn: Lsn)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.flush_to(lsn).await?;
    /// assert!(store.min_recovery_lsn().is_none_or(|oldest| oldest > lsn));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        self.shared.settle_manifest().await?;
        self.shared.unless_taken_back(self.pool.flush_to(lsn)).await?;
        self.shared.record_reused().await
    }

    /// Whether a flush waits for an exclusive guard: a number that stays the same during one wait.
    #[doc(hidden)]
    #[must_use]
    pub fn flush_waits_for_guard(&self) -> Option<u64> {
        self.pool.flush_waits_for_guard()
    }

    /// Makes durable what has been written so far, for example by evictions or to bound redo. Writes no page
    /// itself. [`PageStore::flush_to`] and [`PageStore::redo_from`] include it. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush(&self) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        self.shared.settle_manifest().await?;
        self.shared.tier.flush().await?;
        self.shared.record_reused().await
    }

    /// The LSN from which redo would need the embedder's log after `loss`, the record at that LSN included:
    /// all records with smaller LSNs may be removed. (If your LSNs are ends of records, keep the record that
    /// *ends* there: see [`Lsn`].) Makes durable what has been written, but writes no page itself: to advance
    /// the position, call [`PageStore::flush_to`] first, and [`Ssd::drain`](crate::Ssd::drain) for
    /// [`Loss::Ssd`].
    ///
    /// A position for [`Loss::Ssd`] is recorded in the manifest before it is returned, unless a later one is:
    /// after the loss, [`SsdLoss::redo_from`](crate::SsdLoss::redo_from) is never older than it, so a log
    /// that was shortened by such positions alone suffices. LSNs must never start again from smaller values
    /// during the store's life.
    ///
    /// `log_end` is the end of the log, the LSN that the next record will get, read before this call and in
    /// the critical section in which LSNs are assigned and set on pages (see [`LogGate`](crate::LogGate)). It
    /// is the result when nothing is needed. Cancel-safe.
    ///
    /// A change counts from its [`set_lsn`](crate::PageMut::set_lsn) on, even while its guard is held, with
    /// the first LSN that the page got since it was clean. A change without `set_lsn` counts from the drop of
    /// its guard, with the LSN that the page had. If it had none, or the gate tells how far the log is
    /// durable ([`LogGate::durable`](crate::LogGate::durable)), the result is 0 until the page is written,
    /// for example by [`PageStore::flush_to`]. A page that was created and not changed since is dirty, but
    /// does not count: no record describes it.
    ///
    /// ```
    /// use pagetier::{Error, Loss, Lsn, PageStore};
    ///
    /// /// Returns the position before which the log may be removed.
    /// async fn checkpoint(store: &PageStore, log_end: Lsn) -> Result<Lsn, Error> {
    ///     store.flush_to(log_end).await?;
    ///     store.redo_from(log_end, Loss::Crash).await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::sync`]: remove no log then. [`Error::ReadOnly`] on a read-only open.
    pub async fn redo_from(&self, log_end: Lsn, loss: Loss) -> Result<Lsn, Error> {
        self.shared.refuse_read_only()?;
        self.shared.ending.here()?;
        // No page can slip through: one written back after step 1 was seen dirty in step 1, or is on the SSD
        // in step 3; one written earlier was made durable by step 2.
        let in_memory = self.pool.min_recovery_lsn(); // 1
        self.flush().await?; // 2
        let on_ssd = if loss == Loss::Ssd { self.shared.tier.oldest_lsn() } else { None }; // 3
        let from = [in_memory, on_ssd].into_iter().flatten().fold(log_end, Lsn::min);
        if loss == Loss::Ssd {
            // Once the engine has removed the log before it, nothing else would say after a crash that the
            // rest suffices.
            self.shared.record_redo_from(from).await?;
        }
        Ok(from)
    }

    /// Records what the pages need of the embedder's log, durably: its identity, the ownership of its next
    /// records ([`LogNeeds`](crate::log::LogNeeds)), a position up to which the log is durable, and the
    /// one from which redo needs it. The next open asks [`LogGate::check`](crate::LogGate::check) whether
    /// it has that log. Within an ownership, positions only grow: smaller ones change nothing. For a log
    /// crate; costs a small write of the manifest and a flush. Cancel-safe.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: u64, generation: u64)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::log::LogMark;
    ///
    /// // A checkpoint: the log before 4,000 may be removed, and must never end before 9,000 again.
    /// store.record_log(LogMark { id, generation, end: Lsn(9_000), from: Lsn(4_000), restored: false }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The manifest cannot be written: what was recorded before still holds.
    pub async fn record_log(&self, mark: LogMark) -> Result<(), Error> {
        self.shared.refuse_read_only()?;
        self.shared.record_log(mark).await
    }

    /// The oldest log position that redo would need for pages that are dirty in memory at this moment; `None`
    /// when no change is. A page that was created and not changed since needs none. Pages that have left
    /// memory are written but perhaps not durable: [`PageStore::redo_from`] includes them. 0 after a shutdown
    /// that could not write everything.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        self.pool.min_recovery_lsn()
    }

    // ---- the end ----

    /// Closes the store cleanly: writes everything, makes it durable, and checkpoints the SSD's map exactly,
    /// so that the next open is warm and reads little. Dropping the future half-way is equivalent to a
    /// crash, and safe. [`PageStore::shutdown`] does the same for a store that is shared. When it returns,
    /// every descriptor of the store is closed, so that its file systems can be unmounted.
    ///
    /// # Errors
    /// The first failure. The store is closed even so, as by a crash.
    pub async fn close(self) -> Result<(), Error> {
        self.shared.ending.here()?;
        let left = self.wait_closed();
        // A shutdown has begun, through a clone of the `Arc` that is gone by now: wait for it instead of a
        // second one.
        let ended = if self.shared.ending.refuse() {
            self.shutdown().await
        } else {
            end(Arc::clone(&self.shared), self.leave.ownership()).await
        };
        drop(self);
        // The store's tasks close its last descriptors, once their runtime has run them.
        let _ = tokio::time::timeout(CLOSED_MAX, left).await;
        ended
    }

    /// Closes the store as [`PageStore::close`] does, for a store that is shared: writes everything, makes it
    /// durable, checkpoints the SSD's map exactly, and releases devices, locks and log gate. The directory
    /// can be opened again once this returns, even while the store still exists.
    ///
    /// From the call on, operations that need more than memory fail with [`Error::Closed`]; once it returns,
    /// every operation does. It waits for operations in progress, except drains and scrubs, which end early,
    /// and for [`PageMut`](crate::PageMut) guards to be dropped; hold none. A [`PageRef`](crate::PageRef) may
    /// stay, and its page remains readable, unless an operation in progress waits for it to be dropped: a
    /// drop of its space, or a `free`, `free_on_sync` or `discard` of its page.
    ///
    /// Every call returns the result of the first one. The shutdown continues if the future is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = std::sync::Arc::new(builder.open().await?);
    /// store.shutdown().await?;
    /// assert!(matches!(store.sync().await, Err(pagetier::Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first failure. The store is closed even so, as by a crash.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.shared.ending.here()?;
        let mut outcome = self.shared.ending.begin(|done| {
            let (ownership, shared) = (self.leave.ownership(), Arc::clone(&self.shared));
            task::spawn(&self.shared.runtime, async move {
                let ended = end(shared, ownership).await;
                let _ = done.send(Some(ended));
            });
        });
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        ended.ok().flatten().unwrap_or_else(|| Err(Error::runtime_ended()))
    }

    /// A future that completes once nothing of this store is left: it was dropped (or closed), its last
    /// operation has ended, its tasks are gone, and its directory, devices and log gate are free. It does not
    /// borrow the store and may be awaited anywhere; the runtime that the store was opened on must run or
    /// shut down meanwhile.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let open = || pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20).open();
    /// let store = open().await?;
    /// let closed = store.wait_closed();
    /// drop(store); // as a crash does
    /// closed.await;
    /// open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_closed(&self) -> impl Future<Output = ()> + Send + Sync + 'static + use<> {
        self.leave.ownership().left()
    }

    // ---- parts ----

    /// The spaces: named sequences of pages.
    #[must_use]
    pub fn spaces(&self) -> Spaces<'_> {
        Spaces(self)
    }

    /// The SSD: its mode, drains, events and losses.
    #[must_use]
    pub fn ssd(&self) -> Ssd<'_> {
        Ssd(self)
    }

    /// The policies of pool and SSD: replaces them, sets costs, reports counts.
    #[must_use]
    pub fn policies(&self) -> Policies<'_> {
        Policies(self)
    }

    /// The recording of page traces.
    #[must_use]
    pub fn trace(&self) -> Trace<'_> {
        Trace(self)
    }

    /// Simulated pools and SSDs of other sizes, which estimate what those would cost.
    #[must_use]
    pub fn what_if(&self) -> Estimates<'_> {
        Estimates(self)
    }

    /// The pages that memory holds, to find them again after a restart.
    ///
    /// ```
    /// # async fn example(store: &pagetier::PageStore) {
    /// println!("the hottest: {:?}", store.hot_set().pages(10));
    /// # }
    /// ```
    #[must_use]
    pub fn hot_set(&self) -> HotSet<'_> {
        HotSet(self)
    }

    // ---- other memory ----

    /// Changes the store's memory budget to `bytes`, and with it the number of frames, while the store is in
    /// use. Returns the number of frames. [`Builder::pool_bytes`](crate::Builder::pool_bytes) says what the
    /// budget covers. The store's next open uses the builder's budget.
    ///
    /// Hits continue undisturbed, and guards stay valid. The policy keeps its statistics and scales its
    /// shares of the pool. A growing pool needs the memory at once, and can have at most the machine's. A
    /// shrinking pool evicts the pages that would be evicted next, and gives their memory back to the system;
    /// the frames' metadata, about 50 bytes each, stays. It waits for dirty pages to be written, and for
    /// guards to be dropped if they pin more pages than are to stay.
    ///
    /// Cancel-safe: a dropped call leaves the pool at the size that it has reached. Running simulations of
    /// [`PageStore::what_if`] keep the size that they started with.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = builder.pool_bytes(64 << 20).open().await?;
    /// let frames = store.stats().frames;
    /// assert!(store.resize_pool(16 << 20).await? < frames / 3);
    /// assert_eq!(store.resize_pool(64 << 20).await?, frames);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::PoolSize`], or
    /// [`PoolError::Memory`](crate::errors::PoolError::Memory) when the system does not provide the memory:
    /// the size is unchanged. [`PoolError::Shrink`](crate::errors::PoolError::Shrink) when no page could
    /// leave for [`Builder::exhausted_after`](crate::Builder::exhausted_after): the error names the cause
    /// and the size that the pool has reached.
    pub async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        self.shared.resize_pool(bytes).await
    }

    // ---- views ----

    /// Counters, sizes and device statistics at this moment.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let stats = store.stats();
    /// println!("{stats}"); // a screenful
    /// println!("{}", serde_json::to_string(&stats)?);
    /// println!("{} pages on the SSD", stats.ssd.pages);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared)
    }

    /// Test-only: the protocol step in progress.
    #[cfg(feature = "probes")]
    #[doc(hidden)]
    #[must_use]
    pub fn moment(&self) -> Option<pagetier_ssdcache::Moment> {
        self.shared.tier.moment()
    }

    /// The device that the page would be read from if it were not in memory.
    #[must_use]
    pub fn location(&self, page: PageId) -> Location {
        self.shared.tier.ask(|slots| slots.location(page))
    }

    /// What recovery found when the store was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.shared.tier.recovery()
    }

    /// The number of frames: the pages that memory holds at this moment. [`PageStore::resize_pool`] changes
    /// it; [`frames_for`](crate::frames_for) computes it before the store is opened.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.shared.frames() as u64
    }

    /// The size of a page, its header included. [`PageSize::payload_bytes`] is the part that a guard gives
    /// you.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.shared.page_size()
    }

    /// Whether the store owns its volume at this moment: no other machine has taken it over, as far as it
    /// knows, and it made sure within its [lease](crate::options::OnHdd::lease). False: every request fails
    /// with [`Error::Fenced`]. An engine that answers from what it has read asks again before it answers, if
    /// the process may have been stopped meanwhile.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.claim().is_none_or(|claim| claim.holds())
    }

    /// The claim that [`PageStore::is_owner`] asks, for a log that may outlast the store. `None`: nothing can
    /// end it.
    #[doc(hidden)]
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        self.shared.hdd.claim()
    }

    /// Recounts the internal structures and compares; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.shared.tier.validate()
    }
}
