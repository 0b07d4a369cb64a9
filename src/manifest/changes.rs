//! Small changes of the manifest, each a record in its tail, and which space changes may use.

use pagetier_page::{LogMark, Lsn};
use serde::{Deserialize, Serialize};

/// The maximum number of page runs in a record, so that the record fits into a block.
pub(crate) const CHANGE_RUNS_MAX: usize = 128;

/// The minimum space that an area has beyond its contents, in bytes, so that the store can still record
/// changes when its disk is full (I36).
pub(crate) const SLACK_BYTES: usize = 16 << 10;

/// What a save may do with the slack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slack {
    /// Preserve it: the contents name more than before.
    Keep,
    /// Use at most half of it: freeing pages must work on a full disk, but must not consume all of the slack.
    Half,
    /// Use it: the contents name nothing new, or must be recorded in any case.
    Use,
}

impl Slack {
    /// The space that the save must leave, in bytes.
    pub(crate) fn left(self) -> usize {
        match self {
            Self::Keep => SLACK_BYTES,
            Self::Half => SLACK_BYTES / 2,
            Self::Use => 0,
        }
    }
}

/// A record in the tail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its number among the tail's records, from 0.
    pub(crate) n: u64,
    /// The manifest's generation once the record is applied.
    pub(crate) generation: u64,
    pub(crate) change: Change,
}

/// A change small enough to be appended to the manifest instead of replacing it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Add {
        space: u32,
        name: String,
    },
    /// A space gets extents (first, count), at its end or in a hole from its extent `at` on. They were free,
    /// or are new ones at the volume's end.
    Grow {
        space: u32,
        run: (u64, u64),
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<u64>,
    },
    /// Pages (first, count) of a space cease to exist.
    Free {
        space: u32,
        pages: Vec<(u32, u32)>,
    },
    /// Freed pages (first, count) exist again.
    Reuse {
        space: u32,
        pages: Vec<(u32, u32)>,
    },
    /// Extents of a space (first in the space, count) become free; all of their pages were.
    GiveBack {
        space: u32,
        extents: (u64, u64),
    },
    /// A space keeps its first `extents` extents; the others, which are beyond its last number, become free.
    Cut {
        space: u32,
        extents: u64,
    },
    /// A space is to be dropped: the next open completes that.
    BeginDrop {
        space: u32,
    },
    /// A space that was to be dropped is gone, and its extents are free.
    EndDrop {
        space: u32,
    },
    /// What is known of the embedder's log.
    Log(LogRecord),
}

/// What the manifest says of the embedder's log: a [`LogMark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogRecord {
    id: u64,
    generation: u64,
    end: u64,
    from: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    restored: bool,
}

impl From<LogMark> for LogRecord {
    fn from(LogMark { id, generation, end, from, restored }: LogMark) -> Self {
        Self { id, generation, end: end.0, from: from.0, restored }
    }
}

impl From<LogRecord> for LogMark {
    fn from(LogRecord { id, generation, end, from, restored }: LogRecord) -> Self {
        Self { id, generation, end: Lsn(end), from: Lsn(from), restored }
    }
}

impl LogRecord {
    /// This record with what `newer` adds; `None` if that is nothing. Of two that arrive out of order, the
    /// one that says less must not take back what the other has said.
    pub(crate) fn advanced(self, newer: Self) -> Option<Self> {
        let mut next = newer;
        if self.id == newer.id && self.generation == newer.generation {
            next.end = self.end.max(newer.end);
            next.from = self.from.max(newer.from);
        }
        Some(next).filter(|next| *next != self)
    }

    /// The record of pages that a backup restores.
    pub(crate) fn restored(self) -> Self {
        Self { restored: true, ..self }
    }
}
