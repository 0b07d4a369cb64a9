//! The device over an open image.

use crate::image::Image;
use crate::op::{Work, start};
use pagetier_devio::{Claim, DeviceErrorKind, IoBufs, IoClass, Metered, RawDevice, RawDone, RawTransfer};
use std::fmt;

/// An open image as a device. Dropping the last clone closes the image and gives its lock back, in the
/// background: see [`Cluster::closed`](crate::Cluster::closed).
pub type RbdDevice = Metered<RbdImage>;

/// What [`RbdDevice`] wraps.
pub struct RbdImage(pub(crate) Image);

impl fmt::Debug for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RbdImage").field(&self.0.name).finish()
    }
}

impl RawDevice for RbdImage {
    fn read(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
        start(&self.0, Work::Read { offset }, bufs)
    }

    fn write(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
        start(&self.0, Work::Write { offset }, bufs)
    }

    fn flush(&self) -> RawDone {
        let flushed = start(&self.0, Work::Flush, IoBufs::new());
        Box::pin(async move { flushed.await.1 })
    }

    fn discard(&self, offset: u64, len: u64) -> RawDone {
        let discarded = start(&self.0, Work::Discard { offset, len }, IoBufs::new());
        Box::pin(async move { discarded.await.1 })
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        self.0.grow(bytes)
    }

    fn claim(&self) -> Option<Claim> {
        Some(self.0.flight.claim())
    }

    fn writes_whole(&self, bytes: usize) -> bool {
        self.0.writes_whole(bytes)
    }

    fn backend(&self) -> &'static str {
        "rbd"
    }

    fn name(&self) -> &str {
        &self.0.name
    }
}
