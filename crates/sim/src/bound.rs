//! The cost of a static placement: pages are assigned to memory and SSD by their accesses in the same run
//! that is counted.
//!
//! A policy cannot know these accesses in advance. It may still beat the bound, because it can move pages
//! that turn hot or cold during the run. The placement starts with every page in place, and ends without
//! writing back dirty pages.

use pagetier_ghost::{Reference, Use};
use pagetier_policy::{Costs, PageId};
use pagetier_testing::placement::{PageLoad, Placed, optimal_placement};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// The accesses of a run by page. A page used several times by one transaction is read once and written once
/// at most: wherever it is placed, it stays in memory during the transaction.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    loads: FxHashMap<PageId, Load>,
    transaction: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    reads: u64,
    writes: u64,
    /// The last transactions that read it and wrote it.
    read_in: u64,
    written_in: u64,
}

/// The cost of a static placement.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Bound {
    /// Reads and writes of the HDD.
    pub hdd_accesses: u64,
    /// The reads among them.
    pub hdd_reads: u64,
    /// The cost of all accesses, in milliseconds.
    pub cost_ms: f64,
}

impl Accesses {
    /// Begins a transaction.
    pub fn begin(&mut self) {
        self.transaction += 1;
    }

    /// Adds one reference.
    pub fn add(&mut self, reference: Reference) {
        // The 0 of a new entry matches no transaction, so the first use of a page always counts; references
        // before the first `begin` are a transaction, too.
        let now = self.transaction + 1;
        let load = self.loads.entry(reference.page).or_default();
        if load.read_in != now {
            load.read_in = now;
            // A created page is not read.
            load.reads += u64::from(reference.used != Use::Create);
        }
        if reference.used != Use::Read && load.written_in != now {
            load.written_in = now;
            load.writes += 1;
        }
    }

    /// The bound with memory that writes back, where pages in memory cost nothing. The pages with the highest
    /// HDD cost are placed in memory or on the SSD, and those among them with the highest SSD cost in memory.
    pub fn write_back(&self, memory_pages: usize, ssd_pages: usize, costs: &Costs) -> Bound {
        self.write_back_by(self, memory_pages, ssd_pages, costs)
    }

    /// Like [`Accesses::write_back`], but places the pages by the accesses of `known`, an earlier run, which
    /// a policy could have known.
    pub fn write_back_by(&self, known: &Self, memory_pages: usize, ssd_pages: usize, costs: &Costs) -> Bound {
        let on = |load: &Load, read: f64, write: f64| load.reads as f64 * read + load.writes as f64 * write;
        let on_hdd = |load: &Load| on(load, costs.hdd_read_ms, costs.hdd_write_ms);
        let on_ssd = |load: &Load| on(load, costs.ssd_read_ms, costs.ssd_write_ms);
        // Each page's known accesses and its actual ones, sorted by page so that runs are reproducible.
        let mut pages: Vec<(PageId, Load, Load)> = self
            .loads
            .iter()
            .map(|(&page, &load)| (page, known.loads.get(&page).copied().unwrap_or_default(), load))
            .collect();
        // Pages that only the earlier run used take places as well: a policy could not have known that
        // they do not return.
        let absent = known.loads.iter().filter(|(page, _)| !self.loads.contains_key(page));
        pages.extend(absent.map(|(&page, &load)| (page, load, Load::default())));
        pages.sort_unstable_by_key(|page| page.0);
        // The two steps are not an exact optimum: the first ignores what a page costs on the SSD. The
        // error is small as long as an SSD access costs a small part of an HDD access, as in the 2013
        // paper (section 6.2).
        pages.sort_by(|a, b| on_hdd(&b.1).total_cmp(&on_hdd(&a.1)));
        let kept = pages.len().min(memory_pages + ssd_pages);
        let (near, far) = pages.split_at_mut(kept);
        near.sort_by(|a, b| on_ssd(&b.1).total_cmp(&on_ssd(&a.1)));
        // The places follow from the known accesses, the costs from the actual ones. Only `write_back`
        // has the same accesses for both.
        let hdd_reads = far.iter().map(|page| page.2.reads).sum();
        Bound {
            hdd_reads,
            hdd_accesses: far.iter().map(|page| page.2.writes).sum::<u64>() + hdd_reads,
            cost_ms: far.iter().map(|page| on_hdd(&page.2)).sum::<f64>()
                + near.iter().skip(memory_pages).map(|page| on_ssd(&page.2)).sum::<f64>(),
        }
    }

    /// The 2014 paper's placement and costs, where memory writes through.
    pub fn write_through(&self, memory_pages: usize, ssd_pages: usize, costs: &Costs) -> Bound {
        let loads: Vec<Load> = self.loads.values().copied().collect();
        let pages: Vec<PageLoad> =
            loads.iter().map(|l| PageLoad { reads: l.reads as f64, writes: l.writes as f64 }).collect();
        let placed = optimal_placement(&pages, memory_pages, ssd_pages, costs);
        let (mut reads, mut writes) = (0, 0);
        for (load, place) in loads.iter().zip(&placed.places) {
            match place {
                Placed::Nowhere => (reads, writes) = (reads + load.reads, writes + load.writes),
                // Memory holds no newer version than the device below (Figure 2): a page without an SSD
                // copy is written to the HDD, a page with one to the SSD alone.
                Placed::Memory => writes += load.writes,
                Placed::Ssd | Placed::Both => {}
            }
        }
        Bound { hdd_reads: reads, hdd_accesses: reads + writes, cost_ms: placed.cost_ms }
    }
}
