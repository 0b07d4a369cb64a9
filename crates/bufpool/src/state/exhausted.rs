//! Why no frame became free.

use crate::tier::{GateError, TierError};
use pagetier_devio::Causes;
use pagetier_page::PageId;
use std::fmt;

/// Why every frame stayed pinned or dirty. See [`PoolError::Exhausted`](crate::PoolError::Exhausted).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Exhausted {
    /// Guards pin most frames: drop some, or give the pool more memory.
    Pinned {
        /// The number of pinned frames.
        pinned: usize,
        /// Some of their pages.
        pages: Vec<PageId>,
    },
    /// The embedder's log could not be made durable, so dirty pages stay in memory.
    Log {
        /// The number of dirty frames.
        dirty: usize,
        /// The gate's last error.
        source: GateError,
    },
    /// Dirty pages could not be written.
    Storage {
        /// The number of dirty frames.
        dirty: usize,
        /// The last error.
        source: TierError,
    },
    /// The runtime that the store was opened on does not run, so its page cleaner does not either.
    NotDriven {
        /// The number of dirty frames.
        dirty: usize,
    },
    /// Nothing failed: the devices, or the log gate, were too slow.
    Slow {
        /// The number of dirty frames.
        dirty: usize,
        /// The number of frames that are being written.
        writing: usize,
        /// The number of pinned frames.
        pinned: usize,
    },
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned { pinned, pages } => {
                write!(f, "guards hold {pinned} of them (drop some, or enlarge the pool), such as those of")?;
                pages.iter().try_for_each(|page| write!(f, " {page}"))
            }
            Self::Log { dirty, source } => {
                let why = Causes(&**source);
                write!(f, "{dirty} are dirty, and the log cannot be made durable: {why}")
            }
            Self::Storage { dirty, source } => {
                write!(f, "{dirty} are dirty, and cannot be written: {}", Causes(source))
            }
            Self::NotDriven { dirty } => {
                write!(f, "{dirty} are dirty, and nothing writes them: the store's runtime does not run")
            }
            Self::Slow { dirty, writing, pinned } => {
                write!(f, "{dirty} dirty, {writing} being written, {pinned} held by guards: slow devices")
            }
        }
    }
}
