//! Calls that free pages share a record of the manifest: see `spaces/free.rs`.

use crate::error::Error;
use crate::manifest::page_runs::PageRuns;
use pagetier_page::SpaceId;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Calls that free pages and wait for the manifest's mutex: the first to get it records all.
#[derive(Debug, Default)]
pub(crate) struct WaitingFrees(Mutex<Vec<Arc<FreeCall>>>);

/// What a call frees, and what came of it.
#[derive(Debug)]
pub(crate) struct FreeCall {
    pub(crate) space: SpaceId,
    pub(crate) ranges: Vec<Range<u32>>,
    recorded: Mutex<Option<Recorded>>,
}

/// What a call has yet to wait for.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// The pages that this call has taken out.
    pub(crate) freed: PageRuns,
    /// Pages that other calls are freeing.
    pub(crate) leaving: PageRuns,
    pub(crate) result: Result<(), Error>,
}

impl WaitingFrees {
    pub(crate) fn join(&self, space: SpaceId, ranges: Vec<Range<u32>>) -> Arc<FreeCall> {
        let call = Arc::new(FreeCall { space, ranges, recorded: Mutex::default() });
        self.0.lock().push(Arc::clone(&call));
        call
    }

    pub(crate) fn take(&self) -> Vec<Arc<FreeCall>> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl FreeCall {
    /// What came of it; `None` if the call that took it along was cut short.
    pub(crate) fn recorded(&self) -> Option<Recorded> {
        self.recorded.lock().take()
    }

    pub(crate) fn settle(&self, recorded: Recorded) {
        *self.recorded.lock() = Some(recorded);
    }
}
