//! The policies by name.

use crate::clusters::CLUSTER_PAGES;
use crate::{
    Cac, CacAged, CacAgedWrite, CacAgedWriteRewrite, CacAgedWriteRewriteSketch, CacDirty, CacParams,
    CacRewrite, CacSketch, CacWrite, Casa, Cc, CcfLru, Cfdc, Cflru, Costs, Doublewrite, Gd2l, Gd2lWeighted,
    Lru, Lru2, LruWsr, MidpointLru, MvFifo, NoSsd, PoolPolicy, Ref, Sawc, SsdPolicy, Tac, Weights,
    WindowPercent,
};

/// The names that [`pool_policy`] knows, the default first. `cflru`, `ref` and `cfdc` also take the window in per cent of the pool, as
/// `cfdc-75`; without it, it is half of the pool.
pub const POOL_POLICIES: &[&str] = &[
    "gd2l-freq-write",
    "gd2l",
    "gd2l-freq",
    "gd2l-write",
    "lru",
    "midpoint-lru",
    "cflru",
    "lru-wsr",
    "ccf-lru",
    "ref",
    "cfdc",
    "casa",
    "sawc",
];

/// The names that [`ssd_policy`] knows, the default first.
pub const SSD_POLICIES: &[&str] = &[
    "cac-aged-write-rewrite-sketch",
    "cac",
    "cac-aged",
    "cac-write",
    "cac-dirty",
    "cac-rewrite",
    "cac-sketch",
    "cac-aged-write",
    "cac-aged-write-rewrite",
    "cc",
    "lru2",
    "tac",
    "mv-fifo",
    "mv-fifo-gsc",
    "doublewrite",
    "none",
];

/// The pool policies that take a window.
pub(crate) const WINDOWED: &[&str] = &["cflru", "ref", "cfdc"];

/// What pool policies can be told. Each takes what concerns it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PoolPolicyParams {
    /// Frames of the pool.
    pub frames: usize,
    /// Device costs.
    pub costs: Costs,
    /// Pages of a cluster (REF: of a block), at most [`CLUSTER_PAGES_MAX`](crate::CLUSTER_PAGES_MAX). Default: 64, at 16 KiB the 1 MiB that an erase block of flash has, or the extent that a disk
    /// writes about as fast as it seeks.
    pub cluster_pages: u32,
}

impl PoolPolicyParams {
    /// The defaults for a pool of `frames` frames.
    #[must_use]
    pub const fn new(frames: usize, costs: Costs) -> Self {
        Self { frames, costs, cluster_pages: CLUSTER_PAGES }
    }

    /// The pool policy called `name`; `None` if there is none of that name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<Box<dyn PoolPolicy>> {
        let Self { frames, costs, cluster_pages } = *self;
        #[cfg(feature = "hostile")]
        if let Some(seed) = hostile_seed(name) {
            return Some(Box::new(crate::HostilePool::new(seed, frames)));
        }
        let (kind, window) = windowed(name).unwrap_or((name, WindowPercent::DEFAULT));
        let weighted = |frequency, write_back| {
            Box::new(Gd2lWeighted::new(frames, costs, Weights { frequency, write_back }))
        };
        Some(match kind {
            "gd2l" => Box::new(Gd2l::new(frames, costs)),
            "gd2l-freq" => weighted(true, false),
            "gd2l-write" => weighted(false, true),
            "gd2l-freq-write" => weighted(true, true),
            "lru" => Box::new(Lru::new(frames)),
            "midpoint-lru" => Box::new(MidpointLru::new(frames)),
            "cflru" => Box::new(Cflru::new(frames, window)),
            "lru-wsr" => Box::new(LruWsr::new(frames)),
            "ccf-lru" => Box::new(CcfLru::new(frames)),
            "ref" => Box::new(Ref::new(frames, window, cluster_pages)),
            "cfdc" => Box::new(Cfdc::new(frames, window, cluster_pages)),
            "casa" => Box::new(Casa::new(frames, costs)),
            "sawc" => Box::new(Sawc::new(frames, costs, cluster_pages)),
            _ => return None,
        })
    }
}

/// The pool policy called `name`, for `frames` frames; `None` if there is none of that name.
#[must_use]
pub fn pool_policy(name: &str, frames: usize, costs: Costs) -> Option<Box<dyn PoolPolicy>> {
    PoolPolicyParams::new(frames, costs).policy(name)
}

/// The SSD policy called `name`; `None` if there is none of that name.
#[must_use]
pub fn ssd_policy(name: &str, params: &CacParams) -> Option<Box<dyn SsdPolicy>> {
    #[cfg(feature = "hostile")]
    if let Some(seed) = hostile_seed(name) {
        return Some(Box::new(crate::HostileSsd::new(seed, params.slots)));
    }
    Some(match name {
        "cac" => Box::new(Cac::new(params)),
        "cac-aged" => Box::new(CacAged::new(params)),
        "cac-write" => Box::new(CacWrite::new(params)),
        "cac-dirty" => Box::new(CacDirty::new(params)),
        "cac-rewrite" => Box::new(CacRewrite::new(params)),
        "cac-sketch" => Box::new(CacSketch::new(params)),
        "cac-aged-write-rewrite" => Box::new(CacAgedWriteRewrite::new(params)),
        "cac-aged-write-rewrite-sketch" => Box::new(CacAgedWriteRewriteSketch::new(params)),
        "cac-aged-write" => Box::new(CacAgedWrite::new(params)),
        "cc" => Box::new(Cc::new(params)),
        "lru2" => Box::new(Lru2::new(params)),
        "tac" => Box::new(Tac::new(params)),
        "mv-fifo" => Box::new(MvFifo::new(params, false)),
        "mv-fifo-gsc" => Box::new(MvFifo::new(params, true)),
        "doublewrite" => Box::new(Doublewrite::new(params)),
        "none" => Box::new(NoSsd),
        _ => return None,
    })
}

/// The seed in `hostile:17`.
#[cfg(feature = "hostile")]
fn hostile_seed(name: &str) -> Option<u64> {
    name.strip_prefix("hostile:")?.parse().ok()
}

/// The name without its window, and the window: `cfdc-75`.
fn windowed(name: &str) -> Option<(&str, WindowPercent)> {
    let (kind, percent) = name.rsplit_once('-')?;
    let window = WindowPercent::new(percent.parse().ok()?)?;
    WINDOWED.contains(&kind).then_some((kind, window))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_the_policy_of_that_name() {
        for &name in POOL_POLICIES {
            assert_eq!(pool_policy(name, 4, Costs::PAPER).map(|p| p.name()), Some(name));
        }
        for &name in SSD_POLICIES {
            let params = CacParams::new(Costs::PAPER, 4, 4);
            assert_eq!(ssd_policy(name, &params).map(|p| p.name()), Some(name));
        }
        assert!(pool_policy("LRU", 4, Costs::PAPER).is_none());
        assert!(ssd_policy("", &CacParams::new(Costs::PAPER, 4, 4)).is_none());
    }

    #[test]
    fn a_window_is_told_in_per_cent() {
        for name in ["cflru-1", "cfdc-75", "ref-100"] {
            let made = pool_policy(name, 4, Costs::PAPER).map(|p| p.name());
            assert_eq!(made, name.split('-').next(), "{name}");
        }
        for name in ["cflru-0", "cflru-101", "cflru-", "cflru-75-75", "lru-50", "-50", "ref-+x"] {
            assert!(pool_policy(name, 4, Costs::PAPER).is_none(), "{name}");
        }
    }
}
