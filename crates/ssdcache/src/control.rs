//! What the facade asks of the SSD's life: modes, drain, re-admission, exchange, checks.

use crate::drain::{DrainProgress, DrainReport};
use crate::layout::Layout;
use crate::life::{SsdEvent, SsdMode, SsdState};
use crate::readmit::{ReadmitError, ReadmitReport};
use crate::scrub::Checked;
use crate::superblock::{Marks, Superblock};
use crate::tier::SsdTier;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::{SlotId, SlotPolicy};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// The device that takes the place of the one in use: an SSD that was just formatted, or a file for the ring
/// alone.
pub struct NewSide {
    /// It, formatted.
    pub device: SharedDevice,
    /// Its division.
    pub layout: Layout,
    /// The SSD policy, empty.
    pub policy: Box<dyn SlotPolicy>,
    /// The eviction zone, in per cent of the slots.
    pub zone_percent: f64,
}

impl std::fmt::Debug for NewSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSide")
            .field("device", &self.device)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// What the old device had.
#[derive(Clone, Debug, Default)]
pub struct Exchanged {
    /// Pages that had a copy there.
    pub copies: Vec<PageId>,
    /// Of these, the ones whose newest version was nowhere else, each with the log position from which redo
    /// would bring it back.
    pub lost: Vec<(PageId, Lsn)>,
}

/// Why the device was not exchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError<E> {
    /// The old device holds the only copies of so many pages.
    #[error("the SSD holds the only copies of {pages} pages")]
    OnlyCopies {
        /// How many.
        pages: u64,
    },
    /// Writes are refused because of the HDD.
    #[error("the store refuses writes since: {cause}")]
    Refusing {
        /// The first error.
        cause: Arc<str>,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The exchange could not be recorded. Which device a restart would find is not certain: writes are
    /// refused.
    #[error("the exchange could not be recorded")]
    Commit(E),
}

impl SsdTier {
    /// Events from now on. A subscriber that is slow loses the oldest.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<SsdEvent> {
        self.core.events.subscribe()
    }

    /// How the SSD is.
    #[must_use]
    pub fn ssd_state(&self) -> SsdState {
        self.core.ssd_state()
    }

    /// What the SSD is used for.
    #[must_use]
    pub fn mode(&self) -> SsdMode {
        self.core.mode()
    }

    /// The mode in force, or while there is no SSD the one that comes back with it.
    #[must_use]
    pub fn kept_mode(&self) -> SsdMode {
        self.core.state.lock().mode
    }

    /// Changes what the SSD is used for, for pages written from now on. To and from [`SsdMode::Off`] leads
    /// [`SsdTier::exchange`].
    pub fn set_mode(&self, mode: SsdMode) {
        self.core.set_mode(mode);
    }

    /// How checkpoints learn of the oldest change that is dirty in memory. Once; a second call does nothing.
    pub fn set_redo_from(&self, redo_from: Box<dyn Fn() -> Option<Lsn> + Send + Sync>) {
        let _ = self.core.redo_from.set(redo_from);
    }

    /// The oldest log position that redo would need if the SSD were lost now; `None`: nothing is on it alone.
    #[must_use]
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.core.state.lock().oldest_lsn()
    }

    /// The pages whose newest version is on the SSD alone, in order, each with the log position from which
    /// redo would bring it back.
    #[must_use]
    pub fn only_copies(&self) -> Vec<(PageId, Lsn)> {
        self.core.state.lock().slots.only_copies()
    }

    /// Whether the newest version of each of `pages` is on the SSD alone for certain. What a recovery found
    /// counts as such until it is written home or anew, though the HDD may have it.
    #[must_use]
    pub fn are_only_copies(&self, pages: &[(PageId, Lsn)]) -> bool {
        self.core.state.lock().slots.are_only_copies(pages)
    }

    /// Writes every page home whose newest version is on the SSD alone, for at most `deadline`. While it runs
    /// the SSD gets no new ones. Cancel-safe: dropped, it ends after the pages in hand.
    pub async fn drain(
        &self,
        deadline: Option<Duration>,
        progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
    ) -> DrainReport {
        self.core.drain(deadline, progress).await
    }

    /// Takes the SSD back into use after a failure: it must be the one that `ours` accepts. Reads every copy
    /// on it. `record` is told which pages were lost, each with the log position from which redo would bring
    /// it back, and makes that durable before writes are accepted again. Must be driven to completion.
    ///
    /// # Errors
    /// [`ReadmitError`]; the SSD stays degraded.
    pub async fn readmit(
        &self,
        ours: impl Fn(&Superblock) -> bool + Send,
        record: impl FnOnce(&[(PageId, Lsn)]) -> Result<(), String> + Send,
    ) -> Result<ReadmitReport, ReadmitError> {
        self.core.readmit(ours, record, None).await
    }

    /// Exchanges the SSD (or the ring's file) for `new`: waits until nothing is under way, makes durable what
    /// was written home, calls `commit`, which records durably that `new` is the one that counts, and that
    /// the pages it is told are lost with the old one, and goes on with it. With `accept_loss`, also when the
    /// old one holds only copies. Cancel-safe: it happened or it did not.
    ///
    /// # Errors
    /// [`ExchangeError`]; the old one stays in use.
    pub async fn exchange<E>(
        &self,
        new: NewSide,
        accept_loss: bool,
        commit: impl FnOnce(&[(PageId, Lsn)]) -> Result<(), E>,
    ) -> Result<Exchanged, ExchangeError<E>> {
        let NewSide { device, layout, policy, zone_percent } = new;
        let quiet = self.core.quiesce().await;
        if let Some(cause) = self.core.refusing.by_hdd() {
            return Err(ExchangeError::Refusing { cause });
        }
        // Before the copies are counted: some are dirty only until the HDD was flushed.
        quiet.flush_hdd().await?;
        let only = self.only_copies().len() as u64;
        if only > 0 && !accept_loss {
            return Err(ExchangeError::OnlyCopies { pages: only });
        }
        let mends = self.core.state.lock().ring.mends_homes();
        if mends && self.core.mend_homes().await.is_ok() {
            quiet.flush_hdd().await?;
        }
        if self.core.state.lock().ring.mends_homes() && !accept_loss {
            let cause = "writes of pages to their homes failed; what they may have left torn can be mended from the present ring alone";
            return Err(ExchangeError::Refusing { cause: Arc::from(cause) });
        }
        let vacant = quiet.vacant().await;
        // From the record to the exchange nothing may be waited for.
        if let Err(error) = commit(&self.only_copies()) {
            self.core.refuse("the exchange of the SSD could not be recorded", false);
            return Err(ExchangeError::Commit(error));
        }
        let replaced = quiet.replace(device, layout, zone_percent, policy);
        drop(vacant);
        if self.core.has_slots()
            && let Err(error) = self.core.checkpoint().await
        {
            self.core.ssd_failed(&error);
        }
        Ok(Exchanged { copies: replaced.copies, lost: replaced.only })
    }

    /// Why writes are refused, if the SSD is not to blame: no exchange of it succeeds then.
    #[must_use]
    pub fn refusing_for_good(&self) -> Option<Arc<str>> {
        self.core.refusing.by_hdd()
    }

    /// Flushes the HDD: what was written home, and its size, are durable then. Cancel-safe.
    ///
    /// # Errors
    /// The flush failed, now or before: writes are refused from then on.
    pub async fn flush_home(&self) -> Result<(), TierError> {
        let flushed = self.core.flush_hdd(self.core.hdd_flush.next()).await;
        flushed.map_err(|source| TierError::Device { page: PageId::default(), source })
    }

    /// Notes on the SSD (or the ring's file) the openings that it took part in. Flushes it.
    ///
    /// # Errors
    /// It cannot be read, written or flushed.
    pub async fn mark(&self, marks: Marks) -> Result<(), DeviceError> {
        crate::open::mark(&self.core.ssd(), marks).await
    }

    /// Verifies the copy in slot number `slot`; see [`Checked`]. `None`: there is none. Cancel-safe.
    pub async fn scrub_slot(&self, slot: u32, heal: bool) -> Option<Checked> {
        self.core.scrub_slot(SlotId(slot), heal).await
    }

    /// Verifies the home of `page`, and its clean copy against it. Must be driven to completion when `heal`
    /// is on.
    pub async fn scrub_home(&self, page: PageId, heal: bool) -> Checked {
        self.core.scrub_home(page, heal).await
    }

    /// The device in use: the SSD, or the file of the ring of a store without one.
    #[must_use]
    pub fn ssd_device(&self) -> SharedDevice {
        self.core.ssd()
    }

    /// Whether pages go home through a doublewrite ring.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.core.doublewrite()
    }

    /// Slots of the SSD; 0 without one.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.core.layout().slots
    }
}
