//! Replaces the SSD in use with another: larger, smaller, or new.

use crate::config::choices::Place;
use crate::error::{Error, OpenError};
use crate::store::shared::Shared;
use pagetier_devio::SharedDevice;
use pagetier_ssdcache::SsdMode;
use std::path::PathBuf;
use std::sync::Arc;

impl Shared {
    /// See [`Ssd::replace`](crate::Ssd::replace).
    pub(crate) async fn replace_ssd(self: &Arc<Self>, place: Place, bytes: u64) -> Result<(), Error> {
        drop(self.ending.enter()?);
        self.refuse_read_only()?;
        self.refuse_in_use(&place)?;
        // Of several such calls, and whatever mode is set meanwhile, the strictest counts.
        // Otherwise new pages would become only copies as fast as the drain writes the old ones home.
        let meanwhile = self.tier.at_most(SsdMode::WriteThrough);
        // Outside of the exchange, which stops writes: a drain may take hours. What it left is refused below.
        let _ = self.ending.or_shutdown(self.tier.drain(None, None, None)).await;
        let replaced = self.alone(move |shared| async move {
            let _meanwhile = meanwhile;
            shared.replace(place, bytes).await
        });
        replaced.await
    }

    async fn replace(&self, place: Place, bytes: u64) -> Result<(), Error> {
        // Check again: another exchange may have run first.
        self.refuse_in_use(&place)?;
        let layout = self.devices.ssd_layout(bytes, self.page_size());
        self.put_into_use(place, layout.map_err(|e| Error::Attach(Arc::new(e)))?).await
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
                // Without a directory there is no default place, which the attempt to open it reports.
                _ => match self.devices.config.at(place, "ssd.cache") {
                    Some(at) => (self.devices.is_used(&at, option), at.shown),
                    None => continue,
                },
            };
            if same {
                let why = "this store uses it".into();
                return Err(Error::Attach(Arc::new(OpenError::DeviceInUse { device, why })));
            }
        }
        Ok(())
    }
}
