//! A store on simulated devices with a simulated log, which lose power together.

#![allow(dead_code, reason = "each test file uses a part")]

use pagetier::{Builder, MemoryManifest, PageSize, PageStore, device::SharedDevice};
use pagetier_kv::{Kv, KvError};
use pagetier_testing::{SimDevice, SimPower};
use pagetier_wal::{Keep, Media, Wal, WalOptions};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PAGE: u64 = 4096;
const STALL_MAX: Duration = Duration::from_secs(20);
const LOG_BYTES: u64 = 256 << 10;

/// A segment as reads see it, and the part of it that a power cut certainly leaves.
#[derive(Clone, Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    durable: usize,
}

#[derive(Debug)]
struct LogDisk {
    segments: BTreeMap<u64, Segment>,
    active: u64,
    power: SimPower,
    rng: SmallRng,
    /// The power is cut during the append or creation of this number.
    cut_at: Option<u64>,
    writes: u64,
    failures: u64,
}

/// The log's disk: unsynced bytes may be lost, or reach it in part.
#[derive(Clone, Debug)]
pub(crate) struct SimLog(Arc<Mutex<LogDisk>>, u64);

impl SimLog {
    fn new(segments: BTreeMap<u64, Segment>, seed: u64, power: &SimPower) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        let power = power.clone();
        let disk = LogDisk { segments, active: 0, power, rng, cut_at: None, writes: 0, failures: 0 };
        Self(Arc::new(Mutex::new(disk)), 7)
    }

    /// The same disk under another identity.
    pub(crate) fn with_id(&self, id: u64) -> Self {
        Self(Arc::clone(&self.0), id)
    }

    /// Cuts the power during the `n`-th write from now on.
    pub(crate) fn cut_at(&self, n: u64) {
        let mut disk = self.0.lock();
        disk.cut_at = Some(disk.writes + n);
    }

    /// Lets the next `n` writes fail for lack of room.
    pub(crate) fn fail(&self, n: u64) {
        self.0.lock().failures = n;
    }

    fn after_power_cut(&self, seed: u64, power: &SimPower) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut segments = self.0.lock().segments.clone();
        for segment in segments.values_mut() {
            let end = rng.random_range(segment.durable..=segment.bytes.len());
            segment.bytes.truncate(end);
            if end > segment.durable && rng.random_bool(0.3) {
                let at = rng.random_range(segment.durable..end);
                segment.bytes[at] ^= 1 << rng.random_range(0..8);
            }
            segment.durable = end;
        }
        Self::new(segments, seed, power)
    }

    /// The disk after the process was killed: readable bytes stay readable, and as volatile as before.
    fn after_kill(&self, seed: u64, power: &SimPower) -> Self {
        Self::new(self.0.lock().segments.clone(), seed, power)
    }
}

impl LogDisk {
    /// Counts a write; returns an error if it is to fail.
    fn write(&mut self) -> Result<()> {
        if self.power.is_cut() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.writes += 1;
        if self.cut_at.is_some_and(|n| self.writes >= n) {
            self.power.cut_now();
            return Err(ErrorKind::NotConnected.into());
        }
        if self.failures > 0 {
            self.failures -= 1;
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Media for SimLog {
    fn id(&self) -> u64 {
        self.1
    }

    fn list(&mut self) -> Result<Vec<u64>> {
        Ok(self.0.lock().segments.keys().copied().collect())
    }

    fn read(&mut self, start: u64) -> Result<Vec<u8>> {
        let disk = self.0.lock();
        disk.segments.get(&start).map(|s| s.bytes.clone()).ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let mut disk = self.0.lock();
        let written = disk.write();
        // A failed creation may have taken effect.
        if written.is_ok() || disk.rng.random_bool(0.5) {
            let segment = Segment { bytes: bytes.to_vec(), durable: bytes.len() };
            disk.segments.insert(start, segment);
        }
        disk.active = start;
        written
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let mut disk = self.0.lock();
        let written = disk.write();
        // A failed rewriting leaves the sound bytes as they were, and may have cut off what follows them.
        let cut = written.is_ok() || disk.rng.random_bool(0.5);
        disk.active = start;
        let segment = disk.segments.entry(start).or_default();
        if cut {
            segment.bytes.truncate(bytes.len());
            segment.durable = segment.durable.min(bytes.len());
        }
        if written.is_ok() {
            segment.durable = bytes.len();
        }
        written
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut disk = self.0.lock();
        let written = disk.write();
        let landed = if written.is_ok() { bytes.len() } else { disk.rng.random_range(0..=bytes.len()) };
        let active = disk.active;
        let segment = disk.segments.entry(active).or_default();
        segment.bytes.extend_from_slice(&bytes[..landed]);
        if written.is_ok() {
            segment.durable = segment.bytes.len();
        }
        written
    }

    fn remove(&mut self, start: u64) -> Result<()> {
        let mut disk = self.0.lock();
        disk.write()?;
        disk.segments.remove(&start);
        Ok(())
    }

    fn path(&self, start: u64) -> PathBuf {
        format!("sim/{start:016x}").into()
    }

    fn blocks(&self) -> bool {
        false
    }
}

pub(crate) struct World {
    pub(crate) hdd: Arc<SimDevice>,
    pub(crate) ssd: Arc<SimDevice>,
    pub(crate) ring: Arc<SimDevice>,
    pub(crate) manifest: Arc<MemoryManifest>,
    pub(crate) log: SimLog,
    pub(crate) power: SimPower,
    pub(crate) keep: Keep,
    pub(crate) pool_pages: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let power = SimPower::new();
        let device = |name, seed, ms| {
            Arc::new(SimDevice::new(name, 0, seed, &power).with_latency(Duration::from_millis(ms)))
        };
        Self {
            hdd: device("hdd", seed, 6),
            ssd: device("ssd", seed + 1, 1),
            ring: device("ring", seed + 2, 3),
            manifest: Arc::default(),
            log: SimLog::new(BTreeMap::new(), seed, &power),
            power,
            keep: Keep::ForCrash,
            pool_pages: 110,
        }
    }

    /// Replaces the devices by their states after a crash at this moment; with `kill` the power stays on.
    pub(crate) fn restart(&mut self, kill: bool, rng: &mut SmallRng) {
        let power = SimPower::new();
        let mut device = |device: &mut Arc<SimDevice>, ms| {
            let seed = rng.random();
            let back =
                if kill { device.after_kill(seed, &power) } else { device.after_power_cut(seed, &power) };
            *device = Arc::new(back.with_latency(Duration::from_millis(ms)));
        };
        device(&mut self.hdd, 6);
        device(&mut self.ssd, 1);
        device(&mut self.ring, 3);
        let seed = rng.random();
        self.log =
            if kill { self.log.after_kill(seed, &power) } else { self.log.after_power_cut(seed, &power) };
        self.power = power;
    }

    pub(crate) fn builder(&self) -> Builder {
        let [hdd, ssd, ring] = [&self.hdd, &self.ssd, &self.ring].map(|d| Arc::clone(d) as SharedDevice);
        PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd(hdd)
            .ssd(ssd)
            .ring_device(ring)
            .page_size(PageSize::MIN)
            .ssd_bytes(160 * PAGE)
            .ring_pages(8)
            .ssd_policy("auto:zone=30")
            .exhausted_after(Duration::from_secs(5))
            .pool_bytes(self.pool_pages * PAGE)
    }

    pub(crate) async fn open(&self) -> std::result::Result<Kv, KvError> {
        self.open_with(self.builder()).await
    }

    pub(crate) async fn open_with(&self, builder: Builder) -> std::result::Result<Kv, KvError> {
        let options = WalOptions::new().capacity_bytes(LOG_BYTES).keep(self.keep);
        Kv::open_on(builder, Wal::on(Box::new(self.log.clone()), options)?, STALL_MAX).await
    }
}

/// Returns the problems of the store as an error.
pub(crate) async fn soundness(kv: &Kv) -> std::result::Result<(), String> {
    let report = kv.check(|_, _| ()).await.map_err(|error| error.to_string())?;
    if report.is_sound() { Ok(()) } else { Err(format!("{:#?}", report.listed)) }
}

/// Panics unless the store is sound.
pub(crate) async fn expect_sound(kv: &Kv) {
    soundness(kv).await.unwrap();
}

/// Returns all entries, by a forward and a backward scan that must agree.
pub(crate) async fn contents(kv: &Kv) -> std::result::Result<BTreeMap<Vec<u8>, Vec<u8>>, KvError> {
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let mut scan = kv.scan(..);
    while let Some(entry) = scan.next().await? {
        forward.push(entry);
    }
    let mut scan = kv.scan(..).backward();
    while let Some(entry) = scan.next().await? {
        backward.push(entry);
    }
    backward.reverse();
    assert!(forward == backward, "the scans differ: {} and {} entries", forward.len(), backward.len());
    assert!(forward.is_sorted_by(|a, b| a.0 < b.0), "the scan is out of order");
    Ok(forward.into_iter().collect())
}
