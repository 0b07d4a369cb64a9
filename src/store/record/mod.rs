//! What the open store records in its manifest: changes, what failed flushes left unverified, and frees that
//! share a record. How a record is encoded and replaced is in `manifest`.
//!
//! Begin with `manifest_state`, through which every change goes.

pub(crate) mod manifest_state;
pub(crate) mod unverified;
pub(crate) mod waiting_frees;
