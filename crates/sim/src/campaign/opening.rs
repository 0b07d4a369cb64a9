//! A plan's store: its sizes, its options, and the opening on its devices.

use super::disks::{Disks, SharedDisks};
use super::plan::Plan;
use pagetier::{Builder, Costs, MemoryManifest, PageSize, PageStore, SsdMode};
use pagetier_devio::SimDevice;
use pagetier_ssdcache::{BLOCK_BYTES, Layout};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The largest HDD: far more than any scenario fills.
const HDD_BYTES_MAX: u64 = 96 << 20;

/// The bytes of each area of a manifest on the HDD.
const AREA_BYTES: u64 = 256 << 10;

/// Where the headers and the areas are.
pub(super) const AREAS: Range<u64> = 64 << 10..(1 << 20) + 2 * AREA_BYTES;

impl Plan {
    /// The size of the store's pages.
    pub(super) fn page_size(&self) -> PageSize {
        PageSize::new(self.page_bytes()).unwrap_or(PageSize::MIN)
    }

    /// The same in bytes.
    pub(super) fn page_bytes(&self) -> u64 {
        u64::from(self.page_kib) << 10
    }

    /// The SSD's size in bytes.
    pub(super) fn ssd_bytes(&self) -> u64 {
        // Superblocks, two maps of four blocks each, and the smallest journal.
        let metadata = (18 * BLOCK_BYTES).next_multiple_of(self.page_bytes());
        let pages = u64::from(self.ring + self.slots);
        if self.slots == 0 { 0 } else { metadata + pages * self.page_bytes() }
    }

    /// The memory budget for a pool of about `frames` frames, in bytes.
    pub(super) fn pool_bytes(&self, frames: u32) -> u64 {
        let simulated = u64::from(self.slots.min(768)) * 150;
        let tables = u64::from(self.slots) * 184 + u64::from(self.outqueue) * 72 + simulated;
        u64::from(frames + 4) * (self.page_bytes() + 188) + tables + (8 << 10)
    }

    /// Options that each opening may choose anew, as the seed draws them.
    fn chosen(&self, builder: Builder) -> Builder {
        let rng = &mut SmallRng::seed_from_u64(self.seed ^ 0x4be8_93d1_0c7f_2a65);
        let some = |rng: &mut SmallRng| rng.random_bool(0.25);
        let mut builder = builder
            .read_ahead(rng.random_bool(0.7))
            .cluster_pages([1, 8, 64][rng.random_range(0..3)])
            .group_width_per_min([0.1, 1.0, 60.0][rng.random_range(0..3)])
            .low_room([0, 256 << 20][rng.random_range(0..2)])
            .exhausted_after(Duration::from_secs([2, 10][rng.random_range(0..2)]))
            .page_gap_max([70, 65_536][rng.random_range(0..2)])
            .on_recovery_progress(|_| ());
        if some(rng) {
            builder = builder.lease(Duration::from_secs([0, 30][rng.random_range(0..2)]));
        }
        if some(rng) {
            builder = builder.redo_span_max([40, 400][rng.random_range(0..2)]);
        }
        if some(rng) {
            builder = builder.online_costs([8, 1000][rng.random_range(0..2)]);
        }
        if some(rng) {
            builder = builder.costs(Costs { hdd_write_ms: 1.0, ..Costs::PAPER });
        }
        if some(rng) {
            builder = builder.ssd_write_budget([0, 100 << 20][rng.random_range(0..2)]);
        }
        if some(rng) {
            builder = builder.ssd_mode([SsdMode::WriteThrough, SsdMode::ReadOnly][rng.random_range(0..2)]);
        }
        builder
    }

    /// Has the store keep its hot set, if the plan wants it. The tasks and the model do not know its space.
    pub(super) async fn keep_hot_set(&self, store: &PageStore) -> Result<(), String> {
        if self.hot_ms == 0 {
            return Ok(());
        }
        let kept = store.keep_hot_set(Duration::from_millis(self.hot_ms.into())).await;
        kept.map_err(|error| format!("keep_hot_set: {error}"))
    }

    /// The store's options, without its devices.
    pub(super) fn builder(&self) -> Builder {
        let builder = if self.is_whole() { self.chosen(PageStore::builder()) } else { PageStore::builder() };
        builder
            .page_size(self.page_size())
            .ssd_bytes(self.ssd_bytes())
            .ssd_policy(named(self.ssd_policy, self.hostile[0]))
            .pool_policy(named(self.pool_policy, self.hostile[1]))
            .ring_pages(self.ring)
            .zone_percent(f64::from(self.zone_percent))
            .outqueue(self.outqueue as usize)
            .pool_bytes(self.pool_bytes(self.frames))
            .map_piece(self.map_piece)
    }

    /// The store's options, with its manifest where the plan has it.
    pub(super) fn with_manifest(&self, manifest: &Arc<MemoryManifest>) -> Builder {
        match self.on_hdd {
            0 => self.builder().in_memory(Arc::clone(manifest)),
            _ => self.builder().manifest_on_hdd(true).manifest_bytes_max(AREA_BYTES),
        }
    }

    /// The store's options, including its devices.
    pub(super) fn builder_on(
        &self,
        SharedDisks { hdd, ssd, ring }: SharedDisks,
        manifest: &Arc<MemoryManifest>,
    ) -> Builder {
        let builder = self.with_manifest(manifest).hdd_device(hdd);
        if self.on_hdd > 0 {
            // The ring is there, too.
            return if self.ssd_bytes() == 0 { builder } else { builder.ssd_device(ssd) };
        }
        if self.ssd_bytes() == 0 {
            // Without slots the device holds the ring.
            return builder.ring_device(ssd);
        }
        let builder = builder.ssd_device(ssd);
        if self.is_whole() { builder.ring_device(ring) } else { builder }
    }

    /// Opens the store on these devices.
    pub(super) async fn open(
        &self,
        disks: SharedDisks,
        manifest: &Arc<MemoryManifest>,
    ) -> Result<PageStore, String> {
        self.builder_on(disks, manifest).open().await.map_err(|e| format!("does not open: {e}"))
    }

    /// The devices, with the plan's latencies and alignment, and an HDD of bounded size.
    pub(super) fn with_latencies(&self, Disks { hdd, ssd, ring, power }: Disks) -> Disks {
        let as_slow_as = |device: SimDevice, us| {
            let device = device.with_alignment(self.sector_bytes as usize);
            device.with_latency(Duration::from_micros(us))
        };
        let hdd = as_slow_as(hdd, self.hdd_us).with_size_max(HDD_BYTES_MAX);
        let ring = as_slow_as(ring, self.hdd_us);
        Disks { hdd, ssd: as_slow_as(ssd, self.ssd_us), ring, power }
    }

    /// The bytes of the HDD that have homes.
    pub(super) fn homes(&self) -> Range<u64> {
        let ring = Layout::ring_only(self.page_size(), self.ring).end();
        let from = if self.on_hdd > 0 { (AREAS.end + ring).next_multiple_of(64 << 10) } else { 1 << 20 };
        from..u64::MAX
    }

    /// The layout of the SSD.
    pub(super) fn layout(&self) -> Layout {
        Layout::for_bytes(self.ssd_bytes(), self.page_size(), self.ring)
            .unwrap_or_else(|_| Layout::ring_only(self.page_size(), self.ring))
    }
}

fn named(policy: &str, hostile: Option<u32>) -> String {
    pagetier_hostile::register();
    hostile.map_or_else(|| policy.to_owned(), |seed| format!("hostile:{seed}"))
}
