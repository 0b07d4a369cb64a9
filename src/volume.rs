//! The HDD as a volume: a superblock, then extents, each of which belongs to one space.
//!
//! One device for all spaces: positions are the disk's, so that sorting and merging of writes sees what the arm sees, and a block
//! device serves as well as a file. The table is small (runs of extents) and in memory; changes reach the manifest before they
//! are used.

use crate::manifest::{Manifest, SpaceRecord};
use dashmap::DashMap;
use pagetier_page::{PageId, PageSize, SpaceId};
use pagetier_ssdcache::Homes;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

/// Where the first extent starts, in bytes: the megabyte before it holds the superblock.
pub(crate) const DATA_AT: u64 = 1 << 20;
/// Pages of an extent.
pub(crate) const EXTENT_PAGES: u32 = 64;
/// The most pages by which a space is grown at once: what a crash recovery may have to look through.
const GROWTH_PAGES_MAX: u32 = 256;

const MAGIC: [u8; 8] = *b"PGTIERHD";
const FORMAT: u32 = 2;
/// Bytes of the volume's superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// What the first block of an HDD turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundHdd {
    Volume { store: String, page_bytes: u64 },
    Blank,
    Format(u32),
    Foreign,
}

/// The volume's superblock: magic, CRC32C, format, page size, store id (as text).
pub(crate) fn encode_superblock(store: &str, page_size: PageSize) -> Vec<u8> {
    let mut b = vec![0; SUPERBLOCK_BYTES];
    b[..8].copy_from_slice(&MAGIC);
    b[12..16].copy_from_slice(&FORMAT.to_le_bytes());
    b[16..24].copy_from_slice(&(page_size.bytes() as u64).to_le_bytes());
    let id = &store.as_bytes()[..store.len().min(64)];
    b[24] = id.len() as u8;
    b[25..25 + id.len()].copy_from_slice(id);
    let sum = crc32c::crc32c(&b[12..]);
    b[8..12].copy_from_slice(&sum.to_le_bytes());
    b
}

pub(crate) fn decode_superblock(b: &[u8]) -> FoundHdd {
    if b.len() < SUPERBLOCK_BYTES || pagetier_page::is_blank(b) {
        return FoundHdd::Blank;
    }
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    if b[..8] != MAGIC || word(8) != crc32c::crc32c(&b[12..SUPERBLOCK_BYTES]) {
        return FoundHdd::Foreign;
    }
    if word(12) != FORMAT {
        return FoundHdd::Format(word(12));
    }
    let id = b.get(25..25 + b[24] as usize).unwrap_or_default();
    let page_bytes = u64::from(word(16)) | u64::from(word(20)) << 32;
    FoundHdd::Volume { store: String::from_utf8_lossy(id).into_owned(), page_bytes }
}

#[derive(Clone, Debug)]
struct SpaceEntry {
    name: String,
    /// Pages allocated.
    pages: u32,
    runs: Vec<(u64, u64)>,
}

impl SpaceEntry {
    fn reserved(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum::<u64>() * u64::from(EXTENT_PAGES)
    }
}

/// What is known of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceInfo {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: String,
    /// Its pages: the next allocation gets this number.
    pub pages: u32,
}

/// The spaces and their extents.
#[derive(Debug)]
pub(crate) struct Volume {
    page_size: PageSize,
    spaces: DashMap<SpaceId, SpaceEntry, FxBuildHasher>,
    extents: Mutex<Extents>,
}

#[derive(Debug)]
struct Extents {
    used: u64,
    free: Vec<(u64, u64)>,
}

impl Volume {
    pub(crate) fn new(manifest: &Manifest, page_size: PageSize) -> Self {
        let spaces = DashMap::with_hasher(FxBuildHasher);
        for s in &manifest.spaces {
            let entry = SpaceEntry { name: s.name.clone(), pages: s.pages, runs: s.runs.clone() };
            spaces.insert(SpaceId(s.id), entry);
        }
        let extents = Extents { used: manifest.extents_used, free: manifest.extents_free.clone() };
        Self { page_size, spaces, extents: Mutex::new(extents) }
    }

    /// Puts the table into the manifest.
    pub(crate) fn record(&self, manifest: &mut Manifest) {
        let extents = self.extents.lock();
        manifest.extents_used = extents.used;
        manifest.extents_free.clone_from(&extents.free);
        drop(extents);
        manifest.spaces = self
            .spaces
            .iter()
            .map(|s| SpaceRecord {
                id: s.key().0,
                name: s.name.clone(),
                pages: s.pages,
                runs: s.runs.clone(),
            })
            .collect();
        manifest.spaces.sort_by_key(|s| s.id);
    }

    pub(crate) fn list(&self) -> Vec<SpaceInfo> {
        let info = |id: SpaceId, s: &SpaceEntry| SpaceInfo { id, name: s.name.clone(), pages: s.pages };
        let mut all: Vec<SpaceInfo> = self.spaces.iter().map(|s| info(*s.key(), &s)).collect();
        all.sort_by_key(|s| s.id);
        all
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<SpaceId> {
        self.spaces.iter().find(|s| s.name == name).map(|s| *s.key())
    }

    pub(crate) fn add(&self, id: SpaceId, name: &str) {
        let _ = self.spaces.insert(id, SpaceEntry { name: name.to_owned(), pages: 0, runs: Vec::new() });
    }

    /// Takes the space out; its extents come back with [`Volume::give_back`], once nothing can write to them.
    pub(crate) fn remove(&self, id: SpaceId) -> Option<Vec<(u64, u64)>> {
        self.spaces.remove(&id).map(|(_, s)| s.runs)
    }

    pub(crate) fn give_back(&self, runs: Vec<(u64, u64)>) {
        self.extents.lock().free.extend(runs);
    }

    /// The next page of `space`, if its extents reach that far. `None`: no such space.
    pub(crate) fn take_page(&self, space: SpaceId) -> Option<Option<u32>> {
        let mut s = self.spaces.get_mut(&space)?;
        let no = s.pages;
        if u64::from(no) >= s.reserved() || no == u32::MAX {
            return Some(None);
        }
        s.pages += 1;
        Some(Some(no))
    }

    /// Whether the extents of `space` reach page `no`; it then exists from now on.
    pub(crate) fn extend_to(&self, page: PageId) -> Option<bool> {
        let mut s = self.spaces.get_mut(&page.space)?;
        if u64::from(page.no) >= s.reserved() {
            return Some(false);
        }
        s.pages = s.pages.max(page.no + 1);
        Some(true)
    }

    pub(crate) fn pages(&self, space: SpaceId) -> Option<u32> {
        self.spaces.get(&space).map(|s| s.pages)
    }

    /// Pages for which `space` has room on the HDD.
    pub(crate) fn reserved(&self, space: SpaceId) -> u64 {
        self.spaces.get(&space).map_or(0, |s| s.reserved())
    }

    pub(crate) fn set_pages(&self, space: SpaceId, pages: u32) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            s.pages = pages;
        }
    }

    /// Gives `space` more extents. Returns the end of the volume in bytes, which the device has to reach.
    pub(crate) fn grow(&self, space: SpaceId) -> Option<u64> {
        let mut s = self.spaces.get_mut(&space)?;
        let wanted = (s.pages / 32).clamp(EXTENT_PAGES, GROWTH_PAGES_MAX) / EXTENT_PAGES;
        let mut extents = self.extents.lock();
        let run = extents.take(u64::from(wanted));
        match s.runs.last_mut().filter(|(first, count)| first + count == run.0) {
            Some(last) => last.1 += run.1,
            None => s.runs.push(run),
        }
        Some(DATA_AT + extents.used * self.extent_bytes())
    }

    /// The end of the extents given out so far, in bytes: the device has to reach it.
    pub(crate) fn end(&self) -> u64 {
        DATA_AT + self.extents.lock().used * self.extent_bytes()
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(EXTENT_PAGES) * self.page_size.bytes() as u64
    }

    /// The place of page `no` whether or not it is allocated yet; for recovery.
    pub(crate) fn place(&self, page: PageId) -> Option<u64> {
        let s = self.spaces.get(&page.space)?;
        let mut extent = u64::from(page.no / EXTENT_PAGES);
        let within = u64::from(page.no % EXTENT_PAGES) * self.page_size.bytes() as u64;
        for (first, count) in &s.runs {
            if extent < *count {
                return Some(DATA_AT + (first + extent) * self.extent_bytes() + within);
            }
            extent -= count;
        }
        None
    }
}

impl Extents {
    fn take(&mut self, wanted: u64) -> (u64, u64) {
        if let Some((first, count)) = self.free.pop() {
            let taken = count.min(wanted);
            if taken < count {
                self.free.push((first + taken, count - taken));
            }
            return (first, taken);
        }
        let first = self.used;
        self.used += wanted;
        (first, wanted)
    }
}

impl Homes for Volume {
    fn offset(&self, page: PageId) -> Option<u64> {
        if page.no >= self.pages(page.space)? {
            return None;
        }
        self.place(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        let manifest = Manifest::new(String::new(), PageSize::MIN);
        let volume = Volume::new(&manifest, PageSize::MIN);
        volume.add(SpaceId(1), "a");
        volume.add(SpaceId(2), "b");
        volume
    }

    #[test]
    fn spaces_that_grow_in_turns_never_share_a_place() {
        let volume = volume();
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..300 {
            for space in [SpaceId(1), SpaceId(2)] {
                let no = loop {
                    match volume.take_page(space).unwrap() {
                        Some(no) => break no,
                        None => {
                            volume.grow(space).unwrap();
                        }
                    }
                };
                assert!(places.insert(volume.offset(PageId::new(space, no)).unwrap()));
            }
        }
        assert_eq!(volume.offset(PageId::new(SpaceId(1), 300)), None);
        assert_eq!(volume.offset(PageId::new(SpaceId(9), 0)), None);
        assert_eq!(volume.pages(SpaceId(2)), Some(300));
    }

    #[test]
    fn the_superblock_reads_back_and_foreign_data_is_told_apart() {
        let mut block = encode_superblock("abc", PageSize::DEFAULT);
        let volume = FoundHdd::Volume { store: "abc".into(), page_bytes: 16384 };
        assert_eq!(decode_superblock(&block), volume);
        block[30] ^= 1;
        assert_eq!(decode_superblock(&block), FoundHdd::Foreign);
        assert_eq!(decode_superblock(&[0; 4096]), FoundHdd::Blank);
    }
}
