//! Where things lie on the SSD: superblock, two map areas, journal, doublewrite ring, slots.
//!
//! The byte table is in `docs/format.md`. All areas start on 4 KiB boundaries, slots on page boundaries.

use crate::format::journal::JournalSeq;
use pagetier_page::PageSize;

/// The unit of every structure beside pages, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of one slot's entry in a map checkpoint.
pub const MAP_ENTRY_BYTES: u64 = 16;

/// The sizes of the areas of one SSD file. All of it follows from the counts, which the superblock keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The page size of the store.
    pub page_size: PageSize,
    /// Slots for pages.
    pub slots: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Pages of the doublewrite ring; 0 when it is off.
    pub ring_pages: u32,
}

/// The SSD is too small for its metadata and the fewest slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an SSD of {bytes} bytes is too small: at least {needed} are needed for its metadata and {SLOTS_MIN} slots"
)]
pub struct TooSmall {
    /// The size given.
    pub bytes: u64,
    /// The smallest that works with this page size and ring.
    pub needed: u64,
}

/// The fewest slots that an SSD cache works with.
pub const SLOTS_MIN: u32 = 32;

/// The most pages of a doublewrite ring: recovery keeps an entry in memory for each.
pub const RING_PAGES_MAX: u32 = 1 << 16;

/// The most blocks of a journal: recovery keeps all of them in memory.
const JOURNAL_BLOCKS_MAX: u32 = 4096;

const SUPERBLOCKS: u64 = 2;

impl Layout {
    /// The layout that makes the most slots of `bytes`.
    ///
    /// # Errors
    /// [`TooSmall`] when fewer than [`SLOTS_MIN`] slots remain.
    pub fn for_bytes(bytes: u64, page_size: PageSize, ring_pages: u32) -> Result<Self, TooSmall> {
        let with = |slots: u64| Self {
            page_size,
            slots: slots as u32,
            journal_blocks: journal_blocks(slots),
            ring_pages,
        };
        let needed = with(u64::from(SLOTS_MIN)).end();
        if bytes < needed {
            return Err(TooSmall { bytes, needed });
        }
        let mut fits = u64::from(SLOTS_MIN);
        let mut over = (bytes / page_size.bytes() as u64 + 1).min(u64::from(u32::MAX));
        while over - fits > 1 {
            let half = fits.midpoint(over);
            *(if with(half).end() <= bytes { &mut fits } else { &mut over }) = half;
        }
        Ok(with(fits))
    }

    /// A layout for a ring alone (a store without an SSD).
    #[must_use]
    pub fn ring_only(page_size: PageSize, ring_pages: u32) -> Self {
        Self { page_size, slots: 0, journal_blocks: 0, ring_pages }
    }

    /// Bytes of one map area: its header block, the body, the header once more, and the mark of the other
    /// area.
    #[must_use]
    pub fn map_area_bytes(&self) -> u64 {
        BLOCK_BYTES + blocks(self.map_body_bytes()) + 2 * BLOCK_BYTES
    }

    /// Bytes of a map's body: a bit per slot for the zone, then the entries.
    #[must_use]
    pub fn map_body_bytes(&self) -> u64 {
        zone_bitmap_bytes(self.slots) + u64::from(self.slots) * MAP_ENTRY_BYTES
    }

    /// Where map area `area` (0 or 1) starts.
    #[must_use]
    pub fn map_at(&self, area: u8) -> u64 {
        SUPERBLOCKS * BLOCK_BYTES + u64::from(area) * self.map_area_bytes()
    }

    /// Where the header of map area `area` stands: before its body (copy 0) and after it (copy 1).
    #[must_use]
    pub fn map_header_at(&self, area: u8, copy: u8) -> u64 {
        let body = BLOCK_BYTES + blocks(self.map_body_bytes());
        self.map_at(area) + if copy == 0 { 0 } else { body }
    }

    /// Where map area `area` keeps the mark that the other area's checkpoint is in force.
    #[must_use]
    pub fn map_mark_at(&self, area: u8) -> u64 {
        self.map_header_at(area, 1) + BLOCK_BYTES
    }

    /// Where the journal block of sequence number `seq` lies.
    #[must_use]
    pub fn journal_at(&self, seq: JournalSeq) -> u64 {
        let index = if self.journal_blocks == 0 { 0 } else { seq.0 % u64::from(self.journal_blocks) };
        self.map_at(2) + index * BLOCK_BYTES
    }

    /// Where the ring page of index `index` lies.
    #[must_use]
    pub fn ring_at(&self, index: u32) -> u64 {
        let journal_end = self.map_at(2) + u64::from(self.journal_blocks) * BLOCK_BYTES;
        self.page_aligned(journal_end) + u64::from(index) * self.page_size.bytes() as u64
    }

    /// Where slot `slot` lies.
    #[must_use]
    pub fn slot_at(&self, slot: u32) -> u64 {
        self.ring_at(self.ring_pages) + u64::from(slot) * self.page_size.bytes() as u64
    }

    /// The first byte after everything.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Whether a store can work with these counts: slots and journal both or neither, not too few of them,
    /// and journal and ring not larger than any store makes them. What recovery allocates for the slots is
    /// bounded by the device's size, which [`Layout::end`] must not exceed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        if self.ring_pages > RING_PAGES_MAX || self.journal_blocks > JOURNAL_BLOCKS_MAX {
            return false;
        }
        (self.slots == 0 && self.journal_blocks == 0) || (self.slots >= SLOTS_MIN && self.journal_blocks > 0)
    }

    fn page_aligned(&self, at: u64) -> u64 {
        at.next_multiple_of(self.page_size.bytes() as u64)
    }
}

/// Bytes of the zone bitmap for `slots` slots, whole words.
#[must_use]
pub fn zone_bitmap_bytes(slots: u32) -> u64 {
    u64::from(slots).div_ceil(64) * 8
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// A block a batch: enough that the journal forces few checkpoints, and under 2 % of a small SSD.
fn journal_blocks(slots: u64) -> u32 {
    (slots / 64).clamp(8, u64::from(JOURNAL_BLOCKS_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_without_overlap_and_fill_the_file() {
        for bytes in [1u64 << 20, 3 << 20, 100 << 20, 10 << 30] {
            let l = Layout::for_bytes(bytes, PageSize::DEFAULT, 16).unwrap();
            assert_eq!(l.map_at(1) - l.map_at(0), l.map_area_bytes());
            assert_eq!(l.map_mark_at(0) + BLOCK_BYTES, l.map_at(1));
            assert_eq!(l.map_header_at(1, 1) % BLOCK_BYTES, 0);
            assert!(l.journal_at(JournalSeq(0)) >= l.map_at(1) + l.map_area_bytes());
            assert!(l.ring_at(0) >= l.journal_at(JournalSeq(u64::from(l.journal_blocks) - 1)) + BLOCK_BYTES);
            assert_eq!(l.slot_at(0), l.ring_at(16));
            assert!(l.end() <= bytes && bytes - l.end() < 64 << 10);
            assert_eq!(l.slot_at(3) % l.page_size.bytes() as u64, 0);
        }
    }

    #[test]
    fn counts_that_no_store_makes_are_not_sound() {
        let sound = Layout::for_bytes(1 << 40, PageSize::MIN, RING_PAGES_MAX).unwrap();
        assert!(sound.is_sound());
        for hostile in [
            Layout { ring_pages: RING_PAGES_MAX + 1, ..sound },
            Layout { ring_pages: u32::MAX, ..sound },
            Layout { journal_blocks: u32::MAX, ..sound },
            Layout { journal_blocks: 0, ..sound },
            Layout { slots: SLOTS_MIN - 1, ..sound },
            Layout::ring_only(PageSize::MIN, u32::MAX),
        ] {
            assert!(!hostile.is_sound(), "{hostile:?}");
        }
    }

    #[test]
    fn too_small_says_how_much_is_needed() {
        let error = Layout::for_bytes(100 << 10, PageSize::DEFAULT, 16).unwrap_err();
        assert!(Layout::for_bytes(error.needed, PageSize::DEFAULT, 16).is_ok());
        assert!(Layout::for_bytes(error.needed - 1, PageSize::DEFAULT, 16).is_err());
    }
}
