//! A clean restart whose SSD policy takes over what its predecessor saved decides as if there had been none.

use pagetier_policy::{Costs, FramePolicyParams, GroupStats, PoolPolicy, SlotPolicyParams, SsdPolicy};
use pagetier_sim::{Counts, Reference, Source, TierParams, Tiers, Tpcc, Zipf};

const FRAMES: u32 = 300;
const SLOTS: u32 = 1_000;

fn pool() -> Box<dyn pagetier_policy::FramePolicy> {
    "gd2l"
        .parse::<PoolPolicy>()
        .expect("a policy")
        .build(&FramePolicyParams::new(FRAMES as usize, Costs::PAPER))
}

fn ssd(policy: &str) -> Box<dyn pagetier_policy::SlotPolicy> {
    let params = SlotPolicyParams {
        // Small, so that pages drop out of it.
        outqueue_entries: 400,
        sketch_halved_after_per_slot: 5,
        ..SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, FRAMES as usize)
    };
    policy.parse::<SsdPolicy>().expect("a policy").build(&params)
}

fn replay(tiers: &mut Tiers, source: &mut dyn Source, batches: u32) {
    let mut batch: Vec<Reference> = Vec::new();
    for _ in 0..batches {
        batch.clear();
        assert!(source.batch(&mut batch));
        batch.iter().for_each(|&reference| tiers.apply(reference));
    }
}

/// How the SSD's policy comes through a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    /// It is the same object, which no store can have.
    Stays,
    Saved,
    Forgets,
}

/// The counts after the restart, and the groups at the end.
fn run(policy: &str, mut source: Box<dyn Source>, through: Through) -> (Counts, Vec<GroupStats>) {
    let mut tiers = Tiers::new(TierParams::new(FRAMES, SLOTS), pool(), ssd(policy));
    replay(&mut tiers, &mut *source, 1_500);
    tiers.close(pool());
    if through != Through::Stays {
        tiers.reopen(ssd(policy), through == Through::Saved);
    }
    tiers.validate().unwrap();
    let before = *tiers.counts();
    // A second restart, so that what was restored is saved once more.
    for _ in 0..2 {
        replay(&mut tiers, &mut *source, 1_000);
        tiers.validate().unwrap();
        tiers.close(pool());
        if through != Through::Stays {
            tiers.reopen(ssd(policy), through == Through::Saved);
        }
    }
    replay(&mut tiers, &mut *source, 500);
    tiers.validate().unwrap();
    (tiers.counts().since(&before), tiers.ssd_policy().groups())
}

fn sources() -> [fn() -> Box<dyn Source>; 2] {
    [|| Box::new(Tpcc::new(1, 7)), || Box::new(Zipf::new(5_000, 0.9, 0.3, 7))]
}

#[test]
fn a_policy_decides_as_if_there_had_been_no_restart() {
    let policies = [
        "cac",
        "cc",
        "cac:ageing",
        "cac:ageing=3,write-at-hand,rewrite,sketch",
        "cac:dirty,strict-zone",
        "cc:ageing=2,sketch",
        "lru2",
        "tac",
    ];
    for policy in policies {
        for source in sources() {
            let all = [Through::Stays, Through::Saved, Through::Forgets];
            let [stays, saved, forgets] = all.map(|through| run(policy, source(), through));
            assert_eq!(saved, stays, "{policy}");
            assert_ne!(forgets, stays, "{policy}: the test would not notice what is missing");
        }
    }
}

#[test]
fn the_default_goes_on_about_as_if_there_had_been_no_restart() {
    for policy in ["auto", "auto:pin=half-life-4", "auto:pin=second-sight"] {
        for source in sources() {
            let cost = |through| {
                let (counts, _) = run(policy, source(), through);
                counts.hdd_ms(&Costs::PAPER) + counts.ssd_ms(&Costs::PAPER)
            };
            let (stays, saved) = (cost(Through::Stays), cost(Through::Saved));
            // Ghosts break ties by the numbers of records, which change.
            assert!((saved / stays - 1.0).abs() < 0.02, "{policy}: {saved} instead of {stays}");
            if policy != "auto" {
                assert!((saved - stays).abs() < 1e-6, "{policy}: {saved} instead of {stays}");
            }
        }
    }
}
