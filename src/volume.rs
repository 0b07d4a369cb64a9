//! The HDD as a volume: a superblock, then extents, each of which belongs to one space.
//!
//! All spaces share one device. Offsets are the disk's own, so that sorting and merging of writes follows the
//! arm, and a block device serves as well as a file. The table (runs of extents) is small and in memory;
//! changes reach the manifest before they are used.

pub(crate) use crate::manifest::EXTENT_PAGES;
use crate::manifest::{Manifest, SpaceRecord};
use dashmap::DashMap;
use dashmap::mapref::one::{Ref, RefMut};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp, SharedDevice};
use pagetier_page::{PageId, PageSize, SpaceId};
use pagetier_ssdcache::{Homes, Marks, write_superblocks};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::ops::Range;
use std::sync::Arc;

/// Byte offset of the first extent; the megabyte before it holds the superblock.
pub(crate) const DATA_AT: u64 = 1 << 20;

/// The maximum number of pages by which a space grows at once; bounds what crash recovery must search.
const GROWTH_PAGES_MAX: u32 = 256;

const MAGIC: [u8; 8] = *b"PGTIERHD";
const FORMAT: u32 = 2;
/// Bytes of each copy of the volume's superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// The volume's superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HddSuperblock {
    /// The store's id.
    pub(crate) store: String,
    pub(crate) page_bytes: u64,
    /// The openings that the HDD took part in.
    pub(crate) marks: Marks,
}

/// What the first block of an HDD contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundHdd {
    Volume(HddSuperblock),
    Blank,
    Format(u32),
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
        if b[..8] != MAGIC || word(8) != crc32c::crc32c(&b[12..SUPERBLOCK_BYTES]) {
            return FoundHdd::Foreign;
        }
        if word(12) != FORMAT {
            return FoundHdd::Format(word(12));
        }
        let id = b.get(25..25 + usize::from(b[24]).min(64)).unwrap_or_default();
        let marks = Marks { opened: word(96), closed: word(100), manifest: long(104) };
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
        // This store's superblock stays in place until the new one replaces it: if a crash came between, the
        // data behind it would look like another program's.
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
    pub(crate) async fn mark(hdd: &SharedDevice, marks: Marks) -> Result<(), DeviceError> {
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

#[derive(Clone, Debug)]
struct SpaceEntry {
    name: String,
    /// Pages allocated.
    pages: u32,
    runs: Vec<(u64, u64)>,
    /// The space is being dropped: lookups do not find it, but its extents are not free yet.
    dropping: bool,
}

impl SpaceEntry {
    fn reserved(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum::<u64>() * u64::from(EXTENT_PAGES)
    }
}

/// A space's description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceInfo {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: String,
    /// Its number of pages; the next page allocated gets this number.
    pub pages: u32,
}

/// The spaces and their extents.
#[derive(Debug)]
pub(crate) struct Volume {
    page_size: PageSize,
    spaces: DashMap<SpaceId, SpaceEntry, FxBuildHasher>,
    extents: Mutex<Extents>,
}

#[derive(Clone, Debug)]
struct Extents {
    used: u64,
    free: Vec<(u64, u64)>,
}

/// A planned growth of a space: the volume takes it over once the HDD has the extents and the manifest
/// records them.
#[derive(Debug)]
pub(crate) struct Growth {
    space: SpaceId,
    run: (u64, u64),
    /// The run may hold data: it belonged to another space, or the HDD was used before the store existed.
    pub(crate) used_before: bool,
    /// The extents after the growth.
    extents: Extents,
    /// The run's byte range.
    pub(crate) bytes: Range<u64>,
    /// The end of the volume in bytes after the growth, which the HDD must reach.
    pub(crate) end: u64,
}

impl Growth {
    /// Adds the growth to `manifest`, which records the volume before it.
    pub(crate) fn record(&self, manifest: &mut Manifest) {
        manifest.extents_used = self.extents.used;
        manifest.extents_free.clone_from(&self.extents.free);
        if let Some(space) = manifest.spaces.iter_mut().find(|s| s.id == self.space.0) {
            append(&mut space.runs, self.run);
        }
    }
}

fn append(runs: &mut Vec<(u64, u64)>, run: (u64, u64)) {
    match runs.last_mut().filter(|(first, count)| first + count == run.0) {
        Some(last) => last.1 += run.1,
        None => runs.push(run),
    }
}

impl Volume {
    pub(crate) fn new(manifest: &Manifest, page_size: PageSize) -> Self {
        let spaces = DashMap::with_hasher(FxBuildHasher);
        for s in &manifest.spaces {
            let (name, runs) = (s.name.clone(), s.runs.clone());
            spaces.insert(SpaceId(s.id), SpaceEntry { name, pages: s.pages, runs, dropping: s.dropping });
        }
        let extents = Extents { used: manifest.extents_used, free: manifest.extents_free.clone() };
        Self { page_size, spaces, extents: Mutex::new(extents) }
    }

    /// Copies the table into the manifest.
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
                dropping: s.dropping,
            })
            .collect();
        manifest.spaces.sort_by_key(|s| s.id);
    }

    pub(crate) fn list(&self) -> Vec<SpaceInfo> {
        let info = |id: SpaceId, s: &SpaceEntry| SpaceInfo { id, name: s.name.clone(), pages: s.pages };
        let mut all: Vec<SpaceInfo> =
            self.spaces.iter().filter(|s| !s.dropping).map(|s| info(*s.key(), &s)).collect();
        all.sort_by_key(|s| s.id);
        all
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<SpaceId> {
        self.spaces.iter().find(|s| s.name == name && !s.dropping).map(|s| *s.key())
    }

    pub(crate) fn add(&self, id: SpaceId, name: &str) {
        let entry = SpaceEntry { name: name.to_owned(), pages: 0, runs: Vec::new(), dropping: false };
        let _ = self.spaces.insert(id, entry);
    }

    /// The space, unless it is being dropped.
    fn live(&self, id: SpaceId) -> Option<Ref<'_, SpaceId, SpaceEntry>> {
        self.spaces.get(&id).filter(|s| !s.dropping)
    }

    fn live_mut(&self, id: SpaceId) -> Option<RefMut<'_, SpaceId, SpaceEntry>> {
        self.spaces.get_mut(&id).filter(|s| !s.dropping)
    }

    /// Whether `id` is being dropped; `None`: no such space.
    pub(crate) fn is_dropping(&self, id: SpaceId) -> Option<bool> {
        self.spaces.get(&id).map(|s| s.dropping)
    }

    /// Hides the space from lookups; it keeps its extents.
    pub(crate) fn begin_drop(&self, id: SpaceId) {
        if let Some(mut s) = self.spaces.get_mut(&id) {
            s.dropping = true;
        }
    }

    /// The spaces being dropped.
    pub(crate) fn dropping(&self) -> Vec<SpaceId> {
        self.spaces.iter().filter(|s| s.dropping).map(|s| *s.key()).collect()
    }

    /// Removes the space from `manifest`, which records the volume as it is, and frees its extents there.
    pub(crate) fn record_dropped(&self, id: SpaceId, manifest: &mut Manifest) {
        let Some(runs) = self.spaces.get(&id).map(|s| s.runs.clone()) else { return };
        manifest.spaces.retain(|s| s.id != id.0);
        manifest.extents_free = merged(manifest.extents_free.iter().copied().chain(runs).collect());
    }

    /// Removes the space and frees its extents; no write to them may be in flight.
    pub(crate) fn end_drop(&self, id: SpaceId) {
        let Some((_, s)) = self.spaces.remove(&id) else { return };
        let mut extents = self.extents.lock();
        extents.free = merged(extents.free.iter().copied().chain(s.runs).collect());
    }

    /// Takes the next page of `space`; `Some(None)` if its extents do not reach that far, `None` if there is
    /// no such space.
    pub(crate) fn take_page(&self, space: SpaceId) -> Option<Option<u32>> {
        let mut s = self.live_mut(space)?;
        let no = s.pages;
        if u64::from(no) >= s.reserved() || no == u32::MAX {
            return Some(None);
        }
        s.pages += 1;
        Some(Some(no))
    }

    /// Whether the extents of the page's space reach it; if so, the page exists from then on.
    pub(crate) fn extend_to(&self, page: PageId) -> Option<bool> {
        let mut s = self.live_mut(page.space)?;
        if u64::from(page.no) >= s.reserved() {
            return Some(false);
        }
        s.pages = s.pages.max(page.no + 1);
        Some(true)
    }

    pub(crate) fn pages(&self, space: SpaceId) -> Option<u32> {
        self.live(space).map(|s| s.pages)
    }

    /// The number of pages for which `space` has room on the HDD.
    pub(crate) fn reserved(&self, space: SpaceId) -> u64 {
        self.live(space).map_or(0, |s| s.reserved())
    }

    pub(crate) fn set_pages(&self, space: SpaceId, pages: u32) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            s.pages = pages;
        }
    }

    /// Plans more extents for `space`, without changing anything: see [`Volume::grow`]. The caller holds the
    /// manifest's lock until the growth has taken effect. Below byte `leftovers_to` the HDD may hold earlier
    /// data.
    pub(crate) fn plan_growth(&self, space: SpaceId, leftovers_to: u64) -> Option<Growth> {
        let s = self.live(space)?;
        let wanted = (s.pages / 32).clamp(EXTENT_PAGES, GROWTH_PAGES_MAX) / EXTENT_PAGES;
        let mut extents = self.extents.lock().clone();
        let used = extents.used;
        let run = extents.take(u64::from(wanted));
        let at = |extent| DATA_AT + extent * self.extent_bytes();
        let (bytes, end) = (at(run.0)..at(run.0 + run.1), at(extents.used));
        let used_before = run.0 < used || bytes.start < leftovers_to;
        Some(Growth { space, run, used_before, extents, bytes, end })
    }

    /// Gives the space the planned extents.
    pub(crate) fn grow(&self, growth: Growth) {
        let Some(mut s) = self.spaces.get_mut(&growth.space) else { return };
        *self.extents.lock() = growth.extents;
        append(&mut s.runs, growth.run);
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(EXTENT_PAGES) * self.page_size.bytes() as u64
    }

    /// The offset of a page whether or not it is allocated; for recovery.
    pub(crate) fn place(&self, page: PageId) -> Option<u64> {
        let s = self.live(page.space)?;
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

/// Sorts the runs and joins those that touch.
fn merged(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut all = Vec::with_capacity(runs.len());
    runs.into_iter().for_each(|run| append(&mut all, run));
    all
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
                            volume.grow(volume.plan_growth(space, 0).unwrap());
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
    fn the_superblock_reads_back_and_foreign_data_is_recognised() {
        let marks = Marks { opened: 3, closed: 2, manifest: 1 << 40 };
        let superblock = HddSuperblock { store: "abc".into(), page_bytes: 16384, marks };
        let mut block = superblock.encode();
        assert_eq!(HddSuperblock::decode(&block), FoundHdd::Volume(superblock));
        block[30] ^= 1;
        assert_eq!(HddSuperblock::decode(&block), FoundHdd::Foreign);
        assert_eq!(HddSuperblock::decode(&[0; 4096]), FoundHdd::Blank);
    }

    #[test]
    fn a_planned_growth_changes_nothing_and_a_dropped_space_keeps_its_extents_to_the_end() {
        let volume = volume();
        let run = |space| volume.plan_growth(space, 0).unwrap().run;
        assert_eq!((run(SpaceId(1)), run(SpaceId(2))), ((0, 1), (0, 1)));
        volume.grow(volume.plan_growth(SpaceId(1), 0).unwrap());
        volume.begin_drop(SpaceId(1));
        assert_eq!((volume.pages(SpaceId(1)), volume.by_name("a")), (None, None));
        assert_eq!((run(SpaceId(2)), volume.dropping()), ((1, 1), vec![SpaceId(1)]));
        volume.end_drop(SpaceId(1));
        assert_eq!((run(SpaceId(2)), volume.is_dropping(SpaceId(1))), ((0, 1), None));
        assert_eq!(merged(vec![(4, 2), (0, 1), (1, 3)]), [(0, 6)]);
    }
}
