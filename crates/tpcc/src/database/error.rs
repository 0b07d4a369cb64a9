//! The errors of the database.

use crate::database::schema::Table;
use pagetier_btree::TreeError;
use pagetier_wal::{CheckpointError, RecoverError, WalError};

/// An error of the database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// A tree failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
    #[error("the log cannot be redone")]
    Recover(#[from] RecoverError),
    /// A checkpoint failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A row that must exist does not.
    #[error("{table:?} has no row {key:02x?}")]
    MissingRow { table: Table, key: Vec<u8> },
    /// A commit record is malformed.
    #[error("a commit in the log cannot be read")]
    BadCommit,
    /// The store holds data of another program or version.
    #[error("the store is another program's: {0}")]
    NotOurs(String),
    /// A transaction failed or was dropped after its commit, so the rows in memory are behind the log;
    /// reopening repairs that.
    #[error("the database stopped: a commit was not applied completely; open it again to recover")]
    Stopped,
}
