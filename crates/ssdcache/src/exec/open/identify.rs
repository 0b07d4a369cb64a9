//! Reads and writes the superblocks of a device, which name its store and the opens that it took part in.
//! The two copies are written one after the other, each flushed before the next.

use crate::exec::io::single::{read_one, write_one};
use crate::format::layout::BLOCK_BYTES;
use crate::format::superblock::{Found, Label, OpeningMarks};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoClass, IoOp, SharedDevice};
use std::sync::Arc;

/// What the start of an SSD holds; of two sound superblocks, the newer.
///
/// # Errors
/// When the device cannot be read.
pub async fn identify(device: &SharedDevice) -> Result<Found, DeviceError> {
    Ok(newest_label(device).await?.0)
}

/// As [`identify`], for any kind of device, and the index of the copy.
///
/// # Errors
/// When the device cannot be read.
pub async fn newest_label<S: Label>(device: &SharedDevice) -> Result<(Found<S>, u64), DeviceError> {
    let mut last = (Found::<S>::Blank, 0);
    for copy in 0..2 {
        let at = copy * BLOCK_BYTES;
        if device.size() < at + BLOCK_BYTES {
            break;
        }
        let (buf, result) =
            read_one(device, at, IoBuf::zeroed(BLOCK_BYTES as usize), IoClass::Recovery).await;
        result?;
        let mut this = S::decode(buf.as_slice());
        let newer = match (&mut this, &mut last.0) {
            // A crash between the writes of the two copies leaves one behind (I20).
            (Found::Superblock(this), Found::Superblock(other)) => this.marks() > other.marks(),
            (Found::Blank, _) | (_, Found::Superblock(_)) => false,
            _ => true,
        };
        if newer {
            last = (this, copy);
        }
    }
    Ok(last)
}

/// Writes to `device`, which has a superblock of kind `S`, the opens that it took part in, and flushes it.
///
/// # Errors
/// When the device cannot be read, written or flushed.
pub async fn mark<S: Label>(device: &SharedDevice, marks: OpeningMarks) -> Result<(), DeviceError> {
    let (Found::Superblock(mut found), newest) = newest_label::<S>(device).await? else {
        let kind = DeviceErrorKind::Unusable(
            "its superblock, which identifies the store, is missing or damaged".to_owned(),
        );
        let (device, len) = (Arc::from(device.name()), 2 * BLOCK_BYTES);
        return Err(DeviceError { device, op: IoOp::Read, offset: 0, len, kind });
    };
    *found.marks() = marks;
    write_label(device, &found, newest).await
}

/// Assigns `device`, which is large enough, to the store of `label`. Durable on return.
///
/// # Errors
/// When the device cannot be read, written or flushed.
pub async fn assign<S: Label>(device: &SharedDevice, label: &S) -> Result<(), DeviceError> {
    // This store's own superblock stays until the new one is written: without either, an interrupted call
    // would leave what looks like another program's data.
    let (found, newest) = newest_label(device).await?;
    if matches!(found, Found::Superblock(found) if label.is_of_store_of(&found)) {
        return write_label(device, label, newest).await;
    }
    // By its marks, the new superblock might not be the newer of the two.
    write_one(device, 0, IoBuf::zeroed(2 * BLOCK_BYTES as usize), IoClass::Meta).await?;
    device.flush(IoClass::Meta).await?;
    write_label(device, label, 1).await
}

/// Overwrites both copies of a superblock. The copy that counts, `newest` (0 or 1), is written second, so one
/// of them is whole at every moment. Durable on return.
async fn write_label(device: &SharedDevice, label: &impl Label, newest: u64) -> Result<(), DeviceError> {
    let block = label.encode();
    for copy in [1 - newest, newest] {
        write_one(device, copy * BLOCK_BYTES, IoBuf::copy_of(&block), IoClass::Meta).await?;
        device.flush(IoClass::Meta).await?;
    }
    Ok(())
}
