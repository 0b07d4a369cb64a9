//! A device over a base that is never written to: writes stay in memory and hide what they overwrite.
//!
//! A store opened over such devices recovers in memory and leaves its files as they are.

use crate::device::{IoBufs, SharedDevice};
use crate::duties::metered::{Metered, RawDevice, RawDone, RawTransfer};
use crate::{BUF_ALIGN, DeviceErrorKind, IoBuf, IoClass};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The granularity of writes in bytes.
const BLOCK: usize = BUF_ALIGN;

/// A device whose writes stay in memory. See the module.
pub type OverlayDevice = Metered<Overlay>;

/// The base of an [`OverlayDevice`], and the blocks written over it.
#[derive(Debug)]
pub struct Overlay(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: SharedDevice,
    /// The size of the base in whole blocks: no aligned operation reaches the rest.
    base_bytes: u64,
    size: AtomicU64,
    /// The written blocks, by number.
    blocks: Mutex<HashMap<u64, Box<[u8]>>>,
    bytes_max: u64,
}

impl Metered<Overlay> {
    /// A device with the contents of `base`. It keeps at most `bytes_max` bytes of writes: further ones fail
    /// with [`DeviceErrorKind::NoSpace`]. `base` is read only, and must not change meanwhile.
    #[must_use]
    pub fn new(base: SharedDevice, bytes_max: u64) -> Self {
        let base_bytes = base.size() / BLOCK as u64 * BLOCK as u64;
        Self::over(Overlay(Arc::new(Inner {
            base,
            base_bytes,
            size: AtomicU64::new(base_bytes),
            blocks: Mutex::default(),
            bytes_max,
        })))
    }

    /// The memory that writes take, in bytes.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        (self.get_ref().0.blocks.lock().len() * BLOCK) as u64
    }
}

impl Inner {
    /// Reads from the base. The range may extend beyond its last block; the rest reads as zeros.
    async fn read_base(
        &self,
        offset: u64,
        mut bufs: IoBufs,
        class: IoClass,
    ) -> (IoBufs, Result<(), DeviceErrorKind>) {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        // The usual case reads straight into the caller's buffers.
        if offset + len <= self.base_bytes {
            let done = self.base.read(offset, bufs, class).await;
            return (done.bufs, done.result.map_err(|error| error.kind));
        }
        bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0));
        // The overlay may have grown beyond the base, which must not be asked for what it does not have.
        let within = self.base_bytes.saturating_sub(offset) as usize;
        if within == 0 {
            return (bufs, Ok(()));
        }
        // Through a buffer of its own, since a device takes whole buffers and the base may end inside one
        // of the caller's.
        let mut done = self.base.read(offset, IoBufs::from_iter([IoBuf::zeroed(within)]), class).await;
        let read = done.bufs.pop();
        if let (Ok(()), Some(read)) = (&done.result, read) {
            let mut left = read.as_slice();
            for buf in &mut bufs {
                let (part, rest) = left.split_at(left.len().min(buf.len()));
                buf.as_mut_slice()[..part.len()].copy_from_slice(part);
                left = rest;
            }
        }
        (bufs, done.result.map_err(|error| error.kind))
    }

    /// Replaces the base's contents in `bufs` with the written blocks.
    fn cover(&self, offset: u64, bufs: &mut IoBufs) {
        let blocks = self.blocks.lock();
        let chunks = bufs.iter_mut().flat_map(|buf| buf.as_mut_slice().chunks_exact_mut(BLOCK));
        for (number, chunk) in (offset / BLOCK as u64..).zip(chunks) {
            if let Some(block) = blocks.get(&number) {
                chunk.copy_from_slice(block);
            }
        }
    }

    fn write(&self, offset: u64, bufs: &IoBufs) -> Result<(), DeviceErrorKind> {
        let mut blocks = self.blocks.lock();
        let first = offset / BLOCK as u64;
        let chunks = || bufs.iter().flat_map(|buf| buf.as_slice().chunks_exact(BLOCK));
        // Counted before anything is inserted: a write that does not fit must leave nothing behind.
        let new = (first..).zip(chunks()).filter(|(number, _)| !blocks.contains_key(number)).count();
        if ((blocks.len() + new) * BLOCK) as u64 > self.bytes_max {
            return Err(DeviceErrorKind::NoSpace);
        }
        for (number, chunk) in (first..).zip(chunks()) {
            blocks.insert(number, chunk.into());
        }
        Ok(())
    }
}

impl RawDevice for Overlay {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let (mut bufs, result) = inner.read_base(offset, bufs, class).await;
            // Blocks are looked up after the base was read: a write that completes meanwhile may be seen
            // or not, as on a disk.
            if result.is_ok() {
                inner.cover(offset, &mut bufs);
            }
            (bufs, result)
        })
    }

    fn write(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
        let result = self.0.write(offset, &bufs);
        Box::pin(ready((bufs, result)))
    }

    fn flush(&self) -> RawDone {
        Box::pin(ready(Ok(())))
    }

    fn size(&self) -> u64 {
        self.0.size.load(Ordering::Acquire)
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        self.0.size.fetch_max(bytes.next_multiple_of(BLOCK as u64), Ordering::AcqRel);
        Ok(())
    }

    fn alignment(&self) -> usize {
        BLOCK
    }

    /// As the base: what a store does on it is then shown as it is.
    fn writes_whole(&self, bytes: usize) -> bool {
        self.0.base.writes_whole(bytes)
    }

    fn backend(&self) -> &'static str {
        "overlay"
    }

    fn name(&self) -> &str {
        self.0.base.name()
    }
}
