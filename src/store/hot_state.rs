//! What the store's handle and the task that keeps the hot set (`hot_kept`) share.

use pagetier_page::SpaceId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::oneshot;

/// The hot set that the store keeps: see [`PageStore::keep_hot_set`](crate::PageStore::keep_hot_set). All 0
/// if it keeps none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HotSetStats {
    /// Pages on the newest list: those in memory, then those on the SSD.
    pub listed: u64,
    /// How often they were listed.
    pub lists: u64,
    /// Whether the store is still warming up from the list that it found.
    pub warming: bool,
    /// Pages that were read into memory for that, or found there.
    pub to_memory: u64,
    /// Pages that were read for the SSD, and got a copy there.
    pub to_ssd: u64,
}

/// What the store's handle and the task share.
#[derive(Debug, Default)]
pub(crate) struct HotKept {
    /// The last call's: the call after it ends its task.
    pub(super) current: Mutex<Option<Current>>,
    pub(super) listed: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) warming: AtomicBool,
    pub(super) to_memory: AtomicU64,
    pub(super) to_ssd: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) list: Arc<List>,
    /// Dropped: the task ends.
    pub(super) _task: oneshot::Sender<()>,
}

/// The list on the HDD.
#[derive(Debug)]
pub(super) struct List {
    pub(super) space: SpaceId,
    /// By page, the digest of what this opening has written there.
    digests: Mutex<Vec<Option<u64>>>,
    /// It may be replaced: the store has warmed up from it.
    pub(super) is_used: AtomicBool,
}

impl HotKept {
    pub(crate) fn stats(&self) -> HotSetStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HotSetStats {
            listed: of(&self.listed),
            lists: of(&self.lists),
            warming: self.warming.load(Ordering::Relaxed),
            to_memory: of(&self.to_memory),
            to_ssd: of(&self.to_ssd),
        }
    }
}

impl List {
    /// The list in `space`, of which nothing is known yet.
    pub(super) fn new(space: SpaceId) -> Self {
        Self { space, digests: Mutex::default(), is_used: AtomicBool::default() }
    }

    pub(super) fn digest(&self, no: u32) -> Option<u64> {
        self.digests.lock().get(no as usize).copied().flatten()
    }

    pub(super) fn note(&self, no: u32, digest: u64) {
        let mut digests = self.digests.lock();
        let len = digests.len().max(no as usize + 1);
        digests.resize(len, None);
        digests[no as usize] = Some(digest);
    }

    pub(super) fn forget(&self, no: u32) {
        if let Some(digest) = self.digests.lock().get_mut(no as usize) {
            *digest = None;
        }
    }
}
