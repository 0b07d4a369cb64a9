//! Devices whose bytes, or writes, stay in memory. Those that fail or lose bytes are in `pagetier-testing`.
//!
//! Begin with `memory`.

pub(crate) mod image;
pub(crate) mod memory;
pub(crate) mod overlay;
