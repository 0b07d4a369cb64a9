//! What a store promises: the versions that each page may read as, whatever is in progress. Nothing here
//! knows a device.
//!
//! Begin with `model`.

pub(crate) mod content;
pub(crate) mod model;
pub(crate) mod running;
