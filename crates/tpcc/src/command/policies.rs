//! Pairs of policies, by name.

use crate::args::PolicyPair;
use pagetier::{PoolPolicy, SsdPolicy};
use pagetier_policy::ZonePercent;
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
    pub(crate) fn with_sizes(
        &self,
        zone_percent: Option<ZonePercent>,
        outqueue: Option<usize>,
        cluster_pages: Option<u32>,
    ) -> Self {
        let zone = zone_percent.map(|zone| format!("zone={zone}"));
        let outqueue = outqueue.map(|entries| format!("outqueue={entries}"));
        Self {
            pool: with::<PoolPolicy>(&self.pool, cluster_pages.map(|pages| format!("cluster={pages}"))),
            ssd: with::<SsdPolicy>(&self.ssd, zone.into_iter().chain(outqueue)),
        }
    }
}

/// `name` with those of the options that its policy has, each in place of what the name says of it.
fn with<P: FromStr>(name: &str, options: impl IntoIterator<Item = String>) -> String {
    options.into_iter().fold(name.to_owned(), |name, option| {
        let (policy, own) = name.split_once(':').unwrap_or((&name, ""));
        let same = |part: &str| part.split('=').next() == option.split('=').next();
        let parts = own.split(',').filter(|part| !part.is_empty() && !same(part));
        let parts: Vec<&str> = parts.chain([option.as_str()]).collect();
        let with = format!("{policy}:{}", parts.join(","));
        // A policy without this option keeps its name: the option is meant for the others of a list.
        if with.parse::<P>().is_ok() { with } else { name }
    })
}

impl From<&PolicyPair> for Policies {
    fn from(pair: &PolicyPair) -> Self {
        Self { pool: pair.pool.to_string(), ssd: pair.ssd.to_string() }
    }
}

#[cfg(test)]
#[test]
fn a_size_of_the_command_line_takes_the_place_of_the_names() {
    pagetier_rivals::register();
    let named = |pool: &str, ssd: &str, zone: Option<&str>, outqueue, cluster| {
        let policies = Policies { pool: pool.into(), ssd: ssd.into() };
        let zone = zone.map(|zone| zone.parse().unwrap());
        let Policies { pool, ssd } = policies.with_sizes(zone, outqueue, cluster);
        format!("{pool}+{ssd}")
    };
    let all = |pool, ssd| named(pool, ssd, Some("10"), Some(7), Some(64));
    assert_eq!(all("cfdc:cluster=8", "auto:zone=5"), "cfdc:cluster=64+auto:zone=10,outqueue=7");
    assert_eq!(all("lru", "lru2:zone=5"), "lru+lru2:zone=10");
    let none = named("cfdc:cluster=8", "cac:strict-zone,zone=5", None, None, None);
    assert_eq!(none, "cfdc:cluster=8+cac:strict-zone,zone=5");
}
