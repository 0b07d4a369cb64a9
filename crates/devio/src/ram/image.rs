//! Sparse bytes with cheap copies: the contents of memory and simulated devices.
//!
//! Chunks that were never written take no memory and read as zeros. A copy shares each chunk until either of
//! the two writes it. Locking order: the table, then one chunk at a time.

use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// Small, because the first change of each chunk after a copy duplicates it.
const CHUNK: usize = 16 << 10;

type Chunk = Option<Arc<[u8; CHUNK]>>;

/// The bytes of a device. As on a disk, concurrent reads and writes of the same range may see parts of each
/// other, but within one chunk each is atomic.
#[derive(Debug, Default)]
pub struct Image {
    chunks: RwLock<Vec<Mutex<Chunk>>>,
}

fn zero_chunk() -> Arc<[u8; CHUNK]> {
    // `Arc::new([0; CHUNK])` would pass through the stack in unoptimised builds.
    match Arc::<[u8]>::from(vec![0_u8; CHUNK]).try_into() {
        Ok(chunk) => chunk,
        Err(_) => unreachable!("the length is CHUNK"),
    }
}

impl Image {
    /// Reads `out.len()` bytes from `offset` on; unwritten bytes are zeros.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let chunks = self.chunks.read();
        for_each_chunk(offset, out.len(), |at, within, range| {
            let out = &mut out[range];
            // The clone shares the bytes, so the chunk is locked for a moment only, not for the copy.
            let chunk = chunks.get(at).and_then(|chunk| chunk.lock().clone());
            match chunk {
                Some(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
                None => out.fill(0),
            }
        });
    }

    /// Writes `bytes` from `offset` on.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let last = (offset + bytes.len() as u64).div_ceil(CHUNK as u64) as usize;
        // The table grows to the highest write, not to the device's size: a sparse device of a terabyte
        // stays small.
        if self.chunks.read().len() < last {
            let mut chunks = self.chunks.write();
            if chunks.len() < last {
                chunks.resize_with(last, Mutex::default);
            }
        }
        let chunks = self.chunks.read();
        for_each_chunk(offset, bytes.len(), |at, within, range| {
            let bytes = &bytes[range];
            let mut chunk = chunks[at].lock();
            let target = chunk.get_or_insert_with(zero_chunk);
            // Copies the chunk first if a fork shares it.
            Arc::make_mut(target)[within..within + bytes.len()].copy_from_slice(bytes);
        });
    }

    /// Makes a range read as zeros, and frees whole chunks.
    pub fn discard(&self, offset: u64, len: u64) {
        let chunks = self.chunks.read();
        // Beyond the table everything reads as zeros already.
        let end = (offset + len).min(chunks.len() as u64 * CHUNK as u64);
        if offset >= end {
            return;
        }
        for_each_chunk(offset, (end - offset) as usize, |at, within, range| {
            let mut chunk = chunks[at].lock();
            if range.len() == CHUNK {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                Arc::make_mut(bytes)[within..within + range.len()].fill(0);
            }
        });
    }

    /// A copy that shares unchanged chunks. Under concurrent writes it is consistent per chunk, not as a
    /// whole.
    #[must_use]
    pub fn fork(&self) -> Self {
        let chunks = self.chunks.read().iter().map(|chunk| Mutex::new(chunk.lock().clone())).collect();
        Self { chunks: RwLock::new(chunks) }
    }

    /// The memory held in bytes; shared chunks count in full.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.chunks.read().iter().filter(|chunk| chunk.lock().is_some()).count() as u64 * CHUNK as u64
    }
}

/// Calls `f(chunk, offset within it, range of the buffer)` for each chunk of a range.
fn for_each_chunk(offset: u64, len: usize, mut f: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let n = (CHUNK - within).min(len - done);
        f((at / CHUNK as u64) as usize, within, done..done + n);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_forked_and_discarded() {
        let image = Image::default();
        let far = 3 * CHUNK as u64 - 100;
        image.write(far, &[7; 200]);
        assert_eq!(image.resident_bytes(), 2 * CHUNK as u64);
        let copy = image.fork();
        image.write(far, &[8; 50]);
        let mut out = [9; 300];
        copy.read(far - 50, &mut out);
        assert_eq!((out[0], out[49], out[50], out[249], out[250]), (0, 0, 7, 7, 0));
        image.read(far - 50, &mut out);
        assert_eq!((out[50], out[99], out[100]), (8, 8, 7));
        image.discard(0, 3 * CHUNK as u64);
        image.read(far - 50, &mut out);
        assert_eq!((out[50], out[149], out[150], out[249]), (0, 0, 7, 7));
        assert_eq!(image.resident_bytes(), CHUNK as u64);
    }
}
