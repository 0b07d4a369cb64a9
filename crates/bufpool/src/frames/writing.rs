//! From which LSN on redo would need the versions that are being written.
//!
//! A frame has one LSN, that of the first change since its last copy was staged. The copy's own LSN is here
//! from then on, since only as many pages are written at a time as there are staging buffers.
//!
//! **No change is without its LSN until it is written**, for any reader that looks at the frame first and
//! here afterwards. An LSN that redo needs makes these moves, each of which leaves it in both places for a
//! moment:
//!
//! 1. A change notes it in the frame, under the exclusive latch.
//! 2. Staging enters it here, then clears the frame's, under the shared latch.
//! 3. The end of a write that failed lowers the frame's to it, and *leaves it here*. Otherwise a reader could
//!    look at the frame before this step, and here after it.
//! 4. The next staging of the page replaces it by the frame's, which is no larger since step 3.
//! 5. The end of a write that succeeded removes it: redo does not need it any more.
//!
//! So at the moment at which a reader looks at the frame, the LSN is there or here; and if it is here, it
//! stays until redo does not need it. A frame that loses its page without a write forgets both.

use crate::frames::frame::NO_LSN;
use crate::sync::Mutex;
use pagetier_page::Lsn;
use pagetier_policy::FrameId;
use rustc_hash::FxHashMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Writing(Mutex<FxHashMap<FrameId, u64>>);

/// The memory for the LSNs of `staging` writes at a time, in a table that may be a quarter full.
pub(crate) fn bytes_for(staging: usize) -> usize {
    staging * 4 * size_of::<(FrameId, u64)>()
}

impl Writing {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(FxHashMap::default()))
    }

    /// Notes the LSN of the version in `frame` that was staged. [`NO_LSN`] leaves what there is.
    pub(crate) fn begin(&self, frame: FrameId, lsn: u64) {
        if lsn != NO_LSN {
            self.0.lock().insert(frame, lsn);
        }
    }

    /// Forgets the version in `frame`: it was written, or the frame has lost its page.
    pub(crate) fn forget(&self, frame: FrameId) {
        self.0.lock().remove(&frame);
    }

    /// The LSN of the version in `frame`, or [`NO_LSN`].
    pub(crate) fn lsn(&self, frame: FrameId) -> u64 {
        self.0.lock().get(&frame).copied().unwrap_or(NO_LSN)
    }

    /// The smallest LSN of all; [`NO_LSN`] if there is none.
    pub(crate) fn oldest(&self) -> u64 {
        self.0.lock().values().copied().min().unwrap_or(NO_LSN)
    }

    /// Lowers each of these frames' LSNs to that of the version in it. The caller has read them before.
    pub(crate) fn lower(&self, frames: &mut [(FrameId, Lsn)]) {
        let writing = self.0.lock();
        if writing.is_empty() {
            return;
        }
        for (frame, lsn) in frames {
            if let Some(written) = writing.get(frame) {
                lsn.0 = lsn.0.min(*written);
            }
        }
    }
}
