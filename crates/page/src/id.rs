//! Identifiers: a space, a page in it, and a position in the embedder's log.

use std::fmt;

/// A space: one database object (a table, an index). Ids are not reused after a drop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct SpaceId(pub u32);

/// A page: its space and its number in that space, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PageId {
    /// The space that the page belongs to; also the object by which CAC groups pages.
    pub space: SpaceId,
    /// The page's number in its space, from 0.
    pub no: u32,
}

impl PageId {
    /// Page `no` of space `space`.
    #[must_use]
    pub const fn new(space: SpaceId, no: u32) -> Self {
        Self { space, no }
    }

    /// Packs both parts into one word, with the space in the high half; sorts as the id does.
    #[inline]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.space.0 as u64) << 32 | self.no as u64
    }

    /// The inverse of [`PageId::to_u64`].
    #[inline]
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        Self { space: SpaceId((word >> 32) as u32), no: word as u32 }
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.space, self.no)
    }
}

/// The place of a record in the embedder's log, in the log's order. 0 means "before every record", so a
/// record's LSN is at least 1. The two largest values are reserved.
///
/// An LSN is **the position where its record starts, or the record's sequence number**. Wherever an API takes
/// or returns an LSN, the record *at* the LSN is included: a log gate makes it durable, `flush_to` writes its
/// pages, and the log that `redo_from` asks for begins with it. The end of the log is the LSN that the next
/// record will get.
///
/// If your LSNs are the positions where records *end*, the same rules apply to the record that ends there:
/// remove the log before an LSN only up to the **start** of the record that ends at it. Removing all bytes
/// before the LSN would remove a record that redo still needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The recovery LSN of a page that was created and not changed since: no record describes it, so redo
    /// needs none. Above every position of a log.
    pub const BLANK: Self = Self(u64::MAX - 1);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
