//! Saves of the manifest take as long as an fsync does: nothing but their callers waits, and a caller that
//! does not wait leaves nothing wrong behind.

use pagetier::{Builder, PageId, PageStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DELAY: Duration = Duration::from_millis(150);

fn builder(folder: &tempfile::TempDir) -> Builder {
    let builder = PageStore::builder().directory(folder.path().join("s")).ssd_bytes(4 << 20);
    builder.pool_bytes(2 << 20)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The longest time between two turns of a task, in milliseconds, since it was last asked.
struct Ticks(Arc<AtomicU64>);

impl Ticks {
    fn start() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let ticks = Arc::clone(&longest);
        tokio::spawn(async move {
            let mut last = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticks.fetch_max(last.elapsed().as_millis() as u64, Ordering::Relaxed);
                last = Instant::now();
            }
        });
        Self(longest)
    }

    async fn during<T>(&self, what: &str, act: impl Future<Output = T>) -> T {
        self.0.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        let done = act.await;
        assert!(begun.elapsed() >= DELAY, "{what} saved nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let paused = self.0.load(Ordering::Relaxed);
        assert!(paused < DELAY.as_millis() as u64, "{what} paused the runtime for {paused} ms");
        done
    }
}

#[cfg(feature = "mutations")]
#[tokio::test]
async fn other_tasks_run_while_the_manifest_is_saved() {
    let (folder, ticks) = (folder(), Ticks::start());
    let store = builder(&folder).slow_saves(DELAY);
    let store = ticks.during("an opening", store.open()).await.unwrap();
    let space = ticks.during("create", store.spaces().create("t")).await.unwrap();
    drop(ticks.during("growth", store.allocate(space)).await.unwrap());
    store.sync().await.unwrap();
    ticks.during("free", store.free(PageId::new(space, 0))).await.unwrap();
    drop(store.allocate(space).await.unwrap());
    ticks.during("a sync after reuse", store.sync()).await.unwrap();
    ticks
        .during("shrink", async {
            store.spaces().free(space, 0..64).await.unwrap();
            store.spaces().shrink(space).await.unwrap();
        })
        .await;
    let off = store.ssd().set_mode(pagetier::SsdMode::Off);
    ticks.during("an exchange", off).await.unwrap();
    ticks.during("attach", store.ssd().readmit()).await.unwrap();
    ticks.during("remove", store.spaces().drop(space)).await.unwrap();
    ticks.during("close", store.close()).await.unwrap();
    let store = builder(&folder).open().await.unwrap();
    assert!(store.spaces().list().is_empty() && store.recovery().clean);
}

/// A store that is dropped during a save keeps its directory until the save has ended, and the drop does not
/// wait for it.
#[cfg(feature = "mutations")]
#[tokio::test]
async fn a_store_that_is_dropped_during_a_save_waits_for_it_elsewhere() {
    let folder = folder();
    let store = builder(&folder).slow_saves(DELAY).open().await.unwrap();
    let save = tokio::time::timeout(DELAY / 5, store.spaces().create("t")).await;
    assert!(save.is_err());
    let (begun, left) = (Instant::now(), store.wait_closed());
    drop(store);
    assert!(begun.elapsed() < DELAY / 3, "the drop waited");
    left.await;
    assert!(begun.elapsed() > DELAY / 3, "the save is still under way");
    let store = builder(&folder).open().await.unwrap();
    assert_eq!(store.spaces().list().len(), 1);
}

/// The save of a dropped opening continues: the next opening waits for it.
#[cfg(feature = "mutations")]
#[tokio::test]
async fn an_opening_dropped_during_a_save_does_not_race_with_the_next() {
    for parts in 0..8 {
        let folder = folder();
        let slow = builder(&folder).slow_saves(DELAY / 3);
        let _ = tokio::time::timeout(DELAY / 6 * parts, slow.open()).await;
        let store = builder(&folder).open().await.unwrap();
        store.spaces().create("t").await.unwrap();
        // Whatever the first one still writes would be in effect by now.
        tokio::time::sleep(DELAY).await;
        store.spaces().create("u").await.unwrap();
        store.close().await.unwrap();
        assert_eq!(builder(&folder).open().await.unwrap().spaces().list().len(), 2, "dropped after {parts}");
    }
}

#[cfg(feature = "mutations")]
async fn dropped_removal(rule: Option<pagetier_ssdcache::Mutation>) -> bool {
    let folder = folder();
    let store = builder(&folder).slow_saves(DELAY).mutation(rule).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    store.allocate(space).await.unwrap()[..1].copy_from_slice(&[1]);
    store.sync().await.unwrap();
    // The space is marked as dropped in the manifest; the caller does not wait.
    assert!(tokio::time::timeout(DELAY / 5, store.spaces().drop(space)).await.is_err());
    store.get_mut(PageId::new(space, 0)).await.unwrap()[..1].copy_from_slice(&[2]);
    store.sync().await.unwrap();
    let left = store.wait_closed();
    drop(store);
    left.await;
    let store = builder(&folder).open().await.unwrap();
    store.get(PageId::new(space, 0)).await.is_ok_and(|page| page[0] == 2)
}

/// The mark is on the disk, but not in memory, where the space continues to be used.
#[cfg(feature = "mutations")]
#[tokio::test]
async fn a_dropped_removal_is_undone_by_the_next_sync() {
    assert!(dropped_removal(None).await);
    let forgotten = Some(pagetier_ssdcache::Mutation::SaveForgotten);
    assert!(!dropped_removal(forgotten).await, "unnoticed");
}

/// Calls that are dropped at any time leave a manifest that agrees with memory after the next sync.
#[cfg(feature = "mutations")]
#[tokio::test]
async fn calls_dropped_during_their_saves_leave_the_manifest_sound() {
    let folder = folder();
    let store = builder(&folder).slow_saves(Duration::from_millis(4)).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for turn in 0..60_u64 {
        let wait = Duration::from_millis(turn % 7);
        let name = format!("n{turn}");
        let _ = tokio::time::timeout(wait, store.spaces().create(&name)).await;
        let _ = tokio::time::timeout(wait, store.overwrite(PageId::new(space, 64 * turn as u32))).await;
        if let (0, Some(info)) = (turn % 3, store.spaces().list().into_iter().find(|s| s.id != space)) {
            let _ = tokio::time::timeout(wait, store.spaces().drop(info.id)).await;
        }
    }
    store.sync().await.unwrap();
    let (spaces, left) = (store.spaces().list(), store.wait_closed());
    drop(store);
    left.await;
    let store = builder(&folder).open().await.unwrap();
    let names =
        |spaces: &[pagetier::SpaceInfo]| spaces.iter().map(|s| (s.id, s.name.clone())).collect::<Vec<_>>();
    let found = store.spaces().list();
    for space in &spaces {
        assert!(found.iter().any(|other| other.name == space.name && other.id == space.id), "{space:?}");
    }
    assert!(names(&found).len() >= names(&spaces).len());
    store.close().await.unwrap();
}
