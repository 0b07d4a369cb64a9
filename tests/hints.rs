//! Hints for spaces, under every policy, under load, with power cuts and faults. In `free_load.rs` they
//! change all the time.

use crate::changing::{blank_ssd, check, loaded};
use crate::fixture::{
    Fixture, PAGE, PAGES, expect_all, fill, grown, hints_of, read, synced, write_all, zoned,
};
use pagetier::{
    Error, Location, PageId, PageStore, Retention, SpaceHints, SpaceId, SsdMode, SsdPolicy,
    scrub::ScrubOptions,
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_rivals::SSD_POLICIES;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

fn off() -> SpaceHints {
    SpaceHints::new().never_to_ssd(true)
}

fn on_ssd(store: &PageStore, space: SpaceId) -> usize {
    (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Ssd).count()
}

/// A second space of pages in version 1.
async fn second(store: &PageStore) -> SpaceId {
    let space = store.spaces().create("second").await.unwrap();
    for no in 0..PAGES {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    space
}

async fn left(store: &PageStore, what: &str) {
    for _ in 0..200 {
        if store.stats().ssd.leaving == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: {} copies are still there", store.stats().ssd.leaving);
}

async fn no_findings(store: &PageStore, what: &str) {
    let report = store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
    assert!(report.findings.is_empty(), "{what}: {report:?}");
    store.validate().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[tokio::test(start_paused = true)]
async fn hints_are_read_back_shown_and_forgotten_with_their_space_or_the_store() {
    let (fixture, store, space) = Fixture::synced(1).await;
    let hints = off().retention(Retention::KeepInMemory);
    store.spaces().set_hints(space, hints).unwrap();
    assert_eq!(hints_of(&store, space), hints);
    for no in 0..30 {
        read(&store, space, no).await.unwrap();
    }
    assert_eq!(store.spaces().list()[0].hints, hints);
    let why = store.why(PageId::new(space, 29)).unwrap();
    assert_eq!(why.hints, hints);
    let shown = why.to_string();
    assert!(shown.contains("hints   kept in memory, never to the SSD"), "{shown}");
    let json = serde_json::to_string(&hints).unwrap();
    assert_eq!(json, r#"{"retention":"keep-in-memory","never_to_ssd":true}"#);
    assert_eq!(serde_json::from_str::<SpaceHints>(&json).unwrap(), hints);
    assert_eq!(serde_json::from_str::<SpaceHints>("{}").unwrap(), SpaceHints::new());

    store.spaces().set_hints(space, SpaceHints::new()).unwrap();
    assert_eq!(hints_of(&store, space), SpaceHints::new(), "none take the place of those before");
    store.spaces().set_hints(space, hints).unwrap();

    store.spaces().drop(space).await.unwrap();
    for gone in [space, SpaceId(9)] {
        assert!(matches!(store.spaces().set_hints(gone, hints), Err(Error::NoSuchSpace { .. })));
    }
    let space = second(&store).await;
    store.spaces().set_hints(space, hints).unwrap();
    store.shutdown().await.unwrap();
    assert!(matches!(store.spaces().set_hints(space, hints), Err(Error::Closed)));
    drop(store);
    let store = fixture.open().await;
    assert_eq!(hints_of(&store, space), SpaceHints::new());
}

#[tokio::test(start_paused = true)]
async fn a_space_kept_off_the_ssd_is_never_there_and_others_are() {
    for &policy in SSD_POLICIES {
        let fixture = Fixture::new();
        let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let kept_off = store.spaces().create("off").await.unwrap();
        store.spaces().set_hints(kept_off, off()).unwrap();
        let space = grown(&store).await;
        for version in 1..4 {
            for no in 0..PAGES {
                let page = PageId::new(kept_off, no);
                fill(&mut store.get_or_create(page).await.unwrap(), no, version);
                assert_eq!(store.location(page), Location::Hdd, "{policy}");
            }
            // Clean pages leave memory, and are read again.
            store.sync().await.unwrap();
            for no in 0..PAGES {
                read(&store, kept_off, no).await.unwrap();
                assert_eq!(on_ssd(&store, kept_off), 0, "{policy}, version {version}");
            }
            write_all(&store, space, version).await;
        }
        assert_eq!(on_ssd(&store, space) > 0, policy != SsdPolicy::None, "{policy}");
        store.sync().await.unwrap();
        let later = fixture.after_power_cut(3);
        drop(store);
        let store = later.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        expect_all(&store, kept_off, 3).await;
        expect_all(&store, space, 3).await;
    }
}

#[tokio::test(start_paused = true)]
async fn copies_that_are_there_leave_by_themselves_with_and_without_a_ring() {
    for &policy in SSD_POLICIES {
        for ring in [true, false] {
            let what = format!("{policy}, ring {ring}");
            let fixture = Fixture::new();
            let builder = || {
                let builder = fixture.builder().ssd_policy(zoned(policy));
                if ring { builder } else { builder.ring_pages(0) }
            };
            let store = builder().open().await.unwrap();
            let space = grown(&store).await;
            let other = second(&store).await;
            // Later, so that a policy that appends has copies of them.
            for version in 2..4 {
                write_all(&store, space, version).await;
            }
            store.sync().await.unwrap();
            let (before, others) = (on_ssd(&store, space), on_ssd(&store, other));
            assert_eq!(before > 0, policy != SsdPolicy::None, "{what}");
            store.spaces().set_hints(space, off()).unwrap();
            assert_eq!(store.stats().ssd.leaving, before as u64, "{what}");
            // Nothing is requested meanwhile.
            left(&store, &what).await;
            assert_eq!((on_ssd(&store, space), on_ssd(&store, other)), (0, others), "{what}");
            expect_all(&store, space, 3).await;
            store.sync().await.unwrap();
            drop(store);
            let store = builder().open().await.unwrap();
            // A recovery finds clean copies that the last map checkpoint named.
            expect_all(&store, space, 3).await;
            store.spaces().set_hints(space, off()).unwrap();
            left(&store, &what).await;
            assert_eq!(on_ssd(&store, space), 0, "{what}");
            expect_all(&store, space, 3).await;
            expect_all(&store, other, 1).await;
            no_findings(&store, &what).await;
        }
    }
}

/// The power fails at some moment after the space's pages, some of which are on the SSD alone, began to
/// leave, while they are changed and synced.
#[tokio::test(start_paused = true)]
async fn a_power_cut_while_copies_leave_loses_nothing_synced() {
    for seed in 0..40_u64 {
        let policy = SSD_POLICIES[seed as usize % SSD_POLICIES.len()];
        let what = format!("seed {seed}, {policy}");
        let fixture = Fixture::new();
        let (store, space, load) = loaded(&fixture, policy).await;
        store.spaces().set_hints(space, off()).unwrap();
        tokio::time::sleep(Duration::from_micros(seed * 7_919 % 160_000)).await;
        let (later, at_cut) = (fixture.after_power_cut(seed), load.known.copy());
        // Without a cut they leave, whatever is changed.
        left(&store, &what).await;
        assert_eq!(on_ssd(&store, space), 0, "{what}");
        check(&store, space, &*load.end().await, &what).await;
        drop(store);
        let opened = later.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        check(&opened, space, &at_cut, &what).await;
        no_findings(&opened, &what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn copies_that_cannot_be_written_home_stay_and_leave_once_they_can() {
    let (fixture, store, space) = Fixture::synced(2).await;
    assert!(store.stats().ssd.dirty_pages > 0);
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    store.spaces().set_hints(space, off()).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stats = store.stats().ssd;
    assert!(stats.leaving > 0 && stats.leaving == stats.dirty_pages, "{stats:?}");
    expect_all(&store, space, 2).await;
    fixture.hdd.clear_faults();
    write_all(&store, space, 3).await;
    left(&store, "the disk has room again").await;
    store.sync().await.unwrap();
    drop(store);
    let store = fixture.after_power_cut(1).open().await;
    expect_all(&store, space, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_space_stays_off_a_replaced_ssd_and_one_that_comes_back() {
    let (_fixture, store, space) = Fixture::grown().await;
    let other = second(&store).await;
    store.spaces().set_hints(space, off()).unwrap();
    store.ssd().replace(blank_ssd("new", 5) as SharedDevice, 200 * PAGE).await.unwrap();
    for version in 2..4 {
        write_all(&store, space, version).await;
        write_all(&store, other, version).await;
        assert_eq!(on_ssd(&store, space), 0);
        store.ssd().set_mode(SsdMode::Off).await.unwrap();
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    }
    write_all(&store, other, 4).await;
    assert!(on_ssd(&store, other) > 0);
    store.spaces().set_hints(space, SpaceHints::new()).unwrap();
    write_all(&store, space, 4).await;
    assert!(on_ssd(&store, space) > 0, "the hint was withdrawn");
    expect_all(&store, space, 4).await;
}

/// A space is dropped while its copies leave, and another gets its extents.
#[tokio::test(start_paused = true)]
async fn a_space_can_be_dropped_while_its_copies_leave() {
    for seed in 0..24_u64 {
        let policy = SSD_POLICIES[seed as usize % SSD_POLICIES.len()];
        let what = format!("seed {seed}, {policy}");
        let fixture = Fixture::new();
        let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let space = synced(&store, 2).await;
        store.spaces().set_hints(space, off()).unwrap();
        tokio::time::sleep(Duration::from_micros(seed * 3_917)).await;
        store.spaces().drop(space).await.unwrap();
        let next = second(&store).await;
        assert_eq!(store.spaces().list()[0].hints, SpaceHints::new(), "{what}");
        store.sync().await.unwrap();
        assert_eq!(store.stats().ssd.leaving, 0, "{what}");
        expect_all(&store, next, 1).await;
        let later = fixture.after_power_cut(seed);
        drop(store);
        let store = later.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        expect_all(&store, next, 1).await;
        no_findings(&store, &what).await;
    }
}

/// A flush fails while the copies of a space leave, and the power fails soon after: nothing that a successful
/// `sync` covered is lost, whatever the failed flush left.
#[tokio::test(start_paused = true)]
async fn a_flush_that_fails_while_copies_leave_loses_nothing_synced() {
    let mut failed = 0;
    for seed in 0..48_u64 {
        let policy = SSD_POLICIES[seed as usize % SSD_POLICIES.len()];
        let model = FlushFailure::ALL[seed as usize / 2 % FlushFailure::ALL.len()];
        let what = format!("seed {seed}, {policy}, {model:?}");
        let (mut fixture, power) = (Fixture::new(), SimPower::new());
        let device = |name, micros| {
            let device = SimDevice::new(name, 0, seed, &power).with_flush_failure(model);
            Arc::new(device.with_latency(Duration::from_micros(micros)))
        };
        (fixture.hdd, fixture.ssd) = (device("hdd", 4_000), device("ssd", 400));
        let (store, space, load) = loaded(&fixture, policy).await;
        store.spaces().set_hints(space, off()).unwrap();
        tokio::time::sleep(Duration::from_micros(seed * 7_919 % 60_000)).await;
        let flushed = if seed % 2 == 0 { &fixture.hdd } else { &fixture.ssd };
        flushed.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        let failures = |store: &PageStore| {
            let stats = store.stats();
            let device = if seed % 2 == 0 { stats.hdd_device } else { stats.ssd_device };
            device.errors.total()
        };
        tokio::time::sleep(Duration::from_micros(30_000 + seed * 3_571 % 50_000)).await;
        failed += u32::from(failures(&store) > 0);
        let (later, at_cut) = (fixture.after_power_cut(seed), load.known.copy());
        load.end().await;
        drop(store);
        let opened = later.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        check(&opened, space, &at_cut, &what).await;
        opened.spaces().set_hints(space, off()).unwrap();
        left(&opened, &what).await;
        check(&opened, space, &at_cut, &what).await;
        no_findings(&opened, &what).await;
    }
    assert!(failed >= 24, "only {failed} flushes failed");
}

/// The versions of all pages; `None`: the only copy of a page in `rotten` is damaged, which the error says.
async fn versions(store: &PageStore, space: SpaceId, rotten: &[u32], what: &str) -> Vec<Option<u32>> {
    let mut versions = Vec::new();
    for no in 0..PAGES {
        versions.push(match read(store, space, no).await {
            Ok(version) => Some(version),
            Err(error) => {
                assert!(rotten.contains(&no), "{what}: page {no}: {error}");
                assert_eq!(error.page(), Some(PageId::new(space, no)), "{what}");
                assert!(error.to_string().contains("corrupt"), "{what}: {error}");
                None
            }
        });
    }
    versions
}

/// Copies on the SSD become corrupt before their space is kept off it. Where the HDD has the version, it is
/// read; the others are errors, never older versions, and leave once the engine has written the pages again.
#[tokio::test(start_paused = true)]
async fn rotten_copies_of_a_space_kept_off_the_ssd_are_never_read() {
    let (mut read_well, mut lost) = (0, 0);
    for &policy in SSD_POLICIES {
        let what = policy.to_string();
        let fixture = Fixture::new();
        let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let space = grown(&store).await;
        for version in 2..4 {
            write_all(&store, space, version).await;
        }
        store.sync().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let rotten: Vec<u32> = (0..PAGES)
            .step_by(3)
            .filter(|no| {
                let page = PageId::new(space, *no);
                store.location(page) == Location::Ssd && store.try_get(page).is_none()
            })
            .collect();
        for no in &rotten {
            for at in fixture.slots_of(PageId::new(space, *no)) {
                fixture.ssd.rot(at..at + 512, 7);
            }
        }
        store.spaces().set_hints(space, off()).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let found = versions(&store, space, &rotten, &what).await;
        assert!(found.iter().all(|version| version.is_none_or(|version| version == 3)), "{what}: {found:?}");
        let damaged: Vec<u32> = (0..PAGES).filter(|no| found[*no as usize].is_none()).collect();
        assert!(store.stats().ssd.leaving <= damaged.len() as u64, "{what}: {:?}", store.stats().ssd);
        (read_well, lost) = (read_well + rotten.len() - damaged.len(), lost + damaged.len());
        store.validate().unwrap();
        // After a power cut it is the same.
        let later = fixture.after_power_cut(5).builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let again = versions(&later, space, &rotten, &what).await;
        assert!(again.iter().all(|version| version.is_none_or(|version| version == 3)), "{what}: {again:?}");
        // Redo from the engine's log.
        for no in damaged {
            fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 3);
        }
        store.sync().await.unwrap();
        left(&store, &what).await;
        expect_all(&store, space, 3).await;
        no_findings(&store, &what).await;
    }
    assert!(read_well > 20 && lost > 20, "{read_well} read well, {lost} lost");
}
