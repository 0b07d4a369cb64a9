//! The doublewrite ring of a store whose manifest is on the HDD: it is there, too, so that another machine
//! finds whatever repairs a torn home.
//!
//! It lies between the manifest's areas and the extents, with the superblock that a ring has in a file of its
//! own. It rests while the device writes pages whole.

use crate::manifest::contents::{Manifest, RingOnHdd};
use pagetier_devio::{SharedDevice, Spliced, Window};
use pagetier_page::PageSize;
use pagetier_ssdcache::Layout;
use std::sync::Arc;

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
}
