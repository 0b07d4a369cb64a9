//! Why no frame became free.

use crate::inner::Inner;
use crate::params::PoolError;
use crate::tier::{GateError, Tier, TierError};
use pagetier_page::PageId;
use std::fmt;
use std::sync::atomic::Ordering;

/// The maximum number of pages that [`Exhausted::Pinned`] names.
const PAGES_MAX: usize = 8;

/// Why every frame stayed pinned or dirty. See [`PoolError::Exhausted`].
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
                write!(f, "guards pin {pinned} of them, for example of")?;
                pages.iter().try_for_each(|page| write!(f, " {page}"))
            }
            Self::Log { dirty, source } => {
                write!(f, "{dirty} are dirty, and the log cannot be made durable: {source}")
            }
            Self::Storage { dirty, source } => {
                write!(f, "{dirty} are dirty, and cannot be written: {source}")
            }
            Self::NotDriven { dirty } => {
                write!(f, "{dirty} are dirty, and the runtime that the store was opened on does not run")
            }
            Self::Slow { dirty, writing, pinned } => {
                write!(f, "{dirty} are dirty, {writing} being written, {pinned} pinned: the devices are slow")
            }
        }
    }
}

impl<T: Tier> Inner<T> {
    /// Diagnoses a wait for a frame that began when the cleaner had done `rounds` rounds.
    pub(crate) fn why_exhausted(&self, rounds: u64) -> Exhausted {
        let frames = &self.frames;
        let (mut dirty, mut writing, mut pages) = (0, 0, Vec::new());
        let mut pinned = 0;
        for frame in frames.all.iter() {
            dirty += usize::from(frame.word.is_dirty());
            writing += usize::from(frame.word.is_cleaning());
            if frame.word.pins() > 0 {
                pinned += 1;
                pages.extend(frame.page().filter(|_| pages.len() < PAGES_MAX));
            }
        }
        if pinned * 2 > frames.count() || dirty + writing == 0 {
            return Exhausted::Pinned { pinned, pages };
        }
        match self.last_failure.lock().clone() {
            Some(PoolError::Log { source, .. }) => Exhausted::Log { dirty, source },
            Some(PoolError::Tier(source)) => Exhausted::Storage { dirty, source },
            _ if self.rounds.load(Ordering::Relaxed) == rounds => Exhausted::NotDriven { dirty },
            _ => Exhausted::Slow { dirty, writing, pinned },
        }
    }
}
