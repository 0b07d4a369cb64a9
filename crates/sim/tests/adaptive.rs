//! The default policies: their cost relative to fixed settings, the settings that they follow, and that runs
//! are reproducible.

use pagetier_policy::{
    Costs, FramePolicyParams, PageId, PoolPolicy, SlotPolicyParams, SpaceId, SsdPolicy, SsdSetting,
};
use pagetier_sim::suite::{CLASSICS, REGRET, Row, Suite, judge};
use pagetier_sim::{Reference, TierParams, Tiers};
use pagetier_tpcc::args::PolicyPair;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::AtomicBool;

const DEFAULT: &str = "auto+auto";

fn rows(seed: u64, only: &str, references: usize, pairs: &[&str], jobs: usize) -> Vec<Row> {
    let pairs: Vec<PolicyPair> = pairs.iter().map(|pair| pair.parse().unwrap()).collect();
    let mut suite = Suite::new(seed, pairs);
    (suite.quick, suite.references, suite.only) = (true, references, Some(only.to_owned()));
    suite.run(jobs, &AtomicBool::new(false), |_| {}).unwrap()
}

/// The costs of simulated I/O are deterministic, so bounds can be asserted.
#[test]
fn the_default_is_within_its_bounds_on_a_small_suite() {
    let fixed: Vec<String> = CLASSICS.iter().map(ToString::to_string).collect();
    let pairs = [&[DEFAULT], &CLASSICS[..]].concat();
    let rows = rows(4711, "/2", 120_000, &pairs, 2);
    let judged = judge(&rows, &fixed);
    let default = judged.iter().find(|one| one.pair == DEFAULT).unwrap();
    assert_eq!(default.cases, 17);
    assert!(default.mean_percent < 0.0 && default.worst_percent < 10.0, "{default:?}");
    // If every policy did well, the suite would show nothing.
    assert!(judged.iter().all(|one| one.pair == DEFAULT || one.mean_percent > 5.0), "{judged:?}");
}

#[test]
fn the_same_seed_costs_the_same_whatever_runs_beside_it() {
    let pairs = [DEFAULT, "auto:pin=lru+auto:pin=plain"];
    let once = rows(5, "drift", 30_000, &pairs, 1);
    assert_eq!(once.len(), 6);
    assert_eq!(once, rows(5, "drift", 30_000, &pairs, 3));
    assert_ne!(once, rows(6, "drift", 30_000, &pairs, 1));
}

#[test]
fn what_is_known_is_not_replayed_and_the_second_family_stands_beside() {
    let mut suite = Suite::new(5, vec![DEFAULT.parse().unwrap(), "gd2l+cac".parse().unwrap()]);
    (suite.quick, suite.references, suite.only, suite.regret) = (true, 20_000, Some("drift/1".into()), true);
    let run = |suite: &Suite| suite.run(1, &AtomicBool::new(false), |_| {}).unwrap();
    let rows = run(&suite);
    let pairs: Vec<&str> = rows.iter().map(|row| row.pair.as_str()).collect();
    assert_eq!(pairs, [DEFAULT, "gd2l+cac", REGRET]);
    suite.known = vec![
        Row { cost_ms: 1.0, ..rows[1].clone() },
        Row { cost_ms: 2.0, ssd_pages: rows[0].ssd_pages + 1, ..rows[0].clone() },
    ];
    let again = run(&suite);
    assert_eq!((&again[0], again[1].cost_ms, &again[2]), (&rows[0], 1.0, &rows[2]));
}

const POOL: u32 = 100;
const SSD: u32 = 1000;

fn tiers(pair: &str) -> Tiers {
    let pair: PolicyPair = pair.parse().unwrap();
    let pool = pair.pool.build(&frame_params(POOL as usize, SSD as usize));
    let ssd = pair.ssd.build(&SlotPolicyParams::new(Costs::PAPER, SSD as usize, POOL as usize));
    Tiers::new(TierParams::new(POOL, SSD), pool, ssd)
}

fn frame_params(frames: usize, slots: usize) -> FramePolicyParams {
    FramePolicyParams { slots, ..FramePolicyParams::new(frames, Costs::PAPER) }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// A loop over twice as many pages as the SSD holds: keeping any half of them is best, keeping the latest is
/// worst.
fn circle(length: u32) -> impl Iterator<Item = Reference> {
    (0..length).map(|at| Reference::read(page(at % (2 * SSD))))
}

/// A moving window of pages: only the latest pages are requested again.
fn window(length: u32) -> impl Iterator<Item = Reference> {
    let mut rng = SmallRng::seed_from_u64(3);
    (0..length).map(move |at| Reference::read(page(100_000 + at / 8 + rng.random_range(0..700))))
}

fn cost_ms(tiers: &mut Tiers, references: impl Iterator<Item = Reference>) -> f64 {
    let before = *tiers.counts();
    references.for_each(|reference| tiers.apply(reference));
    let counts = tiers.counts().since(&before);
    counts.hdd_ms(&Costs::PAPER) + counts.ssd_ms(&Costs::PAPER)
}

fn setting(tiers: &Tiers) -> &'static str {
    tiers.ssd_policy().choice().unwrap().setting
}

#[test]
fn a_change_of_workload_is_followed_within_ten_accesses_per_slot() {
    let mut default = tiers(DEFAULT);
    cost_ms(&mut default, circle(40 * SSD));
    let in_circle = setting(&default);
    assert!(["plain", "forever", "half-life-16"].contains(&in_circle), "{in_circle}");
    cost_ms(&mut default, window(10 * SSD));
    let in_window = setting(&default);
    assert!(
        ["half-life-4", "half-life-1", "half-life-0.25", "segmented-lru"].contains(&in_window),
        "{in_window}"
    );
    default.validate().unwrap();
    // From here on, the cost is close to that of the best setting used from the start.
    let next = || window(20 * SSD).skip(10 * SSD as usize);
    let pinned = |setting: SsdSetting| {
        let mut pinned = tiers(&format!("auto:pin=weighted+auto:pin={}", setting.name()));
        cost_ms(&mut pinned, circle(40 * SSD).chain(window(10 * SSD)));
        cost_ms(&mut pinned, next())
    };
    let pinned: Vec<f64> = SsdSetting::all().map(pinned).collect();
    let (best, worst) = pinned.iter().fold((f64::MAX, 0.0_f64), |(a, b), &ms| (a.min(ms), b.max(ms)));
    let default = cost_ms(&mut default, next());
    assert!(default < 1.03 * best && 3.0 * best < worst, "{default} ms; {pinned:?}");
}

#[test]
fn a_pinned_default_stays_where_it_is() {
    let mut pinned = tiers("auto:pin=lru+auto:pin=half-life-1");
    cost_ms(&mut pinned, circle(40 * SSD));
    let (pool, ssd) = (pinned.pool_policy().choice().unwrap(), pinned.ssd_policy().choice().unwrap());
    assert_eq!((pool.setting, pool.changes), ("lru", 0));
    assert_eq!((ssd.setting, ssd.changes), ("half-life-1", 0));
}

#[test]
fn adapting_takes_a_bounded_share_of_the_pools_memory() {
    for (frames, slots) in [(1_000, 10_000), (4_000, 16_000), (50_000, 1_000_000)] {
        let slot_params = SlotPolicyParams::new(Costs::PAPER, slots, frames);
        let before: SsdPolicy = "cac:ageing,write-at-hand,rewrite,sketch".parse().unwrap();
        let mut ssd = SsdPolicy::Auto.build(&slot_params);
        let mut pool = PoolPolicy::Auto.build(&frame_params(frames, slots));
        // Ten times as many pages as there is room for.
        for no in 0..slots as u32 {
            use pagetier_policy::{Access, FrameId, Location, Millis};
            ssd.read(page(no), Some(Location::Hdd), Access::Random, Millis(0));
            ssd.left_pool(page(no), Millis(0));
            pool.insert(FrameId(no % frames as u32), page(no), Location::Hdd, Access::Random);
        }
        let more = ssd.memory_bytes().saturating_sub(before.build(&slot_params).memory_bytes())
            + pool.extra_memory_bytes();
        let share = more as f64 / (frames * 16_384) as f64;
        assert!(share < 0.02, "{frames} frames, {slots} slots: {:.2} %", 100.0 * share);
    }
}
