//! Keeps the pages of single spaces off the SSD.

use crate::tier::SsdTier;
use pagetier_page::{PageId, SpaceId};

impl SsdTier {
    /// Keeps the pages of `space` off the SSD from now on (`off`), or does not: they get no copies there, and
    /// those that they have leave in the background. Only copies are written home first. Images that pages
    /// leave in the doublewrite ring on their way home are no copies. Holds until the tier is closed, also
    /// under another policy and on another SSD.
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
