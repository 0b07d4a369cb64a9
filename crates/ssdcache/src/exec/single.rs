//! Operations on a single buffer.

use crate::exec::Core;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{PageId, Stamp};

/// Reads one buffer.
pub(crate) async fn read_one(
    device: &SharedDevice,
    offset: u64,
    buf: IoBuf,
    class: IoClass,
) -> (IoBuf, Result<(), DeviceError>) {
    let mut done = device.read(offset, IoBufs::from_iter([buf]), class).await;
    let buf = done.bufs.pop().unwrap_or_else(|| IoBuf::zeroed(0));
    (buf, done.result)
}

/// Writes one buffer.
pub(crate) async fn write_one(
    device: &SharedDevice,
    offset: u64,
    buf: IoBuf,
    class: IoClass,
) -> Result<(), DeviceError> {
    device.write(offset, IoBufs::from_iter([buf]), class).await.result
}

impl Core {
    /// Reads an image and verifies that it is of `page`, in version `stamp`.
    pub(crate) async fn read_image(
        &self,
        device: &SharedDevice,
        offset: u64,
        (page, stamp): (PageId, Stamp),
        buf: IoBuf,
        class: IoClass,
    ) -> (IoBuf, Result<(), TierError>) {
        let (buf, result) = read_one(device, offset, buf, class).await;
        let result = match result.map(|()| self.check(buf.as_slice(), page, Some(stamp))) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(defect)) => Err(self.corrupt(page, device, offset, defect)),
            Err(source) => Err(TierError::Device { page, source }),
        };
        (buf, result)
    }
}
