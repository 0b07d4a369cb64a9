//! The policies that write in clusters, with clusters of another size: `cfdc:cluster=16` and the like.

use super::RivalPool;
use pagetier_policy::custom::PoolPolicyFactory;
use pagetier_policy::{CLUSTER_PAGES_MAX, FramePolicy, FramePolicyParams};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A policy and the pages of its clusters (REF: blocks).
#[derive(Debug)]
struct Clustered {
    policy: &'static RivalPool,
    cluster_pages: u32,
}

impl PoolPolicyFactory for Clustered {
    fn name(&self) -> String {
        format!("{}:cluster={}", self.policy.name(), self.cluster_pages)
    }

    fn build(&self, params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        self.policy.build(&FramePolicyParams { cluster_pages: self.cluster_pages, ..*params })
    }
}

/// Returns `policy` with the option, such as `cluster=16`, if it has it.
pub(super) fn with(policy: &'static RivalPool, option: &str) -> Option<&'static dyn PoolPolicyFactory> {
    /// A factory has to live as long as the program: each that a name asked for, once.
    static KNOWN: Mutex<BTreeMap<String, &'static Clustered>> = Mutex::new(BTreeMap::new());
    let digits = option.strip_prefix("cluster=")?;
    // `parse` would take a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let cluster_pages =
        digits.parse().ok().filter(|pages| (1..=CLUSTER_PAGES_MAX).contains(pages) && plain)?;
    let has_clusters = matches!(policy, RivalPool::Ref(_) | RivalPool::Cfdc(_) | RivalPool::Sawc);
    let asked = Clustered { policy: has_clusters.then_some(policy)?, cluster_pages };
    Some(*KNOWN.lock().entry(asked.name()).or_insert_with(|| Box::leak(Box::new(asked))))
}
