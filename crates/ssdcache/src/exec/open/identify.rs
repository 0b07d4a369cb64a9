//! Reads and writes the superblocks of a device, which name its store and the openings that it took part in.
//! The two copies are written one after the other, each flushed before the next.

use crate::exec::single::{read_one, write_one};
use crate::format::layout::BLOCK_BYTES;
use crate::format::superblock::{Found, OpeningMarks, Superblock};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoClass, IoOp, SharedDevice};
use std::sync::Arc;

/// What the start of `device` holds; of two sound superblocks, the newer.
///
/// # Errors
/// When the device cannot be read.
pub async fn identify(device: &SharedDevice) -> Result<Found, DeviceError> {
    Ok(newest_superblock(device).await?.0)
}

/// As [`identify`], and the index of the copy.
pub(super) async fn newest_superblock(device: &SharedDevice) -> Result<(Found, u64), DeviceError> {
    if device.size() < 2 * BLOCK_BYTES {
        return Ok((Found::Blank, 0));
    }
    let mut last = (Found::Blank, 0);
    for copy in 0..2 {
        let buf = IoBuf::zeroed(BLOCK_BYTES as usize);
        let (buf, result) = read_one(device, copy * BLOCK_BYTES, buf, IoClass::Recovery).await;
        result?;
        match (Superblock::decode(buf.as_slice()), last.0) {
            // A crash between the writes of the two copies leaves one behind (I20).
            (Found::Superblock(this), Found::Superblock(other)) if this.marks <= other.marks => {}
            (Found::Blank, _) => {}
            (found @ Found::Superblock(_), _) => last = (found, copy),
            (_, Found::Superblock(_)) => {}
            (other, _) => last = (other, copy),
        }
    }
    Ok(last)
}

/// Writes to `device`, which has a superblock, the openings that it took part in, and flushes it.
///
/// # Errors
/// When the device cannot be read, written or flushed.
pub async fn mark(device: &SharedDevice, marks: OpeningMarks) -> Result<(), DeviceError> {
    let (Found::Superblock(found), newest) = newest_superblock(device).await? else {
        let kind = DeviceErrorKind::Unusable(
            "its superblock, which identifies the store, is missing or damaged".to_owned(),
        );
        let (device, len) = (Arc::from(device.name()), 2 * BLOCK_BYTES);
        return Err(DeviceError { device, op: IoOp::Read, offset: 0, len, kind });
    };
    write_superblocks(device, &Superblock { marks, ..found }.encode(), newest).await
}

/// Overwrites both copies of a superblock, which are the first two blocks of `device`, with `block`. The copy
/// that counts, `newest` (0 or 1), is written second, so one of them is whole at every moment. Durable on
/// return.
///
/// # Errors
/// When the device cannot be written or flushed.
pub async fn write_superblocks(device: &SharedDevice, block: &[u8], newest: u64) -> Result<(), DeviceError> {
    for copy in [1 - newest.min(1), newest.min(1)] {
        write_one(device, copy * BLOCK_BYTES, IoBuf::copy_of(block), IoClass::Meta).await?;
        device.flush(IoClass::Meta).await?;
    }
    Ok(())
}
