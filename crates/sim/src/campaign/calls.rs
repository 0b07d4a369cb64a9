//! Calls that change how the SSD is used, as the model sees them.

/// The calls that may add to a loss, and those that were dropped and may still run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SsdCalls {
    pub(super) running: u32,
    /// The number of the last call.
    pub(super) last: u32,
    /// The last call when one was dropped.
    pub(super) background: Option<u32>,
    pub(super) acknowledging: bool,
    /// A call failed: what it would have recorded may show after a crash.
    pub(super) in_doubt: bool,
}

impl SsdCalls {
    /// Whether a call is running, perhaps without its caller.
    pub(super) const fn are_running(&self) -> bool {
        self.running > 0 || self.background.is_some()
    }
}
