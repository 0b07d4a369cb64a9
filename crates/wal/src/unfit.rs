//! Whether a log is the one that the pages need, and goes as far as they need it.
//!
//! Pure: a store's record and what was found of a log go in, a decision comes out. `docs/recovery.md` (I45)
//! has the rules and why they suffice.

use crate::segments::{FIRST_LSN, Segment};
use pagetier::Lsn;
use pagetier::errors::Advice;
use pagetier::log::{LogMark, LogNeeds};

/// How far beyond the recorded end a log begins that takes the place of a lost one. The lost log may have
/// been longer than recorded, by a few segments and writes, which are far less.
const BEYOND: u64 = 1 << 40;

/// Why a log is not the one that the pages need. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitLog {
    /// The pages have a log, and the one that was opened is empty.
    #[error(
        "the log of these pages is missing: put it back in place of the empty one, or open with the \
         option accept_log_loss, which gives up every change that only the log has"
    )]
    Missing,
    /// The log belongs to other pages.
    #[error("the log is not the one of these pages: put the right one back")]
    Other {
        /// The log's identity.
        log: u64,
        /// The identity that the pages name.
        pages: u64,
    },
    /// The log is of a copy of this store, or of the store before it was copied or restored.
    #[error("the log is of another copy of this store: put back the one that this store wrote last")]
    OtherCopy {
        /// The ownership of the log's newest records.
        log: u64,
        /// The ownership that the pages name.
        pages: u64,
    },
    /// The log ends before what the pages need of it.
    #[error(
        "the log ends at {end}, and the store had written it up to {needed}: it is an older copy or has lost its \
         end; put the newest one back, or restore a backup"
    )]
    Short {
        /// The log's end.
        end: Lsn,
        /// How far it must reach.
        needed: Lsn,
    },
    /// The log begins after the first record that the pages need.
    #[error(
        "the log begins at {begins}, and the pages need it from {needed} on: records in between are missing; add \
         the older part, or restore a later backup"
    )]
    Gap {
        /// The log's start.
        begins: Lsn,
        /// The position from which the pages need it.
        needed: Lsn,
    },
    /// The log has records, and the pages name no log: the devices are blank, or another store's.
    #[error("the pages of this log are missing: put them back, or restore a backup")]
    NoPages,
    /// The SSD was given up, and the log does not reach back to the changes that only the SSD had: it was not
    /// kept for that ([`Keep::ForSsdLoss`](crate::Keep::ForSsdLoss)).
    #[error(
        "{pages} pages lost changes with the SSD, and the log does not go back far enough: restore a backup, or \
         put the SSD back"
    )]
    SsdLost {
        /// How many pages.
        pages: u64,
    },
}

impl UnfitLog {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            // The medium with the other half: attach it.
            Self::Missing | Self::Other { .. } | Self::OtherCopy { .. } | Self::NoPages => Advice::FixDevice,
            Self::Short { .. } | Self::Gap { .. } | Self::SsdLost { .. } => Advice::Restore,
        }
    }
}

/// What an opening found of a log.
pub(crate) struct Log<'a> {
    /// 0: the log is in memory, and no store can have known it.
    pub(crate) id: u64,
    /// Oldest first.
    pub(crate) segments: &'a [Segment],
    pub(crate) oldest: u64,
    pub(crate) end: u64,
}

/// The log fits the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    Yes,
    /// It takes the place of a lost one: its first record goes there.
    BeginsAt(u64),
}

/// Whether the log is the one that the pages need.
pub(crate) fn check(log: &Log<'_>, needs: &LogNeeds) -> Result<Fit, UnfitLog> {
    let has_records = log.segments.iter().any(|segment| !segment.is_empty);
    let fit = match needs.recorded {
        Some(_) if has_records || !needs.gives_up_log => fits_mark(log, needs.recorded)?,
        Some(mark) => return Ok(Fit::BeginsAt(mark.end.0.max(FIRST_LSN) + BEYOND)),
        // Redo would write its pages over those of the store, which was never logged, or is new.
        None if has_records && log.id != 0 && (needs.is_new || !needs.named_in_pages) => {
            return Err(UnfitLog::NoPages);
        }
        None => Fit::Yes,
    };
    // The record that *ends* at the position is needed, so the log must begin before it.
    let reaches = |from: Option<Lsn>| log.oldest == FIRST_LSN || from.is_some_and(|from| log.oldest < from.0);
    match needs.lost {
        Some((pages, from)) if pages > 0 && !reaches(from) => Err(UnfitLog::SsdLost { pages }),
        _ => Ok(fit),
    }
}

fn fits_mark(log: &Log<'_>, recorded: Option<LogMark>) -> Result<Fit, UnfitLog> {
    let Some(mark) = recorded else { return Ok(Fit::Yes) };
    if log.segments.is_empty() || log.id == 0 {
        return Err(UnfitLog::Missing);
    }
    if log.id != mark.id {
        return Err(UnfitLog::Other { log: log.id, pages: mark.id });
    }
    if log.end < mark.end.0 {
        return Err(UnfitLog::Short { end: Lsn(log.end), needed: mark.end });
    }
    if log.oldest > mark.from.0 {
        return Err(UnfitLog::Gap { begins: Lsn(log.oldest), needed: mark.from });
    }
    let other = |segment: &Segment| UnfitLog::OtherCopy { log: segment.generation, pages: mark.generation };
    // The segment with the recorded end. An opening that began an ownership and did not complete has left one
    // without records there, which names the ownership that the store has recorded.
    let until = log.segments.partition_point(|segment| segment.start <= mark.end.0);
    let Some((at_end, later)) = until.checked_sub(1).map(|at| (&log.segments[at], &log.segments[until..]))
    else {
        return Err(UnfitLog::Gap { begins: Lsn(log.oldest), needed: mark.from });
    };
    let begun = at_end.start == mark.end.0
        && at_end.previous == mark.generation
        && (at_end.is_empty || mark.restored);
    if at_end.generation != mark.generation && !begun {
        return Err(other(at_end));
    }
    // Records of a later ownership are those of another copy, or of the store when it was newer than this.
    let foreign = |segment: &&Segment| !segment.is_empty && segment.generation != mark.generation;
    match later.iter().find(foreign).filter(|_| !mark.restored) {
        Some(segment) => Err(other(segment)),
        None => Ok(Fit::Yes),
    }
}
