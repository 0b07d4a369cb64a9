//! What the store reports through `tracing`.
//!
//! These tests have a process of their own and run one at a time: a span or event that another thread first
//! reaches while a subscriber is being installed may stay disabled.

mod fixture;
#[cfg(feature = "spans")]
mod spans;
mod warnings;

/// Held by the test that runs.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
