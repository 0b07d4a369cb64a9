//! Which pages go with an SSD that is lost for good.

use super::Builder;
use super::open::{PreparedSsd, id_text};
use crate::loss::Lost;
use crate::manifest::Manifest;

impl Builder {
    /// What opening with `prepared` gives up; `None`: the SSD is the one that the store was last used with, or there was none.
    pub(super) fn what_is_lost(&self, manifest: &Manifest, prepared: &PreparedSsd) -> Option<Lost> {
        let expected = manifest.ssd.as_ref()?;
        let formatted = prepared.format.as_ref()?;
        debug_assert_ne!(*expected, id_text(formatted.ssd));
        let known = manifest.ssd_pages.clone().filter(|_| manifest.clean);
        Some(Lost { known })
    }
}
