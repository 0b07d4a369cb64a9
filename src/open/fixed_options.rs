//! Options that an existing store cannot adopt: each is an error, or a warning that says when it takes
//! effect.
//!
//! | option | for an existing store |
//! | --- | --- |
//! | `page_size`, `page_bytes` | an error unless it is the store's |
//! | `ring_pages` | an error unless the ring was made with it |
//! | `ssd_bytes` | a warning unless the SSD was made with it: the size that a new SSD gets |
//! | `ssd_bytes`, `ssd`, if the store has no SSD | a warning: they take effect once `ssd().readmit()` puts the SSD into use |
//! | `costs`, of a calibration | an error unless the store remembers one |

use crate::config::choices::{CostSource, Place};
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::contents::Manifest;
use pagetier_page::PageSize;
use pagetier_ssdcache::Layout;

impl Config {
    /// Checks the options against the SSD, or the ring's file, of an existing store.
    pub(super) fn check_kept(&self, found: &Layout, page_size: PageSize) -> Result<(), OpenError> {
        self.check_ring(found.ring_pages)?;
        if found.slots > 0 && self.options.ssd_bytes.is_some() {
            self.warn_of_other_size(found, page_size);
        }
        Ok(())
    }

    /// An operator may have attached an SSD of another size than the engine names: that must not keep the
    /// engine from opening its store.
    fn warn_of_other_size(&self, found: &Layout, page_size: PageSize) {
        let named = self.layout(page_size, Some(found.ring_pages));
        // Compare slots, not bytes: sizes that differ by less than a slot are one layout.
        if named.is_ok_and(|named| named.slots == found.slots) {
            return;
        }
        tracing::warn!(
            used_bytes = found.end(),
            ssd_bytes = self.ssd_size(),
            "the SSD keeps the size with which it was put into use; a new one gets `ssd_bytes`"
        );
    }

    /// Checks the options against a ring of `pages`.
    pub(super) fn check_ring(&self, pages: u32) -> Result<(), OpenError> {
        match self.options.ring_pages.filter(|asked| *asked != pages) {
            Some(asked) => {
                let why = format!("the store's ring has {pages} pages, not {asked}: omit the option");
                Err(OpenError::BadOption { option: "ring_pages", why })
            }
            None => Ok(()),
        }
    }

    /// Checks the options against the manifest of an existing store.
    pub(super) fn check_known(&self, manifest: &Manifest, knows_costs: bool) -> Result<(), OpenError> {
        let calibrates = matches!(self.options.costs, CostSource::CalibratedMs(_));
        if calibrates && !knows_costs && !manifest.is_unused() {
            let why = "a calibration writes, so it measures new stores only: give the costs instead, which \
                       `pagetier::calibrate` measures on scratch files of the same devices";
            return Err(OpenError::BadOption { option: "costs", why: why.into() });
        }
        Ok(())
    }

    /// Whether the options name an SSD.
    pub(super) fn names_ssd(&self) -> bool {
        self.ssd_size() > 0
            && (self.options.ssd_bytes.is_some() || !matches!(self.ssd_place(), Place::Default))
    }
}
