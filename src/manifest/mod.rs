//! What the store records of itself: the manifest, and the HDD's superblock. What is recorded, how it is
//! encoded, and how a file of it is replaced; when to record, the callers decide.
//!
//! Begin with `contents` (the manifest), then `manifest_store` (where it is), `areas` (how a save survives a
//! crash), `file` (how a file gets its name) and `tail` (how a small change is appended).

mod apply;
pub(crate) mod areas;
pub(crate) mod changes;
pub(crate) mod contents;
pub(crate) mod extents;
pub(crate) mod file;
pub(crate) mod id;
pub(crate) mod manifest_store;
pub(crate) mod medium;
pub(crate) mod memory;
pub(crate) mod only_copies;
pub(crate) mod page_runs;
#[cfg(test)]
mod power_cuts;
pub(crate) mod saver;
pub(crate) mod superblock;
pub(crate) mod tail;
