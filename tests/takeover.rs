//! An owner whose volume another one has taken over: it serves nothing, and says so.

use crate::fixture::{Fixture, grown, read, write};
use pagetier::{DrainOptions, Error, PageId, PageStore, SpaceId, SsdEvent};
use pagetier_devio::{Fault, FaultEffect};

/// Pages that are in memory after this.
async fn in_memory(store: &PageStore, space: SpaceId) -> Vec<PageId> {
    let pages: Vec<PageId> = (0..4).map(|no| PageId::new(space, no)).collect();
    for page in &pages {
        drop(store.get(*page).await.unwrap());
    }
    assert!(pages.iter().all(|page| store.try_get(*page).is_some()));
    pages
}

/// Checks that the store serves none of `pages` in any way, and reports that.
async fn serves_nothing(store: &PageStore, pages: &[PageId]) {
    let first = pages[0];
    for page in pages {
        assert!(store.try_get(*page).is_none() && store.try_get_mut(*page).is_none());
    }
    assert!(matches!(store.get(first).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.get_mut(first).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.get_many(pages).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.allocate(first.space).await.map(drop), Err(Error::Fenced)));
    let mut scan = store.scan(first.space, 0..4);
    let found = scan.next().await.expect("an error").map(drop);
    assert!(matches!(found, Err(Error::Fenced)), "{found:?}");
    assert!(scan.next().await.is_none(), "a caller that skips errors comes to an end");
    assert!(store.sync().await.is_err());
    assert!(store.stats().ssd.refusing.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_fenced_serves_no_page_and_raises_the_alarm() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let pages = in_memory(&store, space).await;
    let mut events = store.ssd().events();
    fixture.hdd.inject(Fault::new(FaultEffect::Fenced).times(1));
    write(&store, space, 0, 2).await.unwrap();
    // Changes go to the SSD: the next operation of the HDD learns of it.
    let drained = store.ssd().drain(DrainOptions::new()).await;
    assert!(drained.left > 0, "{drained:?}");
    serves_nothing(&store, &pages).await;
    while let Some(event) = events.next().await {
        if let SsdEvent::Refusing { by_ssd, .. } = event {
            assert!(!by_ssd, "no exchange of the SSD ends it");
            break;
        }
    }
    store.close().await.unwrap_err();
    // The next one to open the volume is its owner.
    let store = fixture.open().await;
    assert_eq!(read(&store, space, 0).await.unwrap(), 1);
}
