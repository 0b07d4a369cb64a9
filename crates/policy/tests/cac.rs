//! Hand-computed traces of CAC and CC: equations, groups, limits of α, outqueue, zone.

use pagetier_policy::ssd::{Cac, CacOptions, Dropped, NoSsd};
use pagetier_policy::{
    Access, Cause, Costs, GroupStats, Location, Millis, PageId, SlotId, SlotPolicy, SlotPolicyParams,
    SlotReport, SpaceId, SsdPolicy, Verdict,
};

const COSTS: Costs = Costs { hdd_read_ms: 70.0, hdd_write_ms: 50.0, ssd_read_ms: 1.0, ssd_write_ms: 3.0 };
const NOW: Millis = Millis(0);

/// Returns the options that a policy's name selects.
pub(crate) fn options(name: &str) -> CacOptions {
    match name.parse() {
        Ok(SsdPolicy::Cac(options)) => options,
        other => panic!("{name}: {other:?}"),
    }
}

fn params() -> SlotPolicyParams {
    SlotPolicyParams { outqueue_entries: 8, ..SlotPolicyParams::new(COSTS, 4, 4) }
}

/// Page `no` of space 1, which shares its groups with the space's other pages.
fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Page 0 of space `space`.
fn alone(space: u32) -> PageId {
    PageId::new(SpaceId(space), 0)
}

fn s(no: u32) -> SlotId {
    SlotId(no)
}

/// Reads the page from `location`, reads it `hits` more times in memory, and evicts it.
fn visit(policy: &mut dyn SlotPolicy, page: PageId, location: Location, hits: u32, now: Millis) {
    policy.read(page, Some(location), Access::Random, now);
    policy.logical(page, hits, location, now);
    policy.left_pool(page, now);
}

fn zone(policy: &mut dyn SlotPolicy, k: usize) -> Vec<u32> {
    let mut out = Vec::new();
    policy.start_zone(k, &mut |_| true, NOW, &mut out);
    out.iter().map(|slot| slot.0).collect()
}

fn only_group(policy: &dyn SlotPolicy) -> GroupStats {
    let groups: Vec<_> = policy.groups().into_iter().filter(|g| g.pages > 0).collect();
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups[0]
}

#[test]
fn cc_is_equation_1() {
    let mut cc = Cac::new(CacOptions::CC, &params());
    visit(&mut cc, p(1), Location::Hdd, 9, NOW);
    cc.inserted(p(1), s(0), NOW);
    visit(&mut cc, p(1), Location::Ssd, 9, NOW);
    visit(&mut cc, p(1), Location::Ssd, 9, NOW);
    cc.wrote(p(1), Location::Ssd, NOW);
    // r = 1 + 2, w = 1.
    assert_eq!(cc.benefit(p(1)), Some(3.0 * 69.0 + 47.0));
    assert_eq!(cc.groups(), []);
}

#[test]
fn cac_is_equations_2_to_6() {
    // One subrange, so that the space has one group.
    let mut cac = Cac::new(CacOptions::CAC, &SlotPolicyParams { subranges_max: 1, ..params() });
    // Off the SSD: 2 physical of 20 logical reads, one write.
    visit(&mut cac, p(1), Location::Hdd, 9, NOW);
    cac.read(p(1), Some(Location::Hdd), Access::Random, NOW);
    cac.logical(p(1), 9, Location::Hdd, NOW);
    cac.wrote(p(1), Location::Hdd, NOW);
    // Admitted when evicted; on the SSD: 2 physical of 5 logical reads, three writes.
    cac.inserted(p(1), s(0), NOW);
    cac.left_pool(p(1), NOW);
    visit(&mut cac, p(1), Location::Ssd, 0, NOW);
    cac.read(p(1), Some(Location::Ssd), Access::Random, NOW);
    cac.logical(p(1), 3, Location::Ssd, NOW);
    for _ in 0..3 {
        cac.wrote(p(1), Location::Ssd, NOW);
    }
    let group = only_group(&cac);
    assert_eq!((group.miss_rate_ssd, group.miss_rate_hdd), (Some(2.0 / 5.0), Some(2.0 / 20.0)));
    assert_eq!(group.alpha, 4.0);
    // r̂_D = 2 + 2/4, r̂_S = 2 + 4·2, ŵ_D = 1 + 3/4, ŵ_S = 3 + 4·1.
    assert_eq!(cac.benefit(p(1)), Some((2.5 * 70.0 - 10.0) + (1.75 * 50.0 - 7.0 * 3.0)));
    cac.set_costs(Costs { hdd_read_ms: 10.0, ..COSTS });
    assert_eq!(cac.benefit(p(1)), Some((2.5 * 10.0 - 10.0) + (1.75 * 50.0 - 7.0 * 3.0)));
}

#[test]
fn sequential_reads_and_allocations_do_not_count() {
    let mut cac = Cac::new(CacOptions::CAC, &params());
    cac.read(p(1), Some(Location::Hdd), Access::Sequential, NOW);
    cac.read(p(2), None, Access::Random, NOW);
    assert_eq!((cac.benefit(p(1)), cac.benefit(p(2))), (Some(0.0), Some(0.0)));
    cac.validate().unwrap();
}

#[test]
fn alpha_at_its_borders() {
    // Per case: the physical and the further logical reads on the SSD, those off it, and α.
    let cases = [
        ("never on the SSD", None, Some((1, 9)), 1.0),
        ("never off it: m_D counts as 0", Some((1, 9)), None, 1000.0),
        ("missed on the SSD alone", Some((1, 9)), Some((0, 10)), 1000.0),
        ("never missed", Some((0, 10)), Some((0, 10)), 1.0),
        ("missed off the SSD alone", Some((0, 10)), Some((1, 9)), 0.001),
        ("missed as often", Some((1, 9)), Some((1, 9)), 1.0),
    ];
    for (case, on, off, alpha) in cases {
        let mut cac = Cac::new(CacOptions::CAC, &SlotPolicyParams { subranges_max: 1, ..params() });
        for (location, reads) in [(Location::Hdd, off), (Location::Ssd, on)] {
            let Some((physical, hits)) = reads else { continue };
            if location == Location::Ssd {
                cac.inserted(p(1), s(0), NOW);
            }
            // A prefetched or allocated page has logical reads without a physical read that counts.
            let access = if physical == 1 { Access::Random } else { Access::Sequential };
            cac.read(p(1), Some(location), access, NOW);
            cac.logical(p(1), hits, location, NOW);
            cac.left_pool(p(1), NOW);
        }
        assert_eq!(only_group(&cac).alpha, alpha, "{case}");
        cac.validate().unwrap();
    }
}

#[test]
fn group_sums_move_on_the_three_events_only() {
    let mut cac = Cac::new(CacOptions::CAC, &SlotPolicyParams { subranges_max: 1, ..params() });
    let sums = |cac: &Cac| cac.groups().first().map(|g| (g.miss_rate_ssd, g.miss_rate_hdd));
    cac.read(p(1), Some(Location::Hdd), Access::Random, NOW);
    cac.logical(p(1), 1, Location::Hdd, NOW);
    cac.wrote(p(1), Location::Hdd, NOW);
    assert_eq!(sums(&cac), None);
    // A dirty page flushed to the SSD.
    cac.inserted(p(1), s(0), NOW);
    cac.wrote(p(1), Location::Ssd, NOW);
    assert_eq!(sums(&cac), Some((None, Some(0.5))));
    cac.logical(p(1), 5, Location::Ssd, NOW);
    assert_eq!(sums(&cac), Some((None, Some(0.5))));
    // The page evicted from the SSD.
    cac.removed(p(1), true, NOW);
    assert_eq!(sums(&cac), Some((Some(0.0), Some(0.5))));
    cac.logical(p(1), 2, Location::Hdd, NOW);
    assert_eq!(sums(&cac), Some((Some(0.0), Some(0.5))));
    // The page evicted from the pool.
    cac.left_pool(p(1), NOW);
    assert_eq!(sums(&cac), Some((Some(0.0), Some(0.25))));
}

#[test]
fn a_page_whose_rate_changed_takes_its_counts_to_another_group() {
    let mut cac = Cac::new(CacOptions::CAC, &params());
    // Ten reads in the first minute: a page younger than a minute counts as one minute old.
    visit(&mut cac, p(1), Location::Hdd, 9, Millis(0));
    assert_eq!(only_group(&cac).subrange, 10);
    // Twelve in four minutes.
    visit(&mut cac, p(1), Location::Hdd, 1, Millis(240_000));
    let group = only_group(&cac);
    assert_eq!((group.subrange, group.miss_rate_hdd), (3, Some(2.0 / 12.0)));
    let emptied: Vec<_> =
        cac.groups().into_iter().filter(|g| g.pages == 0 && g.miss_rate_hdd.is_some()).collect();
    assert_eq!(emptied, []);
    // The last subrange is open-ended.
    visit(&mut cac, p(1), Location::Hdd, 1_000_000, Millis(240_000));
    assert_eq!(only_group(&cac).subrange, 999);
    cac.validate().unwrap();
}

#[test]
fn more_logical_reads_than_fit_a_counter_are_not_lost() {
    let mut cac = Cac::new(CacOptions::CAC, &SlotPolicyParams { subranges_max: 1, ..params() });
    cac.read(p(1), Some(Location::Hdd), Access::Random, NOW);
    cac.logical(p(1), 199_999, Location::Hdd, NOW);
    cac.left_pool(p(1), NOW);
    assert_eq!(only_group(&cac).miss_rate_hdd, Some(1.0 / 200_000.0));
}

#[test]
fn a_page_that_drops_out_of_the_outqueue_leaves_its_reads_or_takes_them() {
    for (dropped, left) in [(Dropped::Kept, Some(0.5)), (Dropped::Subtracted, None)] {
        let mut cac = Cac::new(
            CacOptions::CAC,
            &SlotPolicyParams { outqueue_entries: 0, subranges_max: 1, dropped, ..params() },
        );
        visit(&mut cac, p(1), Location::Hdd, 1, NOW);
        assert_eq!(cac.benefit(p(1)), None);
        assert_eq!(cac.groups().first().and_then(|g| g.miss_rate_hdd), left, "{dropped:?}");
        cac.validate().unwrap();
    }
}

#[test]
fn the_outqueue_drops_what_was_inserted_longest_ago() {
    let mut cc = Cac::new(CacOptions::CC, &SlotPolicyParams { outqueue_entries: 2, ..params() });
    let remembered = |cc: &Cac| [1, 2, 3].map(|no| cc.benefit(p(no)).is_some());
    visit(&mut cc, p(1), Location::Hdd, 0, NOW);
    visit(&mut cc, p(2), Location::Hdd, 0, NOW);
    // Read again and evicted again, 1 becomes the newest entry, with both reads remembered.
    visit(&mut cc, p(1), Location::Hdd, 0, NOW);
    assert_eq!(cc.benefit(p(1)), Some(2.0 * 69.0));
    visit(&mut cc, p(3), Location::Hdd, 0, NOW);
    assert_eq!(remembered(&cc), [true, false, true]);
    // Buffered pages and pages on the SSD are not in the outqueue.
    cc.read(p(1), Some(Location::Hdd), Access::Random, NOW);
    visit(&mut cc, p(2), Location::Hdd, 0, NOW);
    assert_eq!(remembered(&cc), [true, true, true]);
    cc.inserted(p(3), s(0), NOW);
    cc.left_pool(p(1), NOW);
    assert_eq!(remembered(&cc), [true, true, true]);
    // Evicted from the SSD while not buffered, 3 enters the outqueue again.
    cc.removed(p(3), true, NOW);
    assert_eq!(remembered(&cc), [true, false, true]);
    cc.validate().unwrap();
}

/// Puts pages 0 to 3 into slots 0 to 3; page n was read n + 1 times.
fn filled(policy: &mut dyn SlotPolicy) {
    for no in 0..4 {
        for _ in 0..=no {
            visit(policy, p(no), Location::Hdd, 0, NOW);
        }
        policy.inserted(p(no), s(no), NOW);
    }
}

#[test]
fn free_slots_are_always_given() {
    for policy in [
        &mut Cac::new(CacOptions::CAC, &params()) as &mut dyn SlotPolicy,
        &mut Cac::new(CacOptions::CC, &params()),
    ] {
        assert_eq!(policy.consider(p(9), Cause::Evicted, 1, &mut |_| true, NOW), Verdict::AdmitFree);
        // Without a free slot, an unknown page is rejected.
        assert_eq!(policy.consider(p(9), Cause::Evicted, 0, &mut |_| true, NOW), Verdict::Reject);
    }
    assert_eq!(NoSsd.consider(p(9), Cause::Cleaned, 9, &mut |_| true, NOW), Verdict::Reject);
}

#[test]
fn only_the_zone_is_evicted_from() {
    let mut cc = Cac::new(CacOptions::CC, &params());
    filled(&mut cc);
    let ask = |cc: &mut Cac, page, unusable: &[u32]| {
        cc.consider(page, Cause::Cleaned, 0, &mut |slot| !unusable.contains(&slot.0), NOW)
    };
    visit(&mut cc, p(8), Location::Hdd, 0, NOW);
    visit(&mut cc, p(8), Location::Hdd, 0, NOW);
    // Without a zone there is no candidate.
    assert_eq!(ask(&mut cc, p(8), &[]), Verdict::Reject);
    assert_eq!(zone(&mut cc, 2), [0, 1]);
    assert_eq!(ask(&mut cc, p(8), &[]), Verdict::AdmitOver(s(0)));
    // Slot 1's page was also read twice: its benefit is not lower. Slots 2 and 3 are outside the zone.
    assert_eq!(ask(&mut cc, p(8), &[0]), Verdict::Reject);
    visit(&mut cc, p(8), Location::Hdd, 0, NOW);
    assert_eq!(ask(&mut cc, p(8), &[0]), Verdict::AdmitOver(s(1)));
    assert_eq!(ask(&mut cc, p(8), &[0, 1]), Verdict::Reject);
    // Refusals change nothing.
    assert_eq!(ask(&mut cc, p(8), &[]), Verdict::AdmitOver(s(0)));
    cc.removed(p(0), true, NOW);
    cc.inserted(p(8), s(0), NOW);
    // The admitted page is not a candidate before the next zone.
    for _ in 0..9 {
        visit(&mut cc, p(9), Location::Hdd, 0, NOW);
    }
    assert_eq!(ask(&mut cc, p(9), &[]), Verdict::AdmitOver(s(1)));
    cc.removed(p(1), false, NOW);
    assert_eq!(ask(&mut cc, p(9), &[]), Verdict::Reject);
    assert_eq!(zone(&mut cc, 9), [0, 2, 3]);
    cc.validate().unwrap();
}

#[test]
fn a_candidate_that_is_written_moves_up_within_the_zone() {
    let mut cac = Cac::new(CacOptions::CAC, &params());
    filled(&mut cac);
    assert_eq!(zone(&mut cac, 3), [0, 1, 2]);
    let mut next = Vec::new();
    cac.next_victims(2, NOW, &mut next);
    assert_eq!(next, [s(0), s(1)]);
    // 69 + 3 · 47, between the 207 of page 2 and the 276 of page 3.
    for _ in 0..3 {
        cac.wrote(p(0), Location::Ssd, NOW);
    }
    next.clear();
    cac.next_victims(9, NOW, &mut next);
    assert_eq!(next, [s(1), s(2), s(0)]);
    cac.forget(p(1));
    next.clear();
    cac.next_victims(0, NOW, &mut next);
    assert_eq!(next, []);
    cac.next_victims(9, NOW, &mut next);
    assert_eq!(next, [s(2), s(0)]);
    cac.validate().unwrap();
}

#[test]
fn a_candidate_that_outgrew_the_zone_is_none_any_more() {
    let mut cc = Cac::new(CacOptions::CC, &params());
    filled(&mut cc);
    let candidates = |cc: &mut Cac| {
        let mut next = Vec::new();
        cc.next_victims(9, NOW, &mut next);
        next.iter().map(|slot| slot.0).collect::<Vec<_>>()
    };
    let consider = |cc: &mut Cac| cc.consider(p(9), Cause::Evicted, 0, &mut |_| true, NOW);
    assert_eq!(zone(&mut cc, 2), [0, 1]);
    for _ in 0..9 {
        visit(&mut cc, p(0), Location::Ssd, 0, NOW);
    }
    visit(&mut cc, p(9), Location::Hdd, 0, NOW);
    // A zone of two holds for two decisions.
    assert_eq!(consider(&mut cc), Verdict::Reject);
    assert_eq!(candidates(&mut cc), [1, 0]);
    assert_eq!(consider(&mut cc), Verdict::Reject);
    assert_eq!(candidates(&mut cc), [1]);
    // At the benefit of page 2, the lowest outside, page 1 is still a candidate; above it, it is not.
    visit(&mut cc, p(1), Location::Ssd, 0, NOW);
    assert_eq!(candidates(&mut cc), [1]);
    visit(&mut cc, p(1), Location::Ssd, 0, NOW);
    for _ in 0..9 {
        visit(&mut cc, p(9), Location::Hdd, 0, NOW);
    }
    // The zone is exhausted, whatever the considered page's benefit.
    assert_eq!(consider(&mut cc), Verdict::Reject);
    assert_eq!(candidates(&mut cc), [0u32; 0]);
    assert_eq!(zone(&mut cc, 2), [2, 1]);
    assert_eq!(consider(&mut cc), Verdict::AdmitOver(s(2)));
    cc.validate().unwrap();
}

#[test]
fn candidates_of_a_strict_zone_stay_candidates() {
    let mut cc = Cac::new(options("cc:strict-zone"), &params());
    filled(&mut cc);
    assert_eq!(zone(&mut cc, 2), [0, 1]);
    for _ in 0..9 {
        visit(&mut cc, p(0), Location::Ssd, 0, NOW);
        visit(&mut cc, p(1), Location::Ssd, 0, NOW);
    }
    visit(&mut cc, p(9), Location::Hdd, 0, NOW);
    // Page 2 is below both candidates and the considered page, but outside the zone.
    for _ in 0..9 {
        assert_eq!(cc.consider(p(9), Cause::Evicted, 0, &mut |_| true, NOW), Verdict::Reject);
    }
    let mut next = Vec::new();
    cc.next_victims(9, NOW, &mut next);
    next.sort_unstable();
    assert_eq!(next, [s(0), s(1)]);
    cc.validate().unwrap();
}

#[test]
fn ineligible_slots_stay_out_of_the_zone() {
    let mut cc = Cac::new(CacOptions::CC, &params());
    filled(&mut cc);
    let mut out = Vec::new();
    cc.start_zone(2, &mut |slot| slot != s(0), NOW, &mut out);
    assert_eq!(out, [s(1), s(2)]);
    assert_eq!(zone(&mut cc, 0), [0u32; 0]);
}

#[test]
fn cac_lets_go_of_the_hot_page_that_cc_keeps() {
    // Section 6.3.2: a very hot page placed on the SSD bounces in and out of the pool. Off the SSD it misses
    // once in 1,000 reads, on the SSD 50 times. The other page misses equally often on and off the SSD, 20
    // times.
    let (hot, warm) = (alone(1), alone(2));
    let mut kept = Vec::new();
    for policy in [
        &mut Cac::new(CacOptions::CAC, &params()) as &mut dyn SlotPolicy,
        &mut Cac::new(CacOptions::CC, &params()),
    ] {
        visit(policy, hot, Location::Hdd, 999, NOW);
        policy.inserted(hot, s(0), NOW);
        for _ in 0..50 {
            visit(policy, hot, Location::Ssd, 19, NOW);
        }
        for _ in 0..20 {
            visit(policy, warm, Location::Hdd, 0, NOW);
        }
        zone(policy, 1);
        kept.push(policy.consider(warm, Cause::Evicted, 0, &mut |_| true, NOW));
    }
    assert_eq!(kept, [Verdict::AdmitOver(s(0)), Verdict::Reject]);
}

#[test]
fn a_dropped_space_leaves_no_groups() {
    let mut cac = Cac::new(CacOptions::CAC, &params());
    visit(&mut cac, alone(7), Location::Hdd, 3, NOW);
    assert_eq!(cac.groups().len(), 1);
    cac.forget(alone(7));
    assert_eq!(cac.groups(), []);
    assert_eq!(cac.benefit(alone(7)), None);
    cac.validate().unwrap();
}
