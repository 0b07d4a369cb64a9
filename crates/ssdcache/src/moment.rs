//! The state of the protocol at a crash, by which the simulator measures its coverage (feature `mutations`).

use crate::tier::SsdTier;

/// The state of the protocol at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
#[allow(missing_docs, reason = "not part of the interface; the names say it")]
pub struct Moment {
    pub capturing: bool,
    pub starved: bool,
    pub full: bool,
    pub writable: usize,
    pub waiting: usize,
    pub writing: usize,
    pub abandoned: usize,
    pub retired: usize,
    pub retired_read: usize,
    pub dirty: usize,
    pub clean: usize,
    pub pending: usize,
    pub going_home: usize,
    pub laps: u64,
    pub moving: usize,
    pub moved_over: usize,
    pub backing: usize,
    pub reading: usize,
    pub renewing: usize,
    pub writing_home: usize,
    pub admissions: usize,
    pub ring_held: u64,
    pub ring_pages: u32,
    pub journal_used: u64,
    pub journal_blocks: u32,
    pub ssd_error: bool,
    pub refusing: bool,
}

impl SsdTier {
    /// The state at this moment; `None` if its lock is taken, since devices call this during an operation.
    #[doc(hidden)]
    #[must_use]
    pub fn moment(&self) -> Option<Moment> {
        let core = &self.core;
        let state = core.state.try_lock()?;
        let mut moment = Moment {
            writing_home: state.home.pages_writing(),
            going_home: state.home.pages_held(),
            backing: state.home.pages_backed(),
            admissions: state.admissions,
            ring_held: state.home.ring_used(),
            ring_pages: core.layout().ring_pages,
            journal_used: state.home.journal_used(),
            journal_blocks: core.layout().journal_blocks,
            ssd_error: state.ssd_error.is_some(),
            refusing: core.refusing.cause().is_some(),
            ..Moment::default()
        };
        state.slots.moment(&mut moment);
        Some(moment)
    }
}
