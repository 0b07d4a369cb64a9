//! Policies from outside: those of `examples/own_policy.rs` replay references and pass the campaign, by name.

use crate::campaign::{expect_none, reduced};
use pagetier_policy::{Costs, FramePolicyParams, PageId, PoolPolicy, SlotPolicyParams, SpaceId, SsdPolicy};
use pagetier_sim::campaign::{Plan, Totals, run_seed};
use pagetier_sim::{Reference, TierParams, Tiers};
use std::sync::atomic::AtomicBool;

#[path = "../../../examples/own_policy.rs"]
#[allow(dead_code, reason = "the example's own program")]
mod own_policy;

#[test]
fn they_replay() {
    pagetier_policy::register(&own_policy::CATALOGUE);
    let params = FramePolicyParams::new(8, Costs::PAPER);
    let pool = "sieve".parse::<PoolPolicy>().unwrap().build(&params);
    let ssd = "FIFO".parse::<SsdPolicy>().unwrap().build(&SlotPolicyParams::new(Costs::PAPER, 16, 8));
    let mut tiers = Tiers::new(TierParams::new(8, 16), pool, ssd);
    for step in 0..4_000_u32 {
        let drawn = step.wrapping_mul(2_654_435_761) >> 16;
        let page = PageId::new(SpaceId(1), drawn % if step % 3 == 0 { 40 } else { 6 });
        tiers.apply(if step % 5 == 0 { Reference::write(page) } else { Reference::read(page) });
        tiers.validate().unwrap();
    }
    let counts = tiers.counts();
    assert!(counts.pool_hits > 2_000 && counts.ssd_hits > 100, "{counts:?}");
    let known = PoolPolicy::known();
    assert!(known.contains("sieve"), "{known}");
}

#[test]
fn no_crash_under_them_loses_a_page() {
    pagetier_policy::register(&own_policy::CATALOGUE);
    let (go, mut totals) = (AtomicBool::new(false), Totals::default());
    for seed in 0..6 {
        let plan = Plan { ssd_policy: "fifo", pool_policy: "sieve", ..Plan::from_seed(seed) };
        expect_none(run_seed(&reduced(plan), &go, &mut totals));
    }
    assert!(totals.crashes > 300, "{totals:?}");
}
