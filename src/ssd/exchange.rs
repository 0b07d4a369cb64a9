//! The SSD's life cycle: modes, drain, readmission, and operation without the SSD.

use crate::config::choices::Place;
use crate::config::sizes::RING_PAGES;
use crate::error::Error;
use crate::manifest::contents::Manifest;
use crate::manifest::id::id_bytes;
use crate::manifest::only_copies::{OnlyCopies, RUNS_MAX, added};
use crate::store::record::manifest_state::ManifestState;
use crate::store::shared::Shared;
use crate::volume::loss::SsdLoss;
use pagetier_devio::{Causes, task};
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::{
    DrainProgress, ExchangeError, Exchanged, Layout, NewCacheDevice, ReadmitError, ReadmitReport, Readmitter,
    Slots, SsdEvent, SsdMode, SsdState, Superblock,
};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::broadcast;

/// Options of a drain; see [`Ssd::drain`](crate::Ssd::drain).
#[derive(Default)]
#[must_use]
pub struct DrainOptions {
    pub(crate) deadline: Option<Duration>,
    pub(crate) up_to: Option<Lsn>,
    pub(crate) pages: Option<u64>,
    pub(crate) progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
}

impl DrainOptions {
    /// Drains until every page is home, without progress reports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops after `deadline`. Default: no deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Drains only the pages for which redo would need the log up to and including `lsn` if the SSD were
    /// lost: [`PageStore::redo_from`](crate::PageStore::redo_from) with [`Loss::Ssd`](crate::Loss::Ssd) is
    /// later then, if [`PageStore::flush_to`](crate::PageStore::flush_to) of the same position was called
    /// before. Meanwhile changed pages go to the SSD as usual, but for the end of the drain. Default: all
    /// pages.
    pub fn up_to(mut self, lsn: Lsn) -> Self {
        self.up_to = Some(lsn);
        self
    }

    /// Drains no more than `pages`, so that the HDD has time for others. Meanwhile changed pages go to the
    /// SSD as usual. Default: all pages.
    pub fn pages(mut self, pages: u64) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Calls `report` after every batch of pages.
    pub fn on_progress(mut self, report: impl Fn(DrainProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl std::fmt::Debug for DrainOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("DrainOptions");
        shown.field("deadline", &self.deadline).field("up_to", &self.up_to).finish_non_exhaustive()
    }
}

/// A subscription to the SSD's events. It buffers at most 64 events.
#[derive(Debug)]
pub struct SsdEvents(pub(crate) broadcast::Receiver<SsdEvent>);

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

impl Shared {
    /// Switches to operation without the SSD when the SSD fails and holds no only copy. Ends with the store.
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut events = SsdEvents(self.tier.subscribe());
        // Hold a weak reference while waiting: a task that kept the store alive would keep its locks, too.
        let shared = Arc::downgrade(self);
        task::spawn(&self.runtime, async move {
            while let Some(event) = events.next().await {
                // `Missed`: the failure may be among the events that the subscription has dropped.
                if !matches!(event, SsdEvent::Refusing { by_ssd: true, .. } | SsdEvent::Missed { .. }) {
                    continue;
                }
                let Some(shared) = shared.upgrade() else { return };
                let _change = shared.ssd_change.lock().await;
                // The failure may have come with the shutdown, which held the lock: what has left its
                // directory makes no ring there.
                if shared.ending.enter().is_err() {
                    return;
                }
                // The user may have intervened in the meantime.
                if shared.tier.ssd_state() != SsdState::Degraded || shared.tier.stats().refusing.is_none() {
                    continue;
                }
                if !shared.devices.keeps_its_ring() {
                    tracing::error!(
                        "the SSD failed, and the store does not continue without it: it has no directory for the \
                         doublewrite ring, and one in memory would be lost with the process"
                    );
                    continue;
                }
                // Without accepting a loss: if the SSD holds only copies, this fails, and the store stays as
                // it is until the operator decides.
                match shared.continue_without_ssd(None).await {
                    Ok(_) => tracing::warn!("the SSD failed; the store continues without it"),
                    Err(error) => {
                        tracing::error!(error = %Causes(&error), "the SSD failed, and the switch to operation without it failed, too")
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
        self.ending.here()?;
        // A shutdown holds the mutex while it waits for guards, of which the caller may hold one (I37).
        let change = self.ending.or_shutdown(self.ssd_change.lock_owned()).await;
        let change = change.ok_or(Error::Closed)?;
        // The shutdown may have ended while this call waited: its step would write to devices that are
        // another open's.
        drop(self.ending.enter()?);
        let step = |shared| async move {
            let done = step(shared).await;
            drop(change);
            done
        };
        self.in_task(step).await
    }

    /// Switches to operation without the SSD, which was drained, unless that has happened already.
    pub(crate) async fn switch_off(&self) -> Result<(), Error> {
        match self.tier.mode() {
            SsdMode::Off => Ok(()),
            _ => self.continue_without_ssd(None).await.map(drop),
        }
    }

    /// Exchanges the SSD for the ring's file. With `lost`, accepts the loss of the only copies on the SSD and
    /// lists them there.
    async fn continue_without_ssd(&self, lost: Option<&mut Abandoned>) -> Result<Exchanged, Error> {
        // Hold the mutex over the whole exchange: no growth, drop or close may save a manifest that names
        // the SSD meanwhile.
        let mut meta = self.meta.lock().await;
        let doublewrite = self.tier.has_ring();
        // A store that was opened without a ring repairs torn pages by its own log, and keeps doing so.
        let pages = if doublewrite { self.config.options.ring_pages.unwrap_or(RING_PAGES) } else { 0 };
        let frames = self.pool.params().frames;
        let exchange = async {
            let made = self.devices.make_ring(&meta, self.page_size(), pages, self.costs(), frames).await;
            let ring = made.map_err(|e| Error::Attach(Arc::new(e)))?;
            self.exchange(ring, None, lost, &mut meta).await
        };
        self.devices.exchanging(exchange).await
    }

    /// Readmits the SSD in use last, or the one of the options, blank.
    pub(crate) async fn attach(&self) -> Result<(), Error> {
        // `replace_ssd` may have replaced the SSD of the options, or they may not say its size.
        let (place, layout) = self.devices.in_use.lock().ssd.clone();
        let of_options = || self.devices.ssd_layout(self.config.ssd_size(), self.page_size());
        let layout = layout.map_or_else(of_options, Ok).map_err(|e| Error::Attach(Arc::new(e)))?;
        self.put_into_use(place, layout).await
    }

    /// Exchanges the cache device in use for a new, blank SSD, whose tables are part of the memory budget.
    pub(crate) async fn put_into_use(&self, place: Place, layout: Layout) -> Result<(), Error> {
        // Make room before the manifest's mutex is taken: pages that have to leave may have to be written.
        let policy = self.devices.in_use.lock().ssd_policy;
        self.make_room(layout.slots, policy).await?;
        let exchanged = self.exchange_for(place, layout).await;
        // The pool takes what a smaller SSD, or a failed exchange, leaves of the budget.
        if let Err(error) = self.fit_pool().await {
            tracing::warn!(error = %Causes(&error), "the pool keeps its size after the exchange of the SSD");
        }
        exchanged
    }

    async fn exchange_for(&self, place: Place, layout: Layout) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        // A save that failed may have named the SSD at that place: formatting it could destroy what the
        // manifest names (I21).
        if let Some(cause) = self.tier.refusing_for_good() {
            return Err(Error::Refusing { cause });
        }
        let frames = self.pool.params().frames;
        let exchange = async {
            let made = self.devices.make_ssd(&place, layout, &meta, self.costs(), frames).await;
            let (ssd, id) = made.map_err(|e| Error::Attach(Arc::new(e)))?;
            let at = self.config.ssd_at(&place, &ssd.device);
            self.exchange(ssd, Some((id, at)), None, &mut meta).await
        };
        self.devices.exchanging(exchange).await?;
        self.devices.in_use.lock().ssd = (place, Some(layout));
        Ok(())
    }

    /// Performs the exchange. A single save of the manifest names the new cache device and lists what is lost
    /// with the old one, so no crash can leave only one of the two recorded. `ssd`: its id and place.
    pub(crate) async fn exchange(
        &self,
        new: NewCacheDevice,
        ssd: Option<(String, String)>,
        lost: Option<&mut Abandoned>,
        meta: &mut ManifestState,
    ) -> Result<Exchanged, Error> {
        self.list_unlisted(meta).await?;
        // `commit` runs inside of the tier while no write is in flight; only if it succeeds is the new device
        // in use (I29).
        let is_saved = |page, lsn| self.pool.is_unwritten(page) || self.pool.try_rewrite(page, lsn);
        // The home of a page that memory lacks is older than what an engine with a log committed. Its next
        // change would hide from redo what is missing: only an open gives such a page up.
        let accepts = |page, lsn| !self.gate.has_log() || is_saved(page, lsn);
        let accepts_loss = lost.is_some().then_some(&accepts as &(dyn Fn(PageId, Lsn) -> bool + Sync));
        let commit = |only: Vec<(PageId, Lsn)>| {
            let exact = self.are_only_copies(&only);
            // No write is in flight: unwritten pages stay unwritten until the exchange completes.
            if let Some(lost) = lost {
                // What an earlier loss listed must stay listed when the pages that memory saves are taken off
                // again.
                lost.before.clone_from(&meta.manifest.loss);
                lost.exact = exact;
                // Includes pages that a read has brought into memory since they were rewritten.
                let saved = only.iter().filter(|(page, lsn)| is_saved(*page, *lsn));
                lost.in_memory = saved.map(|(page, _)| *page).collect();
                lost.lost.clone_from(&only);
            }
            async move {
                let list = |manifest: &mut Manifest| {
                    // One save for both: a manifest that names another SSD without the list would hide the
                    // loss forever (I21).
                    (manifest.ssd, manifest.ssd_at) = ssd.unzip();
                    self.list_loss(manifest, OnlyCopies::of(&only, exact, RUNS_MAX));
                };
                self.change_loss(meta, list).await
            }
        };
        let exchanged = self.tier.exchange(new, accepts_loss, commit).await.map_err(|error| match error {
            ExchangeError::OnlyCopies { pages } => Error::SsdOnlyCopies { pages },
            ExchangeError::Refusing { cause } => Error::Refusing { cause },
            ExchangeError::Device(error) => Error::Device(error),
            ExchangeError::Commit(error) => error,
            other => Error::Refusing { cause: Arc::from(other.to_string()) },
        })?;
        // The pool's policy counts on cheap reads of pages that have a copy. Those have none any more.
        self.pool.copies_gone(&exchanged.copies);
        self.inform_ssd_policy();
        Ok(exchanged)
    }

    /// Informs the SSD's policy, which is new after an exchange, of the pages in memory, and of the costs:
    /// they may have changed since it was built.
    fn inform_ssd_policy(&self) {
        self.pool.with_pages(|pages| self.tier.note_buffered(pages));
        self.at_costs(|costs| self.tier.set_costs(costs));
    }

    /// Whether each of `pages` is on the SSD alone for certain.
    fn are_only_copies(&self, pages: &[(PageId, Lsn)]) -> bool {
        self.tier.ask(|slots| slots.are_only_copies(pages))
    }

    /// Adds the pages `lost` to the loss that `manifest` lists.
    fn list_loss(&self, manifest: &mut Manifest, lost: OnlyCopies) {
        // The engine may have removed its log up to there: a position before it could not be redone (I33).
        manifest.lose(lost.redone_from(manifest.ssd_redo_from));
    }

    /// Lists a loss that a readmission found but could not list. Its pages have fallen back, so neither the
    /// next readmission nor an exchange finds it again: it is listed before they, or a close, make anything
    /// durable without it.
    pub(crate) async fn list_unlisted(&self, meta: &mut ManifestState) -> Result<(), Error> {
        let Some(unlisted) = self.unlisted.lock().clone() else { return Ok(()) };
        self.change_loss(meta, |manifest| self.list_loss(manifest, unlisted)).await?;
        // Only once it is durable: after a failure, the next caller tries again.
        *self.unlisted.lock() = None;
        Ok(())
    }

    /// Saves the manifest after `edit` and publishes the losses that it then lists.
    pub(crate) async fn change_loss(
        &self,
        meta: &mut ManifestState,
        edit: impl FnOnce(&mut Manifest),
    ) -> Result<(), Error> {
        meta.change(&self.volume, edit).await?;
        // Publish the loss after the save: a user must not acknowledge one that no manifest lists.
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
        // Unflushed pages stay listed: to list a page too many costs the user a look, to list one too few
        // costs data.
        if pages.is_empty() || self.pool.flush_all().await.is_err() {
            return Ok(Vec::new());
        }
        pages.sort_unstable();
        let mut meta = self.meta.lock().await;
        let list = |manifest: &mut Manifest| {
            // If the user acknowledged the loss in the meantime, do not list it again.
            if manifest.loss.is_some() {
                let left = lost.without(&pages);
                manifest.loss = if left.runs.is_empty() { before } else { added(before, left) };
            }
        };
        self.change_loss(&mut meta, list).await?;
        Ok(pages)
    }

    pub(crate) async fn abandon(&self) -> Result<SsdLoss, Error> {
        if self.tier.mode() == SsdMode::Off {
            return Ok(SsdLoss::none());
        }
        // While pages in memory are made dirty, admit nothing to the SSD, so that they cannot move there.
        let mode = self.tier.at_most(SsdMode::ReadOnly);
        // A page whose write to a slot was in flight becomes an only copy too, and may still be in memory.
        self.tier.writes_ended().await;
        // The newest version in memory is as good as the one on the SSD: marked dirty, it goes home like any
        // change.
        let _ = self.rewrite(&self.tier.ask(Slots::only_copies)).await;
        let mut abandoned = Abandoned { lost: Vec::new(), exact: true, in_memory: Vec::new(), before: None };
        let exchanged = self.continue_without_ssd(Some(&mut abandoned)).await;
        // Only after the exchange, whether it succeeded or not: until then new pages must not go to the SSD.
        drop(mode);
        exchanged?;
        let Abandoned { mut lost, exact, in_memory, before } = abandoned;
        let listed = OnlyCopies::of(&lost, exact, RUNS_MAX);
        let saved = self.save_lost(before, &listed, in_memory).await?;
        // The caller is told what is really gone, not what was listed for safety during the exchange.
        lost.retain(|(page, _)| saved.binary_search(page).is_err());
        // An empty list is exact.
        let exact = exact || lost.is_empty();
        Ok(OnlyCopies::of(&lost, exact, RUNS_MAX).report(&self.volume))
    }

    pub(crate) async fn readmit(&self) -> Result<ReadmitReport, Error> {
        // There is nothing to readmit: the store begins with a blank SSD.
        if self.tier.ssd_state() == SsdState::Off {
            self.attach().await?;
            return Ok(ReadmitReport::default());
        }
        // The manifest's mutex is not held while the copies are read: no other exchange can run meanwhile,
        // and growth and new spaces need not wait.
        let ids = {
            let mut meta = self.meta.lock().await;
            self.list_unlisted(&mut meta).await?;
            let (store, ssd) = (&meta.manifest.store, meta.manifest.ssd.as_deref().unwrap_or_default());
            (id_bytes(store), id_bytes(ssd), meta.manifest.epoch)
        };
        let (exact, before) = (AtomicBool::new(true), Mutex::default());
        let readmitting = Readmitting {
            shared: self,
            ids,
            exact,
            before,
            saved: Mutex::default(),
            given_up: Mutex::default(),
        };
        // Also if this is dropped with the runtime.
        let _reported = Reported(self);
        let mut report = self.tier.readmit(&readmitting).await.map_err(|error| match error {
            ReadmitError::Stopped => Error::Closed,
            error => Error::Readmit(error),
        })?;
        let Readmitting { exact, before, saved, given_up, .. } = readmitting;
        let (before, saved, given_up) = (before.into_inner(), saved.into_inner(), given_up.into_inner());
        // They have fallen back below, but memory has the newest version, which is written again.
        report.reverted.retain(|page| !saved.contains(page));
        // Lost pages that memory holds are written again, and leave the list once they are flushed.
        let only = self.tier.ask(Slots::only_copies);
        let lost: Vec<_> = only.into_iter().filter(|(page, _)| report.lost.contains(page)).collect();
        let mut in_memory = self.rewrite(&lost).await;
        in_memory.extend(saved.into_iter().filter(|page| given_up.iter().any(|(of, _)| of == page)));
        let listed = OnlyCopies::of(&given_up, exact.into_inner(), RUNS_MAX);
        // No failure of the call, since the SSD is in use: the report would be lost, and with it which pages
        // read as older versions. The list names pages too many.
        if let Err(error) = self.save_lost(before, &listed, in_memory.into_iter().collect()).await {
            tracing::warn!(error = %Causes(&error), "pages that were saved from memory stay listed as lost");
        }
        Ok(report)
    }

    /// Marks those of `pages` that are in memory dirty, so that they are written again. Returns them.
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

/// Lets a `sync` succeed again when dropped.
struct Reported<'a>(&'a Shared);

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        self.0.tier.reported();
    }
}

/// The store's part of a readmission.
struct Readmitting<'a> {
    shared: &'a Shared,
    /// The ids of the store and the SSD, and the epoch.
    ids: ([u8; 16], [u8; 16], u32),
    /// Whether every lost page was on the SSD alone for certain.
    exact: AtomicBool,
    /// The loss that the manifest listed before.
    before: Mutex<Option<OnlyCopies>>,
    /// The pages with bad copies that are in memory.
    saved: Mutex<FxHashSet<PageId>>,
    /// The pages that are listed as lost, in order.
    given_up: Mutex<Vec<(PageId, Lsn)>>,
}

impl Readmitter for Readmitting<'_> {
    fn is_ours(&self, found: &Superblock) -> bool {
        // The open counts too: an older copy of the same SSD has the right ids, and old contents (I20).
        (found.store, found.ssd, found.marks.opened) == self.ids
    }

    fn is_stopped(&self) -> bool {
        self.shared.ending.has_begun()
    }

    async fn rewrite(&self, pages: Vec<(PageId, Lsn)>) {
        let saved = self.shared.rewrite(&pages).await;
        *self.saved.lock() = saved;
    }

    fn has_log(&self) -> bool {
        self.shared.gate.has_log()
    }

    fn is_saved(&self, page: PageId) -> bool {
        self.saved.lock().contains(&page)
    }

    async fn record(&self, lost: Vec<(PageId, Lsn)>) -> Result<(), String> {
        let shared = self.shared;
        let exact = shared.are_only_copies(&lost);
        self.exact.store(exact, Ordering::Relaxed);
        self.given_up.lock().clone_from(&lost);
        let mut meta = shared.meta.lock().await;
        // Read the loss now: the user may have acknowledged it while the copies were read.
        self.before.lock().clone_from(&meta.manifest.loss);
        // Note it before the save, which may fail: pages have fallen back, and no later readmission finds
        // that (I21).
        *shared.unlisted.lock() = Some(OnlyCopies::of(&lost, exact, RUNS_MAX));
        shared.list_unlisted(&mut meta).await.map_err(|error| Causes(&error).to_string())
    }
}
