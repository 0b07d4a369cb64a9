//! Devices that another store used: none of its pages is ever read as this store's.

use crate::fixture::{self, Fixture, PAGES, grown, read, write_all};
use pagetier::{Error, MemoryManifest, PageId, PageStore, SpaceId};
use std::sync::Arc;

/// The version of the other store's pages; this store's versions are lower.
const THEIRS: u32 = 77;

/// Devices that a store with the same spaces used through many opens, so its epochs exceed those of the
/// next store.
async fn used_fixture() -> Fixture {
    let fixture = Fixture::new();
    let store = fixture.builder().open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    for _ in 0..4 {
        let store = fixture.builder().open().await.unwrap();
        write_all(&store, space, THEIRS).await;
        store.close().await.unwrap();
    }
    Fixture { manifest: Arc::new(MemoryManifest::default()), ..fixture.after_power_cut(1) }
}

/// A new store on the used devices: half of its pages are written and synced, some of the others are
/// allocated, and more are reserved.
async fn new_store(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = fixture.builder().create(pagetier::options::Create::Overwriting).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..PAGES / 2 {
        fixture::fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    (store, space)
}

/// The number of the other store's pages that can be read after crashes of the new one.
async fn foreign_pages() -> usize {
    let fixture = used_fixture().await;
    let (store, space) = new_store(&fixture).await;
    let mut foreign = 0;
    for seed in 0..12 {
        let crashed = fixture.after_power_cut(seed);
        let again = crashed.builder().open().await.unwrap();
        for no in 0..PAGES + 64 {
            match read(&again, space, no).await {
                Ok(version) if version == THEIRS => foreign += 1,
                Ok(version) => assert_eq!(version, 1, "page {no}"),
                Err(error) => assert!(no >= PAGES / 2, "page {no} was synced: {error}"),
            }
            // The page does not exist, or only in the other store.
            if no >= PAGES / 2 && again.spaces().pages(space).unwrap() <= no {
                assert!(again.get(PageId::new(space, no)).await.is_err());
            }
        }
    }
    drop(store);
    foreign
}

#[tokio::test(start_paused = true)]
async fn no_page_of_another_store_is_read_after_a_crash() {
    assert_eq!(foreign_pages().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_page_never_written_does_not_exist_whatever_another_store_left_in_its_place() {
    let fixture = used_fixture().await;
    let (store, space) = new_store(&fixture).await;
    for no in PAGES / 2..PAGES {
        fixture::fill(&mut store.allocate(space).await.unwrap(), no, 1);
        if no % 2 == 0 {
            store.discard(PageId::new(space, no)).await.unwrap();
        }
    }
    store.sync().await.unwrap();
    for store in [store, fixture.after_power_cut(1).open().await] {
        for no in PAGES / 2..PAGES {
            match read(&store, space, no).await {
                Err(Error::NoSuchPage { .. }) if no % 2 == 0 => {}
                found => assert_eq!(found.unwrap(), 1, "page {no}"),
            }
        }
    }
}
