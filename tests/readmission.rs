//! The SSD is readmitted after a failure: nothing synced is lost, and the store works meanwhile.

use crate::fixture::{self, Fixture, PAGES, expect_all, grown, read, synced, write, write_all, zoned};
use pagetier::{
    Builder, DrainOptions, Error, Location, PageId, PageStore, ReadmitReport, SpaceHints, SpaceId, SsdMode,
    errors::{PoolError, TierError},
    stats::SsdState,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

type Readmitting = JoinHandle<Result<ReadmitReport, Error>>;

/// The number of pages that are written after the last good flush.
const LATER: usize = 40;

/// A fixture whose SSD does this to what a failed flush covered.
fn fixture(model: FlushFailure) -> Fixture {
    let ssd = SimDevice::new("ssd", 0, 2, &SimPower::new());
    let ssd = Arc::new(ssd.with_latency(Duration::from_micros(400)).with_flush_failure(model));
    Fixture { ssd, ..Fixture::new() }
}

/// A builder with so many free slots that versions can be rewritten without a flush.
fn roomy(fixture: &Fixture) -> Builder {
    // Which pages leave memory, and when, is a part of these schedules: not left to the default.
    let builder = fixture.builder().pool_bytes(84 * fixture::PAGE).pool_policy("gd2l:frequency");
    builder.ssd_bytes(600 * fixture::PAGE).ssd_policy("auto:zone=70")
}

/// Some pages that have copies on the SSD.
fn on_the_ssd(store: &PageStore, space: SpaceId) -> Vec<u32> {
    let all = (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Ssd);
    let some: Vec<u32> = all.take(LATER).collect();
    assert_eq!(some.len(), LATER);
    some
}

/// Makes the pages `later` leave memory, if they can be written.
async fn evict(store: &PageStore, space: SpaceId, later: &[u32]) {
    for no in (0..PAGES).filter(|no| !later.contains(no)) {
        let _ = read(store, space, no).await;
    }
}

/// Opens a store and syncs version 2 of its pages.
async fn opened(builder: Builder) -> (Arc<PageStore>, SpaceId) {
    let store = Arc::new(builder.open().await.unwrap());
    let space = synced(&store, 2).await;
    (store, space)
}

/// Writes version 3 of some pages, of which the first `back` come back into memory; the flush that should
/// make them durable fails. Returns those pages, and those of them whose writes succeeded.
async fn fail_a_flush(
    fixture: &Fixture,
    store: &PageStore,
    space: SpaceId,
    back: usize,
) -> (Vec<u32>, Vec<u32>) {
    let later = on_the_ssd(store, space);
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    let mut written = Vec::new();
    for no in &later {
        written.extend(write(store, space, *no, 3).await.ok().map(|()| *no));
    }
    evict(store, space, &later).await;
    for no in &later[..back] {
        let _ = read(store, space, *no).await;
    }
    assert!(store.sync().await.is_err(), "no flush failed");
    (later, written)
}

fn fault(fixture: &Fixture, effect: FaultEffect, op: IoOp) -> Fault {
    Fault::new(effect).on(op).within(fixture.slots())
}

/// Degrades the SSD by one failed slot write.
async fn degrade(fixture: &Fixture, store: &PageStore, space: SpaceId, version: u32) {
    fixture.ssd.inject(fault(fixture, FaultEffect::Eio, IoOp::Write).times(1));
    for no in 0..PAGES {
        write(store, space, no, version).await.unwrap();
        if store.stats().ssd.state() == SsdState::Degraded {
            return;
        }
    }
    panic!("no slot was written");
}

/// Version 2 of every page is synced; `rounds` later versions of some are written, and the flush that should
/// make them durable fails. Returns, after the readmission, the pages that cannot be read or are older than
/// version 2: at once, and after a power cut.
async fn lost_after_a_failed_flush(model: FlushFailure, rounds: u32, policy: &str) -> usize {
    let fixture = fixture(model);
    let (store, space) = opened(roomy(&fixture).ssd_policy(format!("{policy}:zone=70"))).await;
    let later = on_the_ssd(&store, space);
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    for round in 0..rounds {
        for no in &later {
            let _ = write(&store, space, *no, 3 + round).await;
        }
        evict(&store, space, &later).await;
    }
    assert!(store.sync().await.is_err(), "no flush failed");
    let report = store.ssd().readmit().await.unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    let reverts = model == FlushFailure::Reverted;
    let case = format!("{model:?}, {rounds} rounds, {policy}");
    assert!(reverts != report.reverted.is_empty(), "{case}: {report:?}");
    let newest = 2 + rounds;
    let good = |no: u32, found: &Result<u32, Error>| match found {
        Ok(version) if later.contains(&no) => (2..=newest).contains(version),
        found => matches!(found, Ok(2)),
    };
    let mut lost = 0;
    for no in 0..PAGES {
        let found = read(&store, space, no).await;
        lost += usize::from(!good(no, &found));
        let reverted = report.reverted.contains(&PageId::new(space, no));
        // A page that could not be changed any more reads as the version before, too.
        let is_old = found.as_ref().is_ok_and(|version| *version < newest && later.contains(&no));
        assert!(is_old || !reverted, "page {no}: {found:?}, {report:?}");
    }
    store.validate().unwrap();
    store.sync().await.unwrap();
    drop(store);
    let store =
        roomy(&fixture.after_power_cut(1)).ssd_policy(format!("{policy}:zone=70")).open().await.unwrap();
    for no in 0..PAGES {
        lost += usize::from(!good(no, &read(&store, space, no).await));
    }
    lost
}

#[tokio::test(start_paused = true)]
async fn a_failed_flush_whose_writes_are_gone_costs_no_synced_version() {
    let reverted = ["auto", "lru2", "mv-fifo"].map(|policy| (FlushFailure::Reverted, 1, policy));
    let others = [
        (FlushFailure::Reverted, 3, "auto"),
        (FlushFailure::NeverDurable, 2, "auto"),
        (FlushFailure::Cached, 1, "auto"),
    ];
    for (model, rounds, policy) in reverted.into_iter().chain(others) {
        let lost = lost_after_a_failed_flush(model, rounds, policy).await;
        assert_eq!(lost, 0, "{model:?}, {rounds} rounds, {policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_sync_beside_a_readmission_covers_a_version_that_it_takes_back() {
    let fixture = fixture(FlushFailure::Reverted);
    let (store, space) = opened(roomy(&fixture)).await;
    let (later, _) = fail_a_flush(&fixture, &store, space, 0).await;
    // It begins before the readmission, and has to wait for this guard.
    let held = (0..PAGES).find(|no| !later.contains(no)).unwrap();
    let mut guard = store.get_mut(PageId::new(space, held)).await.unwrap();
    guard[0] ^= 1;
    drop(guard);
    let guard = store.get_mut(PageId::new(space, held)).await.unwrap();
    let syncing = Arc::clone(&store);
    let syncing = tokio::spawn(async move { syncing.sync().await });
    tokio::task::yield_now().await;
    assert!(!store.ssd().readmit().await.unwrap().reverted.is_empty());
    drop(guard);
    syncing.await.unwrap().unwrap_err();
    store.sync().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_page_that_memory_still_has_is_not_reported_as_reverted() {
    let fixture = fixture(FlushFailure::Reverted);
    let (store, space) = opened(roomy(&fixture)).await;
    // Some come back into memory before the failed flush takes their copies back.
    let (later, _) = fail_a_flush(&fixture, &store, space, 10).await;
    let kept = &later[..10];
    let report = store.ssd().readmit().await.unwrap();
    assert!(!report.reverted.is_empty(), "{report:?}");
    let newest = async |no: u32| read(&store, space, no).await.unwrap() == 3;
    for no in kept {
        assert!(newest(*no).await && !report.reverted.contains(&PageId::new(space, *no)), "{no}: {report:?}");
    }
    store.sync().await.unwrap();
    drop(store);
    let store = roomy(&fixture.after_power_cut(1)).open().await.unwrap();
    for no in kept {
        assert_eq!(read(&store, space, *no).await.unwrap(), 3, "page {no}");
    }
}

/// Pages fall back, and the manifest cannot list them. What comes next finds nothing wrong with the SSD.
#[tokio::test(start_paused = true)]
async fn a_loss_that_could_not_be_listed_is_listed_by_what_comes_next() {
    for (gives_up, replaced) in [(false, false), (false, true), (true, false)] {
        let fixture = fixture(FlushFailure::Reverted);
        let (store, space) = opened(roomy(&fixture)).await;
        let (_, written) = fail_a_flush(&fixture, &store, space, 0).await;
        fixture.manifest.fail_saves(0, 1, replaced);
        assert!(matches!(store.ssd().readmit().await, Err(Error::Readmit(_))), "the list was saved");
        assert!(store.sync().await.is_err(), "it promises what is gone");
        if gives_up {
            store.ssd().abandon().await.unwrap();
        } else {
            store.ssd().readmit().await.unwrap();
        }
        store.sync().await.unwrap();
        let loss = store.ssd().loss().expect("no page fell back");
        let mut older = 0;
        for no in written {
            if !matches!(read(&store, space, no).await, Ok(3)) {
                assert!(loss.contains(PageId::new(space, no)), "page {no} fell back untold");
                older += 1;
            }
        }
        assert!(older > 0, "nothing was lost");
        drop(store);
        let store = roomy(&fixture.after_power_cut(1)).open().await.unwrap();
        assert_eq!(store.ssd().loss(), Some(loss));
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_in_its_second_life_never_falls_back_to_its_first() {
    let fixture = fixture(FlushFailure::Reverted);
    let (store, space) = opened(roomy(&fixture)).await;
    // Each page has a durable predecessor that waits for a flush when it is freed.
    let later = on_the_ssd(&store, space);
    for no in &later {
        write(&store, space, *no, 3).await.unwrap();
    }
    evict(&store, space, &later).await;
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    for &no in &later {
        store.free(PageId::new(space, no)).await.unwrap();
        fixture::fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 9);
    }
    evict(&store, space, &later).await;
    let _ = store.sync().await;
    assert!(store.stats().ssd.refusing.is_some(), "no flush failed");
    let report = store.ssd().readmit().await.unwrap();
    assert!(!report.reverted.is_empty(), "{report:?}");
    for no in later {
        match read(&store, space, no).await {
            Ok(version) => assert_eq!(version, 9, "page {no}: {report:?}"),
            Err(Error::NoSuchPage { .. }) => {}
            Err(error) => panic!("page {no}: {error}"),
        }
    }
}

/// The copies of home writes that no flush of the HDD has made durable are damaged.
#[tokio::test(start_paused = true)]
async fn a_damaged_copy_of_a_home_write_is_dropped_once_the_hdd_is_flushed() {
    let fixture = Fixture::new();
    let store = fixture.builder().ring_pages(0).ssd_policy(zoned("tac")).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    for no in 0..PAGES {
        write(&store, space, no, 2).await.unwrap();
        if store.stats().ssd.dirty_pages > 4 {
            break;
        }
    }
    assert!(store.stats().ssd.dirty_pages > 0, "no copy awaits a flush");
    for at in fixture.slots().step_by(fixture::PAGE as usize) {
        fixture.ssd.flip_bit(at + 900, 0);
    }
    fixture.ssd.inject(fault(&fixture, FaultEffect::Eio, IoOp::Write).times(1));
    for no in 0..PAGES {
        if store.stats().ssd.state() == SsdState::Degraded {
            break;
        }
        write(&store, space, no, 3).await.unwrap();
    }
    let report = store.ssd().readmit().await.unwrap();
    assert!(report.dropped > 0 && report.lost.is_empty(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sound_copy_that_was_read_wrong_stays_in_use() {
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    degrade(&fixture, &store, space, 2).await;
    store.sync().await.unwrap();
    fixture.ssd.inject(fault(&fixture, FaultEffect::BitFlip, IoOp::Read).times(24));
    let report = store.ssd().readmit().await.unwrap();
    expect_all(&store, space, 2).await;
    assert!(report.lost.is_empty(), "{report:?}");
}

/// Without a ring, two reads of sound copies come back wrong (or, if `all`, every read) while pages leave the
/// SSD and newer versions of them go home; a `sync` is in flight when the power is cut.
async fn misread_while_pages_leave(seed: u64, all: bool, drain: bool) -> u32 {
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder().ring_pages(0)).await;
    let times = if all { u64::MAX } else { 2 };
    fixture.ssd.inject(fault(&fixture, FaultEffect::BitFlip, IoOp::Read).times(times));
    if drain {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.ssd().drain(DrainOptions::new()).await });
        tokio::task::yield_now().await;
    } else {
        store.spaces().set_hints(space, SpaceHints::new().never_to_ssd(true)).unwrap();
    }
    let work = async {
        for no in (0..PAGES).step_by(3) {
            // Pages that must be read from a bad copy cannot be changed, but they can be overwritten.
            fixture::fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 3);
        }
        store.sync().await
    };
    let synced = tokio::time::timeout(Duration::from_micros(30_000 + seed * 11_003), work).await;
    let least = |no: u32| if matches!(synced, Ok(Ok(()))) && no.is_multiple_of(3) { 3 } else { 2 };
    let later = fixture.after_power_cut(seed);
    let store = later.builder().ring_pages(0).open().await.unwrap();
    let mut lost = 0;
    for no in 0..PAGES {
        match read(&store, space, no).await {
            Ok(version) if version >= least(no) => {}
            // A home that the HDD tore, without a ring.
            Err(Error::Pool(PoolError::Tier(TierError::Corrupt { device, .. }))) if &*device == "hdd" => {}
            _ => lost += 1,
        }
    }
    lost
}

#[tokio::test(start_paused = true)]
async fn copies_that_are_read_wrong_are_not_voided_while_their_pages_leave() {
    for all in [false, true] {
        for drain in [false, true] {
            for seed in 0..12 {
                let lost = misread_while_pages_leave(seed, all, drain).await;
                assert_eq!(lost, 0, "seed {seed}, all: {all}, drain: {drain}");
            }
        }
    }
}

/// Begins to readmit an SSD each of whose reads takes `slow`.
async fn readmit_slowly(fixture: &Fixture, store: &Arc<PageStore>, slow: Duration) -> Readmitting {
    fixture.ssd.inject(fault(fixture, FaultEffect::Slow(slow), IoOp::Read));
    let store = Arc::clone(store);
    let task = tokio::spawn(async move { store.ssd().readmit().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    task
}

#[tokio::test(start_paused = true)]
async fn the_store_works_while_a_slow_ssd_is_verified_and_what_it_writes_counts() {
    let second = Duration::from_secs(1);
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    degrade(&fixture, &store, space, 2).await;
    store.sync().await.unwrap();
    let copies = store.stats().ssd.pages;
    assert!(copies > 80, "{copies}");
    fixture.ssd.inject(fault(&fixture, FaultEffect::Slow(second), IoOp::Read));
    let begun = Instant::now();
    let task = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { (store.ssd().readmit().await, Instant::now()) })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Pages in slots and others, a new space, and growth.
    for no in 0..PAGES {
        fixture::fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 3);
    }
    store.sync().await.unwrap();
    let other = store.spaces().create("other").await.unwrap();
    for no in 0..130 {
        fixture::fill(&mut store.allocate(other).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    assert!(begun.elapsed() < 2 * second, "it waited: {:?}", begun.elapsed());
    assert!(!task.is_finished());
    let (report, ended) = task.await.unwrap();
    let report = report.unwrap();
    assert!(report.lost.is_empty() && report.reverted.is_empty(), "{report:?}");
    assert!(ended - begun < u32::try_from(copies).unwrap() * second / 8, "{:?}", ended - begun);
    assert_eq!(store.stats().ssd.state(), SsdState::Active);
    fixture.ssd.clear_faults();
    expect_all(&store, space, 3).await;
    store.validate().unwrap();
    write_all(&store, space, 4).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.dirty_pages > 20, "it takes pages again");
    drop(store);
    expect_all(&fixture.after_power_cut(3).open().await, space, 4).await;
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_fails_again_while_it_is_verified_is_not_taken_back() {
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    degrade(&fixture, &store, space, 2).await;
    store.sync().await.unwrap();
    let task = readmit_slowly(&fixture, &store, Duration::from_secs(1)).await;
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    for no in 0..PAGES {
        let _ = write(&store, space, no, 2).await;
    }
    let _ = store.sync().await;
    assert!(matches!(task.await.unwrap(), Err(Error::Readmit(_))), "it forgot a failed flush");
    assert!(store.sync().await.is_err());
    fixture.ssd.clear_faults();
    store.ssd().readmit().await.unwrap();
    store.sync().await.unwrap();
    expect_all(&store, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_map_that_could_not_be_saved_before_is_no_new_failure_when_the_journal_fills() {
    // The SSD failed at a checkpoint of the map. Nothing makes room in the journal until the readmission
    // ends, and the writes beside it fill the journal: the store refuses writes by the old failure.
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    let layout = fixture.layout();
    let maps = layout.map_at(0)..layout.map_at(0) + 2 * layout.map_area_bytes();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(maps));
    for no in (0..PAGES).cycle().take(20 * PAGES as usize) {
        if store.stats().ssd.state() == SsdState::Degraded {
            break;
        }
        let _ = write(&store, space, no, 2).await;
    }
    assert_eq!(store.stats().ssd.state(), SsdState::Degraded, "the map was never saved");
    assert!(store.stats().ssd.refusing.is_none(), "too late");
    fixture.ssd.clear_faults();
    let task = readmit_slowly(&fixture, &store, Duration::from_secs(100)).await;
    let mut cycle = (0..PAGES).cycle();
    while store.stats().ssd.refusing.is_none() && !task.is_finished() {
        // Without a read of the slow SSD.
        let no = cycle.next().unwrap();
        if let Ok(mut page) = store.overwrite(PageId::new(space, no)).await {
            fixture::fill(&mut page, no, 2);
        }
    }
    assert!(!task.is_finished(), "the journal never filled");
    task.await.unwrap().unwrap();
    fixture.ssd.clear_faults();
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    drop(store);
    expect_all(&fixture.after_power_cut(3).open().await, space, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_slow_verification() {
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    degrade(&fixture, &store, space, 2).await;
    store.sync().await.unwrap();
    let slow = Duration::from_secs(20);
    let task = readmit_slowly(&fixture, &store, slow).await;
    let begun = Instant::now();
    let _ = store.shutdown().await;
    assert!(begun.elapsed() < 2 * slow, "{:?}", begun.elapsed());
    assert!(matches!(task.await.unwrap(), Err(Error::Closed)));
    fixture.ssd.clear_faults();
    drop(store);
    expect_all(&fixture.open().await, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_has_not_failed_is_left_as_it_is() {
    let fixture = Fixture::new();
    let (store, _) = opened(fixture.builder()).await;
    let report = store.ssd().readmit().await.unwrap();
    assert_eq!(report.verified + report.rewritten + report.dropped, 0);
    assert_eq!((store.stats().ssd.state(), store.stats().ssd.mode), (SsdState::Active, SsdMode::WriteBack));
    fixture.ssd.set_present(false);
    assert!(matches!(store.ssd().readmit().await, Err(Error::Readmit(_))));
}

#[tokio::test(start_paused = true)]
async fn two_replacements_at_once_both_end_and_the_mode_is_the_users() {
    for chosen in [None, Some(SsdMode::ReadOnly), Some(SsdMode::WriteThrough)] {
        let fixture = Fixture::new();
        let (store, space) = opened(fixture.builder()).await;
        let new = |name, seed| crate::changing::blank_ssd(name, seed);
        let (first, second) = (new("first", 1), new("second", 2));
        let replace = |device: &Arc<SimDevice>| {
            let new = Arc::clone(device);
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.ssd().replace(new, 200 * fixture::PAGE).await })
        };
        let tasks = [replace(&first), replace(&second)];
        tokio::time::sleep(Duration::from_millis(2)).await;
        if let Some(mode) = chosen {
            store.ssd().set_mode(mode).await.unwrap();
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(store.stats().ssd.mode, chosen.unwrap_or(SsdMode::WriteBack));
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        let dirty = store.stats().ssd.dirty_pages;
        assert_eq!(dirty > 0, chosen.is_none(), "{dirty} only copies in mode {chosen:?}");
        expect_all(&store, space, 3).await;
    }
}

#[tokio::test]
async fn a_read_only_opening_puts_no_device_into_use_and_promises_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder = || {
        let builder = PageStore::builder().directory(dir.path().join("store"));
        builder.page_size(pagetier::PageSize::MIN).pool_bytes(1 << 20).ssd_bytes(2 << 20)
    };
    let store = builder().open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let new = dir.path().join("new");
    for off in [false, true] {
        if off {
            let store = builder().open().await.unwrap();
            store.ssd().set_mode(SsdMode::Off).await.unwrap();
            store.close().await.unwrap();
            std::fs::remove_file(dir.path().join("store/ssd.cache")).unwrap();
        }
        let ssd = dir.path().join("another");
        let reader = if off { builder().ssd(&ssd) } else { builder() };
        let reader = reader.open_read_only().await.unwrap();
        let ssd_calls = reader.ssd();
        let refused = [
            ("replace_ssd", reader.ssd().replace(&new, 4 << 20).await),
            ("readmit", ssd_calls.readmit().await.map(drop)),
            ("abandon", ssd_calls.abandon().await.map(drop)),
            ("set_mode", ssd_calls.set_mode(if off { SsdMode::WriteBack } else { SsdMode::Off }).await),
            ("acknowledge_loss", ssd_calls.acknowledge_loss().await),
            ("redo_from", reader.redo_from(pagetier::Lsn(1), pagetier::Loss::Ssd).await.map(drop)),
        ];
        for (call, result) in refused {
            assert!(matches!(result, Err(Error::ReadOnly)), "{call}: {result:?}");
        }
        expect_all(&reader, space, 1).await;
        drop(reader);
        assert!(!new.exists() && !ssd.exists(), "a file was made");
    }
}

/// A copy that cannot be read during a readmission, and can be read later: its page has fallen back, so no
/// recovery may bring the copy back.
#[tokio::test(start_paused = true)]
async fn a_copy_that_was_given_up_does_not_come_back_when_it_reads_well_again() {
    let mut fell = 0;
    for seed in 0..4 {
        let fixture = fixture(FlushFailure::Cached);
        let (store, space) = opened(roomy(&fixture)).await;
        fail_a_flush(&fixture, &store, space, 0).await;
        let bytes = fixture.ssd.snapshot();
        for at in (0..bytes.len() as u64).step_by(fixture::PAGE as usize) {
            let found = pagetier_page::Header::peek(&bytes[at as usize..]);
            if found.page.space == space && (3000..4000).contains(&found.lsn.0) {
                let flips = Fault::new(FaultEffect::BitFlip).on(IoOp::Read);
                fixture.ssd.inject(flips.within(at..at + fixture::PAGE));
            }
        }
        let report = store.ssd().readmit().await.unwrap();
        assert!(!report.reverted.is_empty() && report.lost.is_empty(), "{report:?}");
        fixture.ssd.clear_faults();
        for page in &report.reverted {
            assert_eq!(read(&store, space, page.no).await.unwrap(), 2);
        }
        drop(store);
        let store = roomy(&fixture.after_power_cut(seed)).open().await.unwrap();
        for page in &report.reverted {
            assert_eq!(read(&store, space, page.no).await.unwrap(), 2, "{page}, seed {seed}");
            fell += 1;
        }
    }
    assert!(fell > 0);
}
