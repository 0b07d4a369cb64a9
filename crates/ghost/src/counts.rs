//! The parameters and the counters of a replay.

use pagetier_policy::{CLUSTER_PAGES, Costs, PageId};
use serde::Serialize;

/// The sizes and the behaviour of the tiers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierParams {
    /// Frames of the pool.
    pub pool_pages: u32,
    /// Slots of the SSD.
    pub ssd_pages: u32,
    /// The cost of an I/O.
    pub costs: Costs,
    /// How many of the next victims the cleaner examines when one of them is dirty.
    pub look_ahead: usize,
    /// The maximum share of the frames that may be dirty; 1 disables recoverability writes.
    pub dirty_share_max: f64,
    /// The eviction zone as a share of the SSD (10% in section 6.1).
    pub zone_share: f64,
    /// CPU time per reference, in milliseconds; the clock adds it to the busier device's time.
    pub cpu_ms: f64,
    /// The clock's rate relative to that time: 1, or for a sample of the pages the inverse of its share,
    /// since the other pages take time too.
    pub clock_rate: f64,
    /// Pages per cluster, for counting cluster switches.
    pub cluster_pages: u32,
}

impl TierParams {
    /// The defaults: the paper's costs and zone, a look-ahead of 64, no recoverability writes.
    #[must_use]
    pub const fn new(pool_pages: u32, ssd_pages: u32) -> Self {
        Self {
            pool_pages,
            ssd_pages,
            costs: Costs::PAPER,
            look_ahead: 64,
            dirty_share_max: 1.0,
            zone_share: 0.1,
            // Not zero: the clock must move while every reference hits, since policies age pages by it.
            cpu_ms: 0.002,
            clock_rate: 1.0,
            cluster_pages: CLUSTER_PAGES,
        }
    }
}

/// Event counts; the difference of two describes an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Page references.
    pub requests: u64,
    /// References to buffered pages, or to newly created pages.
    pub pool_hits: u64,
    /// References that required a read.
    pub pool_misses: u64,
    /// Misses read from the SSD.
    pub ssd_hits: u64,
    /// Reads from the HDD.
    pub hdd_reads: u64,
    /// Those of them by a scan that follow a read of the page before: read-ahead joins them into one request.
    pub hdd_run_reads: u64,
    /// Writes to the HDD.
    pub hdd_writes: u64,
    /// Reads from the SSD, including those that precede a copy to the HDD.
    pub ssd_reads: u64,
    /// Writes to the SSD.
    pub ssd_writes: u64,
    /// HDD writes that copied a newer SSD version before its slot was reused; included in `hdd_writes`.
    pub write_backs: u64,
    /// SSD copies invalidated by a change.
    pub invalidations: u64,
    /// Zones started.
    pub zones: u64,
    /// Pages that got a second chance on the SSD: read from one end of its queue and written to the other.
    pub second_chances: u64,
    /// CSC(S): HDD writes to another cluster than the previous write (Ou, Jin & Härder, equation 2), in the
    /// order of their requests.
    pub cluster_switches: u64,
    /// CSC(R): the same for page references.
    pub request_switches: u64,
}

impl Counts {
    /// The counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            pool_hits: self.pool_hits - before.pool_hits,
            pool_misses: self.pool_misses - before.pool_misses,
            ssd_hits: self.ssd_hits - before.ssd_hits,
            hdd_reads: self.hdd_reads - before.hdd_reads,
            hdd_run_reads: self.hdd_run_reads - before.hdd_run_reads,
            hdd_writes: self.hdd_writes - before.hdd_writes,
            ssd_reads: self.ssd_reads - before.ssd_reads,
            ssd_writes: self.ssd_writes - before.ssd_writes,
            write_backs: self.write_backs - before.write_backs,
            invalidations: self.invalidations - before.invalidations,
            zones: self.zones - before.zones,
            second_chances: self.second_chances - before.second_chances,
            cluster_switches: self.cluster_switches - before.cluster_switches,
            request_switches: self.request_switches - before.request_switches,
        }
    }

    /// CSF: the ratio of cluster switches of HDD writes to those of references (equation 3).
    pub fn cluster_switch_factor(&self) -> f64 {
        self.cluster_switches as f64 / self.request_switches.max(1) as f64
    }

    /// The HDD's busy time, in milliseconds. Every read costs a random one, also a scan's.
    pub fn hdd_ms(&self, costs: &Costs) -> f64 {
        self.hdd_reads as f64 * costs.hdd_read_ms + self.hdd_writes as f64 * costs.hdd_write_ms
    }

    /// The HDD's busy time if a read that continues a scan's run costs `run_read_ms`: no seek, only the
    /// transfer.
    pub fn hdd_ms_by_run(&self, costs: &Costs, run_read_ms: f64) -> f64 {
        self.hdd_ms(costs) - self.hdd_run_reads as f64 * (costs.hdd_read_ms - run_read_ms)
    }

    /// The SSD's busy time, in milliseconds.
    pub fn ssd_ms(&self, costs: &Costs) -> f64 {
        self.ssd_reads as f64 * costs.ssd_read_ms + self.ssd_writes as f64 * costs.ssd_write_ms
    }
}

/// The last cluster of a sequence of pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastCluster(Option<PageId>);

impl LastCluster {
    /// Returns 1 if `page` is in another cluster than the previous page, or is the first; otherwise 0.
    pub(crate) fn switch(&mut self, page: PageId, cluster_pages: u32) -> u64 {
        let cluster = PageId::new(page.space, page.no / cluster_pages.max(1));
        u64::from(self.0.replace(cluster) != Some(cluster))
    }
}
