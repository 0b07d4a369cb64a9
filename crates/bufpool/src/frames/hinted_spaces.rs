//! The spaces whose pages stay in memory longer or shorter than others (`read::hints`).

use pagetier_page::SpaceId;
use pagetier_policy::Access;
use pagetier_policy::pool::Retention;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The spaces whose retention is not the usual one. A leaf in the locking order.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    any: AtomicBool,
    spaces: RwLock<FxHashMap<SpaceId, Retention>>,
}

impl Hints {
    /// Whether any space has hints.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn retention(&self, space: SpaceId) -> Retention {
        let set = if self.any() { self.spaces.read().get(&space).copied() } else { None };
        set.unwrap_or_default()
    }

    /// The access mode of a demand read of a page of `space`.
    pub(crate) fn access(&self, space: SpaceId) -> Access {
        match self.retention(space) {
            Retention::ScanOnly => Access::Sequential,
            _ => Access::Random,
        }
    }

    pub(crate) fn set(&self, space: SpaceId, retention: Retention) {
        let mut spaces = self.spaces.write();
        if retention == Retention::Usual {
            spaces.remove(&space);
        } else {
            spaces.insert(space, retention);
        }
        self.any.store(!spaces.is_empty(), Ordering::Relaxed);
    }
}
