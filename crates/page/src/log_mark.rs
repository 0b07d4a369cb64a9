//! What a store knows of its embedder's log.

use crate::Lsn;

/// What a store records of the log that its pages need. The next open compares it with the log that it
/// finds, before it changes anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogMark {
    /// The log's identity, drawn when it was created.
    pub id: u64,
    /// The generation under which the log's last records were written. Each open draws its own, so that
    /// copies of a store, whose logs share an identity, differ from the first open on.
    pub generation: u64,
    /// The log is durable at least up to here.
    pub end: Lsn,
    /// The pages may lack every change of a record that ends after this position.
    pub from: Lsn,
    /// The pages were restored from a backup and not opened since: the log may go on beyond what they know of
    /// it, also under later generations.
    pub restored: bool,
}

/// What an open needs of the embedder's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LogNeeds {
    /// What the store has recorded of its log; `None`: it had none, or an earlier version wrote it.
    pub recorded: Option<LogMark>,
    /// The number of this open of the store; it grows from open to open.
    pub epoch: u32,
    /// The store has no space, hence no page.
    pub is_new: bool,
    /// The pages name their log themselves, as earlier versions of `pagetier-wal` did.
    pub named_in_pages: bool,
    /// The number of pages that lost changes with an SSD, and the position that redo needs for them, if it
    /// is known.
    pub lost: Option<(u64, Option<Lsn>)>,
    /// The opener gives up the changes that only the log has.
    pub gives_up_log: bool,
    /// The store is opened for reading only: nothing may change.
    pub reads_only: bool,
}
