//! A plan's store: its sizes, its options, and the open on its devices.

use super::crash::bounded_power;
use super::disks::{Disks, SharedDisks};
use crate::campaign::draw::plan::Plan;
use pagetier::{
    Builder, Costs, MemoryManifest, PageSize, PageStore, PoolPolicy, SsdMode, SsdPolicy, options::CostSource,
    options::OnHdd,
};
use pagetier_ssdcache::{BLOCK_BYTES, Layout};
use pagetier_testing::SimDevice;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::str::FromStr;
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
    pub(crate) fn page_size(&self) -> PageSize {
        PageSize::new(self.page_bytes()).unwrap_or(PageSize::MIN)
    }

    /// The same in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.page_kib) << 10
    }

    /// The SSD's size in bytes.
    pub(crate) fn ssd_bytes(&self) -> u64 {
        // Superblocks, two maps of four blocks each, and the smallest journal.
        let metadata = (18 * BLOCK_BYTES).next_multiple_of(self.page_bytes());
        let pages = u64::from(self.ring + self.slots);
        if self.slots == 0 { 0 } else { metadata + pages * self.page_bytes() }
    }

    /// The memory budget for a pool of about `frames` frames, in bytes.
    pub(crate) fn pool_bytes(&self, frames: u32) -> u64 {
        let simulated = u64::from(self.slots.min(768)) * 150;
        // Also under a policy without one: the operator may switch to another.
        let outqueue = u64::from(self.outqueue);
        let tables = u64::from(self.slots) * 184 + outqueue * 72 + simulated;
        u64::from(frames + 4) * (self.page_bytes() + 188) + tables + (8 << 10)
    }

    /// The name of this SSD policy with the plan's sizes, as far as it has them.
    pub(crate) fn ssd_policy_named(&self, policy: &str) -> String {
        let zone = format!("zone={}", self.zone_percent);
        with_option::<SsdPolicy>(
            with_option::<SsdPolicy>(policy.into(), &zone),
            &format!("outqueue={}", self.outqueue),
        )
    }

    /// Options that each open may choose anew, as the seed draws them.
    fn chosen(&self, builder: Builder, [ssd, pool]: [String; 2]) -> Builder {
        let rng = &mut SmallRng::seed_from_u64(self.seed ^ 0x4be8_93d1_0c7f_2a65);
        let some = |rng: &mut SmallRng| rng.random_bool(0.25);
        let builder = builder.read_ahead(rng.random_bool(0.7));
        let cluster = ["cluster=1", "cluster=8", "cluster=64"][rng.random_range(0..3)];
        let width = ["group-width=0.1", "group-width=1", "group-width=60"][rng.random_range(0..3)];
        let mut builder = builder
            .pool_policy(with_option::<PoolPolicy>(pool, cluster))
            .ssd_policy(with_option::<SsdPolicy>(ssd, width))
            .low_room([0, 256 << 20][rng.random_range(0..2)])
            .exhausted_after(Duration::from_secs([2, 10][rng.random_range(0..2)]))
            .page_gap_max([70, 65_536][rng.random_range(0..2)])
            .on_recovery_progress(|_| ());
        if some(rng) {
            builder = builder.redo_span_max([40, 400][rng.random_range(0..2)]);
        }
        let points = some(rng).then(|| [8, 1000][rng.random_range(0..2)]);
        let start = some(rng).then_some(Costs { hdd_write_ms: 1.0, ..Costs::PAPER });
        builder = builder.costs(match (points, start) {
            (Some(points), start) => CostSource::Online { points, start },
            (None, Some(costs)) => CostSource::Given(costs),
            (None, None) => CostSource::Known,
        });
        if some(rng) {
            builder = builder.ssd_mode([SsdMode::WriteThrough, SsdMode::ReadOnly][rng.random_range(0..2)]);
        }
        builder
    }

    /// Has the store keep its hot set, if the plan wants it. The tasks and the model do not know its space.
    pub(crate) async fn keep_hot_set(&self, store: &PageStore) -> Result<(), String> {
        if self.hot_ms == 0 {
            return Ok(());
        }
        let kept = store.hot_set().keep(Duration::from_millis(self.hot_ms.into())).await;
        kept.map_err(|error| format!("keep_hot_set: {error}"))
    }

    /// The store's options, without its devices.
    pub(crate) fn builder(&self) -> Builder {
        let [ssd, pool] = [named(self.ssd_policy, self.hostile[0]), named(self.pool_policy, self.hostile[1])];
        let ssd = self.ssd_policy_named(&ssd);
        let builder = PageStore::builder();
        let builder = match self.is_whole() {
            true => self.chosen(builder, [ssd, pool]),
            false => builder.ssd_policy(ssd).pool_policy(pool),
        };
        builder
            .page_size(self.page_size())
            .ssd_bytes(self.ssd_bytes())
            .ring_pages(self.ring)
            .pool_bytes(self.pool_bytes(self.frames))
            .map_piece(self.map_piece)
    }

    /// The store's options, with its manifest where the plan has it.
    pub(crate) fn with_manifest(&self, manifest: &Arc<MemoryManifest>) -> Builder {
        match self.on_hdd {
            0 => self.builder().in_memory(Arc::clone(manifest)),
            _ => {
                let lease_ms = [None, None, Some(0), Some(30_000)][(self.seed % 4) as usize];
                let lease_ms = lease_ms.filter(|_| self.is_whole());
                self.builder().manifest(OnHdd { bytes_max: AREA_BYTES, lease_ms })
            }
        }
    }

    /// The store's options, including its devices.
    pub(crate) fn builder_on(
        &self,
        SharedDisks { hdd, ssd, ring }: SharedDisks,
        manifest: &Arc<MemoryManifest>,
    ) -> Builder {
        let builder = self.with_manifest(manifest).hdd(hdd);
        if self.on_hdd > 0 {
            // The ring is there, too.
            return if self.ssd_bytes() == 0 { builder } else { builder.ssd(ssd) };
        }
        if self.ssd_bytes() == 0 {
            // Without slots the device holds the ring.
            return builder.ring_device(ssd);
        }
        // The SSD has the ring, and the other device takes it over if the SSD is given up. Of all lives,
        // only those with the whole table do that; `ssd_life` adds the device itself.
        let builder = builder.ssd(ssd);
        if self.is_whole() { builder.ring_device(ring) } else { builder }
    }

    /// Opens the store on these devices.
    pub(crate) async fn open(
        &self,
        disks: SharedDisks,
        manifest: &Arc<MemoryManifest>,
    ) -> Result<PageStore, String> {
        self.builder_on(disks, manifest).open().await.map_err(|e| format!("does not open: {e}"))
    }

    /// The devices, with the plan's latencies and alignment, and an HDD of bounded size.
    pub(crate) fn with_latencies(&self, Disks { hdd, ssd, ring, power }: Disks) -> Disks {
        let as_slow_as = |device: SimDevice, us| {
            let device = device.with_alignment(self.sector_bytes as usize);
            device.with_latency(Duration::from_micros(us))
        };
        let hdd = as_slow_as(hdd, self.hdd_us).with_size_max(HDD_BYTES_MAX);
        let ring = as_slow_as(ring, self.hdd_us);
        Disks { hdd, ssd: as_slow_as(ssd, self.ssd_us), ring, power }
    }

    /// The HDD, with the writes that it offers to keep whole.
    pub(crate) fn hdd(&self, hdd: SimDevice) -> SimDevice {
        match (self.ring, self.whole_kib) {
            // Only a device that keeps on writing pages whole may go without the ring.
            (0, _) => hdd.with_atomic_writes(self.page_bytes() as usize),
            (_, 0) => hdd,
            (_, kib) => hdd.with_atomic_writes((kib as usize) << 10).with_fickle_units(),
        }
    }

    /// Blank devices on a power supply of their own.
    pub(crate) fn blank_disks(&self, seed: u64) -> Disks {
        let power = bounded_power();
        let device = |name, at, model| SimDevice::new(name, 0, seed + at, &power).with_flush_failure(model);
        let hdd = self.hdd(device("hdd", 0, self.flush_failures[0]));
        let [ssd, ring] =
            [("ssd", 1), ("ring", 2)].map(|(name, at)| device(name, at, self.flush_failures[1]));
        Disks { hdd, ssd, ring, power }
    }

    /// The bytes of the HDD that have homes.
    pub(crate) fn homes(&self) -> Range<u64> {
        let ring = Layout::ring_only(self.page_size(), self.ring).end();
        let from = if self.on_hdd > 0 { (AREAS.end + ring).next_multiple_of(64 << 10) } else { 1 << 20 };
        from..u64::MAX
    }

    /// The layout of the SSD.
    pub(crate) fn layout(&self) -> Layout {
        Layout::for_bytes(self.ssd_bytes(), self.page_size(), self.ring)
            .unwrap_or_else(|_| Layout::ring_only(self.page_size(), self.ring))
    }
}

/// `policy` with the option, if it has it.
fn with_option<P: FromStr>(policy: String, option: &str) -> String {
    let separator = if policy.contains(':') { ',' } else { ':' };
    let with = format!("{policy}{separator}{option}");
    if with.parse::<P>().is_ok() { with } else { policy }
}

fn named(policy: &str, hostile: Option<u32>) -> String {
    pagetier_testing::hostile::register();
    pagetier_rivals::register();
    hostile.map_or_else(|| policy.to_owned(), |seed| format!("hostile:{seed}"))
}
