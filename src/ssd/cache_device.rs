//! Creates replacement cache devices while the store is open: a file for the ring alone, or a blank SSD.

use crate::config::choices::Place;
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::id::id_text;
use crate::open::blank::refuse_data;
use crate::open::check::{blank_superblock, unusable};
use crate::store::devices::Devices;
use crate::store::record::manifest_state::ManifestState;
use crate::volume::hdd_ring::HddRing;
use pagetier_devio::SharedDevice;
use pagetier_page::PageSize;
use pagetier_policy::{Costs, SlotPolicyParams};
use pagetier_ssdcache::{Found, Layout, NewCacheDevice, OldRing, format, identify};

impl Devices {
    /// Formats the file (or ready-made device) that holds the ring of a store without an SSD.
    pub(crate) async fn make_ring(
        &self,
        meta: &ManifestState,
        page_size: PageSize,
        ring_pages: u32,
        costs: Costs,
        frames: usize,
    ) -> Result<NewCacheDevice, OpenError> {
        let device = self.open_ring(true, page_size).await;
        let ring_pages = self.hdd_ring.get().map_or(ring_pages, HddRing::pages);
        let layout = Layout::ring_only(page_size, ring_pages);
        Ok(self.cache_device(device, layout, meta, costs, frames).await?.0)
    }

    /// Formats the SSD at `place`; returns it with its new id.
    pub(crate) async fn make_ssd(
        &self,
        place: &Place,
        layout: Layout,
        meta: &ManifestState,
        costs: Costs,
        frames: usize,
    ) -> Result<(NewCacheDevice, String), OpenError> {
        let device = self.open_place(place, "ssd.cache", "ssd", true).await;
        self.cache_device(device, layout, meta, costs, frames).await
    }

    /// Formats `device`; returns it with its new id. Removes a file that was created in vain.
    async fn cache_device(
        &self,
        device: Result<SharedDevice, OpenError>,
        layout: Layout,
        meta: &ManifestState,
        costs: Costs,
        frames: usize,
    ) -> Result<(NewCacheDevice, String), OpenError> {
        let made = match device {
            Ok(device) => self.formatted(device, layout, meta, costs, frames).await,
            Err(error) => Err(error),
        };
        // A new file stays only if it will be used.
        if made.is_ok() {
            drop(self.ownership.keep_created())
        } else {
            self.ownership.remove_created()
        }
        made
    }

    async fn formatted(
        &self,
        device: SharedDevice,
        layout: Layout,
        meta: &ManifestState,
        costs: Costs,
        frames: usize,
    ) -> Result<(NewCacheDevice, String), OpenError> {
        let store = &meta.manifest.store;
        // `readmit` must not format another program's disk because a path in the options is wrong.
        let ring_on_hdd = self.hdd_ring.get().is_some();
        if !ring_on_hdd || layout.slots > 0 {
            self.may_overwrite(&device, store).await?;
        }
        let device = self.with_ring(device, &layout);
        let superblock = blank_superblock(layout, &meta.manifest);
        let ring = if ring_on_hdd { OldRing::Kept } else { OldRing::Wiped };
        format(&device, &superblock, self.config.seed(store), ring).await?;
        // A policy belongs to its slots: the new SSD begins with an empty one, of the kind that was switched
        // to last.
        let policy = self.in_use.lock().ssd_policy;
        let zone_percent = policy.zone().get();
        let policy = policy.build(&SlotPolicyParams::new(costs, layout.slots as usize, frames));
        let new = NewCacheDevice { device, layout, ring_on_hdd, policy, zone_percent };
        Ok((new, id_text(superblock.ssd)))
    }

    /// Checks that the device is blank, or was formatted earlier for the same store.
    async fn may_overwrite(&self, device: &SharedDevice, store: &str) -> Result<(), OpenError> {
        let name = device.name().to_owned();
        match identify(device).await? {
            Found::Superblock(sb) if id_text(sb.store) == store => Ok(()),
            _ if self.config.overwrites() => Ok(()),
            Found::Blank => refuse_data(device).await,
            Found::Superblock(sb) => Err(OpenError::OtherStore {
                device: name,
                found: id_text(sb.store),
                expected: store.to_owned(),
            }),
            other => Err(unusable(&other, name)),
        }
    }
}

impl Devices {
    /// The layout of an SSD of which `bytes` are to be used.
    pub(crate) fn ssd_layout(&self, bytes: u64, page_size: PageSize) -> Result<Layout, OpenError> {
        if bytes == 0 {
            let why = "the store was opened without an SSD".into();
            return Err(OpenError::BadOption { option: "ssd_bytes", why });
        }
        self.config.layout_of(bytes, page_size, self.hdd_ring.get().map(HddRing::pages))
    }

    /// Whether the ring of a store without an SSD is still there at the next open.
    pub(crate) fn keeps_its_ring(&self) -> bool {
        let Config { options, ring_device, .. } = &*self.config;
        options.directory.is_some() || ring_device.is_some() || self.hdd_ring.get().is_some()
    }
}
