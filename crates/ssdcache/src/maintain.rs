//! The background task: map checkpoints, cleaning of the next victims, second chances, flushes that free
//! slots and ring.

use crate::core::Core;
use crate::map::{MapHeader, encode_mark};
use crate::mutation::Mutation;
use crate::slots::{MapWork, WriteBack};
use futures_util::future::join;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages of one write-back batch, at most.
const WRITE_BACK_MAX: usize = 32;

/// Bytes of one write of a map's body, at most: reads get in between.
const MAP_CHUNK_BYTES: usize = 1 << 17;

/// Runs until it is told to stop or aborted. Waits without polling.
///
/// Two duties side by side: writers out of slots wait for a map checkpoint, which must not wait in its turn
/// for pages on their way to a slow disk.
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
        while core.refusing.cause().is_none()
            && !victims_over.load(Ordering::Acquire)
            && core.map_step().await
        {}
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
        self.refusing.cause().is_none() && !self.stopping.load(Ordering::Acquire)
    }

    /// Checkpoints of the map, and flushes of the SSD. False when nothing is due or nothing can be done.
    async fn map_step(&self) -> bool {
        let _duty = self.map_duty.lock().await;
        let journal_blocks = self.layout().journal_blocks;
        let work = {
            let now = self.now();
            let mut state = self.state.lock();
            let journal_high = state.journal.is_high(journal_blocks);
            // An SSD that takes no new pages still needs room in the journal.
            let usable = state.ssd_error.is_none() || (journal_high && !state.map_failed);
            if usable { state.slots.map_work(journal_high, now) } else { None }
        };
        let result = match work {
            Some(MapWork::Checkpoint) => self.checkpoint().await,
            Some(MapWork::Flush) => self.flush_ssd(self.next_ssd_flush()).await,
            None => return false,
        };
        self.went_well(result)
    }

    /// Write-back of the next victims, and flushes of the HDD for the ring. False when nothing is due or
    /// nothing can be done.
    async fn home_step(&self) -> bool {
        let _duty = self.home_duty.lock().await;
        self.give_second_chances().await;
        let journal_blocks = self.layout().journal_blocks;
        let (batch, flush) = {
            let now = self.now();
            let mut state = self.state.lock();
            let usable = state.ssd_error.is_none();
            let due = usable && state.slots.next_victims_are_dirty(now);
            // Copies whose homes were written already need no second home write to be clean.
            let waits = due && state.slots.wants_home_flush(&|page| self.home_writes.in_flight(page));
            let due = due && !waits;
            let batch = if due { state.slots.begin_write_back(WRITE_BACK_MAX, now) } else { Vec::new() };
            let held = state.ring.wants_flush() || state.backed_wants_flush(journal_blocks);
            (batch, held || waits || self.home_writes.wants_flush())
        };
        if !batch.is_empty() {
            // Pages that do not get home are tried again when something else has happened.
            self.write_back(batch).await.is_ok_and(|pages| pages > 0)
        } else if flush {
            self.flush_hdd(self.hdd_flush.next()).await.is_ok()
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

    /// Writes a fuzzy checkpoint of the map: only writers that ran out of slots wait for it.
    pub(crate) async fn checkpoint(&self) -> Result<(), DeviceError> {
        let now = self.now();
        // Before the capture: what becomes dirty later is newer.
        let in_memory = self.redo_from.get().map(|redo_from| redo_from());
        let (capture, watermark, journal_from, lsn_floor) = {
            let mut state = self.state.lock();
            if self.broken.is(Mutation::JournalFreedEarly) {
                state.journal.tail = state.journal.next;
            }
            let floor = state.next_lsn_floor(in_memory);
            let forgets = self.broken.is(Mutation::HomingForgotten);
            let needed = if forgets { state.journal.next } else { state.journal.needed_from() };
            (state.slots.begin_checkpoint(now), self.stamps.last(), needed, floor)
        };
        let generation = capture.generation;
        let slots = self.layout().slots;
        let (body, body_crc) = capture.body.encode(self.seed);
        drop(capture);
        let header = MapHeader { generation, watermark, journal_from, body_crc, slots, lsn_floor };
        let result = self.write_map(&header, &body).await;
        let mut state = self.state.lock();
        state.map_doubtful = result.is_err();
        state.slots.end_checkpoint(result.is_ok());
        if result.is_ok() {
            state.journal.tail = journal_from;
            state.lsn_floor = lsn_floor;
        }
        state.map_failed = result.is_err();
        drop(state);
        self.changed.notify_waiters();
        // A new zone has other victims.
        self.wake.victims.notify_one();
        tracing::debug!(generation, ok = result.is_ok(), "map checkpoint");
        result
    }

    /// Body, flush, header, flush, mark. The header must never be durable before the body and the slots that
    /// it vouches for. The mark says that the checkpoint is in force; its write is over before anything is
    /// written under the checkpoint, so the first flush after that covers it.
    async fn write_map(&self, header: &MapHeader, body: &[u8]) -> Result<(), DeviceError> {
        let side = self.side();
        let area = (header.generation % 2) as u8;
        if self.state.lock().map_doubtful {
            self.unmake_map(area).await?;
        }
        let mut offset = side.layout.map_at(area) + crate::layout::BLOCK_BYTES;
        for chunk in body.chunks(MAP_CHUNK_BYTES) {
            let buf = IoBufs::from_iter([IoBuf::copy_of(chunk)]);
            side.device.write(offset, buf, IoClass::Meta).await.result?;
            offset += chunk.len() as u64;
        }
        if !self.broken.is(Mutation::HeaderBeforeBody) {
            self.flush_ssd(self.next_ssd_flush()).await?;
        }
        self.write_headers(area, &header.encode(self.seed)).await?;
        if self.broken.is(Mutation::HeaderNotFlushed) {
            return Ok(());
        }
        self.flush_ssd(self.next_ssd_flush()).await?;
        self.write_mark(area, &encode_mark(self.seed, header.generation)).await
    }

    /// Takes back the checkpoint in `area` that was reported as failed: any part of it may stand all the
    /// same. A sound header over another body would pass for a damaged map, so the headers go before the body
    /// is written over. A mark without a header would pass for one, too, so the mark goes first.
    async fn unmake_map(&self, area: u8) -> Result<(), DeviceError> {
        let blank = vec![0; crate::layout::BLOCK_BYTES as usize];
        if !self.broken.is(Mutation::MarkOutlivesHeaders) {
            self.write_mark(area, &blank).await?;
            self.flush_ssd(self.next_ssd_flush()).await?;
        }
        self.write_headers(area, &blank).await?;
        self.flush_ssd(self.next_ssd_flush()).await
    }

    /// Writes `block` where the other area keeps the mark of the checkpoint in `area`.
    async fn write_mark(&self, area: u8, block: &[u8]) -> Result<(), DeviceError> {
        let side = self.side();
        let bufs = IoBufs::from_iter([IoBuf::copy_of(block)]);
        side.device.write(side.layout.map_mark_at(1 - area), bufs, IoClass::Meta).await.result
    }

    /// Writes both headers of the map in force, of which one was damaged, once more, and flushes.
    pub(crate) async fn restate_map(&self, header: &MapHeader) -> Result<(), DeviceError> {
        self.write_headers((header.generation % 2) as u8, &header.encode(self.seed)).await?;
        self.flush_ssd(self.next_ssd_flush()).await
    }

    async fn write_headers(&self, area: u8, block: &[u8]) -> Result<(), DeviceError> {
        let side = self.side();
        let [first, second] = [0, 1].map(|copy| {
            let bufs = IoBufs::from_iter([IoBuf::copy_of(block)]);
            side.device.write(side.layout.map_header_at(area, copy), bufs, IoClass::Meta)
        });
        let (first, second) = join(first, second).await;
        first.result.and(second.result)
    }

    /// Copies the next victims to the HDD, so that their slots can be given up at once. How many are home.
    async fn write_back(&self, batch: Vec<WriteBack>) -> Result<usize, DeviceError> {
        let class = match self.state.lock().slots.take_urgency() {
            true => IoClass::UrgentWriteBack,
            false => IoClass::WriteBack,
        };
        let copied = self.copy_home(batch, class).await;
        copied.result.map(|()| copied.home.len())
    }
}
