//! Where the spaces end, after a crash.

use crate::error::OpenError;
use crate::volume::{EXTENT_PAGES, SpaceInfo, Volume};
use pagetier_devio::{IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{PageId, PageSize, StoreSeed};
use pagetier_ssdcache::SsdTier;

/// After a crash the manifest's page counts may be short: looks for the last page of every space on the SSD, and on the HDD in
/// the extents that the space was given ahead.
pub(super) async fn find_ends(
    volume: &Volume,
    counted: &[SpaceInfo],
    tier: &SsdTier,
    hdd: &SharedDevice,
    page_size: PageSize,
    seed: StoreSeed,
) -> Result<(), OpenError> {
    for space in counted {
        let mut pages = tier.highest_page(space.id).map_or(0, |no| no.saturating_add(1)).max(space.pages);
        let reserved = volume.reserved(space.id).min(u64::from(u32::MAX)) as u32;
        let mut first = reserved;
        while first > pages {
            let from = (first - 1) / EXTENT_PAGES * EXTENT_PAGES;
            if let Some(last) =
                last_written(volume, hdd, page_size, seed, PageId::new(space.id, from)).await?
            {
                pages = pages.max(last + 1);
                break;
            }
            first = from;
        }
        volume.set_pages(space.id, pages.min(reserved));
    }
    Ok(())
}

/// The last page of the extent that starts at `first` with a sound image of this store.
async fn last_written(
    volume: &Volume,
    hdd: &SharedDevice,
    page_size: PageSize,
    seed: StoreSeed,
    first: PageId,
) -> Result<Option<u32>, OpenError> {
    let bytes = EXTENT_PAGES as usize * page_size.bytes();
    let Some(at) = volume.place(first) else { return Ok(None) };
    let len =
        hdd.size().saturating_sub(at).min(bytes as u64) as usize / page_size.bytes() * page_size.bytes();
    if len == 0 {
        return Ok(None);
    }
    let done = hdd.read(at, IoBufs::from_iter([IoBuf::zeroed(len)]), IoClass::Recovery).await;
    done.result?;
    let Some(buf) = done.bufs.first() else { return Ok(None) };
    let images = buf.as_slice().chunks(page_size.bytes()).zip(first.no..);
    let sound = images
        .filter(|(image, no)| pagetier_page::verify(seed, image, PageId::new(first.space, *no)).is_ok());
    Ok(sound.map(|(_, no)| no).last())
}
