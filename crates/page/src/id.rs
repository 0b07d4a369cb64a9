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

/// A position in the embedder's log. Zero is "before every record".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
