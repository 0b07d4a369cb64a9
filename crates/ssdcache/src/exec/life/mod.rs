//! What becomes of the SSD while the store works: checkpoints of its map, its drain, exchange, loss and
//! return. How it is found at an open is in `open`.
//!
//! Begin with `quiet`: an exchange waits there for everything in progress.

pub(crate) mod drain;
mod map_checkpoint;
pub(crate) mod quiet;
pub(crate) mod readmit;
