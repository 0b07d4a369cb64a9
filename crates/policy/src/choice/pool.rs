//! The choice of the pool policy, typed and by name.

use super::{by_name, joined, write_options};
use crate::PoolPolicyFactory;
use crate::custom::registered;
use crate::pool::{
    AdaptivePool, FramePolicy, FramePolicyParams, Gd2l, Gd2lOptions, Gd2lWeighted, Lru, MidpointLru,
};
use std::fmt;

/// The policy that replaces the pool's pages. It converts to and from names such as `auto`, `gd2l` and
/// `gd2l:frequency` (`Display`, case-insensitive `FromStr`, serde).
///
/// The policies with which the papers compare, such as CFLRU and CFDC, are in the package `pagetier-rivals`:
/// after `pagetier_rivals::register()` they are found by name as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum PoolPolicy {
    /// `auto`: the recommended policy. It adapts to the workload: see [`AdaptivePool`].
    #[default]
    Auto,
    /// `gd2l`: GreedyDual restricted to two costs (Liu & Salem 2013); options `frequency` and `write-back`.
    Gd2l(Gd2lOptions),
    /// `lru`.
    Lru,
    /// `midpoint-lru`: LRU with InnoDB's midpoint for prefetched pages, the paper's "LRU".
    MidpointLru,
    /// Any other: one of `pagetier-rivals`, or one of your own.
    Custom(&'static dyn PoolPolicyFactory),
}

const FREQUENCY: &str = "frequency";
const WRITE_BACK: &str = "write-back";

impl PoolPolicy {
    /// Every policy of this crate, the default first, each with the options that its bare name implies.
    pub const ALL: &[Self] = &[Self::Auto, Self::Gd2l(Gd2lOptions::PAPER), Self::Lru, Self::MidpointLru];

    /// The names of `gd2l`'s options.
    pub const PARTS: &[&str] = &[FREQUENCY, WRITE_BACK];

    /// Builds the policy, for an empty pool.
    #[must_use]
    pub fn build(self, params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        let FramePolicyParams { frames, costs, .. } = *params;
        match self {
            Self::Auto => Box::new(AdaptivePool::new(frames, costs)),
            Self::Gd2l(Gd2lOptions::PAPER) => Box::new(Gd2l::new(frames, costs)),
            Self::Gd2l(options) => Box::new(Gd2lWeighted::new(frames, costs, options)),
            Self::Lru => Box::new(Lru::new(frames)),
            Self::MidpointLru => Box::new(MidpointLru::new(frames)),
            Self::Custom(factory) => factory.build(params),
        }
    }

    /// Returns the known names, for messages.
    #[must_use]
    pub fn known() -> String {
        format!("{}; gd2l with options, as in gd2l:{FREQUENCY},{WRITE_BACK}", Self::names().join(", "))
    }

    /// Finds a policy outside of this module. It sees the whole text: what stands behind a colon is its own.
    fn in_catalogues(name: &str, options: Vec<String>) -> Option<Self> {
        let whole = joined(name, options);
        registered().into_iter().find_map(|catalogue| (catalogue.pool)(&whole)).map(Self::Custom)
    }

    /// Returns this policy with the option `name` enabled, if it has that option.
    fn with_option(self, name: &str) -> Option<Self> {
        if let Self::Custom(_) = self {
            return Self::in_catalogues(&self.to_string(), vec![name.to_owned()]);
        }
        let Self::Gd2l(options) = self else { return None };
        match name {
            FREQUENCY => Some(Self::Gd2l(Gd2lOptions { frequency: true, ..options })),
            WRITE_BACK => Some(Self::Gd2l(Gd2lOptions { write_back: true, ..options })),
            _ => None,
        }
    }
}

impl fmt::Display for PoolPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Gd2l(options) => {
                let parts = [(options.frequency, FREQUENCY), (options.write_back, WRITE_BACK)];
                write_options(
                    f,
                    "gd2l",
                    parts.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()),
                )
            }
            Self::Lru => f.pad("lru"),
            Self::MidpointLru => f.pad("midpoint-lru"),
            Self::Custom(factory) => f.pad(&factory.name()),
        }
    }
}

by_name!(PoolPolicy, "pool", pool_names);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<PoolPolicy> {
        text.parse().ok()
    }

    #[test]
    fn every_policy_reads_back_from_its_name_in_any_case() {
        for policy in PoolPolicy::ALL {
            let name = policy.to_string();
            assert_eq!((read(&name), read(&name.to_uppercase())), (Some(*policy), Some(*policy)), "{name}");
            assert!(PoolPolicy::known().contains(&name), "{name}");
        }
        for text in ["gd2l:frequency", "gd2l:frequency,write-back"] {
            assert_eq!(read(text).map(|policy| policy.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_names_no_policy_is_refused_with_the_names_that_there_are() {
        let bad = [
            "",
            "mru",
            "lru-50",
            "-50",
            "gd2l:",
            "gd2l:x",
            "lru:frequency",
            "gd2l:frequency,",
            "auto:frequency",
            "auto:pin=lru",
        ];
        for text in bad {
            let error = text.parse::<PoolPolicy>().expect_err(text).to_string();
            assert!(error.contains("unknown pool policy") && error.contains("midpoint-lru"), "{error}");
        }
    }
}
