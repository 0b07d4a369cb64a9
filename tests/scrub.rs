//! The background scrub: what it finds and repairs, and how it ends.

use crate::fixture::{self, Fixture, PAGE, PAGES, expect_all, read, synced, write_all};
use pagetier::{
    DrainOptions, Error, PageId, PageStore, SpaceId, SsdMode,
    errors::{PoolError, TierError},
    scrub::ScrubOptions,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::time::Duration;

fn fast() -> ScrubOptions {
    ScrubOptions::default().pages_per_second(None)
}

/// A store with everything at version 2 and clean copies of many pages on the SSD; almost no page is only in
/// memory.
async fn clean_copies(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = fixture.open().await;
    let space = synced(&store, 2).await;
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
    (store, space)
}

/// Pages with an SSD copy that are not in memory.
fn on_ssd(store: &PageStore, space: SpaceId) -> Vec<PageId> {
    let all = (0..PAGES).map(|no| PageId::new(space, no));
    all.filter(|page| store.location(*page) == pagetier::Location::Ssd && store.try_get(*page).is_none())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_sound_store_has_nothing_to_report() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    synced(&store, 2).await;
    let report = store.scrub(fast()).finished().await;
    assert!(report.complete && report.findings.is_empty(), "{report:?}");
    assert_eq!(report.progress.done, report.progress.total);
    assert!(report.progress.total >= u64::from(PAGES));
}

#[tokio::test(start_paused = true)]
async fn a_bad_clean_copy_is_given_up_and_a_bad_home_rewritten_from_its_copy() {
    let fixture = Fixture::new();
    let (store, space) = clean_copies(&fixture).await;
    let pages = on_ssd(&store, space);
    let [bad_copy, bad_home, lost_write] = [pages[0], pages[1], pages[2]];
    for at in fixture.slots_of(bad_copy) {
        fixture.ssd.flip_bit(at + 1000, 3);
    }
    let at = fixture.home_of(bad_home).unwrap();
    fixture.hdd.flip_bit(at + 2000, 5);
    // A sound but older image, as after a lost write.
    older_home(&fixture, lost_write).await;
    let unhealed = store.scrub(fast().heal(false)).finished().await;
    assert_eq!((unhealed.progress.found, unhealed.progress.healed), (3, 0), "{unhealed:?}");
    let report = store.scrub(fast()).finished().await;
    assert!(report.complete && report.findings.iter().all(|f| f.healed), "{report:?}");
    let mut found: Vec<PageId> = report.findings.iter().map(|f| f.page).collect();
    found.sort_unstable();
    let mut expected = vec![bad_copy, bad_home, lost_write];
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(report.findings.iter().all(|f| matches!(f.error, TierError::Corrupt { .. })));
    assert!(store.scrub(fast()).finished().await.findings.is_empty());
    expect_all(&store, space, 2).await;
    // The repair is durable, and independent of the SSD.
    drop(store);
    let later = fixture.after_power_cut(3);
    later.ssd.set_present(false);
    let store = later.builder().ssd_bytes(0).accept_ssd_loss(true).open().await.unwrap();
    expect_all(&store, space, 2).await;
}

/// Puts version 1 of `page` at its home without the store's knowledge.
async fn older_home(fixture: &Fixture, page: PageId) {
    use pagetier_devio::{Device, IoBuf, IoBufs, IoClass};
    let mut image = IoBuf::zeroed(PAGE as usize);
    let header = pagetier_page::Header {
        page,
        lsn: pagetier::Lsn(1000),
        stamp: pagetier_page::Stamp::ZERO,
        flags: pagetier_page::Flags::NONE,
    };
    header.put(image.as_mut_slice());
    fixture::fill(&mut image.as_mut_slice()[32..], page.no, 1);
    let stamp = pagetier_page::Stamp::from_bits(7);
    pagetier_page::seal(fixture.seed(), image.as_mut_slice(), stamp, pagetier_page::Flags::NONE);
    let at = fixture.home_of(page).unwrap();
    fixture.hdd.write(at, IoBufs::from_iter([image]), IoClass::Clean).await.result.unwrap();
    fixture.hdd.flush(IoClass::Meta).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_only_copy_is_an_error_that_names_it_and_is_healed_from_memory() {
    let (fixture, store, space) = Fixture::synced(2).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let hdd = fixture.hdd.snapshot();
    // The HDD holds an older version, or none.
    let is_only = |page: &PageId| {
        let home = fixture.home_of(*page).map(|at| pagetier_page::Header::peek(&hdd[at as usize..]).lsn.0);
        store.location(*page) == pagetier::Location::Ssd && home.is_none_or(|lsn| lsn < 2000)
    };
    let pages = (0..PAGES).map(|no| PageId::new(space, no));
    let dirty_in_memory = pages.rev().find(|page| is_only(page) && store.try_get(*page).is_some());
    let only = on_ssd(&store, space).into_iter().find(is_only).unwrap();
    let offsets = fixture.slots_of(only);
    for at in offsets.iter().copied().chain(dirty_in_memory.iter().flat_map(|page| fixture.slots_of(*page))) {
        fixture.ssd.flip_bit(at + 1000, 3);
    }
    let report = store.scrub(fast().homes(false)).finished().await;
    assert!(report.findings.iter().any(|f| f.page == only && !f.healed), "{report:?}");
    if let Some(page) = dirty_in_memory {
        assert!(report.findings.iter().any(|f| f.page == page && f.healed), "{report:?}");
    }
    match read(&store, space, only.no).await {
        Err(Error::Pool(PoolError::Tier(TierError::Corrupt { page, device, offset, .. }))) => {
            assert_eq!((page, &*device), (only, "ssd"));
            assert!(offsets.contains(&offset));
        }
        other => panic!("{other:?}"),
    }
    let report = store.ssd().drain(DrainOptions::new()).await;
    assert!(report.failed.iter().any(|(page, _)| *page == only) && report.left >= 1, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_scrub_keeps_its_rate_and_can_be_aborted_or_dropped() {
    let fixture = Fixture::new();
    let (store, space) = clean_copies(&fixture).await;
    let scrub = store.scrub(ScrubOptions::default().pages_per_second(Some(10.0)).slots(false));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let done = scrub.progress().done;
    assert!((95..=101).contains(&done), "{done} pages in ten seconds");
    scrub.abort();
    let report = scrub.finished().await;
    assert!(!report.complete);
    drop(store.scrub(fast()));
    // Drop it while it waits for a device.
    let scrub = store.scrub(fast());
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(3))).on(IoOp::Read).times(5));
    drop(tokio::time::timeout(Duration::from_millis(10), scrub.finished()).await);
    expect_all(&store, space, 2).await;
    let scrub = store.scrub(fast());
    drop(store);
    assert!(!scrub.finished().await.complete);
}

#[tokio::test(start_paused = true)]
async fn a_scrub_under_load_reports_no_false_findings() {
    let (_fixture, store, space) = Fixture::grown().await;
    for version in 2..6 {
        let scrub = store.scrub(ScrubOptions::default().pages_per_second(Some(2000.0)));
        write_all(&store, space, version).await;
        store.sync().await.unwrap();
        let report = scrub.finished().await;
        assert!(report.complete && report.findings.is_empty(), "{:?}", report.findings);
    }
    expect_all(&store, space, 5).await;
    store.validate().unwrap();
}
