//! Records that are too long, and batches that no segment takes as a whole.
//!
//! The schedule: such a record is taken into memory, and its write fails whatever space there is. Later
//! records come after it, so none becomes durable any more, no page can be written, and the log cannot even
//! be closed.

use super::full::{Disks, crash, pages, put};
use super::sim::SimMedia;
use super::{LIMITS, SMALL, append_and_flush, bodies};
use crate::{DeviceMedia, LoggedStore, Media, MiniTx, Wal, WalError, WalOptions};
use pagetier::device::SharedDevice;
use pagetier::errors::Advice;
use pagetier::{PageId, PageMut, SpaceId};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;

const DEVICE_BYTES: u64 = 8 << 20;

fn device() -> Arc<SimDevice> {
    Arc::new(SimDevice::new("log", DEVICE_BYTES, 1, &SimPower::new()))
}

/// Slots of 256 KiB.
fn on(device: &Arc<SimDevice>) -> Wal {
    let media = DeviceMedia::open(Arc::clone(device) as SharedDevice, SMALL.segment_bytes()).unwrap();
    Wal::on(Box::new(media), LIMITS).unwrap()
}

#[tokio::test]
async fn a_record_that_no_segment_takes_is_refused_and_the_next_ones_go_on() {
    let log_device = device();
    let media = SimMedia::new(1);
    for wal in [on(&log_device), Wal::on(Box::new(media), LIMITS).unwrap()] {
        append_and_flush(&wal, b"first").await;
        let max = wal.record_bytes_max();
        let (end, body) = (wal.end(), vec![7; max as usize - 17]);
        let long = [&body[..], b"!"].concat();
        let refused = wal.append_commit(&long).unwrap_err();
        assert!(
            matches!(refused, WalError::TooLong { bytes, bytes_max } if (bytes, bytes_max) == (max + 1, max))
        );
        assert!(refused.to_string().contains(&max.to_string()), "{refused}");
        assert_eq!((refused.advice(), wal.end()), (Advice::FixConfiguration, end));
        // The longest one that fits, and others before and after it in one batch.
        wal.append_commit(&[1; 50_000]).unwrap();
        wal.append_commit(&body).unwrap();
        append_and_flush(&wal, &[2; 50_000]).await;
        assert!(!wal.is_failing());
        let found: Vec<usize> = bodies(&wal).into_iter().map(|(_, body)| body.len()).collect();
        assert_eq!(found, [5, 50_000, body.len(), 50_000]);
    }
    assert_eq!(bodies(&on(&log_device)).len(), 4);
}

/// Fills `count` pages with one mini-transaction.
async fn fill(db: &LoggedStore, space: SpaceId, count: u32, value: u8) -> Result<(), WalError> {
    let mut change = db.begin::<PageMut<'_>>().await?;
    for no in 0..count {
        let at = change.add(db.get_mut(PageId::new(space, no)).await.expect("the page"));
        let bytes = change.payload(at).len();
        change.write(at, 0, &vec![value; bytes]);
    }
    db.commit(change).await.map(drop)
}

#[tokio::test]
async fn a_change_that_no_segment_takes_is_undone() {
    let (disks, log) = (Disks::new(), device());
    let db = LoggedStore::on(disks.builder(), on(&log)).await.unwrap();
    let space = pages(&db, 100).await;
    let first = |no| db.get(PageId::new(space, no));
    let before = db.wal().end();
    let refused = fill(&db, space, 100, 9).await;
    assert!(matches!(refused, Err(WalError::TooLong { .. })), "{refused:?}");
    assert_eq!(db.wal().end(), before);
    for no in 0..100 {
        assert_eq!(first(no).await.unwrap()[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0], "page {no}");
    }
    fill(&db, space, 50, 3).await.unwrap();
    db.checkpoint().await.unwrap();
    put(&db, PageId::new(space, 60), 4).await.unwrap();
    crash(db).await;
    let db = LoggedStore::on(disks.builder(), on(&log)).await.unwrap();
    for (no, value) in [(0, 3), (49, 3), (50, 1), (60, 4), (99, 1)] {
        assert_eq!(db.get(PageId::new(space, no)).await.unwrap()[0], value, "page {no}");
    }
    db.shutdown().await.unwrap();
}

/// Whatever it did before: the pages are as they were, and so is the log.
#[tokio::test]
async fn a_mini_transaction_that_is_dropped_is_undone() {
    let disks = Disks::new();
    let db = LoggedStore::on(disks.builder(), Wal::in_memory(LIMITS)).await.unwrap();
    let space = pages(&db, 3).await;
    for seed in 0..40_usize {
        fill(&db, space, 2, seed as u8).await.unwrap();
        let mut before = Vec::new();
        for no in 0..3 {
            before.push(db.get(PageId::new(space, no)).await.unwrap().to_vec());
        }
        let end = db.wal().end();
        let mut change = MiniTx::new(Some(db.wal()));
        for no in 0..3 {
            change.add(db.get_mut(PageId::new(space, no)).await.unwrap());
        }
        for step in 0..seed {
            let (page, at) = (step % 3, step * 97 % 3_000);
            match (step + seed) % 5 {
                4 => change.replace(page, &vec![step as u8; change.payload(page).len()]),
                0 => change.write(page, at, &[step as u8; 200]),
                1 => change.shift(page, at, at / 2 + 50, 700),
                2 => change.copy(page, at, (page + 1) % 3, at + 30, 500),
                _ => change.zero(page),
            }
        }
        change.free(PageId::new(space, 2));
        drop(change);
        assert_eq!((db.wal().end(), db.wal().oldest_unfinished()), (end, None));
        for (no, before) in before.iter().enumerate() {
            assert!(db.get(PageId::new(space, no as u32)).await.unwrap()[..] == before[..], "{seed}: {no}");
        }
    }
}

/// Each operation, over pages that the HDD has as they were before.
#[tokio::test]
async fn what_a_mini_transaction_did_is_redone() {
    for operation in 0..5 {
        let (disks, memory) = (Disks::new(), SimMedia::new(1));
        let db = disks.open(&memory).await;
        let space = pages(&db, 2).await;
        fill(&db, space, 2, 5).await.unwrap();
        db.sync().await.unwrap();
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        for no in 0..2 {
            change.add(db.get_mut(PageId::new(space, no)).await.unwrap());
        }
        let mut expected = [0, 1].map(|page| change.payload(page).to_vec());
        change.write(0, 0, b"new");
        expected[0][..3].copy_from_slice(b"new");
        match operation {
            0 => {
                change.shift(0, 0, 40, 3);
                expected[0][40..43].copy_from_slice(b"new");
            }
            1 => {
                change.copy(0, 0, 1, 30, 3);
                expected[1][30..33].copy_from_slice(b"new");
            }
            2 => {
                change.zero(1);
                expected[1].fill(0);
            }
            3 => {
                expected[1][7..3_000].fill(9);
                change.replace(1, &expected[1]);
            }
            _ => {}
        }
        let changed = [0, 1].map(|page| change.payload(page).to_vec());
        assert!(changed == expected, "{operation}: in memory");
        db.commit(change).await.unwrap();
        crash(db).await;
        let db = disks.open(&memory).await;
        for (no, expected) in (0..).zip(&expected) {
            assert!(db.get(PageId::new(space, no)).await.unwrap()[..] == expected[..], "{operation}: {no}");
        }
        db.shutdown().await.unwrap();
    }
}

/// What the documentation of `add` and of `MiniTx` says of pages that do not change.
#[tokio::test]
async fn a_page_that_does_not_change_costs_its_id_and_a_write_if_another_one_changes() {
    let (disks, memory) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&memory).await;
    let space = pages(&db, 2).await;
    fill(&db, space, 2, 5).await.unwrap();
    db.sync().await.unwrap();
    let lsn = async |no| db.get(PageId::new(space, no)).await.unwrap().lsn();
    for (changes, commits) in [(false, false), (false, true), (true, true)] {
        let (before, end) = (lsn(1).await, db.wal().end());
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        for no in 0..2 {
            change.add(db.get_mut(PageId::new(space, no)).await.unwrap());
        }
        let same = change.payload(0).to_vec();
        change.replace(0, &same);
        if changes {
            change.write(0, 0, b"new");
        }
        if commits {
            assert_eq!(change.commit().unwrap().0 > 0, changes);
        } else {
            drop(change);
        }
        // A header, the number of pages, two ids, a write.
        let bytes = if changes { 17 + 1 + 2 * 8 + 6 + 3 } else { 0 };
        assert_eq!(db.wal().end().0 - end.0, bytes);
        assert_eq!(lsn(1).await != before, changes);
        let written = db.stats().pool.written_recoverability;
        db.sync().await.unwrap();
        let writes = db.stats().pool.written_recoverability - written;
        assert_eq!(writes, if changes { 2 } else { 0 }, "both have the record's LSN");
    }
    db.shutdown().await.unwrap();
}

/// A log from a time with a larger capacity: its last segment alone is longer than the new one.
#[tokio::test]
async fn a_last_segment_beyond_the_capacity_refuses_no_change() {
    let (disks, memory) = (Disks::new(), SimMedia::new(1));
    let wal = Wal::on(Box::new(memory.clone()), WalOptions::new()).unwrap();
    let db = LoggedStore::on(disks.builder(), wal).await.unwrap();
    let space = pages(&db, 100).await;
    fill(&db, space, 90, 5).await.unwrap();
    db.shutdown().await.unwrap();
    let db = disks.open(&memory).await;
    assert!(db.wal().len_bytes() > db.wal().capacity_bytes());
    for value in 0..200 {
        put(&db, PageId::new(space, 3), value).await.unwrap();
    }
    db.checkpoint().await.unwrap();
    assert!(db.wal().len_bytes() < db.wal().capacity_bytes());
    assert!(memory.clone().list().unwrap().len() < 4 && !db.wal().is_whole());
    db.shutdown().await.unwrap();
}

/// A batch is split where a segment is full, not after the record that no longer fits.
#[tokio::test]
async fn a_long_record_after_short_ones_has_a_slot_of_its_own() {
    let log = device();
    let wal = on(&log);
    for _ in 0..6 {
        wal.append_commit(&[1; 10_000]).unwrap();
    }
    append_and_flush(&wal, &vec![2; 200_000]).await;
    drop(wal);
    assert_eq!(bodies(&on(&log)).len(), 7);
}

#[test]
fn a_slot_of_a_device_takes_a_segment_of_just_its_room() {
    let mut media = DeviceMedia::open(device() as SharedDevice, SMALL.segment_bytes()).unwrap();
    let whole = vec![7; media.segment_bytes_max() as usize];
    media.create(64, &whole).unwrap();
    assert!(media.read(64).unwrap() == whole);
    let refused = media.create(65, &[&whole[..], b"!"].concat()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
}

/// Changes that were admitted while there was space were refused, though half of the last slot was free.
#[tokio::test]
async fn the_last_slot_of_a_device_takes_records_until_it_is_full() {
    let device = device();
    let wal = on(&device);
    let mut last = wal.end();
    loop {
        let lsn = wal.append_commit(&[7; 10_000]).unwrap();
        match wal.flush(lsn).await {
            Ok(()) => last = lsn,
            Err(error) => break assert_eq!(error.advice(), Advice::FreeSpace),
        }
    }
    let newest = *wal.segment_starts().last().unwrap();
    assert!(last.0 - newest > wal.record_bytes_max() - 20_000, "{} bytes in the last slot", last.0 - newest);
    drop(wal);
    let wal = on(&device);
    assert_eq!((wal.end(), bodies(&wal).len() as u64), (last, last.0 / 10_000));
}

/// The capacity is that of a larger device.
#[tokio::test]
async fn with_few_slots_left_changes_wait_whatever_the_capacity() {
    let media = DeviceMedia::open(device() as SharedDevice, SMALL.segment_bytes()).unwrap();
    let wal = Wal::on(Box::new(media), WalOptions { capacity_bytes: 64 << 20, ..LIMITS }).unwrap();
    append_and_flush(&wal, b"first").await;
    assert!(!wal.is_long());
    while !wal.is_scarce() {
        append_and_flush(&wal, &[7; 10_000]).await;
    }
    assert!(wal.is_long() && wal.len_bytes() < wal.capacity_bytes());
}
