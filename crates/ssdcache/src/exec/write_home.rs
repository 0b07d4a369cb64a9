//! Writing pages home, so that neither a torn write nor an old SSD copy can hurt.
//!
//! For the pool's dirty pages: (1) images to the doublewrite ring and records to the journal, (2) one SSD
//! flush, (3) the HDD writes, sorted and merged. The ring holds the images until an HDD flush that begins
//! after (3). For the SSD's own write-back the slot itself, flushed before, takes the ring's place; and for
//! pages that a doublewrite buffer of slots has taken, the slot that they were just appended to.

use crate::exec::Core;
use crate::exec::coalesce::{Piece, Run, coalesce};
use crate::format::journal::{Backing, Block, RECORDS_MAX, Record};
use crate::format::layout::BLOCK_BYTES;
use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::protocol::backed::Copy;
use crate::protocol::ring::RingSpan;
use futures_util::future::{join, join_all};
use futures_util::stream::{Stream, StreamExt};
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{Flags, Header, Lsn, PageId, Stamp};
use parking_lot::Mutex;
use std::sync::Arc;

/// Writes of a batch in flight at once: enough for the disk to sort, few enough that reads get through.
const WRITES_MAX: usize = 8;

/// The same of a batch that must get done: its share of the disk is that of its writes among all that wait.
const URGENT_WRITES_MAX: usize = 32;

/// A page image on its way home.
#[derive(Debug)]
pub(crate) struct HomeBound {
    pub(crate) page: PageId,
    pub(crate) image: IoBuf,
    /// What backs the write: with [`Backing::Ring`] the image is sealed anew.
    pub(crate) backing: Backing,
    /// The HDD has every change older than this.
    pub(crate) lsn: Lsn,
    /// Of a page just appended: the copy before was of a version that the HDD has not.
    pub(crate) over_only_copy: bool,
}

impl HomeBound {
    /// A page of the pool, which the ring has to back.
    pub(crate) fn ringed(page: PageId, image: IoBuf, lsn: Lsn) -> Self {
        Self { page, image, backing: Backing::Ring, lsn, over_only_copy: false }
    }

    pub(crate) fn backed_by_slot(&self) -> bool {
        self.backing != Backing::Ring
    }
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) page: PageId,
    pub(crate) image: IoBuf,
    pub(crate) result: Result<(), TierError>,
}

/// The places that a batch was given.
struct Places {
    ring: Option<RingSpan>,
    journal: Vec<(u64, Block)>,
    /// Of slots that back it.
    backed: Option<u64>,
    /// A page of the batch has a copy on the SSD that the HDD has not: it may be voided only once the image
    /// in the ring, or in the page's new slot, is durable.
    images_first: bool,
}

/// What a batch has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoPlace {
    /// An HDD write of one of its pages.
    Busy,
    Journal,
    Ring,
}

impl Core {
    /// The most pages that one batch may have: what the ring takes, and one journal block.
    fn home_batch_max(&self, pages: &[HomeBound]) -> usize {
        let ringed = self.doublewrite() && pages.iter().any(|b| !b.backed_by_slot());
        if ringed { self.state.lock().ring.batch_max().min(RECORDS_MAX) } else { RECORDS_MAX }
    }

    /// Writes `pages` to the HDD. Returns when the writes completed; they are durable then if the ring is on
    /// (its images are), otherwise after the next HDD flush.
    pub(crate) async fn write_home(
        &self,
        pages: Vec<HomeBound>,
        class: IoClass,
        each: &(dyn Fn(Arrived) + Send + Sync),
    ) {
        let max = self.home_batch_max(&pages);
        let mut pages = pages.into_iter().peekable();
        while pages.peek().is_some() {
            let batch: Vec<HomeBound> = pages.by_ref().take(max).collect();
            self.write_batch_home(batch, class, each).await;
        }
    }

    async fn write_batch_home(
        &self,
        mut batch: Vec<HomeBound>,
        class: IoClass,
        each: &(dyn Fn(Arrived) + Send + Sync),
    ) {
        let (places, superseded) = match self.places(&mut batch).await {
            Ok(places) => places,
            Err(error) => return fail_all(batch, &error, each),
        };
        for HomeBound { page, image, .. } in superseded {
            each(Arrived { page, image, result: Err(TierError::NoSuchPage { page }) });
        }
        // The write-back loop looks for more by itself, and must not be woken by its own failures.
        let from_pool = batch.iter().any(|b| b.backing != Backing::WriteBack);
        let (span, backed) = (places.ring.as_ref().map(|s| s.id), places.backed);
        let blocks: Vec<u64> = places.journal.iter().map(|(seq, _)| *seq).collect();
        let (batch, prepared) = self.prepare(batch, places).await;
        let pages: Vec<PageId> = batch.iter().map(|b| b.page).collect();
        let failed = Mutex::new(Vec::new());
        let each_noted = |arrived: Arrived| {
            self.unflushed.ended(arrived.page, self.hdd_flush.next());
            if arrived.result.is_err() {
                failed.lock().push(arrived.page);
            }
            each(arrived);
        };
        let begun = prepared.map(|()| self.unflushed.begin(&versions(&batch)));
        match begun {
            Ok(Ok(())) => self.write_in_place(batch, class, &each_noted).await,
            Ok(Err(cause)) => {
                failed.lock().extend(pages.iter().filter(|_| backed.is_some()));
                fail_all(batch, &TierError::Refusing { cause }, each);
            }
            Err(source) => {
                failed.lock().extend(pages.iter().filter(|_| backed.is_some()));
                self.ssd_failed(&source);
                self.refuse(&source.to_string(), true);
                let page = pages.first().copied().unwrap_or_default();
                fail_all(batch, &TierError::Device { page, source }, each);
            }
        }
        let flush = self.hdd_flush.next();
        let mut state = self.state.lock();
        let failed = failed.into_inner();
        for seq in blocks.iter().filter(|_| backed.is_none()) {
            state.journal.homing.remove(seq);
        }
        if let Some(id) = backed {
            self.end_backed(&mut state, id, &failed, flush);
        }
        for page in &pages {
            state.writing_home.remove(page);
            if !failed.contains(page) {
                state.ring.reached_home(*page, flush);
            }
        }
        if let Some(id) = span {
            if failed.is_empty() {
                state.ring.written_home(id, flush);
            } else {
                state.ring.home_failed(id, failed);
            }
            if self.broken.is(Mutation::RingFreedEarly) {
                state.ring.flushed(flush);
            }
        }
        drop(state);
        self.changed.notify_waiters();
        self.wake.slots.notify_one();
        if from_pool {
            self.wake.victims.notify_one();
        }
    }

    /// The home writes of a batch that its slots back are over.
    fn end_backed(&self, state: &mut Protocol, id: u64, failed: &[PageId], flush: u64) {
        for copy in state.backed.written_home(id, failed, flush) {
            state.slots.end_backing(copy.slot, copy.stamp, false);
        }
        if self.broken.is(Mutation::DoublewriteFreedEarly) {
            let settled = state.backed.flushed(flush);
            state.settle(settled, true);
        }
    }

    /// Waits for ring and journal places, and for earlier HDD writes of the same pages; seals the images.
    /// Takes out of the batch, and gives back, the slots' pages that have a newer version by then: it may be
    /// home already.
    async fn places(&self, batch: &mut Vec<HomeBound>) -> Result<(Places, Vec<HomeBound>), TierError> {
        let mut superseded = Vec::new();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(refusal) = self.refusal() {
                return Err(refusal);
            }
            match self.try_places(batch, &mut superseded) {
                Ok(places) => return Ok((places, superseded)),
                Err(why) => {
                    if why == NoPlace::Journal
                        && let Some(cause) = self.map_failure()
                    {
                        // Without checkpoints the journal never has room again, and without it no page may go
                        // home.
                        self.refuse(&cause, true);
                        continue;
                    }
                    if why == NoPlace::Ring && self.ring_is_lost() {
                        if self.mend_homes().await {
                            continue;
                        }
                        let cause =
                            "home writes failed, and the ring is full of what they may have left torn";
                        self.refuse(cause, false);
                        continue;
                    }
                    self.flush_for_place(why).await?;
                    self.wake.notify_one();
                    changed.await;
                }
            }
        }
    }

    /// Whether nothing under way can make room in the ring any more.
    fn ring_is_lost(&self) -> bool {
        let state = self.state.lock();
        state.ring.is_stuck() && state.writing_home.is_empty()
    }

    fn map_failure(&self) -> Option<std::sync::Arc<str>> {
        let state = self.state.lock();
        state.ssd_error.clone().filter(|_| state.map_failed)
    }

    /// Makes the ring's oldest entries free, or records of slots that back home writes superfluous, if an HDD
    /// flush is all they wait for.
    async fn flush_for_place(&self, why: NoPlace) -> Result<(), TierError> {
        let wanted = {
            let state = self.state.lock();
            let pinned = why == NoPlace::Journal && state.backed.can_settle();
            (self.doublewrite() && state.ring.wants_flush()) || pinned
        };
        if wanted {
            let next = self.hdd_flush.next();
            let flushed = self.flush_hdd(next).await;
            flushed.map_err(|source| TierError::Device { page: PageId::default(), source })?;
        }
        Ok(())
    }

    fn try_places(
        &self,
        batch: &mut Vec<HomeBound>,
        superseded: &mut Vec<HomeBound>,
    ) -> Result<Places, NoPlace> {
        let mut state = self.state.lock();
        let one_at_a_time = !self.broken.is(Mutation::TwoInFlight);
        if one_at_a_time && batch.iter().any(|b| state.writing_home.contains(&b.page)) {
            return Err(NoPlace::Busy);
        }
        // Once nothing newer is on its way: what is in the slot must still be the page's newest version, or a
        // newer one would be written over.
        let gone = |b: &mut HomeBound| {
            let stamp = Header::peek(b.image.as_slice()).stamp;
            let stale = b.backed_by_slot() && !state.slots.holds(b.page, stamp);
            stale && !self.broken.is(Mutation::StaleWriteBack)
        };
        superseded.extend(batch.extract_if(.., gone));
        let records = if self.has_slots() { batch.len().div_ceil(RECORDS_MAX) as u64 } else { 0 };
        let room = u64::from(self.layout().journal_blocks);
        if records > 0 && state.journal.used() + records > room {
            return Err(NoPlace::Journal);
        }
        let ringed = batch.iter().filter(|b| !b.backed_by_slot()).count();
        let stamp_min = self.stamps.fresh();
        let ring = if self.doublewrite() && ringed > 0 {
            let span = state.ring.hold(ringed, stamp_min).ok_or(NoPlace::Ring)?;
            if let Some(lsn) = oldest_lsn(batch, &state.slots) {
                state.ring.note_lsn(span.id, lsn);
            }
            Some(span)
        } else {
            None
        };
        let voids_only_copy = |b: &HomeBound| match b.backing {
            Backing::Ring => state.slots.is_only_copy(b.page),
            Backing::Appended => b.over_only_copy,
            Backing::WriteBack => false,
        };
        let images_first = self.has_slots()
            && !self.broken.is(Mutation::RecordBeforeImage)
            && batch.iter().any(voids_only_copy);
        let mut journaled = Vec::with_capacity(batch.len());
        for b in batch.iter_mut() {
            if !b.backed_by_slot() {
                pagetier_page::seal(self.seed, b.image.as_mut_slice(), self.stamps.fresh(), Flags::NONE);
            }
            let stamp = Header::peek(b.image.as_slice()).stamp;
            journaled.push(Record { page: b.page, stamp });
            state.writing_home.insert(b.page);
            if !b.backed_by_slot() {
                state.slots.cancel_move(b.page);
            }
        }
        if let Some(span) = &ring {
            let ringed = batch.iter().zip(&journaled).filter(|(b, _)| !b.backed_by_slot());
            let versions = ringed.map(|(_, record)| (record.page, record.stamp)).collect();
            state.ring.note_versions(span.id, versions);
        }
        let mut journal = Vec::new();
        let backing = batch.first().map_or(Backing::Ring, |b| b.backing);
        let backed = (backing == Backing::Appended).then(|| hold_slots(&mut state, &journaled));
        if self.has_slots() {
            let (ring_floor, slots_floor) = (state.ring.floor(self.stamps.fresh()), state.backed.floor());
            let (ring_floor, slots_back) =
                (slots_floor.map_or(ring_floor, |floor| floor.min(ring_floor)), slots_floor.is_some());
            for records in journaled.chunks(RECORDS_MAX) {
                let seq = state.journal.next;
                state.journal.next += 1;
                state.journal.writing.insert(seq);
                if backing == Backing::WriteBack {
                    state.journal.write_back = Some(seq);
                } else {
                    state.journal.homing.insert(seq);
                }
                let records = records.to_vec();
                let generation = state.slots.in_force();
                journal.push((seq, Block { seq, ring_floor, backing, slots_back, generation, records }));
            }
        }
        if let Some(id) = backed {
            let blocks: Vec<u64> = journal.iter().map(|(seq, _)| *seq).collect();
            state.backed.recorded(id, &blocks);
        }
        Ok(Places { ring, journal, backed, images_first })
    }

    /// Steps 1 and 2: after this, the HDD writes may start.
    async fn prepare(
        &self,
        batch: Vec<HomeBound>,
        places: Places,
    ) -> (Vec<HomeBound>, Result<(), DeviceError>) {
        let Places { ring, journal, images_first, .. } = places;
        // A slot's own flush before it goes home would be covered by the last one.
        let all = |backing| batch.iter().all(|b| b.backing == backing);
        let unflushed = self.broken.is(Mutation::HomeBeforeFlush)
            || (self.broken.is(Mutation::WriteBackBeforeFlush) && all(Backing::WriteBack))
            || (self.broken.is(Mutation::DoublewriteBeforeFlush) && all(Backing::Appended));
        let to_ring = async {
            match ring {
                Some(span) => self.write_ring(batch, &span).await,
                None => (batch, Ok(())),
            }
        };
        let (batch, result) = if images_first {
            let (batch, ringed) = to_ring.await;
            let flushed = match ringed {
                Ok(()) if unflushed => Ok(()),
                Ok(()) => self.flush_ssd(self.next_ssd_flush()).await,
                error => error,
            };
            match flushed {
                Ok(()) => (batch, self.write_journal(journal).await),
                error => {
                    // These blocks are never written: they reserve no place.
                    let mut state = self.state.lock();
                    for (seq, _) in &journal {
                        state.journal.writing.remove(seq);
                    }
                    drop(state);
                    (batch, error)
                }
            }
        } else {
            let ((batch, ringed), journaled) = join(to_ring, self.write_journal(journal)).await;
            (batch, ringed.and(journaled))
        };
        let needs_flush = (self.has_slots() || self.doublewrite()) && !unflushed;
        match result {
            Ok(()) if needs_flush => {
                let flushed = self.flush_ssd(self.next_ssd_flush()).await;
                (batch, flushed)
            }
            other => (batch, other),
        }
    }

    async fn write_ring(
        &self,
        batch: Vec<HomeBound>,
        span: &RingSpan,
    ) -> (Vec<HomeBound>, Result<(), DeviceError>) {
        let (ringed, mut back): (Vec<_>, Vec<_>) = batch.into_iter().partition(|b| !b.backed_by_slot());
        let cache = self.cache_device();
        let pieces = ringed
            .into_iter()
            .zip(&span.pages)
            .map(|(b, at)| Piece { offset: cache.layout.ring_at(*at), buf: b.image, tag: (b.page, b.lsn) })
            .collect();
        let mut result = Ok(());
        let mut runs = self.write_runs(&cache.device, coalesce(pieces), IoClass::Ring);
        while let Some((tags, bufs, done)) = runs.next().await {
            let bound = |((page, lsn), image)| HomeBound::ringed(page, image, lsn);
            back.extend(tags.into_iter().zip(bufs).map(bound));
            result = result.and(done);
        }
        (back, result)
    }

    async fn write_journal(&self, blocks: Vec<(u64, Block)>) -> Result<(), DeviceError> {
        let seqs: Vec<u64> = blocks.iter().map(|(seq, _)| *seq).collect();
        let none = self.broken.is(Mutation::NoJournal);
        let of_slots_only = self.broken.is(Mutation::HomeUnrecorded);
        let written = |block: &Block| !none && (block.backing == Backing::WriteBack || !of_slots_only);
        let cache = self.cache_device();
        let writes = blocks.into_iter().filter(|(_, block)| written(block)).map(|(seq, block)| {
            let buf = IoBuf::copy_of(&block.encode(self.seed));
            debug_assert_eq!(buf.len() as u64, BLOCK_BYTES);
            cache.device.write(cache.layout.journal_at(seq), IoBufs::from_iter([buf]), IoClass::Meta)
        });
        let written = join_all(writes).await;
        let mut state = self.state.lock();
        for seq in seqs {
            state.journal.writing.remove(&seq);
        }
        drop(state);
        written.into_iter().try_for_each(|done| done.result)
    }

    /// Step 3.
    async fn write_in_place(
        &self,
        batch: Vec<HomeBound>,
        class: IoClass,
        each: &(dyn Fn(Arrived) + Send + Sync),
    ) {
        let mut pieces = Vec::with_capacity(batch.len());
        for HomeBound { page, image, backing, .. } in batch {
            match self.homes.offset(page) {
                Some(offset) => pieces.push(Piece { offset, buf: image, tag: page }),
                // The space is being dropped: there is nothing to write for. Its slot must not pass for a
                // copy of what is home, though: a crash may bring the space back.
                None if backing != Backing::Ring => {
                    each(Arrived { page, image, result: Err(TierError::NoSuchPage { page }) });
                }
                None => each(Arrived { page, image, result: Ok(()) }),
            }
        }
        let hdd = Arc::clone(&self.hdd);
        let mut runs = self.write_runs(&hdd, coalesce(pieces), class);
        while let Some((pages, bufs, done)) = runs.next().await {
            for (page, image) in pages.into_iter().zip(bufs) {
                let result = done.clone().map_err(|source| TierError::Device { page, source });
                each(Arrived { page, image, result });
            }
        }
    }

    /// Writes runs, a bounded number at a time; they come back as they complete.
    pub(crate) fn write_runs<T: Send>(
        &self,
        device: &SharedDevice,
        runs: Vec<Run<T>>,
        class: IoClass,
    ) -> impl Stream<Item = (Vec<T>, IoBufs, Result<(), DeviceError>)> + Send + Unpin + use<T> {
        let device = Arc::clone(device);
        let writes = runs.into_iter().map(move |run| {
            let device = Arc::clone(&device);
            async move {
                let done = device.write(run.offset, run.bufs, class).await;
                (run.tags, done.bufs, done.result)
            }
        });
        let at_once = if class == IoClass::UrgentWriteBack { URGENT_WRITES_MAX } else { WRITES_MAX };
        Box::pin(futures_util::stream::iter(writes).buffer_unordered(at_once))
    }
}

fn fail_all(batch: Vec<HomeBound>, error: &TierError, each: &(dyn Fn(Arrived) + Send + Sync)) {
    for b in batch {
        let error = match error {
            TierError::Device { source, .. } => TierError::Device { page: b.page, source: source.clone() },
            other => other.clone(),
        };
        each(Arrived { page: b.page, image: b.image, result: Err(error) });
    }
}

/// The pages of `batch`, each with its version and the oldest change that the HDD may lack of it.
fn versions(batch: &[HomeBound]) -> Vec<(PageId, Stamp, Lsn)> {
    batch.iter().map(|b| (b.page, Header::peek(b.image.as_slice()).stamp, b.lsn)).collect()
}

/// From now on the slots of these pages back their way home.
fn hold_slots(state: &mut Protocol, pages: &[Record]) -> u64 {
    let copy = |record: &Record| {
        let (slot, _) = state.slots.copy_of(record.page)?;
        Some(Copy { page: record.page, slot, stamp: record.stamp })
    };
    let copies = pages.iter().filter_map(copy).collect();
    state.backed.hold(copies)
}

/// The oldest change that the HDD may lack of the pages that the ring is to back.
fn oldest_lsn(batch: &[HomeBound], slots: &crate::protocol::slots::Slots) -> Option<Lsn> {
    let ringed = batch.iter().filter(|b| !b.backed_by_slot());
    // What the page's copy on the SSD has, the HDD may lack too.
    let lsn =
        |b: &HomeBound| if slots.is_only_copy(b.page) { b.lsn.min(slots.lsn_of(b.page)) } else { b.lsn };
    ringed.map(lsn).min()
}
