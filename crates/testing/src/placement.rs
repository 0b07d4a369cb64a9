//! The static two-tier placement of the 2014 paper (section 3): given each page's read and write counts, it
//! decides which pages to keep in memory and which on the SSD, once and for all. Its cost is a bound for the
//! dynamic policies.
//!
//! What a page saves, compared with being in neither tier (the paper's Figure 2):
//!
//! | in | saves |
//! | --- | --- |
//! | memory | r R_D |
//! | SSD | r (R_D - R_S) + w (W_D - W_S) |
//! | both | r R_D + w (W_D - W_S) |
//!
//! The choice under the two capacities is a minimum-cost flow. The two tiers are the sources; each page takes
//! at most one unit from each, and the table gives the value of its first and its second unit.
//! [`optimal_placement`] adds the capacity unit by unit, each along the best augmenting path. Such a path
//! changes the place of at most two pages: one page gains the tier directly, or it moves over from the other
//! tier and a second page takes the unit it leaves. The result is exact, in O((C_M + C_S) log N).

use pagetier_policy::Costs;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The number of reads (r_i) and writes (w_i) of a page.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PageLoad {
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
}

/// Where a page is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Placed {
    /// On the HDD alone.
    #[default]
    Nowhere,
    /// In the buffer pool.
    Memory,
    /// On the SSD.
    Ssd,
    /// In the buffer pool, with a copy on the SSD.
    Both,
}

/// A placement of all pages.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// The place of each page.
    pub places: Vec<Placed>,
    /// The cost of all requests, in milliseconds (Figure 2).
    pub cost_ms: f64,
}

impl Placement {
    /// Returns the number of pages at `place`.
    pub fn count(&self, place: Placed) -> usize {
        self.places.iter().filter(|p| **p == place).count()
    }
}

/// Returns the cost of `page` at `place` (2014 paper, Figure 2), in milliseconds.
#[must_use]
pub fn placed_cost_ms(page: PageLoad, place: Placed, costs: &Costs) -> f64 {
    let PageLoad { reads, writes } = page;
    match place {
        Placed::Nowhere => reads * costs.hdd_read_ms + writes * costs.hdd_write_ms,
        Placed::Memory => writes * costs.hdd_write_ms,
        Placed::Ssd => reads * costs.ssd_read_ms + writes * costs.ssd_write_ms,
        Placed::Both => writes * costs.ssd_write_ms,
    }
}

/// Returns the placement of least cost with at most `memory_pages` in memory and `ssd_pages` on the SSD.
/// Capacity that would save nothing remains unused.
#[must_use]
pub fn optimal_placement(
    pages: &[PageLoad],
    memory_pages: usize,
    ssd_pages: usize,
    costs: &Costs,
) -> Placement {
    let mut search = Search::new(pages, costs);
    for _ in 0..memory_pages {
        // Nothing more to save: further units would stay unused as well.
        if !search.add(Tier::Memory) {
            break;
        }
    }
    for _ in 0..ssd_pages {
        if !search.add(Tier::Ssd) {
            break;
        }
    }
    priced(search.places, pages, costs)
}

/// Returns the placement of the two-step heuristic that the paper compares with the optimum: it fills memory
/// as if there were no SSD, then the SSD, given what is in memory.
#[must_use]
pub fn two_step_placement(
    pages: &[PageLoad],
    memory_pages: usize,
    ssd_pages: usize,
    costs: &Costs,
) -> Placement {
    let mut places = vec![Placed::Nowhere; pages.len()];
    // The heuristic's fault, and its point: memory takes the most read pages first, without knowing that the
    // SSD could serve them.
    for (tier, pages_max) in [(Tier::Memory, memory_pages), (Tier::Ssd, ssd_pages)] {
        let mut gains: Vec<(f64, usize)> = (0..pages.len())
            .filter_map(|at| {
                // A page in memory may still gain by a copy on the SSD: its writes become cheaper.
                let to = with(places[at], tier)?;
                Some((gain(pages[at], places[at], to, costs), at))
            })
            .filter(|(gain, _)| *gain > 0.0)
            .collect();
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, at) in gains.into_iter().take(pages_max) {
            places[at] = with(places[at], tier).unwrap_or(places[at]);
        }
    }
    priced(places, pages, costs)
}

fn priced(places: Vec<Placed>, pages: &[PageLoad], costs: &Costs) -> Placement {
    let cost_ms = pages.iter().zip(&places).map(|(page, place)| placed_cost_ms(*page, *place, costs)).sum();
    Placement { places, cost_ms }
}

fn gain(page: PageLoad, from: Placed, to: Placed, costs: &Costs) -> f64 {
    placed_cost_ms(page, from, costs) - placed_cost_ms(page, to, costs)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    Memory,
    Ssd,
}

impl Tier {
    const fn other(self) -> Self {
        match self {
            Self::Memory => Self::Ssd,
            Self::Ssd => Self::Memory,
        }
    }

    const fn alone(self) -> Placed {
        match self {
            Self::Memory => Placed::Memory,
            Self::Ssd => Placed::Ssd,
        }
    }
}

/// Returns `place` with `tier` added, or `None` if `place` includes it already.
fn with(place: Placed, tier: Tier) -> Option<Placed> {
    match place {
        Placed::Nowhere => Some(tier.alone()),
        Placed::Both => None,
        one if one == tier.alone() => None,
        _ => Some(Placed::Both),
    }
}

/// A change of one page's place, ordered by the saving.
#[derive(Clone, Copy, Debug)]
struct Move {
    gain: f64,
    page: usize,
    from: Placed,
    to: Placed,
}

impl Ord for Move {
    fn cmp(&self, other: &Self) -> Ordering {
        // Ties by page, so that runs are reproducible.
        self.gain.total_cmp(&other.gain).then_with(|| other.page.cmp(&self.page))
    }
}

impl PartialOrd for Move {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Move {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Move {}

/// The possible moves, best first. A move whose page has moved since is discarded when it reaches the top.
struct Search<'a> {
    pages: &'a [PageLoad],
    costs: &'a Costs,
    places: Vec<Placed>,
    /// Moves that add memory, or the SSD, to a page's place.
    gains: [BinaryHeap<Move>; 2],
    /// Moves from the other tier into memory, or onto the SSD.
    shifts: [BinaryHeap<Move>; 2],
}

impl<'a> Search<'a> {
    fn new(pages: &'a [PageLoad], costs: &'a Costs) -> Self {
        let places = vec![Placed::Nowhere; pages.len()];
        let mut this = Self { pages, costs, places, gains: Default::default(), shifts: Default::default() };
        for page in 0..pages.len() {
            this.offer(page);
        }
        this
    }

    /// Uses one more unit of `tier`; returns false if that would save nothing.
    fn add(&mut self, tier: Tier) -> bool {
        let direct = best(&mut self.gains[tier as usize], &self.places);
        let shift = best(&mut self.shifts[tier as usize], &self.places);
        // A shift frees a unit of the other tier; the page that gains most from it takes it.
        let refill = best(&mut self.gains[tier.other() as usize], &self.places).filter(|m| m.gain > 0.0);
        let worth = |m: Option<Move>| m.map_or(f64::NEG_INFINITY, |m| m.gain);
        let over = worth(shift) + refill.map_or(0.0, |m| m.gain);
        // The two augmenting paths that can be best: one page enters the tier, or one moves over and another
        // takes the unit it leaves.
        let (first, second) = if worth(direct) >= over { (direct, None) } else { (shift, refill) };
        let Some(first) = first.filter(|_| worth(direct).max(over) > 0.0) else { return false };
        self.go(first);
        // If both move the same page, the direct move is as good.
        if let Some(second) = second.filter(|m| m.page != first.page) {
            self.go(second);
        }
        true
    }

    fn go(&mut self, to: Move) {
        self.places[to.page] = to.to;
        self.offer(to.page);
    }

    /// Adds the moves that `page` can make from its present place.
    fn offer(&mut self, page: usize) {
        let from = self.places[page];
        for tier in [Tier::Memory, Tier::Ssd] {
            let to_move = |to| Move { gain: gain(self.pages[page], from, to, self.costs), page, from, to };
            if let Some(to) = with(from, tier) {
                self.gains[tier as usize].push(to_move(to));
            }
            if from == tier.other().alone() {
                self.shifts[tier as usize].push(to_move(tier.alone()));
            }
        }
    }
}

/// Returns the best move that is still possible, and leaves it in the heap.
fn best(moves: &mut BinaryHeap<Move>, places: &[Placed]) -> Option<Move> {
    while let Some(top) = moves.peek() {
        // Cheaper than finding and removing a page's moves in the heap each time that it moves.
        if places[top.page] == top.from {
            return Some(*top);
        }
        moves.pop();
    }
    None
}
