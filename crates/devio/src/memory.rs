//! A device in memory: for tests, virtual-time runs and stores that need not last.
//!
//! Bytes that were never written take no memory and read as zeros. Each call executes its operation at once
//! and returns a ready future.

use crate::check::{Spot, check, check_range, refused, total_len};
use crate::device::IoBufs;
use crate::image::Image;
use crate::stats::{Recorder, Slot};
use crate::{
    Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, IoClass, IoFuture, IoOp, Occupancy,
    RecentCosts,
};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment in bytes: that of common disks, so that code which works here works there.
const ALIGNMENT: usize = 512;

/// A device in memory. See the module.
#[derive(Debug)]
pub struct MemoryDevice {
    name: Arc<str>,
    image: Image,
    size: AtomicU64,
    recorder: Recorder,
    occupancy: Occupancy,
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        Self::with_image(name.into(), Image::default(), size)
    }

    pub(crate) fn with_image(name: Arc<str>, image: Image, size: u64) -> Self {
        Self {
            name,
            image,
            size: AtomicU64::new(size),
            recorder: Recorder::new(1),
            occupancy: Occupancy::default(),
        }
    }

    /// An independent copy of the current contents, under the same name, with zeroed statistics. Cheap:
    /// unchanged parts are shared.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::with_image(Arc::clone(&self.name), self.image.fork(), self.size())
    }

    /// A copy of all its bytes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = vec![0; self.size() as usize];
        self.image.read(0, &mut out);
        out
    }

    /// The memory that the contents take, in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.image.resident_bytes()
    }

    fn refuse(&self, spot: Spot, kind: DeviceErrorKind) -> DeviceError {
        self.recorder.failed(&kind);
        spot.error(&self.name, kind)
    }
}

impl Device for MemoryDevice {
    fn read(&self, offset: u64, mut bufs: IoBufs, class: IoClass) -> IoFuture {
        let spot = Spot { op: IoOp::Read, offset, len: total_len(&bufs) };
        if let Err(kind) = check(offset, &bufs, ALIGNMENT, self.size()) {
            return refused(bufs, self.refuse(spot, kind));
        }
        let mut at = offset;
        for buf in &mut bufs {
            self.image.read(at, buf.as_mut_slice());
            at += buf.len() as u64;
        }
        self.recorder.done(Slot::Read(class), spot.len, 0, 0);
        Box::pin(ready(Completion { bufs, result: Ok(()) }))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let spot = Spot { op: IoOp::Write, offset, len: total_len(&bufs) };
        if let Err(kind) = check(offset, &bufs, ALIGNMENT, self.size()) {
            return refused(bufs, self.refuse(spot, kind));
        }
        let mut at = offset;
        for buf in &bufs {
            self.image.write(at, buf.as_slice());
            at += buf.len() as u64;
        }
        self.recorder.done(Slot::Write(class), spot.len, 0, 0);
        Box::pin(ready(Completion { bufs, result: Ok(()) }))
    }

    fn flush(&self, _class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        self.recorder.done(Slot::Flush, 0, 0, 0);
        Box::pin(ready(Ok(())))
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.size.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let spot = Spot { op: IoOp::Discard, offset, len };
        let result = check_range(offset, len, self.size()).map_err(|kind| self.refuse(spot, kind));
        if result.is_ok() {
            self.image.discard(offset, len);
            self.recorder.done(Slot::Discard, len, 0, 0);
        }
        Box::pin(ready(result))
    }

    fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn stats(&self) -> DeviceStats {
        self.recorder.snapshot()
    }

    fn track_costs(&self, points: usize) {
        self.recorder.track_costs(points);
    }

    fn recent_costs(&self) -> Option<RecentCosts> {
        self.recorder.recent_costs()
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    fn name(&self) -> &str {
        &self.name
    }
}
