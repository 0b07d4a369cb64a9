//! Extreme geometries: a store without a ring, without an SSD, with a ring of one batch, with fewer slots
//! than a batch, with the smallest zone. Each writes, syncs, crashes, and reads what was synced.

use crate::fixture::{Fixture, PAGE, expect_all, grown, write_all};
use pagetier::Builder;
use pagetier_page::PageSize;
use pagetier_ssdcache::{Layout, SLOTS_MIN};
use std::time::Duration;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(3600);

const POLICIES: [&str; 7] = ["cac", "cc", "lru2", "tac", "mv-fifo", "mv-fifo-gsc", "doublewrite"];

async fn works(policy: &str, zone: &str, with: impl Fn(Builder) -> Builder) {
    let mut fixture = Fixture::new();
    let open = |fixture: &Fixture| with(fixture.builder().ssd_policy(format!("{policy}:zone={zone}"))).open();
    let store = open(&fixture).await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    drop(store);
    for life in 0..3 {
        fixture = fixture.after_power_cut(life);
        let store = open(&fixture).await.unwrap();
        expect_all(&store, space, life as u32 + 1).await;
        write_all(&store, space, life as u32 + 2).await;
        store.sync().await.unwrap();
        assert_eq!(store.validate(), Ok(()));
        if life == 1 {
            store.close().await.unwrap();
        }
    }
}

async fn all_work(what: &str, zone: &str, with: impl Fn(Builder) -> Builder) {
    for policy in POLICIES {
        let done = timeout(LONG, works(policy, zone, &with)).await;
        done.unwrap_or_else(|_| panic!("{policy}, {what}: hangs"));
    }
}

/// The smallest possible SSD.
fn smallest(ring_pages: u32) -> u64 {
    Layout::for_bytes(0, PageSize::MIN, ring_pages).unwrap_err().needed
}

#[tokio::test(start_paused = true)]
async fn no_ring() {
    all_work("no ring", "30", |builder| builder.ring_pages(0)).await;
}

#[tokio::test(start_paused = true)]
async fn no_ssd() {
    for ring in [0, 1, 8] {
        let done = timeout(LONG, works("cac", "30", |builder| builder.ssd_bytes(0).ring_pages(ring))).await;
        done.unwrap_or_else(|_| panic!("ring of {ring}: hangs"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ring_of_one_page_and_of_one_batch() {
    for ring in [1, 2] {
        all_work("a small ring", "30", |builder| builder.ring_pages(ring)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn as_few_slots_as_can_be() {
    for ring in [0, 1, 8] {
        let bytes = smallest(ring);
        let layout = Layout::for_bytes(bytes, PageSize::MIN, ring).unwrap();
        assert_eq!((layout.slots, layout.end()), (SLOTS_MIN, bytes));
        all_work("few slots", "30", |builder| builder.ssd_bytes(bytes).ring_pages(ring)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_zone_as_small_as_can_be() {
    let bytes = smallest(8) + 30 * PAGE;
    for zone in ["0.001", "100"] {
        all_work("zone", zone, |builder| builder.ssd_bytes(bytes)).await;
    }
}
