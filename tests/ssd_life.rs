//! The SSD's life cycle: modes, drain, failure, readmission, operation without it, acceptance of its loss.

use crate::fixture::{self, Fixture, PAGES, expect_all, grown, read, synced, write, write_all};
use pagetier::{
    DrainOptions, Error, Location, Lsn, OpenError, PageId, SsdEvent, SsdMode,
    errors::{PoolError, TierError},
    stats::SsdState,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn modes_determine_what_the_ssd_gets() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_mode(SsdMode::WriteThrough).open().await.unwrap();
    let mut events = store.ssd().events();
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    expect_all(&store, space, 2).await;
    store.sync().await.unwrap();
    let ssd = store.stats().ssd;
    assert!(ssd.pages > 20 && ssd.dirty_pages == 0, "{ssd:?}");

    store.ssd().set_mode(SsdMode::ReadOnly).await.unwrap();
    tokio::time::sleep(LONG).await;
    let before = store.stats().ssd.counts;
    write_all(&store, space, 3).await;
    expect_all(&store, space, 3).await;
    let after = store.stats().ssd;
    let admitted = |c: pagetier::stats::SlotCounts| c.admitted_free + c.admitted_over + c.rewritten;
    assert_eq!(admitted(after.counts), admitted(before));
    assert_eq!(after.mode, SsdMode::ReadOnly);

    store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    write_all(&store, space, 4).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.dirty_pages > 20);
    expect_all(&store, space, 4).await;
    let mode = |mode| Some(SsdEvent::Mode { mode });
    assert_eq!(events.try_next(), mode(SsdMode::ReadOnly));
    assert_eq!(events.try_next(), mode(SsdMode::WriteBack));
    assert_eq!(events.try_next(), None);
    store.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drained_ssd_holds_no_only_copy() {
    let (fixture, store, space) = Fixture::synced(2).await;
    let dirty = store.stats().ssd.dirty_pages;
    assert!(dirty > 20, "{dirty}");
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let report =
        store.ssd().drain(DrainOptions::new().on_progress(move |p| sink.lock().unwrap().push(p))).await;
    assert_eq!((report.written, report.left, report.failed.len()), (dirty, 0, 0));
    let reports = reports.lock().unwrap().clone();
    assert!(reports.windows(2).all(|w| w[0].written <= w[1].written) && reports.len() > 1, "{reports:?}");
    assert_eq!(store.stats().ssd.dirty_pages, 0);
    assert_eq!(store.stats().ssd.oldest_lsn, None);
    // Nothing is missing without it, in this run and after a crash.
    fixture.ssd.set_present(false);
    expect_all(&store, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_runs_out_of_time_reports_what_is_left_and_loses_nothing() {
    let (fixture, store, space) = Fixture::synced(2).await;
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(IoOp::Write));
    let report = store.ssd().drain(DrainOptions::new().deadline(Duration::from_millis(900))).await;
    assert!(report.left > 0, "{report:?}");
    fixture.hdd.clear_faults();
    expect_all(&store, space, 2).await;
    // A drop half-way stops the drain too.
    drop(tokio::time::timeout(Duration::from_millis(1), store.ssd().drain(DrainOptions::new())).await);
    tokio::time::sleep(LONG).await;
    let report = store.ssd().drain(DrainOptions::new()).await;
    assert_eq!(report.left, 0);
    expect_all(&store, space, 2).await;
    write_all(&store, space, 3).await;
    assert!(store.stats().ssd.dirty_pages > 0, "the previous mode is back");
}

#[tokio::test(start_paused = true)]
async fn a_drain_says_which_device_stopped_it() {
    for (device, op) in [("hdd", IoOp::Write), ("hdd", IoOp::Flush), ("ssd", IoOp::Read)] {
        let fixture = Fixture::new();
        let store = fixture.open().await;
        synced(&store, 2).await;
        let failing = if device == "hdd" { &fixture.hdd } else { &fixture.ssd };
        failing.inject(Fault::new(FaultEffect::Gone).on(op));
        let report = store.ssd().drain(DrainOptions::new()).await;
        assert!(report.left > 0, "{device}, {op:?}: {report:?}");
        // A flush stops it for all pages; the other errors are those of pages.
        let stopped = report.stopped_by.as_ref().map(ToString::to_string);
        let of_pages = report.failed.first().map(|(_, error)| format!("{error:?}"));
        let why = if op == IoOp::Flush { stopped } else { of_pages };
        assert!(why.is_some_and(|why| why.contains(device)), "{device}, {op:?}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_slot_write_degrades_the_ssd_until_it_is_taken_back() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let mut events = store.ssd().events();
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(fixture.slots()));
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    assert_eq!(store.stats().ssd.state(), SsdState::Degraded);
    assert!(matches!(events.next().await, Some(SsdEvent::Degraded { .. })));
    expect_all(&store, space, 3).await;
    // The store can continue indefinitely: it frees the journal even though nothing is admitted.
    for version in 4..12 {
        write_all(&store, space, version).await;
        store.sync().await.unwrap();
    }
    fixture.ssd.clear_faults();
    let report = store.ssd().readmit().await.unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    assert_eq!(store.stats().ssd.state(), SsdState::Active);
    assert_eq!(events.try_next(), Some(SsdEvent::Active));
    let before = store.stats().pool.written_ssd;
    write_all(&store, space, 12).await;
    store.sync().await.unwrap();
    assert!(store.stats().pool.written_ssd > before, "it takes pages again");
    expect_all(&store, space, 12).await;
    store.validate().unwrap();
    drop(store);
    let later = fixture.after_power_cut(5);
    expect_all(&later.open().await, space, 12).await;
}

#[tokio::test(start_paused = true)]
async fn a_vanished_ssd_with_only_copies_stops_writes_and_comes_back() {
    let (fixture, store, space) = Fixture::synced(2).await;
    let clean: Vec<u32> =
        (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Hdd).collect();
    assert!(clean.len() > 40);
    fixture.ssd.set_present(false);
    // Pages on the HDD are readable; pages only on the SSD yield a typed error.
    let mut missing = 0;
    for no in 0..PAGES {
        match read(&store, space, no).await {
            Ok(version) => assert_eq!(version, 2),
            Err(Error::Pool(PoolError::Tier(TierError::Device { page, .. }))) => {
                assert_eq!(page, PageId::new(space, no));
                assert!(!clean.contains(&no));
                missing += 1;
            }
            Err(other) => panic!("page {no}: {other}"),
        }
    }
    assert!(missing > 0);
    assert_eq!(store.stats().ssd.state(), SsdState::Degraded);
    let _ = write(&store, space, clean[0], 3).await;
    assert!(store.sync().await.is_err());
    assert!(matches!(store.ssd().set_mode(SsdMode::Off).await, Err(Error::SsdOnlyCopies { .. })));
    assert!(matches!(store.ssd().readmit().await, Err(Error::Readmit(_))));
    fixture.ssd.set_present(true);
    let report = store.ssd().readmit().await.unwrap();
    assert!(report.lost.is_empty() && report.verified > 0, "{report:?}");
    store.sync().await.unwrap();
    write(&store, space, clean[0], 2).await.unwrap();
    expect_all(&store, space, 2).await;
    write_all(&store, space, 4).await;
    store.sync().await.unwrap();
    drop(store);
    expect_all(&fixture.after_power_cut(6).open().await, space, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_flush_is_believed_until_what_it_covered_is_home() {
    for seed in 0..6 {
        let (fixture, store, space) = Fixture::synced(2).await;
        fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        for no in 0..40 {
            write(&store, space, no, 3).await.unwrap();
        }
        assert!(store.sync().await.is_err());
        assert!(store.sync().await.is_err(), "a second try must not succeed as if nothing had been lost");
        let report = store.ssd().readmit().await.unwrap();
        assert!(report.lost.is_empty(), "{report:?}");
        store.sync().await.unwrap();
        drop(store);
        let store = fixture.after_power_cut(seed * 7).open().await;
        for no in 0..PAGES {
            assert_eq!(read(&store, space, no).await.unwrap(), if no < 40 { 3 } else { 2 }, "page {no}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_ssd_is_not_taken_back_in_place_of_the_one_that_failed() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    synced(&store, 2).await;
    // Wipe the SSD.
    fixture.ssd.set_present(false);
    let _ = store.sync().await;
    fixture.ssd.set_present(true);
    for at in (0..8192).step_by(512) {
        fixture.ssd.flip_bit(at, 1);
    }
    assert!(matches!(store.ssd().readmit().await, Err(Error::Readmit(_))));
}

#[tokio::test(start_paused = true)]
async fn without_only_copies_the_store_continues_without_a_failed_ssd() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_mode(SsdMode::WriteThrough).open().await.unwrap();
    let mut events = store.ssd().events();
    let space = synced(&store, 2).await;
    expect_all(&store, space, 2).await;
    fixture.ssd.set_present(false);
    for no in 0..PAGES {
        // The failure may cost a caller an error, nothing else.
        while write(&store, space, no, 3).await.is_err() {}
    }
    tokio::time::sleep(LONG).await;
    store.sync().await.unwrap();
    assert_eq!((store.stats().ssd.state(), store.stats().ssd.mode), (SsdState::Off, SsdMode::Off));
    expect_all(&store, space, 3).await;
    let mut seen = Vec::new();
    while let Some(event) = events.try_next() {
        seen.push(event);
    }
    assert_eq!(seen.last(), Some(&SsdEvent::Off), "{seen:?}");
    drop(store);
    // It opens as a store without an SSD, even while the failed SSD is still absent.
    let later = fixture.after_power_cut(3);
    later.ssd.set_present(false);
    let store = later.open().await;
    expect_all(&store, space, 3).await;
    write_all(&store, space, 4).await;
    // The failed SSD comes back: its contents are ignored.
    later.ssd.set_present(true);
    store.ssd().readmit().await.unwrap();
    assert_eq!(store.stats().ssd.state(), SsdState::Active);
    expect_all(&store, space, 4).await;
    write_all(&store, space, 5).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.pages > 20);
    drop(store);
    expect_all(&later.after_power_cut(8).open().await, space, 5).await;
}

#[tokio::test(start_paused = true)]
async fn switched_off_and_on_nothing_old_comes_back() {
    for seed in 0..4 {
        let (fixture, store, space) = Fixture::synced(2).await;
        store.ssd().set_mode(SsdMode::Off).await.unwrap();
        assert_eq!(store.stats().ssd.mode, SsdMode::Off);
        let ops = fixture.ssd.ops();
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        expect_all(&store, space, 3).await;
        assert_eq!(fixture.ssd.ops(), ops, "it may be removed");
        // A crash at this point finds a store without an SSD.
        let crashed = fixture.after_power_cut(seed);
        expect_all(&crashed.open().await, space, 3).await;
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
        expect_all(&store, space, 3).await;
        for no in 0..PAGES / 2 {
            write(&store, space, no, 4).await.unwrap();
        }
        store.sync().await.unwrap();
        store.validate().unwrap();
        drop(store);
        let store = fixture.after_power_cut(seed + 10).open().await;
        for no in 0..PAGES {
            assert_eq!(
                read(&store, space, no).await.unwrap(),
                if no < PAGES / 2 { 4 } else { 3 },
                "page {no}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_close_the_loss_of_the_ssd_is_known_exactly() {
    let (fixture, store, space) = Fixture::grown().await;
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    let fixture = fixture.with_blank_ssd();
    assert!(matches!(fixture.try_open().await, Err(OpenError::SsdMissing { .. })));
    assert!(matches!(fixture.builder().ssd_bytes(0).open().await, Err(OpenError::SsdMissing { .. })));
    let store = fixture.builder().accept_ssd_loss(true).open().await.unwrap();
    let loss = store.ssd().loss().unwrap().clone();
    assert!(loss.exact && loss.pages() > 20, "{loss:?}");
    for no in 0..PAGES {
        let version = read(&store, space, no).await.unwrap();
        let lost = loss.contains(PageId::new(space, no));
        assert_eq!(version, if lost { 1 } else { 2 }, "page {no}");
        // Redo from there would restore it.
        assert!(!lost || loss.redo_from.unwrap() <= Lsn(2000 + u64::from(no)));
    }
    // The new SSD is in use, and no loss needs to be accepted.
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.pages > 20);
    store.close().await.unwrap();
    let store = fixture.builder().accept_ssd_loss(true).open().await.unwrap();
    assert_eq!(store.ssd().loss(), Some(loss), "it is not acknowledged");
    store.ssd().acknowledge_loss().await.unwrap();
    assert_eq!(store.ssd().loss(), None);
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert_eq!(store.ssd().loss(), None);
    expect_all(&store, space, 3).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_every_page_may_be_older_and_the_report_says_so() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    drop(store);
    // No SSD is present from here on.
    let later = fixture.after_power_cut(4);
    later.ssd.set_present(false);
    let store = later.builder().ssd_bytes(0).accept_ssd_loss(true).open().await.unwrap();
    let loss = store.ssd().loss().unwrap();
    assert!(!loss.exact && loss.redo_from.is_none());
    for no in 0..PAGES {
        assert!(loss.contains(PageId::new(space, no)));
        // The ring may have been needed to repair torn homes: these yield an error, never another version.
        if let Ok(version) = read(&store, space, no).await {
            assert!((1..=3).contains(&version));
        }
    }
    store.close().await.unwrap();
    later.builder().ssd_bytes(0).open().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_ssd_given_up_while_open_keeps_pages_in_memory_and_lists_the_rest() {
    let (fixture, store, space) = Fixture::grown().await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    fixture.ssd.set_present(false);
    let loss = store.ssd().abandon().await.unwrap();
    assert!(loss.exact && loss.pages() > 0, "{loss:?}");
    store.sync().await.unwrap();
    for no in 0..PAGES {
        let version = read(&store, space, no).await.unwrap();
        assert_eq!(version == 3, !loss.contains(PageId::new(space, no)), "page {no} reads as {version}");
    }
    assert_eq!(store.stats().ssd.state(), SsdState::Off);
    write_all(&store, space, 4).await;
    store.sync().await.unwrap();
    drop(store);
    let later = fixture.after_power_cut(2);
    later.ssd.set_present(false);
    expect_all(&later.open().await, space, 4).await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_lsn_on_the_ssd_alone_is_never_too_new() {
    for seed in 0..5 {
        let (fixture, store, space) = Fixture::grown().await;
        store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
        let _ = store.ssd().drain(DrainOptions::new()).await;
        for version in 2..3 {
            write_all(&store, space, version).await;
        }
        store.sync().await.unwrap();
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
        // The first change since the page's last home write counts, not the latest change.
        for version in 3..6 {
            write_all(&store, space, version).await;
        }
        store.sync().await.unwrap();
        let oldest = store.stats().ssd.oldest_lsn.unwrap();
        let changed: Vec<u32> =
            (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Ssd).collect();
        let truth = |store: &pagetier::PageStore| {
            // Compare with the actual contents of the HDD.
            let hdd = fixture.hdd.snapshot();
            let _ = store;
            changed
                .iter()
                .filter_map(|no| {
                    let at = fixture.home_of(PageId::new(space, *no))? as usize;
                    let home = pagetier_page::Header::peek(&hdd[at..at + 4096]).lsn.0;
                    // Versions are a thousand apart.
                    (home < 5000).then_some(home + 1000)
                })
                .min()
        };
        let needed = truth(&store).unwrap();
        assert!(oldest.0 <= needed && oldest.0 > 2000, "{oldest} reported, {needed} needed");
        drop(store);
        let later = fixture.after_power_cut(seed);
        let store = later.open().await;
        let oldest = store.stats().ssd.oldest_lsn.unwrap_or(Lsn(u64::MAX));
        assert!(oldest.0 <= needed, "after recovery {oldest} reported, {needed} needed");
        let _ = store.ssd().drain(DrainOptions::new()).await;
        assert_eq!(store.stats().ssd.oldest_lsn, None);
    }
}

#[tokio::test(start_paused = true)]
async fn sync_writes_no_checkpoint_and_waits_for_no_flush_of_the_disk() {
    use pagetier_devio::{Device, IoClass};
    let fixture = Fixture::new();
    // Journal and ring are large enough that maintenance has no work of its own.
    let roomy =
        fixture.builder().ssd_bytes(2000 * fixture::PAGE).ring_pages(64).pool_bytes(180 * fixture::PAGE);
    let store = roomy.open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    // All pages go to the HDD, and no admissions from memory request checkpoints.
    store.ssd().set_mode(SsdMode::ReadOnly).await.unwrap();
    tokio::time::sleep(LONG).await;
    for no in 0..20 {
        write(&store, space, no, 2).await.unwrap();
    }
    let (hdd, ssd) = (fixture.hdd.stats(), fixture.ssd.stats());
    let checkpoints = store.stats().ssd.counts.checkpoints;
    store.sync().await.unwrap();
    let (hdd, ssd) = (fixture.hdd.stats().since(&hdd), fixture.ssd.stats().since(&ssd));
    assert_eq!(store.stats().ssd.counts.checkpoints, checkpoints);
    assert_eq!(hdd.flush.ops, 0, "no flush of the HDD");
    assert!(hdd.totals_without(&[]).write.ops > 0, "pages went to the HDD");
    let meta = ssd.totals_of(&[IoClass::Meta]).write;
    assert!(meta.bytes <= 4096 * meta.ops && meta.ops <= 20, "journal blocks alone: {meta:?}");
    drop(store);
    for seed in 0..10 {
        let store = fixture
            .after_power_cut(seed)
            .builder()
            .ssd_bytes(2000 * fixture::PAGE)
            .ring_pages(64)
            .pool_bytes(180 * fixture::PAGE)
            .open()
            .await
            .unwrap();
        for no in 0..20 {
            assert_eq!(read(&store, space, no).await.unwrap(), 2);
        }
    }
}

#[tokio::test]
async fn on_files_the_ssd_can_be_switched_off_taken_away_and_put_back() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = || {
        pagetier::PageStore::builder()
            .directory(dir.path())
            .page_size(pagetier::PageSize::MIN)
            .pool_bytes(60 * fixture::PAGE)
            .ssd_bytes(fixture::SSD_PAGES * fixture::PAGE)
            .ring_pages(8)
            .open()
    };
    let store = open().await.unwrap();
    let space = synced(&store, 2).await;
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    let kept = dir.path().join("kept");
    std::fs::rename(dir.path().join("ssd.cache"), &kept).unwrap();
    write_all(&store, space, 3).await;
    store.close().await.unwrap();
    let store = open().await.unwrap();
    assert_eq!(store.stats().ssd.state(), SsdState::Off);
    expect_all(&store, space, 3).await;
    std::fs::rename(&kept, dir.path().join("ssd.cache")).unwrap();
    store.ssd().readmit().await.unwrap();
    expect_all(&store, space, 3).await;
    write_all(&store, space, 4).await;
    store.close().await.unwrap();
    let store = open().await.unwrap();
    assert_eq!(store.stats().ssd.state(), SsdState::Active);
    assert!(store.stats().ssd.pages > 20);
    expect_all(&store, space, 4).await;
}
