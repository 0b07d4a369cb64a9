//! Writes pages home so that neither a torn write (I4) nor an old SSD copy (I3) can do harm.
//!
//! For the pool's dirty pages: (1) images to the doublewrite ring and records to the journal, (2) one SSD
//! flush, (3) the HDD writes, sorted and merged. The ring holds the images until an HDD flush that begins
//! after (3). In the SSD's own write-back, the source slot, flushed before, replaces the ring; under the
//! doublewrite policy, the slot to which the page was just appended does. [`crate::protocol::home_batches`]
//! is the table of pages on their way.

use crate::exec::io::coalesce::{Piece, write_runs};
use crate::exec::io::join_all::join_all;
use crate::exec::{Core, RefusedBy};
use crate::format::journal::{Backing, Block};
use crate::protocol::home_batches::NoPlace;
use crate::protocol::{HomePage, HomePlan};
use futures_util::future::{join, join3};
use futures_util::stream::StreamExt;
use pagetier_bufpool::TierError;
use pagetier_devio::listen;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass};
use pagetier_page::{Flags, Header, Lsn, PageId, Stamp};
use std::sync::Arc;

/// A page image on its way home.
#[derive(Debug)]
pub(crate) struct HomeBound {
    pub(crate) page: PageId,
    pub(crate) image: IoBuf,
    /// The HDD has every change older than this.
    pub(crate) lsn: Lsn,
    /// Appended pages only: the superseded slot is newer than the HDD's version.
    pub(super) over_only_copy: bool,
}

impl HomeBound {
    pub(crate) fn new(page: PageId, image: IoBuf, lsn: Lsn) -> Self {
        Self { page, image, lsn, over_only_copy: false }
    }

    fn plain(&self) -> HomePage {
        let Self { page, lsn, over_only_copy, .. } = *self;
        HomePage { page, stamp: stamp_of(&self.image), lsn, over_only_copy }
    }
}

/// The outcome of a home write.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The page was written home.
    Home,
    /// The page's slot has received a newer version, which may be home already.
    Superseded,
    /// The page was freed, or its space is being dropped, so there was nothing to write. Its slot must not be
    /// treated as a copy of its home, though: a crash may bring the space back.
    GivenUp,
    Failed(TierError),
}

/// A batch whose images and records could not be made durable.
#[derive(Debug)]
struct Unprepared {
    source: DeviceError,
    /// The images are durable, and records may be that void the only copies of older versions.
    needs_images: bool,
}

/// Called once for each page, with its image, when its home write has ended.
pub(super) type Each<'a> = &'a (dyn Fn(PageId, IoBuf, Outcome) + Send + Sync);

impl Core {
    /// Writes `pages` to the HDD and waits for the writes. With a ring they are durable then (as images in
    /// the ring), otherwise after the next HDD flush.
    pub(crate) async fn write_home(
        &self,
        backing: Backing,
        pages: Vec<HomeBound>,
        class: IoClass,
        each: Each<'_>,
    ) {
        let max = self.state.lock().home.batch_max(backing);
        let mut pages = pages.into_iter().peekable();
        while pages.peek().is_some() {
            let batch: Vec<HomeBound> = pages.by_ref().take(max).collect();
            self.write_batch_home(backing, batch, class, each).await;
        }
    }

    async fn write_batch_home(
        &self,
        backing: Backing,
        mut batch: Vec<HomeBound>,
        class: IoClass,
        each: Each<'_>,
    ) {
        let plan = match self.plan_batch(backing, &mut batch, each).await {
            Ok(Some(plan)) => plan,
            Ok(None) => {
                // Wake the tasks that wait for these pages, or for the slots that backed them.
                self.changed.notify_waiters();
                return;
            }
            Err(error) => {
                fail_all(batch, &error, each);
                self.changed.notify_waiters();
                return;
            }
        };
        let (id, versions, images_first) = (plan.id, plan.versions.clone(), plan.images_first);
        let (batch, prepared) = self.prepare(batch, plan).await;
        let refused = match prepared {
            Ok(()) => {
                // List them before the first write starts: the note of a failed flush must name every home
                // that it may have lost, those in flight included (I14).
                let refused = self.unflushed.begin(&unflushed(&batch)).err();
                refused.map(|cause| (TierError::Refusing { cause }, images_first))
            }
            Err(Unprepared { source, needs_images }) => {
                // Whether ring and journal hold the batch is unknown. Of a home write now, a power cut could
                // leave a torn page that nothing repairs (I4), or an old copy that nothing voids (I3).
                self.ssd_failed(&source);
                self.refuse(&source.to_string(), RefusedBy::Ssd);
                Some((TierError::Flush { source }, needs_images))
            }
        };
        let begun = refused.is_none();
        let failed = match refused {
            None => self.write_in_place(backing, batch, class, each).await,
            Some((error, needs_images)) => {
                // No home was written, so the next flush must not count for this batch: slots would become
                // clean, and the ring would give up images though a record, or an image itself, may have
                // voided a copy that the HDD lacks.
                if !needs_images {
                    self.state.lock().home.waive_images(id);
                }
                let backed = (backing != Backing::WriteBack).then_some(&versions);
                fail_all(batch, &error, each);
                backed.into_iter().flatten().map(|(page, _)| *page).collect()
            }
        };
        // Ask only now that the writes have ended: a flush already under way may have begun before them (I4).
        let flush = self.hdd_flush.next();
        let mut state = self.state.lock();
        state.home.end_home_writes(id, begun, failed, flush);
        drop(state);
        self.changed.notify_waiters();
        self.wake.slots.notify_one();
        // The write-back loop looks for more work by itself, and its own failures must not wake it.
        if backing != Backing::WriteBack {
            self.wake.victims.notify_one();
        }
    }

    /// Waits for ring and journal places, and for earlier HDD writes of the same pages; then seals the images
    /// that the ring will back. Removes pages from the batch whose slots have received a newer version, which
    /// may be home already. `None`: no page is left.
    pub(super) async fn plan_batch(
        &self,
        backing: Backing,
        batch: &mut Vec<HomeBound>,
        each: Each<'_>,
    ) -> Result<Option<HomePlan>, TierError> {
        loop {
            listen!(changed = self.changed);
            if let Some(refusal) = self.refusal() {
                return Err(refusal);
            }
            let (planned, superseded) = self.try_plan(backing, batch);
            for HomeBound { page, image, .. } in superseded {
                each(page, image, Outcome::Superseded);
            }
            let why = match planned {
                Ok(plan) => return Ok(plan),
                Err(why) => why,
            };
            if why == NoPlace::Journal
                && let Some(cause) = self.map_failure()
            {
                // Without checkpoints the journal never has room again, and without the journal no page may
                // be written home.
                self.refuse(&cause, RefusedBy::Map);
                continue;
            }
            if why == NoPlace::Ring && self.state.lock().home.ring_is_stuck() {
                // If the repair fails, the writes that need a place fail and their pages stay dirty. Later
                // writes try again, since the error may be temporary.
                self.repair_from_ring().await?;
                continue;
            }
            self.flush_for_place(why).await?;
            self.wake.notify_one();
            changed.await;
        }
    }

    fn try_plan(
        &self,
        backing: Backing,
        batch: &mut Vec<HomeBound>,
    ) -> (Result<Option<HomePlan>, NoPlace>, Vec<HomeBound>) {
        let mut state = self.state.lock();
        let mut pages: Vec<HomePage> = batch.iter().map(HomeBound::plain).collect();
        let way = state.in_the_way(backing, &pages);
        // Wait without taking places. Two home writes of one page in flight could arrive in either order, and
        // the older version would stay (I8).
        if way.writing {
            return (Err(NoPlace::Busy), Vec::new());
        }
        // A slot that was superseded since the batch was chosen is not copied: the newer version has an order
        // of its own, and may be home already (I8).
        pages.retain(|one| !way.superseded.contains(&one.page));
        let superseded: Vec<HomeBound> = batch.extract_if(.., |b| way.superseded.contains(&b.page)).collect();
        if batch.is_empty() {
            return (Ok(None), superseded);
        }
        let planned = state.begin_home_batch(backing, &pages, &mut || self.stamps.fresh());
        drop(state);
        if let Ok(plan) = &planned
            && backing == Backing::Ring
        {
            // The stamps were drawn where the order of home writes is decided, so of two images of a page the
            // one with the larger stamp arrives later.
            for (b, (_, stamp)) in batch.iter_mut().zip(&plan.versions) {
                pagetier_page::seal(self.seed, b.image.as_mut_slice(), *stamp, Flags::NONE);
            }
        }
        (planned.map(Some), superseded)
    }

    pub(crate) fn map_failure(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        state.ssd_error.clone().filter(|_| state.map_failed)
    }

    /// Flushes the HDD if only that is needed to free the ring's oldest entries, or to make records of slots
    /// that back home writes superfluous.
    async fn flush_for_place(&self, why: NoPlace) -> Result<(), TierError> {
        let wanted = {
            let home = &self.state.lock().home;
            home.ring_flush_is_due() || (why == NoPlace::Journal && home.flush_would_settle())
        };
        if wanted {
            self.flush_hdd().await?;
        }
        Ok(())
    }

    /// Steps 1 and 2: after this, the HDD writes may start.
    async fn prepare(
        &self,
        batch: Vec<HomeBound>,
        plan: HomePlan,
    ) -> (Vec<HomeBound>, Result<(), Unprepared>) {
        let HomePlan { id, ring, list, blocks, images_first, flush, .. } = plan;
        let journal = async || {
            let written = self.write_journal(blocks).await;
            // The recording ends even after an error: the blocks may have landed or not, but they will not
            // land later, on their successors.
            self.state.lock().home.end_recording(id);
            written
        };
        let (batch, written) = if images_first {
            // The record voids the page's copy on the SSD, which is the only one of its version. If a power
            // cut left the record without the new image, the page would be lost (I6). So a flush separates
            // them.
            let ((batch, ringed), listed) = join(self.write_ring(batch, &ring), self.write_list(list)).await;
            let flushed = match ringed.and(listed) {
                Ok(()) if flush => self.flush_ssd().await,
                other => other,
            };
            match flushed {
                Ok(()) => (batch, journal().await),
                error => {
                    // These blocks will never be written: they reserve no place.
                    self.state.lock().home.end_recording(id);
                    return (batch, error.map_err(|source| Unprepared { source, needs_images: false }));
                }
            }
        } else {
            // Here the HDD has whatever the records void, so images and records may land in any order, and
            // share one flush.
            let ((batch, ringed), listed, journaled) =
                join3(self.write_ring(batch, &ring), self.write_list(list), journal()).await;
            (batch, ringed.and(listed).and(journaled))
        };
        let flushed = match written {
            Ok(()) if flush => self.flush_ssd().await,
            other => other,
        };
        (batch, flushed.map_err(|source| Unprepared { source, needs_images: images_first }))
    }

    /// Writes the images to their ring places, if they have any. Returns them in another order.
    async fn write_ring(
        &self,
        batch: Vec<HomeBound>,
        places: &[u32],
    ) -> (Vec<HomeBound>, Result<(), DeviceError>) {
        if places.is_empty() {
            return (batch, Ok(()));
        }
        let cache = self.cache_device();
        let at = |place: u32| cache.layout.ring_at(place);
        let pieces = batch.into_iter().zip(places);
        let pieces =
            pieces.map(|(b, place)| Piece { offset: at(*place), buf: b.image, tag: (b.page, b.lsn) });
        let (mut back, mut result) = (Vec::with_capacity(places.len()), Ok(()));
        let mut runs = write_runs(&cache.device, pieces.collect(), IoClass::Ring);
        while let Some((written, done)) = runs.next().await {
            back.extend(written.map(|((page, lsn), image)| HomeBound::new(page, image, lsn)));
            result = result.and(done);
        }
        (back, result)
    }

    /// Lists the pages of a batch in the ring at rest, for a recovery after a kill (I14). The list need not
    /// be durable: what a home holds after a power cut is.
    async fn write_list(&self, list: Option<(u32, Block)>) -> Result<(), DeviceError> {
        let Some((place, list)) = list else { return Ok(()) };
        let cache = self.cache_device();
        let buf = IoBuf::copy_of(&list.encode(self.seed));
        let at = cache.layout.ring_at(place);
        cache.device.write(at, IoBufs::from_iter([buf]), IoClass::Meta).await.result
    }

    pub(super) async fn write_journal(&self, blocks: Vec<Block>) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        let writes = blocks.into_iter().map(|block| {
            let buf = IoBuf::copy_of(&block.encode(self.seed));
            cache.device.write(cache.layout.journal_at(block.seq), IoBufs::from_iter([buf]), IoClass::Meta)
        });
        join_all(writes).await.into_iter().try_for_each(|done| done.result)
    }

    /// Step 3: the home writes. Pages that were given up meanwhile are not written. Returns the pages for
    /// which the next flush of the HDD must not count.
    pub(super) async fn write_in_place(
        &self,
        backing: Backing,
        batch: Vec<HomeBound>,
        class: IoClass,
        each: Each<'_>,
    ) -> Vec<PageId> {
        let mut failed = Vec::new();
        let mut end = |page, image, outcome| {
            self.unflushed.ended(page, self.hdd_flush.next());
            // A page given up was not written, so a slot must not become clean by the flush that follows
            // (I5). An image in the ring has no such effect, and a home that does not exist is not torn.
            let unbacked = matches!(outcome, Outcome::GivenUp) && backing != Backing::Ring;
            if unbacked || matches!(outcome, Outcome::Failed(_)) {
                failed.push(page);
            }
            each(page, image, outcome);
        };
        let mut pieces = Vec::with_capacity(batch.len());
        for HomeBound { page, image, .. } in batch {
            match self.homes.offset(page) {
                Some(offset) => pieces.push(Piece { offset, buf: image, tag: page }),
                // Freed since. Its former place may belong to another space by now.
                None if self.homes.is_given_up(page) => end(page, image, Outcome::GivenUp),
                None => end(page, image, Outcome::Failed(TierError::NoSuchPage { page })),
            }
        }
        let mut runs = write_runs(&self.hdd, pieces, class);
        while let Some((written, done)) = runs.next().await {
            for (page, image) in written {
                let error = done.clone().map_err(|source| TierError::Device { page, source });
                error.as_ref().map_or_else(|error| self.note_home_error(error), |()| ());
                let outcome = error.map_or_else(Outcome::Failed, |()| Outcome::Home);
                end(page, image, outcome);
            }
        }
        failed
    }
}

fn stamp_of(image: &IoBuf) -> Stamp {
    Header::peek(image.as_slice()).stamp
}

/// Reports a failure of the whole batch for each of its pages.
pub(super) fn fail_all(batch: Vec<HomeBound>, error: &TierError, each: Each<'_>) {
    for HomeBound { page, image, .. } in batch {
        let error = match error.clone() {
            TierError::Flush { source } | TierError::Device { source, .. } => {
                TierError::Device { page, source }
            }
            other => other,
        };
        each(page, image, Outcome::Failed(error));
    }
}

/// The pages of `batch`, each with its version and the oldest change of it that the HDD may lack.
pub(crate) fn unflushed(batch: &[HomeBound]) -> Vec<(PageId, Stamp, Lsn)> {
    batch.iter().map(|b| (b.page, stamp_of(&b.image), b.lsn)).collect()
}
