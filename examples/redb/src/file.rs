//! A file of bytes over a space of a store: for an engine that reads and writes a file at positions.
//!
//! Page 0 of the space is the header: a magic number and the file's length. From page 1 on the file's bytes
//! follow in units of the store's page size, each in a page of its own but for the last 32 bytes, whose room
//! the page's header takes. These are in the page in front of a group of units, which has the ends of them
//! all: 127 with pages of 4 KiB. An engine's page that is aligned in the file is thereby written without a
//! read of what was there, and read from one page and another one that is in memory, since so many share it;
//! if units were packed, every second one would lie in two pages that are far apart on the SSD. A page that
//! does not exist reads as zeroes, so a hole costs nothing.
//!
//! After a crash the file has what the last [`File::sync`] made durable, and any part of what was written
//! later, as a file of the system has. Its length is the durable one, and whatever lay beyond it is gone: a
//! file that grows again shows zeroes there, not the bytes that a crash left behind.

use pagetier::blocking::PageStore;
use pagetier::{PageId, SpaceId};
use parking_lot::RwLock;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The first bytes of the header. The last one is the version of this layout.
const MAGIC: [u8; 8] = *b"PTFILE\0\x02";

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
    /// The bytes of a page without its header: what a unit has in a page of its own.
    payload: u64,
}

/// Bytes of the file that lie in one page.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    page: u64,
    /// Where it begins in the page's payload.
    from: usize,
    bytes: usize,
}

impl Layout {
    /// The bytes of a unit that are not in its page.
    fn end(self) -> u64 {
        self.unit - self.payload
    }

    /// The units of a group.
    fn units(self) -> u64 {
        self.payload / self.end()
    }

    /// The page with the ends of the group that `unit` belongs to.
    fn ends_of(self, unit: u64) -> u64 {
        1 + unit / self.units() * (self.units() + 1)
    }

    fn page_of(self, unit: u64) -> u64 {
        self.ends_of(unit) + 1 + unit % self.units()
    }

    /// What of the `bytes` bytes from `at` on lies in the first page.
    fn piece(self, at: u64, bytes: usize) -> Piece {
        let (unit, within) = (at / self.unit, at % self.unit);
        let (page, from, room) = if within < self.payload {
            (self.page_of(unit), within, self.payload - within)
        } else {
            let from = unit % self.units() * self.end() + within - self.payload;
            (self.ends_of(unit), from, self.unit - within)
        };
        Piece { page, from: from as usize, bytes: bytes.min(room as usize) }
    }

    /// The number of pages of a file of `bytes` bytes, with the header.
    fn pages(self, bytes: u64) -> u64 {
        // The page after that of the last unit.
        bytes.div_ceil(self.unit).checked_sub(1).map_or(1, |last| self.page_of(last) + 1)
    }

    /// What lies beyond the first `bytes` bytes in the pages that these need: pages, and the positions in
    /// their payloads from which on they are to be blank.
    fn beyond(self, bytes: u64) -> impl Iterator<Item = (u64, usize)> {
        let (unit, within) = (bytes / self.unit, bytes % self.unit);
        let ends = unit % self.units() * self.end() + within.saturating_sub(self.payload);
        let pages = [(self.page_of(unit), within.min(self.payload)), (self.ends_of(unit), ends)];
        pages.into_iter().filter(move |(page, _)| *page < self.pages(bytes)).map(|(no, at)| (no, at as usize))
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
            None => store.spaces().create(name)?,
        };
        let size = store.store().page_size();
        let layout = Layout { unit: size.bytes() as u64, payload: size.payload_bytes() as u64 };
        let length = RwLock::new(Length { bytes: 0, recorded: 0 });
        let file = Self { store, space, layout, length };
        let header = PageId::new(space, 0);
        // A crash between the creation and the first sync leaves an empty space.
        if !file.store.exists(header) {
            file.put_header(0)?;
            file.store.spaces().sync(space)?;
            return Ok(file);
        }
        let page = file.store.get_or_create_owned(header)?;
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
        file.store.spaces().sync(space)?;
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
            let piece = self.layout.piece(at, rest.len());
            let (page, (now, later)) = (self.page(piece.page)?, rest.split_at_mut(piece.bytes));
            // A page that is to be freed still has its contents, which a truncation took from the file.
            match self.store.exists(page).then(|| self.store.get(page)) {
                Some(Ok(page)) => now.copy_from_slice(&page[piece.from..piece.from + piece.bytes]),
                None | Some(Err(pagetier::Error::NoSuchPage { .. })) => now.fill(0),
                Some(Err(error)) => return Err(error.into()),
            }
            (rest, at) = (later, at + piece.bytes as u64);
        }
        Ok(wanted)
    }

    /// Writes `data` from position `at` on; the file grows to hold it. A piece in one page is written as one;
    /// readers of several pages may see some of them.
    ///
    /// # Errors
    /// The store's; the HDD has no room. A part of the data may have been written.
    pub fn write_at(&self, data: &[u8], at: u64) -> Result<usize> {
        let end = at.checked_add(data.len() as u64).ok_or(ErrorKind::FileTooLarge)?;
        // Held to the end: what a truncation meanwhile left beyond the file's end would show when it grows.
        let _writing = loop {
            let length = self.length.read();
            if end <= length.bytes {
                break length;
            }
            drop(length);
            self.resize(|now| now.max(end))?;
        };
        let (mut rest, mut at) = (data, at);
        while !rest.is_empty() {
            let piece = self.layout.piece(at, rest.len());
            let (page, (now, later)) = (self.page(piece.page)?, rest.split_at(piece.bytes));
            let mut page = if piece.bytes as u64 == self.layout.payload {
                // Whole: what the page held need not be read.
                self.store.overwrite(page)?
            } else {
                self.store.get_or_create(page)?
            };
            page[piece.from..piece.from + piece.bytes].copy_from_slice(now);
            drop(page);
            (rest, at) = (later, at + piece.bytes as u64);
        }
        Ok(data.len())
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.length.read().bytes
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the length. New bytes are zeroes, and have room on the HDD; a crash before the next sync may show
    /// the earlier length, with any part of what is cut off.
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
            std::cmp::Ordering::Greater => self.store.spaces().reserve(self.space, pages)?,
            std::cmp::Ordering::Equal => {}
        }
        length.bytes = bytes;
        Ok(())
    }

    /// Takes away what lies beyond the first `bytes` bytes. Its pages are free once the shorter length is
    /// durable: a crash in between must not leave the earlier length with holes.
    fn cut(&self, bytes: u64) -> Result<()> {
        let (kept, pages) = (self.pages(bytes)?, self.store.spaces().pages(self.space)?);
        for (no, from) in self.layout.beyond(bytes) {
            let page = self.page(no)?;
            let is_blank = || -> Result<bool> {
                let page = self.store.get_or_create(page)?;
                Ok(page[from..].iter().all(|byte| *byte == 0))
            };
            if self.store.exists(page) && !is_blank()? {
                self.store.get_or_create(page)?[from..].fill(0);
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
        Ok(self.store.spaces().sync(self.space)?)
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
        self.store.spaces().sync(self.space)?;
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
    fn a_unit_is_in_its_page_and_its_end_in_that_of_its_group() {
        let piece = |page, from, bytes| Piece { page, from, bytes };
        assert_eq!(SMALL.units(), 127);
        assert_eq!(SMALL.piece(0, 4096), piece(2, 0, 4064));
        assert_eq!(SMALL.piece(4064, 32), piece(1, 0, 32));
        assert_eq!(SMALL.piece(2 * 4096 - 5, 9000), piece(1, 59, 5));
        // The last unit of the first group, and the first of the second.
        assert_eq!(SMALL.piece(126 * 4096 + 7, 10), piece(128, 7, 10));
        assert_eq!(SMALL.piece(127 * 4096 - 32, 32), piece(1, 126 * 32, 32));
        assert_eq!(SMALL.piece(127 * 4096, 1), piece(130, 0, 1));
        assert_eq!(SMALL.piece(128 * 4096 - 1, 1), piece(129, 31, 1));
    }

    #[test]
    fn each_byte_has_a_place_of_its_own_and_what_is_beyond_an_end_is_all_that_follows_it() {
        // Small enough to look at every byte: pages of 16 bytes, of which 12 are the payload.
        let layout = Layout { unit: 16, payload: 12 };
        let place = |at| {
            let Piece { page, from, .. } = layout.piece(at, 1);
            (page, from)
        };
        for bytes in 0..300 {
            let inside: std::collections::BTreeSet<_> = (0..bytes).map(place).collect();
            assert_eq!(inside.len() as u64, bytes);
            assert_eq!(
                layout.pages(bytes),
                inside.iter().map(|(page, _)| page + 1).max().unwrap_or(1).max(1)
            );
            let beyond: Vec<_> = layout.beyond(bytes).collect();
            for at in 0..500 {
                let (page, from) = place(at);
                let gone = page >= layout.pages(bytes)
                    || beyond.iter().any(|(cut, start)| *cut == page && from >= *start);
                assert_eq!(gone, at >= bytes, "byte {at} of a file of {bytes}");
            }
        }
    }
}
