//! Calls that change how the SSD is used, as the model sees them.

/// The calls that may add to a loss, and those that were dropped and may still run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SsdCalls {
    pub(crate) running: u32,
    /// The number of the last call.
    pub(crate) last: u32,
    /// The last call when one was dropped.
    pub(crate) background: Option<u32>,
    pub(crate) acknowledging: bool,
    /// A call failed: what it would have recorded may show after a crash.
    pub(crate) unverified: bool,
}

impl SsdCalls {
    /// Whether a call is running, perhaps without its caller.
    pub(crate) const fn are_running(&self) -> bool {
        self.running > 0 || self.background.is_some()
    }
}
