//! What the callers of a policy rely on, for every policy with every option.

use pagetier_policy::{PoolPolicy, SsdPolicy};
use pagetier_testing::conformance;

#[test]
fn pool_policies_keep_their_word() {
    let weighted = ["gd2l:frequency", "gd2l:write-back"];
    let named = weighted.iter().map(|name| name.parse().expect(name));
    for policy in PoolPolicy::ALL.iter().copied().chain(named) {
        println!("{policy}");
        conformance::check_pool(|params| policy.build(params));
    }
}

#[test]
fn ssd_policies_keep_their_word() {
    let many = ["auto:pin=forever", "auto:pin=half-life-1"];
    let each = SsdPolicy::PARTS.iter().flat_map(|part| [format!("cac:{part}"), format!("cc:{part}")]);
    let named = each.chain(many.map(str::to_owned)).map(|name| name.parse().expect("a policy"));
    for policy in SsdPolicy::ALL.iter().copied().chain(named) {
        println!("{policy}");
        conformance::check_ssd(|params| policy.build(params));
    }
}
