//! Determines which pages are lost with an SSD that is given up.

use super::Builder;
use super::check::PreparedSsd;
use crate::manifest::Manifest;
use crate::runs::OnlyCopies;

impl Builder {
    /// The pages that opening with `prepared` gives up; `None` if the SSD (or the ring's file) is the one
    /// that the store last used, or the store is new.
    pub(super) fn what_is_lost(&self, manifest: &Manifest, prepared: &PreparedSsd) -> Option<OnlyCopies> {
        if prepared.format.is_none() || manifest.is_unused() {
            return None;
        }
        let known = manifest.ssd_pages.clone().filter(|_| manifest.is_clean());
        let lost = known.unwrap_or_else(|| OnlyCopies::all_of(manifest));
        tracing::warn!(
            runs = lost.runs.len(),
            coarse = lost.coarse,
            "the SSD that the store last used is given up"
        );
        Some(lost)
    }
}
