//! The log's files on a file system that loses what was not synced, and under other names.

use super::sim::{Gate, SimMedia};
use super::{LIMITS, SMALL, append_and_flush, bodies, segments};
use crate::copy::copy;
use crate::log::segments::Segments;
use crate::{FileMedia, LoggedStore, Media, Wal, WalError, copy_log};
use pagetier::Lsn;
use pagetier::backup::BackupOptions;
use pagetier::errors::Advice;
use pagetier::{PageId, PageStore};
use pagetier_devio::files::{Directory, create_durably};
use pagetier_testing::{FileFault, SimFiles, SimPower};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The outcomes of each power cut that are looked at.
const OUTCOMES: u64 = 8;

/// What the log was given and has promised.
#[derive(Debug, Default)]
struct Model {
    appended: BTreeMap<u64, Vec<u8>>,
    /// The last record that was reported durable.
    durable: u64,
    /// The first record that must still be there.
    needed: u64,
}

fn blank(seed: u64, power: &SimPower) -> SimFiles {
    let files = SimFiles::new(seed, &SimPower::new());
    create_durably(&*files.root(), Path::new("/log")).unwrap();
    files.after_kill(seed, power)
}

fn media(files: &SimFiles) -> FileMedia {
    FileMedia::on(files.root().directory(Path::new("/log")).unwrap()).unwrap()
}

fn open(files: &SimFiles) -> Result<Wal, WalError> {
    open_in(&*files.root(), "/log")
}

fn open_in(root: &dyn Directory, path: &str) -> Result<Wal, WalError> {
    let media = root.directory(Path::new(path)).and_then(FileMedia::on);
    let media = media.map_err(|error| WalError::Io { path: path.into(), source: Arc::new(error) })?;
    super::in_use(Box::new(media), SMALL)
}

/// Commits over several segments, shortens the log, and fills the disk for a while. Ends at the first failed
/// commit, or goes on.
async fn work(files: &SimFiles, wal: &Wal, model: &mut Model, goes_on: bool) {
    for turn in 0..18_u8 {
        match turn {
            6 => files.set_free(Some(0)),
            9 => files.set_free(None),
            _ => {}
        }
        let body = vec![turn; 20_000];
        let lsn = wal.append_commit(&body).unwrap();
        model.appended.insert(lsn.0, body);
        let flushed = if turn % 2 == 0 { wal.flush(lsn).await } else { wal.flush_or_reserve(lsn).await };
        match flushed {
            Ok(()) => model.durable = lsn.0,
            Err(error) if !goes_on && error.advice() != Advice::FreeSpace => return,
            Err(_) => {}
        }
        // Two segments at once: a power cut must not bring back the second of them alone.
        if turn % 8 == 7 {
            model.needed = model.durable.saturating_sub(30_000);
            let _ = wal.truncate(Lsn(model.needed), Lsn(model.needed)).await;
        }
    }
    // What failed last is tried again.
    for _ in 0..2 {
        if wal.flush(wal.end()).await.is_ok() {
            model.durable = wal.end().0;
        }
    }
}

/// What was promised is there, and nothing that was never appended.
fn check(wal: &Wal, model: &Model) {
    let found: BTreeMap<u64, Vec<u8>> = bodies(wal).into_iter().collect();
    for (lsn, body) in &found {
        assert_eq!(model.appended.get(lsn), Some(body), "the record at {lsn} is another one");
    }
    if model.durable > 0 {
        for lsn in model.appended.range(model.needed..=model.durable).map(|(lsn, _)| lsn) {
            assert!(found.contains_key(lsn), "the record at {lsn} is gone");
        }
    }
}

/// Opens the log, after a power cut or a kill, on a disk that may still be full, and goes on: what it says is
/// durable from then on.
async fn goes_on(files: &SimFiles, model: &Model) {
    let wal = open(files).unwrap();
    check(&wal, model);
    let before = bodies(&wal);
    for seed in 0..OUTCOMES / 2 {
        let cut = files.after_power_cut(seed, &SimPower::new());
        assert_eq!(bodies(&open(&cut).unwrap()), before);
    }
    files.set_free(None);
    let lsn = append_and_flush(&wal, b"next").await;
    for seed in 0..2 {
        let cut = files.after_power_cut(seed, &SimPower::new());
        let found = bodies(&open(&cut).unwrap());
        assert_eq!(found[..before.len()], before);
        assert_eq!(found[before.len()..], [(lsn.0, b"next".to_vec())]);
    }
}

#[tokio::test]
async fn a_log_keeps_what_it_acknowledged_whichever_call_the_power_is_cut_at() {
    for n in 1.. {
        let power = SimPower::new();
        let files = blank(n, &power);
        power.cut_at(n);
        let mut model = Model::default();
        if let Ok(wal) = open(&files) {
            work(&files, &wal, &mut model, true).await;
        }
        for seed in 0..OUTCOMES {
            goes_on(&files.after_power_cut(seed, &SimPower::new()), &model).await;
        }
        // The process dies alone, and the power fails later.
        goes_on(&files.after_kill(n, &SimPower::new()), &model).await;
        if !power.is_cut() {
            assert!(n > 50 && model.durable > 18 * 20_000 && model.needed > 64, "{n} calls");
            break;
        }
    }
}

#[tokio::test]
async fn a_log_keeps_what_it_acknowledged_whichever_call_fails() {
    for (fault, goes_on_itself, in_a_row) in [
        (FileFault::Refused, true, 1),
        (FileFault::Torn, true, 1),
        // Also what was to undo the first one.
        (FileFault::Torn, true, 2),
        // The process dies of it: the next one finds what no sync will make durable.
        (FileFault::Torn, false, 1),
    ] {
        for n in 0.. {
            let files = blank(n, &SimPower::new());
            files.fail_each(n..n + in_a_row, fault);
            let mut model = Model::default();
            let opened = open(&files);
            if let Ok(wal) = &opened {
                work(&files, wal, &mut model, goes_on_itself).await;
                check(wal, &model);
                assert!(!goes_on_itself || model.durable == wal.end().0, "it never recovered");
            }
            drop(opened);
            for seed in 0..OUTCOMES / 2 {
                goes_on(&files.after_power_cut(seed, &SimPower::new()), &model).await;
            }
            goes_on(&files.after_kill(n, &SimPower::new()), &model).await;
            if files.calls() <= n {
                break;
            }
        }
    }
}

/// A log of several segments, to be copied.
async fn source() -> Wal {
    let wal = Wal::in_memory(SMALL);
    for n in 0..9_u8 {
        append_and_flush(&wal, &[n; 20_000]).await;
    }
    assert!(wal.segment_starts().len() > 1);
    wal
}

/// With a slash at its end, as it may come from a shell.
fn copied(wal: &Wal, files: &SimFiles) -> Result<(), WalError> {
    let to = Path::new("/backup/log/");
    copy(&*files.root(), to, (wal.id(), wal.format()), wal.segment_starts(), |start| wal.segment(start))
}

fn is_whole(files: &SimFiles, wal: &Wal) {
    let copy = open_in(&*files.root(), "/backup/log").unwrap();
    assert_eq!(bodies(&copy), bodies(wal));
}

#[tokio::test]
async fn a_copy_under_its_name_is_whole_whenever_the_power_is_cut() {
    let wal = source().await;
    for n in 1.. {
        let power = SimPower::new();
        let files = SimFiles::new(n, &power);
        power.cut_at(n);
        let result = copied(&wal, &files);
        for seed in 0..OUTCOMES {
            let after = files.after_power_cut(seed, &SimPower::new());
            let named = after.root().stat(Path::new("/backup/log"));
            if !matches!(named, Ok(Some(_))) {
                assert!(result.is_err(), "a finished copy is gone");
                copied(&wal, &after).unwrap();
                is_whole(&after.after_power_cut(seed, &SimPower::new()), &wal);
            }
            is_whole(&after, &wal);
        }
        if result.is_ok() && !power.is_cut() {
            assert!(n > 20, "{n}");
            break;
        }
    }
}

#[tokio::test]
async fn a_copy_that_failed_can_be_repeated() {
    let wal = source().await;
    for fault in [FileFault::Refused, FileFault::Torn] {
        for n in 0.. {
            let files = SimFiles::new(n, &SimPower::new());
            files.fail(n, fault);
            if copied(&wal, &files).is_ok() {
                break;
            }
            copied(&wal, &files).unwrap();
            for seed in 0..OUTCOMES {
                is_whole(&files.after_power_cut(seed, &SimPower::new()), &wal);
            }
        }
    }
}

#[tokio::test]
async fn a_copy_to_a_path_with_a_slash_at_its_end_is_beside_it_until_it_is_whole() {
    let dir = pagetier_testing::scratch();
    let path = |name: &str| dir.path().join(name);
    let wal = Wal::open(&path("log"), LIMITS).unwrap();
    append_and_flush(&wal, b"one").await;
    // An interrupted copy has left something; so has an operator, in another directory.
    fs::create_dir_all(path("copy.partial")).unwrap();
    fs::write(path("copy.partial/0000000000000040.log"), b"half").unwrap();
    wal.copy_to(&path("copy/")).await.unwrap();
    drop(wal);
    copy_log(&path("copy/"), &path("again/")).unwrap();
    for copy in ["copy", "again"] {
        assert_eq!(bodies(&Wal::open(&path(copy), LIMITS).unwrap()).len(), 1);
        assert!(!path(&format!("{copy}.partial")).exists() && !path(copy).join(".partial").exists());
    }
    fs::create_dir_all(path("third.partial")).unwrap();
    fs::write(path("third.partial/letter"), b"mine").unwrap();
    let refused = copy_log(&path("copy"), &path("third")).unwrap_err();
    assert!(matches!(&refused, WalError::Io { path, .. } if path.ends_with("third.partial")), "{refused}");
    assert_eq!(fs::read(path("third.partial/letter")).unwrap(), b"mine");
    for taken in ["copy", "copy/", "copy/..", "/"] {
        let WalError::Io { source, .. } = copy_log(&path("again"), &path(taken)).unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists, "{taken}");
    }
}

#[tokio::test]
async fn a_copy_has_the_records_that_no_call_has_flushed() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(&dir.path().join("log"), LIMITS).unwrap();
    append_and_flush(&wal, b"one").await;
    wal.append_commit(b"two").unwrap();
    wal.copy_to(&dir.path().join("copy")).await.unwrap();
    let copy = Wal::open(&dir.path().join("copy"), LIMITS).unwrap();
    assert_eq!((copy.end(), bodies(&copy).len()), (wal.end(), 2));
}

/// The log is shortened while the copy waits for its flush.
#[tokio::test]
async fn a_copy_has_the_log_as_it_was_when_it_began() {
    let dir = pagetier_testing::scratch();
    let writes = Gate::default();
    let wal = super::in_use(Box::new(SimMedia::new(1).behind(&writes)), SMALL).unwrap();
    append_and_flush(&wal, b"one").await;
    wal.append_commit(b"two").unwrap();
    let to = dir.path().join("copy");
    let mut copying = std::pin::pin!(wal.copy_to(&to));
    writes.set(true);
    assert!(futures_util::poll!(copying.as_mut()).is_pending());
    writes.set(false);
    for _ in 0..8 {
        append_and_flush(&wal, &[7; 40_000]).await;
    }
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    copying.await.unwrap();
    let copy = Wal::open(&to, SMALL).unwrap();
    assert_eq!(bodies(&copy).first().map(|(_, body)| body.as_slice()), Some(&b"one"[..]));
}

#[test]
fn a_directory_without_a_log_is_not_copied() {
    let dir = pagetier_testing::scratch();
    let [empty, copy] = ["empty", "copy"].map(|name| dir.path().join(name));
    fs::create_dir(&empty).unwrap();
    let refused = copy_log(&empty, &copy).unwrap_err();
    assert!(matches!(&refused, WalError::Io { path, .. } if *path == empty), "{refused}");
    assert!(!copy.exists());
}

#[tokio::test]
async fn only_names_that_the_log_gives_are_segments() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    append_and_flush(&wal, b"one").await;
    drop(wal);
    let segment = segments(dir.path()).pop().unwrap();
    for name in ["+000000000000040.log", "00000000000000F0.log", "40.log", "0000000000000040.log.old"] {
        fs::copy(&segment, dir.path().join(name)).unwrap();
    }
    for _ in 0..2 {
        let wal = Wal::open(dir.path(), LIMITS).unwrap();
        assert_eq!(wal.segment_starts(), [64]);
        assert_eq!(bodies(&wal)[0].1, b"one");
    }
    copy_log(dir.path(), &dir.path().join("copy")).unwrap();
    assert_eq!(segments(&dir.path().join("copy")).len(), 1);
}

/// The log's directory gets another name, and that of another log takes its place.
#[tokio::test]
async fn a_log_stays_in_the_directory_that_it_opened() {
    let outer = pagetier_testing::scratch();
    let [here, moved, other] = ["log", "moved", "other"].map(|name| outer.path().join(name));
    let theirs = Wal::open(&other, LIMITS).unwrap();
    append_and_flush(&theirs, b"theirs").await;
    drop(theirs);
    let wal = Wal::open(&here, LIMITS).unwrap();
    append_and_flush(&wal, b"first").await;
    fs::rename(&here, &moved).unwrap();
    fs::rename(&other, &here).unwrap();
    let contents = || segments(&here).into_iter().map(|path| (fs::read(&path).unwrap(), path));
    let before: Vec<_> = contents().collect();
    let mut last = Lsn(0);
    for n in 0..30_u8 {
        last = append_and_flush(&wal, &[n; 10_000]).await;
        wal.truncate(last, last).await.unwrap();
    }
    assert!(contents().eq(before), "the other log is another one");
    drop(wal);
    let wal = Wal::open(&moved, LIMITS).unwrap();
    assert_eq!((wal.end(), bodies(&wal).last().unwrap().0), (last, last.0));
    assert!(wal.oldest() > Lsn(64));
}

/// A removal that may not be durable leaves the segment where it is, so that it can be read and removed
/// again.
#[test]
fn a_removal_that_fails_leaves_its_segment() {
    for kept in [0, 1 << 16] {
        let files = blank(1, &SimPower::new());
        let mut media = media(&files);
        if kept > 0 {
            media.reserve(kept).unwrap();
        }
        media.create(64, b"one").unwrap();
        media.create(67, b"two").unwrap();
        // The rename, then the directory's sync.
        for n in [0, 1] {
            files.fail(n, FileFault::Torn);
            media.remove(64).unwrap_err();
            assert!(media.list().unwrap() == [64, 67] && media.read(64).unwrap().starts_with(b"one"));
        }
        media.remove(64).unwrap();
        for seed in 0..20 {
            let cut = files.after_power_cut(seed, &SimPower::new());
            assert_eq!(self::media(&cut).list().unwrap(), [67]);
        }
    }
}

/// The schedule: a process is killed while the oldest segment becomes the reserve. The next one uses it, and
/// the power fails: what it wrote must not appear under the segment's name.
#[test]
fn a_reserve_never_has_the_name_of_the_segment_that_it_was() {
    for (killed_at, cut_at) in (0..3).flat_map(|killed| (1..16).map(move |cut| (killed, cut))) {
        let power = SimPower::new();
        let files = blank(cut_at, &power);
        let mut log = media(&files);
        log.reserve(1 << 16).unwrap();
        log.create(64, b"one").unwrap();
        log.create_reserved(67, b"two").unwrap();
        power.cut_at(power.ops() + killed_at);
        let _ = log.remove(64);
        let power = SimPower::new();
        let files = files.after_kill(cut_at, &power);
        let mut log = media(&files);
        power.cut_at(cut_at);
        let _ = log.reserve(1 << 16).and_then(|()| log.create_reserved(70, b"three"));
        has_its_segments_after_a_power_cut(&files);
    }
}

/// Each segment has its own records, and the second is there.
fn has_its_segments_after_a_power_cut(files: &SimFiles) {
    for seed in 0..20 {
        let mut media = media(&files.after_power_cut(seed, &SimPower::new()));
        for start in media.list().unwrap() {
            let bytes = media.read(start).unwrap();
            let expected = [(64, &b"one"[..]), (67, b"two"), (70, b"three")];
            let is_whole = |(of, whole): &(u64, &[u8])| *of == start && bytes.starts_with(whole);
            assert!(expected.iter().any(is_whole), "{start}");
        }
        assert!(media.list().unwrap().contains(&67));
    }
}

/// Schedule: a sync of the directory fails while a segment goes, and so does the change of names that gives
/// the segment its name back. Its file is taken for the next segment, and the power fails.
#[test]
fn a_removal_that_cannot_be_undone_is_undone_before_its_file_is_used() {
    for (reserved, cut_at) in [false, true].into_iter().flat_map(|of| (0..16).map(move |cut| (of, cut))) {
        let power = SimPower::new();
        let files = blank(cut_at, &power);
        let mut log = media(&files);
        if reserved {
            log.reserve(1 << 16).unwrap();
        }
        log.create(64, b"one").unwrap();
        if reserved {
            log.create_reserved(67, b"two").unwrap();
        } else {
            log.create(67, b"two").unwrap();
        }
        files.fail_each(1..3, FileFault::Torn);
        log.remove(64).unwrap_err();
        power.cut_at(power.ops() + cut_at);
        let _ = match reserved {
            true => log.reserve(1 << 16).and_then(|()| log.create_reserved(70, b"three")),
            false => log.create(70, b"three"),
        };
        has_its_segments_after_a_power_cut(&files);
    }
}

/// The same, and the process is killed before the name is given back: the next open creates a segment.
#[test]
fn a_removal_that_a_kill_cut_short_lends_its_name_to_no_later_segment() {
    for cut_at in 0..16 {
        let (files, power) = (blank(cut_at, &SimPower::new()), SimPower::new());
        let mut log = media(&files);
        log.create(64, b"one").unwrap();
        log.create(67, b"two").unwrap();
        files.fail_each(1..3, FileFault::Torn);
        log.remove(64).unwrap_err();
        let killed = files.after_kill(cut_at, &power);
        let mut log = media(&killed);
        power.cut_at(power.ops() + cut_at);
        let _ = log.own().and_then(|()| log.create(70, b"three"));
        has_its_segments_after_a_power_cut(&killed);
    }
}

/// A segment in the reserve takes the start of one whose removal is to be undone: that must not take its
/// place later.
#[test]
fn a_removal_is_undone_before_the_reserve_takes_its_name() {
    let files = blank(1, &SimPower::new());
    let mut log = media(&files);
    log.reserve(1 << 16).unwrap();
    log.create(64, b"one").unwrap();
    log.begin(67, b"").unwrap();
    files.fail_each(1..3, FileFault::Torn);
    log.remove(67).unwrap_err();
    log.create_reserved(67, b"two").unwrap();
    log.remove(64).unwrap();
    assert_eq!(log.read(67).unwrap(), b"two");
}

/// The log begins anew behind a segment that is given up, whose removal fails once.
#[test]
fn a_segment_that_is_given_up_goes_with_the_next_attempt() {
    let mut failed = 0;
    for nth in 0..12 {
        let files = blank(nth, &SimPower::new());
        media(&files).create(64, b"").unwrap();
        let (mut segments, ..) = Segments::open(Box::new(media(&files)), 64).unwrap();
        segments.begin_at(100);
        files.fail_each(nth..nth + 1, FileFault::Torn);
        if segments.ready().is_err() {
            failed += 1;
            segments.begin_at(100);
            segments.ready().unwrap();
        }
        drop(segments);
        assert_eq!(media(&files).list().unwrap(), [100], "call {nth}");
    }
    assert!(failed > 2, "{failed}");
}

/// A space is created, and a page of it committed, after the backup has listed the spaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copy_for_a_backup_has_no_record_of_a_space_that_the_backup_lacks() {
    let dir = pagetier_testing::scratch();
    let (chain, to) = (dir.path().join("chain"), dir.path().join("to"));
    let builder =
        |to: &Path| PageStore::builder().directory(to.join("pages")).ssd_bytes(0).pool_bytes(4 << 20);
    let db = Arc::new(LoggedStore::open(builder(dir.path()), dir.path().join("log"), LIMITS).await.unwrap());
    put_in_new_space(&db, "before").await;
    let of = Arc::clone(&db);
    let options = BackupOptions::new().copy_log(move |to, end| {
        Box::pin(async move {
            put_in_new_space(&of, "after").await;
            of.wal().copy_up_to(&to, end).await.map_err(std::io::Error::other)
        })
    });
    db.store().backup(&chain, options).await.unwrap();
    LoggedStore::restore(builder(&to), &to.join("log"), &chain, 1).await.unwrap();
    let restored = LoggedStore::open(builder(&to), to.join("log"), LIMITS).await.unwrap();
    assert_eq!(restored.spaces().find("after"), None);
    let space = restored.spaces().find("before").unwrap();
    assert_eq!(restored.get(PageId::new(space, 0)).await.unwrap()[0], 7);
}

async fn put_in_new_space(db: &LoggedStore, name: &str) {
    let space = db.spaces().create(name).await.unwrap();
    let mut change = db.begin().await.unwrap();
    let page = change.add(db.allocate(space).await.unwrap());
    change.write(page, 0, &[7]);
    db.commit(change).await.unwrap();
}
