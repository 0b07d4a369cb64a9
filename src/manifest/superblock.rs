//! The superblock of the HDD: which store the volume belongs to, and which openings it took part in. The HDD
//! holds two copies of it.

use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp, SharedDevice};
use pagetier_ssdcache::{OpeningMarks, is_striped, write_superblocks};
use std::sync::Arc;

/// Byte offset of the first extent; the megabyte before it holds the superblock.
pub(crate) const DATA_AT: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"PGTIERHD";
const FORMAT: u32 = 2;
/// Bytes of each copy of the volume's superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// What says to which store the HDD belongs, and which openings it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HddSuperblock {
    pub(crate) store: String,
    pub(crate) page_bytes: u64,
    /// The openings that the HDD took part in.
    pub(crate) marks: OpeningMarks,
}

/// What the first block of an HDD contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundHdd {
    Volume(HddSuperblock),
    Blank,
    Format(u32),
    Striped,
    Foreign,
}

impl HddSuperblock {
    /// Encodes it as a block: magic, CRC32C, format, page size, store id (as text), marks.
    pub(crate) fn encode(&self) -> Vec<u8> {
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
        let sum = crc32c::crc32c(&b[12..]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    pub(crate) fn decode(b: &[u8]) -> FoundHdd {
        if b.len() < SUPERBLOCK_BYTES || pagetier_page::is_blank(b) {
            return FoundHdd::Blank;
        }
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        // Before the magic is judged: such a member has one of its own, and "foreign" would advise to blank
        // it.
        if is_striped(b) {
            return FoundHdd::Striped;
        }
        if b[..8] != MAGIC || word(8) != crc32c::crc32c(&b[12..SUPERBLOCK_BYTES]) {
            return FoundHdd::Foreign;
        }
        if word(12) != FORMAT {
            return FoundHdd::Format(word(12));
        }
        let id = b.get(25..25 + usize::from(b[24]).min(64)).unwrap_or_default();
        let marks = OpeningMarks { opened: word(96), closed: word(100), manifest: long(104) };
        FoundHdd::Volume(Self {
            store: String::from_utf8_lossy(id).into_owned(),
            page_bytes: long(16),
            marks,
        })
    }
}

impl HddSuperblock {
    /// Writes both copies to `hdd` and flushes. `newest`: the copy that is in effect.
    pub(crate) async fn write(&self, hdd: &SharedDevice, newest: u64) -> Result<(), DeviceError> {
        write_superblocks(hdd, &self.encode(), newest).await
    }

    /// Formats `hdd` as the volume of this store, without extents.
    pub(crate) async fn format(&self, hdd: &SharedDevice) -> Result<(), DeviceError> {
        hdd.grow(DATA_AT)?;
        // This store's superblock stays in place until the new one replaces it: after a crash in between, the
        // data behind a blank one would look like another program's.
        let (found, newest) = identify_hdd(hdd).await?;
        if matches!(found, FoundHdd::Volume(found) if found.store == self.store) {
            return self.write(hdd, newest).await;
        }
        // Of two different superblocks, the new one need not carry the newer marks.
        let blank = IoBufs::from_iter([IoBuf::zeroed(2 * SUPERBLOCK_BYTES)]);
        hdd.write(0, blank, IoClass::Meta).await.result?;
        hdd.flush(IoClass::Meta).await?;
        self.write(hdd, 1).await
    }

    /// Records in the superblock of `hdd` the openings that it took part in, and flushes.
    pub(crate) async fn mark(hdd: &SharedDevice, marks: OpeningMarks) -> Result<(), DeviceError> {
        let (FoundHdd::Volume(found), newest) = identify_hdd(hdd).await? else {
            let kind = DeviceErrorKind::Unusable("its superblock is gone".to_owned());
            let (device, len) = (Arc::from(hdd.name()), SUPERBLOCK_BYTES as u64);
            return Err(DeviceError { device, op: IoOp::Read, offset: 0, len, kind });
        };
        Self { marks, ..found }.write(hdd, newest).await
    }
}

/// Identifies the start of `hdd`: the newer of two sound superblocks, and which copy that is.
pub(crate) async fn identify_hdd(hdd: &SharedDevice) -> Result<(FoundHdd, u64), DeviceError> {
    let mut last = (FoundHdd::Blank, 0);
    for copy in 0..2 {
        let at = copy * SUPERBLOCK_BYTES as u64;
        if hdd.size() < at + SUPERBLOCK_BYTES as u64 {
            break;
        }
        let buf = IoBufs::from_iter([IoBuf::zeroed(SUPERBLOCK_BYTES)]);
        let done = hdd.read(at, buf, IoClass::Recovery).await;
        done.result?;
        let this = done.bufs.first().map_or(FoundHdd::Blank, |b| HddSuperblock::decode(b.as_slice()));
        // A torn write damages one copy at most, since they are written one after the other with a flush
        // between (I20).
        let newer = match (&this, &last.0) {
            (FoundHdd::Volume(this), FoundHdd::Volume(other)) => this.marks > other.marks,
            (FoundHdd::Blank, _) | (_, FoundHdd::Volume(_)) => false,
            _ => true,
        };
        if newer {
            last = (this, copy);
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_superblock_reads_back_and_foreign_data_is_recognised() {
        let marks = OpeningMarks { opened: 3, closed: 2, manifest: 1 << 40 };
        let superblock = HddSuperblock { store: "abc".into(), page_bytes: 16384, marks };
        let mut block = superblock.encode();
        assert_eq!(HddSuperblock::decode(&block), FoundHdd::Volume(superblock));
        block[30] ^= 1;
        assert_eq!(HddSuperblock::decode(&block), FoundHdd::Foreign);
        assert_eq!(HddSuperblock::decode(&[0; 4096]), FoundHdd::Blank);
    }
}
