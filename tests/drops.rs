//! Futures dropped at any moment during their I/O, on real files: the kernel never writes into freed memory,
//! and work that was not dropped is not lost. The regular run checks contents; to check memory, run
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test --target x86_64-unknown-linux-gnu --test drops
//! ```

mod fixture;

use fixture::{fill, version_of};
use pagetier::{PageId, PageSize, PageStore, SpaceId, device::Backend};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const PAGES: u32 = 400;
const TASKS: u32 = 8;
const STEPS: u32 = 600;

/// Polls `future` until it is ready or a random number of polls is used up, then drops it.
async fn perhaps<T>(rng: &mut SmallRng, future: impl Future<Output = T>) -> Option<T> {
    let mut polls = if rng.random_bool(0.4) { u32::MAX } else { rng.random_range(1..4) };
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        polls -= 1;
        if polls == 0 {
            return Poll::Ready(None);
        }
        if polls < 4 {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// Makes random calls on this task's own pages, and reads every task's pages. Returns the versions of its own
/// pages.
async fn work(store: Arc<PageStore>, space: SpaceId, task: u32, seed: u64) -> Vec<(u32, u32)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut versions: Vec<(u32, u32)> =
        (0..PAGES).filter(|no| no % TASKS == task).map(|no| (no, 0)).collect();
    for _ in 0..STEPS {
        let any = rng.random_range(0..PAGES);
        match rng.random_range(0..100) {
            0..55 => {
                let at = rng.random_range(0..versions.len());
                let (no, version) = versions[at];
                if let Some(guard) = perhaps(&mut rng, store.get_mut(PageId::new(space, no))).await {
                    let mut guard = guard.unwrap();
                    assert_eq!(version_of(&guard, no), version);
                    fill(&mut guard, no, version + 1);
                    versions[at].1 += 1;
                }
            }
            55..85 => {
                if let Some(guard) = perhaps(&mut rng, store.get(PageId::new(space, any))).await {
                    version_of(&guard.unwrap(), any);
                }
            }
            85..90 => {
                let mut scan = store.scan(space, any..PAGES.min(any + 20));
                while let Some(Some(page)) = perhaps(&mut rng, scan.next()).await {
                    let page = page.unwrap();
                    version_of(&page, page.id().no);
                }
            }
            90..95 => store
                .prefetch(&(any..PAGES.min(any + 8)).map(|no| PageId::new(space, no)).collect::<Vec<_>>()),
            95..97 => drop(perhaps(&mut rng, store.sync()).await.transpose().unwrap()),
            _ => drop(perhaps(&mut rng, store.allocate(space)).await.transpose().unwrap()),
        }
    }
    versions
}

async fn drops(backend: Backend, seed: u64) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = || {
        PageStore::builder()
            .directory(directory.path())
            .page_size(PageSize::MIN)
            .pool_bytes(700 << 10)
            .ssd_bytes(1 << 20)
            .ring_pages(16)
            .exhausted_after(Duration::from_secs(60))
            .io(backend)
            .open()
    };
    let store = Arc::new(open().await.unwrap());
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..PAGES {
        fill(&mut store.allocate(space).await.unwrap(), no, 0);
    }
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(work(Arc::clone(&store), space, task, seed * 100 + u64::from(task))))
        .collect();
    let mut versions = Vec::new();
    for task in tasks {
        versions.extend(task.await.unwrap());
    }
    store.validate().unwrap();
    let stats = store.stats();
    assert!(stats.pool.misses > 1000 && stats.ssd.pages > 0, "too little I/O to be dropped: {stats:?}");
    // First without a close, then after one.
    for _ in 0..2 {
        for &(no, version) in &versions {
            assert_eq!(version_of(&store.get(PageId::new(space, no)).await.unwrap(), no), version);
        }
        store.sync().await.unwrap();
    }
    let Ok(store) = Arc::try_unwrap(store) else { panic!("a task still has the store") };
    store.close().await.unwrap();
    let store = open().await.unwrap();
    for &(no, version) in &versions {
        assert_eq!(version_of(&store.get(PageId::new(space, no)).await.unwrap(), no), version);
    }
    // Drop the store with reads in flight.
    let mut rng = SmallRng::seed_from_u64(seed);
    for no in 0..40 {
        drop(perhaps(&mut rng, store.get(PageId::new(space, no * 7))).await);
    }
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_during_io_do_no_harm_with_io_uring() {
    for seed in 0..4 {
        drops(Backend::Auto, seed).await;
    }
}

#[tokio::test]
async fn futures_dropped_during_io_do_no_harm_with_threads() {
    for seed in 10..13 {
        drops(Backend::Threads, seed).await;
    }
}
