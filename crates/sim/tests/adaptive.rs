//! The default policies: their cost relative to fixed settings, the settings that they follow, and that runs
//! are reproducible.

use pagetier_policy::{
    Costs, FramePolicyParams, PageId, PoolPolicy, SlotPolicyParams, SpaceId, SsdPolicy, SsdSetting,
};
use pagetier_sim::suite::{CLASSICS, Contender, Half, Part, Row, Suite, judge};
use pagetier_sim::{Reference, TierParams, Tiers};
use pagetier_tpcc::args::PolicyPair;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::AtomicBool;

const DEFAULT: &str = "auto+auto";

/// A pair that a store cannot select.
const PEERS: &str = "peer-arc+peer-arc:all";

fn every_part(seed: u64, only: &str, references: usize, pairs: &[&str], jobs: usize) -> Vec<Row> {
    let pairs: Vec<Contender> = pairs.iter().map(|pair| pair.parse().unwrap()).collect();
    let mut suite = Suite::new(vec![seed], pairs);
    (suite.longest, suite.only) = (references, Some(only.to_owned()));
    suite.half = if only.contains("drift") { Half::Tune } else { Half::Report };
    suite.run(jobs, &AtomicBool::new(false), |_| {}).unwrap()
}

/// After the warm-up.
fn rows(seed: u64, only: &str, references: usize, pairs: &[&str], jobs: usize) -> Vec<Row> {
    let mut rows = every_part(seed, only, references, pairs, jobs);
    rows.retain(|row| row.part == Part::Steady);
    rows
}

/// The costs of simulated I/O are deterministic, so bounds can be asserted.
#[test]
fn the_default_is_within_its_bounds_on_a_small_suite() {
    let fixed: Vec<String> = CLASSICS.iter().map(ToString::to_string).collect();
    let pairs = [&[DEFAULT], &CLASSICS[..]].concat();
    let rows = rows(4711, "/2", 120_000, &pairs, 2);
    let judged = judge(&rows, &fixed);
    let default = judged.iter().find(|one| one.pair == DEFAULT).unwrap();
    assert_eq!(default.cases, 9);
    assert!(default.mean_percent < 0.0 && default.worst_percent < 10.0, "{default:?}");
    // If every policy did well, the suite would show nothing.
    assert!(judged.iter().all(|one| one.pair == DEFAULT || one.mean_percent > 5.0), "{judged:?}");
}

#[test]
fn the_same_seed_costs_the_same_whatever_runs_beside_it() {
    let pairs = [DEFAULT, "lru+auto:pin=plain"];
    let once = rows(5, "drift", 30_000, &pairs, 1);
    assert_eq!(once.len(), 6);
    assert_eq!(once, rows(5, "drift", 30_000, &pairs, 3));
    assert_ne!(once, rows(6, "drift", 30_000, &pairs, 1));
}

#[test]
fn what_is_known_is_not_replayed_and_peers_stand_beside() {
    let pairs = [DEFAULT, "gd2l+cac", PEERS].map(|pair| pair.parse().unwrap());
    let mut suite = Suite::new(vec![5], pairs.to_vec());
    (suite.longest, suite.only, suite.half) = (20_000, Some("drift/1".into()), Half::Tune);
    let run = |suite: &Suite| {
        let mut rows = suite.run(1, &AtomicBool::new(false), |_| {}).unwrap();
        rows.retain(|row| row.part == Part::Whole);
        rows
    };
    let rows = run(&suite);
    let pairs: Vec<&str> = rows.iter().map(|row| row.pair.as_str()).collect();
    assert_eq!(pairs, [DEFAULT, "gd2l+cac", PEERS]);
    suite.known = vec![
        Row { cost_ms: 1.0, ..rows[1].clone() },
        Row { cost_ms: 2.0, ssd_pages: rows[0].ssd_pages + 1, ..rows[0].clone() },
    ];
    let again = run(&suite);
    assert_eq!((&again[0], again[1].cost_ms, &again[2]), (&rows[0], 1.0, &rows[2]));
}

#[test]
fn a_run_is_costed_in_parts_that_are_the_same_for_every_pair() {
    let pairs = [DEFAULT, "gd2l+cac"];
    let mut all = every_part(5, "drift/2", 130_000, &pairs, 2);
    all.retain(|row| row.workload == "drift/2");
    let joined = every_part(5, " > ", 3_000, &pairs, 2);
    assert_eq!(joined.len(), 5 * 2 * 2 * pairs.len());
    let parts = |rows: &[Row], pair: &str| -> Vec<Part> {
        let of_pair = rows.iter().filter(|row| row.pair == pair && row.workload == rows[0].workload);
        of_pair.map(|row| row.part).collect()
    };
    for pair in pairs {
        assert_eq!(parts(&all, pair), [Part::Whole, Part::Steady, Part::First4, Part::First10]);
        assert_eq!(parts(&joined, pair), [Part::Joined, Part::JoinedLate]);
    }
}

/// Every peer runs in both tiers, and its tables agree with the tiers' at every step.
#[test]
fn peers_track_what_the_tiers_hold() {
    let peers = ["lru", "s3-fifo", "arc", "lirs", "sieve", "2q", "w-tinylfu"];
    for (at, peer) in peers.into_iter().enumerate() {
        let admission = ["all", "second", "secondclean", "tinylfu"][at % 4];
        let pair: Contender = format!("peer-{peer}+peer-{peer}:{admission}").parse().unwrap();
        assert_eq!(pair.to_string(), format!("peer-{peer}+peer-{peer}:{admission}"));
        let mut tiers = pair.build(TierParams::new(20, 60));
        let mut rng = SmallRng::seed_from_u64(at as u64);
        for _ in 0..3_000 {
            let most = rng.random_range(20..200);
            let no = rng.random_range(0..most);
            let reference = if rng.random_bool(0.3) { Reference::write } else { Reference::read };
            tiers.apply(reference(page(no)));
            tiers.validate().unwrap();
        }
        assert!(tiers.counts().ssd_hits > 0, "{pair}");
    }
    assert!("peer-x+none".parse::<Contender>().is_err() && "lru+peer-arc:x".parse::<Contender>().is_err());
}

/// A table that is larger than the SSD is scanned again and again beside a hot set. Pages that were only
/// scanned must not evict each other from the SSD without end.
#[test]
fn scans_do_not_write_the_ssd_without_end() {
    let scanned = |pair: &str| {
        let mut tiers = tiers(pair);
        let mut rng = SmallRng::seed_from_u64(9);
        for at in 0..60 * SSD {
            let hot = page(rng.random_range(0..SSD / 2));
            tiers.apply(Reference::read(hot));
            let scan = Reference::read(page(100_000 + at % (3 * SSD)));
            tiers.apply(Reference { sequential: true, ..scan });
        }
        tiers.validate().unwrap();
        tiers.counts().ssd_writes
    };
    for setting in SsdSetting::all().filter(|setting| setting.name() != "second-sight") {
        let writes = scanned(&format!("lru+auto:pin={}", setting.name()));
        assert!(writes < u64::from(6 * SSD), "{}: {writes}", setting.name());
    }
}

const POOL: u32 = 100;
const SSD: u32 = 1000;

fn tiers(pair: &str) -> Tiers {
    sized(pair, POOL, SSD)
}

fn sized(pair: &str, frames: u32, slots: u32) -> Tiers {
    pagetier_rivals::register();
    let pair: PolicyPair = pair.parse().unwrap();
    let pool = pair.pool.build(&FramePolicyParams::new(frames as usize, Costs::PAPER));
    let ssd = pair.ssd.build(&SlotPolicyParams::new(Costs::PAPER, slots as usize, frames as usize));
    Tiers::new(TierParams::new(frames, slots), pool, ssd)
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
        ["half-life-4", "half-life-1", "half-life-0.25", "second-sight"].contains(&in_window),
        "{in_window}"
    );
    default.validate().unwrap();
    // From here on, the cost is close to that of the best setting used from the start.
    let next = || window(20 * SSD).skip(10 * SSD as usize);
    let pinned = |setting: SsdSetting| {
        let mut pinned = tiers(&format!("auto+auto:pin={}", setting.name()));
        cost_ms(&mut pinned, circle(40 * SSD).chain(window(10 * SSD)));
        cost_ms(&mut pinned, next())
    };
    let pinned: Vec<f64> = SsdSetting::all().map(pinned).collect();
    let (best, worst) = pinned.iter().fold((f64::MAX, 0.0_f64), |(a, b), &ms| (a.min(ms), b.max(ms)));
    let default = cost_ms(&mut default, next());
    assert!(default < 1.03 * best && 3.0 * best < worst, "{default} ms; {pinned:?}");
}

/// A hot spot that moves, over a pool and an SSD of any size. `forever` keeps the places where it was.
#[test]
fn a_pool_of_any_size_follows_a_hot_spot_that_moves() {
    for frames in [16, 24, 32, 48, 64, 96] {
        let (hot, stays) = (frames * 5 / 4, 50 * frames);
        let ms = |pair: &str| {
            let mut rng = SmallRng::seed_from_u64(5);
            let spot = (0..2_000 * frames).map(|at| {
                let begins = 100_000 + at / stays * hot;
                let cold = rng.random_bool(0.1);
                page(if cold { rng.random_range(0..40 * frames) } else { begins + rng.random_range(0..hot) })
            });
            cost_ms(&mut sized(pair, frames, 10 * frames), spot.map(Reference::read))
        };
        let (default, forever, lru2) = (ms(DEFAULT), ms("auto+auto:pin=forever"), ms("gd2l+lru2"));
        assert!(default < 0.6 * forever && default < 0.95 * lru2, "{frames}: {default} {forever} {lru2}");
    }
}

#[test]
fn a_pinned_default_stays_where_it_is() {
    let mut pinned = tiers("lru+auto:pin=half-life-1");
    cost_ms(&mut pinned, circle(40 * SSD));
    let ssd = pinned.ssd_policy().choice().unwrap();
    assert_eq!((ssd.setting, ssd.changes), ("half-life-1", 0));
}

#[test]
fn adapting_takes_a_bounded_share_of_the_pools_memory() {
    for (frames, slots) in [(1_000, 10_000), (4_000, 16_000), (50_000, 1_000_000)] {
        let slot_params = SlotPolicyParams::new(Costs::PAPER, slots, frames);
        let before: SsdPolicy = "cac".parse().unwrap();
        let mut ssd = SsdPolicy::default().build(&slot_params);
        let mut pool = PoolPolicy::Auto.build(&FramePolicyParams::new(frames, Costs::PAPER));
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
        assert!(share < 0.02, "{frames} frames, {slots} slots: {:.2}%", 100.0 * share);
    }
}
