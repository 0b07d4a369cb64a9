//! What the callers of a policy rely on, for every policy of this crate.

use pagetier_policy::{PoolPolicyFactory, SsdPolicyFactory};
use pagetier_rivals::{RivalPool, RivalSsd, WindowPercent};
use pagetier_testing::conformance;

#[test]
fn pool_policies_keep_their_word() {
    let window = |percent| WindowPercent::new(percent).expect("from 1 to 100");
    let windowed = [
        RivalPool::Cflru(window(1)),
        RivalPool::Cflru(window(100)),
        RivalPool::Ref(window(10)),
        RivalPool::Ref(window(100)),
        RivalPool::Cfdc(window(25)),
        RivalPool::Cfdc(window(75)),
        RivalPool::Cfdc(window(100)),
    ];
    for policy in RivalPool::ALL.iter().chain(&windowed) {
        println!("{}", policy.name());
        conformance::check_pool(|params| policy.build(params));
    }
}

#[test]
fn ssd_policies_keep_their_word() {
    for policy in RivalSsd::ALL {
        println!("{}", policy.name());
        conformance::check_ssd(|params| policy.build(params));
    }
}
