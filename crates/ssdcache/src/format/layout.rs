//! The layout of the SSD: superblocks, two map areas, journal, doublewrite ring, slots.
//!
//! The byte table is in `docs/format.md`. All areas start on 4 KiB boundaries, slots on page boundaries.

use pagetier_page::PageSize;
use std::ops::{Add, Sub};

/// The sequence number of a journal block. It increases over the life of an SSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct JournalSeq(pub u64);

impl Add<u64> for JournalSeq {
    type Output = Self;

    fn add(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

/// The number of blocks from one sequence number to another.
impl Sub for JournalSeq {
    type Output = u64;

    fn sub(self, from: Self) -> u64 {
        self.0 - from.0
    }
}

/// The unit of every structure except pages, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The size of a slot's entry in a map checkpoint, in bytes.
pub const MAP_ENTRY_BYTES: u64 = 16;

/// The sizes of the areas of an SSD. All positions follow from these counts, which the superblock keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The page size of the store.
    pub page_size: PageSize,
    /// The number of slots for pages.
    pub slots: u32,
    /// The number of journal blocks.
    pub journal_blocks: u32,
    /// The number of pages of the doublewrite ring; 0 when it is off.
    pub ring_pages: u32,
}

/// The SSD is too small for its metadata and the minimum number of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an SSD of {bytes} bytes is too small: at least {needed} are needed for its metadata and {SLOTS_MIN} slots"
)]
pub struct SsdTooSmall {
    /// The size of the SSD, in bytes.
    pub bytes: u64,
    /// The smallest size that works with this page size and ring.
    pub needed: u64,
}

/// The minimum number of slots of an SSD cache.
pub const SLOTS_MIN: u32 = 32;

/// The maximum number of pages of a doublewrite ring: recovery keeps an entry in memory for each.
pub const RING_PAGES_MAX: u32 = 1 << 16;

/// The maximum number of journal blocks: recovery keeps all of them in memory.
const JOURNAL_BLOCKS_MAX: u32 = 4096;

const SUPERBLOCKS: u64 = 2;

impl Layout {
    /// The layout with the most slots that fits into `bytes`.
    ///
    /// # Errors
    /// [`SsdTooSmall`] when fewer than [`SLOTS_MIN`] slots remain.
    pub fn for_bytes(bytes: u64, page_size: PageSize, ring_pages: u32) -> Result<Self, SsdTooSmall> {
        let with = |slots: u64| Self {
            page_size,
            slots: slots as u32,
            journal_blocks: journal_blocks(slots),
            ring_pages,
        };
        let needed = with(u64::from(SLOTS_MIN)).end();
        if bytes < needed {
            return Err(SsdTooSmall { bytes, needed });
        }
        let mut fits = u64::from(SLOTS_MIN);
        let mut over = (bytes / page_size.bytes() as u64 + 1).min(u64::from(u32::MAX));
        while over - fits > 1 {
            let half = fits.midpoint(over);
            *(if with(half).end() <= bytes { &mut fits } else { &mut over }) = half;
        }
        Ok(with(fits))
    }

    /// A layout with only a ring (for a store without an SSD).
    #[must_use]
    pub fn ring_only(page_size: PageSize, ring_pages: u32) -> Self {
        Self { page_size, slots: 0, journal_blocks: 0, ring_pages }
    }

    /// The size of a map area in bytes: its header block, the body, the header again, and the mark of the
    /// other area.
    pub fn map_area_bytes(&self) -> u64 {
        BLOCK_BYTES + blocks(self.map_body_bytes()) + 2 * BLOCK_BYTES
    }

    /// The size of a map's body in bytes: a bit per slot for the zone, then the entries.
    pub fn map_body_bytes(&self) -> u64 {
        zone_bitmap_bytes(self.slots) + u64::from(self.slots) * MAP_ENTRY_BYTES
    }

    /// The offset of map area `area` (0 or 1).
    pub fn map_at(&self, area: u8) -> u64 {
        SUPERBLOCKS * BLOCK_BYTES + u64::from(area) * self.map_area_bytes()
    }

    /// The offset of the header of map area `area`: before its body (copy 0) or after it (copy 1).
    pub fn map_header_at(&self, area: u8, copy: u8) -> u64 {
        let body = BLOCK_BYTES + blocks(self.map_body_bytes());
        self.map_at(area) + if copy == 0 { 0 } else { body }
    }

    /// The offset of the mark in map area `area` that puts the other area's checkpoint in force.
    pub fn map_mark_at(&self, area: u8) -> u64 {
        self.map_header_at(area, 1) + BLOCK_BYTES
    }

    /// The offset of the journal block with sequence number `seq`.
    pub fn journal_at(&self, seq: JournalSeq) -> u64 {
        let index = if self.journal_blocks == 0 { 0 } else { seq.0 % u64::from(self.journal_blocks) };
        self.map_at(2) + index * BLOCK_BYTES
    }

    /// The offset of ring page `index`.
    pub fn ring_at(&self, index: u32) -> u64 {
        let journal_end = self.map_at(2) + u64::from(self.journal_blocks) * BLOCK_BYTES;
        self.page_aligned(journal_end) + u64::from(index) * self.page_size.bytes() as u64
    }

    /// The offset of slot `slot`.
    pub fn slot_at(&self, slot: u32) -> u64 {
        self.ring_at(self.ring_pages) + u64::from(slot) * self.page_size.bytes() as u64
    }

    /// The end of the last area.
    pub fn end(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Whether a store can work with these counts: slots and journal both present (and enough slots) or both
    /// absent, and journal and ring not larger than any store makes them. The device's size, which
    /// [`Layout::end`] must not exceed, bounds what recovery allocates for the slots.
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

/// The size of the zone bitmap for `slots` slots in bytes, in whole words.
#[must_use]
pub fn zone_bitmap_bytes(slots: u32) -> u64 {
    u64::from(slots).div_ceil(64) * 8
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// With a block per batch, enough that the journal rarely forces a checkpoint, and below 2% of a small SSD.
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
