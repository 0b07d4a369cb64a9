//! What the store says in its log: long waits, with page, reason and age; an SSD that it does not use; what
//! it does not promise.

use crate::TURN;
use crate::fixture::{Fixture, PAGE, SSD_PAGES, fill};
use pagetier::log::GateFuture;
use pagetier::{Builder, LogGate, Lsn, PageId, PageStore, SpaceId, SsdMode};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span;

/// Collects the text of warnings, and of the line of an open.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

/// The text of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if ["message", "not_promised"].contains(&field.name()) {
            let _ = write!(self.0, "{value:?} ");
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        if *event.metadata().level() > tracing::Level::WARN && !text.0.contains("opened") {
            return;
        }
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Warnings {
    fn say(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|text| text.contains(what))
    }

    fn of(&self, page: PageId, what: &str) -> usize {
        let texts = self.0.lock().unwrap();
        texts.iter().filter(|text| text.contains(&format!("page {page} ")) && text.contains(what)).count()
    }
}

/// A log that never becomes durable.
struct Stuck;

impl LogGate for Stuck {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(std::future::pending())
    }
}

async fn opened(builder: Builder) -> (PageStore, SpaceId) {
    let store = builder.open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    (store, space)
}

#[tokio::test(start_paused = true)]
async fn waits_that_last_are_logged_with_page_reason_and_age() {
    let _turn = TURN.lock().await;
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder().log_gate(Arc::new(Stuck))).await;
    let store = Arc::new(store);
    let [latched, logged] = [0, 1].map(|no| PageId::new(space, no));

    let guard = store.overwrite(latched).await.unwrap();
    let waiter = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.get(latched).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(warnings.of(latched, "its latch"), 0, "too early");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(warnings.of(latched, "its latch"), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let count = warnings.of(latched, "its latch");
    assert!((3..=5).contains(&count), "again when its age has doubled: {count}");
    drop(guard);
    waiter.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(warnings.of(latched, "its latch"), count, "it ended");

    store.overwrite(logged).await.unwrap().set_lsn(Lsn(7));
    let flush = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.sync().await }
    });
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(warnings.of(latched, "the log to be durable") + warnings.of(logged, "the log to be durable") > 0);
    flush.abort();

    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    let page = PageId::new(space, 5);
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(20))).on(IoOp::Write).times(1));
    fixture.ssd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(20))).on(IoOp::Write).times(1));
    fill(&mut store.overwrite(page).await.unwrap(), 5, 1);
    store.sync().await.unwrap();
    assert!(warnings.of(page, "a device to write it") > 0);
}

async fn holds_and_asks_again(store: Arc<PageStore>, page: PageId) {
    let _held = store.get_mut(page).await.unwrap();
    let again = store.get(page).await;
    // A release build waits for ever.
    assert!(cfg!(debug_assertions) && again.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_named_with_the_calls_that_led_there() {
    let _turn = TURN.lock().await;
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    let page = store.allocate(space).await.unwrap().id();
    let task = tokio::spawn(holds_and_asks_again(Arc::new(store), page));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(warnings.of(page, "holds_and_asks_again"), 0, "too early");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(warnings.of(page, "holds_and_asks_again"), 1, "once: {:?}", warnings.0);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_began_without_an_ssd_says_that_it_does_not_use_the_one_named() {
    let _turn = TURN.lock().await;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder = || PageStore::builder().directory(dir.path()).pool_bytes(1 << 20);
    // New; then with no SSD, one that no option names, one of a size, and one at a path.
    let path = Some(dir.path().join("ssd"));
    let cases = [(Some(0), None, false), (Some(0), None, false), (None, None, false)];
    for (bytes, path, warned) in cases.into_iter().chain([(Some(1 << 20), None, true), (None, path, true)]) {
        let warnings = Warnings::default();
        let _collecting = tracing::subscriber::set_default(warnings.clone());
        let builder = bytes.map_or_else(builder, |bytes| builder().ssd_bytes(bytes));
        let builder = path.iter().fold(builder, |builder, path| builder.ssd(path));
        builder.open().await.unwrap().close().await.unwrap();
        assert_eq!(warnings.say("the store has no SSD"), warned, "{bytes:?}, {path:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ssd_of_another_size_than_the_one_named_is_logged() {
    let _turn = TURN.lock().await;
    let fixture = Fixture::new();
    fixture.open().await.close().await.unwrap();
    for (pages, warned) in [(0, false), (1, true)] {
        let warnings = Warnings::default();
        let _collecting = tracing::subscriber::set_default(warnings.clone());
        let builder = fixture.builder().ssd_bytes((SSD_PAGES + pages) * PAGE);
        builder.open().await.unwrap().close().await.unwrap();
        assert_eq!(warnings.say("the SSD keeps the size"), warned, "{pages} pages more");
    }
}

/// What is not promised is said where it bites: in the line of the open, and by an inspection.
#[tokio::test]
async fn a_store_without_a_ring_or_with_pages_on_its_ssd_alone_says_so() {
    let _turn = TURN.lock().await;
    for (ring, mode, names) in [
        (0, SsdMode::WriteBack, &["no-ring", "ssd-alone"][..]),
        (64, SsdMode::WriteBack, &["ssd-alone"]),
        (64, SsdMode::ReadOnly, &[]),
    ] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let builder = || PageStore::builder().directory(dir.path()).pool_bytes(1 << 20);
        let opening = Warnings::default();
        let _collecting = tracing::subscriber::set_default(opening.clone());
        let new = builder().ring_pages(ring).ssd_bytes(4 << 20).ssd_mode(mode);
        new.open().await.unwrap().close().await.unwrap();
        let inspection = builder().inspect().await.unwrap();
        let text = inspection.to_string();
        let codes: Vec<String> = inspection
            .not_promised
            .iter()
            .map(|caveat| serde_json::to_value(caveat).unwrap().as_str().unwrap().to_owned())
            .collect();
        for name in ["no-ring", "ssd-alone"] {
            assert_eq!(opening.say(name), names.contains(&name), "{name}: {:?}", opening.0.lock().unwrap());
        }
        // A mode lasts until the close: by the manifest, the SSD may be used for write-back again.
        assert!(
            codes.contains(&"ssd-alone".to_owned()) && text.contains("promised  not: the loss of the SSD")
        );
        assert_eq!(codes.contains(&"no-ring".to_owned()), ring == 0, "{text}");
        assert_eq!(text.contains("promised  not: no doublewrite ring"), ring == 0, "{text}");
    }
}

/// A device that fails for days fills no disk with what is said about it.
#[tokio::test(start_paused = true)]
async fn pages_that_cannot_be_written_are_logged_once_for_each_cause() {
    let _turn = TURN.lock().await;
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    let fixture = Fixture::new();
    let (store, space) = opened(fixture.builder()).await;
    store.spaces().reserve(space, 20).await.unwrap();
    store.sync().await.unwrap();
    let logged = || warnings.0.lock().unwrap().iter().filter(|text| text.contains("not be written")).count();
    for round in 1..=2 {
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
        fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
        for no in 0..20 {
            fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, round);
        }
        // As a checkpoint that is tried again and again.
        for _ in 0..50 {
            store.sync().await.unwrap_err();
        }
        let errors = store.stats().pool.write_errors;
        assert!(errors > 500, "{errors}");
        // The device's error, and that the store refuses writes.
        assert!((1..=3).contains(&logged()), "{}, {:?}", logged(), warnings.0);
        fixture.hdd.clear_faults();
        fixture.ssd.clear_faults();
        store.ssd().readmit().await.unwrap();
        store.sync().await.unwrap();
        warnings.0.lock().unwrap().clear();
    }
}
