//! The first block of an SSD: whose it is, its layout, and which openings it took part in. It stands there
//! twice.

use crate::format::bytes::{block_is_sound, put_u32, put_u64, seal_block, u32_at, u64_at};
use crate::format::layout::{BLOCK_BYTES, Layout};
use pagetier_page::{PageSize, StoreSeed};

const MAGIC: [u8; 8] = *b"PGTIERSS";
const FORMAT: u32 = 2;

/// Which openings of its store a device took part in: they identify an older copy of it. Of two copies the
/// larger is the newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, serde::Serialize)]
pub struct Marks {
    /// The last opening.
    pub opened: u32,
    /// The last opening that was closed in order.
    pub closed: u32,
    /// The manifest of that moment was durable in this generation.
    pub manifest: u64,
}

/// The store that an SSD belongs to, and its division.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The store that the SSD belongs to.
    pub store: [u8; 16],
    /// The SSD's own id: a store remembers it.
    pub ssd: [u8; 16],
    /// The division into areas.
    pub layout: Layout,
    /// The openings that it took part in.
    pub marks: Marks,
}

/// What the first block of a device turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A superblock.
    Superblock(Superblock),
    /// Nothing but zeroes.
    Blank,
    /// A superblock of a format this version does not read.
    Format(u32),
    /// Something else: not ours to overwrite.
    Foreign,
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
    /// What the checksums of the device's metadata and pages start from.
    #[must_use]
    pub fn seed(&self) -> StoreSeed {
        StoreSeed::of_store(self.store)
    }

    /// As a block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
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

    /// What stands in `block`.
    #[must_use]
    pub fn decode(block: &[u8]) -> Found {
        if block.len() < BLOCK_BYTES as usize {
            return Found::Foreign;
        }
        let block = &block[..BLOCK_BYTES as usize];
        if !block_is_sound(StoreSeed::NONE, block, MAGIC) {
            return if pagetier_page::is_blank(block) { Found::Blank } else { Found::Foreign };
        }
        let format = u32_at(block, at::FORMAT);
        if format != FORMAT {
            return Found::Format(format);
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
        if u64_at(block, at::END) != layout.end() || !layout.is_sound() {
            return Found::Foreign;
        }
        let id = |from: usize| std::array::from_fn(|i| block[from + i]);
        let marks = Marks {
            opened: u32_at(block, at::OPENED),
            closed: u32_at(block, at::CLOSED),
            manifest: u64_at(block, at::MANIFEST),
        };
        Found::Superblock(Self { store: id(at::STORE), ssd: id(at::SSD), layout, marks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_and_refuses_what_is_not_its_own() {
        let layout = Layout::for_bytes(10 << 20, PageSize::DEFAULT, 8).unwrap();
        let marks = Marks { opened: 5, closed: 4, manifest: 17 };
        let sb = Superblock { store: [1; 16], ssd: [2; 16], layout, marks };
        let mut block = sb.encode();
        assert_eq!(Superblock::decode(&block), Found::Superblock(sb));
        block[100] ^= 1;
        assert_eq!(Superblock::decode(&block), Found::Foreign);
        assert_eq!(Superblock::decode(&[0; 4096]), Found::Blank);
        assert_eq!(Superblock::decode(&[0; 12]), Found::Foreign);
    }
}
