//! Clients that break off, that come together, that send nonsense, and that are too many.

use crate::world::{Load, Raw, World};
use pagetier::{DrainOptions, SsdMode};
use pagetier_control::{Client, Request};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::time::Duration;
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_breaks_off_stops_its_drain_and_loses_nothing() {
    let world = World::new().await;
    let control = world.listen().await;
    world.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_millis(1500))).on(IoOp::Write));
    let mut client = world.client().await;
    let mut lines = 0;
    let drain = Request::Drain { off: true };
    let ask = client.ask(&drain, |progress| {
        assert_eq!(progress.what, "draining");
        lines += 1;
    });
    assert!(timeout(Duration::from_millis(700), ask).await.is_err(), "the drain was too quick to break off");
    assert!(lines > 0);
    drop(client);
    // The request no longer holds the store once its client is gone.
    let pages = world.hdd.ops();
    while std::sync::Arc::strong_count(&world.store) > 1 {
        assert!(world.hdd.ops() < pages + 8, "the request goes on without its client");
        sleep(Duration::from_millis(10)).await;
    }
    world.hdd.clear_faults();
    assert_eq!(world.store.stats().ssd.mode, SsdMode::WriteBack);
    world.has(|_| 1).await;
    // It can be asked for again.
    assert_eq!(world.done(Request::Drain { off: false }).await.value["left"], 0);
    control.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_do_not_disturb_each_other() {
    let world = World::new().await;
    let control = world.listen().await;
    let load = Load::on(&world);
    for _ in 0..3 {
        let (off, scrubbed, resized, drained) = tokio::join!(
            world.ask(Request::Drain { off: true }),
            world.ask(Request::Scrub { pages_per_second: 0.0, heal: true }),
            world.ask(Request::ResizePool { bytes: 400_000 }),
            world.ask(Request::Drain { off: false }),
        );
        assert_eq!(off.unwrap().value["off"], true);
        assert!(scrubbed.unwrap().complete && drained.is_ok() && resized.is_ok());
        // Of two that attach, one finds it done, or both are told so.
        let attach = || world.ask(Request::Attach { ssd: None, bytes: None });
        let (one, two) = tokio::join!(attach(), attach());
        assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
        assert_eq!(world.store.stats().ssd.mode, SsdMode::WriteBack);
    }
    // Several requests over one connection.
    let mut client = world.client().await;
    for bytes in [300_000, 271_500] {
        assert!(client.ask(&Request::ResizePool { bytes }, |_| ()).await.unwrap().complete);
    }
    let versions = load.end().await;
    world.has(|no| versions[no as usize]).await;
    control.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let control = world.listen().await;
    let before = world.store.stats().ssd;
    let wrong: [&str; 9] = [
        "drain",
        "{}",
        "[]",
        "{\"do\":\"format\"}",
        "{\"do\":\"drain\",\"of\":true}",
        "{\"do\":\"stat\",\"off\":true}",
        "{\"do\":\"set-mode\",\"mode\":\"sideways\"}",
        "{\"do\":\"resize-pool\",\"bytes\":-1}",
        "\u{0}\u{1}\"",
    ];
    let mut client = Raw::connect(&world).await;
    assert!(client.line().await.starts_with("{\"hello\":{\"protocol\":1,"));
    for line in wrong {
        client.send(format!("{line}\n").as_bytes()).await;
        let reply = client.reply().await;
        assert!(reply.contains("refused") && reply.contains("not a request"), "{line}: {reply}");
    }
    // The connection goes on; empty lines are nothing.
    client.send(b"\n\r\n{\"do\":\"stat\"}\n").await;
    assert!(client.reply().await.starts_with("{\"answer\":{\"complete\":true"));
    // A request without an end is not kept: the server would run out of memory.
    let mut long = Raw::connect(&world).await;
    long.line().await;
    long.send(&vec![b'x'; 64 << 10]).await;
    assert!(long.reply().await.contains("at most 65536 bytes"));
    assert_eq!(long.line().await, "");
    // As `echo '{"do":"stat"}' | nc -U` does: it sends all that it wants, without a newline, and listens.
    let mut echo = Raw::connect(&world).await;
    echo.line().await;
    echo.send(b"{\"do\":\"scrub\",\"pages_per_second\":0}").await;
    echo.half_close().await;
    assert!(echo.reply().await.contains(" checked, 0 damaged"));
    assert_eq!(echo.line().await, "");
    let after = world.store.stats().ssd;
    assert_eq!((before.mode, before.slots), (after.mode, after.slots));
    world.has(|_| 1).await;
    control.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_bounded() {
    let world = World::new().await;
    let control = world.listen().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(world.client().await);
    }
    let mut ninth = world.client().await;
    let why = ninth.ask(&Request::Stat {}, |_| ()).await.unwrap_err();
    assert!(why.to_string().contains("later"), "{why}");
    silent.pop();
    // Its place is free as soon as the server has noticed.
    while world.ask(Request::Stat {}).await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    // The store's own calls are not bounded by that.
    assert_eq!(world.store.ssd().drain(DrainOptions::new()).await.left, 0);
    control.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_during_a_request_is_told_and_releases_the_store() {
    let world = World::new().await;
    let control = world.listen().await;
    world.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_millis(1500))).on(IoOp::Write));
    let mut client: Client = world.client().await;
    let asked = tokio::spawn(async move { client.ask(&Request::Drain { off: false }, |_| ()).await });
    sleep(Duration::from_millis(300)).await;
    control.end().await;
    assert_eq!(std::sync::Arc::strong_count(&world.store), 1);
    let why = asked.await.unwrap().unwrap_err();
    assert!(why.to_string().contains("before it answered"), "{why}");
    world.hdd.clear_faults();
    world.store.shutdown().await.unwrap();
}
