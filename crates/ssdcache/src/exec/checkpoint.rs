//! Writing a map checkpoint, so that none counts before all that it vouches for is durable.

use super::Core;
use crate::format::layout::BLOCK_BYTES;
use crate::format::map::{MapHeader, encode_mark};
use crate::mutation::Mutation;
use futures_util::future::join;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass};

/// Bytes of one write of a map's body, at most: reads get in between.
const MAP_CHUNK_BYTES: usize = 1 << 17;

impl Core {
    /// Writes a fuzzy checkpoint of the map: only writers that ran out of slots wait for it.
    pub(crate) async fn checkpoint(&self) -> Result<(), DeviceError> {
        let now = self.now();
        // Before the capture: what becomes dirty later is newer.
        let in_memory = self.redo_from.get().map(|redo_from| redo_from());
        let (capture, watermark, journal_from, lsn_floor) = {
            let mut state = self.state.lock();
            if self.broken.is(Mutation::JournalFreedEarly) {
                let next = state.home.journal_next();
                state.home.free_journal(next);
            }
            let floor = state.next_lsn_floor(in_memory);
            let forgets = self.broken.is(Mutation::HomingForgotten);
            let needed = if forgets { state.home.journal_next() } else { state.home.journal_needed_from() };
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
            state.home.free_journal(journal_from);
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
        let cache = self.cache_device();
        let area = (header.generation % 2) as u8;
        if self.state.lock().map_doubtful {
            // A sound header over another body would pass for a damaged map.
            self.write_headers(area, &vec![0; BLOCK_BYTES as usize]).await?;
            self.flush_ssd(self.next_ssd_flush()).await?;
        }
        let mut offset = cache.layout.map_at(area) + BLOCK_BYTES;
        for chunk in body.chunks(MAP_CHUNK_BYTES) {
            let buf = IoBufs::from_iter([IoBuf::copy_of(chunk)]);
            cache.device.write(offset, buf, IoClass::Meta).await.result?;
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
        let mark = IoBufs::from_iter([IoBuf::copy_of(&encode_mark(self.seed, header.generation))]);
        cache.device.write(cache.layout.map_mark_at(1 - area), mark, IoClass::Meta).await.result
    }

    /// Writes both headers of the map in force, of which one was damaged, once more, and flushes.
    pub(crate) async fn restate_map(&self, header: &MapHeader) -> Result<(), DeviceError> {
        self.write_headers((header.generation % 2) as u8, &header.encode(self.seed)).await?;
        self.flush_ssd(self.next_ssd_flush()).await
    }

    async fn write_headers(&self, area: u8, block: &[u8]) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        let [first, second] = [0, 1].map(|copy| {
            let bufs = IoBufs::from_iter([IoBuf::copy_of(block)]);
            cache.device.write(cache.layout.map_header_at(area, copy), bufs, IoClass::Meta)
        });
        let (first, second) = join(first, second).await;
        first.result.and(second.result)
    }
}
