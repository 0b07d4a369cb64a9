//! Hand-computed traces of the extension to CAC that keeps a sketch behind the outqueue.

use crate::cac::options;
use pagetier_policy::ssd::{Cac, CacOptions};
use pagetier_policy::{Access, Costs, Location, Millis, PageId, SlotPolicy, SlotPolicyParams, SpaceId};

const COSTS: Costs = Costs { hdd_read_ms: 70.0, hdd_write_ms: 50.0, ssd_read_ms: 1.0, ssd_write_ms: 3.0 };
const NOW: Millis = Millis(0);

/// All pages are in one group; α stays 1 while no page is read from the SSD.
fn params() -> SlotPolicyParams {
    SlotPolicyParams { outqueue_entries: 2, subranges_max: 1, ..SlotPolicyParams::new(COSTS, 4, 4) }
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Reads the page from the HDD and lets it leave the pool.
fn visit(policy: &mut dyn SlotPolicy, page: PageId) {
    policy.read(page, Some(Location::Hdd), Access::Random, NOW);
    policy.left_pool(page, NOW);
}

fn benefit(policy: &dyn SlotPolicy, page: PageId) -> f64 {
    policy.benefit(page).expect("tracked")
}

#[test]
fn a_page_that_dropped_out_of_the_outqueue_gets_its_reads_back() {
    let mut plain = Cac::new(CacOptions::CAC, &params());
    let mut sketched = Cac::new(options("cac:sketch"), &params());
    for policy in [&mut plain as &mut dyn SlotPolicy, &mut sketched] {
        (0..3).for_each(|_| visit(policy, p(1)));
        // The outqueue has two entries.
        visit(policy, p(2));
        visit(policy, p(3));
        assert_eq!(policy.benefit(p(1)), None);
        visit(policy, p(1));
        policy.validate().unwrap();
    }
    assert_eq!(benefit(&plain, p(1)), 69.0);
    assert_eq!(benefit(&sketched, p(1)), 4.0 * 69.0);
    // Dropped once more, the page leaves all four reads in the sketch.
    visit(&mut sketched, p(2));
    visit(&mut sketched, p(3));
    sketched.read(p(1), Some(Location::Hdd), Access::Sequential, NOW);
    assert_eq!(benefit(&sketched, p(1)), 4.0 * 69.0);
}

#[test]
fn a_page_made_anew_has_no_earlier_reads() {
    let mut policy = Cac::new(options("cac:sketch"), &params());
    for no in [1, 1, 2, 3] {
        visit(&mut policy, p(no));
    }
    policy.read(p(1), None, Access::Random, NOW);
    assert_eq!(benefit(&policy, p(1)), 0.0);
}

#[test]
fn what_the_sketch_knows_is_halved_with_the_counts() {
    let params = SlotPolicyParams { sketch_halved_after_per_slot: 2, ..params() };
    // Seven accesses; the eighth halves: four reads of page 1 become two.
    let seven = [1, 1, 1, 1, 2, 3, 3];
    let mut policy = Cac::new(options("cac:sketch"), &params);
    let mut aged = Cac::new(options("cac:ageing=2,sketch"), &params);
    for policy in [&mut policy as &mut dyn SlotPolicy, &mut aged] {
        for no in seven {
            visit(policy, p(no));
        }
        assert_eq!(policy.benefit(p(1)), None);
        visit(policy, p(3));
        visit(policy, p(1));
        assert_eq!(benefit(policy, p(1)), 3.0 * 69.0);
        policy.validate().unwrap();
    }
    // The counts of `policy` accumulate, those of `aged` were halved.
    assert_eq!([benefit(&policy, p(3)), benefit(&aged, p(3))], [3.0 * 69.0, 1.5 * 69.0]);
}
