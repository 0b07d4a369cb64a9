//! The policies by name.

use crate::{Cac, CacParams, Cc, Costs, Gd2l, Lru, MidpointLru, NoSsd, PoolPolicy, SsdPolicy};

/// The names that [`pool_policy`] knows, the default first.
pub const POOL_POLICIES: &[&str] = &["gd2l", "lru", "midpoint-lru"];

/// The names that [`ssd_policy`] knows, the default first.
pub const SSD_POLICIES: &[&str] = &["cac", "cc", "none"];

/// The pool policy called `name`, for `frames` frames; `None` if there is none of that name.
#[must_use]
pub fn pool_policy(name: &str, frames: usize, costs: Costs) -> Option<Box<dyn PoolPolicy>> {
    Some(match name {
        "gd2l" => Box::new(Gd2l::new(frames, costs)),
        "lru" => Box::new(Lru::new(frames)),
        "midpoint-lru" => Box::new(MidpointLru::new(frames)),
        _ => return None,
    })
}

/// The SSD policy called `name`; `None` if there is none of that name.
#[must_use]
pub fn ssd_policy(name: &str, params: &CacParams) -> Option<Box<dyn SsdPolicy>> {
    Some(match name {
        "cac" => Box::new(Cac::new(params)),
        "cc" => Box::new(Cc::new(params)),
        "none" => Box::new(NoSsd),
        _ => return None,
    })
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
}
