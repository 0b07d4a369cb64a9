//! The superblock of an SSD: its store, its layout, and the opens that it took part in. The first two
//! blocks hold a copy each.

use crate::format::bytes::{block_is_sound, put_u32, put_u64, seal_block, u32_at, u64_at};
use crate::format::layout::{BLOCK_BYTES, Layout};
use pagetier_page::{PageSize, StoreSeed};

const MAGIC: [u8; 8] = *b"PGTIERSS";
const FORMAT: u32 = 2;
/// The label that earlier versions wrote to the start of each member of a striped set.
const STRIPED_MAGIC: [u8; 8] = *b"PGTIERST";

/// The opens of its store that a device took part in. They identify older copies of a device: of two
/// marks, the larger is the newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, serde::Serialize)]
pub struct OpeningMarks {
    /// The number of the last open (its epoch).
    pub opened: u32,
    /// The last open that ended in a clean close.
    pub closed: u32,
    /// The generation of the manifest that was durable at that moment.
    pub manifest: u64,
}

/// A decoded superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The store that the SSD belongs to.
    pub store: [u8; 16],
    /// The SSD's own id, which its store remembers.
    pub ssd: [u8; 16],
    /// The division into areas.
    pub layout: Layout,
    /// The opens that it took part in.
    pub marks: OpeningMarks,
}

/// What the first block of a device holds; `S` is the superblock of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<S = Superblock> {
    /// A sound superblock, of this store or another.
    Superblock(S),
    /// Nothing but zeroes: the device may be formatted.
    Blank,
    /// A superblock of another format than the one that this version reads.
    Format {
        /// The format found.
        found: u32,
        /// The one that this version reads.
        reads: u32,
    },
    /// A member of a striped set of an earlier version, which may hold the only copies of a store's pages.
    Striped,
    /// Other data, which must not be overwritten.
    Foreign,
}

impl<S> std::fmt::Display for Found<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Superblock(_) => f.write_str("another SSD"),
            Self::Blank => f.write_str("blank"),
            Self::Format { found, reads } => write!(f, "of format {found}, this version reads {reads}"),
            Self::Striped => f.write_str("of a striped set, which this version does not read"),
            Self::Foreign => f.write_str("damaged, or other data"),
        }
    }
}

/// The superblock of a kind of device: the first two blocks hold a copy each.
pub trait Label: Sized + Send + Sync {
    /// Encodes it as a block.
    fn encode(&self) -> Vec<u8>;

    /// Decodes the first block of a device, which may hold anything.
    fn decode(block: &[u8]) -> Found<Self>;

    /// The opens that the device took part in.
    fn marks(&mut self) -> &mut OpeningMarks;

    /// Whether both devices belong to one store.
    fn is_of_store_of(&self, other: &Self) -> bool;
}

/// Whether `block`, the first of a device, is the label of a member of a striped set.
#[must_use]
pub fn is_striped(block: &[u8]) -> bool {
    block.starts_with(&STRIPED_MAGIC)
}

mod at {
    pub(super) const FORMAT: usize = 12;
    pub(super) const STORE: usize = 16;
    pub(super) const SSD: usize = 32;
    pub(super) const PAGE_BYTES: usize = 48;
    pub(super) const SLOTS: usize = 52;
    pub(super) const JOURNAL: usize = 56;
    pub(super) const RING: usize = 60;
    pub(super) const END: usize = 64;
    pub(super) const OPENED: usize = 72;
    pub(super) const CLOSED: usize = 76;
    pub(super) const MANIFEST: usize = 80;
}

impl Superblock {
    /// The seed of the checksums of the device's metadata and pages.
    pub fn seed(&self) -> StoreSeed {
        StoreSeed::of_store(self.store)
    }
}

impl Label for Superblock {
    fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK_BYTES as usize];
        put_u32(&mut b, at::FORMAT, FORMAT);
        b[at::STORE..at::SSD].copy_from_slice(&self.store);
        b[at::SSD..at::PAGE_BYTES].copy_from_slice(&self.ssd);
        put_u32(&mut b, at::PAGE_BYTES, self.layout.page_size.bytes() as u32);
        put_u32(&mut b, at::SLOTS, self.layout.slots);
        put_u32(&mut b, at::JOURNAL, self.layout.journal_blocks);
        put_u32(&mut b, at::RING, self.layout.ring_pages);
        put_u64(&mut b, at::END, self.layout.end());
        put_u32(&mut b, at::OPENED, self.marks.opened);
        put_u32(&mut b, at::CLOSED, self.marks.closed);
        put_u64(&mut b, at::MANIFEST, self.marks.manifest);
        seal_block(StoreSeed::NONE, &mut b, MAGIC);
        b
    }

    fn decode(block: &[u8]) -> Found {
        if block.len() < BLOCK_BYTES as usize {
            return Found::Foreign;
        }
        let block = &block[..BLOCK_BYTES as usize];
        if !block_is_sound(StoreSeed::NONE, block, MAGIC) {
            return match pagetier_page::is_blank(block) {
                true => Found::Blank,
                false if is_striped(block) => Found::Striped,
                false => Found::Foreign,
            };
        }
        let format = u32_at(block, at::FORMAT);
        // Named rather than rejected as foreign, so that the error can say which version wrote the device.
        if format != FORMAT {
            return Found::Format { found: format, reads: FORMAT };
        }
        let Ok(page_size) = PageSize::new(u64::from(u32_at(block, at::PAGE_BYTES))) else {
            return Found::Foreign;
        };
        let layout = Layout {
            page_size,
            slots: u32_at(block, at::SLOTS),
            journal_blocks: u32_at(block, at::JOURNAL),
            ring_pages: u32_at(block, at::RING),
        };
        // The layout follows from the counts. Its end, stored beside them, shows that both sides compute it
        // alike.
        if u64_at(block, at::END) != layout.end() || !layout.is_sound() {
            return Found::Foreign;
        }
        let id = |from: usize| std::array::from_fn(|i| block[from + i]);
        let marks = OpeningMarks {
            opened: u32_at(block, at::OPENED),
            closed: u32_at(block, at::CLOSED),
            manifest: u64_at(block, at::MANIFEST),
        };
        Found::Superblock(Self { store: id(at::STORE), ssd: id(at::SSD), layout, marks })
    }

    fn marks(&mut self) -> &mut OpeningMarks {
        &mut self.marks
    }

    fn is_of_store_of(&self, other: &Self) -> bool {
        self.store == other.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_and_refuses_what_is_not_its_own() {
        let layout = Layout::for_bytes(10 << 20, PageSize::DEFAULT, 8).unwrap();
        let marks = OpeningMarks { opened: 5, closed: 4, manifest: 17 };
        let sb = Superblock { store: [1; 16], ssd: [2; 16], layout, marks };
        let mut block = sb.encode();
        assert_eq!(Superblock::decode(&block), Found::Superblock(sb));
        block[100] ^= 1;
        assert_eq!(Superblock::decode(&block), Found::Foreign);
        assert_eq!(Superblock::decode(&[0; 4096]), Found::Blank);
        assert_eq!(Superblock::decode(&[0; 12]), Found::Foreign);
        let mut label = [0; 4096];
        label[..8].copy_from_slice(b"PGTIERST");
        assert_eq!(Superblock::decode(&label), Found::Striped);
    }
}
