//! Formats a device as an empty SSD cache.

use super::identify::assign;
use crate::exec::single::write_one;
use crate::format::layout::Layout;
use crate::format::map::{MapBody, MapHeader};
use crate::format::superblock::Superblock;
use pagetier_devio::{DeviceError, IoBuf, IoClass, SharedDevice};
use pagetier_page::StoreSeed;

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
) -> Result<(), DeviceError> {
    let layout = superblock.layout;
    device.grow(layout.end())?;
    assign(device, superblock).await?;
    // A later recovery would take the device's earlier journal and ring for evidence.
    let mut at = layout.map_at(0);
    while at < layout.slot_at(0) {
        let buf = IoBuf::zeroed((layout.slot_at(0) - at).min(1 << 20) as usize);
        let len = buf.len() as u64;
        write_one(device, at, buf, IoClass::Meta).await?;
        at += len;
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
