//! Replaces the SSD in use with another: larger, smaller, or new.

use crate::config::frozen::Place;
use crate::error::{Error, OpenError};
use crate::store::page_store::PageStore;
use crate::store::shared::Shared;
use pagetier_devio::SharedDevice;
use pagetier_ssdcache::SsdMode;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The SSD that replaces the one in use; see [`PageStore::replace_ssd`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SsdReplacement {
    place: Place,
    bytes: u64,
}

impl SsdReplacement {
    /// A file or block device. A file is created if it does not exist. A relative path leads from the
    /// present working directory.
    pub fn path(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        // Now, not when it is attached: the working directory may have changed by then.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { place: Place::Path(path), bytes: 256 << 20 }
    }

    /// A device; [`device`](crate::device) says how to write one.
    pub fn device(device: SharedDevice) -> Self {
        Self { place: Place::Device(device), bytes: 256 << 20 }
    }

    /// The number of its bytes to use. Default: 256 MiB.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}

impl PageStore {
    /// Replaces the SSD while the store is in use: to grow it, to shrink it, or because it is worn. A store
    /// without an SSD gets its first one. Drains the current SSD so that it holds no only copy, formats the
    /// new one, and exchanges the two atomically, which the manifest records. The new SSD starts blank. The
    /// store does not write to the old one again, but keeps it locked until the store is closed. From then
    /// on, open the store with the new SSD: it does not open with the old one.
    ///
    /// A larger SSD has larger tables: [`Stats`](crate::stats::Stats) reports their memory, which may then
    /// exceed [`Builder::pool_bytes`](crate::Builder::pool_bytes).
    ///
    /// The mode does not change: until the exchange the SSD takes no changed pages, as in
    /// [`SsdMode::WriteThrough`], and a mode set meanwhile ([`Ssd::set_mode`](crate::Ssd::set_mode)) is in
    /// force afterwards. Several calls at one time run one after the other.
    ///
    /// Hold no guards during the call: writes wait for the exchange. Cancel-safe: a call dropped during the
    /// drain changes nothing; an exchange that has begun completes.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::SsdReplacement;
    ///
    /// store.replace_ssd(SsdReplacement::path("/dev/nvme1n1").bytes(200 << 30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SsdOnlyCopies`] when not everything could be drained; [`Error::Attach`] when the new SSD is
    /// too small, holds other data, or is in use, by this store or another; [`Error::ReadOnly`] on a
    /// read-only opening; or when a device failed. The current SSD stays in use. [`Error::Manifest`] when the
    /// exchange could not be recorded: a later opening may find either SSD in use, so the store refuses
    /// writes until then.
    pub async fn replace_ssd(&self, new: SsdReplacement) -> Result<(), Error> {
        let shared = &self.shared;
        drop(shared.ending.enter()?);
        shared.refuse_read_only()?;
        shared.refuse_in_use(&new.place)?;
        // Of several such calls, and whatever mode is set meanwhile, the strictest counts.
        // Otherwise new pages would become only copies as fast as the drain writes the old ones home.
        let meanwhile = shared.tier.at_most(SsdMode::WriteThrough);
        // Outside of the exchange, which stops writes: a drain may take hours. What it left is refused below.
        let _ = shared.ending.or_shutdown(shared.tier.drain(None, None)).await;
        let replaced = shared.alone(|shared| async move {
            let _meanwhile = meanwhile;
            shared.replace(new).await
        });
        replaced.await
    }
}

impl Shared {
    async fn replace(&self, new: SsdReplacement) -> Result<(), Error> {
        // Check again: another exchange may have run first.
        self.refuse_in_use(&new.place)?;
        let mut meta = self.meta.lock().await;
        // A save that failed may have named the SSD at that place: formatting it could destroy what the
        // manifest names (I21).
        if let Some(cause) = self.config.seam.refuses_attach(self.tier.refusing_for_good()) {
            return Err(Error::Refusing { cause });
        }
        let frames = self.pool.params().frames;
        let SsdReplacement { place, bytes } = new;
        let exchange = async {
            let (size, costs) = (self.page_size(), self.costs());
            let made = self.devices.make_ssd_at(&place, bytes, &meta, size, costs, frames).await;
            let (ssd, id) = made.map_err(|e| Error::Attach(Arc::new(e)))?;
            self.exchange(ssd, Some(id), None, &mut meta).await
        };
        self.devices.exchanging(exchange).await?;
        // The options still name the old one. `readmit` after an `Off` must not format that.
        // In case it is attached again.
        self.devices.in_use.lock().ssd = (place, bytes);
        Ok(())
    }

    /// Refuses a device that the store uses: it would be formatted.
    fn refuse_in_use(&self, place: &Place) -> Result<(), Error> {
        let cache = if self.tier.slots() > 0 { "ssd" } else { "ring_device" };
        let used = [(self.tier.ssd_device(), cache), (SharedDevice::clone(self.tier.hdd_device()), "hdd")];
        for (used, option) in used {
            let (same, device) = match place {
                Place::Device(new) => {
                    // Not the devices' addresses: one device may be wrapped twice, and its occupancy is
                    // shared by the wrappers.
                    (std::ptr::eq(new.occupancy(), used.occupancy()), PathBuf::from(new.name()))
                }
                Place::Path(path) => (self.devices.is_used(path, option), path.clone()),
                Place::Default => (true, PathBuf::new()),
            };
            if same {
                let why = "this store uses it".into();
                return Err(Error::Attach(Arc::new(OpenError::DeviceInUse { device, why })));
            }
        }
        Ok(())
    }
}
