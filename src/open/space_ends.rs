//! Finds the ends of the spaces after a crash.

use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::volume::table::{EXTENT_PAGES, SpaceInfo, Volume};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{PageId, PageSize, StoreSeed};
use pagetier_ssdcache::{Homes as _, SsdTier};

/// The pages' homes as a recovery finds them.
struct Homes<'a> {
    hdd: &'a SharedDevice,
    page_size: PageSize,
    seed: StoreSeed,
}

impl Config {
    /// Finds the last page of every space on the SSD, and on the HDD in the extents reserved for the space:
    /// after a crash the manifest's page counts may be too small. Extents are formatted when a space gets
    /// them, so every home that is not as formatted was written, even if it has become corrupt since.
    pub(super) async fn find_space_ends(
        &self,
        volume: &Volume,
        counted: &[SpaceInfo],
        tier: &SsdTier,
        hdd: &SharedDevice,
        page_size: PageSize,
        seed: StoreSeed,
    ) -> Result<(), OpenError> {
        let homes = Homes { hdd, page_size, seed };
        for space in counted {
            let on_ssd = tier.ask(|slots| slots.highest_page(space.id)).map_or(0, |no| no.saturating_add(1));
            let mut pages = on_ssd.max(space.pages);
            let reserved = volume.reserved(space.id).min(u64::from(u32::MAX)) as u32;
            let mut first = reserved;
            // From the end: the last extents are usually unwritten, and the search ends at the first page
            // found.
            while first > pages {
                let from = PageId::new(space.id, (first - 1) / EXTENT_PAGES * EXTENT_PAGES);
                // Pages without a place on the HDD are free: a hole is passed at once.
                if let Some(at) = volume.place(from)
                    && let Some(last) = homes.last_written(from, at, volume.may_be_blank(from)).await?
                {
                    pages = pages.max(last + 1);
                    break;
                }
                first = volume.hole_start(from).unwrap_or(from.no);
            }
            // Never beyond the extents: a page without a home could not be written back.
            volume.set_pages(space.id, pages.min(reserved));
            // Homes beyond the end that the manifest counts may have pages from before they were freed.
            volume.lower_end(space.id, space.pages);
        }
        Ok(())
    }
}

impl Homes<'_> {
    /// The last written page in the extent that starts with `first` at offset `at`. An unreadable home counts
    /// as written, so that reading the page reports the error.
    async fn last_written(&self, first: PageId, at: u64, blank: bool) -> Result<Option<u32>, DeviceError> {
        let page_bytes = self.page_size.bytes() as u64;
        let there = (self.hdd.size().saturating_sub(at) / page_bytes).min(u64::from(EXTENT_PAGES));
        if there == 0 {
            return Ok(None);
        }
        match self.last_in(first, at, there, blank).await {
            // One bad sector fails the whole request. Page by page, it hides only its own page.
            Err(DeviceError { kind: DeviceErrorKind::Io(_), .. }) => {}
            read => return read,
        }
        for nth in (0..there).rev() {
            let page = PageId::new(first.space, first.no + nth as u32);
            match self.last_in(page, at + nth * page_bytes, 1, blank).await {
                Ok(None) => {}
                Err(DeviceError { kind: DeviceErrorKind::Io(_), .. }) => return Ok(Some(page.no)),
                read => return read,
            }
        }
        Ok(None)
    }

    /// The last written page of `count` pages from `first` on. Reads their homes in one request.
    async fn last_in(
        &self,
        first: PageId,
        at: u64,
        count: u64,
        blank: bool,
    ) -> Result<Option<u32>, DeviceError> {
        let page_bytes = self.page_size.bytes();
        let buf = IoBuf::zeroed(count as usize * page_bytes);
        let done = self.hdd.read(at, IoBufs::from_iter([buf]), IoClass::Recovery).await;
        done.result?;
        let Some(buf) = done.bufs.first() else { return Ok(None) };
        let homes = buf.as_slice().chunks(page_bytes).zip(first.no..);
        let written = homes.filter(|(home, no)| self.counts(home, PageId::new(first.space, *no), blank));
        Ok(written.map(|(_, no)| no).last())
    }

    /// Whether the home counts as written; `blank`: zeroes do not.
    fn counts(&self, home: &[u8], page: PageId, blank: bool) -> bool {
        let found = pagetier_page::verify(self.seed, home, page);
        !found.is_err_and(|defect| defect.is_unwritten(blank))
    }
}
