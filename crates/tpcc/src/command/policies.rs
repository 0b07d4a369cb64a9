//! Pairs of policies, by name.

use crate::args::PolicyPair;
use pagetier::{PoolPolicy, SsdPolicy};
use pagetier_policy::CLUSTER_PAGES;
use std::str::FromStr;

/// A pool policy and an SSD policy, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Policies {
    /// The pool's policy.
    pub(crate) pool: String,
    /// The SSD's policy.
    pub(crate) ssd: String,
}

impl Policies {
    /// These policies with the sizes that the command line names, each in the names of those that have it.
    pub(crate) fn with_sizes(&self, zone_percent: f64, outqueue: Option<usize>, cluster_pages: u32) -> Self {
        let ssd = [
            (zone_percent != 10.0).then(|| ("zone", zone_percent.to_string())),
            outqueue.map(|entries| ("outqueue", entries.to_string())),
        ];
        let cluster = (cluster_pages != CLUSTER_PAGES).then(|| ("cluster", cluster_pages.to_string()));
        Self {
            pool: with::<PoolPolicy>(&self.pool, cluster),
            ssd: with::<SsdPolicy>(&self.ssd, ssd.into_iter().flatten()),
        }
    }
}

/// `name` with those of the options that its policy has.
fn with<P: FromStr>(name: &str, options: impl IntoIterator<Item = (&'static str, String)>) -> String {
    options.into_iter().fold(name.to_owned(), |name, (option, value)| {
        let separator = if name.contains(':') { ',' } else { ':' };
        let has_it = format!("{name}{separator}{option}=1").parse::<P>().is_ok();
        if has_it { format!("{name}{separator}{option}={value}") } else { name }
    })
}

impl From<&PolicyPair> for Policies {
    fn from(pair: &PolicyPair) -> Self {
        Self { pool: pair.pool.to_string(), ssd: pair.ssd.to_string() }
    }
}
