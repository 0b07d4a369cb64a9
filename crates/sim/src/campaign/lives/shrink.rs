//! Reduces a failing scenario: fewer lives, operations, tasks and pages, fewer kinds of work, no faults.

use crate::campaign::draw::plan::Plan;
use crate::campaign::report::violation::Violation;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tries smaller scenarios by `run` as long as one of them fails, at most `tries` of them or until `stop`.
/// Returns the last failing one.
#[must_use]
pub fn shrink(
    found: Violation,
    tries: u32,
    stop: &AtomicBool,
    run: impl Fn(&Plan) -> Result<(), Violation>,
) -> Violation {
    let mut best = found;
    let mut left = tries;
    'smaller: loop {
        for plan in smaller(&best.plan) {
            if left == 0 || stop.load(Ordering::Relaxed) {
                return best;
            }
            left -= 1;
            // Any violation counts, even a different one.
            if let Err(violation) = run(&plan) {
                best = violation;
                continue 'smaller;
            }
        }
        return best;
    }
}

/// Scenarios with one reduction, the largest first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut less = plan.clone();
        change(&mut less);
        if less != *plan {
            all.push(less);
        }
    };
    with(&|p| p.lives = (p.lives / 2).max(1));
    with(&|p| p.tasks = 1);
    with(&|p| p.ops = (p.ops / 2).max(4));
    with(&|p| p.faults = false);
    // All kinds at once before one at a time: most violations need none of them, and tries are few.
    with(&|p| p.without = (1 << Plan::KINDS.len()) - 1);
    for kind in 0..Plan::KINDS.len() {
        with(&|p| p.without |= 1 << kind);
    }
    with(&|p| p.hostile = [None; 2]);
    with(&|p| p.gate_us = 0);
    with(&|p| p.hot_ms = 0);
    with(&|p| (p.page_kib, p.sector_bytes) = (4, 512));
    with(&|p| p.lives = (p.lives - 1).max(1));
    with(&|p| p.tasks = (p.tasks - 1).max(1));
    with(&|p| p.ops = (p.ops * 3 / 4).max(4));
    with(&|p| p.pages = (p.pages / 2).max(4));
    with(&|p| p.images = (p.images / 2).max(1));
    all
}
