//! One replay of a workload at one size, costed in parts.

use super::workload::Drawn;
use super::{Contender, EXTENDED, Part, Row};
use pagetier_ghost::{Counts, Reference, TierParams, Tiers};
use pagetier_policy::Costs;

/// The share of the references before [`Part::Steady`].
const WARMUP: f64 = 0.4;

/// The ends of the young store's parts, in device operations per slot after the SSD is full.
const YOUNG: [(u64, Part); 2] = [(4, Part::First4), (10, Part::First10)];

/// The references of a case, and where its parts begin and end.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    references: &'a [Reference],
    params: TierParams,
    run_read_ms: Option<f64>,
    /// The parts with the numbers of their first reference and of the first one after them.
    parts: Vec<(Part, usize, usize)>,
}

impl<'a> Replay<'a> {
    /// Finds the parts by a replay under [`EXTENDED`], so that they are the same for all pairs.
    pub(super) fn new(drawn: &'a Drawn, run_read_ms: Option<f64>) -> Self {
        let params = TierParams::new(drawn.pool_pages, drawn.ssd_pages);
        let references = &drawn.references;
        let mut this = Self { references, params, run_read_ms, parts: Vec::new() };
        match drawn.joined_at {
            // The references before the change are not costed: the suite has their workloads by
            // themselves as well.
            Some(at) => {
                let all = references.len();
                let late = at + (all - at) * 3 / 5;
                this.parts = vec![(Part::Joined, at, all), (Part::JoinedLate, late, all)];
            }
            None => this.find_parts(),
        }
        this
    }

    fn find_parts(&mut self) {
        let all = self.references.len();
        self.parts = vec![(Part::Whole, 0, all), (Part::Steady, (all as f64 * WARMUP) as usize, all)];
        let (mut tiers, slots) = (self.reference_tiers(), u64::from(self.params.ssd_pages));
        let (mut full_at, mut ends) = (None, YOUNG.iter());
        let mut next = ends.next();
        for (at, &reference) in self.references.iter().enumerate() {
            tiers.apply(reference);
            let operations = operations(tiers.counts());
            // Nine tenths count as full, because some policies never fill the last slots.
            if full_at.is_none() && 10 * tiers.ssd_used() as u64 >= 9 * slots {
                full_at = Some(operations);
            }
            // A workload that ends sooner has no row for this part. A part cut short would compare stores
            // of different ages.
            let (Some(full_at), Some(&(per_slot, part))) = (full_at, next) else { continue };
            if operations >= full_at + per_slot * slots {
                self.parts.push((part, 0, at + 1));
                next = ends.next();
            }
        }
    }

    fn reference_tiers(&self) -> Tiers {
        let Ok(pair) = EXTENDED.parse::<Contender>() else { unreachable!("{EXTENDED} is a pair") };
        pair.build(self.params)
    }

    /// One row per part, like `row` otherwise.
    pub(super) fn rows(&self, pair: &Contender, row: &Row) -> Vec<Row> {
        // One pass serves all parts: counts only grow, so each part is the difference between two marks.
        let mut marks: Vec<usize> = self.parts.iter().flat_map(|&(_, from, to)| [from, to]).collect();
        marks.sort_unstable();
        marks.dedup();
        let mut tiers = pair.build(self.params);
        let mut counts = vec![(0, *tiers.counts())];
        let mut at = 0;
        for mark in marks {
            self.references[at..mark].iter().for_each(|&reference| tiers.apply(reference));
            at = mark;
            counts.push((at, *tiers.counts()));
        }
        let at = |mark: usize| match counts.iter().rfind(|(at, _)| *at == mark) {
            Some((_, counts)) => *counts,
            None => Counts::default(),
        };
        let part = |&(part, from, to): &(Part, usize, usize)| {
            let (counts, thousands) = (at(to).since(&at(from)), (to - from).max(1) as f64 / 1000.0);
            Row {
                part,
                cost_ms: self.cost_ms(&counts) / thousands,
                ssd_writes: counts.ssd_writes as f64 / thousands,
                misses: counts.pool_misses as f64 / thousands,
                ..row.clone()
            }
        };
        self.parts.iter().map(part).collect()
    }

    fn cost_ms(&self, counts: &Counts) -> f64 {
        // The four costs are those of the paper (2013, section 6.2): rows kept in a baseline are
        // comparable only at equal costs.
        let costs = &Costs::PAPER;
        let run_ms = self.run_read_ms.unwrap_or(costs.hdd_read_ms);
        counts.hdd_ms_by_run(costs, run_ms) + counts.ssd_ms(costs)
    }
}

/// Reads and writes of pages, of either device.
fn operations(counts: &Counts) -> u64 {
    counts.hdd_reads + counts.hdd_writes + counts.ssd_reads + counts.ssd_writes
}
