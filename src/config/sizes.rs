//! Sizes a store by its number of pages: converts pages to bytes, overhead included.

use crate::error::PoolSizeError;
use pagetier_bufpool::{FRAMES_MIN, PoolParams};
use pagetier_page::PageSize;
use pagetier_ssdcache::{Layout, SlotParams};

/// The memory budget for the pool's policy, in bytes per frame. It covers GD2L and its relatives, and, except
/// in small pools, the simulations of the default.
pub(crate) const FRAME_POLICY_BYTES: usize = 48;
/// The same for both policies, with the SSD's record of a page that is in memory only, which takes as much as
/// one in the outqueue.
pub(crate) const POOL_POLICY_BYTES: usize = FRAME_POLICY_BYTES + OUTQUEUE_BYTES as usize;
/// Memory per slot in bytes: its entry, its entry in the page map with four bits, its log position, the flush
/// that it waits for (as many slots as the eviction zone has by default may wait for one); the policy's
/// record, where that is found by page and by slot, and the eviction zone; and the policy's simulations.
const SLOT_BYTES: u64 = (18 + 6 + 8 + 4) + (36 + 6 + 4 + 3) + 12;
/// The slots whose simulation by the SSD's policy takes [`SIMULATED_BYTES`], however small the SSD. Of a
/// larger one it simulates a share, which [`SLOT_BYTES`] covers.
const SIMULATED_SLOTS: u64 = 768;
/// Memory per simulated slot in bytes.
const SIMULATED_BYTES: u64 = 150;
/// Memory per entry of the outqueue in bytes: the policy's record, its page and place in the queue, and where
/// that is found by page.
const OUTQUEUE_BYTES: u64 = 36 + 16 + 6;

/// The maximum length of the moving averages of costs, in points: 256 MiB for the two devices.
pub(crate) const COST_POINTS_MAX: usize = 1 << 24;

/// The memory for an SSD's tables in bytes.
pub(crate) fn tables_bytes(slots: u64, outqueue: u64) -> u64 {
    let simulated = slots.min(SIMULATED_SLOTS) * SIMULATED_BYTES;
    let tables = slots.saturating_mul(SLOT_BYTES).saturating_add(outqueue.saturating_mul(OUTQUEUE_BYTES));
    tables.saturating_add(simulated)
}

/// The parameters of a pool with a budget of `bytes`, which `tables` bytes for the SSD's tables are part of.
pub(crate) fn pool_for(bytes: u64, tables: u64, page_size: PageSize) -> Result<PoolParams, PoolSizeError> {
    let machine = PoolParams::machine_bytes();
    if bytes > machine {
        // The tables of such a pool alone could take all memory, which ends the process.
        return Err(PoolSizeError::TooLarge { bytes, machine });
    }
    let params = PoolParams::for_budget(bytes.saturating_sub(tables), page_size, POOL_POLICY_BYTES);
    if params.frames < FRAMES_MIN {
        // The message names the sum that the user has to give.
        let needed = PoolParams::bytes_for(FRAMES_MIN, page_size, POOL_POLICY_BYTES).saturating_add(tables);
        return Err(PoolSizeError::TooSmall { bytes, needed });
    }
    Ok(params)
}

/// The default size of the ring of a store without an SSD in pages.
pub(crate) const RING_PAGES: u32 = 256;

/// The default size of the doublewrite ring in pages.
pub(crate) fn ring_pages_for(ssd_bytes: u64, page_size: PageSize) -> u32 {
    (ssd_bytes / page_size.bytes() as u64 / 16).clamp(16, 256) as u32
}

#[cfg(test)]
#[test]
fn the_ring_is_a_sixteenth_of_the_ssd_within_bounds() {
    let pages = |ssd_pages: u64| ring_pages_for(ssd_pages * 4096, PageSize::MIN);
    assert_eq!([0, 16 * 16, 16 * 100, 16 * 256, 1 << 30].map(pages), [16, 16, 100, 256, 256]);
}

#[cfg(test)]
#[test]
fn more_pages_than_an_ssd_can_hold_have_no_size() {
    assert_eq!([u64::MAX, u64::MAX / 4096, 1 << 40].map(|n| ssd_bytes_for(n, PageSize::MIN)), [u64::MAX; 3]);
    assert!(ssd_bytes_for(1 << 30, PageSize::MIN) < u64::MAX);
}

/// The size of an SSD file that holds `pages` pages besides the free slots, maps, journal and default
/// doublewrite ring that it needs: an argument for [`Builder::ssd_bytes`](crate::Builder::ssd_bytes). The
/// smallest SSD has 32 slots, so a few pages need as much as that. 0 for no pages; `u64::MAX` for more than
/// an SSD can hold.
///
/// ```
/// # use pagetier::{PageSize, ssd_bytes_for};
/// let bytes = ssd_bytes_for(10_000, PageSize::default());
/// assert!(bytes > 10_000 * 16_384 && bytes < 10_600 * 16_384);
/// ```
#[must_use]
pub fn ssd_bytes_for(pages: u64, page_size: PageSize) -> u64 {
    if pages == 0 {
        return 0;
    }
    let page = page_size.bytes() as u64;
    let holds = |all: u64| {
        let bytes = all * page;
        Layout::for_bytes(bytes, page_size, ring_pages_for(bytes, page_size)).map_or(0, |layout| {
            u64::from(layout.slots - SlotParams::new(layout.slots, 10.0).reserve.min(layout.slots))
        })
    };
    let (mut short, mut enough) = (pages, pages.saturating_mul(2).saturating_add(1024).min(u64::MAX / page));
    if short >= enough || holds(enough) < pages {
        return u64::MAX;
    }
    while enough - short > 1 {
        let half = short.midpoint(enough);
        *(if holds(half) >= pages { &mut enough } else { &mut short }) = half;
    }
    enough * page
}

/// The memory for a pool of at least `pages` pages over an SSD of `ssd_bytes`, the tables of both included:
/// an argument for [`Builder::pool_bytes`](crate::Builder::pool_bytes). It suffices for any
/// [`ring_pages`](crate::Builder::ring_pages); an SSD policy whose `outqueue=N` has
/// more entries than the SSD has pages takes 58 bytes more for each. The smallest pool has 16 frames: for
/// fewer pages, the result is the memory for 16.
///
/// ```
/// # use pagetier::{PageSize, pool_bytes_for, ssd_bytes_for};
/// let size = PageSize::default();
/// assert!(pool_bytes_for(1_000, ssd_bytes_for(10_000, size), size) < 1_250 * 16_384);
/// assert_eq!(pool_bytes_for(3, 0, size), pool_bytes_for(16, 0, size));
/// ```
#[must_use]
pub fn pool_bytes_for(pages: u64, ssd_bytes: u64, page_size: PageSize) -> u64 {
    // The smaller the ring, the more slots have tables.
    let slots = slots(ssd_bytes, page_size, 0);
    let frames = usize::try_from(pages).unwrap_or(usize::MAX).max(FRAMES_MIN);
    let pool = PoolParams::bytes_for(frames, page_size, POOL_POLICY_BYTES);
    tables_bytes(slots, slots).saturating_add(pool)
}

/// The number of slots of an SSD of `ssd_bytes` with this ring.
fn slots(ssd_bytes: u64, page_size: PageSize, ring_pages: u32) -> u64 {
    let layout = Layout::for_bytes(ssd_bytes, page_size, ring_pages);
    layout.map_or(0, |layout| u64::from(layout.slots))
}

/// The number of pages that a pool of `pool_bytes` over an SSD of `ssd_bytes` with the default ring and
/// outqueue holds: the reverse of [`pool_bytes_for`]. All tasks together can pin that many pages at one time,
/// and no more; a request for another page then fails after
/// [`Builder::exhausted_after`](crate::Builder::exhausted_after). The smallest pool has 16 frames. 0: the
/// pool is too small to open.
///
/// ```
/// # use pagetier::{PageSize, frames_for, pool_bytes_for};
/// let size = PageSize::default();
/// assert!((1_000..1_010).contains(&frames_for(pool_bytes_for(1_000, 64 << 20, size), 64 << 20, size)));
/// assert_eq!(frames_for(64 << 10, 0, size), 0);
/// ```
#[must_use]
pub fn frames_for(pool_bytes: u64, ssd_bytes: u64, page_size: PageSize) -> u64 {
    let slots = slots(ssd_bytes, page_size, ring_pages_for(ssd_bytes, page_size));
    let bytes = pool_bytes.saturating_sub(tables_bytes(slots, slots));
    match PoolParams::for_budget(bytes, page_size, POOL_POLICY_BYTES).frames {
        frames if frames < FRAMES_MIN => 0,
        frames => frames as u64,
    }
}
