//! A store on simulated devices with a simulated log, which lose power together.

#![allow(dead_code, reason = "each test file uses a part")]

use pagetier::{
    Builder, MemoryManifest, PageSize, PageStore,
    device::{IoOp, SharedDevice},
};
use pagetier_kv::{Kv, KvError};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use pagetier_wal::{Keep, Wal, WalOptions};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PAGE: u64 = 4096;
const STALL_MAX: Duration = Duration::from_secs(20);
const LOG_BYTES: u64 = 256 << 10;

/// The size of the log's device: what it keeps comes nowhere near.
const LOG_DEVICE_BYTES: u64 = 16 << 20;

pub(crate) struct World {
    pub(crate) hdd: Arc<SimDevice>,
    pub(crate) ssd: Arc<SimDevice>,
    pub(crate) ring: Arc<SimDevice>,
    pub(crate) manifest: Arc<MemoryManifest>,
    pub(crate) log: Arc<SimDevice>,
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
            // Without latency: a log waits for its device on a thread of its own.
            log: Arc::new(SimDevice::new("log", LOG_DEVICE_BYTES, seed + 3, &power)),
            power,
            keep: Keep::ForCrash,
            pool_pages: 110,
        }
    }

    /// Replaces the devices by their states after a crash at this moment; with `kill` the power stays on.
    pub(crate) fn restart(&mut self, kill: bool, rng: &mut SmallRng) {
        let power = SimPower::new();
        let mut device = |device: &mut Arc<SimDevice>, latency| {
            let seed = rng.random();
            let back =
                if kill { device.after_kill(seed, &power) } else { device.after_power_cut(seed, &power) };
            *device = Arc::new(back.with_latency(Duration::from_millis(latency)));
        };
        device(&mut self.hdd, 6);
        device(&mut self.ssd, 1);
        device(&mut self.ring, 3);
        device(&mut self.log, 0);
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
        let log = Wal::on_device(Arc::clone(&self.log) as SharedDevice, options).await?;
        Kv::open_on(builder, log, STALL_MAX).await
    }

    /// Lets the next `n` writes to the log fail for lack of space.
    pub(crate) fn fail_log(&self, n: u64) {
        self.log.clear_faults();
        self.log.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write).times(n));
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
