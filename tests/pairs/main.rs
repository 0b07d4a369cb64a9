//! Two operations at once: every pair of operations that may overlap, on simulated devices in virtual time. Both
//! complete, or one is refused with a typed error; none hangs; no page is lost, in this run, after a close or
//! after a crash; and each may be dropped at each of its awaits.
//!
//! By default a part of the cases runs. `PAGETIER_PAIRS=SECONDS` runs longer, and `PAGETIER_PAIRS=all` runs each
//! pair with each drop; `PAGETIER_PAIRS_ONLY=NAME` restricts both to the pairs with that operation,
//! and `NAME;NAME` to one pair. With
//! `PAGETIER_PAIRS_TABLE=FILE`, the table of the document is written there.

#[path = "../fixture/mod.rs"]
mod fixture;

mod drive;
mod interface;
mod judge;
mod operations;
mod table;
mod world;

use drive::{Case, run};
use operations::Operation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};
use table::Table;
use world::{Disks, Side};

/// The time that the test takes unless it is told otherwise.
const SECONDS: u64 = 40;
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
    table: Table,
    violations: Vec<String>,
    cases: u64,
}

impl Runner {
    /// Returns the polls of both operations.
    fn case(&mut self, case: Case) -> Option<[u32; 2]> {
        self.cases += 1;
        match run(&self.base, case) {
            Ok(met) => {
                self.table.note(case, &met);
                Some(met.polls)
            }
            Err(wrong) => {
                let said = format!("{case}: {wrong}");
                println!("{said}");
                self.violations.push(said);
                assert!(self.violations.len() < VIOLATIONS_MAX, "{}", self.violations.join("\n"));
                None
            }
        }
    }

    /// The pair without a drop, then with drops until `until`, chosen by `rng` or, without it, all of them.
    fn pair(
        &mut self,
        operations: [&'static Operation; 2],
        seed: u64,
        until: Instant,
        rng: Option<&mut SmallRng>,
    ) {
        let plain = Case { operations, gap: 1, dropped: None, seed };
        if plain.setup().is_none() {
            return;
        }
        let Some(polls) = self.case(plain) else { return };
        // The second begins at each await of the first.
        let gaps = polls[0].max(1);
        let drops = Side::BOTH.iter().flat_map(|side| (0..polls[*side as usize]).map(|n| (*side, n)));
        let drops: Vec<(Side, u32)> = drops.collect();
        let Some(rng) = rng else {
            for gap in 0..gaps {
                self.case(Case { gap, seed: seed + u64::from(gap), ..plain });
            }
            for (nth, dropped) in drops.into_iter().enumerate() {
                self.case(Case { dropped: Some(dropped), gap: nth as u32 * 7 % gaps, ..plain });
            }
            return;
        };
        while Instant::now() < until && !drops.is_empty() {
            let (dropped, gap) = (drops[rng.random_range(0..drops.len())], rng.random_range(0..gaps));
            let dropped = rng.random_bool(0.7).then_some(dropped);
            self.case(Case { dropped, gap, seed: rng.random_range(0..1 << 20), ..plain });
        }
    }
}

#[test]
fn no_two_operations_harm_each_other() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let base = runtime.block_on(Disks::closed_store());
    drop(runtime);
    let mut runner = Runner { base, table: Table::default(), violations: Vec::new(), cases: 0 };
    let budget = std::env::var("PAGETIER_PAIRS").ok();
    let everything = budget.as_deref() == Some("all");
    let seconds = budget.and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let (begun, pairs) = (Instant::now(), pairs());
    let mut rng = SmallRng::seed_from_u64(1);
    for (nth, operations) in pairs.iter().enumerate() {
        // Each pair gets its share of the time that is left.
        let left = Duration::from_secs(seconds).saturating_sub(begun.elapsed());
        let until = Instant::now() + left / (pairs.len() - nth) as u32;
        runner.pair(*operations, nth as u64, until, (!everything).then_some(&mut rng));
    }
    println!("{} cases of {} pairs in {:.1?}", runner.cases, pairs.len(), begun.elapsed());
    assert!(runner.violations.is_empty(), "{}", runner.violations.join("\n"));
    if let Some(path) = std::env::var_os("PAGETIER_PAIRS_TABLE") {
        std::fs::write(path, runner.table.to_string()).unwrap();
    }
}
