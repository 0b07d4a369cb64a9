//! Whether a log is the one that the pages need, and goes as far as they need it.
//!
//! Pure: a store's record and what was found of a log go in, a decision comes out. `docs/log.md` (I45)
//! has the rules and why they suffice.

use crate::log::segments::{FIRST_LSN, Segment};
use pagetier::Lsn;
use pagetier::errors::Advice;
use pagetier::log::{LogMark, LogNeeds};

/// How far beyond the recorded end a log begins that takes the place of a lost one. The lost log may have
/// been longer than recorded, by a few segments and writes, which are far less.
const BEYOND: u64 = 1 << 40;

/// Where the log of a store begins that had none, or one that it does not know: beyond the LSNs of its pages.
const ADOPTED: u64 = 1 << 60;

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
        /// The generation of the log's newest records.
        log: u64,
        /// The generation that the pages name.
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

/// What an open found of a log.
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
        Some(mark) => match fits_mark(log, &mark) {
            Ok(()) => Fit::Yes,
            Err(_) if needs.gives_up_log && !has_records => Fit::begins_beyond(mark.end.0),
            Err(unfit) => return Err(unfit),
        },
        // One in memory is of this process, as its pages are.
        None if log.id == 0 || needs.is_new && !has_records => Fit::Yes,
        // Redo would write its pages over those of the store, which was never logged, or is new.
        None if has_records && !needs.named_in_pages => return Err(UnfitLog::NoPages),
        // Which one, `recover` reads there.
        None if needs.named_in_pages && (has_records || !needs.gives_up_log) => Fit::Yes,
        // Of the pages' LSNs, which another log may have set, nothing is known.
        None => Fit::begins_beyond(ADOPTED),
    };
    // The record that *ends* at the position is needed, so the log must begin before it.
    // (A log without records says nothing of pages that were not logged in it.)
    let is_whole = log.oldest == FIRST_LSN && (has_records || needs.recorded.is_some());
    let reaches = |from: Option<Lsn>| is_whole || from.is_some_and(|from| log.oldest < from.0);
    match needs.lost {
        Some((pages, from)) if pages > 0 && !needs.gives_up_log && !reaches(from) => {
            Err(UnfitLog::SsdLost { pages })
        }
        _ => Ok(fit),
    }
}

impl Fit {
    fn begins_beyond(end: u64) -> Self {
        Self::BeginsAt(end.max(FIRST_LSN).saturating_add(BEYOND))
    }
}

fn fits_mark(log: &Log<'_>, mark: &LogMark) -> Result<(), UnfitLog> {
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
    // The segment with the recorded end. If it begins there, it may be one that an incomplete open began,
    // which has no record, or that of the generation after the backup from which the pages come. It names the
    // generation that the store had recorded, whose own segment it replaced if that had no record; or it
    // replaced one that did, and the segment before it is of the recorded generation.
    let until = log.segments.partition_point(|segment| segment.start <= mark.end.0);
    let (known, later) = log.segments.split_at(until);
    let Some((at_end, before)) = known.split_last() else {
        return Err(UnfitLog::Gap { begins: Lsn(log.oldest), needed: mark.from });
    };
    let follows = at_end.start == mark.end.0
        && (at_end.is_empty || mark.restored)
        && (at_end.previous == mark.generation
            || before.last().is_some_and(|before| before.generation == mark.generation));
    let is_of_mark = |segment: &Segment| segment.generation == mark.generation;
    // Records of a later generation are those of another copy, or of the store when it was newer than this.
    let later = later.iter().find(|segment| !segment.is_empty && !is_of_mark(segment) && !mark.restored);
    let other = Some(at_end).filter(|at_end| !is_of_mark(at_end) && !follows).or(later);
    match other {
        Some(segment) => Err(UnfitLog::OtherCopy { log: segment.generation, pages: mark.generation }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn segment(start: u64, generation: u64, previous: u64, is_empty: bool) -> Segment {
        Segment { start, generation, previous, is_empty }
    }

    fn mark(generation: u64, end: u64, from: u64) -> LogMark {
        LogMark { id: 1, generation, end: Lsn(end), from: Lsn(from), restored: false }
    }

    fn judged(segments: &[Segment], end: u64, recorded: Option<LogMark>) -> Result<Fit, UnfitLog> {
        let oldest = segments.first().map_or(FIRST_LSN, |first| first.start);
        let mut needs = LogNeeds::default();
        needs.recorded = recorded;
        check(&Log { id: 1, segments, oldest, end }, &needs)
    }

    #[test]
    fn the_right_log_passes_wherever_an_opening_was_interrupted() {
        let recorded = Some(mark(7, 500, 100));
        let own = segment(64, 7, 3, false);
        for left in [
            vec![own],
            // A generation that was begun in the log and not recorded, once and twice.
            vec![own, segment(600, 8, 7, true)],
            vec![own, segment(500, 8, 7, true)],
            vec![own, segment(500, 9, 8, true)],
            // The last recorded one had no record, and its segment was replaced.
            vec![segment(64, 3, 0, false), segment(500, 7, 3, true)],
            // And so was that of the open after it.
            vec![segment(64, 3, 0, false), segment(500, 8, 7, true)],
            // Whose segment is the only one left.
            vec![segment(500, 9, 7, true)],
        ] {
            let recorded = recorded.map(|mark| LogMark { from: Lsn(mark.from.0.max(left[0].start)), ..mark });
            assert_eq!(judged(&left, 600, recorded), Ok(Fit::Yes), "{left:?}");
        }
    }

    #[test]
    fn another_log_does_not() {
        let own = segment(64, 7, 3, false);
        let cases = [
            (vec![], 64, UnfitLog::Missing),
            (vec![own], 499, UnfitLog::Short { end: Lsn(499), needed: Lsn(500) }),
            (vec![segment(101, 7, 3, false)], 600, UnfitLog::Gap { begins: Lsn(101), needed: Lsn(100) }),
            (vec![segment(64, 6, 3, false)], 600, UnfitLog::OtherCopy { log: 6, pages: 7 }),
            (vec![own, segment(500, 8, 7, false)], 600, UnfitLog::OtherCopy { log: 8, pages: 7 }),
            (vec![own, segment(550, 8, 7, false)], 600, UnfitLog::OtherCopy { log: 8, pages: 7 }),
        ];
        for (segments, end, expected) in cases {
            assert_eq!(judged(&segments, end, Some(mark(7, 500, 100))), Err(expected), "{segments:?}");
        }
        assert_eq!(judged(&[own], 600, None), Err(UnfitLog::NoPages));
    }

    #[test]
    fn restored_pages_take_a_log_that_goes_on() {
        let restored = Some(LogMark { restored: true, ..mark(7, 500, 100) });
        let own = segment(64, 7, 3, false);
        for later in [
            vec![own, segment(500, 8, 7, false), segment(600, 9, 8, false)],
            // After an open without a commit, whose segment was replaced.
            vec![own, segment(500, 9, 8, false)],
        ] {
            assert_eq!(judged(&later, 700, restored), Ok(Fit::Yes), "{later:?}");
        }
        let other = judged(&[segment(64, 6, 3, false), segment(500, 9, 8, false)], 700, restored);
        assert_eq!(other, Err(UnfitLog::OtherCopy { log: 9, pages: 7 }));
    }

    #[test]
    fn a_log_that_is_given_up_or_adopted_begins_beyond_all_lsns() {
        let mut needs = LogNeeds::default();
        needs.recorded = Some(mark(7, 500, 100));
        let blank = Log { id: 2, segments: &[], oldest: FIRST_LSN, end: FIRST_LSN };
        assert_eq!(check(&blank, &needs), Err(UnfitLog::Missing));
        needs.gives_up_log = true;
        needs.lost = Some((3, None));
        assert_eq!(check(&blank, &needs), Ok(Fit::BeginsAt(500 + BEYOND)));
        // The right one is taken nevertheless.
        let own = [segment(64, 7, 3, false)];
        let right = Log { id: 1, segments: &own, oldest: FIRST_LSN, end: 500 };
        assert_eq!(check(&right, &needs), Ok(Fit::Yes));
        // A store that never had one, and one that has lost its SSD, too.
        let mut adopts = LogNeeds::default();
        assert_eq!(check(&blank, &adopts), Ok(Fit::BeginsAt(ADOPTED + BEYOND)));
        adopts.lost = Some((3, None));
        assert_eq!(check(&blank, &adopts), Err(UnfitLog::SsdLost { pages: 3 }));
        // Of a store whose pages name the log, the right one has records, and keeps them.
        let mut older = LogNeeds::default();
        (older.named_in_pages, older.gives_up_log) = (true, true);
        assert_eq!(check(&right, &older), Ok(Fit::Yes));
        assert_eq!(check(&blank, &older), Ok(Fit::BeginsAt(ADOPTED + BEYOND)));
        let mut new = LogNeeds::default();
        new.is_new = true;
        assert_eq!(check(&blank, &new), Ok(Fit::Yes));
    }
}
