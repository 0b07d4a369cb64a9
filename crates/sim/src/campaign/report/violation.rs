//! What a run of the campaign reports.

use super::totals::Totals;
use crate::campaign::draw::plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A violation of the contract, and where it happened.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The scenario that shows it.
    pub plan: Box<Plan>,
    /// The life, the boundary and the outcome.
    pub place: String,
    /// The number of crashes examined in this scenario before.
    pub after_crashes: u64,
}

/// Runs `run`, and reports its failure or panic as a violation at `place`, which it may refine.
pub(crate) fn judged(
    plan: &Plan,
    mut place: String,
    totals: &mut Totals,
    run: impl FnOnce(&mut String, &mut Totals) -> Result<(), String>,
) -> Result<(), Violation> {
    let before = totals.crashes;
    // A failed assertion of the store is a finding, too. The panic may leave the run half-way: of all
    // that it had in hand, only counters are used again.
    let ended = catch_unwind(AssertUnwindSafe(|| run(&mut place, totals)));
    let ended = ended.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))));
    let after_crashes = totals.crashes - before;
    ended.map_err(|what| Violation { what, plan: Box::new(plan.clone()), place, after_crashes })
}

/// The message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "?".to_owned())
}
