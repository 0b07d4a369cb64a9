//! The blocking facade: threads without a runtime share a store.

use pagetier::blocking::PageStore;
use pagetier::{Builder, Error, PageId};
use std::path::Path;

fn builder(dir: &Path) -> Builder {
    pagetier::PageStore::builder().directory(dir).pool_bytes(4 << 20).ssd_bytes(16 << 20)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

#[test]
fn threads_share_a_store_and_find_their_pages_after_reopening() {
    let folder = folder();
    let store = PageStore::open(builder(folder.path())).expect("opened");
    let space = store.spaces().create("shared").expect("created");
    assert_eq!(store.spaces().find("shared"), Some(space));
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
    store.discard(ids[0].0).expect("discarded");
    assert!(store.get(ids[0].0).is_err());
    store.recreate(ids[0].0).expect("created again")[0] = 9;
    store.overwrite(ids[1].0).expect("overwritten")[0] = 8;
    assert_eq!((store.get(ids[0].0).expect("read")[0], store.get(ids[1].0).expect("read")[0]), (9, 8));
    store.spaces().remove(space).expect("dropped");
    assert!(matches!(store.allocate(space), Err(Error::NoSuchSpace { .. })));
    store.close().expect("closed");
}

#[test]
fn methods_without_a_blocking_form_are_reachable() {
    let folder = folder();
    let store = PageStore::open(builder(folder.path())).expect("opened");
    let report = store.block_on(store.store().ssd().drain(pagetier::Drain::new()));
    assert_eq!((report.left, report.failed.len()), (0, 0));
    assert_eq!(store.store().stats().pool.misses, 0);
}

#[test]
#[should_panic(expected = "runtime")]
fn a_call_on_a_runtimes_thread_panics_instead_of_blocking_it() {
    let folder = folder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { drop(PageStore::open(builder(folder.path()))) });
}
