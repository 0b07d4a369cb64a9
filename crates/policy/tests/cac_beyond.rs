//! Hand-computed traces of the extensions to CAC: dirty victims, rewritten pages, the sketch.

use pagetier_policy::ssd::{Cac, CacOptions};
use pagetier_policy::{
    Access, Cause, Costs, Location, Millis, PageId, SlotId, SlotPolicy, SlotPolicyParams, SpaceId, SsdPolicy,
    Verdict,
};

const COSTS: Costs = Costs { hdd_read_ms: 70.0, hdd_write_ms: 50.0, ssd_read_ms: 1.0, ssd_write_ms: 3.0 };
const NOW: Millis = Millis(0);

/// Returns the options that a policy's name selects.
fn options(name: &str) -> CacOptions {
    match name.parse() {
        Ok(SsdPolicy::Cac(options)) => options,
        other => panic!("{name}: {other:?}"),
    }
}

/// All pages are in one group; α stays 1 while no page is read from the SSD.
fn params() -> SlotPolicyParams {
    SlotPolicyParams { outqueue_entries: 2, subranges_max: 1, ..SlotPolicyParams::new(COSTS, 4, 4) }
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn s(no: u32) -> SlotId {
    SlotId(no)
}

/// Reads the page from the HDD and lets it leave the pool.
fn visit(policy: &mut dyn SlotPolicy, page: PageId) {
    policy.read(page, Some(Location::Hdd), Access::Random, NOW);
    policy.left_pool(page, NOW);
}

fn zone(policy: &mut dyn SlotPolicy, k: usize) -> Vec<u32> {
    let mut out = Vec::new();
    policy.start_zone(k, &mut |_| true, NOW, &mut out);
    out.iter().map(|slot| slot.0).collect()
}

fn benefit(policy: &dyn SlotPolicy, page: PageId) -> f64 {
    policy.benefit(page).expect("tracked")
}

/// Puts pages 0 and 1 into the slots of their numbers; page 0 is written there once and therefore dirty.
fn one_dirty_one_clean(policy: &mut dyn SlotPolicy) {
    for no in [0, 1] {
        visit(policy, p(no));
        policy.inserted(p(no), s(no), NOW);
    }
    policy.wrote(p(0), Location::Ssd, NOW);
}

#[test]
fn a_dirty_slot_is_worth_the_copy_that_evicting_it_costs() {
    let mut policy = Cac::new(options("cac:dirty"), &params());
    one_dirty_one_clean(&mut policy);
    // One read each; page 0 has one write, and its eviction costs R_S + W_D.
    assert_eq!([p(0), p(1)].map(|page| benefit(&policy, page)), [69.0 + 47.0 + 51.0, 69.0]);
    policy.copied_home(p(0), s(0));
    assert_eq!(benefit(&policy, p(0)), 69.0 + 47.0);
    // Written again, page 0 is dirty again until it loses its slot.
    policy.wrote(p(0), Location::Ssd, NOW);
    assert_eq!(benefit(&policy, p(0)), 69.0 + 94.0 + 51.0);
    policy.removed(p(0), true, NOW);
    assert_eq!(benefit(&policy, p(0)), 69.0 + 94.0);
    // The next page in the slot is clean.
    policy.inserted(p(1), s(0), NOW);
    assert_eq!(benefit(&policy, p(1)), 69.0);
    policy.validate().unwrap();
}

#[test]
fn of_two_victims_the_clean_one_goes_though_it_is_worth_a_little_more() {
    let victim = |policy: &mut dyn SlotPolicy| {
        one_dirty_one_clean(policy);
        // Page 1 has two reads, 138; page 0 has a read and a write, 116, plus 51 for the copy.
        visit(policy, p(1));
        visit(policy, p(2));
        (0..3).for_each(|_| visit(policy, p(2)));
        assert_eq!(zone(policy, 2).len(), 2);
        policy.consider(p(2), Cause::Evicted, 0, &mut |_| true, NOW)
    };
    assert_eq!(victim(&mut Cac::new(CacOptions::CAC, &params())), Verdict::AdmitOver(s(0)));
    assert_eq!(victim(&mut Cac::new(options("cac:dirty"), &params())), Verdict::AdmitOver(s(1)));
}

#[test]
fn a_copy_home_within_the_zone_makes_its_slot_the_next_to_go() {
    let mut policy = Cac::new(options("cac:dirty"), &params());
    one_dirty_one_clean(&mut policy);
    visit(&mut policy, p(1));
    assert_eq!(zone(&mut policy, 2), [1, 0]);
    // A late report, for a slot that the page is not in, is ignored.
    policy.copied_home(p(0), s(1));
    policy.copied_home(p(3), s(3));
    let mut next = Vec::new();
    policy.next_victims(1, NOW, &mut next);
    assert_eq!(next, [s(1)]);
    policy.copied_home(p(0), s(0));
    next.clear();
    policy.next_victims(1, NOW, &mut next);
    assert_eq!(next, [s(0)]);
    policy.validate().unwrap();
}

#[test]
fn a_copy_counts_as_far_as_the_page_is_rewritten() {
    let mut policy = Cac::new(options("cac:rewrite"), &params());
    one_dirty_one_clean(&mut policy);
    // Written once: nothing indicates another write.
    assert_eq!(benefit(&policy, p(0)), 69.0 + 47.0);
    policy.wrote(p(0), Location::Ssd, NOW);
    // One of two writes was followed by another: half of twice the copy's cost.
    assert_eq!(benefit(&policy, p(0)), 69.0 + 94.0 + 2.0 * 51.0 / 2.0);
    policy.wrote(p(0), Location::Ssd, NOW);
    policy.wrote(p(0), Location::Ssd, NOW);
    assert_eq!(benefit(&policy, p(0)), 69.0 + 4.0 * 47.0 + 2.0 * 51.0 * 0.75);
    // A write to the HDD leaves no dirty slot, but counts as a write that another followed.
    policy.removed(p(0), false, NOW);
    policy.wrote(p(0), Location::Hdd, NOW);
    assert_eq!(benefit(&policy, p(0)), 69.0 + 5.0 * 47.0);
    policy.inserted(p(0), s(0), NOW);
    policy.wrote(p(0), Location::Ssd, NOW);
    let expected = 69.0 + 6.0 * 47.0 + 2.0 * 51.0 * 5.0 / 6.0;
    assert!((benefit(&policy, p(0)) - expected).abs() < 1e-9);
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
    let mut aged = Cac::new(options("cac:ageing=2,write-at-hand,rewrite,sketch"), &params);
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
