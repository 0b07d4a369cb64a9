//! The end of a space after a crash when homes are corrupt or torn, or cannot be read: a synced page is never
//! missing.

use crate::fixture::{self, Fixture, PAGE, fill, read};
use pagetier::{
    Error, PageId, PageStore, SpaceId,
    errors::{PoolError, TierError},
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};

/// The last page: beyond the page count in the manifest, which was last written when the space grew to its
/// second extent.
const LAST: u32 = 99;

fn builder(fixture: &Fixture) -> pagetier::Builder {
    fixture.builder().ssd_bytes(0)
}

/// A store whose last page is `LAST`, at version 1 and only at home; of the pages before it, which are
/// allocated, every third was never written. The devices are as a crash or a close leaves them.
async fn at_home(close: bool) -> (Fixture, SpaceId) {
    let fixture = Fixture::new();
    let store = builder(&fixture).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..=LAST {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
        if no % 3 == 1 {
            store.discard(PageId::new(space, no)).await.unwrap();
        }
    }
    store.sync().await.unwrap();
    // Other pages displace it from the ring, so its home is its only copy.
    for version in 2..6 {
        for no in (0..30).step_by(3) {
            fixture::write(&store, space, no, version).await.unwrap();
            store.sync().await.unwrap();
        }
    }
    if close {
        store.close().await.unwrap();
    } else {
        drop(store);
    }
    (fixture.after_power_cut(1), space)
}

fn home_of_last(fixture: &Fixture, space: SpaceId) -> u64 {
    fixture.home_of(PageId::new(space, LAST)).unwrap()
}

fn is_corrupt(result: &Result<u32, Error>) -> bool {
    matches!(result, Err(Error::Pool(PoolError::Tier(TierError::Corrupt { .. }))))
}

/// The pages of `space` that a scan returns, and the number of its errors.
async fn scanned(store: &PageStore, space: SpaceId) -> (Vec<u32>, usize) {
    let (mut pages, mut errors) = (Vec::new(), 0);
    let mut scan = store.scan(space, 0..u32::MAX);
    while let Some(next) = scan.next().await {
        match next {
            Ok(page) => pages.push(page.id().no),
            Err(_) => errors += 1,
        }
    }
    (pages, errors)
}

#[tokio::test(start_paused = true)]
async fn the_last_page_is_never_missing_when_its_home_rots() {
    for close in [false, true] {
        let (fixture, space) = at_home(close).await;
        let home = home_of_last(&fixture, space);
        for rot in [0..512, 1024..1536, PAGE - 512..PAGE, 0..PAGE] {
            let rotten = fixture.after_power_cut(2);
            rotten.hdd.rot(home + rot.start..home + rot.end, 7);
            let store = builder(&rotten).open().await.unwrap();
            let last = read(&store, space, LAST).await;
            assert!(is_corrupt(&last), "close {close}, {rot:?}: {last:?}");
            assert_eq!(store.spaces().pages(space).unwrap(), LAST + 1);
            // Unwritten pages are unaffected.
            for no in 0..LAST {
                let found = read(&store, space, no).await;
                let blank = no % 3 == 1;
                assert_eq!(matches!(found, Err(Error::NoSuchPage { .. })), blank, "page {no}: {found:?}");
            }
            let (pages, errors) = scanned(&store, space).await;
            assert_eq!((pages.len(), errors), (66, 1), "the scan continues after it");
            // The embedder repairs the page.
            fill(&mut store.overwrite(PageId::new(space, LAST)).await.unwrap(), LAST, 9);
            store.sync().await.unwrap();
            assert_eq!(read(&store, space, LAST).await.unwrap(), 9);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_allocated_and_never_written_do_not_count() {
    let fixture = Fixture::new();
    let store = builder(&fixture).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..40 {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
        if no >= 20 {
            store.discard(PageId::new(space, no)).await.unwrap();
        }
    }
    store.sync().await.unwrap();
    let store = builder(&fixture.after_power_cut(3)).open().await.unwrap();
    assert_eq!(store.spaces().pages(space).unwrap(), 20);
    assert!(matches!(read(&store, space, 20).await, Err(Error::NoSuchPage { .. })));
    assert_eq!(store.allocate(space).await.unwrap().id().no, 20);
}

#[tokio::test(start_paused = true)]
async fn a_home_that_cannot_be_read_fails_its_page_and_not_the_opening() {
    for close in [false, true] {
        let (fixture, space) = at_home(close).await;
        let home = home_of_last(&fixture, space);
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(home..home + PAGE));
        let store = builder(&fixture).open().await.unwrap();
        let last = read(&store, space, LAST).await;
        let named = matches!(&last, Err(Error::Pool(PoolError::Tier(TierError::Device { page, .. }))) if page.no == LAST);
        assert!(named, "close {close}: {last:?}");
        assert_eq!(read(&store, space, LAST - 3).await.unwrap(), 1);
        fixture.hdd.clear_faults();
        assert_eq!(read(&store, space, LAST).await.unwrap(), 1);
    }
}

/// A power cut tears the home of a page that was never synced.
#[tokio::test(start_paused = true)]
async fn a_torn_home_of_a_page_that_was_never_synced_fails_no_opening_and_no_scan() {
    for ring_pages in [0, fixture::RING_PAGES] {
        let mut torn = 0;
        for seed in 0..60 {
            let fixture = Fixture::new();
            let store = builder(&fixture).ring_pages(ring_pages).open().await.unwrap();
            let space = store.spaces().create("t").await.unwrap();
            fill(&mut store.allocate(space).await.unwrap(), 0, 1);
            store.sync().await.unwrap();
            for no in 1..20 {
                fill(&mut store.allocate(space).await.unwrap(), no, 1);
            }
            // Interrupt the sync with some home writes in flight.
            let _ = fixture::polled(seed, store.sync()).await;
            tokio::time::sleep(std::time::Duration::from_micros(seed * 97)).await;
            let cut = fixture.after_power_cut(seed);
            let store = builder(&cut).ring_pages(ring_pages).open().await.unwrap();
            assert_eq!(read(&store, space, 0).await.unwrap(), 1);
            let (pages, errors) = scanned(&store, space).await;
            assert!(pages.contains(&0));
            for no in 1..20 {
                match read(&store, space, no).await {
                    Ok(1) | Err(Error::NoSuchPage { .. }) => {}
                    // With a ring, its image repairs the home.
                    found if ring_pages == 0 && is_corrupt(&found) => torn += 1,
                    found => panic!("ring {ring_pages}, seed {seed}, page {no}: {found:?}"),
                }
            }
            assert!(ring_pages == 0 || errors == 0);
        }
        assert_eq!(torn > 0, ring_pages == 0, "ring {ring_pages}: {torn} torn");
    }
}

#[tokio::test(start_paused = true)]
async fn a_home_with_another_pages_image_is_corrupt() {
    let (fixture, space) = at_home(true).await;
    let image = |no| {
        let at = fixture.home_of(PageId::new(space, no)).unwrap() as usize;
        fixture.hdd.snapshot()[at..at + PAGE as usize].to_vec()
    };
    fixture.hdd.implant(home_of_last(&fixture, space), &image(3));
    let store = builder(&fixture).open().await.unwrap();
    let last = read(&store, space, LAST).await;
    assert!(is_corrupt(&last), "{last:?}");
}
