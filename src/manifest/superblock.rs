//! The superblock of the HDD: which store the volume belongs to, and which opens it took part in. The HDD
//! holds two copies of it.

use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_ssdcache::{Found, Label, OpeningMarks, assign, is_striped};

/// The bytes before the first extent, or before the [areas](super::areas) of a manifest on the volume.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;

/// The size of an area is a multiple of this, in bytes.
pub(crate) const AREA_UNIT: u64 = 64 << 10;
/// The largest area in bytes: it is written and read as a whole.
pub(crate) const AREA_BYTES_MAX: u64 = 1 << 30;

const MAGIC: [u8; 8] = *b"PGTIERHD";
const FORMAT: u32 = 2;
/// Bytes of each copy of the volume's superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// What says to which store the HDD belongs, and which opens it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HddSuperblock {
    pub(crate) store: String,
    pub(crate) page_bytes: u64,
    /// The opens that the HDD took part in.
    pub(crate) marks: OpeningMarks,
}

impl Label for HddSuperblock {
    /// Encodes it as a block: magic, CRC32C, format, page size, store id (as text), marks.
    fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; SUPERBLOCK_BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[12..16].copy_from_slice(&FORMAT.to_le_bytes());
        b[16..24].copy_from_slice(&self.page_bytes.to_le_bytes());
        let id = &self.store.as_bytes()[..self.store.len().min(64)];
        b[24] = id.len() as u8;
        b[25..25 + id.len()].copy_from_slice(id);
        b[96..100].copy_from_slice(&self.marks.opened.to_le_bytes());
        b[100..104].copy_from_slice(&self.marks.closed.to_le_bytes());
        b[104..112].copy_from_slice(&self.marks.manifest.to_le_bytes());
        let sum = pagetier_page::crc32c(&b[12..]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    fn decode(b: &[u8]) -> Found<Self> {
        if b.len() < SUPERBLOCK_BYTES || pagetier_page::is_blank(b) {
            return Found::Blank;
        }
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        // Before the magic is judged: such a member has one of its own, and "foreign" would advise to blank
        // it.
        if is_striped(b) {
            return Found::Striped;
        }
        if b[..8] != MAGIC || word(8) != pagetier_page::crc32c(&b[12..SUPERBLOCK_BYTES]) {
            return Found::Foreign;
        }
        if word(12) != FORMAT {
            return Found::Format { found: word(12), reads: FORMAT };
        }
        let id = b.get(25..25 + usize::from(b[24]).min(64)).unwrap_or_default();
        let marks = OpeningMarks { opened: word(96), closed: word(100), manifest: long(104) };
        let store = String::from_utf8_lossy(id).into_owned();
        Found::Superblock(Self { store, page_bytes: long(16), marks })
    }

    fn marks(&mut self) -> &mut OpeningMarks {
        &mut self.marks
    }

    fn is_of_store_of(&self, other: &Self) -> bool {
        self.store == other.store
    }
}

impl HddSuperblock {
    /// Formats `hdd` as the volume of this store, without extents: the first begins at `extents_at`.
    pub(crate) async fn format(&self, hdd: &SharedDevice, extents_at: u64) -> Result<(), DeviceError> {
        hdd.grow(extents_at)?;
        assign(hdd, self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_testing::{SimDevice, SimPower};
    use std::sync::Arc;

    #[test]
    fn the_superblock_reads_back_and_foreign_data_is_recognised() {
        let marks = OpeningMarks { opened: 3, closed: 2, manifest: 1 << 40 };
        let superblock = HddSuperblock { store: "abc".into(), page_bytes: 16384, marks };
        let mut block = superblock.encode();
        assert_eq!(HddSuperblock::decode(&block), Found::Superblock(superblock));
        block[30] ^= 1;
        assert_eq!(HddSuperblock::decode(&block), Found::Foreign);
        assert_eq!(HddSuperblock::decode(&[0; 4096]), Found::Blank);
    }

    #[test]
    fn a_block_with_another_magic_is_foreign_whatever_its_checksum() {
        let superblock =
            HddSuperblock { store: "abc".into(), page_bytes: 4096, marks: OpeningMarks::default() };
        let mut block = superblock.encode();
        // The checksum covers what follows it.
        block[0] ^= 1;
        assert_eq!(HddSuperblock::decode(&block), Found::Foreign);
    }

    /// The device keeps the superblock of one store alone: by its marks the former owner's may be the newer.
    #[tokio::test]
    async fn a_device_that_is_assigned_anew_is_never_of_two_stores() {
        let of = |store: &str, opened| {
            let marks = OpeningMarks { opened, ..OpeningMarks::default() };
            HddSuperblock { store: store.into(), page_bytes: 4096, marks }
        };
        let mut cuts = 0;
        for (seed, cut) in (0..40).flat_map(|seed| (1..8).map(move |cut| (seed, cut))) {
            let power = SimPower::new();
            let device = Arc::new(SimDevice::new("hdd", 1 << 20, seed, &power));
            let shared = Arc::clone(&device) as SharedDevice;
            assign(&shared, &of("former", 9)).await.unwrap();
            power.cut_at(power.ops() + cut);
            let assigned = assign(&shared, &of("new", 1)).await;
            cuts += u32::from(assigned.is_err());
            let left = device.after_power_cut(seed, &SimPower::new()).snapshot();
            let has = |store: &str| {
                left[..2 * SUPERBLOCK_BYTES].chunks(SUPERBLOCK_BYTES).any(|block| {
                    matches!(HddSuperblock::decode(block), Found::Superblock(found) if found.store == store)
                })
            };
            assert!(!(has("former") && has("new")), "cut at {cut}, seed {seed}");
        }
        assert!(cuts > 100, "{cuts}");
    }
}
