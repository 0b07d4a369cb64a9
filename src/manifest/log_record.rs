//! What the manifest says of the embedder's log.

use pagetier_page::{LogMark, Lsn};
use serde::{Deserialize, Serialize};

/// A [`LogMark`], as the manifest writes it.
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
