//! Pages that the next `sync` frees: until then they exist, and a crash shows them as they were; afterwards
//! they are free, as by any free. A `sync` of one space covers that space.

use crate::fixture::{Fixture, PAGES, fill, polled, read, version_of, write};
use crate::free::{SPACE, at, is_absent, written};
use pagetier::{Error, PageId, PageStore, SpaceId};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// With more memory, in which the cleaner has nothing to do: only a sync writes changes.
async fn written_in_memory(fixture: &Fixture) -> PageStore {
    written(fixture).await.close().await.unwrap();
    fixture.builder().pool_bytes(4 << 20).open().await.unwrap()
}

/// Waits until the freed pages in `range` have left memory, and their numbers can be used again.
async fn left(store: &PageStore, range: Range<u32>) {
    assert_eq!(store.free((SPACE, range)).await.unwrap(), 0, "they are free already");
}

#[tokio::test(start_paused = true)]
async fn a_page_exists_until_the_sync_and_is_free_from_then_on() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let saves = fixture.manifest.saves();
    assert_eq!(store.free_on_sync(&[at(3), at(4), at(3), at(PAGES + 9)]).unwrap(), 2);
    assert_eq!(store.free_on_sync(&[at(4), at(5)]).unwrap(), 1, "4 is named already");
    assert!(!store.exists(at(3)) && store.exists(at(6)));
    assert_eq!(fixture.manifest.saves(), saves, "nothing is written yet");
    assert_eq!(store.allocate(SPACE).await.unwrap().id().no, PAGES, "the numbers are not available");
    let crashed = fixture.after_power_cut(3).open().await;
    for no in 3..6 {
        assert_eq!(read(&crashed, SPACE, no).await.unwrap(), 1);
    }
    store.flush().await.unwrap();
    assert_eq!(store.spaces().list()[0].free, 0, "a flush frees nothing");
    store.sync().await.unwrap();
    assert_eq!(store.spaces().list()[0].free, 3);
    left(&store, 3..6).await;
    for store in [fixture.after_power_cut(4).open().await, store] {
        for no in 3..6 {
            assert!(is_absent(&store, no).await, "page {no}");
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no);
        }
        assert_eq!(store.validate(), Ok(()));
    }
}

type Frees = fn(Arc<PageStore>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The calls that free what was named.
const FREES: [Frees; 3] = [
    |store| Box::pin(async move { store.sync().await }),
    |store| Box::pin(async move { store.spaces().sync(SPACE).await }),
    |store| {
        Box::pin(async move {
            match Arc::try_unwrap(store) {
                Ok(store) => store.close().await,
                Err(shared) => shared.shutdown().await,
            }
        })
    },
];

/// Whether page 7 is gone after a power cut at this moment. The root, page 0, does not name it then.
async fn is_gone(fixture: &Fixture, seed: u64) -> bool {
    let crashed = fixture.after_power_cut(seed).open().await;
    let freed = is_absent(&crashed, 7).await;
    let root = read(&crashed, SPACE, 0).await.unwrap();
    assert!(!freed || root == 2, "the root still names the page");
    freed
}

/// An engine without a log: a root names a page; it is changed to name another, and the former is freed.
#[tokio::test(start_paused = true)]
async fn no_crash_shows_a_reference_to_a_page_that_is_gone() {
    for frees in FREES {
        // Slow enough for several steps.
        let fixture = Fixture::with_latency(Duration::from_millis(4), Duration::from_millis(4));
        let store = written(&fixture).await;
        write(&store, SPACE, 0, 2).await.unwrap();
        assert_eq!(store.free_on_sync(&[at(7)]).unwrap(), 1);
        // At every step of the call. The images are looked at afterwards: that takes time, too.
        let (mut call, mut images) = (frees(Arc::new(store)), Vec::new());
        let done = loop {
            let done = polled(1, &mut call).await;
            images.push(fixture.after_power_cut(images.len() as u64));
            if let Some(done) = done {
                break done;
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        };
        done.unwrap();
        let mut kept = 0;
        for (step, image) in images.iter().enumerate() {
            let freed = is_gone(image, 0).await;
            assert!(!freed || kept > 1, "step {step} of {}", images.len());
            assert!(freed || kept == step, "step {step}: it is there again");
            kept += usize::from(!freed);
        }
        assert!(kept < images.len(), "{kept} steps, and it is there");
    }
}

/// The root's guard lives on while another task frees what was named. The pool does not know of the change.
#[tokio::test(start_paused = true)]
async fn a_change_under_a_guard_is_covered_whoever_frees() {
    for frees in FREES {
        let fixture = Fixture::new();
        let store = Arc::new(written(&fixture).await);
        let mut root = store.get_mut(at(0)).await.unwrap();
        fill(&mut root, 0, 2);
        assert_eq!(store.free_on_sync(&[at(7)]).unwrap(), 1);
        let another = tokio::spawn(frees(Arc::clone(&store)));
        // It goes as far as it can without the guard.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!is_gone(&fixture, 1).await && !another.is_finished());
        drop(root);
        another.await.unwrap().unwrap();
        assert!(is_gone(&fixture, 2).await);
    }
}

/// A `sync` that began before the call does not free the page: it need not cover what the caller wrote
/// before.
#[tokio::test(start_paused = true)]
async fn a_sync_under_way_does_not_free_what_is_named_meanwhile() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    write(&store, SPACE, 1, 2).await.unwrap();
    store.free_on_sync(&[at(9)]).unwrap();
    let mut sync = Box::pin(store.sync());
    assert!(polled(1, &mut sync).await.is_none());
    write(&store, SPACE, 0, 2).await.unwrap();
    store.free_on_sync(&[at(7)]).unwrap();
    sync.await.unwrap();
    let crashed = fixture.after_power_cut(5).open().await;
    assert!(is_absent(&crashed, 9).await && !is_absent(&crashed, 7).await);
    // Of several at once, each returns with its page freed.
    let others = (20..30).map(|no| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store.free_on_sync(&[at(no)]).unwrap();
            store.sync().await.unwrap();
            assert!(!store.exists(at(no)));
        })
    });
    for other in others.collect::<Vec<_>>() {
        other.await.unwrap();
    }
    let crashed = fixture.after_power_cut(6).open().await;
    for no in (20..30).chain([7]) {
        assert!(is_absent(&crashed, no).await, "page {no}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_sync_waits_for_a_guard_and_the_number_waits_for_it() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    for no in 5..8 {
        read(&store, SPACE, no).await.unwrap();
    }
    let guard = store.get(at(4)).await.unwrap();
    store.free_on_sync(&[at(4), at(5), at(6)]).unwrap();
    tokio::time::timeout(Duration::from_secs(1), store.sync()).await.unwrap().unwrap();
    // The others are gone from memory, too, though they come after the one that cannot leave yet.
    for no in 5..7 {
        assert!(is_absent(&store, no).await && store.try_get(at(no)).is_none(), "page {no}");
    }
    assert_eq!(version_of(&guard, 4), 1);
    assert_eq!(store.allocate(SPACE).await.unwrap().id().no, PAGES);
    drop(guard);
    left(&store, 4..7).await;
    assert!(is_absent(&store, 4).await);
    assert_eq!(store.allocate(SPACE).await.unwrap().id().no, 4);
}

/// By each call that can give the number a new life before the `sync`.
#[tokio::test(start_paused = true)]
async fn the_next_life_is_blank_and_survives_the_sync() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    store.free_on_sync(&[at(3), at(4), at(5), at(6)]).unwrap();
    let blank = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let mut page = store.get_or_create(at(3)).await.unwrap();
    assert!(blank(&page));
    fill(&mut page, 3, 2);
    drop(page);
    fill(&mut store.overwrite(at(4)).await.unwrap(), 4, 2);
    store.free(at(5)).await.unwrap();
    assert_eq!(store.allocate(SPACE).await.unwrap().id().no, 5);
    fill(&mut store.get_mut(at(5)).await.unwrap(), 5, 2);
    store.sync().await.unwrap();
    for store in [fixture.after_power_cut(7).open().await, store] {
        for no in 3..6 {
            assert_eq!(read(&store, SPACE, no).await.unwrap(), 2);
        }
        assert!(is_absent(&store, 6).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_frees_them_a_drop_of_the_space_forgets_them_and_a_failure_keeps_them() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let other = store.spaces().create("u").await.unwrap();
    drop(store.allocate(other).await.unwrap());
    assert!(matches!(
        store.free_on_sync(&[at(1), PageId::new(SpaceId(9), 0)]),
        Err(Error::NoSuchSpace { space: SpaceId(9) })
    ));
    assert!(store.exists(at(1)), "none is noted");
    store.free_on_sync(&[PageId::new(other, 0)]).unwrap();
    store.spaces().drop(other).await.unwrap();
    store.sync().await.unwrap();
    write(&store, SPACE, 0, 2).await.unwrap();
    store.free_on_sync(&[at(2)]).unwrap();
    for device in [&fixture.ssd, &fixture.hdd, &fixture.ring] {
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    }
    assert!(store.sync().await.is_err());
    assert!(!is_absent(&store, 2).await, "its record would come before the root");
    for device in [&fixture.ssd, &fixture.hdd, &fixture.ring] {
        device.clear_faults();
    }
    let closed = store.wait_closed();
    drop(store);
    closed.await;
    let fixture = fixture.after_power_cut(8);
    let store = fixture.open().await;
    assert!(!is_absent(&store, 2).await);
    write(&store, SPACE, 0, 3).await.unwrap();
    store.free_on_sync(&[at(2)]).unwrap();
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert!(is_absent(&store, 2).await);
    assert_eq!(read(&store, SPACE, 0).await.unwrap(), 3);
    assert!(matches!(store.shutdown().await, Ok(())));
    assert!(matches!(store.free_on_sync(&[at(3)]), Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_space_covers_its_changes_and_its_frees_alone() {
    let fixture = Fixture::new();
    let store = written_in_memory(&fixture).await;
    let other = store.spaces().create("u").await.unwrap();
    for no in 0..8 {
        fill(&mut store.allocate(other).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    for no in 0..8 {
        write(&store, SPACE, no, 2).await.unwrap();
        write(&store, other, no, 2).await.unwrap();
    }
    store.free_on_sync(&[at(20), PageId::new(other, 7)]).unwrap();
    let written = store.stats().pool.written_recoverability;
    store.spaces().sync(SPACE).await.unwrap();
    assert_eq!(store.stats().pool.written_recoverability - written, 8);
    let crashed = fixture.after_power_cut(9).open().await;
    for no in 0..8 {
        assert_eq!(read(&crashed, SPACE, no).await.unwrap(), 2);
        assert_eq!(read(&crashed, other, no).await.unwrap(), 1);
    }
    assert!(is_absent(&crashed, 20).await);
    let unknown = store.spaces().sync(SpaceId(9)).await;
    assert!(matches!(unknown, Err(Error::NoSuchSpace { .. })), "{unknown:?}");
}
