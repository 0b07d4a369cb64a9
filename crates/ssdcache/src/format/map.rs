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
use std::ops::Range;

const MAGIC: [u8; 8] = *b"PGTIERMP";
const MARK_MAGIC: [u8; 8] = *b"PGTIERGN";
const CLEAN_BIT: u64 = 1 << 63;
const LIVE_BIT: u64 = 1 << 62;

/// A checkpoint's entry for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The page in the slot.
    pub page: PageId,
    /// The version in the slot, or on its way there when its entry was captured.
    pub stamp: Stamp,
    /// Whether the HDD durably has the same version.
    pub clean: bool,
}

/// The header of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapHeader {
    /// Increases with every checkpoint.
    pub generation: u64,
    /// Every slot write with a larger stamp began after the checkpoint did, before any entry was captured.
    pub watermark: Stamp,
    /// The first journal block that is still needed: those before it were superfluous when the checkpoint
    /// began.
    pub journal_from: JournalSeq,
    /// The checksum of the body, which proves that header and body belong together.
    pub body_crc: u32,
    /// How many slots the body describes.
    pub slots: u32,
    /// The HDD has every change older than this of every copy on the SSD, named by the map or written later.
    /// 0: not known.
    pub lsn_floor: Lsn,
}

/// A checkpoint's body as a recovery read it: in memory as it is on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapBody {
    slots: u32,
    /// The zone, a bit per slot, and then the entries; padded to whole blocks.
    bytes: Vec<u8>,
}

/// The entries of successive slots, a part of a body that is being written, as it is on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapPiece {
    slots: Range<u32>,
    bytes: Vec<u8>,
}

impl MapHeader {
    /// Encodes it as a block of the store of `seed`.
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
        let len = Self::place(slots, slots).next_multiple_of(BLOCK_BYTES as usize);
        Self { slots, bytes: vec![0; len] }
    }

    /// The number of slots that it describes.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// What `slot` holds; `None`: nothing that counts.
    pub fn entry(&self, slot: u32) -> Option<Entry> {
        entry_at(&self.bytes, Self::place(self.slots, slot))
    }

    /// Whether `slot` may hold something other than its dirty version although that version is the newest: at
    /// the capture the image was on its way, or was a copy of a home write that was not durable.
    pub fn in_flight(&self, slot: u32) -> bool {
        u64_at(&self.bytes, Self::place(self.slots, slot) + 8) & (LIVE_BIT | CLEAN_BIT) == CLEAN_BIT
    }

    /// Whether `slot` belongs to the zone.
    pub fn in_zone(&self, slot: u32) -> bool {
        self.bytes[slot as usize / 8] >> (slot % 8) & 1 == 1
    }

    /// The slots of the zone.
    pub fn zone(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots).filter(|slot| self.in_zone(*slot))
    }

    /// What each slot holds, in order.
    pub fn entries(&self) -> impl Iterator<Item = Option<Entry>> + '_ {
        (0..self.slots).map(|slot| self.entry(slot))
    }

    /// Notes what `slot` holds. `in_flight` counts for dirty versions.
    pub fn set_entry(&mut self, slot: u32, entry: Option<Entry>, in_flight: bool) {
        let at = Self::place(self.slots, slot);
        let Some(entry) = entry else { return self.bytes[at..at + MAP_ENTRY_BYTES as usize].fill(0) };
        put_entry(&mut self.bytes, at, entry, in_flight);
    }

    /// Puts `slot` into the zone.
    pub fn set_in_zone(&mut self, slot: u32) {
        self.bytes[slot as usize / 8] |= 1 << (slot % 8);
    }

    /// The body of `slots` slots with this zone, in the words of a capture, and these entries.
    #[must_use]
    pub fn of(slots: u32, zone: &[u64], pieces: &[MapPiece]) -> Self {
        let mut body = Self::empty(slots);
        for (at, word) in zone.iter().enumerate() {
            put_u64(&mut body.bytes, at * 8, *word);
        }
        for piece in pieces {
            let at = Self::place(slots, piece.slots.start);
            body.bytes[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
        body
    }

    /// The entries that a recovery trusts: those outside the zone.
    pub(crate) fn outside_zone(&self) -> Vec<Option<Entry>> {
        (0..self.slots).map(|slot| self.entry(slot).filter(|_| !self.in_zone(slot))).collect()
    }

    /// Its bytes, padded to whole blocks, and the checksum of the unpadded part for the store of `seed`.
    pub fn encode(&self, seed: StoreSeed) -> (&[u8], u32) {
        (&self.bytes, seed.checksum(&self.bytes[..Self::place(self.slots, self.slots)]))
    }

    /// Decodes the body in `bytes`; `None` if it is not the one that `header` describes.
    #[must_use]
    pub fn decode(seed: StoreSeed, bytes: &[u8], header: &MapHeader, layout: &Layout) -> Option<Self> {
        if header.slots != layout.slots {
            return None;
        }
        let b = bytes.get(..Self::place(header.slots, header.slots))?;
        (seed.checksum(b) == header.body_crc).then(|| {
            let mut body = Self::empty(header.slots);
            body.bytes[..b.len()].copy_from_slice(b);
            body
        })
    }

    /// Where the entry of `slot` stands in a body of `slots` slots.
    fn place(slots: u32, slot: u32) -> usize {
        zone_bitmap_bytes(slots) as usize + slot as usize * MAP_ENTRY_BYTES as usize
    }
}

impl MapPiece {
    /// Entries for `slots`, all of which hold nothing that counts.
    #[must_use]
    pub fn empty(slots: Range<u32>) -> Self {
        let bytes = vec![0; slots.len() * MAP_ENTRY_BYTES as usize];
        Self { slots, bytes }
    }

    /// The slots that it describes.
    pub fn slots(&self) -> Range<u32> {
        self.slots.clone()
    }

    /// What `slot`, one of them, holds; `None`: nothing that counts.
    pub fn entry(&self, slot: u32) -> Option<Entry> {
        entry_at(&self.bytes, self.place(slot))
    }

    /// Notes what `slot`, one of them, holds. `in_flight` counts for dirty versions.
    pub fn set_entry(&mut self, slot: u32, entry: Entry, in_flight: bool) {
        let at = self.place(slot);
        put_entry(&mut self.bytes, at, entry, in_flight);
    }

    /// Its bytes in the body.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn place(&self, slot: u32) -> usize {
        (slot - self.slots.start) as usize * MAP_ENTRY_BYTES as usize
    }
}

fn entry_at(bytes: &[u8], at: usize) -> Option<Entry> {
    let word = u64_at(bytes, at + 8);
    (word & (LIVE_BIT | CLEAN_BIT) != 0).then(|| Entry {
        page: PageId::from_u64(u64_at(bytes, at)),
        stamp: Stamp::from_bits(word),
        clean: word & CLEAN_BIT != 0 && word & LIVE_BIT != 0,
    })
}

fn put_entry(bytes: &mut [u8], at: usize, entry: Entry, in_flight: bool) {
    put_u64(bytes, at, entry.page.to_u64());
    // Two bits tell three states apart: CLEAN without LIVE is a dirty version that was on its way at the
    // capture.
    let flags = match (entry.clean, in_flight) {
        (true, _) => LIVE_BIT | CLEAN_BIT,
        (false, false) => LIVE_BIT,
        (false, true) => CLEAN_BIT,
    };
    put_u64(bytes, at + 8, entry.stamp.bits() | flags);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::{PageSize, SpaceId, crc32c_append};

    const SEED: StoreSeed = StoreSeed::NONE;

    #[test]
    fn a_checkpoint_reads_back_and_a_flipped_bit_voids_it() {
        let layout = Layout::for_bytes(4 << 20, PageSize::DEFAULT, 4).unwrap();
        let mut body = MapBody::empty(layout.slots);
        for slot in (0..layout.slots).step_by(3) {
            let page = PageId::new(SpaceId(2), slot);
            let entry = Entry { page, stamp: Stamp::from_bits(slot.into()), clean: slot % 2 == 0 };
            body.set_entry(slot, Some(entry), slot % 7 == 0);
            assert_eq!((body.entry(slot), body.in_flight(slot)), (Some(entry), slot % 14 == 7));
            if slot % 5 == 0 {
                body.set_in_zone(slot);
            }
        }
        assert_eq!(body.entries().flatten().count(), layout.slots.div_ceil(3) as usize);
        assert!(body.zone().eq((0..layout.slots).step_by(15)));
        let (bytes, body_crc) = body.encode(SEED);
        let mut bytes = bytes.to_vec();
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
    fn a_body_is_the_sum_of_its_pieces_wherever_they_are_cut() {
        let entry = |slot| Entry {
            page: PageId::new(SpaceId(2), slot),
            stamp: Stamp::from_bits(u64::from(slot) + 1),
            clean: slot % 2 == 0,
        };
        for slots in [1, 64, 65, 130] {
            let mut whole = MapBody::empty(slots);
            let mut zone = vec![0_u64; slots.div_ceil(64) as usize];
            for slot in (0..slots).filter(|slot| slot % 3 > 0) {
                whole.set_entry(slot, Some(entry(slot)), slot % 7 == 0);
                whole.set_in_zone(slot);
                zone[slot as usize / 64] |= 1 << (slot % 64);
            }
            for cut in [1, 7, 64, 200] {
                let mut pieces = Vec::new();
                for from in (0..slots).step_by(cut) {
                    let mut piece = MapPiece::empty(from..slots.min(from + cut as u32));
                    for slot in piece.slots().filter(|slot| slot % 3 > 0) {
                        piece.set_entry(slot, entry(slot), slot % 7 == 0);
                        assert_eq!(piece.entry(slot), Some(entry(slot)));
                    }
                    pieces.push(piece);
                }
                assert_eq!(MapBody::of(slots, &zone, &pieces), whole);
                // Its checksum can be taken piece by piece.
                let bytes = zone.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
                let crc = pieces.iter().fold(SEED.checksum(&bytes), |crc, p| crc32c_append(crc, p.bytes()));
                assert_eq!(crc, whole.encode(SEED).1);
            }
        }
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
