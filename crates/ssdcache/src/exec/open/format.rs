//! Making a device an empty SSD cache.

use super::identify::{newest_superblock, write_superblocks};
use crate::format::journal::JournalSeq;
use crate::format::layout::{BLOCK_BYTES, Layout};
use crate::format::map::{MapBody, MapHeader};
use crate::format::superblock::{Found, Superblock};
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{Lsn, Stamp, StoreSeed};

/// Makes `device` an empty SSD cache of the store of `seed`: the superblock, which says whose the device is
/// from then on, then an empty map. It may be used once this has returned, and the manifest names its id.
/// What stands in the slots stays there: another store's images do not verify, and no map names this store's
/// own older ones.
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
    let zeroes = |bytes: u64| IoBuf::zeroed(bytes.min(1 << 20) as usize);
    // This store's own stands until the new one does: cut short, what is behind it would pass for another
    // program's.
    let (found, mut newest) = newest_superblock(device).await?;
    if !matches!(found, Found::Superblock(found) if found.store == superblock.store) {
        // Of two different superblocks, the new one need not be the newer.
        device.write(0, IoBufs::from_iter([zeroes(2 * BLOCK_BYTES)]), IoClass::Meta).await.result?;
        device.flush(IoClass::Meta).await?;
        newest = 1;
    }
    write_superblocks(device, &superblock.encode(), newest).await?;
    // Journal and ring of an earlier life of this device would be taken for evidence.
    let mut at = layout.map_at(0);
    while at < layout.slot_at(0) {
        let buf = zeroes(layout.slot_at(0) - at);
        let len = buf.len() as u64;
        device.write(at, IoBufs::from_iter([buf]), IoClass::Meta).await.result?;
        at += len;
    }
    if layout.slots > 0 {
        write_empty_map(device, &layout, seed).await?;
    }
    device.flush(IoClass::Meta).await
}

async fn write_empty_map(device: &SharedDevice, layout: &Layout, seed: StoreSeed) -> Result<(), DeviceError> {
    // Zeroes are the body of an empty map without a zone.
    let crc = MapBody::empty(layout.slots).encode(seed).1;
    let header = MapHeader {
        generation: 0,
        watermark: Stamp::ZERO,
        journal_from: JournalSeq(0),
        body_crc: crc,
        slots: layout.slots,
        lsn_floor: Lsn(0),
    };
    for copy in 0..2 {
        let buf = IoBufs::from_iter([IoBuf::copy_of(&header.encode(seed))]);
        device.write(layout.map_header_at(0, copy), buf, IoClass::Meta).await.result?;
    }
    Ok(())
}
