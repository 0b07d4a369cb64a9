//! The backups and other files of a session.

use super::model::Model;
use pagetier::SsdLoss;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// A backup, and the model at its beginning and at its end.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) number: u32,
    pub(super) full: bool,
    pub(super) before: Model,
    pub(super) after: Model,
    /// The losses reported at its beginning and at its end.
    pub(super) losses: [Option<SsdLoss>; 2],
}

/// The backups of a session.
pub(super) type Backups = Arc<Mutex<Vec<Taken>>>;

/// Where the files of a session go.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) dir: PathBuf,
    /// Where to list the backups; `None`: none are taken.
    pub(super) backups: Option<Backups>,
}
