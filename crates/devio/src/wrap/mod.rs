//! Devices around other devices: none has bytes of its own. An overlay, which has, is in `ram`.
//!
//! Begin with `fence`, the outermost device of a store.

pub(crate) mod fence;
pub(crate) mod joint;
pub(crate) mod spliced;
