//! Page traces, `.ptr`: 12-byte little-endian records of u64 page number, u8 operation (0 read, 1 write), u8 flag (1 sequential), u16 object.

use crate::reference::{Reference, Source, Use};
use pagetier_policy::{PageId, SpaceId};
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// The size of a record.
pub const RECORD_BYTES: usize = 12;

/// Why a trace could not be read.
#[derive(Debug)]
pub enum TraceError {
    /// The file could not be read.
    Io(io::Error),
    /// The file ends within a record: its length in bytes.
    Torn(u64),
    /// A record holds what no trace may hold: its number and its bytes.
    Record(u64, [u8; RECORD_BYTES]),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Torn(bytes) => {
                write!(f, "{bytes} bytes are no whole number of {RECORD_BYTES}-byte records")
            }
            Self::Record(at, bytes) => write!(f, "record {at} is not one of a page trace: {bytes:02x?}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// The reference that a record tells. Page numbers beyond 32 bits go to a space of their own.
#[must_use]
pub fn decode(record: &[u8; RECORD_BYTES]) -> Option<Reference> {
    let [p0, p1, p2, p3, p4, p5, p6, p7, op, flag, o0, o1] = *record;
    let number = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
    let object = u16::from_le_bytes([o0, o1]);
    let high = u16::try_from(number >> 32).ok()?;
    let used = match op {
        0 => Use::Read,
        1 => Use::Write,
        _ => return None,
    };
    let space = SpaceId(u32::from(high) << 16 | u32::from(object));
    (flag <= 1).then(|| Reference { page: PageId::new(space, number as u32), used, sequential: flag == 1 })
}

/// The record of a reference; a created page is told as a write. The inverse of [`decode`] otherwise.
#[must_use]
pub fn encode(reference: Reference) -> [u8; RECORD_BYTES] {
    let space = reference.page.space.0;
    let number = u64::from(space >> 16) << 32 | u64::from(reference.page.no);
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8] = u8::from(reference.used != Use::Read);
    record[9] = u8::from(reference.sequential);
    record[10..].copy_from_slice(&(space as u16).to_le_bytes());
    record
}

/// A trace in memory, to be replayed any number of times.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    references: Vec<Reference>,
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// The file cannot be read, ends within a record, or holds a record that is not one.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(TraceError::Io)?;
        Self::from_bytes(&bytes)
    }

    /// The trace that these bytes are.
    ///
    /// # Errors
    /// The bytes end within a record, or hold a record that is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        if !rest.is_empty() {
            return Err(TraceError::Torn(bytes.len() as u64));
        }
        let decoded = |(at, record)| decode(record).ok_or(TraceError::Record(at as u64, *record));
        let references = records.iter().enumerate().map(decoded).collect::<Result<_, _>>()?;
        Ok(Self { references })
    }

    /// The references, in order.
    #[must_use]
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// A source that tells them once.
    #[must_use]
    pub fn source(&self) -> TraceSource<'_> {
        TraceSource { left: &self.references }
    }
}

impl FromIterator<Reference> for Trace {
    fn from_iter<I: IntoIterator<Item = Reference>>(references: I) -> Self {
        Self { references: references.into_iter().collect() }
    }
}

/// A [`Trace`] being replayed.
#[derive(Debug)]
pub struct TraceSource<'a> {
    left: &'a [Reference],
}

impl Source for TraceSource<'_> {
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool {
        let (now, left) = self.left.split_at(self.left.len().min(1024));
        out.extend_from_slice(now);
        self.left = left;
        !now.is_empty()
    }
}
