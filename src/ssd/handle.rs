//! The SSD's control and state for the embedder.

use super::exchange::{DrainOptions, SsdEvents};
use crate::config::choices::Place;
use crate::error::Error;
use crate::store::handles::Ssd;
use crate::volume::loss::SsdLoss;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::{DrainReport, ReadmitReport, Slots, SsdMode};
use rustc_hash::FxHashSet;

impl Ssd<'_> {
    /// Subscribes to the SSD's events from this moment on.
    #[must_use]
    pub fn events(self) -> SsdEvents {
        SsdEvents(self.0.shared.tier.subscribe())
    }

    /// Changes what the SSD is used for. A change among [`SsdMode::WriteBack`], [`SsdMode::WriteThrough`] and
    /// [`SsdMode::ReadOnly`] takes effect at once, for pages written after it. Versions that are on the SSD
    /// alone stay there until they are written again or drained ([`Ssd::drain`]).
    ///
    /// A change to [`SsdMode::Off`] drains the SSD, then switches to a ring in the store's directory and
    /// records that: the SSD may be removed, and the store opens without it. A change from there to another
    /// mode starts with the SSD blank, as [`Ssd::readmit`] does. Hold no guards during the call: writes
    /// wait. Cancel-safe: a drain in progress ends after its batch, and the mode stays; an exchange that has
    /// begun completes.
    ///
    /// A call that restricts the SSD while it runs (this one,
    /// [`Ssd::replace`], [`Ssd::abandon`]) does not change the
    /// mode, so one that is set meanwhile stays in effect.
    ///
    /// # Errors
    /// [`Error::SsdOnlyCopies`] when not everything could be drained; [`Error::ReadOnly`] for a change from
    /// or to [`SsdMode::Off`] on a read-only open; or a device failed: the mode then stays as it was.
    /// [`Error::Manifest`] when the exchange could not be recorded: a later open may or may not find it in
    /// effect, so the store refuses writes until it is opened again.
    pub async fn set_mode(self, mode: SsdMode) -> Result<(), Error> {
        let shared = &self.0.shared;
        drop(shared.ending.enter()?);
        // Only a change from or to `Off` writes to the manifest; the other modes are for this run.
        if (shared.tier.mode() == SsdMode::Off) != (mode == SsdMode::Off) {
            shared.refuse_read_only()?;
        }
        match (shared.tier.mode(), mode) {
            (SsdMode::Off, SsdMode::Off) => Ok(()),
            (_, SsdMode::Off) => {
                // The mode itself does not change: it applies if the call fails, and once an SSD is back in
                // use.
                let meanwhile = shared.tier.at_most(SsdMode::WriteThrough);
                // Drain before the exchange, which stops writes. If pages are left, the exchange refuses and
                // names their number.
                let _ = shared.ending.or_shutdown(shared.tier.drain(None, None, None)).await;
                let gone = shared.alone(|shared| async move {
                    let _meanwhile = meanwhile;
                    shared.switch_off().await
                });
                gone.await
            }
            (SsdMode::Off, _) => {
                let attached = shared.alone(move |shared| async move {
                    // The second of two such calls finds the SSD attached.
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

    /// Sets the budget for writes to the SSD, in bytes per day; `None` removes it. Every write of the store
    /// to the SSD counts. The budget starts with an hour's worth in reserve, and unused budget accumulates to
    /// at most that.
    ///
    /// While the budget is overdrawn, a write to the SSD is priced at a multiple of its cost, which rises
    /// with the overdraft. Policies that weigh costs (`auto`, `cac`, `cc`) value pages by that price, so that
    /// frequently written pages lose their slots. A copy of a version that the HDD has is written only if its
    /// benefit exceeds the price; policies that estimate no benefit admit no such copy. Required writes are
    /// never held back: changed pages, which go through the doublewrite ring even on their way home, the
    /// journal and the map. A budget that does not cover these stays overdrawn;
    /// [`TierStats::write_budget`](crate::stats::TierStats) reports the rate and the factor.
    ///
    /// Less than 1 MiB per day counts as 1 MiB. An open has no budget: call this after each.
    pub fn set_write_budget(self, bytes_per_day: Option<u64>) {
        let shared = &self.0.shared;
        shared.tier.set_write_budget(bytes_per_day, shared.costs());
    }

    /// Replaces the SSD while the store is in use: to grow it, to shrink it, or because it is worn. Of the
    /// device at `place`, which is created if it is a file that does not exist, the store uses `bytes`. A
    /// store without an SSD gets its first one. Drains the current SSD so that it holds no only copy, formats
    /// the new one, and exchanges the two atomically, which the manifest records. The new SSD starts blank.
    /// The store does not write to the old one again, but keeps it locked until the store is closed. From
    /// then on, open the store with the new SSD: it does not open with the old one.
    ///
    /// A larger SSD has larger tables. They are part of the memory budget, so the pool shrinks before the
    /// exchange, as by [`PageStore::resize_pool`](crate::PageStore::resize_pool); beside a smaller SSD it
    /// grows.
    ///
    /// The mode does not change: until the exchange the SSD takes no changed pages, as in
    /// [`SsdMode::WriteThrough`](crate::SsdMode::WriteThrough), and a mode set meanwhile
    /// ([`Ssd::set_mode`]) is in force afterwards. Several calls at one time run one
    /// after the other.
    ///
    /// Hold no guards during the call: writes wait for the exchange. Cancel-safe: a call dropped during the
    /// drain changes nothing; an exchange that has begun completes.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.ssd().replace("/dev/nvme1n1", 200 << 30).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SsdOnlyCopies`] when not everything could be drained; [`Error::Attach`] when the new SSD is
    /// too small, holds other data, or is in use, by this store or another; [`Error::ReadOnly`] on a
    /// read-only open; or when a device failed. The current SSD stays in use. [`Error::Manifest`] when the
    /// exchange could not be recorded: a later open may find either SSD in use, so the store refuses
    /// writes until then.
    pub async fn replace(self, place: impl Into<Place>, bytes: u64) -> Result<(), Error> {
        let place = match place.into() {
            // Now, not when it is attached: the working directory may have changed by then.
            Place::Path(path) => Place::Path(std::path::absolute(&path).unwrap_or(path)),
            place => place,
        };
        self.0.shared.replace_ssd(place, bytes).await
    }

    /// Writes every page home whose newest version is on the SSD alone. Once it completes, the SSD holds no
    /// only copy and everything written home is durable. Pages stay readable throughout, and the SSD's copies
    /// stay in use. During the drain changed pages go to the HDD; after it the mode decides again, so set
    /// [`SsdMode::WriteThrough`] first to keep the SSD free of only copies. Cancel-safe: a dropped drain ends
    /// after its batch of at most 32 pages.
    ///
    /// Reports how many pages are left when the deadline passes, when the store is shut down, when copies
    /// cannot be read, or when a device stops the drain ([`DrainReport::stopped_by`]). Pages whose only copy
    /// is damaged but which are in memory are rewritten from there soon after.
    pub async fn drain(self, drain: DrainOptions) -> DrainReport {
        let (shared, DrainOptions { deadline, up_to, pages, progress }) = (&self.0.shared, drain);
        if !shared.ending.is_here() {
            return DrainReport::default();
        }
        let only = (up_to.is_some() || pages.is_some())
            .then(|| (up_to.unwrap_or(Lsn(u64::MAX)), pages.unwrap_or(u64::MAX)));
        let drained = shared.tier.drain(deadline, only, progress);
        let Some(report) = shared.ending.or_shutdown(drained).await else {
            let mut ended = DrainReport::default();
            ended.left = shared.tier.ask(Slots::only_copies).len() as u64;
            return ended;
        };
        let failed: FxHashSet<PageId> = report.failed.iter().map(|(page, _)| *page).collect();
        let only = shared.tier.ask(Slots::only_copies);
        // A copy that cannot be read can still be saved if memory has the page.
        let bad: Vec<_> = only.into_iter().filter(|(page, _)| failed.contains(page)).collect();
        let _ = shared.rewrite(&bad).await;
        report
    }

    /// Readmits the SSD.
    ///
    /// After a failure it must be the same SSD with its contents. Every copy is read: it is used only if its
    /// stamp proves it current. Versions whose flush failed are written again; where they are gone, pages
    /// read as before the failed flush ([`ReadmitReport::reverted`]), never as older than the last
    /// successful [`PageStore::sync`](crate::PageStore::sync). Under a log gate no page reads as older than
    /// what was committed: then the call fails with
    /// [`ReadmitError::LogNeeded`](crate::errors::ReadmitError::LogNeeded), and an open redoes those
    /// pages. The store works meanwhile as far as the failure allows, and accepts all writes again on
    /// success. An SSD that has not failed is left as it is.
    ///
    /// From [`SsdMode::Off`] the SSD in use last, or else that of the builder's options (blank, or an earlier
    /// one of this store), is formatted; its contents are ignored. The pool makes room for its tables, as by
    /// [`Ssd::replace`]. Hold no guards during the call. Pages that
    /// were lost there but are in memory are rewritten; [`Ssd::loss`] lists the others. Cancel-safe: a
    /// readmission that has begun completes.
    ///
    /// # Errors
    /// [`Error::Readmit`], [`Error::Attach`], [`Error::Refusing`]; those of
    /// [`PageStore::resize_pool`](crate::PageStore::resize_pool); [`Error::Closed`] when the store is shut
    /// down meanwhile; [`Error::ReadOnly`] on a read-only open. The SSD stays as it was.
    pub async fn readmit(self) -> Result<ReadmitReport, Error> {
        self.0.shared.refuse_read_only()?;
        self.0.shared.alone(|shared| async move { shared.readmit().await }).await
    }

    /// Continues without the SSD although it may hold the only copies of some pages, and gives them up for
    /// good. Pages in memory are rewritten; the result lists the others: they read as older versions or do
    /// not exist. The store accepts writes again, and opens without the SSD in the future; [`Ssd::readmit`]
    /// starts with a blank one. The list is durable before the SSD is given up (see [`Ssd::loss`]); it
    /// includes pages in memory until they are durable at home. Hold no guards during the call. Cancel-safe:
    /// an abandonment that has begun completes.
    ///
    /// Under a log gate, gives up no page that memory lacks: the engine would read it as older than what it
    /// committed. Close the store and open it with
    /// [`accept_ssd_loss`](crate::Builder::accept_ssd_loss) instead, which redoes the log before anything is
    /// read.
    ///
    /// # Errors
    /// [`Error::SsdOnlyCopies`] under a log gate; the HDD, the ring's file or the manifest failed, or the
    /// store refuses writes because of the HDD; [`Error::ReadOnly`] on a read-only open.
    pub async fn abandon(self) -> Result<SsdLoss, Error> {
        self.0.shared.refuse_read_only()?;
        self.0.shared.alone(|shared| async move { shared.abandon().await }).await
    }

    /// The accumulated loss from SSDs that were given up ([`Ssd::abandon`],
    /// [`accept_ssd_loss`](crate::Builder::accept_ssd_loss)) or readmitted damaged ([`Ssd::readmit`]), in
    /// this run or earlier ones. `None`: nothing was lost, or the loss was acknowledged.
    #[must_use]
    pub fn loss(self) -> Option<SsdLoss> {
        self.0.shared.loss.lock().clone()
    }

    /// Clears [`Ssd::loss`]: the embedder has dealt with it. Durable when it returns. Cancel-safe.
    ///
    /// # Errors
    /// The manifest cannot be written, and the list is kept; [`Error::ReadOnly`] on a read-only open.
    pub async fn acknowledge_loss(self) -> Result<(), Error> {
        let shared = &self.0.shared;
        let _operation = shared.ending.enter()?;
        shared.refuse_read_only()?;
        let mut meta = shared.meta.lock().await;
        if meta.manifest.loss.is_some() {
            shared.change_loss(&mut meta, |manifest| manifest.loss = None).await?;
        }
        *shared.loss.lock() = None;
        Ok(())
    }
}
