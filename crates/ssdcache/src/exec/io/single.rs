//! Operations on a single buffer.

use crate::exec::Core;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{PageId, Stamp};

/// The number of reads of an image before it counts as damaged: what only the transfer corrupted reads
/// otherwise the next time.
pub(crate) const ATTEMPTS_MAX: usize = 4;

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

pub(crate) async fn write_one(
    device: &SharedDevice,
    offset: u64,
    buf: IoBuf,
    class: IoClass,
) -> Result<(), DeviceError> {
    device.write(offset, IoBufs::from_iter([buf]), class).await.result
}

/// Reads `bytes` at `offset` until they are `sound` or two reads agree (I32): a torn block reads the same
/// again, but one that only the transfer corrupted must not count as lost. Also returns the number of reads.
pub(crate) async fn read_agreed(
    device: &SharedDevice,
    offset: u64,
    bytes: u64,
    sound: &(dyn Fn(&[u8]) -> bool + Sync),
) -> Result<(IoBuf, u64), DeviceError> {
    let zeroed = || IoBuf::zeroed(bytes as usize);
    let (mut last, result) = read_one(device, offset, zeroed(), IoClass::Recovery).await;
    result?;
    let (mut reads, mut agreed) = (1, false);
    while !agreed && reads < ATTEMPTS_MAX as u64 && !sound(last.as_slice()) {
        let (again, result) = read_one(device, offset, zeroed(), IoClass::Recovery).await;
        result?;
        agreed = again.as_slice() == last.as_slice();
        (last, reads) = (again, reads + 1);
    }
    Ok((last, reads))
}

impl Core {
    /// Reads an image and verifies that it is of `page`, in version `stamp`. It counts as damaged only after
    /// several reads (I32).
    pub(crate) async fn read_image(
        &self,
        device: &SharedDevice,
        offset: u64,
        (page, stamp): (PageId, Stamp),
        buf: IoBuf,
        class: IoClass,
    ) -> (IoBuf, Result<(), TierError>) {
        let (mut buf, mut reads) = (buf, 0);
        loop {
            let (read, result) = read_one(device, offset, buf, class).await;
            (buf, reads) = (read, reads + 1);
            let defect = match result.map(|()| self.check(buf.as_slice(), page, Some(stamp))) {
                Ok(Ok(_)) => return (buf, Ok(())),
                Ok(Err(defect)) => defect,
                Err(source) => return (buf, Err(TierError::Device { page, source })),
            };
            if reads >= ATTEMPTS_MAX {
                return (buf, Err(self.corrupt(page, device, offset, defect)));
            }
        }
    }
}
