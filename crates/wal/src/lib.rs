#![doc = include_str!("../README.md")]
//!
//! Reading order of the source: `record`, `media`, `appending`, `device_media`, `log::segments`, `log`,
//! `log::minitx`, `log::frees`, `recovery::redo`, `recovery::recover`, `checkpoint`, `log::archive`, `until`,
//! `logged`.

#![forbid(unsafe_code)]
mod appending;
mod archive;
pub mod blocking;
mod checkpoint;
mod copy;
mod device_media;
mod error;
mod guard;
mod log;
mod logged;
mod media;
mod options;
mod record;
mod recovery;
#[cfg(test)]
mod testing;
mod until;

pub use archive::Archived;
pub use checkpoint::checkpoint;
pub use copy::copy_log;
pub use device_media::DeviceMedia;
pub use error::{ArchiveError, CheckpointError, Moment, WalError};
pub use guard::Guard;
pub use log::Wal;
pub use log::minitx::MiniTx;
pub use log::room::RedoSpan;
pub use log::truncate::Hold;
pub use log::unfit::UnfitLog;
pub use logged::{LoggedBackupError, LoggedStore};
pub use media::{FileMedia, Media, MemoryMedia};
pub use options::{Keep, WalOptions};
pub use recovery::recover::{RecoverError, recover};
pub use recovery::redo::{Recovered, RedoError};
pub use until::Until;
