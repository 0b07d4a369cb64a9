//! Calls that wait for guards, beside tasks that hold guards and call the store: none waits for ever.

use crate::fixture::{Fixture, PAGES, fill, grown, polled, read};
use pagetier::{Builder, Error, Lsn, PageId, PageStore, SpaceId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any call may take.
const LONG: Duration = Duration::from_secs(600);

type Call =
    for<'a> fn(&'a PageStore, SpaceId) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// What a task may call while it holds a shared guard of a page in another space.
const CALLS: [(&str, Call); 11] = [
    ("allocate", |store, space| {
        Box::pin(async move {
            for _ in 0..130 {
                drop(store.allocate(space).await?);
            }
            Ok(())
        })
    }),
    ("create", |store, space| {
        Box::pin(async move { store.overwrite(PageId::new(space, 3000)).await.map(drop) })
    }),
    ("recreate", |store, space| {
        Box::pin(async move { store.get_or_create(PageId::new(space, 3000)).await.map(drop) })
    }),
    ("create a space", |store, _| Box::pin(async move { store.spaces().create("new").await.map(drop) })),
    ("remove", |store, space| Box::pin(async move { store.spaces().drop(space).await })),
    ("free", |store, space| Box::pin(async move { store.free((space, 0..20)).await.map(drop) })),
    ("shrink", |store, space| Box::pin(async move { store.spaces().shrink(space).await.map(drop) })),
    ("sync", |store, _| Box::pin(async move { store.sync().await })),
    ("flush_to", |store, _| Box::pin(async move { store.flush_to(Lsn(9)).await })),
    ("flush", |store, _| Box::pin(async move { store.flush().await })),
    ("acknowledge_loss", |store, _| Box::pin(async move { store.ssd().acknowledge_loss().await })),
];

/// A store with a space that is to be removed, and another one.
async fn two_spaces(builder: Builder) -> (Arc<PageStore>, SpaceId, SpaceId) {
    let store = builder.open().await.unwrap();
    let space = grown(&store).await;
    let other = store.spaces().create("other").await.unwrap();
    for no in 0..20 {
        fill(&mut store.allocate(other).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    (Arc::new(store), space, other)
}

/// A removal waits for a guard whose task makes the call. Returns whether all came to an end.
async fn removed_beside(call: Call, mutable: bool) -> bool {
    let (store, space, other) = two_spaces(Fixture::new().builder()).await;
    let page = PageId::new(space, 5);
    let (shared, changed) = if mutable {
        let mut guard = store.get_mut(page).await.unwrap();
        fill(&mut guard, 5, 2);
        (None, Some(guard))
    } else {
        (Some(store.get(page).await.unwrap()), None)
    };
    let removing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.spaces().drop(space).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!removing.is_finished(), "it does not wait for the guard");
    let called = tokio::time::timeout(LONG, call(&store, other)).await;
    drop((shared, changed));
    let removed = tokio::time::timeout(LONG, removing).await;
    match (called, removed) {
        (Ok(called), Ok(removed)) => {
            called.unwrap();
            removed.unwrap().unwrap();
            assert!(matches!(store.get(page).await, Err(Error::NoSuchPage { .. })));
            store.shutdown().await.unwrap();
            true
        }
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_waits_for_a_guard_holds_nothing_up() {
    for (name, call) in CALLS {
        assert!(removed_beside(call, false).await, "{name}");
        // `sync` and `flush_to` wait for exclusive guards of changed pages themselves.
        if !["sync", "flush_to"].contains(&name) {
            assert!(removed_beside(call, true).await, "{name}, exclusive");
        }
    }
}

/// The bulk insert: tasks that hold a guard in the space and allocate pages of it, until it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_space_is_removed_under_bulk_inserts() {
    for _ in 0..8 {
        let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
        let (store, space, _) = two_spaces(fixture.builder()).await;
        let inserts: Vec<_> = (0..4)
            .map(|task| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    loop {
                        let Ok(held) = store.get(PageId::new(space, task)).await else { return };
                        for _ in 0..40 {
                            match store.allocate(space).await {
                                Ok(mut page) => page[0] = 1,
                                Err(Error::NoSuchSpace { .. } | Error::NoSuchPage { .. }) => return,
                                Err(other) => panic!("{other}"),
                            }
                        }
                        drop(held);
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let all = async {
            store.spaces().drop(space).await.unwrap();
            for insert in inserts {
                insert.await.unwrap();
            }
            store.spaces().create("t").await.unwrap();
            store.shutdown().await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("a deadlock");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_though_a_removal_and_a_guards_task_are_under_way() {
    let fixture = Fixture::new();
    let (store, space, other) = two_spaces(fixture.builder()).await;
    let guard = store.get(PageId::new(space, 5)).await.unwrap();
    let spawned = |what: &'static str| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            if what == "remove" { store.spaces().drop(space).await } else { store.shutdown().await }
        })
    };
    let removing = spawned("remove");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ending = spawned("shutdown");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let called = async {
        for no in 20..200 {
            store.overwrite(PageId::new(other, no)).await?;
        }
        Ok(())
    };
    let called: Result<(), Error> = tokio::time::timeout(LONG, called).await.expect("a deadlock");
    assert!(matches!(called, Err(Error::Closed)), "{called:?}");
    drop(guard);
    removing.await.unwrap().unwrap();
    ending.await.unwrap().unwrap();
    let store = fixture.open().await;
    assert_eq!(store.spaces().find("t"), None);
    assert_eq!(read(&store, other, 3).await.unwrap(), 1);
}

/// While a removal waits for a guard, tasks ask for pages that have copies on the SSD, and for a frame for a
/// new page.
#[tokio::test(start_paused = true)]
async fn no_page_of_a_removed_space_stays_in_memory() {
    let fixture = Fixture::new();
    let (store, space, other) = two_spaces(fixture.builder()).await;
    let all = |space| (0..PAGES).map(move |no| PageId::new(space, no));
    // The other space's pages take the frames.
    let mut held = vec![store.get(PageId::new(space, 5)).await.unwrap()];
    let mut new = Box::pin(store.allocate(space));
    let soon = Duration::from_secs(1);
    while let Ok(page) = tokio::time::timeout(soon, store.allocate(other)).await {
        held.push(page.unwrap().downgrade());
    }
    assert!(polled(1, &mut new).await.is_none(), "there is a frame");
    let removing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.spaces().drop(space).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let last = held.len() / 2;
    drop(held.drain(last..));
    let created = new.await;
    for page in all(space) {
        drop(store.get(page).await);
    }
    drop((created, held));
    removing.await.unwrap().unwrap();
    for page in all(space).chain([PageId::new(space, PAGES)]) {
        let found = store.get(page).await;
        assert!(matches!(found, Err(Error::NoSuchPage { .. })), "{page} is there");
        assert!(store.try_get(page).is_none(), "{page} is in memory");
    }
}

/// A shutdown waits for an exclusive guard, and its task changes the SSD's mode.
#[tokio::test(start_paused = true)]
async fn a_call_for_the_ssd_beside_a_shutdown_is_refused_and_does_not_wait() {
    for nth in 0..3 {
        let fixture = Fixture::new();
        let (store, space, _) = two_spaces(fixture.builder()).await;
        let mut guard = store.get_mut(PageId::new(space, 5)).await.unwrap();
        fill(&mut guard, 5, 7);
        let ending = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.shutdown().await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!ending.is_finished());
        let called = async {
            match nth {
                0 => store.ssd().abandon().await.map(drop),
                1 => store.ssd().readmit().await.map(drop),
                _ => store.policies().set_ssd("lru2").await,
            }
        };
        let called = tokio::time::timeout(LONG, called).await.expect("a deadlock");
        assert!(matches!(called, Err(Error::Closed)), "{called:?}");
        drop(guard);
        ending.await.unwrap().unwrap();
        assert_eq!(read(&fixture.open().await, space, 5).await.unwrap(), 7);
    }
}

/// Two removals of one space meet, and one of them is dropped at any await.
#[tokio::test(start_paused = true)]
async fn two_removals_of_a_space_both_end() {
    for polls in 0..12 {
        let fixture = Fixture::new();
        let (store, space, other) = two_spaces(fixture.builder()).await;
        let guard = tokio::spawn({
            let store = Arc::clone(&store);
            async move {
                let _guard = store.get(PageId::new(space, 5)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        tokio::task::yield_now().await;
        let second = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.spaces().drop(space).await }
        });
        tokio::time::sleep(Duration::from_millis(polls)).await;
        let first = polled(polls, store.spaces().drop(space)).await;
        guard.await.unwrap();
        for removed in [first, Some(second.await.unwrap())].into_iter().flatten() {
            assert!(matches!(removed, Ok(()) | Err(Error::NoSuchSpace { .. })), "{removed:?}");
        }
        assert_eq!(store.spaces().find("t"), None);
        // Its name is free, and its disk space serves others.
        let size = pagetier_devio::Device::size(&*fixture.hdd);
        let again = store.spaces().create("t").await.unwrap();
        for no in 0..PAGES {
            fill(&mut store.allocate(again).await.unwrap(), no, 3);
        }
        assert_eq!(pagetier_devio::Device::size(&*fixture.hdd), size);
        store.sync().await.unwrap();
        let store = fixture.after_power_cut(polls).open().await;
        assert_eq!((read(&store, again, 9).await.unwrap(), read(&store, other, 3).await.unwrap()), (3, 1));
    }
}

/// What `sync` covers: changes whose guards were dropped. It waits for a guard of a page that was dirty, and
/// not for one that changes a clean page.
#[tokio::test(start_paused = true)]
async fn a_sync_covers_the_changes_whose_guards_were_dropped() {
    let fixture = Fixture::new();
    let (store, space, _) = two_spaces(fixture.builder()).await;
    let after = async |no| read(&fixture.after_power_cut(7).open().await, space, no).await.unwrap();
    let change = async |no, version| {
        let mut guard = store.get_mut(PageId::new(space, no)).await.unwrap();
        fill(&mut guard, no, version);
        guard
    };
    let guard = change(5, 2).await;
    tokio::time::timeout(LONG, store.sync()).await.expect("it waits for a clean page").unwrap();
    assert_eq!(after(5).await, 1, "the guard lives");
    drop(guard);
    store.sync().await.unwrap();
    assert_eq!(after(5).await, 2);
    // A page that was dirty before its guard was taken.
    drop(change(6, 2).await);
    let holding = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            let mut guard = store.get_mut(PageId::new(space, 6)).await.unwrap();
            fill(&mut guard, 6, 3);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    tokio::task::yield_now().await;
    store.sync().await.unwrap();
    assert!(holding.is_finished(), "it waited for the guard");
    assert_eq!(after(6).await, 3);
}

/// A panic under a guard is like a return: the change counts, whole or half. The documentation says so.
#[tokio::test(start_paused = true)]
async fn a_change_under_a_guard_that_a_panic_drops_counts() {
    let fixture = Fixture::new();
    let (store, space, _) = two_spaces(fixture.builder()).await;
    let panics = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            let mut guard = store.get_mut(PageId::new(space, 5)).await.unwrap();
            guard[..8].copy_from_slice(&[7; 8]);
            panic!("half-way");
        }
    });
    assert!(panics.await.unwrap_err().is_panic());
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(3).open().await;
    assert_eq!(store.get(PageId::new(space, 5)).await.unwrap()[..8], [7; 8]);
}

/// A process that is stopped for a while (SIGSTOP, a debugger, a paused machine) did not wait in that time.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_process_was_stopped_exhausts_no_request() {
    let (_fixture, store, space) = Fixture::synced(1).await;
    let store = Arc::new(store);
    let mut pinned = Vec::new();
    for no in 0..store.frames() as u32 {
        pinned.push(store.get(PageId::new(space, no)).await.unwrap());
    }
    let request = tokio::spawn({
        let store = Arc::clone(&store);
        async move { read(&store, space, PAGES - 1).await }
    });
    tokio::task::yield_now().await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(35)).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!request.is_finished(), "{:?}", request.await.unwrap());
    }
    drop(pinned);
    assert_eq!(request.await.unwrap().unwrap(), 1);
}
