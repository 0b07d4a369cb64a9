//! The state of the protocol at a crash (feature `probes`): what the executor knows.

use crate::exec::tier::SsdTier;
use crate::protocol::slots::Moment;

impl SsdTier {
    /// The state at this moment; `None` if its lock is taken, since devices call this during an operation.
    #[doc(hidden)]
    pub fn moment(&self) -> Option<Moment> {
        let core = &self.core;
        let state = core.state.try_lock()?;
        let mut moment = Moment {
            writing_home: state.home.pages_with(|claims| claims.writing),
            going_home: state.home.pages_with(|claims| claims.held),
            backing: state.home.pages_with(|claims| claims.backed),
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
