//! Stores under hostile policies for pool and SSD: nothing is lost, nothing hangs.

use crate::fixture::{Fixture, PAGES, grown, read, write, zoned};
use pagetier::{Retention, SpaceHints};
use std::time::Duration;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(3600);

/// Writes every page several times, with a `sync` in between, and cuts the power.
async fn survives(seed: u64, ring_pages: u32) {
    let fixture = Fixture::with_latency(Duration::from_millis(2), Duration::from_micros(200));
    pagetier_testing::hostile::register();
    let policy = format!("hostile:{seed}");
    let open = |fixture: &Fixture| {
        let builder =
            fixture.builder().ring_pages(ring_pages).pool_policy(&policy).ssd_policy(zoned(&policy));
        builder.open()
    };
    let store = open(&fixture).await.unwrap();
    let space = grown(&store).await;
    let mut versions = vec![1; PAGES as usize];
    for round in 2..5 {
        for step in 0..PAGES {
            let no = (step * 7 + round) % (PAGES / 2) + step % 2 * (PAGES / 2);
            write(&store, space, no, round).await.unwrap();
            versions[no as usize] = round;
            let other = (step * 11) % PAGES;
            assert_eq!(read(&store, space, other).await.unwrap(), versions[other as usize], "seed {seed}");
        }
        store.sync().await.unwrap();
        // The policy that is replaced lists the pages in memory, for the next one and for the space's hints.
        store.policies().set_pool(format!("hostile:{}", seed + u64::from(round)).as_str()).unwrap();
        let hints = SpaceHints::new().retention(Retention::ScanOnly);
        store.spaces().set_hints(space, hints).unwrap();
        store.spaces().set_hints(space, SpaceHints::new()).unwrap();
    }
    let cut = fixture.after_power_cut(seed);
    store.close().await.unwrap();
    let store = open(&cut).await.unwrap();
    for (no, version) in (0..).zip(versions) {
        assert_eq!(read(&store, space, no).await.unwrap(), version, "seed {seed}, page {no}");
    }
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_answer_of_a_policy_loses_a_page_or_hangs_a_call() {
    for seed in 0..40 {
        timeout(LONG, survives(seed, 8)).await.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_without_a_ring() {
    for seed in 0..40 {
        timeout(LONG, survives(seed, 0)).await.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}

/// Whether the conformance suite finds fault with a policy.
fn is_refused(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(check).is_err()
}

#[test]
fn the_conformance_suite_refuses_policies_that_break_their_word() {
    use pagetier_policy::{PoolPolicyFactory, SsdPolicyFactory};
    use pagetier_testing::conformance;
    for seed in 0..10 {
        let policy = pagetier_testing::hostile::Hostile::of(seed);
        assert!(is_refused(|| conformance::check_pool(|params| PoolPolicyFactory::build(policy, params))));
        assert!(is_refused(|| conformance::check_ssd(|params| SsdPolicyFactory::build(policy, params))));
    }
}
