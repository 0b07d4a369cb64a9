//! What the store says through `tracing`.
//!
//! A process of its own, and one test at a time: a span or event that another thread reaches for the first
//! time just when a subscriber appears may be disabled for good.

mod fixture;
mod long_waits;
#[cfg(feature = "spans")]
mod spans;

/// Held by the test that runs.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
