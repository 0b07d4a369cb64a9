//! The archive: no power cut and no failure leaves a gap between it and the log, and it belongs to one log.

use super::sim::{SimMedia, Way};
use super::{LIMITS, SMALL, append_and_flush, bodies, in_use};
use crate::archive;
use crate::error::ArchiveError;
use crate::media::FileMedia;
use crate::record::Records;
use crate::{DeviceMedia, Media, Wal, WalError};
use pagetier::Lsn;
use pagetier::device::SharedDevice;
use pagetier::errors::Advice;
use pagetier_devio::files::create_durably;
use pagetier_testing::{FileFault, SimDevice, SimFiles, SimPower};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

/// A log and its archive, both empty, in one file system.
fn blank(seed: u64, power: &SimPower) -> SimFiles {
    let files = SimFiles::new(seed, &SimPower::new());
    for dir in ["/log", "/archive"] {
        create_durably(&*files.root(), Path::new(dir)).unwrap();
    }
    files.after_kill(seed, power)
}

fn on_log(files: &SimFiles) -> Result<Wal, WalError> {
    let failed = |error| WalError::Io { path: "/log".into(), source: Arc::new(error) };
    let media = files.root().directory(Path::new("/log")).and_then(FileMedia::on).map_err(failed)?;
    Wal::on(Box::new(media), SMALL)
}

/// Opens the log, archives it in another file system, and takes it into use.
fn on(files: &SimFiles, other: &SimFiles) -> Result<Wal, WalError> {
    let wal = on_log(files)?;
    archive_in(&wal, other)?;
    wal.0.write_out(false)?;
    Ok(wal)
}

fn open(files: &SimFiles) -> Result<Wal, WalError> {
    on(files, files)
}

fn in_use_without_archive(files: &SimFiles) -> Wal {
    let wal = on_log(files).unwrap();
    wal.0.write_out(false).unwrap();
    wal
}

fn archive_in(wal: &Wal, files: &SimFiles) -> Result<(), WalError> {
    let (root, id) = (files.root(), wal.id());
    let opens = move || {
        let dir = root.directory(Path::new("/archive"))?;
        Ok(Box::new(FileMedia::archive(dir, id)?) as Box<dyn Media>)
    };
    wal.archive_on("/archive".into(), opens, SystemTime::now, Duration::from_secs(60))
}

/// The records of the archive, each by its end.
fn archived(files: &SimFiles) -> (BTreeMap<u64, Vec<u8>>, u64) {
    let dir = files.root().directory(Path::new("/archive")).unwrap();
    let mut media = FileMedia::reading(dir).unwrap();
    let mut starts = media.list().unwrap();
    starts.sort_unstable();
    let (mut records, mut at) = (BTreeMap::new(), 0);
    for start in starts {
        assert!(at == 0 || at == start, "a gap in the archive from {at} to {start}");
        let (bytes, end) = archive::read(&mut media, start).unwrap();
        records.extend(Records::new(start, &bytes).map(|record| (record.lsn, record.body.to_vec())));
        at = end;
    }
    (records, at)
}

/// Commits, archives and shortens; returns what was reported durable.
async fn work(wal: &Wal, turns: u8) -> Vec<(u64, Vec<u8>)> {
    let mut durable = Vec::new();
    for turn in 0..turns {
        let body = vec![turn; 20_000];
        let lsn = wal.append_commit(&body).unwrap();
        wal.append_applied(lsn);
        if wal.flush(wal.end()).await.is_err() {
            return durable;
        }
        durable.push((lsn.0, body));
        if turn % 4 == 3 {
            let _ = wal.archive_now().await;
            let _ = wal.truncate(lsn, lsn).await;
        }
    }
    durable
}

/// Schedule: the power is cut at any operation, so also between the copy of a segment, its name, the sync of
/// that, and the removal. Whatever is left, archive and log have every record without a gap, and the next
/// open goes on.
#[tokio::test]
async fn a_power_cut_at_any_operation_leaves_no_gap_between_archive_and_log() {
    let mut cuts = 0;
    for n in 1.. {
        let power = SimPower::new();
        power.cut_at(n);
        let files = blank(n, &power);
        let durable = match open(&files) {
            Ok(wal) => work(&wal, 12).await,
            Err(_) => Vec::new(),
        };
        if !power.is_cut() {
            break;
        }
        cuts += 1;
        for seed in 0..4 {
            let after = files.after_power_cut(seed, &SimPower::new());
            let wal = open(&after).unwrap_or_else(|error| panic!("cut at {n}: {error}"));
            let (mut all, end) = archived(&after);
            assert!(
                end == 0 && wal.oldest().0 == 64 || wal.oldest().0 <= end,
                "cut at {n}: a gap after {end}"
            );
            all.extend(bodies(&wal));
            assert!(
                durable.iter().all(|(lsn, body)| all.get(lsn) == Some(body)),
                "cut at {n}: a record is lost"
            );
            work(&wal, 6).await;
            assert_eq!(wal.archive_now().await.unwrap(), wal.end(), "cut at {n}");
            assert_eq!(archived(&after).1, wal.end().0);
        }
    }
    assert!(cuts > 60, "{cuts} cuts");
}

/// Each call of the archive's file system fails once, before it does anything or half-way; then the power
/// fails there. Nothing of the log goes that the archive lacks, and commits go on.
#[tokio::test]
async fn whatever_call_of_the_archive_fails_the_log_keeps_what_it_lacks() {
    let mut cases = 0;
    for fault in [FileFault::Refused, FileFault::Torn] {
        for n in 0..80 {
            let (files, other) = (blank(n, &SimPower::new()), blank(n + 1, &SimPower::new()));
            let wal = on(&files, &other).unwrap();
            let before = other.calls();
            other.fail(n, fault);
            let durable = work(&wal, 12).await;
            assert_eq!(durable.len(), 12, "{fault:?} at {n}: a commit was refused");
            cases += u32::from(other.calls() > before + n);
            drop(wal);
            let left = other.after_power_cut(n, &SimPower::new());
            let wal = on(&files, &left).unwrap_or_else(|error| panic!("{fault:?} at {n}: {error}"));
            let (mut all, _) = archived(&left);
            all.extend(bodies(&wal));
            assert!(durable.iter().all(|(lsn, body)| all.get(lsn) == Some(body)), "{fault:?} at {n}");
        }
    }
    assert!(cases > 25, "{cases} cases");
}

/// Whether archive and log, together and without a gap, have all of these.
fn have_all(wal: &Wal, archive: &SimFiles, durable: &[(u64, Vec<u8>)]) -> bool {
    let (mut all, end) = archived(archive);
    all.extend(bodies(wal));
    (end >= wal.oldest().0 || wal.oldest().0 == 64)
        && durable.iter().all(|(lsn, body)| all.get(lsn) == Some(body))
}

/// Schedule: the sync of a copy's name fails, or the process is killed before it. The copy can be read then.
/// The log archives what it has and is shortened; the archive's power is cut, and takes the name.
#[tokio::test]
async fn a_copy_that_can_be_read_does_not_count_as_durable() {
    let (mut failed, mut killed) = (0, 0);
    for n in 0..40 {
        let (files, other) = (blank(n, &SimPower::new()), blank(n + 1, &SimPower::new()));
        let wal = on(&files, &other).unwrap();
        let mut durable = work(&wal, 4).await;
        durable.push((append_and_flush(&wal, b"last").await.0, b"last".to_vec()));
        other.fail(n, if n % 2 == 0 { FileFault::Torn } else { FileFault::Refused });
        failed += u32::from(wal.archive_now().await.is_err());
        wal.archive_now().await.unwrap();
        let next = append_and_flush(&wal, b"next").await;
        wal.truncate(next, next).await.unwrap();
        for seed in 0..4 {
            let left = other.after_power_cut(seed, &SimPower::new());
            assert!(have_all(&wal, &left, &durable), "failed at {n}");
        }
        // The same with a kill.
        let power = SimPower::new();
        let (files, other) = (blank(n, &SimPower::new()), blank(n + 1, &power));
        let wal = on(&files, &other).unwrap();
        let mut durable = work(&wal, 4).await;
        durable.push((append_and_flush(&wal, b"last").await.0, b"last".to_vec()));
        power.cut_at(power.ops() + n);
        killed += u32::from(wal.archive_now().await.is_err());
        drop(wal);
        let other = other.after_kill(n, &SimPower::new());
        let wal = on(&files, &other).unwrap();
        wal.archive_now().await.unwrap();
        let next = append_and_flush(&wal, b"next").await;
        wal.truncate(next, next).await.unwrap();
        for seed in 0..4 {
            let left = other.after_power_cut(seed, &SimPower::new());
            assert!(have_all(&wal, &left, &durable), "killed at {n}");
        }
    }
    assert!(failed > 4 && killed > 4, "{failed} failures, {killed} kills");
}

/// Full in the middle of a segment: the log says why it grows, and is shortened once there is space.
#[tokio::test]
async fn a_full_archive_is_named_and_holds_the_log() {
    let (files, other) = (blank(1, &SimPower::new()), blank(2, &SimPower::new()));
    let wal = on(&files, &other).unwrap();
    work(&wal, 4).await;
    let up_to = wal.archived().unwrap().up_to;
    other.set_free(Some(30_000));
    assert_eq!(work(&wal, 12).await.len(), 12, "commits go on");
    let state = wal.archived().unwrap();
    assert!(up_to > Lsn(0) && state.up_to == up_to && wal.oldest() <= up_to, "{state:?}");
    let failure = state.failure.expect("it has failed");
    assert!(failure.to_string().contains("/archive"), "{failure}");
    assert_eq!(failure.advice(), Advice::FreeSpace);
    other.set_free(None);
    let end = wal.archive_now().await.unwrap();
    wal.truncate(end, end).await.unwrap();
    assert!(wal.archived().unwrap().failure.is_none() && wal.oldest() > up_to);
    assert_eq!(archived(&other).1, end.0);
}

#[track_caller]
fn refused(opened: Result<(), WalError>) -> ArchiveError {
    match opened {
        Err(WalError::Archive(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_archive_belongs_to_one_line_of_one_log_and_has_no_gap() {
    let (files, foreign) = (blank(1, &SimPower::new()), blank(2, &SimPower::new()));
    let wal = open(&files).unwrap();
    work(&wal, 8).await;
    // A second log has the directory neither beside it nor after it.
    let other = Wal::on(Box::new(SimMedia::new(1)), SMALL).unwrap();
    let in_use = archive_in(&other, &files);
    assert!(in_use.is_ok() && other.archived().unwrap().failure.is_some(), "it may be free later");
    drop((wal, other));
    let other = Wal::on(Box::new(SimMedia::new(1)), SMALL).unwrap();
    let error = refused(archive_in(&other, &files));
    assert!(matches!(error, ArchiveError::OtherLog { .. }), "{error}");
    // A copy of log and archive goes on, and so does the original: neither takes the other's archive.
    let copy = files.after_kill(1, &SimPower::new());
    let wal = open(&copy).unwrap();
    append_and_flush(&wal, b"another line").await;
    wal.archive_now().await.unwrap();
    drop(wal);
    work(&in_use_without_archive(&files), 4).await;
    let wal = on_log(&files).unwrap();
    let error = refused(archive_in(&wal, &copy));
    assert!(matches!(error, ArchiveError::OtherTimeline { .. }), "{error}");
    drop(wal);
    // An open without the archive has removed what that lacks.
    work(&in_use_without_archive(&files), 12).await;
    let wal = on_log(&files).unwrap();
    let error = refused(archive_in(&wal, &files));
    assert!(matches!(error, ArchiveError::Gap { .. }), "{error}");
    // A new directory is a new archive.
    archive_in(&wal, &foreign).unwrap();
    wal.0.write_out(false).unwrap();
    assert_eq!(wal.archive_now().await.unwrap(), wal.end());
}

/// Schedule: a store is copied while it is closed, and the original goes on, which ends the segment that was
/// the copy's last. The archive is longer than the copy: what that appends would count as archived.
#[tokio::test]
async fn an_older_copy_of_a_log_does_not_go_on_with_its_archive() {
    let files = blank(1, &SimPower::new());
    let wal = open(&files).unwrap();
    work(&wal, 8).await;
    append_and_flush(&wal, b"of both").await;
    drop(wal);
    let copy = files.after_kill(1, &SimPower::new());
    let wal = open(&files).unwrap();
    let end = wal.archive_now().await.unwrap();
    drop(wal);
    // As long as the copy has all that is archived, it is the same line.
    let (log, archive) = (copy.after_kill(1, &SimPower::new()), files.after_kill(1, &SimPower::new()));
    assert_eq!(on(&log, &archive).unwrap().archive_now().await.unwrap(), end);
    let wal = open(&files).unwrap();
    append_and_flush(&wal, b"of the original").await;
    wal.archive_now().await.unwrap();
    drop(wal);
    let copy = on_log(&copy).unwrap();
    let error = refused(archive_in(&copy, &files));
    assert!(matches!(error, ArchiveError::OtherTimeline { .. }), "{error}");
}

#[tokio::test]
async fn an_archive_begins_with_the_opening_of_a_log_that_lasts() {
    let files = blank(1, &SimPower::new());
    let wal = in_use_without_archive(&files);
    assert!(matches!(refused(archive_in(&wal, &files)), ArchiveError::CannotBegin));
    drop(wal);
    let wal = open(&files).unwrap();
    assert!(matches!(refused(archive_in(&wal, &files)), ArchiveError::CannotBegin), "once");
    let wal = Wal::in_memory(SMALL);
    assert!(matches!(refused(archive_in(&wal, &files)), ArchiveError::CannotBegin));
}

/// A call a minute, for as long as the archive's disk is away: it must not use up what changes need.
#[tokio::test]
async fn calls_that_archive_nothing_leave_no_segments() {
    let (files, other) = (blank(1, &SimPower::new()), blank(2, &SimPower::new()));
    let wal = on(&files, &other).unwrap();
    work(&wal, 4).await;
    other.set_free(Some(0));
    let before = wal.segment_starts().len();
    for n in 0..20 {
        append_and_flush(&wal, &[n; 100]).await;
        wal.archive_now().await.unwrap_err();
    }
    assert!(wal.segment_starts().len() <= before + 1, "{:?}", wal.segment_starts());
    // Where the log's own disk has no space for a segment, the last one goes on.
    other.set_free(None);
    wal.archive_now().await.unwrap();
    let first = append_and_flush(&wal, b"first").await;
    let before = wal.segment_starts();
    files.set_free(Some(20_000));
    assert!(matches!(wal.archive_now().await.unwrap_err(), WalError::Io { .. }));
    let second = append_and_flush(&wal, b"second").await;
    assert!(first < second && wal.segment_starts() == before, "no new segment was needed");
    files.set_free(None);
    assert_eq!(wal.archive_now().await.unwrap(), wal.end());
    assert_eq!(archived(&other).1, wal.end().0);
}

/// On a device a segment takes one of few slots, and the last ones are for changes.
#[tokio::test]
async fn what_is_archived_at_once_leaves_slots_to_changes() {
    let (files, power) = (blank(1, &SimPower::new()), SimPower::new());
    let device = Arc::new(SimDevice::new("log", 8 << 20, 1, &power)) as SharedDevice;
    let media = DeviceMedia::open(device, SMALL.segment_bytes()).unwrap();
    let wal = Wal::on(Box::new(media), LIMITS).unwrap();
    archive_in(&wal, &files).unwrap();
    wal.0.write_out(false).unwrap();
    while !wal.is_scarce() {
        append_and_flush(&wal, b"short").await;
        wal.archive_now().await.unwrap();
    }
    let before = wal.segment_starts();
    append_and_flush(&wal, b"short").await;
    let error = wal.archive_now().await.unwrap_err();
    assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
    let last = append_and_flush(&wal, b"more").await;
    assert_eq!(wal.segment_starts(), before);
    wal.truncate(last, last).await.unwrap();
    assert_eq!(wal.archive_now().await.unwrap(), wal.end());
}

/// The directory's disk is not mounted any more, and an empty directory is in its place.
#[tokio::test]
async fn an_archive_that_becomes_empty_while_it_is_used_is_not_begun_anew() {
    let (files, other) = (blank(1, &SimPower::new()), blank(2, &SimPower::new()));
    let wal = on(&files, &other).unwrap();
    work(&wal, 8).await;
    let dir = other.root().directory(Path::new("/archive")).unwrap();
    for name in dir.names().unwrap() {
        dir.remove(Path::new(&name)).unwrap();
    }
    // What the log has open is not closed before a copy fails.
    other.fail(0, FileFault::Refused);
    append_and_flush(&wal, b"next").await;
    wal.archive_now().await.unwrap_err();
    let error = wal.archive_now().await.unwrap_err();
    assert!(matches!(error, WalError::Archive(ArchiveError::Gap { .. })), "{error}");
}

/// A write is split over two segments, and the second part fails: the first is durable, and its commit is
/// not reported as failed.
#[tokio::test]
async fn the_durable_part_of_a_write_that_fails_is_reported_as_durable() {
    let media = SimMedia::new(1);
    let wal = in_use(Box::new(media.clone()), LIMITS).unwrap();
    let first = wal.append_commit(&[1; 70_000]).unwrap();
    let second = wal.append_commit(&[2; 70_000]).unwrap();
    media.fail(1, Way::Refused);
    wal.flush(first).await.unwrap();
    assert_eq!(wal.durable(), first);
    assert!(wal.is_failing());
    wal.flush(second).await.unwrap();
    media.cut();
    let wal = Wal::on(Box::new(media.after_power_cut(1)), LIMITS).unwrap();
    assert_eq!(bodies(&wal).len(), 2);
    // The caller of the later record is told.
    let media = SimMedia::new(2);
    let wal = in_use(Box::new(media.clone()), LIMITS).unwrap();
    wal.append_commit(&[1; 70_000]).unwrap();
    let second = wal.append_commit(&[2; 70_000]).unwrap();
    media.fail(1, Way::Refused);
    assert!(wal.flush(second).await.is_err());
}

/// Schedule: the mark of a commit's time begins a segment, and the write of that fails.
#[tokio::test]
async fn a_commit_of_an_archived_log_counts_once_the_mark_of_its_time_is_durable() {
    let media = SimMedia::new(1);
    let wal = Wal::on(Box::new(media.clone()), LIMITS).unwrap();
    archive_in(&wal, &blank(1, &SimPower::new())).unwrap();
    wal.0.write_out(false).unwrap();
    let commit = wal.append_commit(&[1; 70_000]).unwrap();
    media.fail(1, Way::Refused);
    assert!(wal.flush(commit).await.is_err());
    assert!(wal.durable() < commit);
    wal.flush(commit).await.unwrap();
    assert!(wal.durable() > commit, "the mark follows");
}

/// Schedule: the archive is on a network that is down, and a look at it does not return: nor did the open.
#[tokio::test]
async fn an_archive_that_hangs_keeps_no_log_from_its_opening() {
    let files = blank(1, &SimPower::new());
    let wal = on_log(&files).unwrap();
    let (is_down, hangs) = mpsc::channel::<()>();
    let (root, id, hangs) = (files.root(), wal.id(), Mutex::new(hangs));
    let opens = move || {
        let _ = hangs.lock().unwrap().recv();
        let dir = root.directory(Path::new("/archive"))?;
        Ok(Box::new(FileMedia::archive(dir, id)?) as Box<dyn Media>)
    };
    wal.archive_on("/archive".into(), opens, SystemTime::now, Duration::from_millis(20)).unwrap();
    let failure = wal.archived().unwrap().failure.expect("it hangs");
    assert_eq!(failure.advice(), Advice::FixDevice);
    wal.0.write_out(false).unwrap();
    let oldest = wal.oldest();
    let lsn = append_and_flush(&wal, b"first").await;
    wal.truncate(lsn, lsn).await.unwrap();
    assert_eq!(wal.oldest(), oldest);
    drop(is_down);
    // The first look may have the archive's lock for a moment.
    let end = loop {
        match wal.archive_now().await {
            Ok(end) => break end,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert!(end >= lsn && archived(&files).1 == end.0);
}
