//! Options that an existing store cannot take are errors or take effect; none is ignored.
//!
//! | option | for an existing store |
//! | --- | --- |
//! | `page_size`, `page_bytes` | an error unless it is the store's |
//! | `ssd_bytes`, `ring_pages` | an error unless the SSD (or the ring's file) was made with it |
//! | `ssd_bytes`, `ssd`, `ssd_device`, if the store has no SSD | a blank SSD is put into use; the store's own earlier one stays off, with a warning |
//! | `calibrate` | an error unless the store remembers a calibration or `costs` are given |

use super::{Builder, Place};
use crate::error::OpenError;
use crate::id::id_text;
use crate::manifest::Manifest;
use crate::shared::Shared;
use pagetier_page::PageSize;
use pagetier_ssdcache::{Found, Layout, identify};
use std::sync::Arc;

impl Builder {
    /// Checks the options against the SSD, or the ring's file, of an existing store.
    pub(super) fn check_kept(&self, found: &Layout, page_size: PageSize) -> Result<(), OpenError> {
        let bad = |option, why: String| Err(OpenError::BadOption { option, why });
        if let Some(asked) = self.ring_pages.filter(|asked| *asked != found.ring_pages) {
            let why =
                format!("the store's ring has {} pages, not {asked}: omit the option", found.ring_pages);
            return bad("ring_pages", why);
        }
        if found.slots == 0 || self.ssd_bytes.is_none() {
            return Ok(());
        }
        if self.layout(page_size)?.slots != found.slots {
            let why = format!(
                "the store uses {} bytes of its SSD, not {}; omit the option, or switch the SSD off and take \
                 it back (`ssd().set_mode`) with the new size",
                found.end(),
                self.ssd_size()
            );
            return bad("ssd_bytes", why);
        }
        Ok(())
    }

    /// Checks the options against the manifest of an existing store.
    pub(super) fn check_known(&self, manifest: &Manifest, knows_costs: bool) -> Result<(), OpenError> {
        if self.calibrate.is_some() && self.costs.is_none() && !knows_costs && !manifest.is_unused() {
            let why = "it measures new stores only, since it writes: pass `costs` instead, as \
                       `pagetier::calibrate` measures them on a scratch file of the same devices";
            return Err(OpenError::BadOption { option: "calibrate", why: why.into() });
        }
        Ok(())
    }

    /// Whether the options name an SSD.
    pub(super) fn names_ssd(&self) -> bool {
        self.ssd_size() > 0 && (self.ssd_bytes.is_some() || !matches!(self.ssd, Place::Default))
    }
}

impl Shared {
    /// Puts the SSD that the options name into use, for a store that has none.
    pub(super) async fn add_ssd(self: &Arc<Self>) -> Result<(), OpenError> {
        let found = match self.builder.open_place(&self.builder.ssd, "ssd.cache", "ssd").await {
            Ok(device) => identify(&device).await.map_err(OpenError::from),
            Err(error) => Err(error),
        };
        match found {
            Ok(Found::Blank) => {}
            Ok(Found::Superblock(found)) if id_text(found.store) == self.store_id().await => {
                tracing::warn!(
                    "the store was switched to run without this SSD; `ssd().readmit()` takes it back"
                );
                return Ok(());
            }
            // The SSD that failed may still be configured: the store runs without it.
            Err(OpenError::Device(error)) => {
                tracing::warn!(%error, "the store has no SSD, and the one that is configured cannot be used");
                return Ok(());
            }
            Err(error) => return Err(error),
            // `attach` decides, and names what is wrong.
            Ok(_) => {}
        }
        let attached = self.alone(|shared| async move { shared.attach().await }).await;
        attached.map_err(|error| match error {
            crate::Error::Device(error) => OpenError::Device(error),
            other => {
                OpenError::BadOption { option: "ssd", why: format!("it cannot be put into use: {other}") }
            }
        })
    }

    async fn store_id(&self) -> String {
        self.meta.lock().await.manifest.store.clone()
    }
}
