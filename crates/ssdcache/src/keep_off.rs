//! Keeps the pages of single spaces off the SSD.

use crate::tier::SsdTier;
use pagetier_page::{PageId, SpaceId};

impl SsdTier {
    /// With `off`, keeps the pages of `space` off the SSD from now on; without, admits them again. Pages that
    /// are kept off get no copies there, and their existing copies are removed in the background: only copies
    /// are written home first. Images in the doublewrite ring are not copies. Holds until the tier is closed,
    /// also under another policy and on another SSD.
    pub fn keep_off(&self, space: SpaceId, off: bool) {
        self.core.state.lock().slots.keep_off(space, off);
        self.core.wake.notify_one();
    }

    /// Whether pages of the space of `page` may get copies on the SSD.
    #[must_use]
    pub fn admits(&self, page: PageId) -> bool {
        self.core.state.lock().slots.admits(page)
    }
}
