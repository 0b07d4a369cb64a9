//! A page store with its log.

use crate::checkpoint::{Checkpoints, checkpoint, step};
use crate::copy::copy_log;
use crate::error::{CheckpointError, Moment, WalError, is_full};
use crate::guard::Guard;
use crate::log::Wal;
use crate::log::minitx::MiniTx;
use crate::options::{Keep, WalOptions};
use crate::recovery::recover::{RecoverError, opened, recover};
use crate::recovery::redo::Recovered;
use crate::until::{Line, Until};
use pagetier::backup::{BackupError, BackupOptions, BackupReport};
use pagetier::errors::Advice;
use pagetier::{Builder, Loss, Lsn, PageStore, SpaceId};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// How long an open waits for the log: a write whose caller was dropped may outlast the previous store.
const OPEN_WAIT: Duration = Duration::from_millis(500);
/// The polling interval of this wait.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How often a change that finds the log's medium full tries a checkpoint, while checkpoints succeed.
const ROOM_ATTEMPTS: u32 = 3;
/// The polling interval of a commit that waits for a checkpoint. If the checkpoint has waited for one and the
/// same guard since the last look, it may wait for the caller.
const GUARD_WAIT: Duration = Duration::from_secs(2);
/// What the time between two looks at a wait for space counts for at most.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A page store and its log, recovered and kept short: what an engine opens. Derefs to the store.
///
/// Change pages through a [`MiniTx`]: changes without one may be lost, or last without the others of their
/// transaction. Dropping this without [`LoggedStore::shutdown`] is equivalent to a crash, and safe.
#[derive(Debug)]
pub struct LoggedStore {
    // Dropped first: it uses the others.
    pub(crate) checkpoints: Checkpoints,
    recovered: Recovered,
    store: Arc<PageStore>,
    wal: Wal,
    /// How the shutdown ended. Locked while it runs.
    ended: Arc<Mutex<Option<Result<(), CheckpointError>>>>,
}

/// Why a backup or its restoration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggedBackupError {
    /// The pages could not be backed up or restored.
    #[error(transparent)]
    Pages(#[from] pagetier::backup::BackupError),
    /// The log could not be copied.
    #[error(transparent)]
    Log(#[from] WalError),
    /// The store could not record what the backup needs of the log.
    #[error(transparent)]
    Position(#[from] CheckpointError),
}

impl LoggedBackupError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Pages(error) => error.advice(),
            Self::Log(error) => error.advice(),
            Self::Position(error) => error.advice(),
        }
    }
}

impl LoggedStore {
    /// Opens the store that `builder` describes with its log in the directory `log`, or creates them, and
    /// recovers the pages. If another opener has the log, waits half a second for it. Dropping the future is
    /// like a crash.
    ///
    /// # Errors
    /// Store or log cannot be opened, do not belong together, or recovery fails. Opening again is always
    /// safe.
    pub async fn open(
        builder: Builder,
        log: impl AsRef<Path>,
        options: WalOptions,
    ) -> Result<Self, RecoverError> {
        Self::on(builder, Wal::open_when_free(log.as_ref(), options).await?).await
    }

    /// As [`LoggedStore::open`], with a log that is open already, perhaps on a medium of its own. The log
    /// becomes the store's gate.
    ///
    /// # Errors
    /// As [`LoggedStore::open`].
    pub async fn on(builder: Builder, wal: Wal) -> Result<Self, RecoverError> {
        let store = opened(builder.log_gate(wal.gate()).open().await)?;
        Self::recovered_from(Arc::new(store), wal).await
    }

    /// Recovers a store that is open already, with the log's gate.
    ///
    /// # Errors
    /// As [`recover`].
    pub async fn recovered_from(store: Arc<PageStore>, wal: Wal) -> Result<Self, RecoverError> {
        let recovered = recover(&store, &wal).await?;
        Ok(Self {
            checkpoints: Checkpoints::start(&store, &wal),
            recovered,
            store,
            wal,
            ended: Arc::default(),
        })
    }

    /// The store, for owned guards and for structures that share it.
    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }

    /// The log.
    #[must_use]
    pub fn wal(&self) -> &Wal {
        &self.wal
    }

    /// What the open did to recover.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Begins a mini-transaction, once the log has space for it: see [`LoggedStore::admit`].
    ///
    /// # Errors
    /// As [`LoggedStore::admit`], after 30 s.
    pub async fn begin<G: Guard>(&self) -> Result<MiniTx<'_, G>, WalError> {
        self.admit(Duration::from_secs(30)).await?;
        Ok(MiniTx::new(Some(&self.wal)))
    }

    /// Waits until the log can take a change, at most for `wait`. Call it before you latch pages: a
    /// checkpoint may need them. While the log fails, changes would accumulate in memory, so each one tries
    /// the log first; if its medium was full, it tries a checkpoint, which gives space back. Cancel-safe.
    ///
    /// # Errors
    /// The log fails, is closed, or is full ([`WalError::Full`]) and checkpoints do not shorten it.
    pub async fn admit(&self, wait: Duration) -> Result<(), WalError> {
        let wal = &self.wal;
        wal.check_changes()?;
        for attempt in 0.. {
            let works = if wal.is_failing() { wal.flush(wal.end()).await } else { Ok(()) };
            let is_full = matches!(&works, Err(WalError::Io { source, .. }) if is_full(source));
            if !wal.is_tight() && !is_full || attempt == ROOM_ATTEMPTS {
                works?;
                break;
            }
            // It lets records that wait have the reserve, and sets one aside anew before another record takes
            // the space: otherwise a full disk would refuse the very change that frees. A checkpoint that
            // ends meanwhile has made space, and perhaps not for these records, nor for those of other tasks.
            let made = self.make_space(|| !wal.is_tight() && !wal.is_failing()).await;
            if !wal.is_failing() {
                break;
            }
            if made.is_err() {
                works?;
            }
        }
        if !wal.is_long() {
            return Ok(());
        }
        let space = wal.has_space();
        tokio::pin!(space);
        let mut left = wait;
        while !left.is_zero() {
            // In steps: time in which the process was stopped counts as one of them.
            let step = left.min(LOOK_AGAIN);
            tokio::select! {
                biased;
                () = &mut space => return wal.check_changes(),
                () = sleep(step) => left -= step,
            }
        }
        Err(self.full())
    }

    /// Records a change, releases its pages, and makes it durable; concurrent calls share a sync of the log.
    /// If the log's medium is full, one that frees pages goes to the log's reserve. If that is used up, the
    /// call waits for a checkpoint, which sets it aside anew, for as long as that works; but not for long if
    /// the checkpoint waits for an exclusive guard, which may be the caller's. Returns the record's LSN. If
    /// the future is dropped, the change has happened, and becomes durable with a later one.
    ///
    /// # Errors
    /// [`WalError::TooLong`], and [`WalError::Stopped`] while the store is being closed: nothing has changed.
    /// Otherwise the log failed: the change is visible, and becomes durable once the log works again; a crash
    /// before that loses it.
    pub async fn commit<G: Guard>(&self, change: MiniTx<'_, G>) -> Result<Lsn, WalError> {
        let (lsn, frees_space) = change.record()?;
        self.make_durable(lsn, frees_space).await?;
        Ok(lsn)
    }

    /// Makes the record at `lsn` durable, as [`LoggedStore::commit`] does.
    pub(crate) async fn make_durable(&self, lsn: Lsn, frees_space: bool) -> Result<(), WalError> {
        match self.wal.flush_record(lsn, frees_space).await {
            Err(WalError::Io { source, .. }) if frees_space && is_full(&source) => {
                // Another record had the reserve. If this fails, the flush says for what cause.
                let _ = self.make_space(|| self.wal.durable() >= lsn).await;
                self.wal.flush_record(lsn, frees_space).await
            }
            flushed => flushed,
        }
    }

    /// Runs a checkpoint, unless `has_space` by the time it may begin. Fails if a checkpoint waits for an
    /// exclusive guard: the caller may hold it.
    async fn make_space(&self, has_space: impl Fn() -> bool) -> Result<(), CheckpointError> {
        let made = async {
            let _one = self.wal.0.checkpoints.lock().await;
            if has_space() { Ok(()) } else { step(&self.store, &self.wal).await }
        };
        tokio::select! {
            made = made => made,
            () = self.guard_blocks() => Err(self.full().into()),
        }
    }

    /// The log is full: why checkpoints did not shorten it.
    fn full(&self) -> WalError {
        let archive = || Some(Arc::new(CheckpointError::Log(self.wal.0.archive_failure()?)));
        WalError::Full { cause: self.checkpoints.failure().or_else(archive) }
    }

    /// Returns once a flush has waited for the same guard from one look to the next.
    async fn guard_blocks(&self) {
        let mut before = None;
        loop {
            sleep(GUARD_WAIT).await;
            let now = self.store.flush_waits_for_guard();
            if now.is_some() && now == before {
                return;
            }
            before = now;
        }
    }

    /// Removes a space with all its pages, as [`Spaces::drop`](pagetier::Spaces::drop) does, once the log
    /// says so durably. (Otherwise redo would miss the space: the log may still have records of its pages.)
    /// First log a change that removes the last reference to it. The caller must hold no guard. Goes on to
    /// its end if the future is dropped.
    ///
    /// # Errors
    /// The log failed: the space is there, and may be gone after a crash, unless a page of it is changed by a
    /// later record. The store failed: see there.
    pub async fn drop_space(&self, space: SpaceId) -> Result<(), CheckpointError> {
        self.wal.check_changes()?;
        // A record of a space that does not exist would remove the one that gets this id.
        self.store.spaces().pages(space)?;
        let (wal, store) = (self.wal.clone(), Arc::clone(&self.store));
        // In a task of its own: after the record, a caller that gave up would leave a space that looks as
        // before, and is gone after a crash.
        let dropping = tokio::spawn(async move {
            wal.flush(wal.append_removal(space)?).await?;
            Ok(store.spaces().drop(space).await?)
        });
        dropping.await.map_err(|_| WalError::Stopped)?
    }

    /// Shortens the log now, as the task that runs in the background does when it has grown: see
    /// [`checkpoint`]. Removes the segments that nothing needs; to make it need less, first write pages
    /// ([`PageStore::flush_to`]), and for the loss of the SSD drain that ([`Ssd::drain`](pagetier::Ssd)). The
    /// caller must hold no guard. Cancel-safe.
    ///
    /// # Errors
    /// As [`checkpoint`].
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.wal.check_changes()?;
        checkpoint(&self.store, &self.wal).await
    }

    /// Backs up pages and log while they change: the pages as the next file of the chain in `to`
    /// ([`PageStore::backup`]), the log as `log-NNNNNN` beside it, with the backup's number. Restored, they
    /// are the store as it was at one moment before the call returned, with every change that was committed
    /// before the call. The log is not shortened meanwhile. The backup gets its name after its log, so there
    /// is none without. [`Backups`](pagetier::backup::Backups) takes one for lost whose log was removed.
    ///
    /// # Errors
    /// The backup of the pages failed, or the log cannot be copied: the chain is unchanged.
    ///
    /// # Cancel safety
    /// A dropped call leaves the chain unchanged, or completes the backup in the background.
    pub async fn backup(&self, to: &Path, options: BackupOptions) -> Result<BackupReport, LoggedBackupError> {
        self.wal.check_changes()?;
        // Retain the log from before the backup until it is copied: the pages are from different moments, and
        // redo of all changes since brings them to one.
        let hold = Arc::new(self.wal.hold().0);
        // The backup names the log that its pages need, and a restoration asks for no more of it. In a task
        // of its own, since checkpoints would wait for a caller that is not polled meanwhile.
        let (store, wal) = (Arc::clone(&self.store), self.wal.clone());
        let naming = tokio::spawn(async move {
            let end = wal.end();
            let from = store.redo_from(end, Loss::Crash).await?;
            wal.flush(end).await?;
            Ok::<_, CheckpointError>(wal.record(from).await?)
        });
        naming.await.map_err(|_| WalError::Stopped)??;
        let (wal, held) = (self.wal.clone(), Arc::clone(&hold));
        // Each page was written after its record was durable, so the log up to this end has them all. What
        // follows may be of a space that the backup does not have.
        let options = options.copy_log(move |to, end| {
            Box::pin(async move {
                let copied = wal.copy_up_to(&to, end).await;
                // Also for a call that was dropped meanwhile.
                drop(held);
                copied.map_err(io::Error::other)
            })
        });
        let made = self.store.backup(to, options).await;
        drop(hold);
        made.map_err(|error| match error {
            BackupError::Io { path, source } => match source.downcast() {
                Ok(of_log) => LoggedBackupError::Log(of_log),
                Err(source) => BackupError::Io { path, source }.into(),
            },
            error => error.into(),
        })
    }

    /// Restores the backup `number` of the chain in `from`: a new store as [`Builder::restore`] makes it, and
    /// its log in the new directory `log`. Then open them as usual. An interrupted restoration may leave the
    /// log without the store: remove it and restore again.
    ///
    /// # Errors
    /// The chain cannot be restored, or the log cannot be copied.
    pub async fn restore(
        builder: Builder,
        log: &Path,
        from: &Path,
        number: u32,
    ) -> Result<(), LoggedBackupError> {
        let (copy, log) = (backup_log(from, number), log.to_owned());
        let copying = tokio::task::spawn_blocking(move || copy_log(&copy, &log));
        copying.await.map_err(|_| WalError::Stopped)??;
        builder.restore(from, Some(number), |_| ()).await?;
        Ok(())
    }

    /// As [`LoggedStore::restore`] of a `backup`, which is chain and number, and redoes what the log's
    /// archive ([`Wal::archive_to`]) in `archive` has since, up to a moment; returns where that is. Each
    /// change until then must have been logged, in spaces that the backup has. The restored log has a new
    /// identity: the store goes on from there on a line of its own, which needs another directory for its
    /// archive, and a backup before it can be restored to a later moment.
    ///
    /// # Errors
    /// As [`LoggedStore::restore`]. [`WalError::Archive`], before anything is written: the archive is another
    /// log's or timeline's, has a gap or a damaged segment before that moment, or does not reach it; or the
    /// moment is before the end of the backup.
    pub async fn restore_until(
        builder: Builder,
        log: &Path,
        backup: (&Path, u32),
        archive: &Path,
        until: Until,
    ) -> Result<Lsn, LoggedBackupError> {
        let (from, number) = backup;
        let (copy, log, archive) = (backup_log(from, number), log.to_owned(), archive.to_owned());
        let copying = tokio::task::spawn_blocking(move || {
            let mut line = Line::open(&copy, &archive)?;
            let end = line.end_at(until)?;
            Ok::<_, WalError>((end, line.copy(&log, end)?))
        });
        let (end, id) = copying.await.map_err(|_| WalError::Stopped)??;
        builder.restore_with_log(from, Some(number), Some(id), |_| ()).await?;
        Ok(Lsn(end))
    }

    /// The earliest and the latest moment to which [`LoggedStore::restore_until`] restores the backup
    /// `number` of the chain in `from`. Reads all of the archive since the backup. Blocks.
    ///
    /// # Errors
    /// As there.
    pub fn restorable(from: &Path, number: u32, archive: &Path) -> Result<(Moment, Moment), WalError> {
        Line::open(&backup_log(from, number), archive)?.span()
    }

    /// Closes the store cleanly, with nothing to free and nothing to redo: the next open reads no more
    /// than the last segment of the log, or a little more if a page changes while this call writes.
    /// (Commits that are not applied stay, and come back there.) From the call on every change is refused
    /// with [`WalError::Stopped`], one whose pages are latched included, which have their earlier contents
    /// again; of an operation of several records the first ones may stay alone, as after a crash. Waits
    /// for all exclusive guards, and for shared guards of pages that a record has freed or whose space is
    /// being dropped, so the caller must hold none of these. Once it returns, every other call is refused,
    /// too. Store, log and archive can be opened again then, even if handles of them remain; the archive
    /// only later if a copy to it takes longer than 5 s.
    ///
    /// Every call returns the result of the first one. The shutdown continues if the future is dropped.
    ///
    /// # Errors
    /// The first failure. The store is closed even then, as by a crash.
    pub async fn shutdown(&self) -> Result<(), CheckpointError> {
        self.wal.check_owner()?;
        self.checkpoints.end();
        self.wal.refuse_changes();
        let (store, wal, ended) = (Arc::clone(&self.store), self.wal.clone(), Arc::clone(&self.ended));
        let ending = tokio::spawn(async move {
            let mut ended = ended.lock().await;
            if ended.is_none() {
                *ended = Some(end(&store, &wal).await);
            }
            ended.clone()
        });
        ending.await.ok().flatten().unwrap_or(Err(WalError::Stopped.into()))
    }
}

/// See [`LoggedStore::shutdown`].
async fn end(store: &Arc<PageStore>, wal: &Wal) -> Result<(), CheckpointError> {
    if wal.is_failing() {
        // A log without space can still be shortened. Should this fail, so does what follows.
        let _ = checkpoint(store, wal).await;
    }
    let freed = wal.free_pending(store).await;
    let cut = match write_all(store, wal).await {
        // Before the store gives up its ownership: the next owner may have used the space of these segments
        // again.
        Ok((needed, from)) => wal.truncate(needed, from).await.map_err(Into::into),
        Err(error) => Err(error),
    };
    // Whatever has failed: its locks must not stay.
    let closed = store.shutdown().await;
    wal.close().await;
    cut?;
    closed?;
    freed.map(drop)
}

/// Makes everything durable, and records what the next open needs of the log. Returns which of it is needed
/// for a crash, and which for what the log is kept for.
async fn write_all(store: &PageStore, wal: &Wal) -> Result<(Lsn, Lsn), CheckpointError> {
    store.sync().await?;
    let end = wal.end();
    if store.min_recovery_lsn().is_some() {
        // A change that was refused meanwhile has left its pages to be written again: they would hold the
        // log.
        store.flush_to(end).await?;
    }
    // Once everything is written, the set of pages that only the SSD has can only shrink.
    let from = if wal.keep() == Keep::ForSsdLoss { store.redo_from(end, Loss::Ssd).await? } else { end };
    // The log that the next open finds must end here.
    wal.flush(end).await?;
    // Pages may have been changed without a record meanwhile.
    let pages = store.min_recovery_lsn().unwrap_or(end);
    let needed = end.min(pages).min(wal.oldest_unfinished().unwrap_or(end));
    wal.record(needed).await?;
    Ok((needed, from.min(needed)))
}

impl Deref for LoggedStore {
    type Target = PageStore;

    fn deref(&self) -> &PageStore {
        &self.store
    }
}

impl Wal {
    /// Opens the log in `dir` as [`Wal::open`] does; if it is in use, waits up to half a second for its
    /// holder, as after the drop of the previous store. Cancel-safe: an open that has begun ends without
    /// its caller, and then closes the log.
    ///
    /// # Errors
    /// As [`Wal::open`].
    pub async fn open_when_free(dir: &Path, options: WalOptions) -> Result<Self, WalError> {
        let until = Instant::now() + OPEN_WAIT;
        loop {
            let dir = dir.to_owned();
            // It reads the log and writes its last segment again: not on a thread that runs tasks.
            let opening = tokio::task::spawn_blocking(move || Self::open(&dir, options));
            match opening.await.map_err(|_| WalError::Stopped)? {
                Err(WalError::InUse { .. }) if Instant::now() < until => sleep(LOOK_EVERY).await,
                opened => return opened,
            }
        }
    }
}

/// The copy of the log that belongs to a backup.
fn backup_log(chain: &Path, number: u32) -> PathBuf {
    chain.join(format!("log-{number:06}"))
}
