//! Saves of the manifest take as long as an fsync does: nothing but their callers waits, and a caller that
//! does not wait leaves nothing wrong behind.

#![cfg(feature = "probes")]

use pagetier::{Builder, PageId, PageStore};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long a save waits for what must happen meanwhile: far longer than that takes, however busy the
/// machine.
const GIVES_UP: Duration = Duration::from_secs(60);

fn builder(folder: &tempfile::TempDir) -> Builder {
    let builder = PageStore::builder().directory(folder.path().join("s")).ssd_bytes(4 << 20);
    builder.pool_bytes(2 << 20)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The turns of a task. A save lasts until there were some.
#[derive(Default)]
struct Turns {
    made: AtomicU64,
    saves: AtomicU64,
    paused: AtomicBool,
}

impl Turns {
    fn start() -> Arc<Self> {
        let turns = Arc::new(Self::default());
        let of = Arc::clone(&turns);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                of.made.fetch_add(1, Ordering::Relaxed);
            }
        });
        turns
    }

    fn save(&self) {
        self.saves.fetch_add(1, Ordering::Relaxed);
        let from = self.made.load(Ordering::Relaxed);
        for _ in 0..GIVES_UP.as_millis() {
            if self.made.load(Ordering::Relaxed) > from + 2 {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.paused.store(true, Ordering::Relaxed);
    }

    async fn during<T>(&self, what: &str, act: impl Future<Output = T>) -> T {
        let before = self.saves.load(Ordering::Relaxed);
        let done = act.await;
        assert!(self.saves.load(Ordering::Relaxed) > before, "{what} saved nothing");
        assert!(!self.paused.load(Ordering::Relaxed), "{what} paused the runtime");
        done
    }
}

#[tokio::test]
async fn other_tasks_run_while_the_manifest_is_saved() {
    let (folder, turns) = (folder(), Turns::start());
    let saving = Arc::clone(&turns);
    let store = builder(&folder).before_saves(move || saving.save());
    let store = turns.during("an open", store.open()).await.unwrap();
    let space = turns.during("create", store.spaces().create("t")).await.unwrap();
    drop(turns.during("growth", store.allocate(space)).await.unwrap());
    store.sync().await.unwrap();
    turns.during("free", store.free(PageId::new(space, 0))).await.unwrap();
    drop(store.allocate(space).await.unwrap());
    turns.during("a sync after reuse", store.sync()).await.unwrap();
    turns
        .during("shrink", async {
            store.free((space, 0..64)).await.unwrap();
            store.spaces().shrink(space).await.unwrap();
        })
        .await;
    let off = store.ssd().set_mode(pagetier::SsdMode::Off);
    turns.during("an exchange", off).await.unwrap();
    turns.during("attach", store.ssd().readmit()).await.unwrap();
    turns.during("remove", store.spaces().drop(space)).await.unwrap();
    turns.during("close", store.close()).await.unwrap();
    let store = builder(&folder).open().await.unwrap();
    assert!(store.spaces().list().is_empty() && store.recovery().clean);
}

/// Lets saves begin, or holds them.
#[derive(Default)]
struct Gate {
    /// The number of saves that pass before one is held; `None`: all.
    passes: Mutex<Option<u32>>,
    opened: Condvar,
    holds: AtomicBool,
    gave_up: AtomicBool,
}

impl Gate {
    fn before_saves(self: &Arc<Self>, builder: Builder) -> Builder {
        let gate = Arc::clone(self);
        builder.before_saves(move || gate.pass())
    }

    fn pass(&self) {
        let mut passes = self.passes.lock().unwrap();
        if let Some(left) = passes.as_mut().filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        if passes.is_some() {
            self.holds.store(true, Ordering::Relaxed);
            let opened = self.opened.wait_timeout_while(passes, GIVES_UP, |passes| passes.is_some());
            self.gave_up.fetch_or(opened.unwrap().1.timed_out(), Ordering::Relaxed);
            self.holds.store(false, Ordering::Relaxed);
        }
    }

    fn hold_after(&self, passes: u32) {
        *self.passes.lock().unwrap() = Some(passes);
    }

    fn open(&self) {
        *self.passes.lock().unwrap() = None;
        self.opened.notify_all();
        assert!(!self.gave_up.load(Ordering::Relaxed), "something waited for the save");
    }

    /// Runs `act` until a save is held, and drops it then; its result if it has ended before.
    async fn until_held<T>(&self, act: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = act => Some(done),
            () = async {
                while !self.holds.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            } => None,
        }
    }
}

/// A store that is dropped during a save keeps its directory until the save has ended, and the drop does not
/// wait for it.
#[tokio::test]
async fn a_store_that_is_dropped_during_a_save_waits_for_it_elsewhere() {
    let (folder, gate) = (folder(), Arc::new(Gate::default()));
    let store = gate.before_saves(builder(&folder)).open().await.unwrap();
    gate.hold_after(0);
    assert!(gate.until_held(store.spaces().create("t")).await.is_none());
    let mut left = pin!(store.wait_closed());
    drop(store);
    for _ in 0..20 {
        let waited = tokio::time::timeout(Duration::from_millis(1), left.as_mut()).await;
        assert!(waited.is_err(), "the save is still under way");
    }
    gate.open();
    left.await;
    let store = builder(&folder).open().await.unwrap();
    assert_eq!(store.spaces().list().len(), 1);
}

/// The save of a dropped open continues: the next open waits for it.
#[tokio::test]
async fn an_opening_dropped_during_a_save_does_not_race_with_the_next() {
    let mut dropped = 0;
    for passes in 0..8 {
        let (folder, gate) = (folder(), Arc::new(Gate::default()));
        gate.hold_after(passes);
        dropped += u32::from(gate.until_held(gate.before_saves(builder(&folder)).open()).await.is_none());
        let mut opening = pin!(builder(&folder).open());
        for _ in 0..20 {
            let opened = tokio::time::timeout(Duration::from_millis(1), opening.as_mut()).await;
            assert!(opened.is_err() || !gate.holds.load(Ordering::Relaxed), "it did not wait: {passes}");
            if let Ok(opened) = opened {
                opened.unwrap().close().await.unwrap();
                opening.set(builder(&folder).open());
            }
        }
        gate.open();
        let store = opening.await.unwrap();
        store.spaces().create("t").await.unwrap();
        store.close().await.unwrap();
        assert_eq!(builder(&folder).open().await.unwrap().spaces().list().len(), 1, "dropped after {passes}");
    }
    assert!(dropped > 1, "{dropped}");
}

/// The mark is on the disk, but not in memory, where the space continues to be used.
#[tokio::test]
async fn a_dropped_removal_is_undone_by_the_next_sync() {
    let (folder, gate) = (folder(), Arc::new(Gate::default()));
    let store = gate.before_saves(builder(&folder)).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    store.allocate(space).await.unwrap()[..1].copy_from_slice(&[1]);
    store.sync().await.unwrap();
    // The space is marked as dropped in the manifest; the caller does not wait.
    gate.hold_after(0);
    assert!(gate.until_held(store.spaces().drop(space)).await.is_none());
    gate.open();
    store.get_mut(PageId::new(space, 0)).await.unwrap()[..1].copy_from_slice(&[2]);
    store.sync().await.unwrap();
    let left = store.wait_closed();
    drop(store);
    left.await;
    let store = builder(&folder).open().await.unwrap();
    assert_eq!(store.get(PageId::new(space, 0)).await.unwrap()[0], 2);
}

/// Calls that are dropped at any time leave a manifest that agrees with memory after the next sync.
#[tokio::test]
async fn calls_dropped_during_their_saves_leave_the_manifest_sound() {
    let folder = folder();
    let slow = builder(&folder).before_saves(|| std::thread::park_timeout(Duration::from_millis(4)));
    let store = slow.open().await.unwrap();
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
