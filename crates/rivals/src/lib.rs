//! The policies that the four papers compare with, for [`pagetier`](https://docs.rs/pagetier) and its tools.
//!
//! Pagetier's own crates do not know them. After [`register`] a store, a replay or a command line finds them
//! by name, through the same extension point as policies of your own ([`pagetier_policy::custom`]):
//!
//! ```
//! use pagetier_policy::{PoolPolicy, SsdPolicy};
//!
//! pagetier_rivals::register();
//! let (pool, ssd): (PoolPolicy, SsdPolicy) = ("cfdc-75".parse()?, "mv-fifo-gsc".parse()?);
//! # let _ = (pool, ssd);
//! # Ok::<(), pagetier_policy::UnknownPolicy>(())
//! ```
//!
//! `docs/policies.md` says how each paper is read.

#![forbid(unsafe_code)]

pub mod pool;
pub mod ssd;

pub use pool::{RivalPool, WindowPercent};
pub use ssd::RivalSsd;

use pagetier_policy::{Catalogue, PoolPolicy, SsdPolicy, ZonePercent};

/// Makes the policies known to this process by name. A program calls it once, before it reads the names of
/// policies; further calls change nothing.
pub fn register() {
    pagetier_policy::register(&CATALOGUE);
}

static CATALOGUE: Catalogue =
    Catalogue { pool_names: pool::NAMES, pool: pool::find, ssd_names: ssd::NAMES, ssd: ssd::find };

/// Every pool policy: the core's, the default first, then [`RivalPool::ALL`].
pub const POOL_POLICIES: &[PoolPolicy] = &{
    const CORE: usize = PoolPolicy::ALL.len();
    let mut all = [PoolPolicy::Auto; CORE + RivalPool::ALL.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] =
            if at < CORE { PoolPolicy::ALL[at] } else { PoolPolicy::Custom(&RivalPool::ALL[at - CORE]) };
        at += 1;
    }
    all
};

/// Every SSD policy: the core's, the default first, [`RivalSsd::ALL`], and [`SsdPolicy::None`] last.
pub const SSD_POLICIES: &[SsdPolicy] = &{
    // `None` moves behind the rivals, so that a test can leave out what admits nothing by its place.
    const CORE: usize = SsdPolicy::ALL.len() - 1;
    let mut all = [SsdPolicy::None; CORE + RivalSsd::ALL.len() + 1];
    let mut at = 0;
    while at < all.len() - 1 {
        all[at] = if at < CORE {
            SsdPolicy::ALL[at]
        } else {
            SsdPolicy::Custom(&RivalSsd::ALL[at - CORE], ZonePercent::DEFAULT)
        };
        at += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str) -> Option<PoolPolicy> {
        text.parse().ok()
    }

    #[test]
    fn the_lists_hold_the_core_and_the_rivals_and_end_with_none() {
        assert!(PoolPolicy::ALL.iter().all(|policy| POOL_POLICIES.contains(policy)));
        assert!(SsdPolicy::ALL.iter().all(|policy| SSD_POLICIES.contains(policy)));
        assert_eq!((POOL_POLICIES[0], SSD_POLICIES[0]), (PoolPolicy::default(), SsdPolicy::default()));
        assert_eq!(SSD_POLICIES.last(), Some(&SsdPolicy::None));
        assert_eq!(POOL_POLICIES.len(), PoolPolicy::ALL.len() + RivalPool::ALL.len());
        assert_eq!(SSD_POLICIES.len(), SsdPolicy::ALL.len() + RivalSsd::ALL.len());
    }

    #[test]
    fn every_policy_reads_back_from_its_name_in_any_case() {
        register();
        for policy in POOL_POLICIES {
            let name = policy.to_string();
            assert_eq!((pool(&name), pool(&name.to_uppercase())), (Some(*policy), Some(*policy)), "{name}");
            assert!(PoolPolicy::known().contains(&name), "{name}");
        }
        for policy in SSD_POLICIES {
            let name = policy.to_string();
            assert_eq!((name.parse(), name.to_uppercase().parse()), (Ok(*policy), Ok(*policy)));
            assert!(SsdPolicy::known().contains(&name), "{name}");
        }
        let pools =
            ["cfdc-75", "cflru-1", "ref-100", "cfdc:cluster=1", "ref-75:cluster=8", "sawc:cluster=65536"];
        for text in pools {
            assert_eq!(pool(text).map(|policy| policy.to_string()).as_deref(), Some(text));
        }
        for text in ["lru2:zone=25", "doublewrite:zone=0.001", "tac"] {
            let policy: SsdPolicy = text.parse().unwrap();
            // They have no outqueue that a share would shorten.
            assert_eq!((policy.to_string().as_str(), policy.for_share(0.25)), (text, policy));
        }
        assert_eq!(pool("cfdc-50"), pool("cfdc"));
    }

    #[test]
    fn what_names_no_policy_is_refused_with_the_names_that_there_are() {
        register();
        let windows = ["cflru-0", "cflru-101", "cflru-", "cflru-75-75", "lru-50", "-50", "ref-+x", "casa:x"];
        let clusters = [
            "cfdc:cluster=0",
            "cfdc:cluster=65537",
            "cfdc:cluster=",
            "cfdc:cluster=+4",
            "cfdc:cluster=4,cluster=8",
            "cflru:cluster=64",
            "casa:cluster=64",
        ];
        for text in windows.into_iter().chain(clusters) {
            let error = text.parse::<PoolPolicy>().expect_err(text).to_string();
            assert!(error.contains("unknown pool policy") && error.contains("ccf-lru"), "{error}");
        }
        for text in ["lru2:strict-zone", "lru2:zone=-1", "lru2:outqueue=5", "tac:group-width=1"] {
            let error = text.parse::<SsdPolicy>().expect_err(text).to_string();
            assert!(error.contains("unknown SSD policy") && error.contains("mv-fifo-gsc"), "{error}");
        }
    }
}
