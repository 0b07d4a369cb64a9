//! The SSD's write budget, over simulated hours.

use crate::fixture::{Fixture, PAGES, grown, read, write, zoned};
use pagetier::{PageStore, SpaceId, stats::BudgetStats};
use pagetier_devio::Device;
use std::time::Duration;

const HOURS: u64 = 6;
/// Requests per hour.
const REQUESTS: u64 = 1200;

/// Makes requests at a steady pace, one in `writes` of them a change. Returns the bytes written to the SSD.
async fn hours(fixture: &Fixture, store: &PageStore, space: SpaceId, writes: u64) -> u64 {
    let before = fixture.ssd.stats().totals().write.bytes;
    let mut dice = 7_u32;
    for request in 0..HOURS * REQUESTS {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let no = (dice >> 8) % PAGES;
        if request % writes == 0 {
            write(store, space, no, 1).await.unwrap();
        } else {
            assert_eq!(read(store, space, no).await.unwrap(), 1);
        }
        tokio::time::sleep(Duration::from_millis(3_600_000 / REQUESTS)).await;
    }
    fixture.ssd.stats().totals().write.bytes - before
}

async fn run(policy: &str, writes: u64, bytes_per_day: Option<u64>) -> (u64, Option<BudgetStats>) {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    store.ssd().set_write_budget(bytes_per_day);
    let written = hours(&fixture, &store, space, writes).await;
    store.validate().unwrap();
    (written, store.stats().ssd.write_budget)
}

#[tokio::test(start_paused = true)]
async fn writes_fall_to_the_budget_under_every_policy() {
    for policy in ["cac", "auto", "lru2", "mv-fifo", "tac"] {
        let (free, none) = run(policy, u64::MAX, None).await;
        assert_eq!(none, None);
        // A quarter of the writes without a budget.
        let budget = free * 24 / HOURS / 4;
        let (written, stats) = run(policy, u64::MAX, Some(budget)).await;
        let stats = stats.unwrap();
        // Allows for the initial reserve, and for the overdraft at which the price stops optional writes.
        let allowed = budget * (HOURS + 3) / 24;
        assert!(written <= allowed, "{policy}: {written} bytes of {allowed}; {free} without a budget");
        assert!(written * 2 >= budget * HOURS / 24, "{policy}: {written} bytes of {allowed}");
        assert_eq!(stats.bytes_per_day, budget);
        assert!(stats.overdrawn_bytes < budget / 12, "{policy}: {stats:?}");
        // A second run gives the same result.
        assert_eq!(run(policy, u64::MAX, Some(budget)).await, (written, Some(stats)), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ample_budget_changes_nothing() {
    let (free, _) = run("cac", 10, None).await;
    let (written, stats) = run("cac", 10, Some(1 << 40)).await;
    assert_eq!((written, stats.map(|stats| stats.factor)), (free, Some(1.0)));
}

/// Changed pages are written regardless of the budget, and the statistics show that it does not suffice.
#[tokio::test(start_paused = true)]
async fn a_budget_below_the_required_writes_is_reported() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned("cac")).open().await.unwrap();
    store.ssd().set_write_budget(Some(100_000));
    let space = grown(&store).await;
    let written = hours(&fixture, &store, space, 2).await;
    let stats = store.stats();
    let budget = stats.ssd.write_budget.unwrap();
    assert!(written > 100_000 && budget.overdrawn_bytes > 0 && budget.factor > 100.0, "{budget:?}");
    let rate = written * 24 / HOURS;
    assert!(budget.written_per_day > rate / 2 && budget.written_per_day < rate * 2, "{budget:?}, {rate}");
    assert!(stats.to_string().contains("write budget"), "{stats}");
    store.ssd().set_write_budget(None);
    assert_eq!(store.stats().ssd.write_budget, None);
    store.close().await.unwrap();
}
