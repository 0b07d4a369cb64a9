//! The SSD's life as the embedder controls it: modes, drain, readmission, and operation without the SSD.

use crate::error::Error;
use crate::loss::SsdLoss;
use crate::manifest::Manifest;
use crate::meta::Meta;
use crate::runs::{OnlyCopies, RUNS_MAX, added};
use crate::shared::Shared;
use crate::store::PageStore;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::{
    DrainProgress, DrainReport, ExchangeError, Exchanged, NewCacheDevice, ReadmitReport, SsdEvent, SsdMode,
    SsdState, SsdTier, Superblock,
};
use rustc_hash::FxHashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// The ring's size in pages once a store continues without its SSD, unless the builder sets it.
const STANDBY_RING_PAGES: u32 = 256;

/// Options of a drain; see [`PageStore::drain_ssd`].
#[derive(Default)]
#[must_use]
pub struct Drain {
    deadline: Option<Duration>,
    progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
}

impl Drain {
    /// Drains until every page is home, without progress reports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops after `deadline`. Default: no deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Calls `report` after every batch of pages.
    pub fn on_progress(mut self, report: impl Fn(DrainProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A subscription to the SSD's events. It buffers at most 64 events.
#[derive(Debug)]
pub struct SsdEvents(broadcast::Receiver<SsdEvent>);

impl SsdEvents {
    /// Waits for the next event; `None` once the store is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<SsdEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(events)) => Some(SsdEvent::Missed { events }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event if one is buffered.
    pub fn try_next(&mut self) -> Option<SsdEvent> {
        match self.0.try_recv() {
            Ok(event) => Some(event),
            Err(broadcast::error::TryRecvError::Lagged(events)) => Some(SsdEvent::Missed { events }),
            Err(_) => None,
        }
    }
}

/// The outcome of giving up the SSD.
pub(crate) struct Abandoned {
    /// The pages whose newest version was on the SSD alone.
    lost: Vec<(PageId, Lsn)>,
    /// Whether every page of `lost` was on the SSD alone for certain.
    exact: bool,
    /// The subset of `lost` that is in memory and will be rewritten.
    in_memory: Vec<PageId>,
    /// The loss that the manifest listed before.
    before: Option<OnlyCopies>,
}

/// Sets a mode temporarily; dropping this restores the previous one.
pub(crate) struct ModeMeanwhile {
    tier: Arc<SsdTier>,
    before: SsdMode,
}

impl ModeMeanwhile {
    pub(crate) fn set(tier: &Arc<SsdTier>, mode: SsdMode) -> Self {
        let before = tier.kept_mode();
        tier.set_mode(mode);
        Self { tier: Arc::clone(tier), before }
    }
}

impl Drop for ModeMeanwhile {
    fn drop(&mut self) {
        self.tier.set_mode(self.before);
    }
}

impl Shared {
    /// Switches to operation without the SSD when the SSD fails and holds no only copy. Ends with the store.
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut events = SsdEvents(self.tier.subscribe());
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if !matches!(event, SsdEvent::Refusing { by_ssd: true, .. } | SsdEvent::Missed { .. }) {
                    continue;
                }
                let Some(shared) = shared.upgrade() else { return };
                let _going = shared.going.lock().await;
                // The user may have intervened meanwhile.
                if shared.tier.ssd_state() != SsdState::Degraded || shared.tier.stats().refusing.is_none() {
                    continue;
                }
                if !shared.builder.keeps_its_ring() {
                    tracing::error!(
                        "the SSD failed; the store keeps it, since a ring in memory would not outlive the process"
                    );
                    continue;
                }
                match shared.go_on_without(None).await {
                    Ok(_) => tracing::warn!("the SSD failed; the store continues without it"),
                    Err(error) => {
                        tracing::error!(%error, "the SSD failed, and the store cannot continue without it")
                    }
                }
            }
        });
    }

    /// Runs `step` in its own task, one step at a time. The task continues when the caller is dropped: its
    /// device writes must not land after that device has been put into use.
    pub(crate) async fn alone<T, F>(
        self: &Arc<Self>,
        step: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let shared = Arc::clone(self);
        let going = Arc::clone(&self.going).lock_owned().await;
        let task = self.runtime.spawn(async move {
            let done = step(shared).await;
            drop(going);
            done
        });
        let ending = || Error::Refusing { cause: Arc::from("the runtime is shutting down") };
        task.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Exchanges the SSD for the ring's file. With `lost`, accepts the loss of the only copies on the SSD and
    /// lists them there.
    async fn go_on_without(&self, lost: Option<&mut Abandoned>) -> Result<Exchanged, Error> {
        let mut meta = self.meta.lock().await;
        let doublewrite = self.tier.has_ring();
        let pages = if doublewrite { self.builder.ring_pages_or(STANDBY_RING_PAGES) } else { 0 };
        let frames = self.pool.params().frames;
        let made = self.builder.make_ring(&meta, self.page_size(), pages, self.costs(), frames).await;
        let ring = made.map_err(|e| Error::Attach(Box::new(e)))?;
        self.exchange(ring, None, lost, &mut meta).await
    }

    /// Exchanges the cache device in use for a new, blank SSD.
    async fn attach(&self) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        // An exchange whose record failed may still be in the manifest: the SSD that it names must stay
        // untouched.
        let refusing = self.tier.refusing_for_good();
        if let Some(cause) = self.builder.rules().refuses_attach(refusing) {
            return Err(Error::Refusing { cause });
        }
        let frames = self.pool.params().frames;
        let made = self.builder.make_ssd(&meta, self.page_size(), self.costs(), frames).await;
        let (ssd, id) = made.map_err(|e| Error::Attach(Box::new(e)))?;
        self.exchange(ssd, Some(id), None, &mut meta).await.map(drop)
    }

    /// Performs the exchange. One save of the manifest names the new cache device and lists what the old one
    /// loses, so no crash can leave only one of the two recorded.
    pub(crate) async fn exchange(
        &self,
        new: NewCacheDevice,
        id: Option<String>,
        lost: Option<&mut Abandoned>,
        meta: &mut Meta,
    ) -> Result<Exchanged, Error> {
        let accept_loss = lost.is_some();
        let commit = |only: &[(PageId, Lsn)]| {
            // No write is in flight: unwritten pages stay unwritten until the exchange completes.
            if let Some(lost) = lost {
                lost.before.clone_from(&meta.manifest.loss);
                lost.lost = only.to_vec();
                lost.exact = self.are_only_copies(only);
                // Includes pages that a read has brought into memory since they were rewritten.
                let saved = only.iter().filter(|(page, lsn)| {
                    let again = || self.pool.try_rewrite(*page, *lsn);
                    self.pool.is_unwritten(*page) || self.builder.rules().is_saved(again)
                });
                lost.in_memory = saved.map(|(page, _)| *page).collect();
            }
            self.change_loss(meta, |manifest| {
                manifest.ssd = id;
                let listed = OnlyCopies::of(only, self.are_only_copies(only), RUNS_MAX);
                if let Some(listed) = self.builder.rules().listed_loss(Some(listed)) {
                    manifest.loss = added(manifest.loss.take(), listed);
                }
            })
        };
        let exchanged = self.tier.exchange(new, accept_loss, commit).await.map_err(|error| match error {
            ExchangeError::OnlyCopies { pages } => Error::SsdOnlyCopies { pages },
            ExchangeError::Refusing { cause } => Error::Refusing { cause },
            ExchangeError::Device(error) => Error::Device(error),
            ExchangeError::Commit(error) => error,
            other => Error::Refusing { cause: Arc::from(other.to_string()) },
        })?;
        self.pool.copies_gone(&exchanged.copies);
        Ok(exchanged)
    }

    /// Whether each of `pages` is on the SSD alone for certain.
    fn are_only_copies(&self, pages: &[(PageId, Lsn)]) -> bool {
        self.builder.rules().is_exact(self.tier.are_only_copies(pages))
    }

    /// Saves the manifest after `edit` and publishes the losses that it then lists.
    fn change_loss(&self, meta: &mut Meta, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        meta.change(&self.volume, edit)?;
        *self.loss.lock() = meta.manifest.loss.as_ref().map(|loss| loss.report(&self.volume));
        Ok(())
    }

    /// Flushes the rewritten `pages` and removes them from the manifest's loss list, which was `before` until
    /// `lost` was added: an earlier loss of the same pages stays listed. Returns the pages saved.
    async fn save_lost(
        &self,
        before: Option<OnlyCopies>,
        lost: &OnlyCopies,
        mut pages: Vec<PageId>,
    ) -> Result<Vec<PageId>, Error> {
        if pages.is_empty() || self.pool.flush_all().await.is_err() {
            return Ok(Vec::new());
        }
        pages.sort_unstable();
        let mut meta = self.meta.lock().await;
        self.change_loss(&mut meta, |manifest| {
            // The user acknowledged the loss meanwhile: do not list it again.
            if manifest.loss.is_some() {
                let left = lost.without(&pages);
                manifest.loss = if left.runs.is_empty() { before } else { added(before, left) };
            }
        })?;
        Ok(pages)
    }

    async fn abandon(&self) -> Result<SsdLoss, Error> {
        if self.tier.mode() == SsdMode::Off {
            return Ok(SsdLoss::none());
        }
        // Admit nothing to the SSD while pages in memory are made dirty, so that they cannot move there.
        let mode = ModeMeanwhile::set(&self.tier, SsdMode::ReadOnly);
        // Pages that were on their way to a slot become only copies too, and may still be in memory.
        self.builder.rules().settled(self.tier.writes_settled()).await;
        let _ = self.rewrite(&self.tier.only_copies()).await;
        let mut abandoned = Abandoned { lost: Vec::new(), exact: true, in_memory: Vec::new(), before: None };
        let exchanged = self.go_on_without(Some(&mut abandoned)).await;
        drop(mode);
        exchanged?;
        let Abandoned { mut lost, exact, in_memory, before } = abandoned;
        let listed = OnlyCopies::of(&lost, exact, RUNS_MAX);
        let saved = self.save_lost(before, &listed, in_memory).await?;
        lost.retain(|(page, _)| saved.binary_search(page).is_err());
        // With nothing left there is nothing to be uncertain of.
        let exact = exact || lost.is_empty();
        Ok(OnlyCopies::of(&lost, exact, RUNS_MAX).report(&self.volume))
    }

    async fn readmit(&self) -> Result<ReadmitReport, Error> {
        if self.tier.ssd_state() == SsdState::Off {
            self.attach().await?;
            return Ok(ReadmitReport::default());
        }
        let mut meta = self.meta.lock().await;
        let id = |text: &str| uuid::Uuid::parse_str(text).unwrap_or_default().into_bytes();
        let (store, ssd) = (id(&meta.manifest.store), id(meta.manifest.ssd.as_deref().unwrap_or_default()));
        let epoch = meta.manifest.epoch;
        let before = meta.manifest.loss.clone();
        let ours =
            |found: &Superblock| found.store == store && found.ssd == ssd && found.marks.opened == epoch;
        let mut exact = true;
        let record = |lost: &[(PageId, Lsn)]| {
            exact = self.are_only_copies(lost);
            let recorded = self.change_loss(&mut meta, |manifest| {
                let listed = OnlyCopies::of(lost, exact, RUNS_MAX);
                if let Some(listed) = self.builder.rules().listed_loss(Some(listed)) {
                    manifest.loss = added(manifest.loss.take(), listed);
                }
            });
            recorded.map_err(|error| error.to_string())
        };
        let report = self.tier.readmit(ours, record).await?;
        drop(meta);
        let only = self.tier.only_copies();
        let lost: Vec<_> = only.into_iter().filter(|(page, _)| report.lost.contains(page)).collect();
        let in_memory = self.rewrite(&lost).await;
        let listed = OnlyCopies::of(&lost, exact, RUNS_MAX);
        self.save_lost(before, &listed, in_memory.into_iter().collect()).await?;
        Ok(report)
    }

    /// Marks the pages of `pages` that are in memory as dirty, so that they are written again. Returns these.
    pub(crate) async fn rewrite(&self, pages: &[(PageId, Lsn)]) -> FxHashSet<PageId> {
        let mut rewritten = FxHashSet::default();
        for (page, lsn) in pages {
            if self.pool.rewrite(*page, *lsn).await {
                rewritten.insert(*page);
            }
        }
        rewritten
    }
}

impl PageStore {
    // ---- the SSD's life
    // -------------------------------------------------------------------------------------

    /// Subscribes to the SSD's events from this moment on.
    #[must_use]
    pub fn ssd_events(&self) -> SsdEvents {
        SsdEvents(self.shared.tier.subscribe())
    }

    /// The SSD's state.
    #[must_use]
    pub fn ssd_state(&self) -> SsdState {
        self.shared.tier.ssd_state()
    }

    /// The SSD's mode.
    #[must_use]
    pub fn ssd_mode(&self) -> SsdMode {
        self.shared.tier.mode()
    }

    /// Changes what the SSD is used for. A change among [`SsdMode::WriteBack`], [`SsdMode::WriteThrough`] and
    /// [`SsdMode::ReadOnly`] takes effect at once, for pages written after it. Versions that are on the SSD
    /// alone stay there until they are written again or drained ([`PageStore::drain_ssd`]).
    ///
    /// A change to [`SsdMode::Off`] drains the SSD, then switches to a ring in the store's directory and
    /// records that: the SSD may be removed, and the store opens without it. A change from there to another
    /// mode starts with the SSD blank, as [`PageStore::readmit_ssd`] does. Hold no guards meanwhile: writes
    /// wait. Cancel-safe: a drain in progress ends after its batch and the previous mode returns; an exchange
    /// that has begun completes.
    ///
    /// # Errors
    /// [`Error::SsdOnlyCopies`] when not everything could be drained; or a device or the manifest failed. The
    /// previous mode is then in effect.
    pub async fn set_ssd_mode(&self, mode: SsdMode) -> Result<(), Error> {
        let shared = &self.shared;
        match (shared.tier.mode(), mode) {
            (SsdMode::Off, SsdMode::Off) => Ok(()),
            (_, SsdMode::Off) => {
                // Restores the current mode when dropped; after the exchange it applies once an SSD is back
                // in use.
                let meanwhile = ModeMeanwhile::set(&shared.tier, SsdMode::WriteThrough);
                let _ = shared.tier.drain(None, None).await;
                let gone = shared.alone(|shared| async move {
                    let _meanwhile = meanwhile;
                    match shared.tier.mode() {
                        SsdMode::Off => Ok(()),
                        _ => shared.go_on_without(None).await.map(drop),
                    }
                });
                gone.await
            }
            (SsdMode::Off, _) => {
                let attached = shared.alone(move |shared| async move {
                    if shared.tier.mode() == SsdMode::Off {
                        shared.attach().await?;
                    }
                    shared.tier.set_mode(mode);
                    Ok(())
                });
                attached.await
            }
            _ => {
                shared.tier.set_mode(mode);
                Ok(())
            }
        }
    }

    /// Writes every page home whose newest version is on the SSD alone. Once it completes, the SSD holds no
    /// only copy and everything written home is durable. Pages stay readable throughout, and the SSD's copies
    /// stay in use. During the drain changed pages go to the HDD; after it the mode decides again, so set
    /// [`SsdMode::WriteThrough`] first to keep the SSD free of only copies. Cancel-safe: a dropped drain ends
    /// after its batch of at most 32 pages.
    ///
    /// Reports how many pages are left when the deadline passes, when copies cannot be read, or when a device
    /// stops the drain ([`DrainReport::stopped_by`]). Pages whose only copy is damaged but which are in
    /// memory are rewritten from there soon after.
    pub async fn drain_ssd(&self, drain: Drain) -> DrainReport {
        let Drain { deadline, progress } = drain;
        let report = self.shared.tier.drain(deadline, progress).await;
        let failed: FxHashSet<PageId> = report.failed.iter().map(|(page, _)| *page).collect();
        let only = self.shared.tier.only_copies();
        let bad: Vec<_> = only.into_iter().filter(|(page, _)| failed.contains(page)).collect();
        let _ = self.shared.rewrite(&bad).await;
        report
    }

    /// Takes the SSD back into use.
    ///
    /// After a failure it must be the same SSD with its contents. Every copy is read: its stamp proves it
    /// current, or it is void. Versions whose flush failed are written again. The store accepts writes again
    /// on success. From [`SsdMode::Off`] the SSD of the builder's options (blank, or an earlier one of this
    /// store) is formatted; its contents are ignored. Hold no guards meanwhile: writes wait. Pages that were
    /// lost there but are in memory are rewritten; [`PageStore::ssd_loss`] lists the others. Cancel-safe: a
    /// readmission that has begun completes.
    ///
    /// # Errors
    /// [`Error::Readmit`], [`Error::Attach`], [`Error::Refusing`]; the SSD stays as it was.
    pub async fn readmit_ssd(&self) -> Result<ReadmitReport, Error> {
        self.shared.alone(|shared| async move { shared.readmit().await }).await
    }

    /// Continues without the SSD although it may hold the only copies of some pages, and gives them up for
    /// good. Pages in memory are rewritten; the result lists the others: they read as older versions or do
    /// not exist. The store accepts writes again, and opens without the SSD in the future;
    /// [`PageStore::readmit_ssd`] starts with a blank one. The list is durable before the SSD is given up
    /// (see [`PageStore::ssd_loss`]); it includes pages in memory until they are durable at home. Hold no
    /// guards meanwhile. Cancel-safe: an abandonment that has begun completes.
    ///
    /// # Errors
    /// The HDD, the ring's file or the manifest failed, or the store refuses writes because of the HDD.
    pub async fn abandon_ssd(&self) -> Result<SsdLoss, Error> {
        self.shared.alone(|shared| async move { shared.abandon().await }).await
    }

    /// The log position from which redo would be needed if the SSD were lost at this moment: every older
    /// change is on the HDD (or in memory, see [`PageStore::min_recovery_lsn`]). `None`: nothing is on the
    /// SSD alone. After a recovery it may be older than necessary. Like `flush_to`, it requires that no
    /// change gets an LSN older than the last value of `min_recovery_lsn`.
    #[must_use]
    pub fn oldest_ssd_lsn(&self) -> Option<Lsn> {
        self.shared.tier.oldest_lsn()
    }

    /// The accumulated loss from SSDs that were given up ([`PageStore::abandon_ssd`],
    /// [`Builder::accept_ssd_loss`]) or readmitted damaged ([`PageStore::readmit_ssd`]), in this run or
    /// earlier ones. `None`: nothing was lost, or the loss was acknowledged.
    #[must_use]
    pub fn ssd_loss(&self) -> Option<SsdLoss> {
        self.shared.loss.lock().clone()
    }

    /// Clears [`PageStore::ssd_loss`]: the embedder has dealt with it. Durable when it returns. Cancel-safe.
    ///
    /// # Errors
    /// The manifest cannot be written; the list is kept.
    pub async fn acknowledge_loss(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let mut meta = shared.meta.lock().await;
        if meta.manifest.loss.is_some() {
            shared.change_loss(&mut meta, |manifest| manifest.loss = None)?;
        }
        *shared.loss.lock() = None;
        Ok(())
    }
}
