//! The choice of the pool policy, typed and by name.

use super::{
    AdaptivePool, CLUSTER_PAGES, Casa, CcfLru, Cfdc, Cflru, FramePolicy, Gd2l, Gd2lOptions, Gd2lWeighted,
    Lru, LruWsr, MidpointLru, Ref, Sawc, WindowPercent,
};
use crate::choice::{by_name, split, write_options};
use crate::{Costs, UnknownPolicy};
use std::fmt;
use std::str::FromStr;

/// The policy that replaces the pool's pages. It converts to and from names such as `auto`, `gd2l`,
/// `gd2l:frequency` and `cfdc-75` (`Display`, case-insensitive `FromStr`, serde).
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
    /// `cflru`: clean pages first, within a window (Park et al. 2006).
    Cflru(WindowPercent),
    /// `lru-wsr`: cold dirty pages get no second chance (Jung et al. 2008).
    LruWsr,
    /// `ccf-lru`: cold clean pages first (Li et al. 2009).
    CcfLru,
    /// `ref`: recently evicted first, by block (Seo & Shin 2008).
    Ref(WindowPercent),
    /// `cfdc`: clean first, dirty in clusters (Ou, Härder & Jin 2009).
    Cfdc(WindowPercent),
    /// `casa`: cost-aware self-adaptive (Ou & Härder 2010).
    Casa,
    /// `sawc`: self-adaptive with clustered writes (Ou et al.).
    Sawc,
    /// Answers at random or maliciously; for tests.
    #[cfg(feature = "hostile")]
    #[doc(hidden)]
    Hostile(u64),
}

/// The parameters that a pool policy is built from. Each policy uses those that apply to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FramePolicyParams {
    /// Frames of the pool.
    pub frames: usize,
    /// Device costs.
    pub costs: Costs,
    /// Pages per cluster (REF: per block), at most [`CLUSTER_PAGES_MAX`](crate::CLUSTER_PAGES_MAX). Default:
    /// 64. With pages of 16 KiB that is 1 MiB: the size of a flash erase block, and of an extent that a disk
    /// writes in about the time of a seek.
    pub cluster_pages: u32,
}

impl FramePolicyParams {
    /// The defaults for a pool of `frames` frames.
    #[must_use]
    pub const fn new(frames: usize, costs: Costs) -> Self {
        Self { frames, costs, cluster_pages: CLUSTER_PAGES }
    }
}

const FREQUENCY: &str = "frequency";
const WRITE_BACK: &str = "write-back";

impl PoolPolicy {
    /// Every policy, the default first, each with the options that its bare name implies.
    pub const ALL: &[Self] = &[
        Self::Auto,
        Self::Gd2l(Gd2lOptions::PAPER),
        Self::Lru,
        Self::MidpointLru,
        Self::Cflru(WindowPercent::DEFAULT),
        Self::LruWsr,
        Self::CcfLru,
        Self::Ref(WindowPercent::DEFAULT),
        Self::Cfdc(WindowPercent::DEFAULT),
        Self::Casa,
        Self::Sawc,
    ];

    /// The names of `gd2l`'s options.
    pub const PARTS: &[&str] = &[FREQUENCY, WRITE_BACK];

    /// Builds the policy, for an empty pool.
    #[must_use]
    pub fn build(self, params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        let FramePolicyParams { frames, costs, cluster_pages } = *params;
        match self {
            Self::Auto => Box::new(AdaptivePool::new(frames, costs)),
            Self::Gd2l(Gd2lOptions::PAPER) => Box::new(Gd2l::new(frames, costs)),
            Self::Gd2l(options) => Box::new(Gd2lWeighted::new(frames, costs, options)),
            Self::Lru => Box::new(Lru::new(frames)),
            Self::MidpointLru => Box::new(MidpointLru::new(frames)),
            Self::Cflru(window) => Box::new(Cflru::new(frames, window)),
            Self::LruWsr => Box::new(LruWsr::new(frames)),
            Self::CcfLru => Box::new(CcfLru::new(frames)),
            Self::Ref(window) => Box::new(Ref::new(frames, window, cluster_pages)),
            Self::Cfdc(window) => Box::new(Cfdc::new(frames, window, cluster_pages)),
            Self::Casa => Box::new(Casa::new(frames, costs)),
            Self::Sawc => Box::new(Sawc::new(frames, costs, cluster_pages)),
            #[cfg(feature = "hostile")]
            Self::Hostile(seed) => Box::new(crate::HostilePool::new(seed, frames)),
        }
    }

    /// Returns the known names, for messages.
    #[must_use]
    pub fn known() -> String {
        let names: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
        format!(
            "{}; gd2l with options, as in gd2l:{FREQUENCY},{WRITE_BACK}; cflru, ref and cfdc with their window in per \
             cent of the pool, as in cfdc-75",
            names.join(", ")
        )
    }

    /// Returns this policy with another window, if it has a window.
    fn with_window(self, window: WindowPercent) -> Option<Self> {
        match self {
            Self::Cflru(_) => Some(Self::Cflru(window)),
            Self::Ref(_) => Some(Self::Ref(window)),
            Self::Cfdc(_) => Some(Self::Cfdc(window)),
            _ => None,
        }
    }

    /// Returns this policy with the option `name` enabled, if it has that option.
    fn with_option(self, name: &str) -> Option<Self> {
        let Self::Gd2l(options) = self else { return None };
        match name {
            FREQUENCY => Some(Self::Gd2l(Gd2lOptions { frequency: true, ..options })),
            WRITE_BACK => Some(Self::Gd2l(Gd2lOptions { write_back: true, ..options })),
            _ => None,
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (name, options) = split(text);
        #[cfg(feature = "hostile")]
        if let ("hostile", [seed]) = (name.as_str(), options.as_slice()) {
            return Some(Self::Hostile(seed.parse().ok()?));
        }
        let plain = |name: &str| Self::ALL.iter().copied().find(|policy| policy.to_string() == name);
        let windowed = |name: &str| {
            let (kind, percent) = name.rsplit_once('-')?;
            plain(kind)?.with_window(WindowPercent::new(percent.parse().ok()?)?)
        };
        let policy = plain(&name).or_else(|| windowed(&name))?;
        options.iter().try_fold(policy, |policy, option| policy.with_option(option))
    }
}

impl fmt::Display for PoolPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windowed = |f: &mut fmt::Formatter<'_>, name: &str, window: &WindowPercent| match *window {
            WindowPercent::DEFAULT => f.pad(name),
            window => f.pad(&format!("{name}-{}", window.get())),
        };
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
            Self::Cflru(window) => windowed(f, "cflru", window),
            Self::LruWsr => f.pad("lru-wsr"),
            Self::CcfLru => f.pad("ccf-lru"),
            Self::Ref(window) => windowed(f, "ref", window),
            Self::Cfdc(window) => windowed(f, "cfdc", window),
            Self::Casa => f.pad("casa"),
            Self::Sawc => f.pad("sawc"),
            #[cfg(feature = "hostile")]
            Self::Hostile(seed) => f.pad(&format!("hostile:{seed}")),
        }
    }
}

impl FromStr for PoolPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy { tier: "pool", text: text.to_owned(), known: Self::known() };
        Self::read(text).ok_or_else(unknown)
    }
}

by_name!(PoolPolicy);

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
        for text in ["gd2l:frequency", "gd2l:frequency,write-back", "cfdc-75", "cflru-1", "ref-100"] {
            assert_eq!(read(text).map(|policy| policy.to_string()).as_deref(), Some(text));
        }
        assert_eq!(read("cfdc-50"), read("cfdc"));
    }

    #[test]
    fn what_names_no_policy_is_refused_with_the_names_that_there_are() {
        let bad = [
            "",
            "mru",
            "cflru-0",
            "cflru-101",
            "cflru-",
            "cflru-75-75",
            "lru-50",
            "-50",
            "ref-+x",
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
