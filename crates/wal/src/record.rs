//! The byte layout of the log's records, which `docs/format.md` describes.

use crate::guard::Guard;
use pagetier::PageId;

pub(crate) const HEADER_BYTES: usize = 17;

/// Set in the kind of a record with which a write to the log begins: everything before it was durable then.
const BEGINS_BATCH: u8 = 0x80;

const WRITE: u8 = 1;
const MOVE: u8 = 2;
const ZERO: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pages = 1,
    Commit = 2,
    Applied = 3,
    /// As `Pages`; also frees pages.
    Freeing = 4,
    /// A space is removed.
    Removal = 5,
    /// The time of a write: what precedes it was appended before, and what follows was acknowledged later.
    Mark = 6,
}

/// A record in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) lsn: u64,
    pub(crate) kind: Kind,
    pub(crate) body: &'a [u8],
}

/// Appends a record that starts at position `at`; returns its LSN.
pub(crate) fn put(buf: &mut Vec<u8>, at: u64, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> u64 {
    let start = buf.len();
    buf.extend_from_slice(&[0; HEADER_BYTES]);
    body(buf);
    let len = buf.len() - start;
    let lsn = at + len as u64;
    let record = &mut buf[start..];
    record[0..4].copy_from_slice(&(len as u32).to_le_bytes());
    record[8..16].copy_from_slice(&lsn.to_le_bytes());
    record[16] = kind as u8;
    let sum = pagetier_page::crc32c(&record[8..]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    lsn
}

/// Marks the first record in `records` as the beginning of a write, before which all was durable.
pub(crate) fn begin_batch(records: &mut [u8]) {
    let Some(len) = records.first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else { return };
    if let Some(record) = records.get_mut(..len).filter(|record| record.len() >= HEADER_BYTES) {
        record[16] |= BEGINS_BATCH;
        let sum = pagetier_page::crc32c(&record[8..]);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Whether a sound record with which a write began is somewhere in `bytes`, which begin at `position`.
pub(crate) fn has_batch(position: u64, bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(HEADER_BYTES - 1)).any(|at| {
        let (start, rest) = (position + at as u64, &bytes[at..]);
        // Most places end here: no length, or none that leads to the position that follows it.
        let len = u64::from(u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]));
        len > 0
            && u64_at(rest, 8) == start + len
            && rest[16] & BEGINS_BATCH != 0
            && Records::new(start, rest).next().is_some()
    })
}

/// The bytes of a record with a body of `body_bytes`.
pub(crate) fn bytes_with(body_bytes: usize) -> u64 {
    (HEADER_BYTES + body_bytes) as u64
}

/// The bytes of the record of a mini-transaction on `pages` that frees `freed` others.
pub(crate) fn pages_bytes(pages: usize, ops: &[u8], freed: usize) -> u64 {
    let freeing = if freed == 0 { 0 } else { 4 + 8 * freed };
    bytes_with(freeing + 1 + 8 * pages + ops.len())
}

/// Appends the record of a mini-transaction.
pub(crate) fn put_pages<G: Guard>(
    buf: &mut Vec<u8>,
    at: u64,
    pages: &[G],
    ops: &[u8],
    freed: &[PageId],
) -> u64 {
    let kind = if freed.is_empty() { Kind::Pages } else { Kind::Freeing };
    let put_id = |body: &mut Vec<u8>, page: PageId| body.extend_from_slice(&page.to_u64().to_le_bytes());
    put(buf, at, kind, |body| {
        if kind == Kind::Freeing {
            body.extend_from_slice(&(freed.len() as u32).to_le_bytes());
            freed.iter().for_each(|page| put_id(body, *page));
        }
        body.push(pages.len() as u8);
        pages.iter().for_each(|page| put_id(body, page.id()));
        body.extend_from_slice(ops);
    })
}

/// The bytes that [`put_write`] takes besides what it writes.
pub(crate) const WRITE_BYTES: usize = 6;

pub(crate) fn put_write(ops: &mut Vec<u8>, page: u8, offset: usize, bytes: &[u8]) {
    let [[o0, o1], [l0, l1]] = [offset, bytes.len()].map(|n| (n as u16).to_le_bytes());
    ops.extend_from_slice(&[page, WRITE, o0, o1, l0, l1]);
    ops.extend_from_slice(bytes);
}

pub(crate) fn put_move(ops: &mut Vec<u8>, page: u8, from: usize, to: usize, len: usize) {
    ops.extend_from_slice(&[page, MOVE]);
    for n in [from, to, len] {
        ops.extend_from_slice(&(n as u16).to_le_bytes());
    }
}

pub(crate) fn put_zero(ops: &mut Vec<u8>, page: u8) {
    ops.extend_from_slice(&[page, ZERO]);
}

/// Returns the page ids and the operations of a `pages` body.
pub(crate) fn split_pages(body: &[u8]) -> Option<(impl Iterator<Item = PageId>, &[u8])> {
    let (&count, rest) = body.split_first()?;
    split_ids(rest, usize::from(count))
}

/// Returns the ids of the freed pages, and the `pages` body, of a `freeing` body.
pub(crate) fn split_freed(body: &[u8]) -> Option<(impl Iterator<Item = PageId>, &[u8])> {
    let (count, rest) = body.split_first_chunk()?;
    split_ids(rest, u32::from_le_bytes(*count) as usize)
}

fn split_ids(bytes: &[u8], count: usize) -> Option<(impl Iterator<Item = PageId>, &[u8])> {
    let (ids, rest) = bytes.split_at_checked(count.checked_mul(8)?)?;
    Some((ids.chunks_exact(8).map(|id| PageId::from_u64(u64_at(id, 0))), rest))
}

/// Whether the operations zero the page of this index, so that redo needs none of its earlier contents.
pub(crate) fn zeroes_page(ops: &[u8], index: u8) -> bool {
    let mut rest = ops;
    while let Some((head, args)) = rest.split_at_checked(2) {
        let len = match head[1] {
            WRITE if args.len() >= 4 => 4 + u16_at(args, 2),
            MOVE => 6,
            ZERO if head[0] == index => return true,
            ZERO => 0,
            _ => return false,
        };
        let Some(next) = args.get(len..) else { return false };
        rest = next;
    }
    false
}

/// Applies the operations on the record's page of this index; returns `None` if they are malformed.
pub(crate) fn apply(mut ops: &[u8], index: u8, payload: &mut [u8]) -> Option<()> {
    while let Some((head, rest)) = ops.split_at_checked(2) {
        let mine = head[0] == index;
        ops = match head[1] {
            WRITE => {
                let (args, rest) = rest.split_at_checked(4)?;
                let (bytes, rest) = rest.split_at_checked(u16_at(args, 2))?;
                if mine {
                    let offset = u16_at(args, 0);
                    payload.get_mut(offset..offset + bytes.len())?.copy_from_slice(bytes);
                }
                rest
            }
            MOVE => {
                let (args, rest) = rest.split_at_checked(6)?;
                let (from, to, len) = (u16_at(args, 0), u16_at(args, 2), u16_at(args, 4));
                if mine {
                    if from.max(to) + len > payload.len() {
                        return None;
                    }
                    payload.copy_within(from..from + len, to);
                }
                rest
            }
            ZERO => {
                if mine {
                    payload.fill(0);
                }
                rest
            }
            _ => return None,
        };
    }
    ops.is_empty().then_some(())
}

/// The length of the shortest prefix of whole records that has at least `wanted` bytes, or of all records if
/// they have fewer. It has at most `most` bytes, unless its only record is longer.
pub(crate) fn whole_records(bytes: &[u8], wanted: usize, most: usize) -> usize {
    let mut end = 0;
    while end < wanted.min(bytes.len()) {
        let Some(len) = bytes.get(end..end + 4) else { return bytes.len() };
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let next = end + len.max(HEADER_BYTES);
        if end > 0 && next > most {
            break;
        }
        end = next;
    }
    end.min(bytes.len())
}

/// Iterates over a segment's records, from its first byte to the first unsound record.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    position: u64,
}

impl<'a> Records<'a> {
    /// The records in `bytes`, the first of which starts at `position`.
    pub(crate) fn new(position: u64, bytes: &'a [u8]) -> Self {
        Self { bytes, position }
    }

    /// The position of the next record; after the last record, the end of the sound part.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let header = self.bytes.get(..HEADER_BYTES)?;
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let record = self.bytes.get(..len).filter(|_| len >= HEADER_BYTES)?;
        let stored = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let lsn = u64_at(record, 8);
        if lsn != self.position + len as u64 || pagetier_page::crc32c(&record[8..]) != stored {
            return None;
        }
        let kind = match record[16] & !BEGINS_BATCH {
            1 => Kind::Pages,
            2 => Kind::Commit,
            3 => Kind::Applied,
            4 => Kind::Freeing,
            5 => Kind::Removal,
            6 => Kind::Mark,
            _ => return None,
        };
        self.bytes = &self.bytes[len..];
        self.position = lsn;
        Some(Record { lsn, kind, body: &record[HEADER_BYTES..] })
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
