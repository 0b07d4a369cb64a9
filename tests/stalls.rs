//! Errors that end a hang carry its cause. `tests/warnings.rs` tests the warnings about long waits.

use crate::fixture::{Fixture, fill};
use pagetier::log::{GateError, GateFuture};
use pagetier::{
    Error, LogGate, Lsn, PageId, PageStore, SpaceId,
    errors::{Exhausted, PoolError},
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::sync::Arc;
use std::time::Duration;

/// A log that never becomes durable, or fails.
struct Log {
    fails: bool,
}

impl LogGate for Log {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(async {
            if self.fails {
                return Err(Arc::new(std::io::Error::other("the log's disk is full")) as GateError);
            }
            std::future::pending().await
        })
    }
}

async fn store_with(fixture: &Fixture, log: Option<Log>) -> (PageStore, SpaceId) {
    let mut builder = fixture.builder();
    if let Some(log) = log {
        builder = builder.log_gate(Arc::new(log));
    }
    let store = builder.open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    (store, space)
}

/// Changes pages until no frame is left.
async fn exhaust(store: &PageStore, space: SpaceId) -> (Error, Exhausted) {
    for no in 0..200 {
        match store.overwrite(PageId::new(space, no)).await {
            Ok(mut page) => {
                fill(&mut page, no, 1);
                page.set_lsn(Lsn(9));
            }
            Err(error) => {
                let Error::Pool(PoolError::Exhausted { ref why, .. }) = error else { panic!("{error}") };
                let why = (**why).clone();
                return (error, why);
            }
        }
    }
    panic!("the pool holds fewer pages")
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_pool_names_its_cause() {
    let fixture = Fixture::new();
    let (store, space) = store_with(&fixture, Some(Log { fails: true })).await;
    let (error, why) = exhaust(&store, space).await;
    assert!(matches!(why, Exhausted::Log { dirty, .. } if dirty > 0), "{why:?}");
    assert!(error.to_string().contains("the log's disk is full"), "{error}");

    let fixture = Fixture::new();
    let (store, space) = store_with(&fixture, None).await;
    // A growth would fail before the pool is exhausted.
    store.spaces().reserve(space, 1000).await.unwrap();
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    fixture.ssd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    let (error, why) = exhaust(&store, space).await;
    assert!(matches!(why, Exhausted::Storage { .. }), "{why:?}");
    assert_eq!(error.page().map(|page| page.space), Some(space));

    let fixture = Fixture::new();
    let (store, space) = store_with(&fixture, None).await;
    let mut guards = Vec::new();
    let error = loop {
        match store.overwrite(PageId::new(space, guards.len() as u32)).await {
            Ok(page) => guards.push(page),
            Err(error) => break error,
        }
    };
    let Error::Pool(PoolError::Exhausted { why, .. }) = &error else { panic!("{error}") };
    let Exhausted::Pinned { pinned, pages } = &**why else { panic!("{why:?}") };
    assert_eq!(*pinned, guards.len());
    assert!(!pages.is_empty() && pages.iter().all(|page| guards.iter().any(|guard| guard.id() == *page)));

    let fixture = Fixture::new();
    let (store, space) = store_with(&fixture, Some(Log { fails: false })).await;
    let (_, why) = exhaust(&store, space).await;
    assert!(matches!(why, Exhausted::Slow { dirty: _, writing, .. } if writing > 0), "{why:?}");
}

#[test]
fn a_runtime_that_does_not_run_is_named() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (home, other) = (runtime(), runtime());
    let directory = tempfile::tempdir().unwrap();
    let builder = PageStore::builder().directory(directory.path()).ssd_bytes(4 << 20).pool_bytes(2 << 20);
    let builder = builder.exhausted_after(Duration::from_millis(300));
    let (store, space) = home.block_on(async {
        let store = builder.open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        // Grow the space here: a growth needs the store's runtime.
        drop(store.overwrite(PageId::new(space, 200)).await.unwrap());
        (store, space)
    });
    let (_, why) = other.block_on(exhaust(&store, space));
    assert!(matches!(why, Exhausted::NotDriven { .. }), "{why:?}");
}

#[tokio::test(start_paused = true)]
#[cfg(debug_assertions)]
async fn a_task_that_waits_for_a_latch_it_holds_gets_an_error() {
    let fixture = Fixture::new();
    let (store, space) = store_with(&fixture, None).await;
    let store = Arc::new(store);
    let page = PageId::new(space, 0);
    let mut guard = store.overwrite(page).await.unwrap();
    fill(&mut guard, 0, 1);
    let own = store.get(page).await.unwrap_err();
    assert!(matches!(own, Error::Pool(PoolError::Deadlock { page: of }) if of == page), "{own:?}");
    // A flush by the holder waits for itself in the same way.
    drop(guard);
    let guard = store.get_mut(page).await.unwrap();
    let flushed = store.sync().await;
    assert!(matches!(flushed, Err(Error::Pool(PoolError::Deadlock { .. }))), "{flushed:?}");
    drop(guard);
    // The wait of another task continues, however long.
    let held = store.get_mut(page).await.unwrap().into_owned(&store);
    let waiter = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.get(page).await.map(|page| page.id()) }
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!waiter.is_finished());
    drop(held);
    assert_eq!(waiter.await.unwrap().unwrap(), page);
    store.sync().await.unwrap();
}
