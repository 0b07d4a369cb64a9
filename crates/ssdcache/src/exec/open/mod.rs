//! Opens an SSD and recovers what a crash left on it.
//!
//! Recovery makes only changes that can be repeated: it rewrites what a failed flush left unverified, repairs
//! torn homes from ring and slots, and ends with a new checkpoint, before which no slot is given out. It
//! flushes both devices before it writes any home, since what it has read may not be durable
//! (`make_durable`).

mod evidence;
mod format;
mod identify;
mod images;
mod make_durable;
mod newest;
mod repair;
mod unread;
mod write_again;

pub use format::{OldRing, format};
pub use identify::{assign, identify, mark, newest_label};

use crate::exec::flush::cache_device::CacheDevice;
use crate::exec::flush::group::{Failures, GroupFlush};
use crate::exec::flush::unflushed::UnflushedHomes;
use crate::exec::upkeep::budget::Budget;
use crate::exec::{Core, Homes, Refusing, Wake};
use crate::format::layout::Layout;
use crate::format::map::Entry;
use crate::mode::{EVENTS_KEPT, SsdMode};
use crate::protocol::Protocol;
use crate::protocol::flushes::HddFlush;
use crate::protocol::home_batches::HomeBatches;
use crate::protocol::recovery::{Evidence, Newest, Verdict};
use crate::protocol::slots::{SlotParams, Slots};
use crate::remember::{Flushed, Remember};
use evidence::Reader;
use newest::NewestMap;
use pagetier_devio::locks::{self, Rank};
use pagetier_devio::spans::Work;
use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_page::{StampSource, StoreSeed};
use pagetier_policy::SlotPolicy;
use pagetier_policy::ssd::NoSsd;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tracing::field;

/// Why an SSD could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A device failed as a whole, or a write of the recovery failed. The next attempt starts again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Neither map checkpoint is sound, so the contents of the SSD are unknown. The SSD is left unchanged.
    #[error(
        "{device}: neither of the two map checkpoints, which list what is on the SSD, is sound; restore a \
         sound copy of the device, or open with a blank one in its place and accept the loss"
    )]
    NoMap {
        /// The name of the SSD.
        device: String,
    },
    /// The map checkpoint that was in force is damaged. The previous one lacks what was written since, so it
    /// is not used. The SSD is left unchanged.
    #[error(
        "{device}: the {part} of map checkpoint {generation} (map {map}), which lists what is on the SSD, is \
         damaged, and the checkpoint before it is out of date; restore a sound copy of the device, or open \
         with a blank one in its place and accept the loss"
    )]
    DamagedMap {
        /// The name of the SSD.
        device: String,
        /// The map area, `A` or `B`.
        map: char,
        /// `header` (both copies of it) or `body`.
        part: &'static str,
        /// The generation of the checkpoint that was in force.
        generation: u64,
    },
    /// A block cannot be read that may hold, or describe, the newest version of any page. The devices are
    /// left unchanged.
    #[error(
        "a block of the SSD's {part} cannot be read, and may hold the newest version of any page; try again \
         once the device can read it, or open with a blank device in its place (or without an SSD) and \
         accept the loss"
    )]
    Unreadable {
        /// `map`, `journal`, `ring` or `zone`.
        part: &'static str,
        /// The device's error, which names device and offset.
        #[source]
        source: DeviceError,
    },
}

/// The progress of a recovery, in pages that it reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Pages read so far.
    pub done: u64,
    /// Pages to read in all.
    pub total: u64,
}

/// The findings of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the last open ended in a clean close, or the store is new.
    pub clean: bool,
    /// The generation of the checkpoint from which it started.
    pub generation: u64,
    /// The number of slots read because they are in the zone.
    pub zone_slots: u64,
    /// Bytes read from the SSD.
    pub bytes_read: u64,
    /// Pages on the SSD according to the checkpoint alone.
    pub trusted: u64,
    /// Pages on the SSD found in the zone.
    pub found: u64,
    /// Pages whose only copy in the zone is damaged: reading them is an error.
    pub damaged: u64,
    /// Copies dropped because the HDD has a newer version.
    pub superseded: u64,
    /// Homes repaired from the doublewrite ring, or from the slots that backed them.
    pub repaired: u64,
    /// Pages and blocks rewritten unchanged because the flush that should have made them durable failed, or
    /// may have failed: after any end except a clean close.
    pub rewritten: u64,
}

/// The parameters of an open.
pub struct OpenParams {
    /// The HDD, on which every page has its home.
    pub hdd: SharedDevice,
    /// The SSD, or the ring's file in a store without one.
    pub ssd: SharedDevice,
    /// The seed of the store's checksums.
    pub seed: StoreSeed,
    /// The layout of `ssd`.
    pub layout: Layout,
    /// Whether the ring of `ssd`, and all of it in a store without an SSD, is a part of `hdd`: it outlives
    /// the SSD, so it takes an image of every page that goes home.
    pub ring_on_hdd: bool,
    /// Maps pages to their homes.
    pub homes: Arc<dyn Homes>,
    /// The SSD policy, empty.
    pub policy: Box<dyn SlotPolicy>,
    /// The eviction zone, in per cent of the slots.
    pub zone_percent: f64,
    /// The number of this open: larger than any before, and durably recorded as used.
    pub epoch: u32,
    /// The maximum number of admissions in flight; each holds a page of memory.
    pub admissions_max: usize,
    /// The initial mode of the SSD.
    pub mode: SsdMode,
    /// Whether the store was closed cleanly, and `ssd` was not written since: the map alone then defines its
    /// contents.
    pub closed: bool,
    /// Where failed flushes are noted.
    pub remember: Arc<dyn Remember>,
    /// Called with the progress of the recovery.
    pub progress: Option<Box<dyn Fn(RecoveryProgress) + Send + Sync>>,
    /// Test-only: the number of slots whose entries a checkpoint captures at a time; 0: as many as it writes
    /// at a time.
    #[cfg(feature = "probes")]
    #[doc(hidden)]
    pub map_piece: u32,
}

impl OpenParams {
    fn map_piece(&self) -> u32 {
        #[cfg(feature = "probes")]
        if self.map_piece > 0 {
            return self.map_piece;
        }
        u32::MAX
    }
}

impl std::fmt::Debug for OpenParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenParams").field("layout", &self.layout).field("epoch", &self.epoch).finish()
    }
}

/// Recovers the contents of the SSD and makes it ready for use.
pub(crate) async fn open(params: OpenParams) -> Result<(Core, RecoveryReport), OpenError> {
    let work = Work::of(|| {
        let (epoch, clean) = (params.epoch, params.closed);
        let (pages, repaired, error) = (field::Empty, field::Empty, field::Empty);
        tracing::debug_span!(target: "pagetier::recovery", "recovery", epoch, clean, pages, repaired, error)
    });
    let opened = work.run(recover(params)).await;
    if let Ok((_, report)) = &opened {
        work.note("pages", report.trusted + report.found);
        work.note("repaired", report.repaired);
    }
    work.note_error(&opened);
    opened
}

async fn recover(mut params: OpenParams) -> Result<(Core, RecoveryReport), OpenError> {
    let policy = std::mem::replace(&mut params.policy, Box::new(NoSsd));
    let slot_params = SlotParams::new(params.layout.slots, params.zone_percent);
    let mut reader = Reader::new(&params);
    let whole = reader.keep_whole();
    let layout = params.layout;
    let NewestMap { header, body: map, twice } = reader.newest_map().await?;
    let (trusted, generation) = (map.outside_zone(), header.generation);
    // Runs in parallel with the reads that follow, which leave the CPU idle.
    let tables = tokio::spawn(async move {
        let newest = Newest::of(trusted);
        (Slots::new(slot_params, policy, newest.entries(), generation), newest)
    });
    let evidence = reader.evidence(&header, map).await?;
    // A journal block was written under a newer checkpoint, both of whose headers are gone. This one does not
    // know what was written since (I10).
    if evidence.generation_in_force() > header.generation {
        return Err(reader.damaged("header", evidence.generation_in_force()));
    }
    let (mut slots, newest) = finished(tables).await;
    let mut verdict = evidence.judge(newest);
    // Refuse before the first write: an attempt that succeeds later must find the same evidence.
    reader.unread.refuse_slot(verdict.unknown)?;
    let mut report = report(&params, header.generation, &evidence, &verdict);
    let given_up = reader.give_up_unreadable(&mut verdict);
    // No version of a page counts that the manifest lists as free, or whose space is gone (I28).
    let exists = |entry: &Entry| params.homes.offset(entry.page).is_some();
    let entries: Vec<_> = verdict.entries.iter().map(|entry| entry.filter(exists)).collect();
    // In parallel with the repairs. The task has nothing of the open's, which may fail meanwhile and must
    // then leave no device in use.
    let slots = tokio::spawn(async move {
        slots.apply_recovered(&entries);
        slots
    });
    let noted = params.remember.recall();
    let mut unverified = params.unverified(&noted);
    let flushes = RecoveryFlushes::new(&params);
    reader.note_listed(&mut unverified).await?;
    // This comes before any other write. Suppose an image repairs a home before the image itself is durable:
    // a power cut in the middle would leave a torn home and no image (I13).
    report.rewritten = reader.make_durable(&evidence, &unverified, &flushes).await?;
    reader.zero_unreadable(&given_up).await?;
    let mut written = reader.repair_from_slots(&evidence, &verdict, &unverified).await?;
    written.add(reader.repair_from_ring(&evidence, unverified.hdd).await?);
    report.repaired = written.repaired;
    let listed = written.others(&unverified.homes);
    report.rewritten += written.again + reader.rewrite_homes(&listed).await?;
    // Even homes that read well may be in a volatile cache only, and the ring is about to be overwritten.
    flushes.flush(&[Flushed::Hdd]).await?;
    let ring_from = reader.ring_from(whole, &flushes).await?;
    report.bytes_read = reader.bytes_read.into_inner();

    let mut slots = finished(slots).await;
    slots.set_lsn_floor(header.lsn_floor);
    let next = evidence.journal.iter().map(|b| b.seq + 1).max().unwrap_or_default().max(header.journal_from);
    // All blocks since the checkpoint stay in use until the next one is durable (I7).
    let journal = header.journal_from.min(next)..next;
    let home = HomeBatches::new(layout.ring_pages, ring_from, layout.journal_blocks, journal)
        .ring_takes_all(params.ring_on_hdd)
        .ring_rests(whole);
    let protocol = Protocol::new(slots, home, params.mode, header.lsn_floor);
    let core = core(params, flushes, protocol, whole);
    if core.has_slots() {
        // With one copy of the header left, a single bad block would make the SSD unusable (I10).
        if !twice {
            core.rewrite_headers(&header).await?;
        }
        // No slot has been written so far: the first zone is the one that this checkpoint names (I13).
        core.checkpoint().await?;
    }
    report.rewritten += core.write_again(&listed).await?;
    if (!noted.is_empty() || !unverified.homes.is_empty())
        && let Err(error) = core.failures.remember.made_durable(&[Flushed::Hdd, Flushed::Ssd]).await
    {
        tracing::warn!(
            %error,
            "recovery completed the writes of a failed flush but could not clear the record in the manifest; \
             the next open repeats them"
        );
    }
    Ok((core, report))
}

fn report(params: &OpenParams, generation: u64, evidence: &Evidence, verdict: &Verdict) -> RecoveryReport {
    RecoveryReport {
        clean: params.closed,
        generation,
        zone_slots: evidence.map.zone().count() as u64,
        trusted: verdict.trusted as u64,
        found: verdict.found as u64,
        damaged: verdict.damaged as u64,
        superseded: verdict.superseded as u64,
        ..RecoveryReport::default()
    }
}

/// The executor of a store whose protocol is in the recovered `state`. Nothing is under way.
fn core(params: OpenParams, flushes: RecoveryFlushes, state: Protocol, whole: bool) -> Core {
    let map_piece = params.map_piece();
    let RecoveryFlushes { hdd: hdd_flush, cache, failures, unflushed, runtime } = flushes;
    Core {
        seed: params.seed,
        page_size: params.layout.page_size,
        homes: params.homes,
        hdd_flush,
        reversions: AtomicU64::new(0),
        claim: params.hdd.claim().unwrap_or_default(),
        hdd: params.hdd,
        whole: AtomicBool::new(whole),
        refused_whole: AtomicBool::new(false),
        slotted: AtomicBool::new(params.layout.slots > 0),
        cache_device: RwLock::new(cache),
        failures,
        unflushed,
        state: Mutex::new(state),
        stamps: StampSource::new(params.epoch),
        changed: Notify::new(),
        wake: Wake::default(),
        opened: Instant::now(),
        refusing: Refusing::default(),
        writers: locks::RwLock::new(Rank::Writers, ()),
        home_duty: locks::Mutex::new(Rank::HomeDuty, ()),
        map_duty: locks::Mutex::new(Rank::MapDuty, ()),
        events: broadcast::channel(EVENTS_KEPT).0,
        // Set once there is a pool. Until then checkpoints keep the floor that was recovered.
        redo_from: OnceLock::new(),
        spare: Mutex::new(Vec::new()),
        stopping: AtomicBool::new(false),
        admissions_max: params.admissions_max,
        choice_changes: AtomicU64::new(0),
        budget: Budget::default(),
        runtime,
        map_piece,
    }
}

/// The flushes of a recovery, which the store takes over. Their failures are remembered like any other.
pub(crate) struct RecoveryFlushes {
    hdd: GroupFlush<HddFlush>,
    cache: Arc<CacheDevice>,
    failures: Arc<Failures>,
    unflushed: Arc<UnflushedHomes>,
    runtime: Handle,
}

impl RecoveryFlushes {
    fn new(params: &OpenParams) -> Self {
        let OpenParams { hdd, ssd, layout, ring_on_hdd, remember, .. } = params;
        let (runtime, unflushed) = (Handle::current(), Arc::new(UnflushedHomes::default()));
        let (remember, listed) = (Arc::clone(remember), Arc::clone(&unflushed));
        let ring_on = ring_on_hdd.then(|| Arc::from(hdd.name()));
        let failures = Arc::new(Failures { remember, unflushed: listed, ring_on });
        let hdd = GroupFlush::new(Arc::clone(hdd), Flushed::Hdd, &failures, &runtime);
        let cache = CacheDevice::new(Arc::clone(ssd), *layout, *ring_on_hdd, &failures, &runtime);
        Self { hdd, cache, failures, unflushed, runtime }
    }

    pub(crate) async fn flush(&self, devices: &[Flushed]) -> Result<(), DeviceError> {
        for device in devices {
            match device {
                Flushed::Ssd => drop(self.cache.flush.flush_always(self.cache.flush.next()).await?),
                Flushed::Hdd => drop(self.hdd.flush_always(self.hdd.next()).await?),
            }
        }
        Ok(())
    }
}

/// The result of `task`; propagates its panic.
async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The task was aborted: the runtime is shutting down, which also ends this task.
        Err(Err(_)) => std::future::pending().await,
    }
}
