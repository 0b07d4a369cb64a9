//! What the store's handle shares with the tasks that outlive a call.

use super::devices::Devices;
use super::hot_state::HotKept;
use super::lease::Lease;
use super::record::manifest_state::ManifestState;
use super::record::waiting_frees::WaitingFrees;
use crate::config::choices::CostSource;
use crate::config::store_config::Config;
use crate::error::Error;
use crate::manifest::changes::Change;
use crate::manifest::changes::LogRecord;
use crate::manifest::only_copies::OnlyCopies;
use crate::ownership::ending::Ending;
use crate::ownership::gate::Gate;
use crate::volume::loss::SsdLoss;
use crate::volume::space_hints::AllHints;
use crate::volume::table::Volume;
use pagetier_bufpool::Pool;
use pagetier_devio::locks::{Mutex, Rank};
use pagetier_devio::{SharedDevice, task};
use pagetier_page::{LogMark, Lsn, PageSize};
use pagetier_policy::Costs;
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The parts of the store. Only the store holds it for long: tasks hold it weakly while they wait.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) tier: Arc<SsdTier>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) hdd: SharedDevice,
    pub(crate) meta: Mutex<ManifestState>,
    pub(crate) frees: WaitingFrees,
    /// See [`ManifestState::doubtful`].
    pub(crate) doubtful: Arc<AtomicBool>,
    pub(crate) config: Arc<Config>,
    pub(crate) devices: Devices,
    /// The runtime that the store was opened on.
    pub(crate) runtime: tokio::runtime::Handle,
    /// The costs that the policies use.
    costs: parking_lot::Mutex<Costs>,
    /// The loss that the manifest lists.
    pub(crate) loss: parking_lot::Mutex<Option<SsdLoss>>,
    /// A loss that took place, and that the manifest does not list: see [`Shared::list_unlisted`].
    pub(crate) unlisted: parking_lot::Mutex<Option<OnlyCopies>>,
    pub(crate) hints: AllHints,
    /// Held while the SSD is exchanged or readmitted. Taken before the manifest's mutex.
    pub(crate) ssd_change: Mutex<()>,
    pub(crate) ending: Ending,
    pub(crate) gate: Arc<Gate>,
    pub(crate) lease: parking_lot::Mutex<Option<Lease>>,
    pub(crate) hot: HotKept,
    /// Whether the low-room alarm is raised.
    pub(crate) room_alarm: AtomicBool,
    /// The counters that were published, by series, and their values then.
    #[cfg(feature = "metrics")]
    pub(crate) published: parking_lot::Mutex<rustc_hash::FxHashMap<String, u64>>,
}

impl Shared {
    /// Refuses calls that a read-only open cannot keep its word about.
    pub(crate) fn refuse_read_only(&self) -> Result<(), Error> {
        if self.config.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Runs `step` in a task of its own, which runs to its end if the caller is dropped.
    pub(crate) async fn in_task<T: Send + 'static, F>(
        self: &Arc<Self>,
        step: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.ending.here()?;
        let done = task::outcome(&self.runtime, step(Arc::clone(self)));
        done.await.unwrap_or_else(|| Err(Error::runtime_ended()))
    }

    /// Records that every change older than `from` is on the HDD (I33).
    pub(crate) async fn record_redo_from(&self, from: Lsn) -> Result<(), Error> {
        let _operation = self.ending.enter()?;
        let mut meta = self.meta.lock().await;
        // Only forwards: of two calls, the one with the smaller position may come last.
        if meta.manifest.ssd_redo_from < Some(from.0) {
            meta.change(&self.volume, |manifest| manifest.ssd_redo_from = Some(from.0)).await?;
        }
        Ok(())
    }

    /// Records what is known of the embedder's log.
    pub(crate) async fn record_log(self: &Arc<Self>, mark: LogMark) -> Result<(), Error> {
        // In a task of its own: a commit waits for it, and a caller that is not polled must not keep the
        // manifest from the others meanwhile.
        let recorded = self.in_task(move |shared| async move {
            let _operation = shared.ending.enter()?;
            let mut meta = shared.meta.lock().await;
            let newer = LogRecord::from(mark);
            match meta.manifest.log.map_or(Some(newer), |known| known.advanced(newer)) {
                Some(next) => meta.append(&shared.volume, &Change::Log(next)).await,
                None => Ok(()),
            }
        });
        recorded.await
    }

    /// Starts the tasks that follow the SSD's failures and the devices' costs.
    #[expect(clippy::too_many_arguments, reason = "the parts of a store that has no object yet")]
    pub(crate) fn start(
        pool: Pool<SsdTier>,
        tier: Arc<SsdTier>,
        volume: Arc<Volume>,
        meta: ManifestState,
        hdd: SharedDevice,
        devices: Devices,
        costs: Costs,
        gate: Arc<Gate>,
        lease: Option<Lease>,
    ) -> Arc<Self> {
        let cost_points = match devices.config.options.costs {
            CostSource::Online { points, .. } => Some(points),
            _ => None,
        };
        let shared = Arc::new(Self {
            pool,
            tier,
            loss: parking_lot::Mutex::new(meta.manifest.loss.as_ref().map(|loss| loss.report(&volume))),
            unlisted: parking_lot::Mutex::default(),
            volume,
            hdd,
            doubtful: Arc::clone(&meta.doubtful),
            meta: Mutex::new(Rank::Manifest, meta),
            frees: WaitingFrees::default(),
            config: Arc::clone(&devices.config),
            devices,
            // The open's runtime: tasks of the store must not end with one that a caller happens to use
            // later.
            runtime: tokio::runtime::Handle::current(),
            costs: parking_lot::Mutex::new(costs),
            hints: AllHints::default(),
            ssd_change: Mutex::new(Rank::SsdChange, ()),
            ending: Ending::default(),
            gate,
            lease: parking_lot::Mutex::new(lease),
            hot: HotKept::default(),
            room_alarm: AtomicBool::default(),
            #[cfg(feature = "metrics")]
            published: parking_lot::Mutex::default(),
        });
        // Space may be low from the start: an operator should not learn that from the first failed growth.
        shared.watch_room();
        shared.watch();
        if let Some(points) = cost_points {
            shared.follow_costs(points.max(1));
        }
        shared
    }

    /// The costs that the policies use.
    pub(crate) fn costs(&self) -> Costs {
        *self.costs.lock()
    }

    /// Sets the costs for both policies.
    pub(crate) fn set_costs(&self, costs: Costs) {
        // Hold the lock until both policies have the costs: otherwise two calls at once could leave pool and
        // SSD with different ones.
        let mut in_use = self.costs.lock();
        *in_use = costs;
        self.pool.set_costs(costs);
        self.tier.set_costs(costs);
    }

    /// Calls `act` with the costs that the policies use; they do not change before it returns. Use it to pass
    /// the costs on, or to build something with them: a later [`Shared::set_costs`] updates the result.
    pub(crate) fn at_costs<R>(&self, act: impl FnOnce(Costs) -> R) -> R {
        let in_use = self.costs.lock();
        act(*in_use)
    }

    /// The number of frames in the pool.
    pub(crate) fn frames(&self) -> usize {
        self.pool.params().frames
    }

    /// The size of a page, its header included.
    pub(crate) fn page_size(&self) -> PageSize {
        self.pool.page_size()
    }
}
