//! Which page is in which slot, shared by the store and the policy that decides about its slots.

use crate::{PageId, SlotId};
use std::sync::atomic::{AtomicU64, Ordering};

/// By slot, the page that the store last put there: 8 bytes a slot, which a policy then need not have itself
/// ([`SlotPolicy::share_pages`](crate::SlotPolicy::share_pages)). The store changes a slot's page only when
/// it writes another page there.
///
/// The store calls its policy under the lock under which it changes the pages, so that nothing is ordered by
/// these atomics.
#[derive(Debug)]
pub struct SlotPages(Box<[AtomicU64]>);

impl SlotPages {
    /// For `slots` slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(0)).collect())
    }

    /// The page put into `slot` last; `None`: there is no such slot.
    #[must_use]
    pub fn get(&self, slot: SlotId) -> Option<PageId> {
        self.0.get(slot.at()).map(|page| PageId::from_u64(page.load(Ordering::Relaxed)))
    }

    /// Notes that `page` is put into `slot`, which exists.
    pub fn set(&self, slot: SlotId, page: PageId) {
        self.0[slot.at()].store(page.to_u64(), Ordering::Relaxed);
    }

    /// Its memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
