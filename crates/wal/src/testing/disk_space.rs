//! The space of the log's files: a segment that ends early, for a generation or an archive, gives
//! back what its records do not take.
//!
//! The schedules that this is against, and that it must not add:
//! 1. A program is started again and again, and commits one change each time. Each open begins a segment with
//!    the space of a whole one: kilobytes of records take the disk.
//! 2. A crash between the creation of a segment and the cut of the one before. Both are there; the one before
//!    keeps its space until it goes, since only the last one is cut by an open.
//! 3. The cut comes first, and the new segment does not fit on the disk. The log goes on in one whose space
//!    others have taken, and which cannot become the next reserve. So the cut comes last.
//! 4. The segment before has a torn tail, of an append that failed. The cut is where its last durable record
//!    ends, which is where the next segment begins.
//! 5. The disk is full, the reserve is in use, and the oldest segments are short ones. Each that goes leaves
//!    nothing that could be the next reserve, so the next free is refused. So a full disk gives up more of
//!    them at once: as many records as take a whole segment.

use super::full::{Disks, crash, pages, put, trim};
use super::{SMALL, bodies};
use crate::log::segments::{FIRST_LSN, Segments};
use crate::record::{self, Kind};
use crate::{FileMedia, Keep, LoggedStore, Media, MemoryMedia, Wal, WalError, WalOptions};
use pagetier::{DrainOptions, PageId, PageSize, PageStore, device::SharedDevice};
use pagetier_devio::files::create_durably;
use pagetier_testing::{FileFault, SimDevice, SimFiles, SimPower};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 4096;
const SEGMENT: u64 = 64 << 10;

fn blank(seed: u64) -> SimFiles {
    let files = SimFiles::new(seed, &SimPower::new());
    create_durably(&*files.root(), Path::new("/log")).unwrap();
    files.after_kill(seed, &SimPower::new())
}

fn media(files: &SimFiles) -> Result<Box<FileMedia>, WalError> {
    let media = files.root().directory(Path::new("/log")).and_then(FileMedia::on);
    media.map(Box::new).map_err(|error| WalError::Io { path: "/log".into(), source: Arc::new(error) })
}

/// The segments, and the space of all files of the log.
fn room(files: &SimFiles) -> (u64, u64) {
    let dir = files.root().directory(Path::new("/log")).unwrap();
    let names = dir.names().unwrap();
    let room = |name| dir.stat(Path::new(name)).unwrap().map_or(0, |file| file.allocated);
    let segments = names.iter().filter(|name| Path::new(name).extension().is_some_and(|is| is == "log"));
    (segments.count() as u64, names.iter().map(room).sum())
}

/// One process: a generation, a record, the segment's end, another record. Returns the log's durable end.
fn live(files: &SimFiles, generation: u64, durable: &mut u64) -> Result<(), WalError> {
    let (mut segments, _, mut end) = Segments::open(media(files)?, FIRST_LSN)?;
    segments.begin(end, (generation, generation - 1), SEGMENT)?;
    for ends in [true, false] {
        let mut bytes = Vec::new();
        let lsn = record::put(&mut bytes, end, Kind::Commit, |body| body.extend_from_slice(b"a change"));
        segments.append(end, &bytes, SEGMENT, true)?;
        (end, *durable) = (lsn, lsn);
        if ends {
            segments.end_at(end)?;
        }
    }
    Ok(())
}

#[test]
fn what_ends_early_keeps_little_room_whichever_call_the_power_is_cut_at() {
    for n in 1.. {
        let (mut files, mut durable, mut is_cut) = (blank(n), 0, false);
        for life in 1..8 {
            let power = SimPower::new();
            files = files.after_kill(life, &power);
            if life == 4 {
                power.cut_at(n);
            }
            let lived = live(&files, life, &mut durable);
            assert!(lived.is_ok() || power.is_cut(), "{lived:?}");
            is_cut |= power.is_cut();
            if life == 4 {
                files = files.after_power_cut(n, &SimPower::new());
            }
            let (_, _, end) = Segments::open(media(&files).unwrap(), FIRST_LSN).unwrap();
            assert!(end >= durable, "cut at {n}, life {life}: {end} of {durable}");
            durable = end;
        }
        let (segments, room) = room(&files);
        assert!(segments >= 12, "{segments}");
        // The open segment, the reserve, a spare, and two segments of the life that a power cut has ended:
        // their cuts were not durable.
        assert!(room <= segments * BLOCK + 5 * SEGMENT, "{n}: {room}");
        if !is_cut {
            assert!(n > 20, "{n} calls");
            break;
        }
    }
}

/// A generation's segment may have its name although the call failed. Records that follow must not go to the
/// segment before, which that one ends.
#[test]
fn a_generation_that_could_not_begin_loses_no_later_record() {
    let mut failed = 0;
    for nth in 0..16 {
        let files = blank(nth);
        let (mut segments, _, mut end) = Segments::open(media(&files).unwrap(), FIRST_LSN).unwrap();
        let append = |segments: &mut Segments, end: u64| {
            let mut bytes = Vec::new();
            let lsn = record::put(&mut bytes, end, Kind::Commit, |body| body.extend_from_slice(b"a change"));
            segments.append(end, &bytes, SEGMENT, true).map(|_| lsn)
        };
        segments.begin(end, (1, 0), SEGMENT).unwrap();
        end = append(&mut segments, end).unwrap();
        files.fail_each(nth..nth + 2, FileFault::Torn);
        failed += u32::from(segments.begin(end, (2, 1), SEGMENT).is_err());
        files.clear_faults();
        end = append(&mut segments, end).unwrap();
        drop(segments);
        let (mut segments, _, found) = Segments::open(media(&files).unwrap(), FIRST_LSN).unwrap();
        assert_eq!(found, end, "call {nth}");
        segments.check(0).unwrap_or_else(|error| panic!("call {nth}: {error}"));
    }
    assert!(failed > 2, "{failed}");
}

#[test]
fn a_segment_that_no_other_can_follow_keeps_its_room() {
    let files = blank(1);
    let mut media = media(&files).unwrap();
    media.reserve(SEGMENT).unwrap();
    media.create(64, b"records").unwrap();
    files.set_free(Some(0));
    assert!(media.begin(71, b"").is_err());
    assert_eq!(room(&files), (1, 2 * SEGMENT));
    media.append(b", more").unwrap();
    assert!(media.read(64).unwrap().starts_with(b"records, more\0"));
}

#[test]
fn a_full_disk_gives_up_as_many_short_segments_as_take_the_room_of_one() {
    let (mut segments, ..) = Segments::open(Box::<MemoryMedia>::default(), FIRST_LSN).unwrap();
    segments.ready().unwrap();
    let mut end = FIRST_LSN;
    for bytes in [100, 100, 900, 1000, 1000, 100] {
        segments.append(end, &vec![7; bytes], 10_000, false).unwrap();
        end += bytes as u64;
        segments.end_at(end).unwrap();
    }
    let up_to = |whole| segments.half(true, whole).map(|start| start - FIRST_LSN);
    assert_eq!((segments.half(false, 1), up_to(1), up_to(1_000)), (None, Some(2_100), Some(2_100)));
    assert_eq!((up_to(2_500), up_to(9_999)), (Some(3_100), Some(3_200)));
}

/// Of pages that the SSD alone has, too.
#[tokio::test]
async fn pages_are_freed_on_a_full_disk_after_many_openings() {
    let (disks, mut files) = (Disks::new(), blank(1));
    let ssd = Arc::new(SimDevice::new("ssd", 0, 1, &SimPower::new()));
    let open = async |files: &SimFiles| {
        let builder = disks.builder().ssd(Arc::clone(&ssd) as SharedDevice).ssd_bytes(256 * BLOCK);
        let options = WalOptions { capacity_bytes: 1 << 20, ..SMALL }.keep(Keep::ForSsdLoss);
        LoggedStore::on(builder, Wal::on(media(files).unwrap(), options).unwrap()).await.unwrap()
    };
    let db = open(&files).await;
    let space = pages(&db, 40).await;
    crash(db).await;
    for life in 1..12 {
        files = files.after_kill(life, &SimPower::new());
        let db = open(&files).await;
        put(&db, PageId::new(space, 39), life as u8).await.unwrap();
        db.sync().await.unwrap();
        crash(db).await;
    }
    files = files.after_kill(12, &SimPower::new());
    let db = open(&files).await;
    for no in 1..39 {
        // Whatever the log gives back, others take.
        files.set_free(Some(0));
        for _ in 0..30 {
            let _ = put(&db, PageId::new(space, 39), no as u8).await;
        }
        let trimmed = trim(&db, PageId::new(space, 0), PageId::new(space, no)).await;
        trimmed.unwrap_or_else(|error| panic!("page {no}: {error}"));
    }
    files.set_free(None);
    db.shutdown().await.unwrap();
    assert!(!bodies(&Wal::on(media(&files).unwrap(), SMALL).unwrap()).is_empty());
}

/// However a process ends, and whatever the log is kept for; what nothing needs then goes with a checkpoint.
#[tokio::test]
async fn openings_take_little_room_each() {
    for (keep, closes) in [Keep::ForCrash, Keep::ForSsdLoss].into_iter().flat_map(|k| [(k, true), (k, false)])
    {
        let dir = pagetier_testing::scratch();
        let log = dir.path().join("log");
        let options = WalOptions::new().capacity_bytes(1 << 20).keep(keep);
        for life in 0..24_u64 {
            let builder = PageStore::builder().directory(dir.path().join("pages")).page_size(PageSize::MIN);
            let builder = builder.ssd_bytes(256 * BLOCK).pool_bytes(4 << 20);
            let db = LoggedStore::open(builder, &log, options).await.unwrap();
            if life == 0 {
                pages(&db, 2).await;
            }
            let space = db.spaces().find("pages").unwrap();
            put(&db, PageId::new(space, 1), life as u8).await.unwrap();
            if life == 23 {
                let end = db.wal().end();
                db.flush_to(end).await.unwrap();
                db.ssd().drain(DrainOptions::new()).await;
                db.checkpoint().await.unwrap();
                assert_eq!(db.wal().segment_starts().len(), 1, "{keep:?}");
                assert!(!db.wal().can_truncate(end));
            }
            if closes {
                db.shutdown().await.unwrap()
            } else {
                crash(db).await
            }
            // A removal that has begun goes on, so a file may be gone between the two looks.
            let files = std::fs::read_dir(&log).unwrap().filter_map(|file| file.unwrap().metadata().ok());
            let (count, room) = files.fold((0, 0), |sum, file| (sum.0 + 1, sum.1 + 512 * file.blocks()));
            assert!(room <= 3 * SEGMENT + count * BLOCK, "{keep:?}, {closes}, {life}: {count} files, {room}");
        }
    }
}
