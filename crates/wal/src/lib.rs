//! A write-ahead log for engines on Pagetier: page records, group commit, redo, fuzzy checkpoints.
//!
//! [`Wal`] is the log, and the store's [`LogGate`](pagetier::LogGate). An engine changes pages through a
//! [`MiniTx`], which writes one record for all of them. After a crash it calls [`redo`] before it reads a
//! page. [`checkpoint`] keeps the log short while the engine runs.
//!
//! Reading order: `record`, `media`, `segments`, `log`, `minitx`, `redo`, `checkpoint`.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published: a doc is written where a name does not say enough")]

mod checkpoint;
mod error;
mod log;
mod media;
mod minitx;
mod record;
mod redo;
mod segments;
#[cfg(test)]
mod tests;

pub use checkpoint::{CheckpointError, Keep, checkpoint};
pub use error::WalError;
pub use log::{Hold, Wal, WalLimits};
pub use media::{FileMedia, Media, MemoryMedia};
pub use minitx::MiniTx;
pub use redo::{RedoError, Redone, redo};
