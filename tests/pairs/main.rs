//! Two operations at once: every pair of operations that may overlap, on simulated devices in virtual time.
//! Both complete, or one is refused with a typed error; none hangs; no page is lost, in this run, after a
//! close or after a crash; and each may be dropped at each of its awaits.
//!
//! By default a part of the cases runs. `PAGETIER_PAIRS=SECONDS` runs longer, and `PAGETIER_PAIRS=all` runs
//! each pair with each drop; `PAGETIER_PAIRS_ONLY=NAME` restricts both to the pairs with that operation, and
//! `NAME;NAME` to one pair. With `PAGETIER_PAIRS_TABLE=FILE`, the table of the document is written there.

#[path = "../fixture/mod.rs"]
mod fixture;

mod drive;
mod interface;
mod judge;
#[path = "../tidy/methods.rs"]
mod methods;
mod operations;
mod table;
mod world;

use drive::{Case, Met, Moment, run};
use operations::Operation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use table::Table;
use world::{Disks, Side};

/// The time that the test takes unless it is told otherwise.
const SECONDS: u64 = 20;
/// The violations after which it gives up.
const VIOLATIONS_MAX: usize = 400;

/// Every pair, in both orders.
fn pairs() -> Vec<[&'static Operation; 2]> {
    let only = std::env::var("PAGETIER_PAIRS_ONLY").ok();
    let wanted = |pair: &[&Operation; 2]| match &only {
        None => true,
        Some(only) => match only.split_once(';') {
            Some(both) => [(pair[0].name, pair[1].name), (pair[1].name, pair[0].name)].contains(&both),
            None => pair.iter().any(|operation| operation.name == only),
        },
    };
    operations::all()
        .flat_map(|first| operations::all().map(move |second| [first, second]))
        .filter(wanted)
        .collect()
}

/// Runs cases and collects their outcomes.
struct Runner {
    base: Disks,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    table: Table,
    violations: Vec<String>,
    cases: u64,
}

impl Runner {
    /// Returns how it ended, unless it violated something.
    fn case(&self, case: Case) -> Option<Met> {
        let ended = run(&self.base, case);
        let mut found = self.found.lock().unwrap();
        found.cases += 1;
        match ended {
            Ok(met) => {
                found.table.note(case, &met);
                Some(met)
            }
            Err(wrong) => {
                let said = format!("{case}: {wrong}");
                println!("{said}");
                found.violations.push(said);
                assert!(found.violations.len() < VIOLATIONS_MAX, "{}", found.violations.join("\n"));
                None
            }
        }
    }

    /// The pair without a drop; then with each drop, or until `until` with drops that `rng` chooses.
    fn pair(
        &self,
        operations: [&'static Operation; 2],
        seed: u64,
        until: Instant,
        rng: Option<&mut SmallRng>,
    ) {
        let plain = Case { operations, gap: Moment::Polls(1), dropped: None, seed };
        if plain.setup().is_none() {
            return;
        }
        let Some(met) = self.case(plain) else { return };
        match rng {
            Some(rng) => {
                while Instant::now() < until {
                    let case = drawn(plain, &met, rng);
                    self.case(case);
                }
            }
            None => each(plain, &met).for_each(|case| drop(self.case(case))),
        }
    }
}

/// The second begins at each await of the first, and at as many times of what the first does in tasks of its
/// own; each is dropped likewise.
fn each(plain: Case, met: &Met) -> impl Iterator<Item = Case> + use<> {
    let (polls, took) = (met.polls, met.took);
    let moments = move |side: Side, least: u32| {
        let (polls, took) = (polls[side as usize], took[side as usize]);
        let times = polls.clamp(6, 12);
        let times = (1..times).map(move |nth| Moment::Time(took * nth / times));
        (least..polls).map(Moment::Polls).chain(times)
    };
    let gaps: Vec<Moment> = moments(Side::First, 0).collect();
    let begun = gaps.clone().into_iter().map(|gap| (gap, None));
    let dropped = Side::BOTH.into_iter().flat_map(move |side| {
        let drops: Vec<Moment> = moments(side, 0).collect();
        let gaps = gaps.clone();
        drops.into_iter().enumerate().map(move |(nth, drop)| (gaps[nth * 7 % gaps.len()], Some((side, drop))))
    });
    let cases = begun.chain(dropped).enumerate();
    cases.map(move |(nth, (gap, dropped))| Case { gap, dropped, seed: plain.seed + nth as u64, ..plain })
}

/// A case of this pair by chance.
fn drawn(plain: Case, met: &Met, rng: &mut SmallRng) -> Case {
    let mut moment = |side: Side| {
        let (polls, took) = (met.polls[side as usize], met.took[side as usize]);
        match rng.random_bool(0.5) {
            true => Moment::Polls(rng.random_range(0..polls.max(1))),
            false => Moment::Time(took.mul_f64(rng.random())),
        }
    };
    let gap = moment(Side::First);
    let drops = Side::BOTH.map(|side| (side, moment(side)));
    let dropped = rng.random_bool(0.6).then(|| drops[rng.random_range(0..2)]);
    Case { gap, dropped, seed: rng.random_range(0..1 << 20), ..plain }
}

#[test]
fn no_two_operations_harm_each_other() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let base = runtime.block_on(Disks::closed_store());
    drop(runtime);
    let runner = Runner { base, found: Mutex::default() };
    let budget = std::env::var("PAGETIER_PAIRS").ok();
    let everything = budget.as_deref() == Some("all");
    let seconds = budget.and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let (begun, pairs) = (Instant::now(), pairs());
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let worker = |first: usize| {
        let mut rng = SmallRng::seed_from_u64(1 + first as u64);
        for (nth, operations) in pairs.iter().enumerate().skip(first).step_by(threads) {
            // Each pair gets its share of the time that is left.
            let left = Duration::from_secs(seconds).saturating_sub(begun.elapsed());
            let until = Instant::now() + left / (pairs.len() - nth).div_ceil(threads) as u32;
            runner.pair(*operations, nth as u64, until, (!everything).then_some(&mut rng));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|first| drop(scope.spawn(move || worker(first)))));
    let found = runner.found.into_inner().unwrap();
    println!("{} cases of {} pairs in {:.1?}", found.cases, pairs.len(), begun.elapsed());
    if let Some(path) = std::env::var_os("PAGETIER_PAIRS_TABLE") {
        std::fs::write(path, found.table.to_string()).unwrap();
    }
    assert!(found.violations.is_empty(), "{}", found.violations.join("\n"));
}
