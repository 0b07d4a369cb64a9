//! The spans of the feature `spans`: what has one, and its fields.

use crate::TURN;
use crate::fixture::{Fixture, PAGES, grown, read, write};
use pagetier::{Location, PageId};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

/// A span as a subscriber sees it.
#[derive(Clone, Default, Debug)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    ended: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

impl Seen {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Collects the spans of the store, on the thread of a test.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    /// Span `n` has the id `n + 1`.
    spans: Vec<Seen>,
    handles: BTreeMap<u64, usize>,
    entered: Vec<u64>,
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("pagetier::")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut collected = self.0.lock().unwrap();
        let mut seen = Seen { name: attributes.metadata().name(), ..Seen::default() };
        assert_eq!(*attributes.metadata().level(), tracing::Level::DEBUG);
        seen.parent = collected.entered.last().copied();
        attributes.record(&mut seen);
        collected.spans.push(seen);
        let id = collected.spans.len() as u64;
        collected.handles.insert(id, 1);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.0.lock().unwrap().spans[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        // A guard held across an await would be left in another task's poll.
        assert_eq!(self.0.lock().unwrap().entered.pop(), Some(id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        *self.0.lock().unwrap().handles.get_mut(&id.into_u64()).unwrap() += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut collected = self.0.lock().unwrap();
        let handles = collected.handles.get_mut(&id.into_u64()).unwrap();
        *handles -= 1;
        let closed = *handles == 0;
        collected.spans[id.into_u64() as usize - 1].ended = closed;
        closed
    }
}

impl Spans {
    /// The spans of this name since [`Spans::forget`], each with the name of its parent.
    fn named(&self, name: &str) -> Vec<(Seen, &'static str)> {
        let collected = self.0.lock().unwrap();
        let parent = |seen: &Seen| seen.parent.map_or("", |id| collected.spans[id as usize - 1].name);
        let named = collected.spans.iter().filter(|seen| seen.name == name);
        named.map(|seen| (seen.clone(), parent(seen))).collect()
    }

    fn forget(&self) {
        for seen in &mut self.0.lock().unwrap().spans {
            seen.name = "";
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_work_has_spans_and_hits_have_none() {
    let _turn = TURN.lock().await;
    let spans = Spans::default();
    let _seen = tracing::subscriber::set_default(spans.clone());
    let (_fixture, store, space) = Fixture::synced(1).await;

    // The open recovers, which ends with a checkpoint.
    let recoveries = spans.named("recovery");
    let [(recovery, "")] = &recoveries[..] else { panic!("{recoveries:?}") };
    assert_eq!((recovery.field("epoch"), recovery.field("clean")), ("1", "true"));
    assert!(recovery.ended && recovery.field("pages") == "0", "{recovery:?}");
    let checkpoints = spans.named("checkpoint");
    let (first, of) = &checkpoints[0];
    assert_eq!(*of, "recovery");
    assert!(first.field("generation").parse::<u64>().unwrap() > 0 && first.ended, "{first:?}");
    assert!(first.field("bytes").parse::<u64>().unwrap() > 0, "{first:?}");
    assert!(spans.named("io").iter().any(|(io, of)| *of == "checkpoint" && io.field("class") == "Meta"));

    // A miss says where the page was; its read is below it.
    for (tier, device) in [(Location::Ssd, "ssd"), (Location::Hdd, "hdd")] {
        let absent = |page: &PageId| store.try_get(*page).is_none() && store.location(*page) == tier;
        let page = (0..PAGES).map(|no| PageId::new(space, no)).find(absent).unwrap();
        spans.forget();
        read(&store, space, page.no).await.unwrap();
        let misses = spans.named("miss");
        let [(miss, _)] = &misses[..] else { panic!("{misses:?}") };
        assert_eq!((miss.field("page"), miss.field("tier")), (&*page.to_string(), &*format!("{tier:?}")));
        assert!(miss.ended && miss.field("access") == "Random" && miss.field("error").is_empty());
        let ios = spans.named("io");
        let (io, _) = ios.iter().find(|(_, of)| *of == "miss").unwrap();
        assert_eq!(
            ["device", "op", "class", "bytes"].map(|name| io.field(name)),
            [&*format!("\"{device}\""), "Read", "Demand", "4096"]
        );
        assert!(io.field("offset").parse::<u64>().unwrap() > 0 && io.ended);

        // A hit has no span.
        spans.forget();
        read(&store, space, page.no).await.unwrap();
        store.get_mut(page).await.unwrap();
        let demanded = spans.named("io").iter().any(|(io, _)| io.field("class") == "Demand");
        assert!(spans.named("miss").is_empty() && !demanded);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_miss_records_its_error() {
    let _turn = TURN.lock().await;
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let absent = (0..PAGES).find(|no| store.try_get(PageId::new(space, *no)).is_none()).unwrap();
    let spans = Spans::default();
    let _seen = tracing::subscriber::set_default(spans.clone());
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read));
    read(&store, space, absent).await.unwrap_err();
    let misses = spans.named("miss");
    let (miss, _) = misses.last().unwrap();
    assert!(miss.field("error").contains("I/O error") && miss.field("tier").is_empty(), "{miss:?}");
    let ios = spans.named("io");
    assert!(ios.iter().any(|(io, of)| *of == "miss" && io.field("error").contains("I/O error")), "{ios:?}");
    fixture.hdd.clear_faults();
    spans.forget();
    write(&store, space, absent, 2).await.unwrap();
    store.sync().await.unwrap();
    let ios = spans.named("io");
    assert!(ios.iter().any(|(io, _)| io.field("op") == "Write" && io.field("class") == "Ring"), "{ios:?}");
}
