//! What a device has to know of its process: limits on files, and whether it was forked. Nothing here opens
//! or reads a file.
//!
//! Begin with `owner`.

pub(crate) mod limits;
pub(crate) mod owner;
