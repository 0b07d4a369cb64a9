//! Writes map checkpoints.

use super::Core;
use super::single::write_one;
use super::tier::SsdTier;
use crate::format::layout::BLOCK_BYTES;
use crate::format::map::{MapHeader, encode_mark};
use crate::protocol::checkpoint::{Checkpoint, Step};
use futures_util::future::join;
use pagetier_devio::spans::Work;
use pagetier_devio::task::Boxed;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use tracing::field;

/// The maximum size of one write of a map's body in bytes, so that reads get in between.
const MAP_CHUNK_BYTES: usize = 1 << 17;

impl SsdTier {
    /// Writes a checkpoint if a crash could otherwise bring back a version whose page was discarded before
    /// this call. Returns whether no such version can come back any more. Must be driven to completion.
    pub fn finalize_discards(&self) -> Boxed<'_, bool> {
        Box::pin(async move {
            let core = &*self.core;
            // Count before waiting for the duty: discards that come later are not this caller's.
            let (discards, by_ring) = {
                let state = core.state.lock();
                (state.slots.discards(), state.home.may_resurrect_discarded())
            };
            let _duty = core.map_duty.lock().await;
            let due = {
                let state = core.state.lock();
                let usable = state.ssd_error.is_none() && core.refusing.cause().is_none();
                usable && !state.slots.discards_are_final(discards)
            };
            if due && let Err(error) = core.checkpoint().await {
                core.ssd_failed(&error);
            }
            !by_ring && core.state.lock().slots.discards_are_final(discards)
        })
    }
}

impl Core {
    /// Writes a fuzzy checkpoint of the map. Only writers that ran out of slots wait for it.
    pub(crate) async fn checkpoint(&self) -> Result<(), DeviceError> {
        let work = Work::of(|| {
            let (generation, bytes, error) = (field::Empty, field::Empty, field::Empty);
            tracing::debug_span!(target: "pagetier::checkpoint", "checkpoint", generation, bytes, error)
        });
        let result = work.run(self.write_checkpoint(&work)).await;
        work.note_error(&result);
        result
    }

    async fn write_checkpoint(&self, work: &Work) -> Result<(), DeviceError> {
        let now = self.now();
        // Ask before the capture: changes that become dirty later are newer.
        let in_memory = self.redo_from.get().map(|redo_from| redo_from());
        let planned = {
            let mut state = self.state.lock();
            let planned = state.begin_checkpoint(self.stamps.last(), in_memory, now);
            self.seam.checkpoint(&mut state, planned)
        };
        let Checkpoint { mut header, body, steps } = planned;
        let (body, body_crc) = body.encode(self.seed);
        header.body_crc = body_crc;
        work.note("generation", header.generation);
        work.note("bytes", body.len());
        // Writers go on meanwhile, in slots that are in the old zone and the new one (I2).
        let result = self.write_map(&header, body, steps).await;
        self.state.lock().end_checkpoint(&header, result.is_ok());
        self.changed.notify_waiters();
        // A new zone has other victims.
        self.wake.victims.notify_one();
        tracing::debug!(header.generation, ok = result.is_ok(), "map checkpoint");
        result
    }

    async fn write_map(&self, header: &MapHeader, body: &[u8], steps: Vec<Step>) -> Result<(), DeviceError> {
        let area = (header.generation % 2) as u8;
        for step in steps {
            match step {
                Step::WipeMark => self.write_mark(1 - area, vec![0; BLOCK_BYTES as usize]).await?,
                Step::WipeHeaders => self.write_headers(area, &vec![0; BLOCK_BYTES as usize]).await?,
                Step::Body => self.write_body(area, body).await?,
                Step::Flush => self.flush_ssd().await?,
                Step::Headers => self.write_headers(area, &header.encode(self.seed)).await?,
                Step::Mark => self.write_mark(1 - area, encode_mark(self.seed, header.generation)).await?,
            }
        }
        Ok(())
    }

    async fn write_body(&self, area: u8, body: &[u8]) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        let mut offset = cache.layout.map_at(area) + BLOCK_BYTES;
        for chunk in body.chunks(MAP_CHUNK_BYTES) {
            write_one(&cache.device, offset, IoBuf::copy_of(chunk), IoClass::Meta).await?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    async fn write_mark(&self, area: u8, block: Vec<u8>) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        write_one(&cache.device, cache.layout.map_mark_at(area), IoBuf::copy_of(&block), IoClass::Meta).await
    }

    /// Rewrites both headers of the map in force, one of which was damaged, and flushes.
    pub(crate) async fn rewrite_headers(&self, header: &MapHeader) -> Result<(), DeviceError> {
        self.write_headers((header.generation % 2) as u8, &header.encode(self.seed)).await?;
        self.flush_ssd().await
    }

    async fn write_headers(&self, area: u8, block: &[u8]) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        // Two copies, so that one bad block does not make the map unusable (I10).
        let [first, second] = [0, 1].map(|copy| {
            let at = cache.layout.map_header_at(area, copy);
            write_one(&cache.device, at, IoBuf::copy_of(block), IoClass::Meta)
        });
        let (first, second) = join(first, second).await;
        first.and(second)
    }
}
