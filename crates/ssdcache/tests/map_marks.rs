//! The mark that a checkpoint is in force never exists without a header, even if its write was reported as
//! failed but landed.
//!
//! The schedule: the write of a mark fails with EIO, but its sectors land. To the store the checkpoint has
//! failed. The next one goes to the same area and wipes the headers there first. A power cut right then
//! leaves a mark without headers, which looks like damage.

use crate::common::{formatted, layout, params, read, seed, write};
use pagetier_bufpool::Tier;
use pagetier_devio::IoOp;
use pagetier_policy::Location;
use pagetier_ssdcache::{BLOCK_BYTES, OpenError, OpenParams, SsdTier, decode_mark};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;

/// Pages on the SSD, synced.
const PAGES: u32 = 24;

struct World {
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
}

impl World {
    async fn new(seed: u64, power: &SimPower) -> Self {
        let device = |name, nth| Arc::new(SimDevice::new(name, 1 << 20, seed * 2 + nth, power));
        let (hdd, ssd) = (device("hdd", 0), device("ssd", 1));
        formatted(&ssd, layout(8)).await;
        Self { hdd, ssd }
    }

    fn after_power_cut(&self, seed: u64) -> Self {
        let power = SimPower::new();
        let cut = |device: &SimDevice, nth| Arc::new(device.after_power_cut(seed * 2 + nth, &power));
        Self { hdd: cut(&self.hdd, 0), ssd: cut(&self.ssd, 1) }
    }

    async fn open(&self, epoch: u32) -> Result<SsdTier, OpenError> {
        let params = OpenParams { epoch, ..params(&self.hdd, &self.ssd, layout(8), "lru2") };
        SsdTier::open(params).await
    }

    /// The checkpoint that the mark in `area` says is in force, if there is one.
    fn mark_in(&self, area: u8) -> Option<u64> {
        let at = layout(8).map_mark_at(area) as usize;
        decode_mark(seed(), &self.ssd.snapshot()[at..at + BLOCK_BYTES as usize])
    }
}

/// Cuts the power at operation `op` of the checkpoint that follows one whose mark failed. Returns false if
/// that checkpoint has fewer operations, or the mark did not land.
async fn cut_at(op: u64, seed: u64, cuts: &mut u32) -> bool {
    let power = SimPower::new();
    let world = World::new(seed, &power).await;
    let tier = world.open(1).await.expect("it opens");
    for no in 0..PAGES {
        assert_eq!(write(&tier, no, no as u8 + 1).await.expect("written"), Location::Ssd);
    }
    tier.flush().await.expect("synced");
    let [before, mark] = [0, 1].map(|area| world.mark_in(area));
    assert_eq!((before, mark), (Some(1), None), "the first checkpoint is in force");
    let at = layout(8).map_mark_at(1);
    world.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(at..at + BLOCK_BYTES).times(1));
    tier.shutdown().await.expect_err("the mark fails");
    if world.mark_in(1) != Some(2) {
        return false;
    }
    power.cut_at(power.ops() + op);
    let closed = tier.shutdown().await;
    drop(tier);
    for seed in 0..8 {
        let cut = world.after_power_cut(seed);
        *cuts += 1;
        let tier = cut.open(2).await.unwrap_or_else(|error| panic!("cut at {op}, seed {seed}: {error}"));
        for no in 0..PAGES {
            let read = read(&tier, no).await;
            assert!(matches!(read, Ok(version) if version == no as u8 + 1), "page {no}: {read:?}");
        }
    }
    closed.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_mark_whose_write_failed_and_landed_does_not_outlive_its_headers() {
    let mut cuts = 0;
    for seed in 0..8 {
        let mut op = 1;
        while cut_at(op, seed, &mut cuts).await {
            op += 1;
        }
    }
    assert!(cuts > 100, "the marks do not land: {cuts} cuts");
}

/// The next checkpoint goes to the other area. Until it is in force, one more bad block would make the SSD
/// unusable.
#[tokio::test]
async fn of_a_header_with_one_sound_copy_the_opening_writes_both() {
    let world = World::new(1, &SimPower::new()).await;
    let tier = world.open(1).await.expect("it opens");
    for no in 0..PAGES {
        assert_eq!(write(&tier, no, 1).await.expect("written"), Location::Ssd);
    }
    tier.flush().await.expect("synced");
    drop(tier);
    let world = world.after_power_cut(1);
    assert_eq!(world.mark_in(0), Some(1), "the first checkpoint, which is in area 1, is in force");
    let header = |copy| {
        let at = layout(8).map_header_at(1, copy) as usize;
        world.ssd.snapshot()[at..at + BLOCK_BYTES as usize].to_vec()
    };
    let sound = header(0);
    assert!(header(1) == sound && sound.iter().any(|byte| *byte != 0));
    let second = layout(8).map_header_at(1, 1);
    world.ssd.rot(second..second + BLOCK_BYTES, 3);
    let next_body = layout(8).map_header_at(0, 0) + BLOCK_BYTES..layout(8).map_header_at(0, 1);
    world.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(next_body));
    assert!(world.open(2).await.is_err(), "the next checkpoint fails");
    assert!(header(0) == sound, "copy 0");
    assert!(header(1) == sound, "copy 1");
}
