#![doc = include_str!("../README.md")]
//!
//! Reading order of the source: `record`, `media`, `device_media`, `segments`, `log`, `minitx`, `frees`,
//! `redo`, `recover`, `checkpoint`, `logged`.

#![forbid(unsafe_code)]
pub mod blocking;
mod checkpoint;
mod copy;
mod device_media;
mod error;
mod frees;
mod guard;
mod identity;
mod log;
mod logged;
mod media;
mod minitx;
mod options;
mod record;
mod recover;
mod redo;
mod segments;
#[cfg(test)]
mod testing;
mod unfit;

pub use checkpoint::checkpoint;
pub use copy::copy_log;
pub use device_media::DeviceMedia;
pub use error::{CheckpointError, WalError};
pub use guard::Guard;
pub use log::{Hold, Wal};
pub use logged::{LoggedBackupError, LoggedStore};
pub use media::{FileMedia, Media, MemoryMedia};
pub use minitx::MiniTx;
pub use options::{Keep, WalOptions};
pub use recover::{RecoverError, recover};
pub use redo::{Recovered, RedoError};
pub use unfit::UnfitLog;
