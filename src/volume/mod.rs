//! The HDD as one volume for all spaces: which pages exist, and where their homes are. In memory alone, and
//! without I/O; `spaces` changes it, and records the changes in the manifest.
//!
//! Begin with `table` (`Volume`); `growth_plan` and `placement` decide where a space grows.

pub(crate) mod arriving;
pub(crate) mod growth_plan;
pub(crate) mod hdd_ring;
pub(crate) mod loss;
mod placement;
mod space_entry;
pub(crate) mod space_hints;
pub(crate) mod table;
