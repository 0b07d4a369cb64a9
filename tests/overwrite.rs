//! Pages overwritten without being read, by which an embedder repairs a damaged page.

use crate::fixture::{Fixture, PAGE, PAGES, fill, grown, read, version_of, write_all, zoned};
use pagetier::{
    Error, PageId, PageStore, SpaceId,
    errors::{PoolError, TierError},
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A store closed with version 2 of every page and opened again: nothing is in memory.
async fn at_rest(policy: &str, ring_pages: u32) -> (Fixture, SpaceId) {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned(policy)).ring_pages(ring_pages).open().await.unwrap();
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    (fixture, space)
}

async fn overwrite(store: &PageStore, space: SpaceId, no: u32, version: u32) {
    let mut page = store.overwrite(PageId::new(space, no)).await.unwrap();
    assert!(page.iter().all(|byte| *byte == 0), "what was there is not read");
    fill(&mut page, no, version);
}

fn is_damaged(result: &Result<u32, Error>) -> bool {
    use TierError::{Corrupt, Device};
    matches!(result, Err(Error::Pool(PoolError::Tier(Corrupt { .. } | Device { .. }))))
}

/// Corrupts all copies of every third page, on both devices, and overwrites each. The page reads as
/// overwritten immediately, after a power cut and after a close.
async fn heals(policy: &str, ring_pages: u32) {
    let (fixture, space) = at_rest(policy, ring_pages).await;
    let rotten = || (0..PAGES).step_by(3);
    for page in rotten().map(|no| PageId::new(space, no)) {
        for at in fixture.images_of(page) {
            fixture.ssd.flip_bit(at + 900, 1);
        }
        if let Some(home) = fixture.home_of(page) {
            fixture.hdd.flip_bit(home + 900, 1);
        }
    }
    let open = |fixture: &Fixture| fixture.builder().ssd_policy(zoned(policy)).ring_pages(ring_pages).open();
    let store = open(&fixture).await.unwrap();
    for no in rotten() {
        if no % 2 == 0 {
            assert!(is_damaged(&read(&store, space, no).await), "page {no}");
            assert!(store.get_mut(PageId::new(space, no)).await.is_err());
            assert!(store.get_or_create(PageId::new(space, no)).await.is_err());
        }
        overwrite(&store, space, no, 3).await;
    }
    let expected = |no| if no % 3 == 0 { 3 } else { 2 };
    for no in 0..PAGES {
        assert_eq!(read(&store, space, no).await.unwrap(), expected(no), "page {no}");
    }
    store.sync().await.unwrap();
    let cut = fixture.after_power_cut(5);
    store.close().await.unwrap();
    for fixture in [cut, fixture.after_power_cut(6)] {
        let store = open(&fixture).await.unwrap();
        for no in 0..PAGES {
            assert_eq!(read(&store, space, no).await.unwrap(), expected(no), "{policy}, page {no}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_every_copy_is_damaged_is_healed() {
    for policy in ["cac", "lru2", "tac", "mv-fifo-gsc", "doublewrite", "none"] {
        heals(policy, 8).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_healed_without_a_ring_too() {
    for policy in ["cac", "mv-fifo"] {
        heals(policy, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_read_is_healed() {
    let (fixture, space) = at_rest("cac", 8).await;
    let store = fixture.open().await;
    let page = PageId::new(space, 7);
    let at = fixture.home_of(page).unwrap();
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(at..at + PAGE));
    for at in fixture.slots_of(page) {
        fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(at..at + PAGE));
    }
    assert!(is_damaged(&read(&store, space, 7).await));
    overwrite(&store, space, 7, 9).await;
    store.sync().await.unwrap();
    fixture.hdd.clear_faults();
    fixture.ssd.clear_faults();
    let store = fixture.after_power_cut(3).open().await;
    assert_eq!(read(&store, space, 7).await.unwrap(), 9);
}

#[tokio::test(start_paused = true)]
async fn pages_in_memory_never_written_and_beyond_the_end_are_overwritten_alike() {
    let (fixture, space) = at_rest("cac", 8).await;
    let store = fixture.open().await;
    assert_eq!(read(&store, space, 1).await.unwrap(), 2);
    overwrite(&store, space, 1, 3).await;
    overwrite(&store, space, 1, 4).await;
    overwrite(&store, space, PAGES, 1).await;
    overwrite(&store, space, PAGES + 200, 1).await;
    assert_eq!(store.spaces().pages(space).unwrap(), PAGES + 201);
    assert!(matches!(read(&store, space, PAGES + 100).await, Err(Error::NoSuchPage { .. })));
    overwrite(&store, space, PAGES + 100, 1).await;
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(3).open().await;
    for (no, version) in [(1, 4), (PAGES, 1), (PAGES + 100, 1), (PAGES + 200, 1)] {
        assert_eq!(read(&store, space, no).await.unwrap(), version, "page {no}");
    }
    assert!(store.overwrite(PageId::new(SpaceId(99), 0)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_overwrite_dropped_while_it_waits_changes_nothing() {
    let (fixture, space) = at_rest("cac", 8).await;
    let store = fixture.open().await;
    let page = PageId::new(space, 5);
    let held = store.get(page).await.unwrap();
    {
        let mut waiting = pin!(store.overwrite(page));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Pending));
    }
    assert_eq!(version_of(&held, 5), 2);
    drop(held);
    // Overwrite the page while it is being read for another caller.
    let page = PageId::new(space, 250);
    let mut reading = Box::pin(store.get(page));
    let mut context = Context::from_waker(Waker::noop());
    assert!(reading.as_mut().poll(&mut context).is_pending());
    {
        let mut waiting = pin!(store.overwrite(page));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(version_of(&reading.await.unwrap(), 250), 2);
    overwrite(&store, space, 250, 3).await;
    assert_eq!(read(&store, space, 250).await.unwrap(), 3);
}
