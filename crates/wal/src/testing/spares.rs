//! Segments that take over files of earlier ones: whatever those had, nothing of it is read as new.

use super::{SMALL, append_and_flush, bodies, in_use};
use crate::{FileMedia, Media, Wal, WalError, copy_log};
use pagetier::Lsn;
use pagetier_devio::files::{Access, create_durably};
use pagetier_testing::{FileFault, SimFiles, SimPower};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

const DIR: &str = "/log";
/// A segment's bytes without its header.
const SEGMENT: usize = 64 << 10;

fn blank(power: &SimPower) -> SimFiles {
    let files = SimFiles::new(1, power);
    create_durably(&*files.root(), Path::new(DIR)).unwrap();
    files
}

fn media(files: &SimFiles) -> FileMedia {
    FileMedia::on(files.root().directory(Path::new(DIR)).unwrap()).unwrap()
}

fn open(files: &SimFiles) -> Result<Wal, WalError> {
    in_use(Box::new(media(files)), SMALL)
}

fn spares(files: &SimFiles) -> Vec<OsString> {
    let names = files.root().directory(Path::new(DIR)).unwrap().names().unwrap();
    names.into_iter().filter(|name| name.to_str().is_some_and(|name| name.starts_with("spare-"))).collect()
}

fn name_of(start: u64) -> String {
    format!("{start:016x}.log")
}

/// Records until the open segment is in a file that an earlier one had, and has a few of them.
async fn in_a_segment_over_another(wal: &Wal, files: &SimFiles) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for n in 0..200_u8 {
        let body = vec![n; 7_000];
        all.push((append_and_flush(wal, &body).await.0, body));
        let starts = wal.segment_starts();
        let keep = Lsn(starts[starts.len().saturating_sub(2)] + 1);
        wal.truncate(keep, keep).await.unwrap();
        // The first ones had no file to take over, or one of zeroes.
        let last = *starts.last().unwrap();
        let records = wal.end().0 - last;
        if last > 6 * SEGMENT as u64 && (20_000..50_000).contains(&records) {
            let dir = files.root().directory(Path::new(DIR)).unwrap();
            let old = dir.open(Path::new(&name_of(last)), Access::Read).unwrap().read_from(60_000).unwrap();
            assert!(old.iter().any(|byte| *byte != 0), "it has no old records");
            all.retain(|(lsn, _)| *lsn > wal.oldest().0);
            return all;
        }
    }
    panic!("no segment was taken over")
}

#[tokio::test]
async fn a_segment_in_the_file_of_another_ends_where_its_own_records_do() {
    let files = blank(&SimPower::new());
    let wal = open(&files).unwrap();
    let all = in_a_segment_over_another(&wal, &files).await;
    assert_eq!(bodies(&wal), all);
    for seed in 0..8 {
        let cut = files.after_power_cut(seed, &SimPower::new());
        assert_eq!(bodies(&open(&cut).unwrap()), all);
    }
    // The last record torn at each of its sectors, with the old bytes behind; then one before it rotten.
    let last = *wal.segment_starts().last().unwrap();
    let at = |lsn: u64| lsn - last + 32;
    let [.., (before, _), (end, _)] = &all[..] else { panic!("too few") };
    let damaged = |at: u64| {
        let after = files.after_kill(1, &SimPower::new());
        let file = after.root().directory(Path::new(DIR)).unwrap();
        let file = file.open(Path::new(&name_of(last)), Access::Write).unwrap();
        file.write_at(at, b"damage").unwrap();
        after
    };
    for torn in (at(*before)..at(*end) - 8).step_by(512) {
        assert_eq!(bodies(&open(&damaged(torn)).unwrap()), all[..all.len() - 1]);
    }
    let refused = Wal::on(Box::new(media(&damaged(at(*before) - 100))), SMALL).unwrap_err();
    assert!(matches!(refused, WalError::Damaged { .. }), "{refused}");
}

/// Schedule: two records are written to a spare, and the power fails before it is a segment. The next open
/// writes another record of the same length there, as its first: the second one of before would follow.
#[tokio::test]
async fn an_opening_takes_over_no_spare_of_another() {
    // The record ends with a block behind the segment's header: no padding covers what follows.
    const ALIGNED: usize = 2 * 4096 - 32 - 17;
    for cut in 0..9 {
        let power = SimPower::new();
        let files = blank(&power);
        let wal = open(&files).unwrap();
        for n in 0..2 {
            append_and_flush(&wal, &[n; SEGMENT / 2]).await;
        }
        for n in 0..2 {
            wal.append_commit(&[2 + n; ALIGNED]).unwrap();
        }
        power.cut_at(files.calls() + cut);
        let flushed = wal.flush(wal.end()).await;
        let files = files.after_kill(cut, &SimPower::new());
        let wal = open(&files).unwrap();
        let found = bodies(&wal).len();
        assert!(found == 4 || found == 2 && flushed.is_err());
        append_and_flush(&wal, &[9; ALIGNED]).await;
        let files = files.after_power_cut(cut, &SimPower::new());
        let after = bodies(&open(&files).unwrap());
        assert_eq!(after.len(), found + 1, "cut at {cut}");
        assert_eq!(after[found].1, [9; ALIGNED]);
    }
}

/// As a former owner would that wakes up late, where its lock was lost.
#[tokio::test]
async fn what_an_earlier_opening_has_open_is_no_segment_again() {
    let dir = tempfile::tempdir().unwrap();
    let wal = in_use(Box::new(FileMedia::open(dir.path()).unwrap()), SMALL).unwrap();
    let begun = append_and_flush(&wal, &[1; 100]).await;
    let path = dir.path().join(name_of(wal.segment_starts()[0]));
    let theirs = OpenOptions::new().write(true).open(path).unwrap();
    drop(wal);
    let wal = in_use(Box::new(FileMedia::open(dir.path()).unwrap()), SMALL).unwrap();
    for n in 0..60_u8 {
        let keep = append_and_flush(&wal, &[n; 20_000]).await;
        wal.truncate(keep, keep).await.unwrap();
        assert!(keep > begun);
        if wal.segment_starts()[0] > 64 {
            theirs.write_all_at(&[0xab; 70_000], 32).unwrap();
        }
        let all = bodies(&wal);
        assert_eq!(all.last(), Some(&(keep.0, vec![n; 20_000])));
    }
    let all = bodies(&wal);
    drop(wal);
    assert_eq!(bodies(&in_use(Box::new(FileMedia::open(dir.path()).unwrap()), SMALL).unwrap()), all);
}

#[test]
fn a_segment_takes_over_no_file_that_had_its_position_at_the_same_place() {
    let files = blank(&SimPower::new());
    let mut media = media(&files);
    media.reserve(SEGMENT as u64).unwrap();
    media.create(64, &vec![1; SEGMENT]).unwrap();
    media.create(1 << 20, b"next").unwrap();
    media.remove(64).unwrap();
    assert_eq!(spares(&files).len(), 1);
    media.create(64, b"again").unwrap();
    assert_eq!(media.read(64).unwrap(), b"again");
    // A later one may: what follows it says that it is at another position. Nothing follows directly, which
    // could pass for a part of it.
    media.create(2 << 20, b"later").unwrap();
    let read = media.read(2 << 20).unwrap();
    assert!(read.starts_with(b"later\0\0") && read[4096 - 32..SEGMENT] == [1; SEGMENT - (4096 - 32)]);
    assert!(spares(&files).is_empty());
}

/// Schedule: an open hangs in the creation of a segment, and its lock is lost. When it wakes up, it gives
/// the next open's segment the file that it still names.
#[test]
fn a_former_owner_finds_no_spare_of_the_next_one() {
    let files = blank(&SimPower::new());
    let mut former = media(&files);
    former.own().unwrap();
    former.reserve(SEGMENT as u64).unwrap();
    let theirs = spares(&files);
    let files = files.after_kill(1, &SimPower::new());
    let mut media = media(&files);
    media.own().unwrap();
    assert!(spares(&files).is_empty());
    media.reserve(SEGMENT as u64).unwrap();
    let ours = spares(&files);
    assert!(theirs.len() == 1 && ours.len() == 1 && theirs != ours);
}

/// Neither a segment that a long record has made longer, nor one whose file could not be written.
#[test]
fn a_file_that_is_long_or_failed_is_no_spare() {
    let files = blank(&SimPower::new());
    let mut media = media(&files);
    media.reserve(SEGMENT as u64).unwrap();
    media.create(64, b"in the zeroes").unwrap();
    media.create(1 << 20, &vec![1; 4 * SEGMENT]).unwrap();
    media.create(2 << 20, &vec![1; SEGMENT]).unwrap();
    media.remove(1 << 20).unwrap();
    assert!(spares(&files).is_empty(), "it is long");
    files.fail(0, FileFault::Torn);
    media.append(b"more").unwrap_err();
    media.create(3 << 20, &vec![1; SEGMENT]).unwrap();
    media.create(4 << 20, b"last").unwrap();
    media.remove(2 << 20).unwrap();
    assert!(spares(&files).is_empty(), "a block of it may be bad");
    media.remove(3 << 20).unwrap();
    assert_eq!(spares(&files).len(), 1);
}

/// As a backup has it: what reads that takes what follows the records for damage.
#[tokio::test]
async fn a_copy_of_a_closed_log_ends_with_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let [log, copy] = ["log", "copy"].map(|name| dir.path().join(name));
    let wal = in_use(Box::new(FileMedia::open(&log).unwrap()), SMALL).unwrap();
    for n in 0..5_u8 {
        append_and_flush(&wal, &[n; 30_000]).await;
    }
    let (starts, end, all) = (wal.segment_starts(), wal.end().0, bodies(&wal));
    drop(wal);
    copy_log(&log, &copy).unwrap();
    let ends = starts[1..].iter().copied().chain([end]);
    for (start, end) in starts.iter().zip(ends) {
        let len = std::fs::metadata(copy.join(name_of(*start))).unwrap().len();
        assert!((32..=60).contains(&(len - (end - start))), "{start}");
    }
    assert_eq!(bodies(&in_use(Box::new(FileMedia::open(&copy).unwrap()), SMALL).unwrap()), all);
}

/// Schedule: a segment becomes a spare, is written over, and the power fails before another name is durable.
#[test]
fn a_spare_that_is_written_over_has_no_earlier_name() {
    for cut in 0..6 {
        let power = SimPower::new();
        let files = blank(&power);
        let mut log = media(&files);
        log.reserve(SEGMENT as u64).unwrap();
        log.create(64, &vec![1; SEGMENT]).unwrap();
        log.create(1 << 20, b"next").unwrap();
        log.remove(64).unwrap();
        power.cut_at(power.ops() + cut);
        let created = log.create(2 << 20, b"later");
        assert_eq!(created.is_ok(), cut > 3);
        for seed in 0..20 {
            let mut found = media(&files.after_power_cut(seed, &SimPower::new()));
            for start in found.list().unwrap() {
                let bytes = found.read(start).unwrap();
                assert!(bytes.starts_with(if start == 1 << 20 { b"next" } else { b"later" }), "{start}");
            }
        }
    }
}

/// Whichever call fails, a spare is used at most once, and the next creation succeeds.
#[test]
fn a_spare_whose_use_failed_is_given_up() {
    for n in 0..6 {
        let files = blank(&SimPower::new());
        let mut media = media(&files);
        media.reserve(SEGMENT as u64).unwrap();
        files.fail(n, FileFault::Torn);
        let created = media.create(64, &[1; 100]);
        files.clear_faults();
        media.create(64, b"x").unwrap();
        let read = media.read(64).unwrap();
        assert!(read.starts_with(b"x") && !read[1..].contains(&1), "call {n}");
        if created.is_ok() {
            assert_eq!(n, 4);
            return;
        }
    }
    panic!("every call failed")
}

/// Whichever two calls in a row fail while a spare is made: what cannot be removed is never used.
#[test]
fn a_spare_that_could_not_be_made_is_made_later() {
    for n in 0.. {
        let files = blank(&SimPower::new());
        let mut log = media(&files);
        log.own().unwrap();
        let before = files.calls();
        files.fail_each(n..n + 2, FileFault::Torn);
        let _ = log.reserve(SEGMENT as u64);
        let failed = files.calls() > before + n;
        files.clear_faults();
        log.create(64, b"first").unwrap();
        log.append(b", more").unwrap();
        log.reserve(SEGMENT as u64).unwrap();
        let made = spares(&files).len();
        log.create(1 << 20, b"in a spare").unwrap();
        assert_eq!(spares(&files).len() + 1, made, "call {n}");
        let mut next = media(&files.after_kill(n, &SimPower::new()));
        next.own().unwrap();
        assert!(next.list().unwrap() == [64, 1 << 20] && next.read(64).unwrap().starts_with(b"first, more"));
        if !failed {
            assert!(n > 7, "{n} calls");
            return;
        }
    }
}

/// Schedules: each call of a long append over another segment fails, or only a part of it has an effect, and
/// the power is cut. What was appended is there; of what was not, nothing precedes what is appended again.
#[test]
fn a_long_batch_over_another_segment_is_durable_once_it_is_appended() {
    for n in 0.. {
        let files = blank(&SimPower::new());
        let mut log = media(&files);
        log.own().unwrap();
        log.reserve(700 << 10).unwrap();
        log.create(64, &vec![255; 2 << 20]).unwrap();
        log.create(4 << 20, b"next").unwrap();
        log.remove(64).unwrap();
        log.create(8 << 20, b"begins").unwrap();
        let before = files.calls();
        files.fail(n, FileFault::Torn);
        let appended = log.append(&vec![7; 600_000]);
        let calls = files.calls() - before;
        files.clear_faults();
        let mut all = b"begins".to_vec();
        if appended.is_ok() {
            all.extend(vec![7; 600_000]);
        } else {
            log.append(&[8; 5_000]).unwrap();
            all.extend([8; 5_000]);
        }
        for seed in 0..8 {
            let mut next = media(&files.after_power_cut(seed, &SimPower::new()));
            assert!(next.read(8 << 20).unwrap().starts_with(&all), "call {n}, seed {seed}");
        }
        if appended.is_ok() {
            assert!(n == calls && n == 4, "three pieces and a sync: {n}, {calls}");
            return;
        }
    }
}

/// The buffer of the last block is used again; a long batch goes in pieces.
#[test]
fn behind_the_records_of_a_segment_over_another_there_are_zeroes_to_the_end_of_the_block() {
    let (files, dir) = (blank(&SimPower::new()), pagetier_testing::scratch());
    for mut log in [media(&files), FileMedia::open(dir.path()).unwrap()] {
        log.reserve(700 << 10).unwrap();
        log.create(64, &vec![255; 2 << 20]).unwrap();
        log.create(4 << 20, b"next").unwrap();
        log.remove(64).unwrap();
        let mut all = b"begins".to_vec();
        log.create(8 << 20, &all).unwrap();
        for (n, len) in [10, 9_000, 4096, 30, 100_000, 1, 300_000, 50, 8_190, 2, 70_000, 900_000, 7]
            .into_iter()
            .enumerate()
        {
            let record = vec![n as u8 + 1; len];
            log.append(&record).unwrap();
            all.extend(&record);
            let read = log.read(8 << 20).unwrap();
            let (head, block_end) = (32, (32 + all.len()).next_multiple_of(4096));
            assert!(read.starts_with(&all), "record {n}");
            assert!(read[all.len()..block_end - head].iter().all(|byte| *byte == 0), "behind record {n}");
        }
    }
}
