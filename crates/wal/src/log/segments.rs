//! The log's segments: which ones exist, where records go, and what a recovery trusts.
//!
//! A segment starts at a record's first byte and holds whole records, so positions alone identify segments. A
//! segment is sound up to the start of the next one, the last segment up to its first unsound record.
//!
//! **An open only reads** until the store has accepted the log ([`Segments::ready`]): the log may be the
//! wrong one, and must then stay as it is.
//!
//! **Readable is not durable.** After a process was killed, or a sync failed, a power cut can still remove
//! bytes that can be read. So the last segment is rewritten, in place, before any record in it is trusted;
//! the earlier ones were durable when their successors were created. After a failed append everything since
//! the last good sync goes to a new segment, which ends the previous one.
//!
//! **Torn or rotten.** What follows the last sound record is a torn tail, which was never reported durable,
//! only if no later write went to the segment: each write begins with a record that says so, and begins once
//! everything before it is durable. Such a record behind an unsound one proves that durable bytes have
//! changed.
//!
//! **Generations.** A segment names its generation, and the one that the store had recorded before. Copies of
//! a store share the log's identity; from their first open on, their generations differ.
//!
//! **The reserve** is space for one segment that a full disk does not take away. Only records that give space
//! back go there: those of frees, and what a checkpoint needs in order to write pages and remove segments.

use crate::error::{WalError, is_full};
use crate::media::Media;
use crate::options::WalOptions;
use crate::record::{self, Records};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The start of a new log. It is above zero, the LSN of a page that no record has touched.
pub(crate) const FIRST_LSN: u64 = 64;

/// Begins a segment of a log that belongs to a store. As a record's length it would be a gigabyte.
const MAGIC: [u8; 8] = *b"PTGEN\0\0\x01";
/// Magic, generation, the generation before, checksum of these.
const PREFIX_BYTES: usize = 28;

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The position of its first record.
    pub(crate) start: u64,
    /// The generation under which it was created; 0: by none, or by an earlier version.
    pub(crate) generation: u64,
    /// The generation that the store had recorded then.
    pub(crate) previous: u64,
    /// Whether it has no record. Known of what an open found.
    pub(crate) is_empty: bool,
}

/// How a segment is created.
#[derive(Clone, Copy)]
enum How {
    /// Records need it.
    Needed,
    /// A generation begins with it.
    Begun,
    /// In the reserve.
    Reserved,
}

#[derive(Debug)]
pub(crate) struct Segments {
    media: Box<dyn Media>,
    /// Oldest first; the last one is open.
    segments: VecDeque<Segment>,
    active_bytes: u64,
    /// The sound part of the last segment, until it is written again. `None`: the log is in use.
    found: Option<Vec<u8>>,
    /// Where the next record goes if there is no segment yet.
    first: u64,
    /// Segments without records that the log will not continue.
    given_up: Vec<u64>,
    /// Of the segments that are created from now on.
    generation: u64,
    previous: u64,
    /// Whether the last append failed, so that the open segment's tail is unknown.
    failed: bool,
    /// Whether the medium was full at the last append.
    full: bool,
    /// The segment that was removed last, if its removal failed: it may be there or not.
    leaving: Option<u64>,
    /// What the open found is sound from here on.
    checked: u64,
}

impl Segments {
    /// Reads what the log has of each segment, and the records of the last one; also returns its start and
    /// its end. Writes nothing. The other records are read where a recovery needs them
    /// ([`Segments::check`]): a log that is kept for the loss of the SSD can be far longer than that.
    pub(crate) fn open(mut media: Box<dyn Media>, first_lsn: u64) -> Result<(Self, u64, u64), WalError> {
        let mut starts = media.list().map_err(|e| at(&*media, 0, e))?;
        starts.sort_unstable();
        let oldest = starts.first().copied().unwrap_or(first_lsn);
        let (mut end, mut tail) = (oldest, Vec::new());
        let mut segments = VecDeque::new();
        for (i, &start) in starts.iter().enumerate() {
            let is_last = i + 1 == starts.len();
            let read = if is_last { media.read(start) } else { media.peek(start, PREFIX_BYTES) };
            let bytes = read.map_err(|e| at(&*media, start, e))?;
            let (mut segment, mut bytes) = split(start, bytes)
                .ok_or_else(|| WalError::Damaged { path: media.path(start), at: start })?;
            if is_last {
                end = sound_end(start, &bytes);
                if is_rotten(start, end, &bytes) {
                    return Err(WalError::Damaged { path: media.path(start), at: end });
                }
                bytes.truncate((end - start) as usize);
                segment.is_empty = bytes.is_empty();
                tail = bytes;
            }
            segments.push_back(segment);
        }
        let (generation, previous) =
            segments.back().map_or((0, 0), |last: &Segment| (last.generation, last.previous));
        let segments = Self {
            media,
            segments,
            active_bytes: tail.len() as u64,
            found: Some(tail),
            first: oldest,
            given_up: Vec::new(),
            generation,
            previous,
            failed: false,
            full: false,
            leaving: None,
            checked: starts.last().copied().unwrap_or(first_lsn),
        };
        Ok((segments, oldest, end))
    }

    /// Checks that the records after position `from` are sound, and without a gap.
    pub(crate) fn check(&mut self, from: u64) -> Result<(), WalError> {
        let (starts, checked) = (self.starts(), self.checked);
        for pair in starts.windows(2).filter(|pair| from < pair[1] && pair[0] < checked) {
            self.read(pair[0], pair[1])?;
        }
        self.checked = self.checked.min(self.holding(from.saturating_add(1)));
        Ok(())
    }

    /// What the open found, oldest first.
    pub(crate) fn found(&self) -> impl DoubleEndedIterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Whether the log is in use: what it holds is durable, and the next record may follow.
    pub(crate) fn is_ready(&self) -> bool {
        self.found.is_none()
    }

    /// Takes the log into use: makes what the open found durable, or creates the first segment.
    pub(crate) fn ready(&mut self) -> Result<(), WalError> {
        let Some(tail) = &self.found else { return Ok(()) };
        let start = self.segments.back().map_or(self.first, |last| last.start);
        self.media.own().map_err(|e| at(&*self.media, start, e))?;
        // Each is forgotten once it is gone: after an error the next attempt must not leave one behind.
        while let Some(given_up) = self.given_up.last().copied() {
            self.media.remove(given_up).map_err(|e| at(&*self.media, given_up, e))?;
            self.given_up.pop();
        }
        match self.segments.back().copied() {
            Some(last) => {
                let whole = with_prefix(last, tail);
                self.media.resume(start, &whole).map_err(|e| at(&*self.media, start, e))?;
            }
            None => self.create(start, &[], How::Needed).map_err(|e| at(&*self.media, start, e))?,
        }
        self.found = None;
        Ok(())
    }

    /// Begins the log, which has no record, at `first`.
    pub(crate) fn begin_at(&mut self, first: u64) {
        self.first = first;
        self.given_up.extend(self.segments.drain(..).map(|segment| segment.start));
        self.active_bytes = 0;
        self.found = Some(Vec::new());
    }

    /// Begins a generation: the records from `end` on, where the log ends, go to a segment of this
    /// generation. `previous` is what the store has recorded. Returns the generation that the log has
    /// now: the one before, if the medium is full. Such a log continues as it was, since a full disk must not
    /// prevent an open.
    pub(crate) fn begin(
        &mut self,
        end: u64,
        (generation, previous): (u64, u64),
        reserve_bytes: u64,
    ) -> Result<u64, WalError> {
        // First: the last segment may have what can be read and is not durable, and only a last one is
        // written again.
        self.ready()?;
        let Some(last) = self.segments.back().copied() else { return Ok(self.generation) };
        // Before the segment, which could take the last space: records that give space back have it there.
        self.reserve(reserve_bytes);
        (self.generation, self.previous) = (generation, previous);
        // The log needs its first segment, and that needs no space of its own yet.
        let how = if last.is_empty && last.generation == 0 { How::Needed } else { How::Begun };
        let created = self.create(end, &[], how);
        // What a failed call left would end the last segment before a record that is appended to it.
        let failed = self.failed;
        self.failed |= created.is_err();
        // The reserve stays for records that give space back.
        if created.as_ref().is_err_and(is_full) {
            // The log continues as it was. Part of the new segment may be there nevertheless, and would end
            // the one that goes on, or have replaced it.
            (self.generation, self.previous) = (last.generation, last.previous);
            self.go_on(last, end)?;
            self.failed = failed;
            return Ok(last.generation);
        }
        created.map(|()| generation).map_err(|e| at(&*self.media, end, e))
    }

    /// The last segment goes on, since the medium is too full for one at `end`.
    fn go_on(&mut self, last: Segment, end: u64) -> Result<(), WalError> {
        if last.start != end {
            self.media.remove(end).map_err(|e| at(&*self.media, end, e))?;
        }
        let whole = with_prefix(last, &self.read(last.start, end)?);
        self.media.resume(last.start, &whole).map_err(|e| at(&*self.media, last.start, e))
    }

    /// Creates the segment at `start`, or replaces it as a whole; appends go there from now on.
    fn create(&mut self, start: u64, bytes: &[u8], how: How) -> io::Result<()> {
        let (generation, previous) = (self.generation, self.previous);
        let segment = Segment { start, generation, previous, is_empty: bytes.is_empty() };
        let whole = with_prefix(segment, bytes);
        match how {
            How::Needed => self.media.create(start, &whole)?,
            How::Begun => self.media.begin(start, &whole)?,
            How::Reserved => self.media.create_reserved(start, &whole)?,
        }
        if self.segments.back().is_some_and(|last| last.start == start) {
            self.segments.pop_back();
        }
        self.segments.push_back(segment);
        self.active_bytes = bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn id(&self) -> u64 {
        self.media.id()
    }

    /// Drops the medium. Its segments are no longer read or written; the positions stay known.
    pub(crate) fn replace_media(&mut self, media: Box<dyn Media>) {
        self.media = media;
    }

    /// See [`Media::format`].
    pub(crate) fn format(&mut self, at_least: u32) -> u32 {
        self.media.format(at_least)
    }

    pub(crate) fn blocks(&self) -> bool {
        self.media.blocks()
    }

    /// The most bytes that a segment's records can have.
    pub(crate) fn segment_bytes_max(&self) -> u64 {
        match self.media.segment_bytes_max() {
            u64::MAX => u64::MAX,
            most => most.saturating_sub(PREFIX_BYTES as u64),
        }
    }

    /// The size at which a segment ends: that of a log of this capacity, or what a medium takes that was made
    /// for other sizes.
    pub(crate) fn usual_bytes(&self, options: WalOptions) -> u64 {
        let wanted = options.segment_bytes();
        match self.segment_bytes_max() {
            u64::MAX => wanted,
            // A smaller one would waste most of its place, and with it those for others; but changes wait
            // if the open segment alone is longer than the capacity, and it could not go.
            most => (most / 4).min(options.capacity_bytes / 4).max(wanted).min(most / 2),
        }
    }

    pub(crate) fn starts(&self) -> Vec<u64> {
        self.segments.iter().map(|segment| segment.start).collect()
    }

    /// A segment as the medium has it, up to position `end` at most: for a copy of the log.
    pub(crate) fn whole(&mut self, start: u64, end: u64) -> Result<Vec<u8>, WalError> {
        let records = self.read(start, end)?;
        let segment = self.segments.iter().find(|segment| segment.start == start);
        Ok(segment.map_or_else(|| records.clone(), |segment| with_prefix(*segment, &records)))
    }

    /// A segment, its bytes up to the next one, or up to position `end`, and where the next one begins: not
    /// checked.
    pub(crate) fn part(&mut self, start: u64, end: u64) -> Result<(Segment, Vec<u8>, Option<u64>), WalError> {
        let bytes = self.media.read(start).map_err(|e| at(&*self.media, start, e))?;
        let damaged = || WalError::Damaged { path: self.media.path(start), at: start };
        let (segment, mut bytes) = split(start, bytes).ok_or_else(damaged)?;
        // Bytes beyond the start of the successor belong to a failed append, or to what the file was before.
        let next = self.segments.iter().map(|segment| segment.start).find(|next| *next > start);
        bytes.truncate(next.unwrap_or(end).saturating_sub(start) as usize);
        Ok((segment, bytes, next))
    }

    /// The sound bytes of a segment, up to position `end` at most.
    pub(crate) fn read(&mut self, start: u64, end: u64) -> Result<Vec<u8>, WalError> {
        let (_, mut bytes, next) = self.part(start, end)?;
        if let Some(next) = next {
            let sound = sound_end(start, &bytes);
            if sound != next {
                return Err(WalError::Damaged { path: self.media.path(start), at: sound });
            }
        }
        bytes.truncate(end.saturating_sub(start) as usize);
        Ok(bytes)
    }

    /// Appends whole records, the first of which starts at `start`, and makes them durable; in the reserve if
    /// the medium is full and `or_reserve` says so. After an error the caller passes the same bytes again,
    /// followed by newer records. Returns whether the records went to a new segment.
    pub(crate) fn append(
        &mut self,
        start: u64,
        bytes: &[u8],
        segment_bytes: u64,
        or_reserve: bool,
    ) -> Result<bool, WalError> {
        let fits = bytes.len() as u64 <= self.segment_bytes_max().saturating_sub(self.active_bytes);
        // Where no other segment can follow, the last one goes on: changes that were admitted while there was
        // space find some.
        let ends = self.active_bytes >= segment_bytes && self.segments.len() < self.media.segments_max();
        let creates = self.failed || ends || !fits;
        let written = if creates { self.create(start, bytes, How::Needed) } else { self.media.append(bytes) };
        self.full = written.as_ref().is_err_and(is_full);
        let refused = or_reserve && self.full;
        let written = if refused { self.create(start, bytes, How::Reserved) } else { written };
        self.failed = written.is_err();
        written.map_err(|e| at(&*self.media, start, e))?;
        let created = creates || refused;
        if !created {
            self.active_bytes += bytes.len() as u64;
            if let Some(last) = self.segments.back_mut() {
                last.is_empty = false;
            }
        }
        Ok(created)
    }

    /// Ends the open segment at `end`, up to which it is durable, unless it has no record: the next record
    /// goes to another one. Refused if the medium has no space for that beyond what changes need.
    pub(crate) fn end_at(&mut self, end: u64) -> Result<(), WalError> {
        let Some(last) = self.segments.back().copied().filter(|_| self.active_bytes > 0) else {
            return Ok(());
        };
        if self.are_scarce() {
            return Err(at(&*self.media, end, io::ErrorKind::StorageFull.into()));
        }
        let created = self.create(end, &[], How::Begun);
        // What a failed call left would end the open segment before a record that is appended to it.
        self.failed = match &created {
            Err(error) if is_full(error) => self.failed || self.go_on(last, end).is_err(),
            created => created.is_err(),
        };
        created.map_err(|e| at(&*self.media, end, e))
    }

    /// The segments' starts, the newest first, each with the space that the log takes from there on. One that
    /// ended early, for an archive or with a generation, counts as a whole one: their number is limited, too.
    fn bytes_by_start(&self, whole: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut bytes, mut next) = (0, None);
        self.segments.iter().rev().map(move |segment| {
            bytes += next.map_or(self.active_bytes, |next: u64| whole.max(next - segment.start));
            next = Some(segment.start);
            (segment.start, bytes)
        })
    }

    /// Where the oldest segment begins that leaves the log no longer than `bytes`.
    pub(crate) fn within(&self, bytes: u64, whole: u64) -> Option<u64> {
        let fits = self.bytes_by_start(whole).take_while(|(_, taken)| *taken <= bytes).last();
        fits.map(|(start, _)| start).or(self.segments.back().map(|last| last.start))
    }

    /// The space that the segments take which begin at `from` or later.
    pub(crate) fn bytes_from(&self, from: u64, whole: u64) -> u64 {
        self.bytes_by_start(whole)
            .take_while(|(start, _)| from <= *start)
            .last()
            .map_or(0, |(_, bytes)| bytes)
    }

    /// Whether the medium was full at the last append, though the reserve may have taken the records.
    pub(crate) fn was_full(&self) -> bool {
        self.full
    }

    /// Up to where the older segments must go, if they must: half of them because most of those that the
    /// medium takes are in use; or, because the medium is full, half of the records, and at least as many as
    /// take `whole` bytes: short segments gave their space back when they ended, so that fewer could leave
    /// nothing for the next reserve.
    pub(crate) fn half(&self, is_full: bool, whole: u64) -> Option<u64> {
        let (last, most) = (self.segments.back()?.start, self.media.segments_max());
        let by_number = self.segments.get(self.segments.len() / 2).map(|segment| segment.start);
        let half = by_number.filter(|_| self.segments.len() > most - most.div_ceil(4)).unwrap_or(0);
        let middle = self.oldest() + ((last + self.active_bytes - self.oldest()) / 2).max(whole);
        let by_bytes = self.segments.iter().map(|segment| segment.start).find(|start| middle <= *start);
        let half = if is_full { half.max(by_bytes.unwrap_or(last)) } else { half };
        Some(half).filter(|half| self.oldest() < *half)
    }

    /// Where the first segment begins, of the second and later ones, that has no record up to `kept`.
    pub(crate) fn after(&self, kept: u64) -> Option<u64> {
        self.segments.iter().skip(1).map(|segment| segment.start).find(|start| kept <= *start)
    }

    /// Whether almost all segments that the medium takes are in use.
    pub(crate) fn are_scarce(&self) -> bool {
        let most = self.media.segments_max();
        self.segments.len() > most - most.div_ceil(8)
    }

    /// Sets the reserve aside, if the medium can and has space.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        if let Err(error) = self.media.reserve(bytes) {
            tracing::debug!(%error, "the log has no reserve");
        }
    }

    /// The log's start once [`Segments::truncate`] has kept the record that ends at `lsn`.
    pub(crate) fn holding(&self, lsn: u64) -> u64 {
        let starts = || self.segments.iter().map(|segment| segment.start);
        starts().take_while(|start| *start < lsn).last().or_else(|| starts().next()).unwrap_or(0)
    }

    /// Where a recovery begins that needs no record before the one that ends at `lsn`. A last segment that
    /// takes no more records does not count if nothing after it is durable: it goes with the next truncation
    /// after the next record. (Otherwise one that is longer than the capacity would refuse all changes, and
    /// with them its successor.)
    pub(crate) fn recovery_start(&self, lsn: u64, segment_bytes: u64) -> u64 {
        let end = self.segments.back().map_or(self.first, |last| last.start) + self.active_bytes;
        // One that a generation has begun, and that has no record yet, leaves the one before it as the last.
        let takes_no_more = self.active_bytes >= segment_bytes || self.active_bytes == 0;
        if lsn >= end && takes_no_more { end } else { self.holding(lsn) }
    }

    /// The log's start.
    pub(crate) fn oldest(&self) -> u64 {
        self.segments.front().map_or(self.first, |first| first.start)
    }

    /// Removes the segments whose records all precede `keep`. After a failure they are fewer nevertheless;
    /// the next call continues.
    pub(crate) fn truncate(&mut self, keep: u64) -> Result<(), WalError> {
        loop {
            if let Some(start) = self.leaving {
                self.media.remove(start).map_err(|e| at(&*self.media, start, e))?;
                self.leaving = None;
            }
            if self.segments.get(1).is_none_or(|second| second.start >= keep) {
                return Ok(());
            }
            // Before the attempt: one that fails may have removed the file, and a copy would look for it.
            self.leaving = self.segments.pop_front().map(|first| first.start);
        }
    }
}

/// Separates what precedes the records; `None` if that is damaged.
pub(crate) fn split(start: u64, mut bytes: Vec<u8>) -> Option<(Segment, Vec<u8>)> {
    let mut segment = Segment { start, generation: 0, previous: 0, is_empty: false };
    if let Some(prefix) = bytes.get(..PREFIX_BYTES) {
        let is_sound = prefix[24..] == pagetier_page::crc32c(&prefix[..24]).to_le_bytes();
        if prefix[..8] == MAGIC && is_sound {
            segment.generation = record::u64_at(prefix, 8);
            segment.previous = record::u64_at(prefix, 16);
            bytes.drain(..PREFIX_BYTES);
        } else if prefix[..8] == MAGIC || is_sound {
            return None;
        }
    }
    Some((segment, bytes))
}

/// A segment's bytes with what precedes the records.
pub(crate) fn with_prefix(segment: Segment, records: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + records.len());
    // A log that no store owns has none, and is as earlier versions wrote it.
    if segment.generation > 0 {
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&segment.generation.to_le_bytes());
        bytes.extend_from_slice(&segment.previous.to_le_bytes());
        let sum = pagetier_page::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
    bytes.extend_from_slice(records);
    bytes
}

fn at(media: &dyn Media, start: u64, error: io::Error) -> WalError {
    WalError::Io { path: media.path(start), source: Arc::new(error) }
}

/// Whether durable records of the last segment have changed: a later write follows the sound part.
fn is_rotten(start: u64, sound: u64, bytes: &[u8]) -> bool {
    let rest = &bytes[(sound - start) as usize..];
    // Where what precedes the records is damaged, they lie further back.
    let shifted = bytes.get(PREFIX_BYTES..).filter(|_| sound == start).unwrap_or_default();
    record::has_batch(sound, rest) || record::has_batch(start, shifted)
}

/// The end of a segment's sound records.
fn sound_end(start: u64, bytes: &[u8]) -> u64 {
    let mut records = Records::new(start, bytes);
    records.by_ref().for_each(drop);
    records.position()
}
