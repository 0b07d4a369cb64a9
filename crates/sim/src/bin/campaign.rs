//! temp
use pagetier_sim::campaign::*;
use std::sync::atomic::AtomicBool;
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let mutation = std::env::args()
        .nth(3)
        .and_then(|n| pagetier::Mutation::ALL.into_iter().find(|m| format!("{m:?}") == n));
    let stop = AtomicBool::new(false);
    let mut t = Totals::default();
    let start = std::time::Instant::now();
    for seed in args[0]..args[1] {
        let mut plan = Plan::from_seed(seed);
        plan.mutation = mutation;
        for w in std::env::var("WITH").unwrap_or_default().split_whitespace() {
            plan.set(w).unwrap();
        }
        if std::env::var("SHOW").is_ok() {
            println!("{plan:?}");
        }
        if let Err(v) = run_seed(&plan, &stop, &mut t) {
            println!("seed {seed}: {} at {} after {}", v.what, v.place, v.after_crashes);
            if mutation.is_some() {
                println!("caught after {} crashes", t.crashes);
                break;
            }
        }
    }
    let s = start.elapsed().as_secs_f64();
    if mutation.is_none() {
        for (n, c) in t.coverage.rows() {
            println!("{c:>10} {n}");
        }
    }
    println!(
        "{} seeds {} lives {} crashes ({} in recovery) {} pages {:?} {:.1}s {:.0}/s",
        t.seeds,
        t.lives,
        t.crashes,
        t.crashes_in_recovery,
        t.pages_checked,
        t.faults,
        s,
        t.crashes as f64 / s
    );
}
