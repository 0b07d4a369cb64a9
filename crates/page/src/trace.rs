//! Page traces, `.ptr`: 12-byte little-endian records of u64 page number, u8 operation (0 read, 1 write), u8
//! flag (1 sequential), u16 object.
//!
//! A [`PageId`] is encoded as its number, with the upper half of the space's id above it, and the lower half
//! as the object. Page numbers of foreign traces may therefore have up to 48 bits: each run of 2^32 pages of
//! an object becomes a space. Records with larger numbers, or with unknown operations or flags, are invalid.

use crate::{PageId, SpaceId};

/// The size of a record in bytes.
pub const TRACE_RECORD_BYTES: usize = 12;

/// One request for one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// The page.
    pub page: PageId,
    /// Whether the request changes the page.
    pub write: bool,
    /// Whether a scan made the request.
    pub sequential: bool,
}

impl TraceRecord {
    /// Encodes the record.
    #[must_use]
    pub fn encode(self) -> [u8; TRACE_RECORD_BYTES] {
        let space = self.page.space.0;
        let number = u64::from(space >> 16) << 32 | u64::from(self.page.no);
        let mut record = [0; TRACE_RECORD_BYTES];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record[8] = u8::from(self.write);
        record[9] = u8::from(self.sequential);
        record[10..].copy_from_slice(&(space as u16).to_le_bytes());
        record
    }

    /// Decodes a record; `None` for an unknown operation or flag, or a page number beyond 48 bits.
    #[must_use]
    pub fn decode(record: &[u8; TRACE_RECORD_BYTES]) -> Option<Self> {
        let [p0, p1, p2, p3, p4, p5, p6, p7, op, flag, o0, o1] = *record;
        let number = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
        let high = u16::try_from(number >> 32).ok()?;
        let space = SpaceId(u32::from(high) << 16 | u32::from(u16::from_le_bytes([o0, o1])));
        let page = PageId::new(space, number as u32);
        (op <= 1 && flag <= 1).then_some(Self { page, write: op == 1, sequential: flag == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back() {
        for (space, no) in [(0, 0), (7, 9), (0x1_0002, u32::MAX), (u32::MAX, 1)] {
            for (write, sequential) in [(false, true), (true, false)] {
                let record = TraceRecord { page: PageId::new(SpaceId(space), no), write, sequential };
                assert_eq!(TraceRecord::decode(&record.encode()), Some(record));
            }
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        let good = TraceRecord { page: PageId::default(), write: false, sequential: false }.encode();
        for (at, byte) in [(8, 2), (9, 2), (7, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(TraceRecord::decode(&bad), None, "byte {at}");
        }
    }
}
