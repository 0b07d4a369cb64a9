//! The on-disk format (`docs/format.md`): pure codecs, and the layout of the SSD. `protocol` decides which of
//! what is found on it counts.
//!
//! Begin with `layout`.

mod bytes;
pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod superblock;
