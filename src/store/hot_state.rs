//! What the store's handle and the task that keeps the hot set (`hot/keeper`) share.

use pagetier_page::SpaceId;
use pagetier_ssdcache::SsdEvent;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::watch;

/// The hot set that the store keeps: see [`HotSet::keep`](crate::HotSet::keep). All 0
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
    pub(crate) current: Mutex<Option<Current>>,
    pub(crate) listed: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) warming: AtomicBool,
    pub(crate) to_memory: AtomicU64,
    pub(crate) to_ssd: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) list: Arc<List>,
    /// Set, or dropped: the task ends. Closed: it has ended.
    pub(crate) ends: watch::Sender<bool>,
}

/// The list on the HDD.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) space: SpaceId,
    /// By page, the digest of what this session has written there.
    digests: Mutex<Vec<Option<u64>>>,
    /// The store has warmed up from it.
    used: AtomicBool,
    /// What became of the SSD since.
    events: Mutex<Receiver<SsdEvent>>,
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
    pub(crate) fn new(space: SpaceId, events: Receiver<SsdEvent>) -> Self {
        Self { space, digests: Mutex::default(), used: AtomicBool::default(), events: Mutex::new(events) }
    }

    /// Whether it may be replaced: the store has warmed up from it, and its SSD has neither failed since nor
    /// come back, perhaps as another one.
    pub(crate) fn is_used(&self) -> bool {
        let mut events = self.events.lock();
        loop {
            match events.try_recv() {
                // `Lagged`: a failure may be among those that were dropped.
                Ok(SsdEvent::Degraded { .. } | SsdEvent::Active) | Err(TryRecvError::Lagged(_)) => {
                    self.used.store(false, Ordering::Release);
                }
                // `Off` alone was the operator's wish.
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.used.load(Ordering::Acquire)
    }

    pub(crate) fn note_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    pub(crate) fn digest(&self, no: u32) -> Option<u64> {
        self.digests.lock().get(no as usize).copied().flatten()
    }

    pub(crate) fn note(&self, no: u32, digest: u64) {
        let mut digests = self.digests.lock();
        let len = digests.len().max(no as usize + 1);
        digests.resize(len, None);
        digests[no as usize] = Some(digest);
    }

    pub(crate) fn forget_all(&self) {
        self.digests.lock().clear();
    }
}
