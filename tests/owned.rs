//! Owned guards and scans keep their store open; scans as streams; errors of the store as those of `std::io`.

use crate::fixture::{Fixture, fill, grown, version_of};
use futures_util::{StreamExt, TryStreamExt};
use pagetier::{Error, OwnedPageMut, PageId, PageStore, SpaceId, blocking};
use std::io::{self, ErrorKind};
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn guards_become_owned() {
    let (_fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    let at = |no| PageId::new(space, no);
    let mut page: OwnedPageMut = store.get_mut(at(1)).await.unwrap().into_owned(&store);
    fill(&mut page, 1, 2);
    assert!(Arc::ptr_eq(page.store(), &store));
    assert_eq!(page.downgrade().id().no, 1);
    let page = store.try_get(at(1)).unwrap().into_owned(&store);
    assert!(store.try_get_mut(at(1)).is_none(), "it is latched");
    drop(page);
    // A guard in a task of its own is the last that holds the store.
    let guard = store.get(at(1)).await.unwrap().into_owned(&store);
    let closed = store.wait_closed();
    drop(store);
    let read = tokio::spawn(async move { version_of(&guard, 1) });
    assert_eq!(read.await.unwrap(), 2);
    closed.await;
}

#[tokio::test(start_paused = true)]
async fn scans_are_streams() {
    let (_fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    store.free(PageId::new(space, 3)).await.unwrap();
    let borrowed = store.scan(space, 0..10).into_stream();
    let seen: Vec<u32> = borrowed.map_ok(|page| version_of(&page, page.id().no)).try_collect().await.unwrap();
    assert_eq!(seen, [1; 9]);
    // The owned one moves to a task, and its pages outlive it.
    let stream = store.scan(space, 0..u32::MAX).into_owned(&store).into_stream();
    let pages = tokio::spawn(stream.take(5).try_collect::<Vec<_>>()).await.unwrap().unwrap();
    assert_eq!(pages.iter().map(|page| page.id().no).collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a scan of another store")]
async fn a_scan_of_another_store_is_refused() {
    let (one, other) = (Fixture::new().open().await, Fixture::new().open().await);
    drop(one.scan(SpaceId(0), 0..1).into_owned(&Arc::new(other)));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a guard of another pool")]
async fn a_guard_of_another_store_is_refused() {
    let (one, other) = (Fixture::new().open().await, Fixture::new().open().await);
    let space = grown(&one).await;
    drop(one.get(PageId::new(space, 1)).await.unwrap().into_owned(&Arc::new(other)));
}

#[test]
fn guards_of_a_blocking_store_keep_its_runtime() {
    let folder = pagetier_testing::scratch();
    let builder = PageStore::builder().directory(folder.path().join("store")).ssd_bytes(4 << 20);
    let store = Arc::new(blocking::PageStore::open(builder).unwrap());
    let space = store.block_on(store.spaces().create("t")).unwrap();
    for no in 0..5 {
        store.allocate(space).unwrap().into_owned(&store)[0] = no;
    }
    let at = |no| PageId::new(space, no);
    let scanned: Vec<_> = store.scan(space, 0..u32::MAX).into_owned(&store).map(Result::unwrap).collect();
    assert_eq!(scanned.iter().map(|page| page[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(store.free_on_sync(&[at(2)]).unwrap(), 1);
    store.sync().unwrap();
    assert!(!store.exists(at(2)) && store.exists(at(3)));
    let guard = store.get(at(3)).unwrap().into_owned(&store);
    drop((scanned, store));
    // The store runs on: another page can be read through the guard's store.
    assert_eq!((guard[0], guard.store().get(at(4)).unwrap()[0]), (3, 4));
    drop(guard);
}

#[test]
fn an_error_becomes_one_of_std_io_with_its_kind() {
    let (space, page) = (SpaceId(3), PageId::new(SpaceId(3), 7));
    let full = Arc::new(io::Error::from(ErrorKind::StorageFull));
    for (error, kind) in [
        (Error::NoSuchPage { page }, ErrorKind::NotFound),
        (Error::SpaceExists { name: "t".into() }, ErrorKind::AlreadyExists),
        (Error::ReadOnly, ErrorKind::ReadOnlyFilesystem),
        (Error::SpaceFull { space }, ErrorKind::FileTooLarge),
        (Error::PageGap { page, gap: 9, gap_max: 8 }, ErrorKind::InvalidInput),
        (Error::Manifest { source: full }, ErrorKind::StorageFull),
        (Error::Closed, ErrorKind::Other),
    ] {
        let text = error.to_string();
        let io = io::Error::from(error);
        assert_eq!((io.kind(), io.to_string()), (kind, text));
        assert!(io.get_ref().unwrap().is::<Error>());
    }
}
