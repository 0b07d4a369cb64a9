//! Opens that rewrite what a failed flush left unverified, with a second failure: the open is dropped,
//! killed or loses power at any await; another flush, a write or a save of the manifest fails; the disk is
//! full.

use crate::fixture::{self, Fixture, polled, read, write};
use pagetier::{DrainOptions, PageStore, SpaceId, SsdMode};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

/// The number of pages: few enough for many opens, and more than the ring holds.
const COUNT: u32 = 40;
const LATENCY: Duration = Duration::from_micros(300);

/// The device whose flush fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Hdd,
    Ssd,
}

/// How a run of the store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The future or the store is dropped, and the same devices are opened again at once.
    Dropped,
    Killed,
    PowerCut,
}

const ENDS: [End; 3] = [End::Dropped, End::Killed, End::PowerCut];

struct World {
    fixture: Fixture,
    space: SpaceId,
    /// The oldest version that a later read may return, by page.
    floor: Vec<u32>,
    seed: u64,
}

impl World {
    /// Version 1 is synced, then version 2, but the flush of `failing` that makes version 2 durable in the
    /// slots, or at home, failed.
    async fn failed(failing: Failing, model: FlushFailure, seed: u64) -> Self {
        let (mut fixture, power) = (Fixture::new(), SimPower::new());
        let device = |name, nth| {
            let device = SimDevice::new(name, 0, seed * 3 + nth, &power).with_latency(LATENCY);
            Arc::new(device.with_flush_failure(model))
        };
        (fixture.hdd, fixture.ssd) = (device("hdd", 0), device("ssd", 1));
        let store = fixture.open().await;
        let space = store.spaces().create("t").await.unwrap();
        for no in 0..COUNT {
            fixture::fill(&mut store.allocate(space).await.unwrap(), no, 1);
        }
        store.sync().await.unwrap();
        for no in 0..COUNT {
            write(&store, space, no, 2).await.unwrap();
        }
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1);
        let floor = match failing {
            Failing::Ssd => {
                fixture.ssd.inject(fault);
                assert!(store.sync().await.is_err());
                1
            }
            Failing::Hdd => {
                store.sync().await.unwrap();
                fixture.hdd.inject(fault);
                let drained = store.ssd().drain(DrainOptions::new()).await;
                assert!(drained.stopped_by.is_some() || drained.left > 0, "{drained:?}");
                2
            }
        };
        drop(store);
        fixture.hdd.clear_faults();
        fixture.ssd.clear_faults();
        Self { fixture, space, floor: vec![floor; COUNT as usize], seed }
    }

    fn end(&mut self, end: End) {
        if end == End::Dropped {
            return;
        }
        self.seed += 10;
        let power = SimPower::new();
        let back = |device: &SimDevice, nth| {
            let seed = self.seed + nth;
            let device = if end == End::Killed {
                device.after_kill(seed, &power)
            } else {
                device.after_power_cut(seed, &power)
            };
            Arc::new(device.with_latency(LATENCY))
        };
        self.fixture = Fixture {
            hdd: back(&self.fixture.hdd, 0),
            ssd: back(&self.fixture.ssd, 1),
            ring: back(&self.fixture.ring, 2),
            manifest: Arc::new(self.fixture.manifest.fork()),
            on_hdd: self.fixture.on_hdd,
        };
    }

    /// Checks that every page is at least at its floor; the next sync raises the floors.
    async fn check(&mut self, store: &PageStore, when: &str) {
        let mut found = Vec::new();
        for no in 0..COUNT {
            let version =
                read(store, self.space, no).await.unwrap_or_else(|e| panic!("{when}: page {no}: {e}"));
            let floor = self.floor[no as usize];
            assert!(version >= floor, "{when}: page {no} reads as {version}, version {floor} was durable");
            found.push(version);
        }
        store.validate().unwrap();
        if store.sync().await.is_ok() {
            self.floor = found;
        }
    }

    /// The store opens, and reads the same after a power cut, with the SSD and from the HDD alone.
    async fn is_sound(&mut self, when: &str) {
        let store = self.fixture.try_open().await.unwrap_or_else(|e| panic!("{when}: {e}"));
        self.check(&store, when).await;
        drop(store);
        self.end(End::PowerCut);
        let when = format!("{when}, then a power cut");
        let store = self.fixture.open().await;
        self.check(&store, &when).await;
        let drained = store.ssd().drain(DrainOptions::new()).await;
        assert!(drained.left == 0 && drained.stopped_by.is_none(), "{when}: {drained:?}");
        store.ssd().set_mode(SsdMode::Off).await.unwrap_or_else(|e| panic!("{when}: {e}"));
        drop(store);
        self.end(End::PowerCut);
        let store = self.fixture.open().await;
        self.check(&store, &format!("{when}, then the SSD is off, then another")).await;
    }

    fn device(&self, failing: Failing) -> &SimDevice {
        if failing == Failing::Hdd { &self.fixture.hdd } else { &self.fixture.ssd }
    }
}

fn cases() -> impl Iterator<Item = (Failing, FlushFailure, End)> {
    let devices = [Failing::Hdd, Failing::Ssd].into_iter();
    let models = devices.flat_map(|failing| FlushFailure::ALL.map(|model| (failing, model)));
    models.flat_map(|(failing, model)| ENDS.map(|end| (failing, model, end)))
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_rewrites_may_end_at_any_await_in_any_way() {
    let mut awaits = 0;
    for (failing, model, end) in cases() {
        for ends in ENDS {
            let mut polls = 1;
            loop {
                let mut world = World::failed(failing, model, polls).await;
                world.end(end);
                let over = polled(polls, world.fixture.builder().open()).await.is_some();
                awaits += u32::from(!over);
                world.end(ends);
                world.is_sound(&format!("{failing:?} {model:?} {end:?}, {ends:?} after {polls} polls")).await;
                if over {
                    break;
                }
                polls += 1 + polls / 2;
            }
        }
    }
    assert!(awaits > 200, "{awaits}");
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_rewrites_survives_a_further_failure_of_either_device() {
    let mut failures = 0;
    for (failing, model, end) in cases() {
        for (again, op) in [
            (Failing::Hdd, IoOp::Flush),
            (Failing::Ssd, IoOp::Flush),
            (Failing::Hdd, IoOp::Write),
            (Failing::Ssd, IoOp::Write),
        ] {
            for nth in 0..6 {
                let mut world = World::failed(failing, model, nth).await;
                world.end(end);
                let when = format!("{failing:?} {model:?} {end:?}, {op:?} {nth} of the {again:?} fails");
                // Twice in a row.
                for round in 0..2 {
                    let device = world.device(again);
                    let from = device.ops() + nth * 7;
                    device.inject(Fault::new(FaultEffect::Eio).on(op).from_op(from).times(1));
                    match world.fixture.try_open().await {
                        Ok(store) => {
                            world.check(&store, &when).await;
                            drop(store);
                        }
                        Err(error) => {
                            failures += 1;
                            assert!(!error.to_string().contains("corrupt"), "{when}: {error}");
                        }
                    }
                    world.fixture.hdd.clear_faults();
                    world.fixture.ssd.clear_faults();
                    world.end(ENDS[(nth as usize + round) % 3]);
                }
                world.is_sound(&when).await;
            }
        }
    }
    assert!(failures > 50, "{failures}");
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_rewrites_on_a_full_disk_loses_nothing() {
    for (failing, model, end) in cases() {
        for skip in 0..4 {
            for (count, replaced) in [(1, false), (1, true), (u64::MAX, false)] {
                let mut world = World::failed(failing, model, skip).await;
                world.end(end);
                let full = Fault::new(FaultEffect::NoSpace).on(IoOp::Grow);
                world.fixture.hdd.inject(full);
                world.fixture.manifest.fail_saves(skip, count, replaced);
                let when =
                    format!("{failing:?} {model:?} {end:?}, {count} saves after {skip} fail ({replaced})");
                if let Ok(store) = world.fixture.try_open().await {
                    world.check(&store, &when).await;
                }
                world.end(ENDS[skip as usize % 3]);
                world.fixture.hdd.clear_faults();
                world.fixture.manifest.fail_saves(0, 0, false);
                world.is_sound(&when).await;
            }
        }
    }
}
