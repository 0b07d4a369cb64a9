//! What a run of the campaign reports.

use super::plan::Plan;

/// A violation of the contract, and where it happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
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

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "?".to_owned())
}
