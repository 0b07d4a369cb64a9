//! Devices with a past: older copies of the store's own, or truncated, blank, random, or another program's.
//! The store must refuse them, and a new store must not overwrite foreign data.

use super::rot::refusal;
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::{Moment, bounded_power};
use crate::campaign::world::disks::{Disks, SharedDisks};
use crate::campaign::world::examine::{Lenient, check, in_virtual_time};
use clap::ValueEnum;
use pagetier::MemoryManifest;
use pagetier_devio::Device;
use pagetier_testing::SimDevice;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

/// The replacement of a device or of the manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Past {
    OlderHdd,
    OlderSsd,
    OlderManifest,
    ShortHdd,
    ShortSsd,
    BlankHdd,
    BlankSsd,
    RandomHdd,
    RandomSsd,
    /// A new store is created on devices with a file system, without force.
    FileSystem,
    /// A new store is created on this store's devices, without force.
    OtherStore,
}

/// Signatures of file systems and the like: offsets and bytes.
const SIGNATURES: [(u64, &[u8]); 7] = [
    (1080, &[0x53, 0xEF]),
    (0, b"XFSB"),
    (65_600, b"_BHRfS_M"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9]),
    (512, b"LABELONE"),
    (510, &[0x55, 0xAA]),
    (262_144 + 32, b"UBERBLOCK"),
];

/// Replaces a device of the store that was closed at `newer`; `older` is a moment of an earlier open in
/// its past.
pub(crate) fn examine(
    plan: &Plan,
    (older, newer): (&Moment, &Moment),
    rng: &mut SmallRng,
    totals: &mut Totals,
) -> Result<(), String> {
    let all = Past::value_variants();
    let past = all[rng.random_range(0..all.len())];
    let ended = match past {
        Past::FileSystem | Past::OtherStore => untouched(plan, newer, past, rng),
        _ => replaced(plan, (older, newer), past, rng),
    };
    let ended = ended.map_err(|wrong| format!("{past:?}: {wrong}"))?;
    totals.tamper(&format!("{past:?}"), ended);
    Ok(())
}

fn replaced(
    plan: &Plan,
    (older, newer): (&Moment, &Moment),
    past: Past,
    rng: &mut SmallRng,
) -> Result<&'static str, String> {
    let power = bounded_power();
    let mut hdd = newer.hdd.fork(1, &power);
    let mut ssd = newer.ssd.fork(2, &power);
    let mut manifest = newer.manifest.fork();
    let cut = |size: u64, rng: &mut SmallRng| rng.random_range(0..size / 4096) * 4096;
    let random = |name: &str, size: u64, rng: &mut SmallRng| {
        let device = SimDevice::new(name, size, 3, &power);
        device.rot(0..size, rng.random());
        device
    };
    let mut place = "ssd";
    match past {
        // The marks of an older device contradict the manifest (I20), however sound its contents are.
        Past::OlderHdd => (hdd, place) = (older.hdd.fork(1, &power), "hdd"),
        Past::OlderSsd => ssd = older.ssd.fork(2, &power),
        // The error may name any part: an old manifest contradicts each device.
        Past::OlderManifest => (manifest, place) = (older.manifest.fork(), ""),
        Past::ShortHdd => (hdd, place) = (newer.hdd.truncated(cut(hdd.size(), rng), 1, &power), "hdd"),
        Past::ShortSsd => ssd = newer.ssd.truncated(cut(ssd.size(), rng), 2, &power),
        Past::BlankHdd => (hdd, place) = (SimDevice::new("hdd", hdd.size(), 1, &power), "hdd"),
        Past::BlankSsd => ssd = SimDevice::new("ssd", ssd.size(), 2, &power),
        Past::RandomHdd => (hdd, place) = (random("hdd", hdd.size(), rng), "hdd"),
        _ => ssd = random("ssd", ssd.size(), rng),
    }
    let cut_short = matches!(past, Past::ShortHdd | Past::ShortSsd);
    in_virtual_time(async {
        let ring = newer.ring.fork(3, &power);
        let disks = Disks { hdd, ssd, ring, power: power.clone() };
        match plan.builder_on(disks.shared(), &Arc::new(manifest)).open().await {
            Err(error) => refusal(&error, place).map(|()| "refused"),
            // A truncation may affect only space reserved by growth.
            Ok(store) if cut_short => {
                let _ = check(&store, &Mutex::new(newer.model.clone()), Lenient::default()).await?;
                Ok("nothing missing")
            }
            Ok(_) => Err("the store opens without an error".to_owned()),
        }
    })
}

fn untouched(plan: &Plan, newer: &Moment, past: Past, rng: &mut SmallRng) -> Result<&'static str, String> {
    let power = bounded_power();
    let (mut hdd, mut ssd) = (newer.hdd.fork(1, &power), newer.ssd.fork(2, &power));
    if past == Past::FileSystem {
        let on_hdd = rng.random_bool(0.5);
        let (name, other) = if on_hdd { ("hdd", "ssd") } else { ("ssd", "hdd") };
        let (taken, blank) = (SimDevice::new(name, 4 << 20, 3, &power), SimDevice::new(other, 0, 4, &power));
        let (at, bytes) = SIGNATURES[rng.random_range(0..SIGNATURES.len())];
        taken.implant(at, bytes);
        (hdd, ssd) = if on_hdd { (taken, blank) } else { (blank, taken) };
    }
    // A refusal is worth nothing if the open has already written.
    let before = [hdd.snapshot(), ssd.snapshot()];
    let (hdd, ssd, ring) = (Arc::new(hdd), Arc::new(ssd), Arc::new(newer.ring.fork(3, &power)));
    in_virtual_time(async {
        let disks = SharedDisks { hdd: hdd.clone(), ssd: ssd.clone(), ring };
        match plan.builder_on(disks, &Arc::<MemoryManifest>::default()).open().await {
            Ok(_) => Err("a new store overwrites foreign data without force".to_owned()),
            Err(error) if [hdd.snapshot(), ssd.snapshot()] != before => {
                Err(format!("the open was refused, but changed a device: {error}"))
            }
            Err(_) => Ok("refused, unchanged"),
        }
    })
}
