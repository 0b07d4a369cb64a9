//! Pairs of policies, by name.

use super::cli::Cli;
use crate::args::PolicyPair;
use pagetier::{PoolPolicy, SsdPolicy};
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
    pub(crate) fn with_sizes(&self, cli: &Cli) -> Self {
        let zone = cli.zone_percent.map(|zone| format!("zone={zone}"));
        let outqueue = cli.outqueue.map(|entries| format!("outqueue={entries}"));
        let cluster = cli.cluster_pages.map(|pages| format!("cluster={pages}"));
        Self {
            pool: with::<PoolPolicy>(&self.pool, cluster),
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
    use clap::Parser;
    pagetier_rivals::register();
    let named = |pool: &str, ssd: &str, args: &[&str]| {
        let policies = Policies { pool: pool.into(), ssd: ssd.into() };
        let Policies { pool, ssd } = policies.with_sizes(&Cli::parse_from(["x"].iter().chain(args)));
        format!("{pool}+{ssd}")
    };
    let all = ["--zone-percent", "10", "--outqueue", "7", "--cluster-pages", "64"];
    assert_eq!(named("cfdc:cluster=8", "auto:zone=5", &all), "cfdc:cluster=64+auto:zone=10,outqueue=7");
    assert_eq!(named("lru", "lru2:zone=5", &all), "lru+lru2:zone=10");
    assert_eq!(named("cfdc:cluster=8", "cac:zone=5,sketch", &[]), "cfdc:cluster=8+cac:zone=5,sketch");
}
