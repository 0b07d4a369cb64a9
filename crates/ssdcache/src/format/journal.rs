//! The journal: a record for every page version that is about to go to the HDD.
//!
//! A record `(page, stamp)` states permanently: *copies of `page` on the SSD older than `stamp` do not
//! count*. It is durable before the HDD write starts, so invariant R (no resurrection) holds without a write
//! into each old slot. `docs/proof.md` has the argument (I3).

use crate::format::bytes::{COUNT_END, block_is_sound, put_u32, put_u64, seal_block, u32_at, u64_at};
use crate::format::layout::{BLOCK_BYTES, JournalSeq};
use pagetier_page::{PageId, Stamp, StoreSeed};

const MAGIC: [u8; 8] = *b"PGTIERJL";
const HEADER_BYTES: usize = 48;
const RECORD_BYTES: usize = 16;
const WRITE_BACK: u32 = 1;
const APPENDED: u32 = 2;
const SLOTS_BACK: u32 = 4;

/// The maximum number of records in a block.
pub const RECORDS_MAX: usize = (BLOCK_BYTES as usize - HEADER_BYTES) / RECORD_BYTES;

/// One page version on its way to the HDD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The page on its way home.
    pub page: PageId,
    /// The version being written to the HDD.
    pub stamp: Stamp,
}

/// What backs the home writes of a block's pages: the source from which a torn home is repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// The doublewrite ring holds their images.
    #[default]
    Ring,
    /// The slots from which they are written back, a batch at a time.
    WriteBack,
    /// The slots to which they were appended just before (the doublewrite policy).
    Appended,
}

/// A decoded journal block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its position in the journal's order.
    pub seq: JournalSeq,
    /// Images in the ring with smaller stamps are durable on the HDD; with `slots_back`, so are appended
    /// ones.
    pub ring_floor: Stamp,
    /// What backs the home writes of these pages.
    pub backing: Backing,
    /// Whether home writes backed by appended slots may not be durable: those of versions with stamps from
    /// the floor on.
    pub slots_back: bool,
    /// The map checkpoint in force when the block was written.
    pub generation: u64,
    /// The records, at most [`RECORDS_MAX`].
    pub records: Vec<Record>,
}

impl Block {
    /// Encodes it as a block of the store of `seed`.
    ///
    /// # Panics
    /// With more than [`RECORDS_MAX`] records.
    pub fn encode(&self, seed: StoreSeed) -> Vec<u8> {
        assert!(self.records.len() <= RECORDS_MAX, "a journal block holds {RECORDS_MAX} records");
        let mut b = vec![0; BLOCK_BYTES as usize];
        put_u32(&mut b, 12, self.records.len() as u32);
        put_u64(&mut b, 16, self.seq.0);
        put_u64(&mut b, 24, self.ring_floor.bits());
        let backing = match self.backing {
            Backing::Ring => 0,
            Backing::WriteBack => WRITE_BACK,
            Backing::Appended => APPENDED,
        };
        put_u32(&mut b, 32, backing | if self.slots_back { SLOTS_BACK } else { 0 });
        put_u64(&mut b, 40, self.generation);
        for (i, r) in self.records.iter().enumerate() {
            let at = HEADER_BYTES + i * RECORD_BYTES;
            put_u64(&mut b, at, r.page.to_u64());
            put_u64(&mut b, at + 8, r.stamp.bits());
        }
        seal_block(seed, &mut b, MAGIC);
        b
    }

    /// Decodes the block in `bytes`; `None` if it is not a sound block of the store of `seed`.
    #[must_use]
    pub fn decode(seed: StoreSeed, bytes: &[u8]) -> Option<Self> {
        let b = bytes.get(..BLOCK_BYTES as usize)?;
        let count = u32_at(b, 12) as usize;
        // Bytes from a device are hostile: a block may carry a matching checksum and impossible numbers.
        if !block_is_sound(seed, b, MAGIC) || count > RECORDS_MAX {
            return None;
        }
        let generation = u64_at(b, 40);
        if u64_at(b, 16) >= COUNT_END || generation >= COUNT_END {
            return None;
        }
        let records = (0..count)
            .map(|i| HEADER_BYTES + i * RECORD_BYTES)
            .map(|at| Record {
                page: PageId::from_u64(u64_at(b, at)),
                stamp: Stamp::from_bits(u64_at(b, at + 8)),
            })
            .collect();
        let ring_floor = Stamp::from_bits(u64_at(b, 24));
        let flags = u32_at(b, 32);
        let backing = match flags & (WRITE_BACK | APPENDED) {
            0 => Backing::Ring,
            WRITE_BACK => Backing::WriteBack,
            _ => Backing::Appended,
        };
        let slots_back = flags & SLOTS_BACK != 0;
        Some(Self { seq: JournalSeq(u64_at(b, 16)), ring_floor, backing, slots_back, generation, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;

    const SEED: StoreSeed = StoreSeed::NONE;

    #[test]
    fn a_full_block_reads_back_and_a_torn_one_does_not() {
        let records = (0..RECORDS_MAX as u32)
            .map(|i| Record { page: PageId::new(SpaceId(1), i), stamp: Stamp::from_bits(u64::from(i) + 7) })
            .collect();
        let mut block = Block {
            seq: JournalSeq(99),
            ring_floor: Stamp::first_of(2),
            backing: Backing::Ring,
            slots_back: true,
            generation: 5,
            records,
        };
        for backing in [Backing::Ring, Backing::Appended, Backing::WriteBack] {
            block.backing = backing;
            assert_eq!(Block::decode(SEED, &block.encode(SEED)).as_ref(), Some(&block));
        }
        block.slots_back = false;
        let mut bytes = block.encode(SEED);
        assert_eq!(Block::decode(SEED, &bytes), Some(block));
        assert_eq!(Block::decode(StoreSeed::of_store([1; 16]), &bytes), None, "another store's");
        bytes[512..1024].fill(0);
        assert_eq!(Block::decode(SEED, &bytes), None);
        assert_eq!(Block::decode(SEED, &bytes[..100]), None);
    }

    #[test]
    fn counts_that_no_store_reaches_are_not_sound_whatever_the_checksum() {
        let block = |seq, generation| Block {
            seq: JournalSeq(seq),
            ring_floor: Stamp::ZERO,
            backing: Backing::Ring,
            slots_back: false,
            generation,
            records: Vec::new(),
        };
        let sound = |block: Block| Block::decode(SEED, &block.encode(SEED)) == Some(block);
        assert!(sound(block(COUNT_END - 1, COUNT_END - 1)));
        assert!(!sound(block(COUNT_END, 0)));
        assert!(!sound(block(0, COUNT_END)));
    }
}
