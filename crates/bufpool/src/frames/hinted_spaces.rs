//! The spaces with hints, and how many frames each of them has (`read::hints`).

use crate::frames::frame::Frame;
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::Access;
use pagetier_policy::pool::{PoolHints, Retention};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The spaces with hints. A leaf in the locking order; counts change under the bucket's lock.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    any: AtomicBool,
    spaces: RwLock<FxHashMap<SpaceId, Hinted>>,
}

/// A space with hints.
#[derive(Debug)]
pub(crate) struct Hinted {
    pub(crate) hints: PoolHints,
    /// The number of frames that hold its pages, or read them.
    held: AtomicUsize,
}

impl Hints {
    /// Whether any space has hints.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn with<R>(&self, space: SpaceId, ask: impl FnOnce(&Hinted) -> R) -> Option<R> {
        if !self.any() {
            return None;
        }
        self.spaces.read().get(&space).map(ask)
    }

    /// `page` has entered the table. The caller holds its bucket's lock.
    pub(crate) fn entered(&self, page: PageId) {
        self.with(page.space, |hinted| hinted.held.fetch_add(1, Ordering::Relaxed));
    }

    /// `page` has left the table. The caller holds its bucket's lock.
    pub(crate) fn left(&self, page: PageId) {
        self.with(page.space, |hinted| hinted.held.fetch_sub(1, Ordering::Relaxed));
    }

    /// How many of `count` pages of `space` may be read ahead at once.
    pub(crate) fn ahead_max(&self, space: SpaceId, count: u32) -> u32 {
        let quota = self.with(space, |hinted| hinted.hints.frames_max).flatten();
        quota.map_or(count, |max| count.min(u32::try_from(max / 2).unwrap_or(u32::MAX)))
    }

    /// Whether `space` would exceed its quota with `more` frames.
    pub(crate) fn exceeds_quota(&self, space: SpaceId, more: usize) -> bool {
        let exceeds = |hinted: &Hinted| {
            let held = hinted.held.load(Ordering::Relaxed);
            hinted.hints.frames_max.is_some_and(|max| held + more > max)
        };
        self.with(space, exceeds).unwrap_or(false)
    }

    /// The access mode of a demand read of a page of `space`.
    pub(crate) fn access(&self, space: SpaceId) -> Access {
        match self.with(space, |hinted| hinted.hints.retention) {
            Some(Retention::ScanOnly) => Access::Sequential,
            _ => Access::Random,
        }
    }

    /// The number of frames that hold pages of `space`, or read them; `None` if it has no hints.
    pub(crate) fn held(&self, space: SpaceId) -> Option<usize> {
        self.with(space, |hinted| hinted.held.load(Ordering::Relaxed))
    }

    /// Sets the hints of `space`. The caller holds the locks of all buckets.
    pub(crate) fn set(&self, space: SpaceId, hints: PoolHints, frames: &[Frame]) {
        let mut spaces = self.spaces.write();
        if hints == PoolHints::default() {
            spaces.remove(&space);
        } else {
            let held = frames.iter().filter_map(Frame::page).filter(|page| page.space == space).count();
            spaces.insert(space, Hinted { hints, held: AtomicUsize::new(held) });
        }
        // The bucket locks publish it to every task that counts.
        self.any.store(!spaces.is_empty(), Ordering::Relaxed);
    }
}
