//! Formatting an SSD, and recovering what a crash left on it.
//!
//! Recovery only reads, but for what may be repeated at will: what a failed flush left unproved is written
//! once more, torn home pages are rewritten from the ring, and a new checkpoint is written at the end, before
//! which no slot is given out. Both devices are flushed before any home is written: what was read may not be
//! durable yet (`prove`).

use crate::backed::Backed;
use crate::core::{Core, Homes, JournalPlace, State, Wake, check};
use crate::flush::{Failures, GroupFlush};
use crate::home_writes::HomeWrites;
use crate::images::{Content, is_of_a_block, read_images, readable};
use crate::journal::Block;
use crate::layout::{BLOCK_BYTES, Layout};
use crate::life::{EVENTS_KEPT, Refusing, SsdMode};
use crate::map::{Entry, MapBody, MapHeader};
use crate::mutation::{Broken, Mutation};
use crate::newest::Newest;
use crate::read::read_one;
use crate::recovery::{Evidence, Image, Verdict};
use crate::remember::{Flushed, Remember, Unproved};
use crate::ring::Ring;
use crate::side::Side;
use crate::slots::{SlotParams, Slots};
use crate::superblock::{Found, Marks, Superblock, write_superblocks};
use crate::unread::Unread;
use futures_util::StreamExt;
use futures_util::future::try_join3;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp, SharedDevice};
use pagetier_page::{Defect, Header, Lsn, PageId, Stamp, StampSource, StoreSeed};
use pagetier_policy::SlotPolicy;
use pagetier_policy::ssd::NoSsd;
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

/// A device with more places that cannot be read is taken for failed.
const UNREADABLE_MAX: usize = 64;

/// Home pages looked at at once for what the ring has to repair.
const REPAIRS_MAX: usize = 16;

/// Why an SSD could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Neither map checkpoint is sound. With it goes the knowledge of what the SSD holds; the SSD is left as
    /// it is.
    #[error(
        "{device}: neither of the two map checkpoints is sound; bring back a sound copy of the device, or open with a blank one in its place and accept the loss"
    )]
    NoMap {
        /// The SSD.
        device: String,
    },
    /// The map checkpoint that was in force is damaged. The one before does not know of what was written
    /// since, so it is not used; the SSD is left as it is.
    #[error(
        "{device}: the {part} of map checkpoint {generation} (map {map}) is damaged, and the checkpoint before is out of date; bring back a sound copy of the device, or open with a blank one in its place and accept the loss"
    )]
    DamagedMap {
        /// The SSD.
        device: String,
        /// The map area, `A` or `B`.
        map: char,
        /// `header` (both copies of it) or `body`.
        part: &'static str,
        /// The checkpoint.
        generation: u64,
    },
    /// A block cannot be read that may hold the newest version of any page, or tell of it. The devices are
    /// left as they are.
    #[error(
        "{source}: this block of the {part} cannot be read, and may hold the newest version of any page: open again once the device can read it, or open with a blank device in its place (or without an SSD) and accept the loss"
    )]
    Unreadable {
        /// `map`, `journal`, `ring` or `zone`.
        part: &'static str,
        /// The device's error, which names device and offset.
        #[source]
        source: DeviceError,
    },
}

/// How far a recovery is: what it reads, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Pages read so far.
    pub done: u64,
    /// Pages to read in all.
    pub total: u64,
}

/// What a recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// The generation of the checkpoint it started from.
    pub generation: u64,
    /// Slots that were read because they are in the zone.
    pub zone_slots: u64,
    /// Bytes read from the SSD.
    pub bytes_read: u64,
    /// Pages on the SSD by the checkpoint's word.
    pub trusted: u64,
    /// Pages on the SSD found in the zone.
    pub found: u64,
    /// Pages whose only copy is damaged, as far as the zone showed: reading them is an error.
    pub damaged: u64,
    /// Copies dropped because the HDD has a newer version.
    pub superseded: u64,
    /// Home pages rewritten from the doublewrite ring, or from the slots that backed them.
    pub repaired: u64,
    /// Pages and blocks written once more, as they were, because the flush that should have made them durable
    /// failed, or may have failed: after any end but a close in order.
    pub rewritten: u64,
}

/// Everything that opening needs.
pub struct OpenParams {
    /// The HDD.
    pub hdd: SharedDevice,
    /// The SSD, or the file for the ring of a store without one.
    pub ssd: SharedDevice,
    /// What the store's checksums start from.
    pub seed: StoreSeed,
    /// The division of `ssd`.
    pub layout: Layout,
    /// Where pages have their home.
    pub homes: Arc<dyn Homes>,
    /// The SSD policy, empty.
    pub policy: Box<dyn SlotPolicy>,
    /// The eviction zone, in per cent of the slots.
    pub zone_percent: f64,
    /// The number of this opening; larger than any before, and durably noted as used.
    pub epoch: u32,
    /// Copies of evicted pages on their way to the SSD, at most: each holds a page of memory.
    pub admissions_max: usize,
    /// What the SSD is used for at first.
    pub mode: SsdMode,
    /// The store was closed in order, and nothing was written to `ssd` since: the map alone tells what is on
    /// it.
    pub closed: bool,
    /// Where failed flushes are noted.
    pub remember: Arc<dyn Remember>,
    /// Called as recovery goes on.
    pub progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
    /// Test-only: the rule of the protocol that is left out.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub mutation: Option<Mutation>,
}

impl OpenParams {
    pub(crate) fn broken(&self) -> Broken {
        Broken(
            #[cfg(feature = "mutations")]
            self.mutation,
        )
    }
}

impl std::fmt::Debug for OpenParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenParams").field("layout", &self.layout).field("epoch", &self.epoch).finish()
    }
}

/// What stands at the start of `device`: of two sound superblocks the newer.
///
/// # Errors
/// When the device cannot be read.
pub async fn identify(device: &SharedDevice) -> Result<Found, DeviceError> {
    Ok(newest_superblock(device).await?.0)
}

/// The same, and which copy it is.
async fn newest_superblock(device: &SharedDevice) -> Result<(Found, u64), DeviceError> {
    if device.size() < 2 * BLOCK_BYTES {
        return Ok((Found::Blank, 0));
    }
    let mut last = (Found::Blank, 0);
    for copy in 0..2 {
        let buf = IoBuf::zeroed(BLOCK_BYTES as usize);
        let (buf, result) = read_one(device, copy * BLOCK_BYTES, buf, IoClass::Recovery).await;
        result?;
        match (Superblock::decode(buf.as_slice()), last.0) {
            (Found::Superblock(this), Found::Superblock(other)) if this.marks <= other.marks => {}
            (Found::Blank, _) => {}
            (found @ Found::Superblock(_), _) => last = (found, copy),
            (_, Found::Superblock(_)) => {}
            (other, _) => last = (other, copy),
        }
    }
    Ok(last)
}

/// Notes on `device`, which has a superblock, the openings that it took part in. Flushes it.
///
/// # Errors
/// When it cannot be read, written or flushed.
pub async fn mark(device: &SharedDevice, marks: Marks) -> Result<(), DeviceError> {
    let (Found::Superblock(found), newest) = newest_superblock(device).await? else {
        let kind = DeviceErrorKind::Unusable("its superblock is gone".to_owned());
        let (device, len) = (Arc::from(device.name()), 2 * BLOCK_BYTES);
        return Err(DeviceError { device, op: IoOp::Read, offset: 0, len, kind });
    };
    write_superblocks(device, &Superblock { marks, ..found }.encode(), newest).await
}

/// Makes `device` an empty SSD cache of the store of `seed`: the superblock, which says whose the device is
/// from then on, then an empty map. It may be used once this has returned, and the manifest names its id.
/// What stands in the slots stays there: another store's images do not verify, and no map names this store's
/// own older ones.
///
/// # Errors
/// When the device cannot be grown or written.
pub async fn format(
    device: &SharedDevice,
    superblock: &Superblock,
    seed: StoreSeed,
) -> Result<(), DeviceError> {
    let layout = superblock.layout;
    device.grow(layout.end())?;
    let zeroes = |bytes: u64| IoBuf::zeroed(bytes.min(1 << 20) as usize);
    // This store's own stands until the new one does: cut short, what is behind it would pass for another
    // program's.
    let (found, mut newest) = newest_superblock(device).await?;
    if !matches!(found, Found::Superblock(found) if found.store == superblock.store) {
        // Of two different superblocks, the new one need not be the newer.
        device.write(0, IoBufs::from_iter([zeroes(2 * BLOCK_BYTES)]), IoClass::Meta).await.result?;
        device.flush(IoClass::Meta).await?;
        newest = 1;
    }
    write_superblocks(device, &superblock.encode(), newest).await?;
    // Journal and ring of an earlier life of this device would be taken for evidence.
    let mut at = layout.map_at(0);
    while at < layout.slot_at(0) {
        let buf = zeroes(layout.slot_at(0) - at);
        let len = buf.len() as u64;
        device.write(at, IoBufs::from_iter([buf]), IoClass::Meta).await.result?;
        at += len;
    }
    if layout.slots > 0 {
        write_empty_map(device, &layout, seed).await?;
    }
    device.flush(IoClass::Meta).await
}

async fn write_empty_map(device: &SharedDevice, layout: &Layout, seed: StoreSeed) -> Result<(), DeviceError> {
    // Zeroes are the body of an empty map without a zone.
    let crc = MapBody::empty(layout.slots).encode(seed).1;
    let header = MapHeader {
        generation: 0,
        watermark: Stamp::ZERO,
        journal_from: 0,
        body_crc: crc,
        slots: layout.slots,
        lsn_floor: Lsn(0),
    };
    for copy in 0..2 {
        let buf = IoBufs::from_iter([IoBuf::copy_of(&header.encode(seed))]);
        device.write(layout.map_header_at(0, copy), buf, IoClass::Meta).await.result?;
    }
    Ok(())
}

/// Recovers what is on the SSD and makes it ready for use.
pub(crate) async fn open(mut params: OpenParams) -> Result<(Core, RecoveryReport), OpenError> {
    let broken = params.broken();
    let policy = std::mem::replace(&mut params.policy, Box::new(NoSsd));
    let slot_params = SlotParams::new(params.layout.slots, params.zone_percent);
    let mut reader = Reader::new(&params);
    let layout = params.layout;
    let mut report = RecoveryReport::default();
    let Newest { header, body: map, twice } = reader.newest_map().await?;
    let (trusted, generation) = (map.outside_zone(), header.generation);
    // Beside the reading that follows, which leaves the processor time.
    let slots = tokio::spawn(async move { Slots::new(slot_params, policy, &trusted, generation) });
    let evidence = reader.evidence(&header, map).await?;
    if evidence.generation_proved() > header.generation && !broken.is(Mutation::MapUnproved) {
        return Err(reader.damaged("header", evidence.generation_proved()));
    }
    let mut verdict = evidence.merge();
    if !broken.is(Mutation::UnreadableIsEmpty) {
        reader.unread.refuse_slot(verdict.unknown)?;
    }
    report.generation = header.generation;
    report.zone_slots = evidence.map.zone.iter().filter(|z| **z).count() as u64;
    report.trusted = verdict.trusted as u64;
    report.found = verdict.found as u64;
    report.damaged = verdict.damaged as u64;
    report.superseded = verdict.superseded as u64;
    let runtime = Handle::current();
    let home_writes = Arc::new(HomeWrites::default());
    let noted = params.remember.recall();
    let unproved = params.unproved(&noted);
    let failures =
        Failures { remember: Arc::clone(&params.remember), home_writes: Arc::clone(&home_writes), broken };
    let failures = Arc::new(failures);
    let hdd_flush = GroupFlush::new(Arc::clone(&params.hdd), Flushed::Hdd, &failures, &runtime);
    let side = Side::new(Arc::clone(&params.ssd), layout, &failures, &runtime);
    let flushes = RecoveryFlushes { hdd: &hdd_flush, ssd: &side.flush };
    report.rewritten = reader.prove(&evidence, &unproved, &flushes).await?;
    reader.heal(&mut verdict).await?;
    let mut written = reader.mend(&evidence, &verdict, &unproved).await?;
    written.add(reader.repair(&evidence, unproved.hdd).await?);
    report.repaired = written.mended;
    report.rewritten += written.again + reader.rewrite_homes(&unproved.homes, &written.pages).await?;
    // Also what reads well now may be in a volatile cache only, and the ring is about to be written over.
    flushes.hdd().await?;
    let ring_from = reader.ring_from().await?;
    report.bytes_read = reader.bytes_read.into_inner();

    let mut entries = verdict.entries;
    for entry in &mut entries {
        *entry = entry.filter(|e| params.homes.offset(e.page).is_some());
    }
    let mut slots = finished(slots).await;
    slots.amend(&entries);
    slots.set_broken(broken);
    slots.set_lsn_floor(header.lsn_floor);
    let next = evidence.journal.iter().map(|b| b.seq + 1).max().unwrap_or(0).max(header.journal_from);
    let journal = JournalPlace::new(next, header.journal_from.min(next));
    let core = Core {
        seed: params.seed,
        page_size: layout.page_size,
        homes: params.homes,
        hdd_flush,
        hdd: params.hdd,
        side: RwLock::new(side),
        failures,
        home_writes,
        state: Mutex::new(State {
            slots,
            ring: Ring::new(layout.ring_pages, ring_from),
            backed: Backed::default(),
            journal,
            homeward: FxHashSet::default(),
            admissions: 0,
            ssd_error: None,
            map_failed: false,
            map_doubtful: false,
            mode: params.mode,
            drains: 0,
            closing: false,
            lsn_floor: header.lsn_floor,
        }),
        stamps: StampSource::new(if broken.is(Mutation::StampsRepeat) { 1 } else { params.epoch }),
        changed: Notify::new(),
        wake: Wake::default(),
        opened: Instant::now(),
        refusing: Refusing::default(),
        gate: tokio::sync::RwLock::new(()),
        home_duty: tokio::sync::Mutex::new(()),
        map_duty: tokio::sync::Mutex::new(()),
        events: broadcast::channel(EVENTS_KEPT).0,
        redo_from: OnceLock::new(),
        spare: Mutex::new(Vec::new()),
        stopping: AtomicBool::new(false),
        admissions_max: params.admissions_max,
        runtime,
        broken,
    };
    if core.has_slots() {
        if !twice {
            core.restate_map(&header).await?;
        }
        core.checkpoint().await?;
    }
    if !noted.is_empty()
        && let Err(error) = core.failures.remember.proved(&[Flushed::Hdd, Flushed::Ssd])
    {
        // The next opening does it all once more.
        tracing::warn!(%error, "what failed flushes left unproved is durable now, but the manifest took no note of it");
    }
    Ok((core, report))
}

/// Why a recovery wrote a home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HomeWrite {
    /// It was torn, missing or too old.
    Mended,
    /// It reads well, but may not be durable.
    Again,
}

/// The homes that a recovery wrote.
#[derive(Debug, Default)]
struct HomesWritten {
    pages: FxHashSet<PageId>,
    mended: u64,
    again: u64,
}

impl HomesWritten {
    fn note(&mut self, page: PageId, written: Option<HomeWrite>) {
        self.pages.extend(written.map(|_| page));
        self.mended += u64::from(written == Some(HomeWrite::Mended));
        self.again += u64::from(written == Some(HomeWrite::Again));
    }

    fn add(&mut self, other: Self) {
        self.pages.extend(other.pages);
        self.mended += other.mended;
        self.again += other.again;
    }
}

/// The flushes of a recovery, whose failures are remembered as any.
pub(crate) struct RecoveryFlushes<'a> {
    hdd: &'a GroupFlush,
    ssd: &'a GroupFlush,
}

impl RecoveryFlushes<'_> {
    pub(crate) async fn hdd(&self) -> Result<(), DeviceError> {
        self.hdd.cover(self.hdd.next()).await.map(drop)
    }

    pub(crate) async fn ssd(&self) -> Result<(), DeviceError> {
        self.ssd.cover(self.ssd.next()).await.map(drop)
    }
}

/// What the task computes; its panic is this one's.
async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // Aborted: the runtime is going away, and this task with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

pub(crate) struct Reader<'a> {
    pub(crate) params: &'a OpenParams,
    bytes_read: AtomicU64,
    done: AtomicU64,
    total: u64,
    /// The sound images of the ring, by place.
    ringed: Vec<(u32, Image)>,
    pub(crate) unread: Unread,
}

impl<'a> Reader<'a> {
    fn new(params: &'a OpenParams) -> Self {
        let ring = u64::from(params.layout.ring_pages);
        Self {
            params,
            bytes_read: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total: ring,
            ringed: Vec::new(),
            unread: Unread::default(),
        }
    }

    async fn evidence(&mut self, header: &MapHeader, map: MapBody) -> Result<Evidence, OpenError> {
        self.total += map.zone.iter().filter(|z| **z).count() as u64;
        let read = try_join3(self.journal(), self.ring(), self.zone(&map)).await?;
        let ((journal, lost), (mut ringed, ring), (zone, slots)) = read;
        self.unread = Unread { journal: lost, ring, slots };
        let closed = self.params.closed;
        if !closed && !self.params.broken().is(Mutation::UnreadableIsEmpty) {
            self.unread.refuse()?;
        } else if !self.unread.ring.is_empty() {
            // An older image than the one that cannot be read must not mend a home that rotted. After a close
            // none is needed.
            ringed.clear();
        }
        let mut ring = FxHashMap::default();
        for (_, image) in &ringed {
            let stamp = ring.entry(image.page).or_insert(image.stamp);
            *stamp = image.stamp.max(*stamp);
        }
        self.ringed = ringed;
        let ignored = self.params.broken().is(Mutation::WatermarkIgnored);
        let watermark = if ignored { Stamp::ZERO } else { header.watermark };
        let unreadable = self.unread.slots.keys().copied().collect();
        Ok(Evidence { map, watermark, zone, unreadable, closed, journal, ring })
    }

    /// The sound blocks of the journal, and why one could not be read.
    async fn journal(&self) -> Result<(Vec<Block>, Option<DeviceError>), DeviceError> {
        let OpenParams { layout, seed, .. } = *self.params;
        let (mut blocks, mut unread) = (Vec::new(), None);
        let decoded = |bytes: &[u8]| Block::decode(seed, bytes);
        let block = |bytes: &[u8]| decoded(bytes).is_some() || pagetier_page::is_blank(bytes);
        let sound = |bytes: &[u8]| bytes.chunks(BLOCK_BYTES as usize).all(block);
        let total = u64::from(layout.journal_blocks);
        let (mut seq, mut most) = (0, 256);
        while seq < total {
            let count = (total - seq).min(most);
            match self.read_sound(layout.journal_at(seq), count * BLOCK_BYTES, &sound).await {
                Ok(bytes) => blocks.extend(bytes.as_slice().chunks(BLOCK_BYTES as usize).filter_map(decoded)),
                // Block by block from here on.
                Err(error) if is_of_a_block(&error) && count > 1 => {
                    most = 1;
                    continue;
                }
                Err(error) if is_of_a_block(&error) => unread = Some(error),
                Err(error) => return Err(error),
            }
            seq += count;
        }
        Ok((blocks, unread))
    }

    /// The sound images of the ring, by place, and the places that cannot be read.
    async fn ring(&self) -> Result<(Vec<(u32, Image)>, FxHashMap<u32, DeviceError>), DeviceError> {
        let layout = &self.params.layout;
        let indices: Vec<u32> = (0..layout.ring_pages).collect();
        self.images(&indices, |index| layout.ring_at(index)).await
    }

    /// The same of the zone's slots.
    async fn zone(
        &self,
        map: &MapBody,
    ) -> Result<(FxHashMap<u32, Image>, FxHashMap<u32, DeviceError>), DeviceError> {
        let slots: Vec<u32> = (0..map.zone.len() as u32).filter(|s| map.zone[*s as usize]).collect();
        let (images, unread) = self.images(&slots, |slot| self.params.layout.slot_at(slot)).await?;
        Ok((images.into_iter().collect(), unread))
    }

    /// The sound page images at the places of `indices`, which ascend with these, and the places that cannot
    /// be read; bad contents are neither.
    async fn images(
        &self,
        indices: &[u32],
        place: impl Fn(u32) -> u64,
    ) -> Result<(Vec<(u32, Image)>, FxHashMap<u32, DeviceError>), DeviceError> {
        let page_bytes = self.params.layout.page_size.bytes();
        let places: Vec<u64> = indices.iter().map(|index| place(*index)).collect();
        let mut runs = pin!(read_images(&self.params.ssd, self.params.seed, &places, page_bytes));
        let (mut images, mut unread) = (Vec::with_capacity(places.len()), FxHashMap::default());
        while let Some(run) = runs.next().await {
            let run = run?;
            self.note_read((run.len() * page_bytes) as u64);
            let read = run.len() as u64;
            let done = self.done.fetch_add(read, Ordering::Relaxed) + read;
            for (nth, content) in run {
                match content {
                    Content::Image(image) => images.push((indices[nth], image)),
                    Content::None => {}
                    Content::Unreadable(error) if unread.len() >= UNREADABLE_MAX => return Err(error),
                    Content::Unreadable(error) => drop(unread.insert(indices[nth], error)),
                }
            }
            if let Some(report) = &self.params.progress {
                report(Progress { done, total: self.total });
            }
        }
        images.sort_unstable_by_key(|(index, _)| *index);
        Ok((images, unread))
    }

    /// The slots that may have to mend their pages' homes, with these, in the homes' order.
    fn mending(&self, evidence: &Evidence, verdict: &Verdict, unproved: &Unproved) -> Vec<(u64, usize)> {
        let last: FxHashSet<PageId> = evidence.last_write_back().into_iter().collect();
        let listed: FxHashSet<PageId> = unproved.homes.iter().copied().collect();
        let mends = !self.params.broken().is(Mutation::DoublewriteNotMended);
        let from = evidence.slots_back_from().filter(|_| mends);
        let entries = verdict.entries.iter().enumerate().filter_map(|(slot, e)| Some((slot, (*e)?)));
        let may = entries.filter(|(_, e)| {
            let backs = from.is_some_and(|from| e.stamp >= from) || listed.contains(&e.page);
            last.contains(&e.page) || (!e.clean && backs)
        });
        let mut mending: Vec<(u64, usize)> =
            may.filter_map(|(slot, e)| Some((self.params.homes.offset(e.page)?, slot))).collect();
        mending.sort_unstable();
        mending
    }

    /// Rewrites homes that a write-back, or a write that the page's own slot backs, left torn, from the
    /// slots: as long as a slot has the page no request reads its home, but the page may be discarded, or its
    /// place become another page's. After a failed flush of the HDD all of them, whatever is there. The pages
    /// that were.
    async fn mend(
        &self,
        evidence: &Evidence,
        verdict: &Verdict,
        unproved: &Unproved,
    ) -> Result<HomesWritten, DeviceError> {
        let mut written = HomesWritten::default();
        for (home, slot) in self.mending(evidence, verdict, unproved) {
            let Some(Entry { page, .. }) = verdict.entries[slot] else { continue };
            let (at, bytes) = (self.params.layout.slot_at(slot as u32), self.params.layout.page_size.bytes());
            let image = match self.read(at, bytes as u64).await {
                // Reading the page says so: its newest version is here, whatever its home holds.
                Err(error) if is_of_a_block(&error) => continue,
                read => read?,
            };
            let stamp = verdict.entries[slot].map(|e| e.stamp);
            if self.check(image.as_slice(), page, stamp).is_err() {
                continue;
            }
            let home_is_sound = self.home_is_sound(page, home).await?;
            if home_is_sound && !unproved.hdd {
                continue;
            }
            self.grow_to(home)?;
            self.params.hdd.write(home, IoBufs::from_iter([image]), IoClass::Recovery).await.result?;
            written.note(page, Some(if home_is_sound { HomeWrite::Again } else { HomeWrite::Mended }));
        }
        Ok(written)
    }

    /// A crash may have undone the growth of the HDD that brought it to `home`.
    fn grow_to(&self, home: u64) -> Result<(), DeviceError> {
        let (hdd, end) = (&self.params.hdd, home + self.params.layout.page_size.bytes() as u64);
        if hdd.size() < end { hdd.grow(end) } else { Ok(()) }
    }

    fn check(&self, image: &[u8], page: PageId, stamp: Option<Stamp>) -> Result<Header, Defect> {
        check(self.params.seed, image, page, stamp)
    }

    /// Whether a sound image of any page stands there, or nothing. What cannot be read can often be written.
    async fn home_is_sound(&self, page: PageId, home: u64) -> Result<bool, DeviceError> {
        let hdd = &self.params.hdd;
        let bytes = self.params.layout.page_size.bytes();
        if hdd.size() < home + bytes as u64 {
            return Ok(true);
        }
        let (buf, result) = read_one(hdd, home, IoBuf::zeroed(bytes), IoClass::Recovery).await;
        if !readable(result)? {
            return Ok(false);
        }
        let unsound = |defect| matches!(defect, Defect::Checksum { .. } | Defect::Format { .. });
        Ok(!self.check(buf.as_slice(), page, None).is_err_and(unsound))
    }

    /// Rewrites home pages that are torn, lost or older than their image in the ring; with `all` also those
    /// that read well.
    async fn repair(&self, evidence: &Evidence, all: bool) -> Result<HomesWritten, DeviceError> {
        let mut homes = HomesWritten::default();
        if self.params.broken().is(Mutation::RingNotRepaired) {
            return Ok(homes);
        }
        let floor = evidence.ring_floor();
        let written_back = evidence.written_back();
        let mut wanted: Vec<(u64, u32, Image)> = Vec::new();
        for (index, found) in &self.ringed {
            let newest = evidence.ring.get(&found.page) == Some(&found.stamp);
            // A slot of that newer version mends the home, or has been given away since the HDD had it
            // durably.
            let superseded = written_back.get(&found.page).is_some_and(|newer| *newer > found.stamp);
            let needed = newest && !superseded && found.stamp >= floor;
            let home = self.params.homes.offset(found.page).filter(|_| needed);
            wanted.extend(home.map(|home| (home, *index, *found)));
        }
        wanted.sort_unstable_by_key(|(home, ..)| *home);
        let page_bytes = self.params.layout.page_size.bytes();
        self.note_read((wanted.len() * page_bytes) as u64);
        let repairs = wanted.into_iter().map(|(home, index, found)| async move {
            self.repair_one(found, home, index, all).await.map(|written| (found.page, written))
        });
        let mut repairs = futures_util::stream::iter(repairs).buffer_unordered(REPAIRS_MAX);
        while let Some(one) = repairs.next().await {
            let (page, written) = one?;
            homes.note(page, written);
        }
        Ok(homes)
    }

    /// Where the ring goes on: behind its newest image, so that an older image of a page never outlives the
    /// newest one. Voids those that would.
    async fn ring_from(&self) -> Result<u32, DeviceError> {
        if self.params.broken().is(Mutation::RingFromZero) {
            return Ok(0);
        }
        let mut newest: FxHashMap<PageId, Stamp> = FxHashMap::default();
        for (_, image) in &self.ringed {
            let stamp = newest.entry(image.page).or_insert(image.stamp);
            *stamp = image.stamp.max(*stamp);
        }
        let outdated = self.ringed.iter().filter(|(_, image)| newest[&image.page] != image.stamp);
        self.void_outdated(&outdated.map(|(place, _)| *place).collect::<Vec<_>>()).await?;
        let last = self.ringed.iter().max_by_key(|(_, image)| image.stamp);
        Ok(last.map_or(0, |(place, _)| (place + 1) % self.params.layout.ring_pages))
    }

    /// Mends the home of the page that stands at `index` of the ring, if it has to be; with `always`, it is
    /// written in any case.
    async fn repair_one(
        &self,
        found: Image,
        home: u64,
        index: u32,
        always: bool,
    ) -> Result<Option<HomeWrite>, DeviceError> {
        let (hdd, layout) = (&self.params.hdd, &self.params.layout);
        let page_bytes = layout.page_size.bytes();
        self.grow_to(home)?;
        let (current, result) = read_one(hdd, home, IoBuf::zeroed(page_bytes), IoClass::Recovery).await;
        let newest = |h: Header| h.stamp >= found.stamp;
        if readable(result)? && self.check(current.as_slice(), found.page, None).is_ok_and(newest) {
            if always {
                hdd.write(home, IoBufs::from_iter([current]), IoClass::Recovery).await.result?;
            }
            return Ok(always.then_some(HomeWrite::Again));
        }
        let mut image = current;
        // Once more, if only the transfer was bad.
        for _ in 0..2 {
            let result;
            (image, result) =
                read_one(&self.params.ssd, layout.ring_at(index), image, IoClass::Recovery).await;
            result?;
            if self.check(image.as_slice(), found.page, Some(found.stamp)).is_ok() {
                break;
            }
        }
        if self.check(image.as_slice(), found.page, Some(found.stamp)).is_err() {
            tracing::error!(page = %found.page, "its image in the ring does not read well any more: a torn home stays torn");
            return Ok(None);
        }
        hdd.write(home, IoBufs::from_iter([image]), IoClass::Recovery).await.result?;
        Ok(Some(HomeWrite::Mended))
    }

    /// Reads twice if need be: what a crash tore reads the same again, but what only the transfer spoiled
    /// must not be taken for gone. An older checkpoint, or a journal without a record, would bring old
    /// versions back.
    pub(crate) async fn read_sound(
        &self,
        offset: u64,
        bytes: u64,
        sound: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<IoBuf, DeviceError> {
        let first = self.read(offset, bytes).await?;
        if sound(first.as_slice()) { Ok(first) } else { self.read(offset, bytes).await }
    }

    pub(crate) async fn read(&self, offset: u64, bytes: u64) -> Result<IoBuf, DeviceError> {
        let buf = IoBuf::zeroed(bytes as usize);
        let (buf, result) = read_one(&self.params.ssd, offset, buf, IoClass::Recovery).await;
        result?;
        self.note_read(bytes);
        Ok(buf)
    }

    fn note_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }
}
