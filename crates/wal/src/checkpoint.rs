//! Fuzzy checkpoints truncate the log while the engine runs.

use crate::error::CheckpointError;
use crate::log::archive::keep_archived;
use crate::log::room::PAUSE_HELD;
use crate::log::{Shared, Wal};
use crate::options::Keep;
use pagetier::{DrainOptions, DrainReport, Loss, Lsn, PageStore};
use pagetier_devio::Owner;
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The first and the longest pause after a failed checkpoint; each further failure doubles the pause. A
/// request that waits for space cuts it short, but for the first part.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pages that go home from the SSD between two looks at the log: some seconds' work for a disk.
const PAGES_AT_ONCE: u64 = 256;

/// One step of a fuzzy checkpoint: frees the pages whose records say so; when the log is three quarters full,
/// writes the pages with the oldest changes; then truncates the log, by whole segments, to what is needed
/// ([`WalOptions::keep`](crate::WalOptions::keep)). If the log's medium is full, it makes waiting records
/// durable in the log's reserve, writes all pages, and gives up every segment that it can; then, and when a
/// device has few places left, pages go home from the SSD if the older half of the log is kept for them. Call
/// it whenever [`Wal::grown`] returns, once redo is complete; [`LoggedStore`](crate::LoggedStore) has a task
/// that does. Waits for exclusive guards of changed pages, so the caller must hold none. Cancel-safe.
///
/// # Errors
/// The store or the log failed; the next step retries.
pub async fn checkpoint(store: &Arc<PageStore>, wal: &Wal) -> Result<(), CheckpointError> {
    let _one = wal.0.checkpoints.lock().await;
    wal.attach(store);
    step(store, wal).await
}

/// As [`checkpoint`], for a caller that has its lock.
pub(crate) async fn step(store: &Arc<PageStore>, wal: &Wal) -> Result<(), CheckpointError> {
    wal.note_segment().await;
    // Otherwise pages with changes that wait for space could not be written, and would hold the whole log.
    let mut reserved = if wal.is_failing() { wal.flush_or_reserve(wal.end()).await } else { Ok(()) };
    if reserved.is_err() && wal.is_tight() {
        // The reserve is used up. Pages whose records are durable can be written; a segment that only they
        // needed can go, and becomes the next reserve.
        let _ = store.flush_to(wal.durable()).await;
        match wal.to_go() {
            // What it cannot do shows below.
            Some(lsn) => drop(give_up(store, wal, lsn).await),
            None => truncate(store, wal, true).await?,
        }
        reserved = wal.flush_or_reserve(wal.end()).await;
    }
    // If this fails, the log still loses what precedes the oldest pending free.
    let freed = wal.record_frees(store).await;
    let capacity = wal.capacity_bytes();
    let tight = wal.is_tight() && reserved.is_ok();
    // Before a truncation, after which the medium does not count as full.
    let to_go = wal.to_go();
    // For a crash first: what the disk takes long for must not hold changes up.
    shorten(store, wal).await?;
    match to_go {
        Some(lsn) => give_up(store, wal, lsn).await?,
        None => bring_home_found(store, wal).await?,
    }
    if wal.len_bytes() > capacity || tight {
        // A few large segments hold what is needed: only if nothing is needed is the log sure to be short.
        store.flush_to(wal.end()).await?;
        // Records of no page, too: what is still in memory is in no segment that could be removed.
        wal.flush(wal.end()).await?;
        truncate(store, wal, true).await?;
    }
    reserved?;
    freed.map(drop)
}

/// Of pages that were on the SSD at the open, none is known to have older changes than another: all of
/// them hold the log until they are home. They go there in shares, one for each segment that the log may grow
/// by; once it may not, changes would wait for all of them.
async fn bring_home_found(store: &PageStore, wal: &Wal) -> Result<(), CheckpointError> {
    let Some((up_to, shares)) = wal.share_due() else { return Ok(()) };
    let mut left = store.stats().ssd.dirty_pages.div_ceil(shares);
    while left > 0 && !wal.is_tight() {
        let pages = left.min(PAGES_AT_ONCE);
        // What it cannot do is left for the next shares, and is an error once the log is too long.
        let drained = store.ssd().drain(DrainOptions::new().up_to(up_to).pages(pages)).await;
        shorten(store, wal).await?;
        left = if drained.written < pages { 0 } else { left - pages };
    }
    Ok(())
}

/// Makes a recovery after a crash short: writes the pages with the oldest changes if that is due.
async fn shorten(store: &PageStore, wal: &Wal) -> Result<(), CheckpointError> {
    let capacity = wal.capacity_bytes();
    let mut up_to = wal.crowded();
    if wal.len_bytes() > capacity / 4 * 3 {
        up_to = up_to.max(wal.end().0.saturating_sub(capacity / 8 * 5));
    }
    let written = if up_to > 0 { store.flush_to(Lsn(up_to)).await } else { Ok(()) };
    truncate(store, wal, false).await?;
    Ok(written?)
}

/// Gives up the log before `target`, segment by segment: writes the pages that need it, also home from the
/// SSD if it is kept for that. Each segment makes space for changes; those for all of it may take the disk
/// minutes.
async fn give_up(store: &PageStore, wal: &Wal, target: Lsn) -> Result<(), CheckpointError> {
    let mut result = Ok(());
    loop {
        let next = wal.next_to_go();
        let step = next.min(target);
        // Pages whose records are not durable cannot be written where the log is full; the others count.
        result = result.and(store.flush_to(step).await);
        let mut drained = DrainReport::default();
        if wal.keep() == Keep::ForSsdLoss {
            drained = store.ssd().drain(DrainOptions::new().up_to(step).pages(PAGES_AT_ONCE)).await;
        }
        // First, since part of it may be done.
        truncate(store, wal, true).await?;
        if let Some(error) = drained.stopped_by {
            return Err(pagetier::Error::from(error).into());
        }
        if drained.written >= PAGES_AT_ONCE {
            shorten(store, wal).await?;
            continue;
        }
        if next >= target || wal.next_to_go() == next {
            // A page that cannot go home keeps the log from here on, and is the cause if there is no space.
            if let Some((_, error)) = drained.failed.into_iter().next().filter(|_| wal.is_scarce()) {
                return Err(pagetier::Error::from(error).into());
            }
            return Ok(result?);
        }
    }
}

async fn truncate(store: &PageStore, wal: &Wal, force: bool) -> Result<(), CheckpointError> {
    // Read the end first: a change that is not yet in the store's minimum has a later LSN.
    let end = wal.end();
    // Where this fails, the log keeps the commits, and can be shortened up to them.
    let _ = wal.flush_applied().await;
    let pages = store.min_recovery_lsn().unwrap_or(end);
    let needed = end.min(pages).min(wal.oldest_unfinished().unwrap_or(end));
    // What only the SSD has keeps the log, too: without a look at that, each step would flush for nothing.
    let for_ssd = wal.keep() == Keep::ForSsdLoss;
    let on_ssd = if for_ssd { store.stats().ssd.oldest_lsn } else { None };
    let keep = needed.min(on_ssd.unwrap_or(needed));
    if force || wal.is_shorter_from(needed) || wal.can_truncate(keep) {
        // Pages written by this point are clean, but durable only after a flush, which this includes. For the
        // loss of the SSD the store records the position, and names it should the SSD be lost.
        let loss = if for_ssd { Loss::Ssd } else { Loss::Crash };
        let from = store.redo_from(end, loss).await?;
        wal.truncate(needed, from.min(needed)).await?;
    }
    Ok(())
}

/// The task that keeps a log short. Dropping this ends it.
pub(crate) struct Checkpoints {
    task: JoinHandle<()>,
    work: Arc<Work>,
    failure: Failure,
}

/// The task's work. An aborted task drops what it polls only when it is scheduled, and would keep the store
/// from the next opener until then.
struct Work {
    polled: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    owner: Owner,
}

impl Work {
    fn end(&self) {
        // In a forked process a thread that does not exist here may hold the lock.
        if self.owner.is_here() {
            let ended = self.polled.lock().take();
            drop(ended);
        }
    }
}

/// Ends the work with the task, as when its runtime ends.
struct Ends(Arc<Work>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The error of the last checkpoint, if it failed.
type Failure = Arc<Mutex<Option<Arc<CheckpointError>>>>;

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl Checkpoints {
    pub(crate) fn start(store: &Arc<PageStore>, wal: &Wal) -> Self {
        let failure = Failure::default();
        let of = (Arc::downgrade(store), Arc::downgrade(&wal.0));
        let archiving = keep_archived(of.1.clone());
        let shortening = keep_short(of, wal.growth(), Arc::clone(&failure));
        let work = async move {
            let ((), ()) = tokio::join!(shortening, archiving);
        };
        let polled = Mutex::new(Some(Box::pin(work) as _));
        let work = Arc::new(Work { polled, owner: Owner::here() });
        let ends = Ends(Arc::clone(&work));
        let task = tokio::spawn(poll_fn(move |cx| {
            let mut polled = ends.0.polled.lock();
            polled.as_mut().map_or(Poll::Ready(()), |work| work.as_mut().poll(cx))
        }));
        Self { task, work, failure }
    }

    pub(crate) fn failure(&self) -> Option<Arc<CheckpointError>> {
        self.failure.lock().clone()
    }

    pub(crate) fn end(&self) {
        self.task.abort();
        self.work.end();
        if !self.work.owner.is_here() {
            std::mem::forget(Arc::clone(&self.work));
        }
    }
}

/// Holds store and log only during a checkpoint, so that a dropped store is free for the next opener.
async fn keep_short(of: (Weak<PageStore>, Weak<Shared>), growth: Arc<Notify>, failure: Failure) {
    loop {
        growth.notified().await;
        let mut pause = PAUSE.0;
        loop {
            let (Some(store), Some(wal)) = (of.0.upgrade(), of.1.upgrade().map(Wal)) else { return };
            let done = checkpoint(&store, &wal).await.map_err(Arc::new);
            // Where space is scarce, each attempt has much to do.
            let shortest = if wal.is_scarce() { PAUSE_HELD } else { PAUSE.0 };
            drop((store, wal));
            let before = std::mem::replace(&mut *failure.lock(), done.as_ref().err().cloned());
            let Err(error) = done else { break };
            // Once: it may fail for days.
            if before.is_none() {
                tracing::warn!(
                    error = %pagetier::errors::Causes(&*error),
                    "a checkpoint of the log failed; it is tried again"
                );
            }
            tokio::time::sleep(shortest).await;
            tokio::select! {
                () = growth.notified() => pause = PAUSE.0,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE.1),
            }
        }
    }
}
