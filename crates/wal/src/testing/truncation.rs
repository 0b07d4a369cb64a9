//! What a truncation keeps, and what one that fails leaves behind.

use super::sim::{SimMedia, Way};
use super::{LIMITS, SMALL, append_and_flush, bodies};
use crate::{Media, MemoryMedia, Wal};
use pagetier::Lsn;

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
