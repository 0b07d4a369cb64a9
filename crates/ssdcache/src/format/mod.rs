//! The on-disk format (`docs/format.md`): pure codecs.

mod bytes;
pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod superblock;
