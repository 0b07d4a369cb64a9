//! Formats a device as an empty SSD cache.

use super::identify::assign;
use crate::exec::io::single::write_one;
use crate::format::layout::Layout;
use crate::format::map::{MapBody, MapHeader};
use crate::format::superblock::Superblock;
use pagetier_devio::{DeviceError, IoBuf, IoClass, SharedDevice};
use pagetier_page::StoreSeed;
use std::ops::Range;

/// What becomes of the images in the ring of a device that is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldRing {
    /// They go with what else the device held.
    Wiped,
    /// They stay: the ring is on the HDD, whose homes they repair.
    Kept,
}

/// Formats `device` as an empty SSD cache of the store of `seed`: first the superblock, which assigns the
/// device to the store, then an empty map. The device may be used once this has returned and the manifest
/// names its id. Old contents of slots remain: images of another store do not verify, and no map names this
/// store's own older ones.
///
/// # Errors
/// When the device cannot be grown or written.
pub async fn format(
    device: &SharedDevice,
    superblock: &Superblock,
    seed: StoreSeed,
    ring: OldRing,
) -> Result<(), DeviceError> {
    let layout = superblock.layout;
    device.grow(layout.end())?;
    assign(device, superblock).await?;
    // A later recovery would take the device's earlier journal and ring for evidence.
    let ring = layout.ring_at(0)..if ring == OldRing::Wiped { layout.slot_at(0) } else { 0 };
    // Not of class `Meta`: a flush must follow on the device of the ring, which may be another.
    let areas = [(layout.map_at(0)..layout.ring_at(0), IoClass::Meta), (ring, IoClass::Recovery)];
    for (Range { start: mut at, end }, class) in areas {
        while at < end {
            let buf = IoBuf::zeroed((end - at).min(1 << 20) as usize);
            let len = buf.len() as u64;
            write_one(device, at, buf, class).await?;
            at += len;
        }
    }
    if layout.slots > 0 {
        write_empty_map(device, &layout, seed).await?;
    }
    device.flush(IoClass::Meta).await
}

async fn write_empty_map(device: &SharedDevice, layout: &Layout, seed: StoreSeed) -> Result<(), DeviceError> {
    // The body of an empty map with an empty zone is all zeroes.
    let body_crc = MapBody::empty(layout.slots).encode(seed).1;
    let header = MapHeader { body_crc, slots: layout.slots, ..MapHeader::default() };
    for copy in 0..2 {
        let block = IoBuf::copy_of(&header.encode(seed));
        write_one(device, layout.map_header_at(0, copy), block, IoClass::Meta).await?;
    }
    Ok(())
}
