//! A device in memory: for tests, virtual-time runs and stores that need not persist.
//!
//! Bytes that were never written take no memory and read as zeros. Each call executes its operation at once
//! and returns a ready future.

use crate::DeviceErrorKind;
use crate::IoClass;
use crate::device::IoBufs;
use crate::duties::metered::{Metered, RawDevice, RawDone, RawTransfer};
use crate::ram::image::Image;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment in bytes: that of common disks, so that code which works here works there.
const ALIGNMENT: usize = 512;

/// A device in memory, for tests, virtual-time runs and stores that need not persist. Bytes that were never
/// written take no memory and read as zeros. Each call executes its operation at once.
pub type MemoryDevice = Metered<Memory>;

/// The bytes of a [`MemoryDevice`].
#[derive(Debug)]
pub struct Memory {
    name: Arc<str>,
    image: Image,
    size: AtomicU64,
}

impl Memory {
    fn new(name: Arc<str>, image: Image, size: u64) -> Self {
        Self { name, image, size: AtomicU64::new(size) }
    }
}

impl Metered<Memory> {
    /// A device of `size` bytes, all zero.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        Self::over(Memory::new(name.into(), Image::default(), size))
    }

    /// An independent copy of the current contents, under the same name, with zeroed statistics. Cheap:
    /// unchanged parts are shared.
    #[must_use]
    pub fn fork(&self) -> Self {
        let memory = self.get_ref();
        Self::over(Memory::new(Arc::clone(&memory.name), memory.image.fork(), memory.size()))
    }

    /// A copy of all its bytes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let memory = self.get_ref();
        let mut out = vec![0; memory.size() as usize];
        memory.image.read(0, &mut out);
        out
    }

    /// The memory that the contents take, in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.get_ref().image.resident_bytes()
    }
}

impl RawDevice for Memory {
    fn read(&self, offset: u64, mut bufs: IoBufs, _class: IoClass) -> RawTransfer {
        let mut at = offset;
        for buf in &mut bufs {
            self.image.read(at, buf.as_mut_slice());
            at += buf.len() as u64;
        }
        Box::pin(ready((bufs, Ok(()))))
    }

    fn write(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
        let mut at = offset;
        for buf in &bufs {
            // At once, so that a write has happened when its call returns: later reads see it, whether or
            // not its future is polled.
            self.image.write(at, buf.as_slice());
            at += buf.len() as u64;
        }
        Box::pin(ready((bufs, Ok(()))))
    }

    fn flush(&self) -> RawDone {
        Box::pin(ready(Ok(())))
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        self.size.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> RawDone {
        self.image.discard(offset, len);
        Box::pin(ready(Ok(())))
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    fn name(&self) -> &str {
        &self.name
    }
}
