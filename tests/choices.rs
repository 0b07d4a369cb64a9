//! The log and the statistics of a store whose default policies change their setting. Needs a process of its
//! own: a test without a subscriber may disable an event for all tests.

use pagetier::{
    MemoryManifest, PageId, PageSize, PageStore, device::MemoryDevice, pool_bytes_for, ssd_bytes_for,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const SIZE: PageSize = PageSize::MIN;
const FRAMES: u64 = 256;
const SLOTS: u32 = 1_000;

/// The fields of an event, in printed form.
#[derive(Clone, Debug, Default, PartialEq)]
struct Logged {
    message: String,
    before: String,
    now: String,
    costs: String,
}

impl Visit for Logged {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "before" => self.before = text,
            "now" => self.now = text,
            "costs" => self.costs = text,
            _ => {}
        }
    }
}

/// Keeps the events that name a setting.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Logged>>>);

impl Log {
    /// The events of one tier.
    fn of(&self, tier: &str) -> Vec<Logged> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|logged| logged.message.contains(tier)).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut logged = Logged::default();
        event.record(&mut logged);
        if logged.message.contains("switched to another setting") {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(logged);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A loop over twice as many pages as the SSD holds, of which any half is worth keeping; then a moving
/// window, of which the latest pages are.
fn requests() -> impl Iterator<Item = u32> {
    let mut rng = SmallRng::seed_from_u64(3);
    let circle = (0..30 * SLOTS).map(|at| at % (2 * SLOTS));
    circle.chain((0..30 * SLOTS).map(move |at| 2 * SLOTS + at / 8 + rng.random_range(0..700)))
}

#[test]
fn changes_of_a_setting_are_logged_and_counted() {
    let log = Log::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let stats = tracing::subscriber::with_default(log.clone(), || {
        runtime.block_on(async {
            let ssd_bytes = ssd_bytes_for(u64::from(SLOTS), SIZE);
            let store = PageStore::builder()
                .in_memory(Arc::new(MemoryManifest::default()))
                .hdd(Arc::new(MemoryDevice::new("hdd", 0)))
                .ssd(Arc::new(MemoryDevice::new("ssd", 0)))
                .page_size(SIZE)
                .ssd_bytes(ssd_bytes)
                .pool_bytes(pool_bytes_for(FRAMES, ssd_bytes, SIZE))
                .read_ahead(false)
                .open()
                .await
                .unwrap();
            let space = store.spaces().create("pages").await.unwrap();
            for _ in 0..requests().max().unwrap() + 1 {
                store.allocate(space).await.unwrap();
            }
            store.sync().await.unwrap();
            for no in requests() {
                store.get(PageId::new(space, no)).await.unwrap();
            }
            // What wakes the background task: pages to be written.
            for no in 0..SLOTS {
                store.get_mut(PageId::new(space, no)).await.unwrap()[0] = 1;
            }
            store.sync().await.unwrap();
            let stats = store.stats();
            store.close().await.unwrap();
            stats
        })
    });
    // The pool's default has no settings.
    assert_eq!(stats.pool_choice, None);
    let (logged, choice) = (log.of("SSD"), stats.ssd_choice.unwrap());
    // The background task logs them, so of changes in quick succession it may have seen the last alone.
    assert!(logged.len() as u64 <= choice.changes, "{} changes: {logged:?}", choice.changes);
    let last = logged.last().expect("a change");
    assert_eq!(
        (last.now.as_str(), last.before.as_str()),
        (format!("{:?}", choice.setting).as_str(), format!("{:?}", choice.before.unwrap()).as_str())
    );
    assert!(choice.costs.iter().all(|(name, _)| last.costs.contains(name)), "{last:?}");
}
