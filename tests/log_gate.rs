//! The embedder's log: no device holds an image whose log is not durable, and a log that failed temporarily
//! delays nothing once it works again.

use crate::fixture::{Fixture, PAGE, PAGES, grown, read, write, zoned};
use pagetier::log::{GateError, GateFuture};
use pagetier::{
    Builder, Error, LogGate, Loss, Lsn, PageId, PageStore, SpaceId,
    errors::{Exhausted, GatePanic, PoolError},
};
use pagetier_page::{Header, StoreSeed, verify};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A log that takes time, and fails on request.
#[derive(Default)]
struct Log {
    durable: AtomicU64,
    fails: AtomicBool,
    failures: AtomicU64,
}

impl LogGate for Log {
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        Box::pin(async move {
            sleep(Duration::from_millis(2)).await;
            if self.fails.load(Ordering::Relaxed) {
                self.failures.fetch_add(1, Ordering::Relaxed);
                return Err(Arc::new(std::io::Error::other("the log's disk is full")) as GateError);
            }
            self.durable.fetch_max(lsn.0, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// Checks that every image in `bytes` has a durable LSN; returns their number.
fn check_images(bytes: &[u8], seed: StoreSeed, durable: u64, device: &str) -> usize {
    let mut images = 0;
    for block in bytes.chunks_exact(PAGE as usize) {
        let header = Header::peek(block);
        if verify(seed, block, header.page).is_ok() {
            images += 1;
            assert!(header.lsn.0 <= durable, "{device}: page {} of {:?}", header.page, header.lsn);
        }
    }
    images
}

async fn keeps_behind_the_log(policy: &str, ring_pages: u32) {
    let fixture = Fixture::new();
    let log = Arc::new(Log::default());
    let gate = Arc::clone(&log) as Arc<dyn LogGate>;
    let builder = fixture.builder().ssd_policy(zoned(policy)).ring_pages(ring_pages).log_gate(gate);
    let store = builder.open().await.unwrap();
    let space = grown(&store).await;
    let mut rng = SmallRng::seed_from_u64(11);
    let (mut lsn, mut images) = (0, 0);
    for step in 0..1500 {
        let page = PageId::new(space, rng.random_range(0..PAGES));
        log.fails.store(step % 100 > 85, Ordering::Relaxed);
        match rng.random_range(0..100) {
            0 => drop(store.sync().await),
            1 => drop(store.flush_to(Lsn(lsn)).await),
            2..60 => {
                // A frame may take long to become free while the log fails.
                let Ok(mut guard) = store.get_mut(page).await else { continue };
                lsn += 1;
                guard[100] = guard[100].wrapping_add(1);
                guard.set_lsn(Lsn(lsn));
            }
            _ => drop(store.get(page).await),
        }
        if step % 10 == 0 {
            // Writes whose log was durable at their start may still be in flight; the log has only advanced
            // since.
            let durable = log.durable.load(Ordering::Relaxed);
            images += check_images(&fixture.ssd.snapshot(), fixture.seed(), durable, "ssd");
            images += check_images(&fixture.hdd.snapshot(), fixture.seed(), durable, "hdd");
        }
    }
    assert!(images > 1000 && log.failures.load(Ordering::Relaxed) > 0, "{policy}: {images} images");
    log.fails.store(false, Ordering::Relaxed);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_device_has_an_image_ahead_of_the_durable_log() {
    for policy in ["cac", "lru2", "tac", "mv-fifo-gsc", "doublewrite"] {
        keeps_behind_the_log(policy, 8).await;
    }
    keeps_behind_the_log("cac", 0).await;
}

/// Every frame is dirty, the log has failed for a long time, and the cleaner is at its maximum back-off.
async fn held_up(log: &Arc<Log>, builder: Builder) -> (PageStore, SpaceId) {
    let gate = Arc::clone(log) as Arc<dyn LogGate>;
    let store = builder.log_gate(gate).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    log.fails.store(true, Ordering::Relaxed);
    let mut no = 0;
    while write(&store, space, no % PAGES, 2).await.is_ok() {
        no += 1;
    }
    (store, space)
}

/// Returns the longest time that a request for a frame takes once the log works again.
async fn longest_wait() -> Duration {
    let mut longest = Duration::ZERO;
    for offset in 0..8 {
        let (log, fixture) = (Arc::new(Log::default()), Fixture::new());
        let (store, space) = held_up(&log, fixture.builder()).await;
        sleep(Duration::from_millis(10_000 + offset * 260)).await;
        log.fails.store(false, Ordering::Relaxed);
        let since = Instant::now();
        read(&store, space, PAGES - 1).await.unwrap();
        longest = longest.max(since.elapsed());
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_frame_is_served_at_once_when_the_log_works_again() {
    let longest = longest_wait().await;
    assert!(longest < Duration::from_millis(150), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_already_is_served_soon() {
    let mut longest = Duration::ZERO;
    for offset in 0..8 {
        let (log, fixture) = (Arc::new(Log::default()), Fixture::new());
        let (store, space) = held_up(&log, fixture.builder()).await;
        sleep(Duration::from_secs(10)).await;
        let works_again = async {
            sleep(Duration::from_millis(700 + offset * 130)).await;
            log.fails.store(false, Ordering::Relaxed);
            Instant::now()
        };
        let ((), since) = tokio::join!(
            async {
                read(&store, space, PAGES - 1).await.unwrap();
            },
            works_again
        );
        longest = longest.max(since.elapsed());
    }
    assert!(longest < Duration::from_millis(250), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flush_wakes_the_cleaner() {
    for offset in 0..4 {
        let (log, fixture) = (Arc::new(Log::default()), Fixture::new());
        let (store, _) = held_up(&log, fixture.builder()).await;
        sleep(Duration::from_millis(10_000 + offset * 510)).await;
        log.fails.store(false, Ordering::Relaxed);
        let before = store.stats().pool.written_replacement;
        // Nothing is this old, so the flush itself writes no page.
        store.flush_to(Lsn(1)).await.unwrap();
        sleep(Duration::from_millis(60)).await;
        let after = store.stats().pool.written_replacement;
        assert!(after > before, "{offset}: {before} {after}");
    }
}

/// What the guide says of changes that have no LSN, and of pages that have no change.
#[tokio::test(start_paused = true)]
async fn a_change_counts_from_its_lsn_or_from_the_drop_of_its_guard() {
    let (_fixture, store, space) = Fixture::with_space().await;
    let page = |no| PageId::new(space, no);
    let end = Lsn(100);
    let redo_from = async || store.redo_from(end, Loss::Crash).await.unwrap();

    // Created pages do not count, held or not.
    let created = store.overwrite(page(0)).await.unwrap();
    let recreated = store.get_or_create(page(1)).await.unwrap();
    assert_eq!(redo_from().await, end);
    drop((created, recreated));
    assert_eq!(redo_from().await, end);
    assert!(store.why(page(0)).unwrap().memory.unwrap().dirty);

    // With an LSN, a change counts at once.
    let mut changed = store.get_mut(page(0)).await.unwrap();
    changed[0] = 1;
    assert_eq!(redo_from().await, end);
    changed.set_lsn(Lsn(40));
    assert_eq!(redo_from().await, Lsn(40));
    changed.set_lsn(Lsn(50));
    drop(changed);
    assert_eq!(redo_from().await, Lsn(40));
    store.flush_to(end).await.unwrap();
    assert_eq!(redo_from().await, end);

    // Without one, from the drop of its guard, with the LSN that the page had, or 0.
    for (no, lsn) in [(0, Lsn(50)), (1, Lsn(0))] {
        let mut changed = store.get_mut(page(no)).await.unwrap();
        changed[0] = 2;
        assert_eq!(redo_from().await, end);
        drop(changed);
        assert_eq!(redo_from().await, lsn, "page {no}");
        store.flush_to(end).await.unwrap();
        assert_eq!(redo_from().await, end);
    }
}

/// A log whose gate panics: in the call, or in its future.
#[derive(Default)]
struct Panics {
    at: AtomicU64,
    calls: AtomicU64,
}

impl LogGate for Panics {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let at = self.at.load(Ordering::Relaxed);
        assert!(at != 1, "the call fails its assertion");
        Box::pin(async move {
            sleep(Duration::from_millis(1)).await;
            assert!(at != 2, "the future fails its assertion {at}");
            Ok(())
        })
    }
}

/// The message of the gate's panic, where the error has one.
fn panic_in(error: &Error) -> Option<String> {
    let source = match error {
        Error::Pool(PoolError::Log { source, .. }) => source,
        Error::Pool(PoolError::Exhausted { why, .. }) => match &**why {
            Exhausted::Log { source, .. } => source,
            _ => return None,
        },
        _ => return None,
    };
    source.downcast_ref::<GatePanic>().map(|panic| panic.message.clone())
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_gate_is_an_error_with_its_message_and_loses_nothing() {
    for (at, message) in [(1, "the call fails its assertion"), (2, "the future fails its assertion 2")] {
        let (fixture, gate) = (Fixture::new(), Arc::new(Panics::default()));
        let store = fixture.builder().log_gate(Arc::clone(&gate) as Arc<dyn LogGate>).open().await.unwrap();
        let space = grown(&store).await;
        gate.at.store(at, Ordering::Relaxed);
        write(&store, space, 3, 2).await.unwrap();
        for result in [
            store.sync().await,
            store.flush_to(Lsn(u64::MAX - 1)).await,
            store.free((space, 0..1)).await.map(drop),
        ] {
            if let Err(error) = result {
                assert_eq!(panic_in(&error).as_deref(), Some(message), "{error}");
                let told = pagetier::errors::Causes(&error).to_string();
                assert!(told.contains(message), "{told}");
            }
        }
        assert!(store.sync().await.is_err());
        // Every frame is dirty: a request for one says why.
        let mut no = 10;
        let exhausted = loop {
            match write(&store, space, no % PAGES, 2).await {
                Ok(()) => no += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(panic_in(&exhausted).as_deref(), Some(message), "{exhausted}");
        gate.at.store(0, Ordering::Relaxed);
        store.sync().await.unwrap();
        assert_eq!(read(&fixture.after_power_cut(1).open().await, space, 3).await.unwrap(), 2);
        // A shutdown reports it, too.
        gate.at.store(at, Ordering::Relaxed);
        write(&store, space, 3, 4).await.unwrap();
        let ended = store.shutdown().await.unwrap_err();
        assert_eq!(panic_in(&ended).as_deref(), Some(message), "{ended}");
    }
}

/// A log that tells how far it is durable, or panics instead.
struct Told(AtomicU64);

impl LogGate for Told {
    fn durable(&self) -> Lsn {
        Lsn(self.0.load(Ordering::Relaxed).checked_sub(1).expect("no position"))
    }

    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_without_an_lsn_gets_the_durable_position_of_the_log() {
    let (fixture, log) = (Fixture::new(), Arc::new(Told(AtomicU64::new(8))));
    let store = fixture.builder().log_gate(Arc::clone(&log) as Arc<dyn LogGate>).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    let at = |no| PageId::new(space, no);
    drop(store.allocate(space).await.unwrap());
    assert_eq!(store.get(at(0)).await.unwrap().lsn(), Lsn(7), "a new page, too");
    assert_eq!(store.min_recovery_lsn(), None, "no record is needed for it");
    store.get_mut(at(0)).await.unwrap()[0] = 1;
    assert_eq!(store.get(at(0)).await.unwrap().lsn(), Lsn(7));
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(0)), "no log could repeat the change");
    store.sync().await.unwrap();
    log.0.store(20, Ordering::Relaxed);
    store.get_mut(at(0)).await.unwrap()[0] = 2;
    assert_eq!(store.get(at(0)).await.unwrap().lsn(), Lsn(7), "it has one");
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(0)), "nor this one");
    // A panic of the log's is no reason to lose the change, or the guard's latch.
    log.0.store(0, Ordering::Relaxed);
    store.allocate(space).await.unwrap()[0] = 3;
    let page = store.get_mut(at(1)).await.unwrap();
    assert_eq!((page[0], page.lsn()), (3, Lsn(0)));
    drop(page);
    store.close().await.unwrap();
    assert_eq!(fixture.open().await.get(at(0)).await.unwrap().lsn(), Lsn(7));
}
