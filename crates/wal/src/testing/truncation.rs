//! What a truncation keeps, and what one that fails leaves behind.

use super::full::{Disks, pages};
use super::sim::{SimMedia, Way};
use super::{LIMITS, SMALL, append_and_flush, bodies};
use crate::log::FREES_AT_ONCE;
use crate::log::segments::{FIRST_LSN, Segments};
use crate::{Media, MemoryMedia, Wal};
use futures_util::FutureExt;
use pagetier::{Lsn, PageId, PageMut, SpaceId};
use std::ops::Range;

/// A log of many segments, and the LSNs of its records, each of which is applied.
async fn filled(media: Box<dyn Media>) -> (Wal, Vec<Lsn>) {
    let wal = Wal::on(media, SMALL).unwrap();
    let mut lsns = Vec::new();
    for n in 0..60_u8 {
        let commit = append_and_flush(&wal, &[n; 9_000]).await;
        lsns.extend([commit, wal.append_applied(commit)]);
        wal.flush(wal.end()).await.unwrap();
    }
    assert!(wal.segment_starts().len() > 6);
    (wal, lsns)
}

/// The record that ends where a segment begins is in the segment before.
#[tokio::test]
async fn the_record_that_ends_at_the_kept_position_stays() {
    let (wal, lsns) = filled(Box::<MemoryMedia>::default()).await;
    for keep in lsns {
        wal.truncate(keep, keep).await.unwrap();
        let (kept, starts) = (bodies(&wal), wal.segment_starts());
        assert!(kept.iter().any(|(lsn, _)| *lsn == keep.0), "the record at {keep} is gone");
        assert!(starts.get(1).is_none_or(|second| *second >= keep.0), "too much is kept at {keep}");
    }
}

#[tokio::test]
async fn a_truncation_that_fails_half_way_lists_no_segment_that_may_be_gone() {
    for (n, way) in (0..3).flat_map(|n| [Way::Refused, Way::Torn, Way::Unsynced].map(|way| (n, way))) {
        let case = format!("{way:?} at {n}");
        for seed in 0..4 {
            let media = SimMedia::new(seed);
            let (wal, lsns) = filled(Box::new(media.clone())).await;
            let (before, starts) = (bodies(&wal), wal.segment_starts());
            media.fail(n, way);
            let keep = Lsn(starts[5]);
            assert!(wal.truncate(keep, keep).await.is_err());
            // As a copy reads it: every segment that is listed.
            let (left, listed) = (bodies(&wal), wal.segment_starts());
            assert_eq!((wal.oldest().0, wal.is_whole()), (listed[0], false), "{case}");
            assert!(before.ends_with(&left) && left[0].0 <= keep.0, "{case}");
            wal.truncate(keep, keep).await.unwrap();
            assert_eq!(media.clone().list().unwrap(), wal.segment_starts(), "{case}");
            assert_eq!(wal.oldest().0, starts[4], "{case}");
            drop(wal);
            let wal = Wal::on(Box::new(media.after_power_cut(seed)), LIMITS).unwrap();
            assert_eq!(wal.end(), *lsns.last().unwrap());
        }
    }
}

/// A hold that comes during a truncation, or after one that failed, keeps what it says.
#[tokio::test]
async fn a_hold_begins_where_the_log_does() {
    let media = SimMedia::new(1);
    let (wal, _) = filled(Box::new(media.clone())).await;
    let keep = Lsn(wal.segment_starts()[4]);
    media.fail(1, Way::Refused);
    assert!(wal.truncate(keep, keep).await.is_err());
    let (hold, from) = wal.hold();
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert_eq!((wal.oldest(), wal.segment_starts()[0]), (from, from.0));
    drop(hold);
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert!(wal.oldest() > from);
}

/// As of two backups at once, each of which goes on through the log.
#[tokio::test]
async fn each_hold_keeps_the_log_from_where_it_has_come_until_it_ends() {
    let (wal, _) = filled(Box::<MemoryMedia>::default()).await;
    let [(hold, from), (other, _)] = [wal.hold(), wal.hold()];
    drop(other);
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert_eq!(wal.oldest(), from);
    let starts = wal.segment_starts();
    hold.advance(Lsn(starts[4]));
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert_eq!(wal.oldest().0, starts[3], "the record that ends where a segment begins is in the one before");
}

/// Otherwise each would write every page that has changed, and make records durable that no one waits for.
#[tokio::test]
async fn a_checkpoint_of_a_short_log_writes_neither_pages_nor_records() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    pages(&db, 3).await;
    let oldest = db.min_recovery_lsn();
    let lsn = db.wal().append_commit(b"not flushed").unwrap();
    db.checkpoint().await.unwrap();
    assert!(oldest.is_some() && db.min_recovery_lsn() == oldest, "the pages were written");
    assert!(db.wal().durable() < lsn, "the log was flushed");
    db.wal().append_applied(lsn);
    db.shutdown().await.unwrap();
}

/// What is in memory is in no segment that could be removed.
#[tokio::test]
async fn a_checkpoint_of_a_long_log_makes_its_records_durable() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    pages(&db, 3).await;
    let lsn = db.wal().append_commit(&vec![7; db.wal().record_bytes_max() as usize - 17]).unwrap();
    assert!(db.wal().len_bytes() > db.wal().capacity_bytes());
    db.checkpoint().await.unwrap();
    assert!(db.wal().durable() >= lsn);
    db.wal().append_applied(lsn);
    db.shutdown().await.unwrap();
}

/// Each time it says so, a checkpoint looks whether the log can be shortened.
#[tokio::test]
async fn a_log_says_that_it_has_grown_by_a_segment_not_by_a_record() {
    let wal = Wal::in_memory(LIMITS);
    append_and_flush(&wal, b"first").await;
    let _ = wal.grown().now_or_never();
    append_and_flush(&wal, b"second").await;
    assert_eq!(wal.grown().now_or_never(), None);
    for _ in 0..10 {
        append_and_flush(&wal, &[7; 10_000]).await;
    }
    assert!(wal.segment_starts().len() > 1);
    assert_eq!(wal.grown().now_or_never(), Some(()));
}

/// Until a checkpoint has made them, each keeps the log.
#[test]
fn a_log_says_that_it_has_as_many_frees_as_the_store_makes_at_once() {
    let wal = Wal::in_memory(LIMITS);
    let grows_with = |numbers: Range<usize>| {
        let freed: Vec<_> = numbers.map(|no| PageId::new(SpaceId(1), no as u32)).collect();
        wal.append_pages::<PageMut<'_>>(&mut [], &[], &freed).unwrap();
        wal.grown().now_or_never()
    };
    assert_eq!(grows_with(1..FREES_AT_ONCE), None);
    assert_eq!(grows_with(FREES_AT_ONCE..FREES_AT_ONCE + 1), Some(()));
}

#[test]
fn a_log_of_one_segment_has_no_older_half() {
    let (mut segments, ..) = Segments::open(Box::<MemoryMedia>::default(), FIRST_LSN).unwrap();
    segments.ready().unwrap();
    assert_eq!(segments.half(true, 64), None);
    let failed = true;
    segments.append(FIRST_LSN + 9, b"a record", 1, failed).unwrap();
    segments.append(FIRST_LSN + 17, b"a record", 1, failed).unwrap();
    assert_eq!((segments.half(false, 64), segments.half(true, 64)), (None, Some(FIRST_LSN + 17)));
}

/// Also if it was in use before, without a record.
#[test]
fn a_log_that_begins_elsewhere_is_taken_into_use_there() {
    let (mut segments, ..) = Segments::open(Box::<MemoryMedia>::default(), FIRST_LSN).unwrap();
    segments.ready().unwrap();
    segments.begin_at(1000);
    assert!(!segments.is_ready());
    segments.ready().unwrap();
    assert_eq!(segments.starts(), [1000]);
}

/// What the store records of its log costs a write of the manifest.
#[tokio::test]
async fn the_store_records_nothing_if_no_segment_can_go() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    pages(&db, 3).await;
    let (saves, end) = (disks.manifest.saves(), db.wal().end());
    assert_eq!(db.wal().segment_starts().len(), 1);
    db.wal().truncate(end, end).await.unwrap();
    assert_eq!(disks.manifest.saves(), saves);
    db.shutdown().await.unwrap();
}
