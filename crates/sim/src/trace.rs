//! Page traces in memory, read from `.ptr` files: see [`pagetier_page::TraceRecord`] for the format.

use pagetier_ghost::{Reference, Source, Use};
use pagetier_page::{TRACE_RECORD_BYTES, TraceRecord};
use std::io::{self, Read};
use std::path::Path;

/// The size of a record in bytes.
pub const RECORD_BYTES: usize = TRACE_RECORD_BYTES;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("{0}")]
    Io(io::Error),
    /// The file ends within a record; holds its length in bytes.
    #[error("{0} bytes are not a multiple of the record size, {RECORD_BYTES}")]
    Torn(u64),
    /// A record is invalid; holds its number and its bytes.
    #[error("record {0} (counting from 0) is invalid: {defect}: {1:02x?}", defect = defect(.1))]
    Record(u64, [u8; RECORD_BYTES]),
}

fn defect(record: &[u8; RECORD_BYTES]) -> &'static str {
    match record {
        // The last four bytes are operation, flag and half of the space. `decode` refuses a record for
        // one of three defects, so where operation and flag are sound, the page number is the one left.
        [.., 0 | 1, 0 | 1, _, _] => "its page number takes more than 48 bits",
        [.., 0 | 1, _, _, _] => "its flag is neither 0 nor 1",
        _ => "its operation is neither 0 (read) nor 1 (write)",
    }
}

/// The reference that a record encodes.
#[must_use]
pub fn decode(record: &[u8; RECORD_BYTES]) -> Option<Reference> {
    let TraceRecord { page, write, sequential } = TraceRecord::decode(record)?;
    let used = if write { Use::Write } else { Use::Read };
    Some(Reference { page, used, sequential })
}

/// Encodes a reference; a created page becomes a write. Otherwise the inverse of [`decode`].
#[must_use]
pub fn encode(reference: Reference) -> [u8; RECORD_BYTES] {
    let Reference { page, used, sequential } = reference;
    // The format has no creation: a replay of the trace reads the page before it writes it, which costs a
    // read more than the original run.
    TraceRecord { page, write: used != Use::Read, sequential }.encode()
}

/// A trace in memory, for any number of replays.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    references: Vec<Reference>,
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// The file cannot be read, ends within a record, or holds an invalid record.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(TraceError::Io)?;
        Self::from_bytes(&bytes)
    }

    /// Decodes a trace.
    ///
    /// # Errors
    /// The bytes end within a record, or hold an invalid record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        // A torn trace is refused rather than cut: it was copied in part, and would be replayed as a
        // shorter one with other costs.
        if !rest.is_empty() {
            return Err(TraceError::Torn(bytes.len() as u64));
        }
        let decoded = |(at, record)| decode(record).ok_or(TraceError::Record(at as u64, *record));
        let references = records.iter().enumerate().map(decoded).collect::<Result<_, _>>()?;
        Ok(Self { references })
    }

    /// The references, in order.
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// A source that yields the references once.
    pub fn source(&self) -> TraceSource<'_> {
        TraceSource { left: &self.references }
    }
}

impl FromIterator<Reference> for Trace {
    fn from_iter<I: IntoIterator<Item = Reference>>(references: I) -> Self {
        Self { references: references.into_iter().collect() }
    }
}

/// A replay of a [`Trace`].
#[derive(Debug)]
pub struct TraceSource<'a> {
    left: &'a [Reference],
}

impl Source for TraceSource<'_> {
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool {
        // A trace has no transactions, so the size of a batch is arbitrary. It is fixed because `replay`
        // counts its warm-up in batches.
        let (now, left) = self.left.split_at(self.left.len().min(1024));
        out.extend_from_slice(now);
        self.left = left;
        !now.is_empty()
    }
}
