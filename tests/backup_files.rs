//! Directories of backups: what is listed, verified and purged, and single pages taken out.

use crate::fixture::{Fixture, PAGES, grown, version_of};
use crate::restoration::Destination;
use pagetier::backup::{BackupError, BackupOptions, Backups};
use pagetier::errors::Advice;
use pagetier::{PageId, SpaceId};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tempfile::TempDir;

/// Backups 1 (full), 2, 3, 4 (full) and 5, in which pages have the version of that number. Pages 10 to 19 are
/// free from the third on.
async fn five() -> (TempDir, Fixture, pagetier::PageStore) {
    let (dir, fixture) = (pagetier_testing::scratch(), Fixture::new());
    let store = fixture.open().await;
    let space = grown(&store).await;
    for version in 1..=5 {
        if version == 3 {
            store.free((space, 10..20)).await.unwrap();
        }
        for no in (0..PAGES).filter(|no| version < 3 || !(10..20).contains(no)) {
            crate::fixture::write(&store, space, no, version).await.unwrap();
        }
        let options = BackupOptions::new().full(version == 4);
        assert_eq!(store.backup(dir.path(), options).await.unwrap().number, version);
    }
    (dir, fixture, store)
}

fn copied(from: &Path) -> TempDir {
    let to = pagetier_testing::scratch();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    to
}

fn names(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<_> = files.collect();
    all.sort();
    all
}

/// Checks that the backups of these numbers are there, and can all be restored.
async fn has(dir: &Path, numbers: &[u32], what: &str) {
    let all = Backups::at(dir).verify(|_| ()).await.unwrap();
    assert_eq!(all.iter().map(|file| file.number).collect::<Vec<_>>(), numbers, "{what}");
    for file in &all {
        assert!(file.is_restorable && file.fault.is_none() && file.pages.is_some(), "{what}: {file:?}");
    }
}

fn rot(path: &Path, at: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(b"rot", at).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_purge_keeps_what_the_newest_backups_continue() {
    let (dir, _fixture, store) = five().await;
    let listed = Backups::at(dir.path()).list().await.unwrap();
    let full: Vec<_> = listed.iter().map(|file| file.is_full == Some(true)).collect();
    assert_eq!(full, [true, false, false, true, false]);
    assert!(listed.iter().all(|file| file.is_restorable && file.store == listed[0].store));
    for (keep, kept, removed) in [
        (9, 1..=5, vec![]),
        (5, 1..=5, vec![]),
        (3, 1..=5, vec![]),
        (2, 4..=5, vec![3, 2, 1]),
        (0, 4..=5, vec![3, 2, 1]),
    ] {
        let dir = copied(dir.path());
        let purged = Backups::at(dir.path()).purge(keep, |_| ()).await.unwrap();
        assert_eq!((purged.kept, purged.removed), (kept.clone().collect(), removed), "{keep} are to stay");
        has(dir.path(), &kept.collect::<Vec<_>>(), "after the purge").await;
        assert!(!dir.path().join("unfinished.partial").exists());
    }
    // The next backup continues what is left.
    Backups::at(dir.path()).purge(1, |_| ()).await.unwrap();
    let next = store.backup(dir.path(), BackupOptions::new()).await.unwrap();
    assert_eq!((next.number, next.full_because), (6, None));
    let to = Destination::new();
    to.restore(dir.path(), None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_verification_reports_each_file_and_the_pages_so_far() {
    let (dir, _fixture, _store) = five().await;
    let seen = std::sync::Mutex::new(Vec::new());
    let note = |seen_now: pagetier::backup::RestoreProgress| {
        seen.lock().unwrap().push((seen_now.file, seen_now.files, seen_now.pages));
    };
    Backups::at(dir.path()).verify(note).await.unwrap();
    let (all, some) = (u64::from(PAGES), u64::from(PAGES) - 10);
    let pages = [all, 2 * all, 2 * all + some, 2 * all + 2 * some, 2 * all + 3 * some];
    let expected: Vec<_> = pages.into_iter().zip(1..).map(|(pages, file)| (file, 5, pages)).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// Nothing is given up for them, so it does not matter whether they are sound.
#[tokio::test(start_paused = true)]
async fn a_purge_that_keeps_all_backups_looks_at_none() {
    let (dir, _fixture, _store) = five().await;
    rot(&dir.path().join("000002.backup"), 30);
    let purged = Backups::at(dir.path()).purge(5, |_| ()).await.unwrap();
    assert_eq!((purged.kept, purged.removed), ((1..=5).collect(), vec![]));
}

/// Cancelled after each removal, and with each prefix of the removals done, as by a crash.
#[tokio::test(start_paused = true)]
async fn an_interrupted_purge_leaves_only_backups_that_can_be_restored() {
    let (whole, _fixture, _store) = five().await;
    for done in 0..=3 {
        let (cancelled, crashed) = (copied(whole.path()), copied(whole.path()));
        let removed = AtomicUsize::new(0);
        let backups = Backups::at(cancelled.path());
        let reached = std::future::poll_fn(|_| {
            if removed.load(Ordering::Relaxed) >= done { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            biased;
            () = reached => {}
            // Where each step was done on its thread before it was first asked for, nothing was awaited.
            purged = backups.purge(1, |_| { removed.fetch_add(1, Ordering::Relaxed); }) => {
                assert!(purged.is_ok() && done > 0, "it ended before removal {done}: {purged:?}");
            }
        }
        // A removal may still run on its thread.
        let mut before = names(cancelled.path());
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let now = names(cancelled.path());
            if std::mem::replace(&mut before, now.clone()) == now {
                break;
            }
        }
        let left = Backups::at(cancelled.path()).verify(|_| ()).await.unwrap();
        assert!(left.iter().all(|file| file.is_restorable), "cancelled after {done}: {left:?}");
        assert!(left.len() <= 5 - done && left.len() >= 2);
        for number in [3, 2, 1].iter().take(done) {
            std::fs::remove_file(crashed.path().join(format!("{number:06}.backup"))).unwrap();
        }
        let numbers: Vec<_> = (1..=3 - done as u32).chain([4, 5]).collect();
        has(crashed.path(), &numbers, "crashed").await;
        // Repeated, it completes.
        Backups::at(cancelled.path()).purge(1, |_| ()).await.unwrap();
        has(cancelled.path(), &[4, 5], "repeated").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_backup_after_a_damaged_one_is_full() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    grown(&store).await;
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), BackupOptions::new()).await.unwrap();
    for (number, cut) in [(1, 1), (2, 9000), (3, 0)] {
        let path = dir.path().join(format!("{number:06}.backup"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - cut);
        std::fs::write(&path, bytes).unwrap();
        let report = store.backup(dir.path(), BackupOptions::new()).await.unwrap();
        let damaged = report.full_because.is_some_and(|why| why.contains("damaged"));
        assert_eq!(damaged, cut > 0, "{report:?}");
    }
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_purge_gives_up_nothing_for_a_damaged_backup() {
    let (whole, _fixture, _store) = five().await;
    // In a page, in the head, cut short, and gone.
    for harm in 0..4 {
        for number in [4, 5] {
            let dir = copied(whole.path());
            let path = dir.path().join(format!("{number:06}.backup"));
            match harm {
                0 => rot(&path, 60_000),
                1 => rot(&path, 30),
                2 => File::options().write(true).open(&path).unwrap().set_len(50_000).unwrap(),
                _ if number == 4 => std::fs::remove_file(&path).unwrap(),
                _ => continue,
            }
            let before = names(dir.path());
            let refused = Backups::at(dir.path()).purge(1, |_| ()).await.unwrap_err();
            assert!(
                matches!(refused, BackupError::Damaged { .. } | BackupError::NoChain { .. }),
                "{refused:?}"
            );
            assert_eq!(names(dir.path()), before, "{harm} of {number}: {refused}");
            let verified = Backups::at(dir.path()).verify(|_| ()).await.unwrap();
            let sound: Vec<_> = verified.iter().filter(|file| file.is_restorable).map(|f| f.number).collect();
            assert_eq!(
                sound,
                (1..number.max(4)).filter(|n| *n != 4 || number == 5 && harm < 3).collect::<Vec<_>>()
            );
        }
    }
    // What is older may be damaged; what is no backup stays.
    let dir = copied(whole.path());
    rot(&dir.path().join("000002.backup"), 60_000);
    std::fs::write(dir.path().join("000001.backup"), "letters").unwrap();
    let purged = Backups::at(dir.path()).purge(2, |_| ()).await.unwrap();
    assert_eq!((purged.kept, purged.removed, purged.left), (vec![4, 5], vec![3, 2], vec![1]));
    assert_eq!(std::fs::read(dir.path().join("000001.backup")).unwrap(), b"letters");
}

#[tokio::test(start_paused = true)]
async fn a_purge_is_refused_while_a_backup_runs_and_in_a_directory_of_two_stores() {
    let (whole, _fixture, store) = five().await;
    let dir = copied(whole.path());
    // As a backup holds it, with what it has written.
    let draft = File::create(dir.path().join("unfinished.partial")).unwrap();
    draft.write_all_at(b"half", 0).unwrap();
    flock(&draft, FlockOperation::LockExclusive).unwrap();
    let refused = Backups::at(dir.path()).purge(1, |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::Busy { .. }), "{refused:?}");
    assert_eq!(refused.advice(), Advice::Retry);
    has(dir.path(), &[1, 2, 3, 4, 5], "busy").await;
    drop(draft);
    Backups::at(dir.path()).purge(1, |_| ()).await.unwrap();
    has(dir.path(), &[4, 5], "free again").await;
    assert_eq!(std::fs::read(dir.path().join("unfinished.partial")).unwrap(), b"half");
    // A purge and a backup at the same time: one waits or is refused, and both leave a sound directory.
    let (purge, backup) = (Backups::at(whole.path()), store.backup(whole.path(), BackupOptions::new()));
    let (purged, made) = tokio::join!(purge.purge(1, |_| ()), backup);
    assert_eq!(made.unwrap().number, 6);
    assert!(matches!(purged, Ok(_) | Err(BackupError::Busy { .. })), "{purged:?}");
    let left = Backups::at(whole.path()).verify(|_| ()).await.unwrap();
    assert!(left.iter().all(|file| file.is_restorable), "{left:?}");

    let (other, _fixture, _other) = five().await;
    std::fs::copy(other.path().join("000004.backup"), dir.path().join("000006.backup")).unwrap();
    let before = names(dir.path());
    let refused = Backups::at(dir.path()).purge(1, |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::TwoStores { .. }), "{refused:?}");
    assert!(Backups::at(dir.path()).verify(|_| ()).await.is_err());
    let listed = Backups::at(dir.path()).list().await.unwrap();
    assert_ne!(listed[0].store, listed[2].store);
    assert_eq!(names(dir.path()), before);
    let nothing = pagetier_testing::scratch();
    let refused = Backups::at(nothing.path()).purge(1, |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoChain { .. }), "{refused:?}");
    assert!(names(nothing.path()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_page_or_a_space_is_taken_out_of_any_backup() {
    let (dir, _fixture, store) = five().await;
    let (backups, to) = (Backups::at(dir.path()), pagetier_testing::scratch());
    let path = |name: &str| to.path().join(name);
    for (upto, version) in [(None, 5), (Some(3), 3), (Some(2), 2)] {
        let name = format!("{upto:?}");
        let report = backups.extract("t", None, upto, path(&name), |_| ()).await.unwrap();
        let gone = if version > 2 { 10 } else { 0 };
        assert_eq!((report.pages, report.copied), (u64::from(PAGES), u64::from(PAGES) - gone));
        let file = std::fs::read(path(&name)).unwrap();
        let bytes = report.page_bytes as usize;
        assert_eq!(file.len(), PAGES as usize * bytes);
        for no in 0..PAGES {
            let page = &file[no as usize * bytes..][..bytes];
            let is_free = gone > 0 && (10..20).contains(&no);
            let expected =
                if is_free { page.iter().all(|byte| *byte == 0) } else { version_of(page, no) == version };
            assert!(expected, "page {no} of {name}");
        }
        assert_eq!(path(&name).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let one = backups.extract("t", Some(7), Some(2), path("seven"), |_| ()).await.unwrap();
    assert_eq!((one.pages, one.copied, one.number), (1, 1, 2));
    let page = std::fs::read(path("seven")).unwrap();
    assert_eq!((page.len() as u64, version_of(&page, 7)), (one.page_bytes, 2));
    backups.extract("t", Some(15), Some(2), path("fifteen"), |_| ()).await.unwrap();
    // Free by then, although an older file of the chain has it; beyond the end; no such space or backup.
    let before = names(to.path());
    for (no, upto) in [(15, Some(3)), (15, None), (PAGES, None), (u32::MAX, None)] {
        let refused = backups.extract("t", Some(no), upto, path("none"), |_| ()).await.unwrap_err();
        assert!(matches!(&refused, BackupError::NoSuchPage { page, .. } if page.no == no), "{refused:?}");
    }
    let refused = backups.extract("u", None, None, path("none"), |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoSuchSpace { .. }), "{refused:?}");
    let refused = backups.extract("t", None, Some(9), path("none"), |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoChain { .. }), "{refused:?}");
    let refused = backups.extract("t", None, None, path("seven"), |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::Exists { .. }), "{refused:?}");
    // Several pages into memory: in the order asked for, without those that are free or never existed.
    let space = store.spaces().find("t").unwrap();
    let id = |no| PageId::new(space, no);
    let wanted = [id(9), id(15), id(3), id(PAGES), PageId::new(SpaceId(99), 0)];
    for (upto, version) in [(None, 5), (Some(3), 3), (Some(2), 2)] {
        let found = backups.pages(&wanted, upto).await.unwrap();
        let gone: &[u32] = if version > 2 { &[9, 3] } else { &[9, 15, 3] };
        assert_eq!(found.pages.iter().map(|page| page.page.no).collect::<Vec<_>>(), gone);
        for page in &found.pages {
            assert_eq!(version_of(&page.contents, page.page.no), version);
        }
        assert_eq!(found.number, upto.unwrap_or(5));
    }
    rot(&dir.path().join("000005.backup"), 60_000);
    assert!(matches!(backups.pages(&wanted, None).await, Err(BackupError::Damaged { .. })));
    let refused = backups.extract("t", None, None, path("none"), |_| ()).await.unwrap_err();
    assert!(matches!(refused, BackupError::Damaged { .. }), "{refused:?}");
    assert_eq!(names(to.path()), before, "a refused extraction has left a file");
}
