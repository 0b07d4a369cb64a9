//! A file of bytes over a space of a store: for an engine that reads and writes a file at positions.
//!
//! Page 0 of the space is the header: a magic number and the file's length. From page 1 on the file's bytes
//! follow in units of the store's page size, each in a page of its own. A page's header takes 32 bytes, so a
//! unit does not fit into its page: one chunk of 64 bytes is left out. If any chunk of the unit is blank, it
//! is that one, and the page has its number; an engine's pages usually have some room left. Otherwise the
//! last chunk is in the page in front of a group of units, which has the ends of them all: 63 with pages of
//! 4 KiB. An engine's page that is aligned in the file is thereby written without a read of what was there,
//! at once or not at all if it has a blank chunk, and read from one page, at times from another one that
//! many share; if units were packed, every second one would lie in two pages that are far apart on the SSD.
//! A page that does not exist reads as zeroes, so a hole costs nothing.
//!
//! After a crash the file has what the last [`File::sync`] made durable, and any part of what was written
//! later, as a file of the system has: bytes beside those do not change. Its length is the durable one, and
//! whatever lay beyond it is gone: a file that grows again shows zeroes there, not the bytes that a crash
//! left behind.

use pagetier::blocking::PageStore;
use pagetier::{PageId, PageRef, SpaceId};
use parking_lot::{RwLock, RwLockReadGuard};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The first bytes of the header. The last one is the version of this layout.
const MAGIC: [u8; 8] = *b"PTFILE\0\x03";

/// The header's bytes: the magic number, the length.
const HEADER_BYTES: usize = 16;

/// A file. Share it in an `Arc`.
#[derive(Debug)]
pub struct File {
    store: Arc<PageStore>,
    space: SpaceId,
    layout: Layout,
    /// Held shared by writes, and exclusively by what must see no write half-way: changes of the length,
    /// pauses.
    length: RwLock<Length>,
}

#[derive(Debug)]
struct Length {
    bytes: u64,
    /// What the header's page says.
    recorded: u64,
}

/// Where the file's bytes are in the space, by the sizes of a page.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The bytes of a page, and of a unit.
    unit: u64,
    /// The bytes of a page without its header.
    payload: u64,
}

/// The bytes of a unit that its page leaves out.
const CHUNK: usize = 64;

/// The chunk that a unit's page leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    /// The last one, which is in the page with the ends.
    Last,
    /// This one, which is blank.
    Blank(u16),
}

impl Layout {
    /// The units of a group.
    fn units(self) -> u64 {
        self.payload / CHUNK as u64
    }

    /// The page with the ends of the group that `unit` belongs to, and where the end of `unit` is in it.
    fn end_of(self, unit: u64) -> (u64, usize) {
        (1 + unit / self.units() * (self.units() + 1), (unit % self.units()) as usize * CHUNK)
    }

    fn page_of(self, unit: u64) -> u64 {
        self.end_of(unit).0 + 1 + unit % self.units()
    }

    /// Where the last chunk begins in a unit.
    fn last(self) -> usize {
        self.unit as usize - CHUNK
    }

    /// Where a unit's bytes begin in its page, behind the number of the chunk that is left out.
    fn head(self) -> usize {
        self.payload as usize - self.last()
    }

    /// The unit with the byte at `at`, where that is in it, and how many of `bytes` are in the unit.
    fn part(self, at: u64, bytes: usize) -> (u64, usize, usize) {
        let within = (at % self.unit) as usize;
        (at / self.unit, within, bytes.min(self.unit as usize - within))
    }

    /// The number of pages of a file of `bytes` bytes, with the header.
    fn pages(self, bytes: u64) -> u64 {
        // The page after that of the last unit.
        bytes.div_ceil(self.unit).checked_sub(1).map_or(1, |last| self.page_of(last) + 1)
    }

    /// The chunk that the page of a unit with these bytes leaves out.
    fn leave_out(unit: &[u8]) -> Out {
        // From the end on, where an engine's page is blank most often.
        let blank = unit.chunks_exact(CHUNK).rposition(|chunk| chunk == [0; CHUNK]);
        blank.and_then(|chunk| u16::try_from(chunk).ok()).map_or(Out::Last, Out::Blank)
    }

    /// What the page of a unit leaves out, and where that begins in the unit.
    fn out(self, page: &[u8]) -> (Out, usize) {
        match u16::from_le_bytes([page[0], page[1]]).checked_sub(1) {
            Some(chunk) => (Out::Blank(chunk), (usize::from(chunk) * CHUNK).min(self.last())),
            None => (Out::Last, self.last()),
        }
    }

    /// Copies bytes of a unit from its page, from `within` on; zeroes for the chunk that is left out.
    fn take(self, page: &[u8], within: usize, into: &mut [u8]) -> Out {
        let ((out, gap), head) = (self.out(page), self.head());
        let (before, rest) = into.split_at_mut(gap.saturating_sub(within).min(into.len()));
        before.copy_from_slice(&page[head + within.min(gap)..][..before.len()]);
        let from = within.max(gap);
        let (blank, after) = rest.split_at_mut((gap + CHUNK).saturating_sub(from).min(rest.len()));
        blank.fill(0);
        after.copy_from_slice(&page[head + from.max(gap + CHUNK) - CHUNK..][..after.len()]);
        out
    }

    /// Puts a unit into its page.
    fn put(self, page: &mut [u8], out: Out, unit: &[u8]) {
        let (number, gap) = match out {
            Out::Last => (0, self.last()),
            Out::Blank(chunk) => (chunk + 1, usize::from(chunk) * CHUNK),
        };
        page[..2].copy_from_slice(&number.to_le_bytes());
        let (before, after) = page[self.head()..].split_at_mut(gap);
        before.copy_from_slice(&unit[..gap]);
        after.copy_from_slice(&unit[gap + CHUNK..]);
    }
}

impl File {
    /// Opens the file called `name`, which is the space of that name; creates it, empty, if there is none.
    ///
    /// # Errors
    /// The space is not a file, or belongs to a later version; the store's errors.
    pub fn open(store: Arc<PageStore>, name: &str) -> Result<Self> {
        let space = match store.spaces().find(name) {
            Some(space) => space,
            None => store.block_on(store.spaces().create(name))?,
        };
        let size = store.page_size();
        let layout = Layout { unit: size.bytes() as u64, payload: size.payload_bytes() as u64 };
        let length = RwLock::new(Length { bytes: 0, recorded: 0 });
        let file = Self { store, space, layout, length };
        let header = PageId::new(space, 0);
        // A crash between the creation and the first sync leaves an empty space.
        if !file.store.exists(header) {
            file.put_header(0)?;
            file.store.block_on(file.store.spaces().sync(space))?;
            return Ok(file);
        }
        let page = file.store.get_or_create(header)?.into_owned(&file.store);
        let has_magic = page[..MAGIC.len()] == MAGIC;
        if !has_magic && page[..HEADER_BYTES] != [0; HEADER_BYTES] {
            let what = format!("the space {name} is not a file of this version");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let bytes = u64::from_le_bytes(page[MAGIC.len()..HEADER_BYTES].try_into().expect("eight bytes"));
        drop(page);
        // A header that no sync covered is blank: the next sync writes it.
        *file.length.write() = Length { bytes, recorded: if has_magic { bytes } else { u64::MAX } };
        // Before anything is written: a crash may have left pages that no durable length covers.
        file.cut(bytes)?;
        file.store.block_on(file.store.spaces().sync(space))?;
        Ok(file)
    }

    /// Reads into `out` from position `at` on. Returns the number of bytes read: fewer than `out` has at the
    /// end of the file only.
    ///
    /// # Errors
    /// The store's.
    pub fn read_at(&self, out: &mut [u8], at: u64) -> Result<usize> {
        let left = self.len().saturating_sub(at);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let (mut rest, mut at) = (&mut out[..wanted], at);
        while !rest.is_empty() {
            let (unit, within, bytes) = self.layout.part(at, rest.len());
            let (now, later) = rest.split_at_mut(bytes);
            self.read_unit(unit, within, now)?;
            (rest, at) = (later, at + bytes as u64);
        }
        Ok(wanted)
    }

    fn read_unit(&self, unit: u64, within: usize, into: &mut [u8]) -> Result<()> {
        let out = match self.look(self.layout.page_of(unit))? {
            Some(page) => self.layout.take(&page, within, into),
            None => {
                into.fill(0);
                Out::Last
            }
        };
        let (last, end) = (self.layout.last(), within + into.len());
        if out == Out::Last && end > last {
            let (page, at) = self.layout.end_of(unit);
            let into = &mut into[last.saturating_sub(within)..];
            if let Some(page) = self.look(page)? {
                into.copy_from_slice(&page[at + end - into.len() - last..at + end - last]);
            }
        }
        Ok(())
    }

    /// The page, if there is one.
    fn look(&self, no: u64) -> Result<Option<PageRef<'_>>> {
        let page = self.page(no)?;
        // A page that is to be freed still has its contents, which a truncation took from the file.
        match self.store.exists(page).then(|| self.store.get(page)) {
            Some(Ok(page)) => Ok(Some(page)),
            None | Some(Err(pagetier::Error::NoSuchPage { .. })) => Ok(None),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Writes `data` from position `at` on; the file grows to hold it. Readers meanwhile may see some of it.
    ///
    /// # Errors
    /// The store's; the HDD has no room. A part of the data may have been written.
    pub fn write_at(&self, data: &[u8], at: u64) -> Result<usize> {
        let end = at.checked_add(data.len() as u64).ok_or(ErrorKind::FileTooLarge)?;
        // Held to the end: what a truncation meanwhile left beyond the file's end would show when it grows.
        let mut writing = self.reaching(end)?;
        let (mut rest, mut at) = (data, at);
        while !rest.is_empty() {
            let (unit, within, bytes) = self.layout.part(at, rest.len());
            let (now, later) = rest.split_at(bytes);
            while !self.write_unit(unit, within, now)? {
                drop(writing);
                self.use_end(unit)?;
                writing = self.reaching(end)?;
            }
            (rest, at) = (later, at + bytes as u64);
        }
        Ok(data.len())
    }

    /// Lets the file reach to `end`, and keeps others from shortening it.
    fn reaching(&self, end: u64) -> Result<RwLockReadGuard<'_, Length>> {
        loop {
            let length = self.length.read();
            if end <= length.bytes {
                return Ok(length);
            }
            drop(length);
            self.resize(|now| now.max(end))?;
        }
    }

    /// Writes a part of a unit; returns whether it did. If not, its end is to be used first.
    fn write_unit(&self, unit: u64, within: usize, data: &[u8]) -> Result<bool> {
        let (page, last, end) =
            (self.page(self.layout.page_of(unit))?, self.layout.last(), within + data.len());
        let mut out = Out::Last;
        if data.len() as u64 == self.layout.unit {
            out = Layout::leave_out(data);
        } else {
            let mut page = self.store.get_or_create(page)?;
            if let (Out::Blank(_), _) = self.layout.out(&page) {
                let mut all = vec![0; self.layout.unit as usize];
                self.layout.take(&page, 0, &mut all);
                all[within..end].copy_from_slice(data);
                let out = Layout::leave_out(&all);
                if out != Out::Last {
                    self.layout.put(&mut page, out, &all);
                }
                return Ok(out != Out::Last);
            }
            if within < last {
                let here = &data[..data.len().min(last - within)];
                page[self.layout.head() + within..][..here.len()].copy_from_slice(here);
            }
        }
        if out == Out::Last && end > last {
            let (page, at) = self.layout.end_of(unit);
            let data = &data[last.saturating_sub(within)..];
            let mut page = self.store.get_or_create(self.page(page)?)?;
            page[at + end - data.len() - last..at + end - last].copy_from_slice(data);
        }
        if data.len() as u64 == self.layout.unit {
            // What the page held need not be read.
            self.layout.put(&mut self.store.overwrite(page)?, out, data);
        }
        Ok(true)
    }

    /// Leaves the contents of a unit as they are, but has its last chunk in the page with the ends. That
    /// page is durable first: after a crash, a page that leaves out its last chunk must not find there what
    /// another version of it left.
    fn use_end(&self, unit: u64) -> Result<()> {
        let _alone = self.length.write();
        let (mut all, (page, at)) = (vec![0; self.layout.unit as usize], self.layout.end_of(unit));
        self.read_unit(unit, 0, &mut all)?;
        let end = &all[self.layout.last()..];
        self.store.get_or_create(self.page(page)?)?[at..at + CHUNK].copy_from_slice(end);
        self.store.block_on(self.store.spaces().sync(self.space))?;
        let page = self.page(self.layout.page_of(unit))?;
        self.layout.put(&mut self.store.get_or_create(page)?, Out::Last, &all);
        Ok(())
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.length.read().bytes
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the length. New bytes are zeroes, and have room on the HDD; a crash before the next sync may
    /// show the earlier length, with any part of what is cut off.
    ///
    /// # Errors
    /// The store's; the HDD has no room.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.resize(|_| bytes)
    }

    fn resize(&self, to: impl FnOnce(u64) -> u64) -> Result<()> {
        let mut length = self.length.write();
        let bytes = to(length.bytes);
        let pages = self.pages(bytes)?;
        match bytes.cmp(&length.bytes) {
            std::cmp::Ordering::Less => self.cut(bytes)?,
            // Now, where it can be refused, rather than at a write in the middle of a commit.
            std::cmp::Ordering::Greater => {
                self.store.block_on(self.store.spaces().reserve(self.space, pages))?
            }
            std::cmp::Ordering::Equal => {}
        }
        length.bytes = bytes;
        Ok(())
    }

    /// Takes away what lies beyond the first `bytes` bytes. Its pages are free once the shorter length is
    /// durable: a crash in between must not leave the earlier length with holes.
    fn cut(&self, bytes: u64) -> Result<()> {
        let (kept, pages) = (self.pages(bytes)?, self.store.spaces().pages(self.space)?);
        let (unit, within, _) = self.layout.part(bytes, 0);
        let (ends, at) = self.layout.end_of(unit);
        // In pages that are kept, the header's excepted: of the last unit, and of the ends.
        let last = self.layout.last();
        if within > 0
            && let Some(page) = self.look(self.layout.page_of(unit))?
        {
            let mut all = vec![0; self.layout.unit as usize];
            let out = self.layout.take(&page, 0, &mut all);
            drop(page);
            if all[within..].iter().any(|byte| *byte != 0) {
                all[within..].fill(0);
                self.layout.put(
                    &mut self.store.get_or_create(self.page(self.layout.page_of(unit))?)?,
                    out,
                    &all,
                );
            }
        }
        let from = at + within.saturating_sub(last);
        if ends < u64::from(kept)
            && let Some(page) = self.look(ends)?
        {
            let is_blank = page[from..].iter().all(|byte| *byte == 0);
            drop(page);
            if !is_blank {
                self.store.get_or_create(self.page(ends)?)?[from..].fill(0);
            }
        }
        let beyond: Vec<PageId> = (kept..pages).map(|no| PageId::new(self.space, no)).collect();
        self.store.free_on_sync(&beyond)?;
        Ok(())
    }

    /// Makes everything durable that was written before this call, the length included.
    ///
    /// # Errors
    /// The store's.
    pub fn sync(&self) -> Result<()> {
        {
            let mut length = self.length.write();
            if length.recorded != length.bytes {
                self.put_header(length.bytes)?;
                length.recorded = length.bytes;
            }
        }
        Ok(self.store.block_on(self.store.spaces().sync(self.space))?)
    }

    /// Calls `act` while no write is in progress and none begins, with everything durable: for a backup of
    /// the store. One that is taken while an engine writes has pages of several moments, from which the
    /// engine cannot recover.
    ///
    /// # Errors
    /// The sync's.
    pub fn paused<T>(&self, act: impl FnOnce(&PageStore) -> T) -> Result<T> {
        let mut length = self.length.write();
        self.put_header(length.bytes)?;
        length.recorded = length.bytes;
        self.store.block_on(self.store.spaces().sync(self.space))?;
        Ok(act(&self.store))
    }

    /// Makes everything durable. The store stays open: it may have other files.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn close(&self) -> Result<()> {
        self.sync()
    }

    /// The number of pages of a file of `bytes` bytes, with the header.
    fn pages(&self, bytes: u64) -> Result<u32> {
        u32::try_from(self.layout.pages(bytes)).map_err(|_| ErrorKind::FileTooLarge.into())
    }

    fn page(&self, no: u64) -> Result<PageId> {
        let no = u32::try_from(no).map_err(|_| ErrorKind::FileTooLarge)?;
        Ok(PageId::new(self.space, no))
    }

    fn put_header(&self, bytes: u64) -> Result<()> {
        let mut page = self.store.get_or_create(PageId::new(self.space, 0))?;
        page[..MAGIC.len()].copy_from_slice(&MAGIC);
        page[MAGIC.len()..HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layout = Layout { unit: 4096, payload: 4064 };

    #[test]
    fn each_unit_and_each_end_has_a_place_of_its_own() {
        assert_eq!((SMALL.units(), SMALL.head(), SMALL.last()), (63, 32, 4032));
        assert_eq!(SMALL.part(2 * 4096 - 5, 9000), (1, 4091, 5));
        // The last unit of the first group, and the first of the second.
        assert_eq!((SMALL.page_of(62), SMALL.end_of(62)), (64, (1, 62 * 64)));
        assert_eq!((SMALL.page_of(63), SMALL.end_of(63)), (66, (65, 0)));
        let (mut pages, mut ends) =
            (std::collections::BTreeSet::from([0]), std::collections::BTreeSet::new());
        assert_eq!(SMALL.pages(0), 1);
        for unit in 0..300 {
            assert!(pages.insert(SMALL.page_of(unit)) && ends.insert(SMALL.end_of(unit)));
            assert!(!pages.contains(&SMALL.end_of(unit).0));
            assert_eq!(SMALL.pages(unit * 4096 + 1), SMALL.page_of(unit) + 1);
        }
    }

    #[test]
    fn a_unit_comes_out_of_its_page_in_any_pieces_as_it_went_in() {
        let full: Vec<u8> = (0..4096).map(|byte| (byte % 251 + 1) as u8).collect();
        assert_eq!(Layout::leave_out(&full), Out::Last);
        for chunk in 0..64 {
            let (mut unit, mut page) = (full.clone(), vec![9; 4064]);
            unit[chunk * CHUNK..][..CHUNK].fill(0);
            let out = Layout::leave_out(&unit);
            assert_eq!(out, Out::Blank(chunk as u16));
            SMALL.put(&mut page, out, &unit);
            for within in (0..4096).step_by(37) {
                for bytes in (0..4096 - within).step_by(53) {
                    let mut piece = vec![7; bytes];
                    assert_eq!(SMALL.take(&page, within, &mut piece), out);
                    assert!(piece == unit[within..within + bytes], "{bytes} bytes from {within} on");
                }
            }
        }
    }
}
