//! Writes map checkpoints.
//!
//! The entries are captured and written in pieces. The state is locked for one piece at a time, and a piece
//! is all that a checkpoint keeps of them in memory: of an SSD of 1 TiB they take 1 GiB.

use crate::exec::Core;
use crate::exec::flush::cache_device::CacheDevice;
use crate::exec::io::single::write_one;
use crate::exec::tier::SsdTier;
use crate::format::layout::{BLOCK_BYTES, MAP_ENTRY_BYTES};
use crate::format::map::{MapHeader, encode_mark};
use crate::protocol::checkpoint::{Checkpoint, Step};
use futures_util::future::join;
use pagetier_devio::spans::Work;
use pagetier_devio::task::Boxed;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{StoreSeed, crc32c_append};
use tracing::field;

/// The maximum size of one write of a map's body in bytes, so that reads get in between. The state is locked
/// while the entries of one, 8,192 slots, are captured.
const MAP_CHUNK_BYTES: usize = 1 << 17;

/// The body of a checkpoint: cuts what is pushed into the chunks to be written.
struct Body {
    chunk_max: usize,
    /// Where the chunk goes.
    at: u64,
    /// The chunk, and what has been pushed beyond it.
    bytes: Vec<u8>,
    /// How much of the chunk is to be written already.
    taken: usize,
    /// The checksum of all that was pushed.
    crc: u32,
}

impl Body {
    /// A body from offset `at` on, in chunks of at most `chunk_max` bytes, which are whole blocks.
    fn new(at: u64, chunk_max: usize, seed: StoreSeed) -> Self {
        Self { chunk_max, at, bytes: Vec::new(), taken: 0, crc: seed.checksum(&[]) }
    }

    /// The number of entries with which the chunk is full. Its end may cut the last of them in two, since the
    /// zone in front of the entries need not be a multiple of their size.
    fn entries_left(&self) -> u32 {
        (self.chunk_max - self.bytes.len()).div_ceil(MAP_ENTRY_BYTES as usize) as u32
    }

    fn push(&mut self, bytes: &[u8]) {
        self.crc = crc32c_append(self.crc, bytes);
        self.bytes.extend_from_slice(bytes);
    }

    /// The next write, and where it goes: a full chunk, or with `all` whatever has been pushed. A chunk that
    /// is not full is padded to whole blocks, and written once more when there is more of it.
    fn next_write(&mut self, all: bool) -> Option<(u64, IoBuf)> {
        let (len, at) = (self.bytes.len().min(self.chunk_max), self.at);
        let full = len == self.chunk_max;
        if !full && (!all || len == self.taken) {
            return None;
        }
        let mut chunk = IoBuf::zeroed(len.next_multiple_of(BLOCK_BYTES as usize));
        chunk.as_mut_slice()[..len].copy_from_slice(&self.bytes[..len]);
        self.taken = len;
        if full {
            self.bytes.drain(..len);
            (self.at, self.taken) = (at + len as u64, 0);
        }
        Some((at, chunk))
    }
}

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
        let mut planned = self.state.lock().begin_checkpoint(self.stamps.last(), in_memory, now);
        let generation = planned.header.generation;
        work.note("generation", generation);
        work.note("bytes", self.layout().map_body_bytes().next_multiple_of(BLOCK_BYTES));
        // Writers go on meanwhile, in slots that are in the old zone and the new one (I2).
        let result = self.write_map(&mut planned).await;
        self.state.lock().end_checkpoint(&planned.header, result.is_ok());
        self.changed.notify_waiters();
        // A new zone has other victims.
        self.wake.victims.notify_one();
        tracing::debug!(generation, ok = result.is_ok(), "map checkpoint");
        result
    }

    async fn write_map(&self, planned: &mut Checkpoint) -> Result<(), DeviceError> {
        let generation = planned.header.generation;
        let area = (generation % 2) as u8;
        for step in std::mem::take(&mut planned.steps) {
            match step {
                Step::WipeMark => self.write_mark(1 - area, vec![0; BLOCK_BYTES as usize]).await?,
                Step::WipeHeaders => self.write_headers(area, &vec![0; BLOCK_BYTES as usize]).await?,
                Step::Body => self.write_body(area, planned).await?,
                Step::Flush => self.flush_ssd().await?,
                Step::Headers => self.write_headers(area, &planned.header.encode(self.seed)).await?,
                Step::Mark => self.write_mark(1 - area, encode_mark(self.seed, generation)).await?,
            }
        }
        Ok(())
    }

    /// Captures the entries, a piece after the other, and writes the body.
    async fn write_body(&self, area: u8, planned: &mut Checkpoint) -> Result<(), DeviceError> {
        let cache = self.cache_device();
        let at = cache.layout.map_at(area) + BLOCK_BYTES;
        let mut body = Body::new(at, MAP_CHUNK_BYTES, self.seed);
        for words in planned.zone.chunks(MAP_CHUNK_BYTES / size_of::<u64>()) {
            body.push(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
            write_next(&cache, &mut body, false).await?;
        }
        let (mut from, slots) = (0, planned.header.slots);
        while from < slots {
            let left = body.entries_left();
            // Not past `slots` at any moment: the largest SSD has `u32::MAX - 1`.
            let to = from + left.min(self.map_piece).min(slots - from);
            let piece = self.state.lock().slots.capture(from..to);
            body.push(piece.bytes());
            write_next(&cache, &mut body, to == slots || to - from < left).await?;
            from = to;
        }
        planned.header.body_crc = body.crc;
        self.state.lock().captured(planned);
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

async fn write_next(cache: &CacheDevice, body: &mut Body, all: bool) -> Result<(), DeviceError> {
    while let Some((at, chunk)) = body.next_write(all) {
        write_one(&cache.device, at, chunk, IoClass::Meta).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 2 * BLOCK_BYTES as usize;

    /// The medium after a body of `zone` bytes and `slots` entries, in pieces of at most `most`, and the
    /// number of writes.
    fn written(zone: usize, slots: u32, most: u32) -> (Vec<u8>, Vec<u8>, usize) {
        let mut body = Body::new(512, CHUNK, StoreSeed::NONE);
        let (mut all, mut medium, mut writes) = (Vec::new(), Vec::new(), 0);
        let mut put = |body: &mut Body, bytes: &[u8], whole: bool| {
            all.extend_from_slice(bytes);
            body.push(bytes);
            while let Some((at, chunk)) = body.next_write(whole) {
                let at = at as usize - 512;
                medium.resize(medium.len().max(at + chunk.len()), 0);
                medium[at..at + chunk.len()].copy_from_slice(chunk.as_slice());
                writes += 1;
            }
        };
        let byte = |nth: usize| (nth * 31 + 1) as u8;
        put(&mut body, &(0..zone).map(byte).collect::<Vec<_>>(), false);
        let mut from = 0;
        while from < slots {
            let left = body.entries_left();
            let to = from + left.min(most).min(slots - from);
            let bytes: Vec<u8> = (from as usize * 16..to as usize * 16).map(byte).collect();
            put(&mut body, &bytes, to == slots || to - from < left);
            from = to;
        }
        assert_eq!(body.crc, StoreSeed::NONE.checksum(&all));
        (medium, all, writes)
    }

    #[test]
    fn the_body_on_the_medium_is_what_was_pushed_however_it_is_cut() {
        for zone in [8, 16, CHUNK - 8, CHUNK, CHUNK + 8] {
            for slots in [1, 63, 500, 511, 512, 513, 2000] {
                for most in [1, 7, 500, u32::MAX] {
                    let (medium, mut all, writes) = written(zone, slots, most);
                    // As few writes as possible, unless a piece is smaller than a chunk.
                    let chunks = all.len().div_ceil(CHUNK);
                    assert!(most < u32::MAX || writes == chunks, "{zone}, {slots}: {writes} writes");
                    all.resize(all.len().next_multiple_of(BLOCK_BYTES as usize), 0);
                    assert_eq!(medium, all, "{zone}, {slots}, {most}");
                }
            }
        }
    }
}
