//! Compares the static placement with every possible placement, and checks the instance of the 2014 paper.

use pagetier_policy::Costs;
use pagetier_testing::placement::{PageLoad, Placed, optimal_placement, placed_cost_ms, two_step_placement};
use proptest::prelude::*;

const COSTS: Costs = Costs { hdd_read_ms: 12.0, hdd_write_ms: 12.5, ssd_read_ms: 0.16, ssd_write_ms: 0.4 };
const ALL: [Placed; 4] = [Placed::Nowhere, Placed::Memory, Placed::Ssd, Placed::Both];

fn by_trying_all(pages: &[PageLoad], memory: usize, ssd: usize, costs: &Costs) -> f64 {
    let Some((page, rest)) = pages.split_first() else { return 0.0 };
    let at = |place| {
        let memory = memory.checked_sub(usize::from(matches!(place, Placed::Memory | Placed::Both)))?;
        let ssd = ssd.checked_sub(usize::from(matches!(place, Placed::Ssd | Placed::Both)))?;
        Some(placed_cost_ms(*page, place, costs) + by_trying_all(rest, memory, ssd, costs))
    };
    ALL.into_iter().filter_map(at).fold(f64::INFINITY, f64::min)
}

fn loads() -> impl Strategy<Value = Vec<PageLoad>> {
    let load = (0u32..12, 0u32..12).prop_map(|(r, w)| PageLoad { reads: r.into(), writes: w.into() });
    proptest::collection::vec(load, 0..8)
}

fn costs() -> impl Strategy<Value = Costs> {
    // Includes devices whose SSD writes more slowly than the HDD.
    (1u32..20, 1u32..20, 1u32..20, 1u32..20).prop_map(|(a, b, c, d)| Costs {
        hdd_read_ms: f64::from(a),
        hdd_write_ms: f64::from(b),
        ssd_read_ms: f64::from(c.min(a)),
        ssd_write_ms: f64::from(d),
    })
}

proptest! {
    #[test]
    fn no_placement_costs_less(pages in loads(), memory in 0usize..6, ssd in 0usize..6, costs in costs()) {
        let found = optimal_placement(&pages, memory, ssd, &costs);
        let least = by_trying_all(&pages, memory, ssd, &costs);
        prop_assert!((found.cost_ms - least).abs() < 1e-6, "{} instead of {least}: {:?}", found.cost_ms, found.places);
        prop_assert!(found.count(Placed::Memory) + found.count(Placed::Both) <= memory);
        prop_assert!(found.count(Placed::Ssd) + found.count(Placed::Both) <= ssd);
        prop_assert!(two_step_placement(&pages, memory, ssd, &costs).cost_ms >= least - 1e-6);
    }
}

/// "Their read and write counts fill the space": 30 x 30 pages. The paper does not give the scale of the
/// axes.
fn grid(write_step: u32) -> Vec<PageLoad> {
    let load = |i: u32| PageLoad { reads: (i % 30 + 1).into(), writes: ((i / 30 + 1) * write_step).into() };
    (0..900).map(load).collect()
}

#[test]
fn the_papers_instance_shows_the_papers_differences() {
    let pages = grid(2);
    let (optimal, two_step) =
        (optimal_placement(&pages, 150, 200, &COSTS), two_step_placement(&pages, 150, 200, &COSTS));
    assert!(optimal.cost_ms < two_step.cost_ms);
    // Figure 3(b): no page is in both; those read and written most are on the SSD and not in memory.
    assert_eq!((optimal.count(Placed::Memory), optimal.count(Placed::Ssd)), (150, 200));
    assert_eq!((optimal.count(Placed::Both), optimal.places[899]), (0, Placed::Ssd));
    // Figure 3(a): these pages are in memory, and the most frequently written of them on the SSD too.
    let both = two_step.count(Placed::Both);
    assert!(both > 0 && two_step.count(Placed::Memory) > both, "{both}");
    assert_eq!(two_step.places[899], Placed::Both);
}

#[test]
fn with_as_many_writes_as_reads_the_heuristic_keeps_no_page_twice_and_still_costs_more() {
    let pages = grid(1);
    let (optimal, two_step) =
        (optimal_placement(&pages, 150, 200, &COSTS), two_step_placement(&pages, 150, 200, &COSTS));
    assert_eq!((optimal.count(Placed::Both), two_step.count(Placed::Both)), (0, 0));
    assert_eq!((optimal.places[899], two_step.places[899]), (Placed::Ssd, Placed::Memory));
    assert!(optimal.cost_ms < two_step.cost_ms * 0.99, "{} {}", optimal.cost_ms, two_step.cost_ms);
}

#[test]
fn a_hundred_thousand_pages_are_no_trouble() {
    let pages: Vec<PageLoad> = (0..100_000u32)
        .map(|i| PageLoad {
            reads: f64::from(i % 317),
            writes: f64::from(i.wrapping_mul(2_654_435_761) % 211),
        })
        .collect();
    let placed = optimal_placement(&pages, 3_000, 30_000, &Costs::PAPER);
    assert_eq!(placed.count(Placed::Memory) + placed.count(Placed::Both), 3_000);
    assert_eq!(placed.count(Placed::Ssd) + placed.count(Placed::Both), 30_000);
}
