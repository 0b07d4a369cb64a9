//! The background task: map checkpoints, cleaning of the next victims, flushes that free slots and ring.

use crate::core::{Core, check};
use crate::home::{Arrived, HomeBound};
use crate::map::MapHeader;
use crate::mutation::Mutation;
use crate::read::read_one;
use crate::slots::{MapWork, WriteBack};
use futures_util::future::{join, join_all};
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages of one write-back batch, at most.
const WRITE_BACK_MAX: usize = 32;

/// Bytes of one write of a map's body, at most: reads get in between.
const MAP_CHUNK_BYTES: usize = 1 << 17;

/// Runs until it is told to stop or aborted. Waits without polling.
///
/// Two duties side by side: writers out of slots wait for a map checkpoint, which must not wait in its turn for pages on
/// their way to a slow disk.
pub(crate) async fn run(core: Arc<Core>) {
    // The second may have to wait for the first when the tier is closed.
    let victims_over = AtomicBool::new(false);
    let victims = async {
        keep_victims_clean(&core).await;
        victims_over.store(true, Ordering::Release);
        core.wake.slots.notify_one();
    };
    join(keep_slots_writable(&core, &victims_over), victims).await;
}

async fn keep_slots_writable(core: &Core, victims_over: &AtomicBool) {
    loop {
        core.wake.slots.notified().await;
        while core.refusing.get().is_none() && !victims_over.load(Ordering::Acquire) && core.map_step().await
        {
        }
        if victims_over.load(Ordering::Acquire) {
            return;
        }
    }
}

async fn keep_victims_clean(core: &Core) {
    loop {
        core.wake.victims.notified().await;
        while core.may_go_on() && core.home_step().await {}
        if core.stopping.load(Ordering::Acquire) {
            return;
        }
    }
}

impl Core {
    fn may_go_on(&self) -> bool {
        self.refusing.get().is_none() && !self.stopping.load(Ordering::Acquire)
    }

    /// Checkpoints of the map, and flushes of the SSD. False when nothing is due or nothing can be done.
    async fn map_step(&self) -> bool {
        let work = {
            let now = self.now();
            let mut state = self.state.lock();
            let journal_high =
                (state.journal.next - state.journal.tail) * 2 > u64::from(self.layout.journal_blocks);
            let usable = state.ssd_error.is_none();
            if usable { state.slots.map_work(journal_high, now) } else { None }
        };
        let result = match work {
            Some(MapWork::Checkpoint) => self.checkpoint().await,
            Some(MapWork::Flush) => self.flush_ssd(self.ssd_flush.next()).await,
            None => return false,
        };
        self.went_well(result)
    }

    /// Write-back of the next victims, and flushes of the HDD for the ring. False when nothing is due or nothing can be done.
    async fn home_step(&self) -> bool {
        let (batch, ring) = {
            let now = self.now();
            let mut state = self.state.lock();
            let usable = state.ssd_error.is_none();
            let due = usable && state.slots.next_victims_are_dirty(now);
            let batch = if due { state.slots.begin_write_back(WRITE_BACK_MAX, now) } else { Vec::new() };
            (batch, state.ring.wants_flush())
        };
        if !batch.is_empty() {
            let home = self.write_back(batch).await;
            let some = home.as_ref().is_ok_and(|pages| *pages > 0);
            // Pages that do not get home are tried again when something else has happened.
            self.went_well(home.map(|_| ())) && some
        } else if ring {
            let flushed = self.flush_hdd(self.hdd_flush.next()).await;
            self.went_well(flushed)
        } else {
            false
        }
    }

    fn went_well(&self, result: Result<(), DeviceError>) -> bool {
        if let Err(error) = &result {
            self.ssd_failed(error);
        }
        result.is_ok()
    }

    /// Writes a fuzzy checkpoint of the map: nobody waits for it but writers that ran out of slots.
    pub(crate) async fn checkpoint(&self) -> Result<(), DeviceError> {
        let now = self.now();
        let (capture, watermark, journal_from) = {
            let mut state = self.state.lock();
            if self.broken.is(Mutation::JournalFreedEarly) {
                state.journal.tail = state.journal.next;
            }
            (state.slots.begin_checkpoint(now), self.stamps.last(), state.journal.next)
        };
        let generation = capture.generation;
        let slots = self.layout.slots;
        let (body, body_crc) = capture.body.encode();
        drop(capture);
        let header = MapHeader { generation, watermark, journal_from, body_crc, slots };
        let result = self.write_map(&header, &body).await;
        let mut state = self.state.lock();
        state.slots.end_checkpoint(result.is_ok());
        if result.is_ok() {
            state.journal.tail = journal_from;
        }
        drop(state);
        self.changed.notify_waiters();
        // A new zone has other victims.
        self.wake.victims.notify_one();
        tracing::debug!(generation, ok = result.is_ok(), "map checkpoint");
        result
    }

    /// Body, flush, header, flush: the header must never be durable before the body and the slots that it vouches for.
    async fn write_map(&self, header: &MapHeader, body: &[u8]) -> Result<(), DeviceError> {
        let at = self.layout.map_at((header.generation % 2) as u8);
        let mut offset = at + crate::layout::BLOCK_BYTES;
        for chunk in body.chunks(MAP_CHUNK_BYTES) {
            let buf = IoBufs::from_iter([IoBuf::copy_of(chunk)]);
            self.ssd.write(offset, buf, IoClass::Meta).await.result?;
            offset += chunk.len() as u64;
        }
        if !self.broken.is(Mutation::HeaderBeforeBody) {
            self.flush_ssd(self.ssd_flush.next()).await?;
        }
        let buf = IoBufs::from_iter([IoBuf::copy_of(&header.encode())]);
        self.ssd.write(at, buf, IoClass::Meta).await.result?;
        if self.broken.is(Mutation::HeaderNotFlushed) {
            return Ok(());
        }
        self.flush_ssd(self.ssd_flush.next()).await
    }

    /// Copies the next victims to the HDD, so that their slots can be given up at once. How many are home.
    async fn write_back(&self, batch: Vec<WriteBack>) -> Result<usize, DeviceError> {
        let result = self.copy_home(&batch).await;
        let mut state = self.state.lock();
        for one in batch {
            state.slots.end_write_back(one, result.as_ref().is_ok_and(|ok| ok.contains(&one)));
        }
        drop(state);
        self.changed.notify_waiters();
        result.map(|home| home.len())
    }

    /// The ones that are home, durably.
    async fn copy_home(&self, batch: &[WriteBack]) -> Result<Vec<WriteBack>, DeviceError> {
        let durable_at = batch.iter().map(|w| w.durable_at).max().unwrap_or(0);
        let flushes = !self.broken.is(Mutation::WriteBackBeforeFlush);
        if self.ssd_flush.completed() < durable_at && flushes {
            self.flush_ssd(durable_at).await?;
        }
        let reads = batch.iter().map(|one| async move {
            let (buf, result) =
                read_one(&self.ssd, self.slot_at(one.slot), self.buffer(), IoClass::WriteBack).await;
            (one, buf, result)
        });
        let mut pages = Vec::with_capacity(batch.len());
        for (one, image, result) in join_all(reads).await {
            result?;
            match check(image.as_slice(), one.page, Some(one.stamp)) {
                Ok(_) => pages.push(HomeBound { page: one.page, image, backed_by_slot: true }),
                Err(defect) => {
                    let error = self.corrupt(one.page, &self.ssd, self.slot_at(one.slot), defect);
                    tracing::error!(%error, "the only copy of this version cannot be written back");
                }
            }
        }
        let home = Mutex::new(Vec::with_capacity(pages.len()));
        let each = |arrived: Arrived| {
            self.give_back(arrived.image);
            if arrived.result.is_ok() {
                home.lock().extend(batch.iter().filter(|one| one.page == arrived.page));
            }
        };
        self.write_home(pages, IoClass::WriteBack, &each).await;
        if !self.broken.is(Mutation::CleanBeforeFlush) {
            self.flush_hdd(self.hdd_flush.next()).await?;
        }
        Ok(home.into_inner())
    }
}
