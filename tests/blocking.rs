//! The blocking facade: threads without a runtime share a store.

use pagetier::blocking::{Driver, PageStore};
use pagetier::{
    Builder, DrainOptions, Error, PageId, SsdEvent, SsdMode,
    backup::{BackupOptions, Backups},
    scrub::ScrubOptions,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn builder(dir: &Path) -> Builder {
    pagetier_rivals::register();
    pagetier::PageStore::builder().directory(dir).pool_bytes(4 << 20).ssd_bytes(16 << 20)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

#[test]
fn threads_share_a_store_and_find_their_pages_after_reopening() {
    let folder = folder();
    let store = PageStore::open(builder(folder.path())).expect("opened");
    let space = store.block_on(store.spaces().create("shared")).expect("created");
    let mut ids: Vec<(PageId, u8)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=4_u8)
            .map(|fill| {
                let store = &store;
                scope.spawn(move || {
                    let one = |_| {
                        let mut page = store.allocate(space).expect("allocated");
                        page.fill(fill);
                        (page.id(), fill)
                    };
                    (0..100).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("no panic")).collect()
    });
    store.sync().expect("synced");
    drop(store);

    let store = PageStore::open(builder(folder.path())).expect("opened after a crash");
    ids.sort_unstable();
    for (id, fill) in &ids {
        assert!(store.get(*id).expect("read").iter().all(|byte| byte == fill));
    }
    let scanned: Vec<PageId> =
        store.scan(space, 0..u32::MAX).map(|page| page.expect("scanned").id()).collect();
    assert_eq!(scanned, ids.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    assert_eq!(store.free(ids[0].0).expect("freed"), 1);
    assert!(store.get(ids[0].0).is_err());
    store.get_or_create(ids[0].0).expect("created again")[0] = 9;
    store.overwrite(ids[1].0).expect("overwritten")[0] = 8;
    assert_eq!((store.get(ids[0].0).expect("read")[0], store.get(ids[1].0).expect("read")[0]), (9, 8));
    store.block_on(store.spaces().drop(space)).expect("dropped");
    assert!(matches!(store.allocate(space), Err(Error::NoSuchSpace { .. })));
    store.close().expect("closed");
}

#[test]
fn a_store_is_operated_without_a_runtime() {
    let folder = folder();
    let store = PageStore::open(builder(&folder.path().join("store"))).expect("opened");
    let of = &*store;
    let space = store.block_on(of.spaces().create("t")).expect("created");
    for fill in 0..200 {
        store.allocate(space).expect("allocated")[0] = fill;
    }
    store.block_on(of.flush()).expect("flushed");
    let mut events = of.ssd().events();
    assert_eq!(store.block_on(of.ssd().drain(DrainOptions::new())).left, 0);
    // What starts a task of the store needs its runtime.
    let scrub = store.block_on(async { of.scrub(ScrubOptions::default().pages_per_second(None)) });
    assert!(store.block_on(scrub.finished()).complete);
    store.block_on(of.ssd().set_mode(SsdMode::ReadOnly)).expect("read-only");
    assert!(matches!(store.block_on(events.next()), Some(SsdEvent::Mode { mode: SsdMode::ReadOnly })));
    let backup = folder.path().join("backup");
    let report = store.block_on(of.backup(&backup, BackupOptions::default())).expect("copied");
    assert_eq!(report.pages, 200);
    assert_eq!(store.free(&[PageId::new(space, 7)]).expect("freed"), 1);
    store.close().expect("closed");

    // Without a store.
    let driver = Driver::start().expect("a thread");
    assert_eq!(driver.block_on(Backups::at(&backup).list()).expect("read").len(), 1);
    let restored = folder.path().join("restored");
    let report = driver.block_on(builder(&restored).restore(&backup, None, |_| ())).expect("restored");
    assert_eq!(report.pages, 200);
    let store = PageStore::open_read_only(builder(&restored)).expect("opened");
    assert_eq!(store.get(PageId::new(space, 7)).expect("read")[0], 7);
}

/// Callers drive the store's runtime in turns, with the thread in pauses: no call waits for a turn that does
/// not come, and what runs in the background does so without any call.
#[test]
#[expect(clippy::disallowed_methods, reason = "no task of a runtime waits here")]
fn callers_take_turns_while_one_waits_for_ever() {
    let folder = folder();
    let store = &PageStore::open(builder(folder.path())).expect("opened");
    let space = store.block_on(store.spaces().create("t")).expect("created");
    let pages: Vec<_> = (0..600).map(|_| store.allocate(space).expect("allocated").id()).collect();
    store.sync().expect("synced");
    std::thread::scope(|scope| {
        // Waits, without a call of its own that ends, until the others are done.
        let waiting = scope.spawn(|| {
            store.block_on(async {
                let mut events = store.ssd().events();
                while !matches!(events.next().await, None | Some(SsdEvent::Mode { .. })) {}
            })
        });
        let callers: Vec<_> = (0..4_usize)
            .map(|no| {
                let pages = &pages;
                scope.spawn(move || {
                    for call in 0..800 {
                        let page = pages[(call * 37 + no * 151) % pages.len()];
                        store.get_mut(page).expect("read")[no] = 1;
                        if call % 50 == 0 {
                            // Longer and shorter than the thread leaves the runtime to callers.
                            std::thread::sleep(Duration::from_micros(700 * (no as u64 + 1)));
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        store.block_on(store.ssd().set_mode(SsdMode::ReadOnly)).expect("read-only");
        waiting.join().expect("no panic");
    });
    // No call waits for this one.
    let fast = ScrubOptions::default().pages_per_second(None);
    let scrub = store.block_on(async { store.scrub(fast) });
    while !scrub.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens a store, and makes calls that wait for the devices.
fn work(dir: &Path) {
    let store = PageStore::open(builder(dir)).expect("opened");
    let space = store.block_on(store.spaces().create("t")).expect("created");
    let pages: Vec<_> = (0..1000)
        .map(|_| {
            let mut page = store.allocate(space).expect("allocated");
            page[0] = page.id().no as u8;
            page.id()
        })
        .collect();
    store.sync().expect("synced");
    // More pages than memory holds: most of these calls miss.
    for page in &pages {
        assert_eq!(store.get(*page).expect("read")[0], page.no as u8);
        store.get_mut(*page).expect("read")[1] = 7;
    }
    store.close().expect("closed");
}

#[test]
fn calls_that_wait_work_inside_of_the_tasks_of_a_runtime() {
    let folder = folder();
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    one.block_on(async { work(&folder.path().join("one")) });
    let many = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let dirs = ["a", "b", "c"].map(|name| folder.path().join(name));
    let tasks = dirs.map(|dir| many.spawn(async move { work(&dir) }));
    for task in tasks {
        many.block_on(task).expect("no panic");
    }
    // A store that is dropped in a task.
    one.block_on(async { drop(PageStore::open(builder(&folder.path().join("dropped"))).expect("opened")) });
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_for_a_guard_of_its_own_is_refused() {
    let folder = folder();
    let store = PageStore::open(builder(folder.path())).expect("opened");
    let space = store.block_on(store.spaces().create("t")).expect("created");
    let pages = [(); 2].map(|()| store.allocate(space).expect("allocated").id());
    store.close().expect("closed");
    let store = Arc::new(PageStore::open(builder(folder.path())).expect("opened"));
    // One guard comes from a thread that waited for the device, the other one from memory.
    drop(store.get(pages[1]).expect("read"));
    let tasks = pages.map(|page| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let _held = store.get_mut(page).expect("read");
            let again = store.get(page).expect_err("it would wait for ever");
            assert!(
                matches!(again, Error::Pool(pagetier::errors::PoolError::Deadlock { page: of }) if of == page),
                "{again:?}"
            );
        })
    });
    for task in tasks {
        task.await.expect("no panic");
    }
    Arc::into_inner(store).expect("the tasks are over").close().expect("closed");
}

#[tokio::test]
#[should_panic(expected = "a message of its own")]
async fn a_panic_in_a_future_that_a_task_waits_for_keeps_its_message() {
    let folder = folder();
    let store = PageStore::open(builder(folder.path())).expect("opened");
    store.block_on(async { panic!("a message of its own") });
}
