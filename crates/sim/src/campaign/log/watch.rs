//! The devices of a store and its log under observation: moments of all of them are taken at the boundaries
//! of their operations.

use super::disk::{LogDisk, LogMoment};
use super::model::Model;
use crate::campaign::draw::plan::Plan;
use crate::campaign::world::crash::{Outcome, bounded_power};
use crate::campaign::world::disks::{Disks, SharedDisks};
use pagetier::{Loss, MemoryManifest};
use pagetier_devio::{
    Device, DeviceError, DeviceStats, DoneFuture, IoBufs, IoClass, IoFuture, Occupancy, SharedDevice,
};
use pagetier_testing::{SimDevice, SimMoment, SimPower};
use pagetier_wal::{LoggedStore, RedoSpan};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The media of a store with a log.
pub(super) struct Media {
    pub(super) pages: Disks,
    pub(super) log: LogDisk,
    pub(super) manifest: MemoryManifest,
}

/// A moment: what a crash there can leave, and what the engine knows.
#[derive(Debug)]
pub(super) struct Moment {
    pages: [SimMoment; 3],
    log: LogMoment,
    manifest: MemoryManifest,
    pub(super) model: Model,
    /// Where the log ended, what was in memory included.
    pub(super) end: u64,
    /// What the log said that a recovery would read.
    pub(super) span: Option<RedoSpan>,
    pub(super) boundary: u64,
    /// An open was recovering.
    pub(super) recovering: bool,
}

impl Moment {
    /// What a crash leaves.
    pub(super) fn crashed(&self, outcome: Outcome) -> Media {
        let power = bounded_power();
        let (seed, cut) = match outcome {
            Outcome::Cut(seed) => (seed, true),
            Outcome::Killed(seed) | Outcome::Landed(seed) => (seed, false),
        };
        let after = |moment: &SimMoment, salt: u64| {
            if cut {
                moment.after_power_cut(seed ^ salt, &power)
            } else {
                moment.after_kill(seed ^ salt, &power)
            }
        };
        let [hdd, ssd, ring] = &self.pages;
        // A seed of its own for each medium: each loses its volatile writes independently of the others.
        let (hdd, ssd, ring) = (after(hdd, 0), after(ssd, 0x55), after(ring, 0xaa));
        let log = match cut {
            true => self.log.after_power_cut(seed ^ 0x106, &power),
            false => self.log.after_kill(seed ^ 0x106, &power),
        };
        Media { pages: Disks { hdd, ssd, ring, power }, log, manifest: self.manifest.fork() }
    }

    /// The log alone, as it could be read at this moment.
    pub(super) fn log(&self, power: &SimPower) -> LogDisk {
        self.log.fork(7, power)
    }

    /// Everything, as it could be read at this moment.
    pub(super) fn fork(&self) -> Media {
        let power = bounded_power();
        let [hdd, ssd, ring] = &self.pages;
        let pages =
            Disks { hdd: hdd.fork(1, &power), ssd: ssd.fork(2, &power), ring: ring.fork(3, &power), power };
        let log = self.log(&pages.power);
        Media { pages, log, manifest: self.manifest.fork() }
    }
}

/// How often to take moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) share: f64,
    pub(super) max: usize,
}

impl Rate {
    pub(super) const NEVER: Self = Self { share: 0.0, max: 0 };
}

struct Inside {
    rng: SmallRng,
    rate: Rate,
    recovering: bool,
    boundaries: u64,
    moments: Vec<Moment>,
    db: Weak<LoggedStore>,
}

/// See the module.
pub(super) struct Watch {
    pub(super) hdd: Arc<SimDevice>,
    pub(super) ssd: Arc<SimDevice>,
    ring: Arc<SimDevice>,
    pub(super) log: LogDisk,
    pub(super) power: SimPower,
    pub(super) manifest: Arc<MemoryManifest>,
    pub(super) model: Mutex<Model>,
    /// Devices were made to fail since the open: calls may fail.
    pub(super) troubled: AtomicBool,
    inside: Mutex<Inside>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(plan: &Plan, media: Media, model: Model, seed: u64) -> Arc<Self> {
        let Media { pages, log, manifest } = media;
        let Disks { hdd, ssd, ring, power } = plan.with_latencies(pages);
        let inside = Inside {
            rng: SmallRng::seed_from_u64(seed),
            rate: Rate::NEVER,
            recovering: false,
            boundaries: 0,
            moments: Vec::new(),
            db: Weak::new(),
        };
        let watch = Arc::new(Self {
            hdd: Arc::new(hdd),
            ssd: Arc::new(ssd),
            ring: Arc::new(ring),
            log,
            power,
            manifest: Arc::new(manifest),
            model: Mutex::new(model),
            troubled: AtomicBool::new(false),
            inside: Mutex::new(inside),
        });
        if let LogDisk::Files(files) = &watch.log {
            // The watch owns the files, so a strong reference in their hook would keep both for ever.
            let seen = Arc::downgrade(&watch);
            files.before_each(move |copy| {
                if let Some(watch) = seen.upgrade() {
                    watch.boundary_of(|| LogMoment::Files(copy()));
                }
            });
        }
        watch
    }

    /// The pages' devices, as an open gets them.
    pub(super) fn devices(self: &Arc<Self>) -> SharedDisks {
        let one = |device: &Arc<SimDevice>| self.seen(device);
        SharedDisks { hdd: one(&self.hdd), ssd: one(&self.ssd), ring: one(&self.ring) }
    }

    /// The log's medium, as an open gets it.
    pub(super) fn log_media(self: &Arc<Self>) -> io::Result<Box<dyn pagetier_wal::Media>> {
        self.log.media(|device| self.seen(device))
    }

    fn seen(self: &Arc<Self>, device: &Arc<SimDevice>) -> SharedDevice {
        Arc::new(Seen { watch: Arc::clone(self), device: Arc::clone(device) })
    }

    pub(super) fn set(&self, rate: Rate, recovering: bool) {
        let mut inside = self.inside.lock();
        (inside.rate, inside.recovering) = (rate, recovering);
    }

    /// The engine that uses the devices: it knows where its log ends.
    pub(super) fn used_by(&self, db: &Arc<LoggedStore>) {
        // The store's devices have this watch: a strong reference would keep it open after its last user
        // has left.
        self.inside.lock().db = Arc::downgrade(db);
    }

    pub(super) fn take(&self) -> Vec<Moment> {
        std::mem::take(&mut self.inside.lock().moments)
    }

    /// Takes this moment regardless of the rate.
    pub(super) fn now(&self) -> Moment {
        self.moment(&mut self.inside.lock(), || self.log.moment())
    }

    fn boundary(&self) {
        self.boundary_of(|| self.log.moment());
    }

    /// A boundary at which `log` is that of the log.
    fn boundary_of(&self, log: impl FnOnce() -> LogMoment) {
        let mut inside = self.inside.lock();
        inside.boundaries += 1;
        let Rate { share, max } = inside.rate;
        if inside.moments.len() < max && inside.rng.random_bool(share) {
            let moment = self.moment(&mut inside, log);
            inside.moments.push(moment);
        }
    }

    fn moment(&self, inside: &mut Inside, log: impl FnOnce() -> LogMoment) -> Moment {
        let mut model = self.model.lock();
        let db = inside.db.upgrade();
        // Before an open is done, no engine is known, and only what was acknowledged is certain.
        let end = db.as_ref().map_or(model.acked, |db| db.wal().end().0);
        let span = db.and_then(|db| db.wal().to_redo(Loss::Crash));
        // The copy of the model must know the calls that have appended by now: a crash here may keep
        // their records.
        model.resolve(end);
        Moment {
            pages: [self.hdd.moment(), self.ssd.moment(), self.ring.moment()],
            log: log(),
            manifest: self.manifest.fork(),
            model: model.at_moment(inside.recovering),
            end,
            span,
            boundary: inside.boundaries,
            recovering: inside.recovering,
        }
    }

    /// All bytes of all media.
    pub(super) fn snapshot(&self) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let [hdd, ssd, ring] = [&self.hdd, &self.ssd, &self.ring].map(|device| device.snapshot());
        (vec![hdd, ssd, ring, self.log.snapshot()], self.manifest.to_bytes())
    }

    pub(super) fn trouble(&self) {
        self.troubled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    pub(super) fn clear_faults(&self) {
        [&self.hdd, &self.ssd, &self.ring].iter().for_each(|device| device.clear_faults());
        self.log.clear_faults();
        self.manifest.fail_saves(0, 0, false);
    }
}

/// A device under observation.
#[derive(Debug)]
struct Seen {
    watch: Arc<Watch>,
    device: Arc<SimDevice>,
}

impl Seen {
    fn watched<T>(&self, start: impl FnOnce() -> T) -> T {
        // A moment holds what was before the operation; the next one has what it left, volatile so far.
        self.watch.boundary();
        let started = start();
        self.watch.boundary();
        started
    }
}

impl Device for Seen {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        // Not watched: a read changes nothing that a crash could leave.
        self.device.read(offset, bufs, class)
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let started = self.watched(|| self.device.write(offset, bufs, class));
        let watch = Arc::clone(&self.watch);
        Box::pin(async move {
            let done = started.await;
            // A kill keeps the completed write for certain now, and a power cut may still take it.
            watch.boundary();
            done
        })
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        let started = self.watched(|| self.device.flush(class));
        let watch = Arc::clone(&self.watch);
        Box::pin(async move {
            let done = started.await;
            // From here on no power cut takes the writes that the flush covered; until here it could take
            // any.
            watch.boundary();
            done
        })
    }

    fn backend(&self) -> &'static str {
        "sim"
    }

    pagetier_devio::delegate! { self => self.device;
        fn size() -> u64;
        fn grow(bytes: u64) -> Result<(), DeviceError>;
        fn cut(bytes: u64) -> Result<(), DeviceError>;
        fn discard(offset: u64, len: u64) -> DoneFuture;
        fn occupancy() -> &Occupancy;
        fn alignment() -> usize;
        fn stats() -> DeviceStats;
        fn name() -> &str;
    }
}
