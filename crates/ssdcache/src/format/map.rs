//! A map checkpoint: which slot holds which version of which page, and which slots form the zone.
//!
//! Header and body are written separately: the body, a flush, then the header in two places, a flush. Two
//! areas alternate, so a torn checkpoint leaves the previous one untouched. Before anything is written under
//! the checkpoint, a mark in the other area records that it is in force: if its headers become corrupt later,
//! the previous checkpoint must not be taken for the newest.

use crate::format::bytes::{COUNT_END, block_is_sound, put_u32, put_u64, seal_block, u32_at, u64_at};
use crate::format::layout::JournalSeq;
use crate::format::layout::{BLOCK_BYTES, Layout, MAP_ENTRY_BYTES, zone_bitmap_bytes};
use pagetier_page::{Lsn, PageId, Stamp, StoreSeed};

const MAGIC: [u8; 8] = *b"PGTIERMP";
const MARK_MAGIC: [u8; 8] = *b"PGTIERGN";
const CLEAN_BIT: u64 = 1 << 63;
const LIVE_BIT: u64 = 1 << 62;

/// A checkpoint's entry for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The page in the slot.
    pub page: PageId,
    /// The version in the slot, or on its way there at the capture.
    pub stamp: Stamp,
    /// Whether the HDD durably has the same version.
    pub clean: bool,
}

/// The header of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapHeader {
    /// Increases with every checkpoint.
    pub generation: u64,
    /// Every slot write with a larger stamp began after the map was captured.
    pub watermark: Stamp,
    /// The first journal block appended after the map was captured.
    pub journal_from: JournalSeq,
    /// The checksum of the body, which proves that header and body belong together.
    pub body_crc: u32,
    /// How many slots the body describes.
    pub slots: u32,
    /// The HDD has every change older than this of every copy on the SSD, named by the map or written later.
    /// 0: not known.
    pub lsn_floor: Lsn,
}

/// A checkpoint's body, in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapBody {
    /// What each slot holds; `None`: nothing that counts.
    pub entries: Vec<Option<Entry>>,
    /// By slot, whether it belongs to the zone.
    pub zone: Vec<bool>,
    /// By slot, whether it may hold something other than its dirty version although that version is the
    /// newest: at the capture the image was on its way, or was a copy of a home write that was not durable.
    pub in_flight: Vec<bool>,
}

impl MapHeader {
    /// Encodes it as a block of the store of `seed`.
    #[must_use]
    pub fn encode(&self, seed: StoreSeed) -> Vec<u8> {
        let mut b = vec![0; BLOCK_BYTES as usize];
        put_u32(&mut b, 12, self.slots);
        put_u64(&mut b, 16, self.generation);
        put_u64(&mut b, 24, self.watermark.bits());
        put_u64(&mut b, 32, self.journal_from.0);
        put_u32(&mut b, 40, self.body_crc);
        put_u64(&mut b, 48, self.lsn_floor.0);
        seal_block(seed, &mut b, MAGIC);
        b
    }

    /// Decodes the header in `bytes`; `None` if it is not a sound header of the store of `seed`.
    #[must_use]
    pub fn decode(seed: StoreSeed, bytes: &[u8]) -> Option<Self> {
        let b = bytes.get(..BLOCK_BYTES as usize)?;
        let plausible = u64_at(b, 16) < COUNT_END && u64_at(b, 32) < COUNT_END;
        (block_is_sound(seed, b, MAGIC) && plausible).then(|| Self {
            slots: u32_at(b, 12),
            generation: u64_at(b, 16),
            watermark: Stamp::from_bits(u64_at(b, 24)),
            journal_from: JournalSeq(u64_at(b, 32)),
            body_crc: u32_at(b, 40),
            lsn_floor: Lsn(u64_at(b, 48)),
        })
    }
}

/// Encodes the mark that checkpoint `generation` is in force, as a block of the store of `seed`.
#[must_use]
pub fn encode_mark(seed: StoreSeed, generation: u64) -> Vec<u8> {
    let mut b = vec![0; BLOCK_BYTES as usize];
    put_u64(&mut b, 16, generation);
    seal_block(seed, &mut b, MARK_MAGIC);
    b
}

/// The generation that the mark in `bytes` names; `None` if it is not a sound mark of the store of `seed`.
#[must_use]
pub fn decode_mark(seed: StoreSeed, bytes: &[u8]) -> Option<u64> {
    let b = bytes.get(..BLOCK_BYTES as usize)?;
    let generation = u64_at(b, 16);
    (block_is_sound(seed, b, MARK_MAGIC) && generation < COUNT_END).then_some(generation)
}

impl MapBody {
    /// A body for `slots` slots without entries and with an empty zone.
    #[must_use]
    pub fn empty(slots: u32) -> Self {
        let slots = slots as usize;
        Self { entries: vec![None; slots], zone: vec![false; slots], in_flight: vec![false; slots] }
    }

    /// The entries that a recovery trusts: those outside the zone.
    pub(crate) fn outside_zone(&self) -> Vec<Option<Entry>> {
        let slots = self.entries.iter().zip(&self.zone);
        slots.map(|(entry, in_zone)| entry.filter(|_| !in_zone)).collect()
    }

    /// Encodes it, padded to whole blocks. Also returns the checksum of the unpadded part for the store of
    /// `seed`.
    #[must_use]
    pub fn encode(&self, seed: StoreSeed) -> (Vec<u8>, u32) {
        let slots = self.entries.len();
        let bitmap = zone_bitmap_bytes(slots as u32) as usize;
        let len = bitmap + slots * MAP_ENTRY_BYTES as usize;
        let mut b = vec![0; len.next_multiple_of(BLOCK_BYTES as usize)];
        for (slot, _) in self.zone.iter().enumerate().filter(|(_, z)| **z) {
            b[slot / 8] |= 1 << (slot % 8);
        }
        for (slot, entry) in self.entries.iter().enumerate() {
            let Some(e) = entry else { continue };
            let at = bitmap + slot * MAP_ENTRY_BYTES as usize;
            put_u64(&mut b, at, e.page.to_u64());
            // Two bits tell three states apart: CLEAN without LIVE is a dirty version that was on its way at
            // the capture.
            let flags = match (e.clean, self.in_flight[slot]) {
                (true, _) => LIVE_BIT | CLEAN_BIT,
                (false, false) => LIVE_BIT,
                (false, true) => CLEAN_BIT,
            };
            put_u64(&mut b, at + 8, e.stamp.bits() | flags);
        }
        let crc = seed.checksum(&b[..len]);
        (b, crc)
    }

    /// Decodes the body in `bytes`; `None` if it is not the one that `header` describes.
    #[must_use]
    pub fn decode(seed: StoreSeed, bytes: &[u8], header: &MapHeader, layout: &Layout) -> Option<Self> {
        if header.slots != layout.slots {
            return None;
        }
        let slots = header.slots as usize;
        let bitmap = zone_bitmap_bytes(header.slots) as usize;
        let b = bytes.get(..bitmap + slots * MAP_ENTRY_BYTES as usize)?;
        if seed.checksum(b) != header.body_crc {
            return None;
        }
        let zone = (0..slots).map(|slot| b[slot / 8] >> (slot % 8) & 1 == 1).collect();
        let place = |slot: usize| bitmap + slot * MAP_ENTRY_BYTES as usize;
        let entries = (0..slots).map(|slot| Self::entry(b, place(slot))).collect();
        let in_flight =
            (0..slots).map(|slot| u64_at(b, place(slot) + 8) & (LIVE_BIT | CLEAN_BIT) == CLEAN_BIT).collect();
        Some(Self { entries, zone, in_flight })
    }

    fn entry(b: &[u8], at: usize) -> Option<Entry> {
        let word = u64_at(b, at + 8);
        (word & (LIVE_BIT | CLEAN_BIT) != 0).then(|| Entry {
            page: PageId::from_u64(u64_at(b, at)),
            stamp: Stamp::from_bits(word),
            clean: word & CLEAN_BIT != 0 && word & LIVE_BIT != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::{PageSize, SpaceId};

    const SEED: StoreSeed = StoreSeed::NONE;

    #[test]
    fn a_checkpoint_reads_back_and_a_flipped_bit_voids_it() {
        let layout = Layout::for_bytes(4 << 20, PageSize::DEFAULT, 4).unwrap();
        let mut body = MapBody::empty(layout.slots);
        for slot in (0..layout.slots as usize).step_by(3) {
            let page = PageId::new(SpaceId(2), slot as u32);
            body.entries[slot] =
                Some(Entry { page, stamp: Stamp::from_bits(slot as u64), clean: slot % 2 == 0 });
            body.zone[slot] = slot % 5 == 0;
            body.in_flight[slot] = slot % 7 == 0 && slot % 2 == 1;
        }
        let (mut bytes, body_crc) = body.encode(SEED);
        let header = MapHeader {
            generation: 7,
            watermark: Stamp::first_of(3),
            journal_from: JournalSeq(11),
            body_crc,
            slots: layout.slots,
            lsn_floor: Lsn(77),
        };
        assert_eq!(MapHeader::decode(SEED, &header.encode(SEED)), Some(header));
        assert_eq!(MapBody::decode(SEED, &bytes, &header, &layout), Some(body));
        bytes[20] ^= 4;
        assert_eq!(MapBody::decode(SEED, &bytes, &header, &layout), None);
        let theirs = StoreSeed::of_store([1; 16]);
        assert_eq!(MapHeader::decode(theirs, &header.encode(SEED)), None, "another store's");
    }

    #[test]
    fn a_mark_reads_back_and_is_no_other_block() {
        let mut mark = encode_mark(StoreSeed::NONE, 9);
        assert_eq!(decode_mark(StoreSeed::NONE, &mark), Some(9));
        assert_eq!(decode_mark(StoreSeed::of_store([1; 16]), &mark), None);
        assert_eq!(MapHeader::decode(StoreSeed::NONE, &mark), None);
        assert_eq!(decode_mark(StoreSeed::NONE, &mark[..100]), None);
        mark[16] ^= 1;
        assert_eq!(decode_mark(StoreSeed::NONE, &mark), None);
    }

    #[test]
    fn counts_that_no_store_reaches_are_not_sound_whatever_the_checksum() {
        let last = COUNT_END - 1;
        assert_eq!(decode_mark(SEED, &encode_mark(SEED, last)), Some(last));
        assert_eq!(decode_mark(SEED, &encode_mark(SEED, COUNT_END)), None);
        let header = |generation, journal_from| MapHeader {
            generation,
            watermark: Stamp::ZERO,
            journal_from: JournalSeq(journal_from),
            body_crc: 0,
            slots: 64,
            lsn_floor: Lsn(0),
        };
        let sound = |header: MapHeader| MapHeader::decode(SEED, &header.encode(SEED)) == Some(header);
        assert!(sound(header(last, last)));
        assert!(!sound(header(COUNT_END, 0)));
        assert!(!sound(header(0, COUNT_END)));
    }
}
