//! Ghosts over a store's live requests: they see the sample, and report what other sizes would have cost.

use crate::fixture::{Fixture, PAGES};
use pagetier::{PageId, PageStore, SpaceId, what_if::WhatIfOptions};
use std::io::ErrorKind;

async fn filled(store: &PageStore) -> SpaceId {
    let space = store.spaces().create("pages").await.unwrap();
    for _ in 0..PAGES {
        drop(store.allocate(space).await.unwrap());
    }
    space
}

#[tokio::test(start_paused = true)]
async fn ghosts_count_what_the_store_does() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_policy("lru").read_ahead(false).open().await.unwrap();
    let space = filled(&store).await;
    assert!(
        store.what_if().report().is_none() && store.what_if().stop().await.is_none(),
        "no ghosts run yet"
    );
    let all = WhatIfOptions::new().share(1.0).pool_factors(&[0.5, 2.0, 20.0]).ssd_factors(&[0.0, 2.0]);
    store.what_if().start(&all).unwrap();
    assert_eq!(store.what_if().start(&all).unwrap_err().kind(), ErrorKind::ResourceBusy);
    let before = store.stats().pool;
    for _ in 0..30 {
        for no in 0..PAGES {
            drop(store.get(PageId::new(space, no)).await.unwrap());
        }
    }
    let report = store.what_if().stop().await.unwrap();
    let after = store.stats().pool;
    assert!(store.what_if().report().is_none());
    assert_eq!(report.sampled.lost, 0);
    // Every page is in the sample. A request in progress is counted once it misses.
    assert!(report.sampled.references.abs_diff(report.sampled.requests) <= 1, "{:?}", report.sampled);
    assert!(report.sampled.requests >= u64::from(PAGES) * 15, "{:?}", report.sampled);
    // A loop over more pages than LRU has frames always misses, in the store and in its ghost.
    let missed = (after.misses - before.misses) as f64 / (u64::from(PAGES) * 30) as f64;
    let ghost = report.present().unwrap();
    assert!(missed > 0.99 && ghost.misses > 990.0, "{missed} {ghost:?}");
    // Twenty times as many frames hold everything.
    let largest = report.costs.last().unwrap();
    assert!(largest.pool_pages > PAGES && largest.total_ms() == 0.0, "{report}");
    store.what_if().start(&all).unwrap();
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn invalid_shares_and_sizes_are_refused() {
    let store = Fixture::new().open().await;
    for bad in [
        WhatIfOptions::new().share(0.0),
        WhatIfOptions::new().share(1.5),
        WhatIfOptions::new().share(f64::NAN),
        WhatIfOptions::new().pool_factors(&[0.0]),
        WhatIfOptions::new().ssd_factors(&[f64::INFINITY]),
    ] {
        assert_eq!(store.what_if().start(&bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        assert!(store.what_if().report().is_none());
    }
    store.what_if().start(&WhatIfOptions::new()).unwrap();
    let report = store.what_if().report().unwrap();
    assert!(report.present().is_some() && report.advice().len() == 1, "nothing happened: {report}");
}
