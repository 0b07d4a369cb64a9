//! Where the ring of a store is, if it is on the HDD (`volume/hdd_ring.rs`).

use crate::config::sizes::{RING_PAGES, ring_pages_for};
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::contents::Manifest;
use crate::open::caveats::Caveat;
use crate::store::devices::Devices;
use pagetier_devio::SharedDevice;
use pagetier_page::PageSize;
use pagetier_ssdcache::Layout;

impl Config {
    /// The pages of the ring of a new store whose manifest is on the HDD.
    pub(super) fn ring_pages_on_hdd(&self, page_size: PageSize) -> u32 {
        self.options.ring_pages.unwrap_or(match self.ssd_size() {
            0 => RING_PAGES,
            bytes => ring_pages_for(bytes, page_size),
        })
    }
}

impl Devices {
    /// `device` with the ring in its place, if there is one on the HDD.
    pub(crate) fn with_ring(&self, device: SharedDevice, layout: &Layout) -> SharedDevice {
        match self.hdd_ring.get() {
            Some(ring) if layout.slots > 0 && ring.pages() > 0 => ring.in_front_of(device, layout),
            _ => device,
        }
    }

    /// Notes that the store uses `device` as `layout` says; returns it with its ring.
    pub(super) fn take_ssd(&self, device: SharedDevice, layout: &Layout) -> SharedDevice {
        self.in_use.lock().ssd.1 = Some(*layout).filter(|layout| layout.slots > 0);
        self.with_ring(device, layout)
    }

    /// Notes where the ring of the store of `manifest` is, and checks the options against it.
    pub(super) fn find_ring(&self, manifest: &Manifest, hdd: &SharedDevice) -> Result<(), OpenError> {
        let Some(ring) = manifest.ring_on(hdd) else { return Ok(()) };
        self.config.check_ring(ring.pages())?;
        let whole = hdd.writes_whole(manifest.page_bytes as usize);
        if ring.pages() == 0 && !whole && self.config.options.ring_pages.is_none() {
            // An earlier version left the ring out where the HDD wrote pages whole, and this one does not.
            tracing::warn!(caveat = Caveat::NoRing.code(), "{}", Caveat::NoRing);
        }
        if self.config.ring_device.is_some() {
            let why = "the ring is on the HDD, as the manifest is: omit the option".into();
            return Err(OpenError::BadOption { option: "ring_device", why });
        }
        let _ = self.hdd_ring.set(ring);
        Ok(())
    }
}
