//! The static two-tier placement of the 2014 paper (section 3): which pages belong into memory, which onto
//! the SSD, when it is known how often each is read and written, and nothing moves. A bound for what the
//! dynamic policies can reach.
//!
//! A page saves, against being in neither tier (the paper's Figure 2):
//!
//! | in | saves |
//! | --- | --- |
//! | memory | r R_D |
//! | SSD | r (R_D - R_S) + w (W_D - W_S) |
//! | both | r R_D + w (W_D - W_S) |
//!
//! Choosing under the two capacities is a flow of minimal cost: two sources (the tiers), each page takes at
//! most one unit of each, and its first unit and its second are worth what the table says.
//! [`optimal_placement`] adds one unit of capacity after the other by the best augmenting path, which changes
//! the place of at most two pages: one gains the tier directly, or one moves over from the other tier and
//! another takes the unit that it leaves. So it is exact, in O((C_M + C_S) log N).

use crate::Costs;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// How often a page is read (r_i) and written (w_i).
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
    /// How many pages are at `place`.
    #[must_use]
    pub fn count(&self, place: Placed) -> usize {
        self.places.iter().filter(|p| **p == place).count()
    }
}

/// What `page` costs at `place` (2014 paper, Figure 2), in milliseconds.
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

/// The placement of least cost with at most `memory_pages` in memory and `ssd_pages` on the SSD. Room that
/// would save nothing stays free.
#[must_use]
pub fn optimal_placement(
    pages: &[PageLoad],
    memory_pages: usize,
    ssd_pages: usize,
    costs: &Costs,
) -> Placement {
    let mut search = Search::new(pages, costs);
    for _ in 0..memory_pages {
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

/// The two-step heuristic that the paper sets against the optimum: memory as if there were no SSD, then the
/// SSD, given memory.
#[must_use]
pub fn two_step_placement(
    pages: &[PageLoad],
    memory_pages: usize,
    ssd_pages: usize,
    costs: &Costs,
) -> Placement {
    let mut places = vec![Placed::Nowhere; pages.len()];
    for (tier, room) in [(Tier::Memory, memory_pages), (Tier::Ssd, ssd_pages)] {
        let mut gains: Vec<(f64, usize)> = (0..pages.len())
            .filter_map(|at| {
                let to = with(places[at], tier)?;
                Some((gain(pages[at], places[at], to, costs), at))
            })
            .filter(|(gain, _)| *gain > 0.0)
            .collect();
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, at) in gains.into_iter().take(room) {
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

/// The place of a page at `place` that gets `tier` too; none if it has it.
fn with(place: Placed, tier: Tier) -> Option<Placed> {
    match place {
        Placed::Nowhere => Some(tier.alone()),
        Placed::Both => None,
        one if one == tier.alone() => None,
        _ => Some(Placed::Both),
    }
}

/// A change of one page's place, by what it saves.
#[derive(Clone, Copy, Debug)]
struct Move {
    gain: f64,
    page: usize,
    from: Placed,
    to: Placed,
}

impl Ord for Move {
    fn cmp(&self, other: &Self) -> Ordering {
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

/// The best moves so far known, best first; those whose page has moved since are thrown away when they come
/// up.
struct Search<'a> {
    pages: &'a [PageLoad],
    costs: &'a Costs,
    places: Vec<Placed>,
    /// Moves by which a page gains memory, or the SSD.
    gains: [BinaryHeap<Move>; 2],
    /// Moves over from the other tier into memory, or onto the SSD.
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

    /// Uses one more unit of `tier`. False when that would save nothing.
    fn add(&mut self, tier: Tier) -> bool {
        let direct = best(&mut self.gains[tier as usize], &self.places);
        let shift = best(&mut self.shifts[tier as usize], &self.places);
        // The unit of the other tier that a shift leaves goes to whom it helps most.
        let refill = best(&mut self.gains[tier.other() as usize], &self.places).filter(|m| m.gain > 0.0);
        let worth = |m: Option<Move>| m.map_or(f64::NEG_INFINITY, |m| m.gain);
        let over = worth(shift) + refill.map_or(0.0, |m| m.gain);
        let (first, second) = if worth(direct) >= over { (direct, None) } else { (shift, refill) };
        let Some(first) = first.filter(|_| worth(direct).max(over) > 0.0) else { return false };
        self.go(first);
        // Where both are moves of one page, the direct move was as good.
        if let Some(second) = second.filter(|m| m.page != first.page) {
            self.go(second);
        }
        true
    }

    fn go(&mut self, to: Move) {
        self.places[to.page] = to.to;
        self.offer(to.page);
    }

    /// Adds the moves that `page` can make now.
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

/// The best move that can still be made; it stays.
fn best(moves: &mut BinaryHeap<Move>, places: &[Placed]) -> Option<Move> {
    while let Some(top) = moves.peek() {
        if places[top.page] == top.from {
            return Some(*top);
        }
        moves.pop();
    }
    None
}
