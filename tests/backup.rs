//! Backups under load, with faults and across crashes, compared page by page with what they must hold.

use crate::fixture::{
    Fixture, PAGES, expect_all, fill, grown, read, synced, version_of, write, write_all, zoned,
};
use crate::restoration::{Destination, chain_of_two, restored};
use pagetier::{
    Error, Lsn, PageId, PageStore, SpaceId,
    backup::{BackupError, BackupOptions},
    errors::Advice,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn plain() -> BackupOptions {
    BackupOptions::new()
}

/// By page: the newest version whose write began, and the newest whose write ended.
struct Versions {
    begun: Vec<AtomicU32>,
    ended: Vec<AtomicU32>,
}

impl Versions {
    fn new(version: u32) -> Arc<Self> {
        let all = || (0..PAGES).map(|_| AtomicU32::new(version)).collect();
        Arc::new(Self { begun: all(), ended: all() })
    }

    fn ended(&self) -> Vec<u32> {
        self.ended.iter().map(|v| v.load(Ordering::Relaxed)).collect()
    }

    fn begun(&self) -> Vec<u32> {
        self.begun.iter().map(|v| v.load(Ordering::Relaxed)).collect()
    }
}

async fn keep_writing(store: Arc<PageStore>, space: SpaceId, versions: Arc<Versions>, stop: Arc<AtomicBool>) {
    let mut at = 7_u32;
    while !stop.load(Ordering::Relaxed) {
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Half of the writes go to a tenth of the pages.
        let no = if at & 64 == 0 { (at >> 8) % PAGES } else { (at >> 8) % (PAGES / 10) };
        let version = versions.begun[no as usize].fetch_add(1, Ordering::Relaxed) + 1;
        write(&store, space, no, version).await.unwrap();
        versions.ended[no as usize].store(version, Ordering::Relaxed);
        if at & (127 << 7) == 0 {
            store.sync().await.unwrap();
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_backup_reports_its_progress_on_its_way_and_at_its_end() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    grown(&store).await;
    let dir = pagetier_testing::scratch();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let options = plain().on_progress(move |progress| sink.lock().unwrap().push(progress));
    store.backup(dir.path(), options).await.unwrap();
    let seen: Vec<_> = seen.lock().unwrap().iter().map(|p| (p.done, p.total, p.copied)).collect();
    let total = u64::from(PAGES);
    assert_eq!(seen, [(256, total, 256), (total, total, total)]);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_backup_of_a_chain_under_load_has_each_page_whole_and_no_older_than_its_beginning() {
    pagetier_rivals::register();
    for policy in ["cac", "tac", "mv-fifo", "doublewrite"] {
        let Ok(policy) = policy.parse::<pagetier::SsdPolicy>() else { panic!("{policy}") };
        let fixture = Fixture::new();
        let store = Arc::new(fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap());
        let space = grown(&store).await;
        let (versions, stop) = (Versions::new(1), Arc::new(AtomicBool::new(false)));
        let writer =
            tokio::spawn(keep_writing(Arc::clone(&store), space, Arc::clone(&versions), Arc::clone(&stop)));
        let dir = pagetier_testing::scratch();
        let mut bounds = Vec::new();
        for round in 0..3 {
            let before = versions.ended();
            let report = store.backup(dir.path(), plain()).await.unwrap();
            bounds.push((before, versions.begun()));
            assert_eq!((report.number, report.looked_at), (round + 1, u64::from(PAGES)));
            assert_eq!(report.full_because.is_some(), round == 0, "{report:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
        store.validate().unwrap();
        for (number, (least, most)) in (1..).zip(&bounds) {
            let (_dir, copy, space) = restored(dir.path(), Some(number)).await;
            assert_eq!(copy.spaces().pages(space).unwrap(), PAGES);
            for no in 0..PAGES {
                let version = read(&copy, space, no).await.unwrap();
                let (least, most) = (least[no as usize], most[no as usize]);
                let fits = (least..=most).contains(&version);
                assert!(fits, "{policy}: page {no} of backup {number}: {version}, not {least} to {most}");
            }
            copy.close().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_incremental_backup_has_what_was_written_since_and_the_chain_is_the_store() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    let full = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!(full.pages, u64::from(PAGES));
    let idle = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!((idle.full_because, idle.pages), (None, 0));
    for no in 0..10 {
        write(&store, space, no * 7, 9).await.unwrap();
    }
    let some = store.backup(dir.path(), plain()).await.unwrap();
    // Pages that the SSD writes home through its ring get new stamps as well.
    assert!((10..u64::from(PAGES) / 2).contains(&some.pages), "{some:?}");
    assert!(some.bytes < full.bytes / 2);
    let asked = store.backup(dir.path(), plain().full(true)).await.unwrap();
    assert_eq!(asked.pages, u64::from(PAGES));
    for upto in [Some(3), Some(4), None] {
        let (_dir, copy, space) = restored(dir.path(), upto).await;
        for no in 0..PAGES {
            let version = if no % 7 == 0 && no < 70 { 9 } else { 1 };
            assert_eq!(read(&copy, space, no).await.unwrap(), version, "page {no}");
        }
        assert_eq!(copy.get(PageId::new(space, 7)).await.unwrap().lsn(), Lsn(9007));
        copy.close().await.unwrap();
    }
}

/// The schedule that loses a version if the backup draws its stamp too late or reads pages too early: the
/// version's write, with its stamp, has begun and not ended when the backup begins.
#[tokio::test(start_paused = true)]
async fn a_write_in_flight_when_a_backup_begins_is_in_its_chain() {
    for slow_hdd in [true, false] {
        let (fixture, store, space) = Fixture::grown().await;
        let store = Arc::new(store);
        let dir = pagetier_testing::scratch();
        store.backup(dir.path(), plain()).await.unwrap();
        for no in (0..PAGES).step_by(3) {
            write(&store, space, no, 2).await.unwrap();
        }
        let device = if slow_hdd { &fixture.hdd } else { &fixture.ssd };
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Write).times(50));
        let syncing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.sync().await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        // This backup has the version, or the next one does.
        store.backup(dir.path(), plain()).await.unwrap();
        syncing.await.unwrap().unwrap();
        store.backup(dir.path(), plain()).await.unwrap();
        for upto in [Some(2), None] {
            let (_dir, copy, space) = restored(dir.path(), upto).await;
            for no in 0..PAGES {
                let version = if no % 3 == 0 { 2 } else { 1 };
                assert_eq!(read(&copy, space, no).await.unwrap(), version, "page {no}, up to {upto:?}");
            }
            copy.close().await.unwrap();
        }
    }
}

/// The schedule that could bring back an earlier life of a page: its number is reused while a backup begins,
/// and no version of the new life is written yet when the backup reads the page.
#[tokio::test(start_paused = true)]
async fn a_page_whose_number_is_used_again_during_a_backup_has_no_earlier_life_in_the_chain() {
    let (mut absent, mut new) = (0, 0);
    for ms in 0..16 {
        let (_fixture, store, space) = Fixture::grown().await;
        let store = Arc::new(store);
        let dir = pagetier_testing::scratch();
        store.backup(dir.path(), plain()).await.unwrap();
        store.free(PageId::new(space, 5)).await.unwrap();
        // A dirty page, so that the backup's syncs have to wait.
        write(&store, space, 6, 2).await.unwrap();
        let backing = tokio::spawn({
            let (store, dir) = (Arc::clone(&store), dir.path().to_owned());
            async move { store.backup(dir, plain()).await }
        });
        tokio::time::sleep(Duration::from_millis(ms)).await;
        let mut page = store.allocate(space).await.unwrap();
        assert_eq!(page.id().no, 5);
        fill(&mut page, 5, 9);
        drop(page);
        backing.await.unwrap().unwrap();
        let (_dir, copy, copied) = restored(dir.path(), None).await;
        match read(&copy, copied, 5).await {
            Ok(version) => {
                assert_eq!(version, 9, "after {ms} ms");
                new += 1;
            }
            Err(Error::NoSuchPage { .. }) => absent += 1,
            Err(error) => panic!("after {ms} ms: {error}"),
        }
        copy.close().await.unwrap();
        // The next backup has it.
        store.backup(dir.path(), plain()).await.unwrap();
        let (_dir, copy, copied) = restored(dir.path(), None).await;
        assert_eq!(read(&copy, copied, 5).await.unwrap(), 9, "after {ms} ms");
        copy.close().await.unwrap();
    }
    assert!(absent > 0 && new > 0, "{absent} without the page, {new} with it");
}

#[tokio::test(start_paused = true)]
async fn a_chain_continues_after_crashes_and_ends_as_the_store_is() {
    for seed in 0..6 {
        let mut fixture = Fixture::new();
        let store = fixture.open().await;
        let space = grown(&store).await;
        let dir = pagetier_testing::scratch();
        store.backup(dir.path(), plain()).await.unwrap();
        let mut store = Arc::new(store);
        for round in 1..4 {
            let versions = Versions::new(round * 1000);
            let stop = Arc::new(AtomicBool::new(false));
            let load = keep_writing(Arc::clone(&store), space, versions, Arc::clone(&stop));
            let writer = tokio::spawn(load);
            // A power cut in the middle of a backup, or some time after it.
            let cut = Duration::from_micros(seed * 7919 % 40_000 + u64::from(round) * 1000);
            let made = tokio::time::timeout(cut, store.backup(dir.path(), plain())).await;
            if made.is_ok() {
                tokio::time::sleep(cut / 2).await;
            }
            let later = fixture.after_power_cut(seed * 10 + u64::from(round));
            stop.store(true, Ordering::Relaxed);
            writer.abort();
            let _ended = writer.await;
            drop(store);
            fixture = later;
            store = Arc::new(fixture.open().await);
        }
        let last = store.backup(dir.path(), plain()).await.unwrap();
        assert_eq!(last.full_because, None, "seed {seed}");
        let (_dir, copy, copied) = restored(dir.path(), None).await;
        for no in 0..PAGES {
            let (there, here) = (read(&store, space, no).await, read(&copy, copied, no).await);
            assert_eq!(here.unwrap(), there.unwrap(), "seed {seed}: page {no}");
        }
        copy.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_reset_to_an_earlier_state_does_not_continue_a_chain_that_is_ahead_of_it() {
    let (fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), plain()).await.unwrap();
    store.sync().await.unwrap();
    let earlier = fixture.after_power_cut(5);
    write_all(&store, space, 2).await;
    let ahead = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!(ahead.full_because, None);
    drop(store);
    let store = earlier.open().await;
    let report = store.backup(dir.path(), plain()).await.unwrap();
    assert!(report.full_because.is_some_and(|why| why.contains("does not list")), "{report:?}");
    let (_dir, copy, space) = restored(dir.path(), None).await;
    expect_all(&copy, space, 1).await;
}

/// A full backup of another store at the end of a chain would be restored as the newest one.
#[tokio::test(start_paused = true)]
async fn a_chain_belongs_to_one_store_and_another_ones_backup_is_refused_even_a_full_one() {
    let (chain, other) = (chain_of_two().await, chain_of_two().await);
    let fixture = Fixture::new();
    let store = fixture.open().await;
    grown(&store).await;
    for options in [plain(), plain().full(true)] {
        let refused = store.backup(chain.path(), options).await.unwrap_err();
        let BackupError::OtherStore { path, found, expected } = &refused else { panic!("{refused:?}") };
        assert!(path == chain.path() && found != expected, "{refused:?}");
        assert!([found, expected].iter().all(|id| refused.to_string().contains(*id)), "{refused}");
        assert_eq!(refused.advice(), Advice::FixConfiguration);
        assert!(!chain.path().join("000003.backup").exists());
    }
    // An earlier version has done that.
    std::fs::copy(other.path().join("000001.backup"), chain.path().join("000003.backup")).unwrap();
    let to = Destination::new();
    let refused = to.restore(chain.path(), None).await.unwrap_err();
    assert!(
        matches!(&refused, BackupError::NoChain { why, .. } if why.contains("two stores")),
        "{refused:?}"
    );
    to.restore(chain.path(), Some(2)).await.unwrap();
}

/// Names that a number can be read from, and that no backup gives.
#[tokio::test(start_paused = true)]
async fn stray_files_are_no_part_of_a_chain() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    for name in ["5.backup", "+5.backup", "0000007.backup", "000000.backup", "x.backup", ".backup"] {
        std::fs::write(dir.path().join(name), "stray").unwrap();
    }
    assert_eq!(store.backup(dir.path(), plain()).await.unwrap().number, 1);
    write_all(&store, space, 2).await;
    let second = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!((second.number, second.full_because), (2, None));
    let (_dir, copy, space) = restored(dir.path(), None).await;
    expect_all(&copy, space, 2).await;
    copy.close().await.unwrap();
    // A name that a backup does give: it is the next one's base, and named.
    let stray = dir.path().join("000003.backup");
    std::fs::write(&stray, "stray").unwrap();
    let refused = store.backup(dir.path(), plain()).await.unwrap_err();
    assert!(matches!(&refused, BackupError::Damaged { path, .. } if *path == stray), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn backups_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let store = fixture.open().await;
    grown(&store).await;
    let dir = pagetier_testing::scratch();
    // As an earlier version has left it.
    let draft = dir.path().join("unfinished.partial");
    std::fs::write(&draft, "draft").unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o644)).unwrap();
    for number in [1, 2] {
        let path = store.backup(dir.path(), plain()).await.unwrap().path;
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn spaces_keep_their_ids_and_pages_that_were_never_written_stay_so() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let gone = store.spaces().create("gone").await.unwrap();
    fill(&mut store.allocate(gone).await.unwrap(), 0, 1);
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), plain()).await.unwrap();
    let kept = store.spaces().create("t").await.unwrap();
    store.spaces().drop(gone).await.unwrap();
    for no in 0..100 {
        let mut page = store.allocate(kept).await.unwrap();
        if no % 2 == 0 {
            fill(&mut page, no, 3);
        } else {
            let id = page.id();
            drop(page);
            store.discard(id).await.unwrap();
        }
    }
    store.backup(dir.path(), plain()).await.unwrap();
    let (_dir, copy, space) = restored(dir.path(), None).await;
    assert_eq!((space, copy.spaces().find("gone"), copy.spaces().pages(space).unwrap()), (kept, None, 100));
    for no in 0..100 {
        let page = copy.get(PageId::new(space, no)).await;
        assert_eq!(page.map(|page| version_of(&page, no)).ok(), (no % 2 == 0).then_some(3), "page {no}");
    }
    // The next space gets an id that no space of the original had.
    assert!(copy.spaces().create("new").await.unwrap() > kept);
    let to = Destination::new();
    to.restore(dir.path(), Some(1)).await.unwrap();
    let first = to.builder().open().await.unwrap();
    assert_eq!(first.spaces().find("gone"), Some(gone));
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_fails_leaves_the_chain_as_it_was() {
    let (fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), plain()).await.unwrap();
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    let files = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    // The HDD and the SSD cannot be read at all.
    for device in [&fixture.hdd, &fixture.ssd] {
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).times(1000));
    }
    let failed = store.backup(dir.path(), plain()).await.unwrap_err();
    assert!(matches!(&failed, BackupError::Page { .. }), "{failed:?}");
    assert_eq!(files(), ["000001.backup", "unfinished.partial"]);
    for device in [&fixture.hdd, &fixture.ssd] {
        device.clear_faults();
    }
    // The backup is dropped half-way.
    let dropped = crate::fixture::polled(10, store.backup(dir.path(), plain())).await;
    assert!(dropped.is_none());
    assert_eq!(files(), ["000001.backup", "unfinished.partial"]);
    let report = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!((report.number, report.full_because), (2, None));
    assert_eq!(files(), ["000001.backup", "000002.backup"]);
    let (_dir, copy, space) = restored(dir.path(), None).await;
    expect_all(&copy, space, 2).await;
    // No directory can be created there.
    let blocked = store.backup(dir.path().join("000001.backup"), plain()).await;
    assert!(matches!(blocked, Err(BackupError::Io { .. })), "{blocked:?}");
}

#[tokio::test(start_paused = true)]
async fn backups_into_one_directory_at_the_same_time_follow_each_other() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    let path = dir.path();
    let made = tokio::join!(store.backup(path, plain()), store.backup(path, plain()));
    let mut numbers = [made.0.unwrap().number, made.1.unwrap().number];
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    write_all(&store, space, 2).await;
    store.backup(path, plain()).await.unwrap();
    for (upto, version) in [(1, 1), (2, 1), (3, 2)] {
        let (_dir, copy, space) = restored(path, Some(upto)).await;
        expect_all(&copy, space, version).await;
        copy.close().await.unwrap();
    }
}

/// A backup is dropped while its last blocking call runs: that call may rename its file much later.
#[tokio::test(start_paused = true)]
async fn a_backup_waits_for_what_a_dropped_one_has_left_behind() {
    let (_fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    let dir = pagetier_testing::scratch();
    let path = |name: &str| dir.path().join(name);
    store.backup(dir.path(), plain()).await.unwrap();
    // The call, as if it was syncing a complete file.
    std::fs::copy(path("000001.backup"), path("unfinished.partial")).unwrap();
    let left_behind = std::fs::File::open(path("unfinished.partial")).unwrap();
    rustix::fs::flock(&left_behind, rustix::fs::FlockOperation::LockExclusive).unwrap();
    write_all(&store, space, 2).await;
    let next = tokio::spawn({
        let (store, dir) = (Arc::clone(&store), dir.path().to_owned());
        async move { store.backup(dir, plain()).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!next.is_finished());
    std::fs::rename(path("unfinished.partial"), path("000002.backup")).unwrap();
    drop(left_behind);
    let report = next.await.unwrap().unwrap();
    // The manifest knows the last backup: its id is that of the first one.
    assert_eq!((report.number, report.path), (3, path("000003.backup")));
    let first = std::fs::read(path("000001.backup")).unwrap();
    assert!(std::fs::read(path("000002.backup")).unwrap() == first, "the complete file was written to");
}

/// The schedule that leaves a page out of a chain: its newest version is discarded, a backup finds an older
/// one or none, and a crash brings the discarded one back, with a stamp from before that backup.
#[tokio::test(start_paused = true)]
async fn a_version_that_was_discarded_before_a_backup_is_not_missing_from_the_next_one() {
    for (policy, fails) in [("cac", false), ("mv-fifo", false), ("doublewrite", false), ("cac", true)] {
        let fixture = Fixture::new();
        pagetier_rivals::register();
        let Ok(policy) = policy.parse::<pagetier::SsdPolicy>() else { panic!("{policy}") };
        let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let space = synced(&store, 2).await;
        let dir = pagetier_testing::scratch();
        store.backup(dir.path(), plain()).await.unwrap();
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        let on_ssd = |no: &u32| store.location(PageId::new(space, *no)) == pagetier::Location::Ssd;
        let discarded: Vec<u32> = (0..PAGES).filter(on_ssd).collect();
        for no in &discarded {
            store.discard(PageId::new(space, *no)).await.unwrap();
        }
        assert!(discarded.len() > 20, "{policy:?}: {}", discarded.len());
        if fails {
            // No map checkpoint succeeds.
            fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1000));
        }
        store.backup(dir.path(), plain()).await.unwrap();
        let store = {
            drop(store);
            fixture.after_power_cut(7).builder().ssd_policy(zoned(policy)).open().await.unwrap()
        };
        let report = store.backup(dir.path(), plain()).await.unwrap();
        assert_eq!(report.full_because.is_some(), fails, "{report:?}");
        let (_dir, copy, copied) = restored(dir.path(), None).await;
        for no in 0..PAGES {
            let (here, there) = (read(&store, space, no).await, read(&copy, copied, no).await);
            let (here, there) = (here.unwrap_or(0), there.unwrap_or(0));
            assert!(there >= here, "{policy:?}: page {no} is at {here}, in the chain at {there}");
        }
        copy.close().await.unwrap();
    }
}

/// The draft is a device that is always full.
#[tokio::test(start_paused = true)]
async fn a_backup_without_room_fails_under_load_and_the_chain_goes_on_once_there_is_some() {
    let (_fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), plain()).await.unwrap();
    let (versions, stop) = (Versions::new(1), Arc::new(AtomicBool::new(false)));
    let load = keep_writing(Arc::clone(&store), space, Arc::clone(&versions), Arc::clone(&stop));
    let writer = tokio::spawn(load);
    let draft = dir.path().join("unfinished.partial");
    std::os::unix::fs::symlink("/dev/full", &draft).unwrap();
    for _ in 0..2 {
        let full = store.backup(dir.path(), plain()).await.unwrap_err();
        let BackupError::Io { path, source } = &full else { panic!("{full:?}") };
        assert_eq!((path, source.kind()), (&draft, std::io::ErrorKind::StorageFull));
        assert_eq!(full.advice(), Advice::FreeSpace);
    }
    std::fs::remove_file(&draft).unwrap();
    let ended = versions.ended();
    let report = store.backup(dir.path(), plain()).await.unwrap();
    assert_eq!((report.number, report.full_because), (2, None));
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    let (_dir, copy, space) = restored(dir.path(), None).await;
    for no in 0..PAGES {
        let version = read(&copy, space, no).await.unwrap();
        assert!(version >= ended[no as usize], "page {no}: {version}, not {}", ended[no as usize]);
    }
    copy.close().await.unwrap();
}
