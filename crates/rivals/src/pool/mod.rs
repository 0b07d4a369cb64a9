//! Rivals of GD2L: flash-aware pool policies.

mod casa;
mod ccf_lru;
mod cfdc;
mod cflru;
mod cluster_size;
mod clusters;
mod lru_wsr;
mod ref_window;
mod sawc;
mod tournament;
mod window;

pub use casa::Casa;
pub use ccf_lru::CcfLru;
pub use cfdc::Cfdc;
pub use cflru::Cflru;
pub use lru_wsr::LruWsr;
pub use ref_window::Ref;
pub use sawc::Sawc;
pub use window::WindowPercent;

use pagetier_policy::custom::PoolPolicyFactory;
use pagetier_policy::{FramePolicy, FramePolicyParams};

/// A pool policy that the papers compare with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RivalPool {
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
}

impl RivalPool {
    /// Every policy, with the default window.
    pub const ALL: &[Self] = &[
        Self::Cflru(WindowPercent::DEFAULT),
        Self::LruWsr,
        Self::CcfLru,
        Self::Ref(WindowPercent::DEFAULT),
        Self::Cfdc(WindowPercent::DEFAULT),
        Self::Casa,
        Self::Sawc,
    ];

    const fn kind(self) -> (&'static str, Option<WindowPercent>) {
        match self {
            Self::Cflru(window) => ("cflru", Some(window)),
            Self::LruWsr => ("lru-wsr", None),
            Self::CcfLru => ("ccf-lru", None),
            Self::Ref(window) => ("ref", Some(window)),
            Self::Cfdc(window) => ("cfdc", Some(window)),
            Self::Casa => ("casa", None),
            Self::Sawc => ("sawc", None),
        }
    }
}

impl PoolPolicyFactory for RivalPool {
    fn name(&self) -> String {
        match self.kind() {
            (name, None | Some(WindowPercent::DEFAULT)) => name.to_owned(),
            (name, Some(window)) => format!("{name}-{}", window.get()),
        }
    }

    fn build(&self, params: &FramePolicyParams) -> Box<dyn FramePolicy> {
        let FramePolicyParams { frames, costs, cluster_pages, .. } = *params;
        match *self {
            Self::Cflru(window) => Box::new(Cflru::new(frames, window)),
            Self::LruWsr => Box::new(LruWsr::new(frames)),
            Self::CcfLru => Box::new(CcfLru::new(frames)),
            Self::Ref(window) => Box::new(Ref::new(frames, window, cluster_pages)),
            Self::Cfdc(window) => Box::new(Cfdc::new(frames, window, cluster_pages)),
            Self::Casa => Box::new(Casa::new(frames, costs)),
            Self::Sawc => Box::new(Sawc::new(frames, costs, cluster_pages)),
        }
    }
}

/// The names as messages list them; the last entry explains the windows, which are too many to be listed.
pub(crate) const NAMES: &[&str] = &[
    "cflru",
    "lru-wsr",
    "ccf-lru",
    "ref",
    "cfdc",
    "casa",
    "sawc",
    "cfdc-75 (its window in per cent of the pool; also for cflru and ref)",
    "cfdc:cluster=64 (pages per cluster, from 1 to 65536; also for sawc, and for ref: per block)",
];

/// The policies with windows, by the window's percentage minus one: a name may ask for any.
static WINDOWED: [[RivalPool; 100]; 3] = {
    let mut all = [[RivalPool::Casa; 100]; 3];
    let mut percent = 1;
    while percent <= 100 {
        // A factory has to live as long as the program, so every window that a name may ask for has one.
        if let Some(window) = WindowPercent::new(percent) {
            let at = percent as usize - 1;
            all[0][at] = RivalPool::Cflru(window);
            all[1][at] = RivalPool::Ref(window);
            all[2][at] = RivalPool::Cfdc(window);
        }
        percent += 1;
    }
    all
};

/// Finds `cflru`, `cflru-75`, `cfdc-75:cluster=16` and the like.
pub(crate) fn find(name: &str) -> Option<&'static dyn PoolPolicyFactory> {
    match name.split_once(':') {
        None => find_plain(name).map(|policy| policy as _),
        Some((name, option)) => cluster_size::with(find_plain(name)?, option),
    }
}

fn find_plain(name: &str) -> Option<&'static RivalPool> {
    let windowed = WINDOWED.iter().flatten();
    RivalPool::ALL.iter().chain(windowed).find(|policy| {
        // Not by comparing whole names, since `cfdc-075` and `cfdc-50` mean a window too.
        let (kind, window) = policy.kind();
        let percent = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-'));
        name == policy.name() || window.is_some_and(|window| percent == Some(&window.get().to_string()))
    })
}
