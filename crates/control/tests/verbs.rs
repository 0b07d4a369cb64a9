//! Every verb on a running store: idle, under load, and while its SSD fails.

use crate::world::{Load, PAGES, POOL_BYTES, World};
use pagetier::SsdMode;
use pagetier_control::Request;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinSet;

fn policies(pool: &str, ssd: &str) -> Request {
    Request::SetPolicy { pool: Some(pool.into()), ssd: Some(ssd.into()) }
}

fn mode(mode: SsdMode) -> Request {
    Request::SetMode { mode }
}

/// Every verb once, on a store whose SSD works.
async fn every_verb(world: &World) {
    let store = &world.store;
    let stat = world.done(Request::Stat {}).await;
    assert_eq!((&stat.value["spaces"][0]["name"], &stat.value["lost_pages"]), (&"t".into(), &0.into()));
    let drained = world.done(Request::Drain { off: false }).await;
    assert_eq!((&drained.value["left"], &drained.value["off"]), (&0.into(), &false.into()));
    assert_eq!(store.stats().ssd.mode, SsdMode::WriteBack);
    for to in [SsdMode::ReadOnly, SsdMode::WriteThrough, SsdMode::WriteBack] {
        world.done(mode(to)).await;
        assert_eq!(store.stats().ssd.mode, to);
    }
    let scrubbed = world.done(Request::Scrub { pages_per_second: 0.0, heal: true }).await;
    assert_eq!(scrubbed.value["damaged"], 0);
    let set = world.done(policies("cflru", "mv-fifo")).await;
    assert_eq!((&set.value["pool"], &set.value["ssd"]), (&"cflru".into(), &"mv-fifo".into()));
    world.done(policies("auto", "auto")).await;
    assert_eq!(
        world.done(Request::SetBudget { bytes_per_day: Some(1 << 30) }).await.value["bytes_per_day"],
        1 << 30
    );
    assert!(store.stats().ssd.write_budget.is_some());
    world.done(Request::SetBudget { bytes_per_day: None }).await;
    assert!(store.stats().ssd.write_budget.is_none());
    world.done(Request::ResizePool { bytes: 500_000 }).await;
    world.done(Request::ResizePool { bytes: POOL_BYTES }).await;
    assert_eq!(world.done(Request::Shrink { space: None, all: true }).await.value["spaces"][0]["name"], "t");
    world.done(Request::Shrink { space: Some("t".into()), all: false }).await;
    let chain = world.dir().join("chain");
    let backup = || Request::Backup { to: chain.clone(), full: false, bytes_per_second: None };
    // Two at once: one waits for the other, and continues it.
    let (one, two) = tokio::join!(world.done(backup()), world.done(backup()));
    let (first, second) = if one.value["number"] == 1 { (one, two) } else { (two, one) };
    assert!(first.value["pages"] == PAGES && second.value["number"] == 2, "{first:?} {second:?}");
    assert!(second.value["full_because"].is_null() && second.value["log"] == false, "{second:?}");
    // The SSD goes, comes back, and is replaced.
    assert_eq!(world.done(Request::Drain { off: true }).await.value["off"], true);
    assert_eq!(store.stats().ssd.mode, SsdMode::Off);
    assert_eq!(world.done(Request::Drain { off: true }).await.text, "the store has no SSD\n");
    world.done(Request::Attach { ssd: None, bytes: None }).await;
    world.done(mode(SsdMode::Off)).await;
    assert_eq!(world.done(Request::Readmit {}).await.value["formatted"], true);
    assert_eq!(world.done(Request::Readmit {}).await.value["formatted"], false);
    let (next, third) = (world.dir().join("next"), world.dir().join("third"));
    let replaced = world.done(Request::ReplaceSsd { with: next.clone(), bytes: Some(1 << 20) }).await;
    assert_eq!(replaced.value["bytes"], 1 << 20);
    world.done(mode(SsdMode::Off)).await;
    let attached = world.done(Request::Attach { ssd: Some(third.clone()), bytes: Some(2 << 20) }).await;
    assert_eq!(attached.value["ssd"], third.to_str().unwrap());
    // Of the size that the one before has.
    let replaced = world.done(Request::ReplaceSsd { with: next, bytes: None }).await;
    assert!(replaced.value["bytes"].as_u64().unwrap() >= 1 << 20, "{replaced:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_works_on_a_store_without_load() {
    let world = World::new().await;
    let control = world.listen().await;
    every_verb(&world).await;
    world.has(|_| 1).await;
    control.end().await;
    world.store.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_works_under_load() {
    let world = World::new().await;
    let control = world.listen().await;
    let load = Load::on(&world);
    every_verb(&world).await;
    let versions = load.end().await;
    world.has(|no| versions[no as usize]).await;
    control.end().await;
    world.store.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_named_and_change_nothing() {
    let world = World::new().await;
    let control = world.listen().await;
    let replace = |with: &str, bytes| Request::ReplaceSsd { with: PathBuf::from(with), bytes };
    let letters = world.dir().join("letters");
    std::fs::write(&letters, vec![b'x'; 1 << 20]).unwrap();
    let cases = [
        (Request::Attach { ssd: None, bytes: None }, "has an SSD"),
        (Request::Shrink { space: Some("x".into()), all: false }, "\"x\""),
        (Request::Shrink { space: None, all: false }, "one space"),
        (Request::Shrink { space: Some("t".into()), all: true }, "one space"),
        (Request::SetPolicy { pool: None, ssd: None }, "name a policy"),
        // The first name is good; the change must not be made by halves.
        (policies("cflru", "no-such"), "no-such"),
        (Request::ResizePool { bytes: 1 }, ""),
        (replace("relative", None), "absolute"),
        (replace("/no/such/folder/ssd", Some(1 << 20)), "/no/such"),
        (replace(letters.to_str().unwrap(), None), "letters"),
        (replace("/ssd", Some(0)), "0 bytes"),
        (Request::Scrub { pages_per_second: -1.0, heal: true }, "at least 0"),
        (Request::Backup { to: "chain".into(), full: false, bytes_per_second: None }, "absolute"),
    ];
    for (request, why) in cases {
        let what = format!("{request:?}");
        let refused = world.refused(request).await;
        assert!(refused.contains(why) && refused.len() > 10, "{what}: {refused}");
    }
    assert_eq!(world.store.policies().pool().to_string(), "auto");
    assert!(std::fs::read(&letters).unwrap().iter().all(|b| *b == b'x'));
    world.done(mode(SsdMode::Off)).await;
    let refused = world.refused(replace(letters.to_str().unwrap(), None)).await;
    assert!(refused.contains("attach"), "{refused}");
    world.has(|_| 1).await;
    control.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_on_an_ssd_that_fails_meanwhile_end_and_a_readmission_mends_it() {
    // At once: each waits for its own failing SSD most of the time.
    let verbs = [
        Request::Drain { off: false },
        Request::Drain { off: true },
        Request::ReplaceSsd { with: PathBuf::from("/dev/null/none"), bytes: Some(4 << 20) },
        Request::Scrub { pages_per_second: 0.0, heal: true },
        mode(SsdMode::Off),
        policies("cflru", "lc"),
        Request::ResizePool { bytes: 400_000 },
        Request::Shrink { space: None, all: true },
        Request::Readmit {},
        Request::Stat {},
    ];
    let mut cases = verbs.into_iter().map(while_the_ssd_fails).collect::<JoinSet<_>>();
    let mut failed = 0;
    while let Some(case) = cases.join_next().await {
        failed += case.unwrap();
    }
    assert!(failed >= 6, "only {failed} requests met the failure");
}

/// Asks for `verb` while the SSD fails, and again afterwards; returns how many of the requests failed.
async fn while_the_ssd_fails(verb: Request) -> u32 {
    let mut failed = 0;
    let world = World::with_latency(Duration::from_millis(2)).await;
    let control = world.listen().await;
    let load = Load::on(&world);
    let fails = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.ssd.set_present(false);
    };
    // It ends, whatever it leads to: the store says what it can do without its SSD.
    let (answer, ()) = tokio::join!(world.ask(verb.clone()), fails);
    // Unless the SSD was gone from use before it failed.
    if world.store.stats().ssd.mode != SsdMode::Off {
        let again = world.ask(verb.clone()).await;
        failed += u32::from(!answer.is_ok_and(|answer| answer.complete));
        failed += u32::from(!again.is_ok_and(|answer| answer.complete));
        world.done(Request::Stat {}).await;
        world.ssd.set_present(true);
        let readmitted = world.ask(Request::Readmit {}).await.unwrap();
        assert_eq!(readmitted.value["lost"], 0, "{verb:?}: {readmitted:?}");
    }
    load.end().await;
    world.has(|_| 1).await;
    world.done(Request::Drain { off: false }).await;
    assert_eq!(world.store.stats().ssd.dirty_pages, 0);
    world.has(|_| 1).await;
    control.end().await;
    world.store.shutdown().await.unwrap();
    failed
}

/// The open of a FIFO waits for another process: it is refused, and the store, which has one thread, goes
/// on.
#[tokio::test]
async fn a_fifo_is_refused_as_an_ssd_and_stops_nothing() {
    let world = World::new().await;
    let control = world.listen().await;
    let fifo = world.dir().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for bytes in [None, Some(1 << 20)] {
        let why = world.refused(Request::ReplaceSsd { with: fifo.clone(), bytes }).await;
        assert!(why.contains("neither a regular file nor a block device"), "{why}");
    }
    world.has(|_| 1).await;
    control.end().await;
    world.store.shutdown().await.unwrap();
}
