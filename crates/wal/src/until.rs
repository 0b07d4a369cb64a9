//! Restorations to a moment: the log of a backup and the archive make one log, which ends there.
//!
//! Everything is read and checked before anything is written. What is read: the backup's copy of the log,
//! whose end *e* is the earliest moment, since the pages were copied at different ones before; then the
//! archive, from the segment with *e* on. That must begin with the bytes that the backup has of it, so it is
//! of the timeline of the backup's pages.

use crate::archive::{self, ms_since_epoch};
use crate::copy;
use crate::error::{ArchiveError, Moment, WalError};
use crate::log::segments::{Segment, split, with_prefix};
use crate::media::{FileMedia, Media, drawn_id};
use crate::record::{self, Kind, Records};
use pagetier::Lsn;
use pagetier_devio::files::RealDir;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The moment to which a store is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Until {
    /// The end of what backup and archive have.
    End,
    /// The last record that ends at this position or before.
    Lsn(Lsn),
    /// Every commit that was confirmed by this time, to the millisecond, and none that began later.
    Time(SystemTime),
}

/// Where the bytes of a segment are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Backup,
    Archive,
}

/// A backup's log and an archive, opened for reading.
pub(crate) struct Line {
    backup: FileMedia,
    archive: FileMedia,
    path: PathBuf,
    /// The segments to the end of both, oldest first.
    segments: Vec<(From, u64)>,
    /// The backup's last segment, and its bytes.
    last: (Segment, Vec<u8>),
    /// The earliest moment: the end of the backup's log.
    first: u64,
}

/// What a walk along the segments has found.
#[derive(Default)]
struct Found {
    /// The end of the last record before the moment.
    end: u64,
    /// The last time before the moment, and the end of its record.
    mark: Option<(u64, u64)>,
    /// The first time after the backup's end.
    first_ms: Option<u64>,
    /// Something lies beyond the moment.
    stopped: bool,
}

impl Line {
    /// Opens both, and compares the archive with the backup's end. Blocks.
    pub(crate) fn open(backup: &Path, archive: &Path) -> Result<Self, WalError> {
        let reading = |path: &Path| RealDir::open(path).and_then(|dir| FileMedia::reading(Arc::new(dir)));
        let path = archive.to_owned();
        let failed = |source| ArchiveError::Io { path: path.clone(), source: Arc::new(source) };
        let (mut log, mut archive) =
            (reading(backup).map_err(copy::at(backup))?, reading(archive).map_err(failed)?);
        let (mut starts, mut later) =
            (log.list().map_err(copy::at(backup))?, archive.list().map_err(failed)?);
        if log.id() != archive.id() && !later.is_empty() {
            return Err(ArchiveError::OtherLog { path, archive: archive.id(), log: log.id() }.into());
        }
        starts.sort_unstable();
        later.sort_unstable();
        let Some(start) = starts.pop() else {
            return Err(copy::at(backup)(io::Error::new(
                io::ErrorKind::NotFound,
                "it has no segment of a log",
            )));
        };
        let whole = log.read(start).map_err(copy::at(backup))?;
        let (segment, records) = sound(start, whole.clone(), &log)?;
        later.retain(|later| start <= *later);
        if !later.contains(&start) {
            starts.push(start);
        } else if !is_one_line(&mut log, &mut archive, (segment, &whole), starts.last())? {
            return Err(ArchiveError::OtherTimeline { path: archive.path(start) }.into());
        }
        let both = starts.into_iter().map(|start| (From::Backup, start));
        let segments = both.chain(later.into_iter().map(|start| (From::Archive, start))).collect();
        let first = start + records.len() as u64;
        Ok(Self { backup: log, archive, path, segments, last: (segment, whole), first })
    }

    /// A segment, its records, and where it ends.
    fn read(&mut self, (from, start): (From, u64)) -> Result<(Segment, Vec<u8>, u64), WalError> {
        let (bytes, end) = match from {
            From::Archive => {
                archive::read(&mut self.archive, start).map(|(bytes, end)| (bytes, Some(end)))?
            }
            From::Backup if start == self.last.0.start => (self.last.1.clone(), None),
            From::Backup => {
                let path = self.backup.path(start);
                (self.backup.read(start).map_err(copy::at(&path))?, None)
            }
        };
        let media = if from == From::Archive { &self.archive } else { &self.backup };
        let (segment, records) = sound(start, bytes, media)?;
        let sound_end = start + records.len() as u64;
        if end.is_some_and(|end| end != sound_end) {
            return Err(ArchiveError::Damaged { path: media.path(start) }.into());
        }
        Ok((segment, records, sound_end))
    }

    /// Reads the segments up to the moment, each of which must begin where the one before it ends.
    fn walk(&mut self, until: Until) -> Result<Found, WalError> {
        let mut found = Found::default();
        for (from, start) in self.segments.clone() {
            if found.end != start && found.end > 0 {
                let (path, ends, begins) = (self.path.clone(), Lsn(found.end), Lsn(start));
                return Err(ArchiveError::Gap { path, ends, begins }.into());
            }
            found.end = start;
            let (_, records, _) = self.read((from, start))?;
            for record in Records::new(start, &records) {
                // Earlier ones say nothing: what they precede is in the pages. The clock may have gone back.
                let is_mark = record.kind == Kind::Mark && record.lsn >= self.first;
                let ms = is_mark.then(|| record::u64_at(record.body, 0));
                let is_beyond = |ms: u64| matches!(until, Until::Time(time) if ms > ms_since_epoch(time));
                found.stopped = match until {
                    Until::End => false,
                    Until::Lsn(lsn) => record.lsn > lsn.0,
                    Until::Time(_) => record.lsn > self.first && ms.is_some_and(is_beyond),
                };
                if found.stopped {
                    return Ok(found);
                }
                found.end = record.lsn;
                found.mark = ms.filter(|ms| !is_beyond(*ms)).map(|ms| (ms, record.lsn)).or(found.mark);
                found.first_ms = found.first_ms.or(ms);
            }
        }
        Ok(found)
    }

    /// The earliest and the latest moment. Blocks.
    pub(crate) fn span(&mut self) -> Result<(Moment, Moment), WalError> {
        let found = self.walk(Until::End)?;
        let at = |lsn: u64, ms: Option<u64>| Moment {
            lsn: Lsn(lsn),
            time: ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
        };
        Ok((at(self.first, found.first_ms), at(found.end, found.mark.map(|(ms, _)| ms))))
    }

    /// Where the log ends of a store that is restored to this moment. Blocks.
    pub(crate) fn end_at(&mut self, until: Until) -> Result<u64, WalError> {
        let found = self.walk(until)?;
        let (end, reaches) = match until {
            Until::End => (found.end, true),
            // There may be no record at all up to there.
            Until::Lsn(lsn) => (found.end.min(lsn.0), found.stopped || found.end >= lsn.0),
            Until::Time(time) => {
                let (ms, end) = found.mark.unwrap_or_default();
                (end, found.stopped || ms == ms_since_epoch(time))
            }
        };
        if reaches && end >= self.first {
            return Ok(end);
        }
        // The answer names a moment that there is.
        let (earliest, latest) = self.span()?;
        Err(if reaches { ArchiveError::TooEarly { earliest } } else { ArchiveError::TooLate { latest } }
            .into())
    }

    /// Makes the log that ends at `end` in the new directory `to`; returns its identity. That is a new one:
    /// what is appended to it is not of the archive's log, though it begins in the middle of that. Blocks.
    pub(crate) fn copy(&mut self, to: &Path, end: u64) -> Result<u64, WalError> {
        let id = drawn_id();
        let all: Vec<_> = self.segments.iter().copied().filter(|(_, start)| *start <= end).collect();
        let starts = all.iter().map(|(_, start)| *start).collect();
        let mut all = all.into_iter();
        let format = self.backup.format(0).max(self.archive.format(0));
        copy::copy(&RealDir::working(), to, (id, format), starts, |start| {
            let from = all.next().map_or(From::Archive, |(from, _)| from);
            let (segment, mut records, _) = self.read((from, start))?;
            records.truncate((end - start) as usize);
            // The pages know their log by this segment. The archive's is another one if the backup's had no
            // record, and an open after the backup began its generation there.
            let segment = if start == self.last.0.start { self.last.0 } else { segment };
            Ok(with_prefix(segment, &records))
        })?;
        Ok(id)
    }
}

/// Whether the archive has the history of the backup, whose last segments these are.
fn is_one_line(
    log: &mut FileMedia,
    archive: &mut FileMedia,
    (last, whole): (Segment, &[u8]),
    before: Option<&u64>,
) -> Result<bool, WalError> {
    let (theirs, _) = archive::read(archive, last.start)?;
    if whole.len() > with_prefix(last, &[]).len() {
        return Ok(theirs.starts_with(whole));
    }
    // Without a record, the last segment says nothing of the pages: an open after the backup has begun its
    // generation in its place. The one before has the newest record, unless the archive begins here.
    if let Some(&before) = before {
        let mine = log.read(before).map_err(copy::at(&log.path(before)))?;
        match archive::read(archive, before) {
            // A restoration does not need it.
            Err(ArchiveError::Damaged { .. }) => {}
            Err(ArchiveError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            found => return Ok(found?.0 == mine),
        }
    }
    let found = split(last.start, theirs).map(|(segment, _)| (segment.generation, segment.previous));
    // Each open without a record replaces the segment of the one before, and names that alone. After several,
    // only the numbers of the opens are left to compare.
    let opens = |generation: u64| generation >> 32;
    let follows = |previous| opens(previous) > opens(last.generation);
    let mine = |(own, previous)| [own, previous].contains(&last.generation) || follows(previous);
    Ok(found.is_some_and(mine))
}

/// A segment whose bytes are all sound, without what precedes its records.
fn sound(start: u64, bytes: Vec<u8>, media: &FileMedia) -> Result<(Segment, Vec<u8>), ArchiveError> {
    let damaged = || ArchiveError::Damaged { path: media.path(start) };
    let (segment, records) = split(start, bytes).ok_or_else(damaged)?;
    let mut all = Records::new(start, &records);
    let is_sound = all.by_ref().all(|record| record.kind != Kind::Mark || record.body.len() == 8);
    let ends = all.position() == start + records.len() as u64;
    if is_sound && ends { Ok((segment, records)) } else { Err(damaged()) }
}
