//! Homes that failed home writes may have torn, and their repair from the ring.

use super::{FailedHome, HomeBatch, HomeBatches, Phase};
use crate::protocol::flushes::HddFlush;
use pagetier_page::{PageId, Stamp};
use rustc_hash::FxHashMap;

impl HomeBatches {
    /// Notes that a later version of `page` is home, which HDD flush number `flush` will make durable.
    pub(super) fn reached_home(&mut self, page: PageId, flush: HddFlush) {
        self.discarded.remove(&page);
        // A later home write overwrites what an earlier one of the same page tore.
        for batch in self.batches.iter_mut() {
            if let Phase::Torn(pages) = &mut batch.phase {
                pages.retain(|other| *other != page);
                if pages.is_empty() {
                    batch.phase = Phase::Written { flush };
                }
            }
        }
    }

    /// Notes that `page` was discarded. If its home write failed, its image is held for only one more
    /// attempt.
    pub fn discard(&mut self, page: PageId) {
        if self.is_writing(page) || self.is_torn(page) {
            self.discarded.insert(page);
        }
    }

    /// Whether the ring may bring back a version whose page was discarded since.
    pub fn may_resurrect_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Whether a home write of `page` failed and its home has not been repaired.
    fn is_torn(&self, page: PageId) -> bool {
        self.batches.iter().any(|batch| batch.is_torn(page))
    }

    /// Forgets that `page` was discarded, if no home write of it is under way or has failed.
    pub(super) fn forget_discard(&mut self, page: PageId) {
        if self.discarded.contains(&page) && !self.is_writing(page) && !self.is_torn(page) {
            self.discarded.remove(&page);
        }
    }

    /// Claims the pages whose homes are to be rewritten from the ring, each from its newest image there,
    /// until [`HomeBatches::end_ring_repair`].
    pub fn begin_ring_repair(&mut self) -> Vec<FailedHome> {
        let mut newest: FxHashMap<PageId, FailedHome> = FxHashMap::default();
        for batch in &self.batches {
            for ((page, stamp), at) in batch.versions.iter().copied().zip(batch.ring.clone()) {
                let optional = batch.images_optional;
                let one = FailedHome { page, stamp, place: self.place(at), optional };
                // Only the newest image may go home: an older one would undo the version that replaced it
                // (I22).
                let newer = newest.get(&page).is_none_or(|other| other.stamp < stamp);
                if newer && batch.is_torn(page) && !self.is_writing(page) {
                    newest.insert(page, one);
                }
            }
        }
        let mut failed: Vec<FailedHome> = newest.into_values().collect();
        failed.sort_unstable_by_key(|one| one.page);
        for one in &failed {
            // Claimed as a write, so that no other one runs beside the repair (I8), and as held, so that a
            // discard waits until the home is whole.
            let claims = self.claim(one.page);
            (claims.writing, claims.held) = (claims.writing + 1, claims.held + 1);
        }
        failed
    }

    /// Notes whether the home of `page` was rewritten (`home`), which HDD flush number `flush` will make
    /// durable. Returns whether its images wait for no more than that flush. A discarded page gets only one
    /// attempt, since its home has no value.
    pub fn note_ring_repair(&mut self, page: PageId, home: bool, flush: HddFlush) -> bool {
        let over = home || self.discarded.contains(&page);
        if over {
            self.reached_home(page, flush);
        }
        over
    }

    /// Notes that the ring lacks the image of version `stamp` of `page` for certain. Its home write never
    /// began. HDD flush number `flush` is the next one.
    pub fn note_wiped_image(&mut self, page: PageId, stamp: Stamp, flush: HddFlush) {
        let lacks = |batch: &&mut HomeBatch| batch.is_ringed() && batch.versions.contains(&(page, stamp));
        if let Some(batch) = self.batches.iter_mut().find(lacks)
            && let Phase::Torn(pages) = &mut batch.phase
        {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                batch.phase = Phase::Written { flush };
            }
        }
    }

    /// Ends the repair of `page`.
    pub fn end_ring_repair(&mut self, page: PageId) {
        self.unclaim(page, |claims| &mut claims.writing);
        self.release(page);
        self.forget_discard(page);
    }
}
