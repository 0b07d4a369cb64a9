//! The log's segments: which ones exist, where records go, and what a recovery trusts.
//!
//! A segment starts at a record's first byte and holds whole records, so positions alone identify segments. A
//! segment is sound up to the start of the next one, the last segment up to its first unsound record.
//!
//! **Readable is not durable.** After a process was killed, or a sync failed, a power cut can still remove
//! bytes that can be read. So an opening rewrites the last segment, in place, before it trusts any record in
//! it; the earlier ones were durable when their successors were created. After a failed append everything
//! since the last good sync goes to a new segment, which ends the previous one.
//!
//! **The reserve** is room for one segment that a full disk does not take away. Only records that give room
//! back go there: those of frees, and what a checkpoint needs in order to write pages and remove segments.

use crate::error::{WalError, is_full};
use crate::media::Media;
use crate::record::Records;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Segments {
    media: Box<dyn Media>,
    /// The start of each segment, oldest first; the last segment is open.
    starts: VecDeque<u64>,
    active_bytes: u64,
    /// Whether the last append failed, so that the open segment's tail is unknown.
    failed: bool,
    /// Whether the medium was full at the last append.
    full: bool,
    /// The segment that was removed last, if its removal failed: it may be there or not.
    leaving: Option<u64>,
}

impl Segments {
    /// Opens the log; also returns its start and its end.
    pub(crate) fn open(mut media: Box<dyn Media>, first_lsn: u64) -> Result<(Self, u64, u64), WalError> {
        let mut starts = media.list().map_err(|e| at(&*media, 0, e))?;
        starts.sort_unstable();
        let mut end = starts.first().copied().unwrap_or(first_lsn);
        let mut tail = Vec::new();
        for (i, &start) in starts.iter().enumerate() {
            let mut bytes = media.read(start).map_err(|e| at(&*media, start, e))?;
            if let Some(&next) = starts.get(i + 1) {
                // Bytes beyond the start of the successor belong to a failed append.
                bytes.truncate((next - start) as usize);
            }
            let sound = sound_end(start, &bytes);
            if starts.get(i + 1).is_some_and(|&next| next != sound) {
                return Err(WalError::Damaged { path: media.path(start), at: sound });
            }
            bytes.truncate((sound - start) as usize);
            (end, tail) = (sound, bytes);
        }
        if let Some(&last) = starts.last() {
            media.resume(last, &tail).map_err(|e| at(&*media, last, e))?;
        } else {
            media.create(end, &[]).map_err(|e| at(&*media, end, e))?;
            starts.push(end);
        }
        let oldest = starts[0];
        let segments = Self {
            media,
            starts: starts.into(),
            active_bytes: tail.len() as u64,
            failed: false,
            full: false,
            leaving: None,
        };
        Ok((segments, oldest, end))
    }

    pub(crate) fn id(&self) -> u64 {
        self.media.id()
    }

    pub(crate) fn blocks(&self) -> bool {
        self.media.blocks()
    }

    /// The most bytes that a segment can have.
    pub(crate) fn room(&self) -> u64 {
        self.media.room()
    }

    /// The size at which a segment ends: `wanted`, or what a medium takes that was made for other sizes.
    pub(crate) fn usual_bytes(&self, wanted: u64) -> u64 {
        match self.media.room() {
            u64::MAX => wanted,
            // A smaller one would waste most of its place, and with it the places for others.
            room => wanted.clamp(room / 4, room / 2),
        }
    }

    pub(crate) fn starts(&self) -> Vec<u64> {
        self.starts.iter().copied().collect()
    }

    /// The sound bytes of a segment, up to position `end` at most.
    pub(crate) fn read(&mut self, start: u64, end: u64) -> Result<Vec<u8>, WalError> {
        let mut bytes = self.media.read(start).map_err(|e| at(&*self.media, start, e))?;
        let next = self.starts.iter().copied().find(|next| *next > start).unwrap_or(end);
        bytes.truncate(next.min(end).saturating_sub(start) as usize);
        Ok(bytes)
    }

    /// Appends whole records, the first of which starts at `start`, and makes them durable; in the reserve if
    /// the medium is full and `or_reserve` says so. After an error the caller passes the same bytes again,
    /// followed by newer records.
    pub(crate) fn append(
        &mut self,
        start: u64,
        bytes: &[u8],
        segment_bytes: u64,
        or_reserve: bool,
    ) -> Result<(), WalError> {
        let fits = bytes.len() as u64 <= self.media.room() - self.active_bytes.min(self.media.room());
        let creates = self.failed || self.active_bytes >= segment_bytes || !fits;
        let written = if creates { self.media.create(start, bytes) } else { self.media.append(bytes) };
        self.full = written.as_ref().is_err_and(is_full);
        let refused = or_reserve && self.full;
        let written = if refused { self.media.create_reserved(start, bytes) } else { written };
        self.failed = written.is_err();
        written.map_err(|e| at(&*self.media, start, e))?;
        if creates || refused {
            if self.starts.back() != Some(&start) {
                self.starts.push_back(start);
            }
            self.active_bytes = 0;
        }
        self.active_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Whether the medium was full at the last append, though the reserve may have taken the records.
    pub(crate) fn was_full(&self) -> bool {
        self.full
    }

    /// Where the younger half of the segments begins, if the older half must go: because the medium is full,
    /// or because most of the segments that it takes are in use.
    pub(crate) fn half(&self, is_full: bool) -> Option<u64> {
        let most = self.media.segments_max();
        let due = is_full || self.starts.len() > most - most.div_ceil(4);
        self.starts.get(self.starts.len() / 2).copied().filter(|_| due && self.starts.len() > 1)
    }

    /// Where the second segment begins.
    pub(crate) fn second(&self) -> Option<u64> {
        self.starts.get(1).copied()
    }

    /// Whether almost all segments that the medium takes are in use.
    pub(crate) fn are_scarce(&self) -> bool {
        let most = self.media.segments_max();
        self.starts.len() > most - most.div_ceil(8)
    }

    /// Sets the reserve aside, if the medium can and has room.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        if let Err(error) = self.media.reserve(bytes) {
            tracing::debug!(%error, "the log has no reserve");
        }
    }

    /// The log's start once [`Segments::truncate`] has kept the record that ends at `lsn`.
    pub(crate) fn holding(&self, lsn: u64) -> u64 {
        let later = self.starts.iter().take_while(|start| **start < lsn).last();
        later.or(self.starts.front()).copied().unwrap_or(0)
    }

    /// Where a recovery begins that needs no record before the one that ends at `lsn`. A last segment that
    /// takes no more records does not count if nothing after it is durable: it goes with the next truncation
    /// after the next record. (Otherwise one that is longer than the capacity would refuse all changes, and
    /// with them its successor.)
    pub(crate) fn recovery_start(&self, lsn: u64, segment_bytes: u64) -> u64 {
        let end = self.starts.back().copied().unwrap_or(0) + self.active_bytes;
        if lsn >= end && self.active_bytes >= segment_bytes { end } else { self.holding(lsn) }
    }

    /// The log's start.
    pub(crate) fn oldest(&self) -> u64 {
        self.starts.front().copied().unwrap_or(0)
    }

    /// Removes the segments whose records all precede `keep`. After a failure they are fewer nevertheless;
    /// the next call continues.
    pub(crate) fn truncate(&mut self, keep: u64) -> Result<(), WalError> {
        loop {
            if let Some(start) = self.leaving {
                self.media.remove(start).map_err(|e| at(&*self.media, start, e))?;
                self.leaving = None;
            }
            if self.starts.get(1).is_none_or(|second| *second >= keep) {
                return Ok(());
            }
            // Before the attempt: one that fails may have removed the file, and a copy would look for it.
            self.leaving = self.starts.pop_front();
        }
    }
}

fn at(media: &dyn Media, start: u64, error: io::Error) -> WalError {
    WalError::Io { path: media.path(start), source: Arc::new(error) }
}

/// The end of a segment's sound records.
fn sound_end(start: u64, bytes: &[u8]) -> u64 {
    let mut records = Records::new(start, bytes);
    records.by_ref().for_each(drop);
    records.position()
}
