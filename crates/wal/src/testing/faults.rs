//! Every operation of the medium fails in every way, or is the last one before a power cut: the log keeps
//! what it reported durable, and nothing that was not appended appears.

use super::sim::{SimMedia, WAYS, Way};
use super::{LIMITS, SMALL, append_and_flush, bodies, in_use};
use crate::log::segments::{FIRST_LSN, Segments};
use crate::recovery::redo::redo;
use crate::{DeviceMedia, Keep, Media, Wal, WalError, WalOptions};
use pagetier::device::SharedDevice;
use pagetier::{Lsn, PageStore};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;

const RECORDS: u32 = 30;

/// What was appended to a log, and what of it has to be there.
#[derive(Default)]
struct Model {
    /// The LSN and the body of each record.
    appended: Vec<(u64, Vec<u8>)>,
    /// The log was reported durable up to here.
    durable: u64,
    /// Truncation may have removed what ends before here.
    kept_from: u64,
}

fn body(n: u32) -> Vec<u8> {
    let mut body = vec![n as u8; 2_000 + n as usize * 331 % 9_000];
    body[..4].copy_from_slice(&n.to_le_bytes());
    body
}

impl Model {
    /// Appends, flushes and truncates until the end, or until the power is off. A failed operation is
    /// repeated once, as an engine would.
    async fn run(&mut self, wal: &Wal, is_off: impl Fn() -> bool) {
        self.run_to(RECORDS, wal, is_off).await;
    }

    /// As [`Self::run`], until that many records were appended.
    async fn run_to(&mut self, records: u32, wal: &Wal, is_off: impl Fn() -> bool) {
        for n in self.appended.len() as u32..records {
            let body = body(n);
            let lsn = wal.append_commit(&body).unwrap();
            wal.append_applied(lsn);
            self.appended.push((lsn.0, body));
            if n % 3 == 0 {
                continue;
            }
            for _ in 0..2 {
                let flushed = wal.flush(wal.end()).await;
                if flushed.is_ok() {
                    self.durable = wal.end().0;
                    break;
                }
            }
            if n % 8 == 7 {
                let keep = self.appended[n as usize - 4].0;
                self.kept_from = keep;
                let _ = wal.truncate(Lsn(keep), Lsn(keep)).await;
            }
            if is_off() {
                return;
            }
        }
    }

    /// Checks an opened log, and forgets what it has lost.
    fn check(&mut self, wal: &Wal, case: &str) {
        let end = wal.end().0;
        assert!(end >= self.durable, "{case}: {end} of {}", self.durable);
        assert!(wal.oldest().0 <= self.kept_from.max(64), "{case}: begins at {:?}", wal.oldest());
        // The records of commits; the others mark them as applied.
        let found: Vec<_> = bodies(wal).into_iter().filter(|(_, body)| body.len() > 8).collect();
        let kept = self.appended.iter().filter(|(lsn, _)| *lsn > wal.oldest().0 && *lsn <= end);
        assert!(found.iter().eq(kept), "{case}: other records");
        self.appended.retain(|(lsn, _)| *lsn <= end);
        self.durable = end;
    }
}

#[tokio::test]
async fn an_operation_that_fails_in_any_way_loses_nothing_durable() {
    let mut cases = 0;
    for (way, kill) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        for n in 0.. {
            let media = SimMedia::new(n);
            media.fail(n, way);
            let mut model = Model::default();
            // The first operation is the open's.
            let wal = match in_use(Box::new(media.clone()), SMALL) {
                Err(_) if !media.is_off() => in_use(Box::new(media.clone()), SMALL).map(Some),
                opened => Ok(opened.ok()),
            };
            if let Some(wal) = wal.unwrap() {
                model.run(&wal, || media.is_off()).await;
            }
            let happened = media.failed();
            let case = format!("{way:?} at {n}, kill: {kill}");
            // A kill leaves unsynced bytes readable; a later power cut must not take them back any more once
            // they were found.
            let media = if kill { media.after_kill(n) } else { media.after_power_cut(n) };
            let wal =
                in_use(Box::new(media.clone()), SMALL).unwrap_or_else(|error| panic!("{case}: {error}"));
            model.check(&wal, &case);
            drop(wal);
            let media = media.after_power_cut(n + 1);
            let wal =
                in_use(Box::new(media.clone()), SMALL).unwrap_or_else(|error| panic!("{case}: {error}"));
            model.check(&wal, &format!("{case}, then a power cut"));
            model.run(&wal, || media.is_off()).await;
            model.check(&wal, &format!("{case}, continued"));
            if !happened {
                break;
            }
            cases += 1;
        }
    }
    assert!(cases > 150, "{cases} cases");
}

#[tokio::test]
async fn an_opening_that_is_interrupted_anywhere_is_repeated_without_loss() {
    for (seed, way) in (0..24).flat_map(|seed| WAYS.map(|way| (seed, way))) {
        let media = SimMedia::new(seed);
        media.fail(10 + seed, Way::PowerCut);
        let mut model = Model::default();
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        model.run(&wal, || media.is_off()).await;
        // An open writes once.
        let media = media.after_power_cut(seed);
        media.fail(0, way);
        assert!(in_use(Box::new(media.clone()), SMALL).is_err());
        let media = media.after_power_cut(seed + 1);
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        model.check(&wal, &format!("{way:?} during the open, {seed}"));
    }
}

#[tokio::test]
async fn a_recovery_needs_no_free_space() {
    for seed in 0..16 {
        let media = SimMedia::new(seed);
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        let mut model = Model::default();
        media.fail(12 + seed, Way::Torn);
        model.run(&wal, || media.is_off()).await;
        media.fail(0, Way::Torn);
        let torn = wal.append_commit(&body(RECORDS)).unwrap();
        assert!(wal.flush(torn).await.is_err());
        let media = media.after_kill(seed);
        media.set_full(true);
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        model.check(&wal, "on a full disk");
        let dir = pagetier_testing::scratch();
        let builder = PageStore::builder().directory(dir.path()).ssd_bytes(0).pool_bytes(4 << 20);
        redo(&builder.open().await.unwrap(), &wal).await.unwrap();
        // No record can be written, and none is lost.
        let waiting = wal.append_commit(&body(RECORDS)).unwrap();
        assert!(matches!(wal.flush(waiting).await, Err(WalError::Io { .. })));
        model.appended.push((waiting.0, body(RECORDS)));
        media.set_full(false);
        wal.flush(waiting).await.unwrap();
        model.durable = waiting.0;
        model.check(&in_use(Box::new(media.after_power_cut(seed)), LIMITS).unwrap(), "with room again");
    }
}

/// A log on a simulated device, which completes its operations at once.
fn on_device(device: &Arc<SimDevice>) -> Result<Wal, WalError> {
    let media = DeviceMedia::open(Arc::clone(device) as SharedDevice, SMALL.segment_bytes());
    let path = "device".into();
    let media = media.map_err(|error| WalError::Io { path, source: Arc::new(error) })?;
    in_use(Box::new(media), SMALL)
}

const DEVICE_BYTES: u64 = (64 << 10) + 12 * (256 << 10);

/// A power cut after any operation, also of the recovery.
#[tokio::test]
async fn a_power_cut_at_any_operation_of_a_device_loses_nothing_durable() {
    let mut cases = 0;
    for n in 1.. {
        let power = SimPower::new();
        power.cut_at(n);
        let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, n, &power));
        let mut model = Model::default();
        if let Ok(wal) = on_device(&device) {
            model.run(&wal, || power.is_cut()).await;
        }
        if !power.is_cut() {
            break;
        }
        cases += 1;
        let power = SimPower::new();
        power.cut_at(1 + n % 60);
        let again = Arc::new(device.after_power_cut(n, &power));
        // It ends in the middle of an open, or soon after it.
        drop(on_device(&again));
        let last = Arc::new(again.after_power_cut(n + 1, &SimPower::new()));
        let wal = on_device(&last).unwrap_or_else(|error| panic!("cut at {n}: {error}"));
        model.check(&wal, &format!("cut at {n}"));
        model.run(&wal, || false).await;
        model.check(&wal, &format!("cut at {n}, continued"));
    }
    assert!(cases > 60, "{cases} cases");
}

/// Each write and each flush fails once, whatever a failed flush leaves; then the power fails, or a kill
/// comes first.
#[tokio::test]
async fn a_device_whose_operation_fails_loses_nothing_durable() {
    let mut cases = 0;
    for (op, model_of_flush) in [
        (IoOp::Write, FlushFailure::Cached),
        (IoOp::Flush, FlushFailure::Cached),
        (IoOp::Flush, FlushFailure::NeverDurable),
        (IoOp::Flush, FlushFailure::Reverted),
    ] {
        for n in (1..75).step_by(2) {
            let power = SimPower::new();
            let device = SimDevice::new("log", DEVICE_BYTES, n, &power).with_flush_failure(model_of_flush);
            let device = Arc::new(device);
            device.inject(Fault::new(FaultEffect::Eio).on(op).from_op(n).times(1));
            let mut model = Model::default();
            // The first operations are the open's.
            let wal = on_device(&device).or_else(|_| on_device(&device)).unwrap();
            // It ends soon after the fault, so that what it left is not put right by itself.
            let is_past = || device.ops() > n && n % 4 == 1;
            model.run_to(RECORDS * 2 / 3, &wal, is_past).await;
            drop(wal);
            let case = format!("{op:?} from {n}, {model_of_flush:?}");
            let killed = Arc::new(device.after_kill(n, &SimPower::new()));
            let wal = on_device(&killed).unwrap_or_else(|error| panic!("{case}: {error}"));
            model.check(&wal, &case);
            model.run(&wal, || false).await;
            drop(wal);
            let cut = Arc::new(killed.after_power_cut(n, &SimPower::new()));
            let wal = on_device(&cut).unwrap_or_else(|error| panic!("{case}, then a cut: {error}"));
            model.check(&wal, &format!("{case}, then a power cut"));
            cases += 1;
        }
    }
    assert!(cases > 125, "{cases} cases");
}

#[test]
fn other_data_and_small_devices_are_refused_unchanged() {
    let power = SimPower::new();
    let foreign = SimDevice::new("log", DEVICE_BYTES, 1, &power);
    foreign.implant(1080, &[0x53, 0xef]);
    let before = foreign.snapshot();
    let foreign = Arc::new(foreign);
    let error = on_device(&foreign).unwrap_err();
    assert!(
        matches!(&error, WalError::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidData)
    );
    assert!(before == foreign.snapshot());
    let small = Arc::new(SimDevice::new("log", 256 << 10, 1, &power));
    assert!(on_device(&small).is_err());
    // One opener at a time, and a damaged copy of a header costs nothing.
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &power));
    let wal = on_device(&device).unwrap();
    let id = wal.id();
    assert!(on_device(&device).is_err());
    drop(wal);
    for block in [0, 64 << 10] {
        device.rot(block..block + 4096, 3);
        assert_eq!(on_device(&device).unwrap().id(), id);
    }
}

#[test]
fn the_smallest_device_has_four_slots() {
    let device = |bytes| Arc::new(SimDevice::new("log", bytes, 1, &SimPower::new()));
    let least = (64 << 10) + 4 * (256 << 10);
    on_device(&device(least)).unwrap();
    assert!(on_device(&device(least - 4096)).is_err());
}

/// Otherwise it would pass for a blank one, or for one with other data.
#[tokio::test]
async fn a_device_that_cannot_be_read_is_an_error() {
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()));
    let wal = on_device(&device).unwrap();
    append_and_flush(&wal, b"one").await;
    let id = wal.id();
    drop(wal);
    device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).times(1));
    let WalError::Io { source, .. } = on_device(&device).unwrap_err() else { panic!("another error") };
    assert_eq!(source.kind(), std::io::ErrorKind::Other, "{source}");
    assert_eq!(on_device(&device).unwrap().id(), id);
}

/// A segment that was removed, its header's flush failed, and the process was killed: once the next one is
/// gone, too, the first must not come back.
#[tokio::test]
async fn a_removed_segment_stays_removed() {
    // The write that removes it may have reached the device before its flush failed.
    for seed in 0..8 {
        let device = SimDevice::new("log", DEVICE_BYTES, seed, &SimPower::new());
        let device = Arc::new(device.with_flush_failure(FlushFailure::NeverDurable));
        let wal = on_device(&device).unwrap();
        let (mut n, mut last) = (0, Lsn(0));
        while wal.segment_starts().len() < 3 {
            last = super::append_and_flush(&wal, &body(n)).await;
            n += 1;
        }
        let starts = wal.segment_starts();
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        assert!(wal.truncate(Lsn(starts[1] + 1), Lsn(starts[1] + 1)).await.is_err());
        drop(wal);
        let killed = Arc::new(device.after_kill(seed, &SimPower::new()));
        let wal = on_device(&killed).unwrap();
        assert_eq!(wal.segment_starts(), starts[1..]);
        wal.truncate(last, last).await.unwrap();
        drop(wal);
        for cut in 0..4 {
            let cut = Arc::new(killed.after_power_cut(cut, &SimPower::new()));
            let wal = on_device(&cut).unwrap_or_else(|error| panic!("{seed}: {error}"));
            assert_eq!(wal.end(), last);
        }
    }
}

/// A segment's header reaches its slot although the write failed, the segment then gets another slot, and is
/// removed later: the first slot must not bring it back.
#[tokio::test]
async fn a_slot_whose_header_failed_is_given_up_with_its_segment() {
    for seed in 0..12 {
        let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, seed, &SimPower::new()));
        let wal = on_device(&device).unwrap();
        let (mut n, mut last) = (0, Lsn(0));
        while wal.segment_starts().len() < 6 {
            last = super::append_and_flush(&wal, &body(n)).await;
            n += 1;
        }
        let starts = wal.segment_starts();
        // A write fails, so that a new segment begins, and then that of its header, after its bytes.
        for ops in [0, 3] {
            let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).from_op(device.ops() + ops);
            device.inject(fault.times(1));
            last = wal.append_commit(&body(n)).unwrap();
            n += 1;
            assert!(wal.flush(last).await.is_err());
        }
        // The segment gets another slot, as do those after it.
        wal.truncate(Lsn(starts[5]), Lsn(starts[5])).await.unwrap();
        wal.flush(last).await.unwrap();
        while wal.segment_starts().len() < 5 {
            last = super::append_and_flush(&wal, &body(n)).await;
            n += 1;
        }
        wal.truncate(last, last).await.unwrap();
        let kept = bodies(&wal);
        drop(wal);
        let cut = Arc::new(device.after_power_cut(seed, &SimPower::new()));
        let wal = on_device(&cut).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!((wal.end(), bodies(&wal)), (last, kept), "{seed}");
    }
}

/// The process ended between the header of a segment's new slot and the end of the old one.
#[test]
fn of_two_slots_with_one_segment_the_newer_one_goes_on() {
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()));
    let open = || DeviceMedia::open(Arc::clone(&device) as SharedDevice, SMALL.segment_bytes()).unwrap();
    let mut media = open();
    media.own().unwrap();
    media.create(64, b"old").unwrap();
    // After two writes and a flush of the bytes, and both of the header.
    let gives_up = Fault::new(FaultEffect::NoSpace).on(IoOp::Write).from_op(device.ops() + 5);
    device.inject(gives_up.times(1));
    media.create(64, b"new").unwrap_err();
    for _ in 0..2 {
        drop(media);
        media = open();
        assert!(media.read(64).unwrap().starts_with(b"new"));
        media.own().unwrap();
    }
    media.remove(64).unwrap();
    drop(media);
    assert!(open().list().unwrap().is_empty());
}

/// A generation's segment is there, and making it durable fails for want of space: it would end the segment
/// that goes on.
#[test]
fn a_generation_that_a_full_device_refuses_leaves_no_segment() {
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()));
    let open = || DeviceMedia::open(Arc::clone(&device) as SharedDevice, SMALL.segment_bytes()).unwrap();
    let (mut segments, start, _) = Segments::open(Box::new(open()), FIRST_LSN).unwrap();
    segments.ready().unwrap();
    segments.append(start, b"a record", 1 << 16, false).unwrap();
    let header = Fault::new(FaultEffect::NoSpace).on(IoOp::Flush).from_op(device.ops() + 4);
    device.inject(header.times(1));
    assert_eq!(segments.begin(start + 8, (7, 0), 0).unwrap(), 0, "it goes on as it was");
    drop(segments);
    assert_eq!(open().list().unwrap(), [start]);
}

/// Each write of a header fails for a while: that takes no slots for good.
#[tokio::test]
async fn failed_creations_leave_room() {
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()));
    let wal = on_device(&device).unwrap();
    let mut last = super::append_and_flush(&wal, &body(1)).await;
    for n in 2..40 {
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        last = wal.append_commit(&body(n)).unwrap();
        assert!(wal.flush(last).await.is_err());
        if n % 2 == 0 {
            // The bytes are durable, and the header's flush fails.
            device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).from_op(device.ops() + 4).times(1));
            let _ = wal.flush(last).await;
        }
    }
    wal.flush(last).await.unwrap();
    let kept = bodies(&wal);
    drop(wal);
    let cut = Arc::new(device.after_power_cut(1, &SimPower::new()));
    assert_eq!(bodies(&on_device(&cut).unwrap()), kept);
}

/// The use of the reserve fails at any operation, also after its header was written in part: the slot serves
/// no record that takes space.
#[test]
fn a_reserve_whose_use_failed_is_still_the_reserve() {
    let device = Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()));
    let shared = Arc::clone(&device) as SharedDevice;
    let mut media = DeviceMedia::open(shared, SMALL.segment_bytes()).unwrap();
    media.reserve(0).unwrap();
    let mut start = 64;
    while media.create(start, b"takes room").is_ok() {
        start += 10;
    }
    for n in 0..5 {
        device.inject(Fault::new(FaultEffect::Eio).from_op(device.ops() + n).times(1));
        media.create_reserved(start, b"gives room").unwrap_err();
        let refused = media.create(start, b"takes room").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "operation {n}");
    }
    media.create_reserved(start, b"gives room").unwrap();
    assert!(media.read(start).unwrap().starts_with(b"gives room"));
}

/// Capacities that no block divides, and others than the log was made with.
#[tokio::test]
async fn a_device_takes_a_log_of_any_capacity() {
    let options = |capacity_bytes| WalOptions { capacity_bytes, keep: Keep::ForCrash, ssd_log_bytes: None };
    for (first, then) in [(1001 * 4096, 1001 * 4096), (10_000_000, 1 << 20), (1 << 20, 64 << 20)] {
        let device = Arc::new(SimDevice::new("log", 32 << 20, 1, &SimPower::new()).with_alignment(4096));
        let open = |capacity| {
            let device = Arc::clone(&device) as SharedDevice;
            Wal::on_device(device, options(capacity))
        };
        let wal = open(first).await.unwrap();
        super::append_and_flush(&wal, &body(1)).await;
        drop(wal);
        let wal = open(then).await.unwrap();
        // One batch of many records.
        let mut last = Lsn(0);
        for n in 0..400 {
            last = wal.append_commit(&body(n)).unwrap();
        }
        wal.flush(last).await.unwrap();
        drop(wal);
        let wal = open(first).await.unwrap();
        assert_eq!(bodies(&wal).len(), 401, "{first}, {then}");
    }
}

#[tokio::test]
async fn a_failed_write_is_tried_again_in_a_new_segment() {
    let media = SimMedia::new(1);
    let wal = Wal::on(Box::new(media.clone()), LIMITS).unwrap();
    append_and_flush(&wal, b"first").await;
    let durable = wal.durable();
    media.fail(0, Way::Torn);
    let second = wal.append_commit(b"second").unwrap();
    assert!(matches!(wal.flush(second).await, Err(WalError::Io { .. })));
    assert!(wal.is_failing() && wal.durable() == durable);
    append_and_flush(&wal, b"third").await;
    assert!(!wal.is_failing());
    assert_eq!(wal.segment_starts(), [FIRST_LSN, durable.0]);
    let expected = [&b"first"[..], b"second", b"third"];
    assert_eq!(bodies(&wal).into_iter().map(|b| b.1).collect::<Vec<_>>(), expected);
    // A part of the second record follows the first one; a later open ignores it.
    let reopened = Wal::on(Box::new(media), LIMITS).unwrap();
    assert_eq!(bodies(&reopened).into_iter().map(|b| b.1).collect::<Vec<_>>(), expected);
}
