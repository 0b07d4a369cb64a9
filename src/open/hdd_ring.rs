//! The doublewrite ring of a store whose manifest is on the HDD: it is there, too, so that another machine
//! finds whatever repairs a torn home.
//!
//! It lies between the manifest's areas and the extents, with the superblock that a ring has in a file of its
//! own. A device that writes pages whole needs no ring: then it has no pages.

use crate::config::frozen::Config;
use crate::config::sizes::{RING_PAGES, ring_pages_for};
use crate::error::OpenError;
use crate::manifest::contents::{Manifest, RingOnHdd};
use crate::manifest::superblock::AREA_UNIT;
use crate::store::devices::Devices;
use pagetier_devio::{SharedDevice, Spliced, Window};
use pagetier_page::PageSize;
use pagetier_ssdcache::Layout;
use std::sync::{Arc, OnceLock};

/// The ring on the HDD of an open store.
#[derive(Clone, Debug)]
pub(crate) struct HddRing {
    hdd: SharedDevice,
    on: RingOnHdd,
}

impl HddRing {
    /// The device of a store without an SSD.
    pub(crate) fn alone(&self, page_size: PageSize) -> SharedDevice {
        let range = 0..Layout::ring_only(page_size, self.on.pages).end();
        Arc::new(Spliced::new(None, Window { device: Arc::clone(&self.hdd), at: self.on.at, range }))
    }

    /// An SSD of `layout` whose ring is this one.
    pub(crate) fn in_front_of(&self, ssd: SharedDevice, layout: &Layout) -> SharedDevice {
        let at = self.on.at + Layout::ring_only(layout.page_size, self.on.pages).ring_at(0);
        let range = layout.ring_at(0)..layout.slot_at(0);
        Arc::new(Spliced::new(Some(ssd), Window { device: Arc::clone(&self.hdd), at, range }))
    }

    pub(crate) fn pages(&self) -> u32 {
        self.on.pages
    }
}

impl Manifest {
    /// The ring of this store on `hdd`, if it is there.
    pub(crate) fn ring_on(&self, hdd: &SharedDevice) -> Option<HddRing> {
        self.ring_on_hdd.map(|on| HddRing { hdd: Arc::clone(hdd), on })
    }

    /// Makes room for a ring of `pages` at `at`, before the first extent.
    pub(super) fn place_ring(&mut self, at: u64, page_size: PageSize, pages: u32) {
        // A page must not lie across the units that a device writes whole: they are powers of two.
        let end = at + Layout::ring_only(page_size, pages).end();
        self.put_ring_on_hdd(RingOnHdd { at, pages }, end.next_multiple_of(AREA_UNIT));
    }
}

impl Config {
    /// The pages of the ring of a new store whose manifest is on `hdd`.
    pub(super) fn ring_pages_on(&self, hdd: &SharedDevice, page_size: PageSize) -> u32 {
        let whole = hdd.writes_whole(page_size.bytes());
        self.options.ring_pages.unwrap_or(match self.ssd_size() {
            _ if whole => 0,
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

    /// The whole device of a store without an SSD, if its ring is on the HDD.
    pub(super) fn hdd_ring_alone(&self, page_size: PageSize) -> Option<SharedDevice> {
        self.hdd_ring.get().map(|ring| ring.alone(page_size))
    }

    /// Notes where the ring of the store of `manifest` is, and checks the options against it.
    pub(super) fn find_ring(&mut self, manifest: &Manifest, hdd: &SharedDevice) -> Result<(), OpenError> {
        let Some(ring) = manifest.ring_on(hdd) else { return Ok(()) };
        self.config.check_ring(ring.pages())?;
        if self.config.ring_device.is_some() {
            let why = "the ring is on the HDD, as the manifest is: omit the option".into();
            return Err(OpenError::BadOption { option: "ring_device", why });
        }
        self.hdd_ring = OnceLock::from(ring);
        Ok(())
    }
}
