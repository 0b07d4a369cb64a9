//! The tail of the manifest: records of the changes since its contents were written. A small change
//! costs a small write, however large the manifest is.
//!
//! The tail begins at the first block after the contents and consists of pairs of blocks. Both blocks of a
//! pair hold the same records; each record occupies whole sectors. A record is a line of JSON and a line with
//! its CRC32C. The CRC continues that of the contents, so a record is valid for these contents only.
//!
//! What a reader finds after each failure:
//!
//! - *Power cut between the write and the flush.* Each of the record's sectors, in either block, may have
//!   been written or not. The record is valid if one of its copies is whole. Earlier records lie in other
//!   sectors.
//! - *Killed between the write and the flush.* The record is readable but not durable. The next open
//!   writes it again, with the contents, before it acts on it.
//! - *The flush or a write fails.* Any of the above, and later writes may be lost too. Nothing is appended
//!   here again: the next save writes another area.
//! - *A sector or a block becomes corrupt.* The other copy is read. If both copies of a durable record are
//!   bad and a later record is sound, the reader reports damage. The loss of both copies of the last record
//!   goes undetected: that takes two faults.
//! - *Another area replaces this one.* It is written whole, so its tail is blank.
//! - *The file is cut, by a copy or its file system.* An append never changes its size, which the headers of
//!   the areas state: a shorter file is refused.

/// Bytes of a block: the unit in which a disk loses data.
pub(crate) const BLOCK: usize = 4096;

/// Bytes of a sector: the unit of a torn write. A record begins at a sector's start.
pub(crate) const SECTOR: usize = 512;

/// The minimum space for records, in bytes, both copies together.
const ROOM_MIN: usize = 32 << 10;

/// The space for records after contents of `bytes`. It is proportional to the contents, so that rewriting
/// them once the space is used up costs a constant amount per record.
pub(crate) fn room(bytes: usize) -> usize {
    bytes.max(ROOM_MIN).next_multiple_of(2 * BLOCK)
}

/// The end of a tail, where the next record goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// The first byte of the tail in the file.
    start: usize,
    /// The CRC32C of the contents.
    seed: u32,
    /// The position within one copy of the tail.
    at: usize,
    pub(crate) records: u64,
}

/// A record to write: the same bytes at both offsets in the file.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offsets: [usize; 2],
    /// The end of the tail after the record.
    pub(crate) end: End,
}

/// The contents of a file and the records in its tail, as JSON.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) contents: &'a str,
    pub(crate) records: Vec<&'a str>,
    pub(crate) end: End,
}

/// Encodes contents or a record: a line of JSON and a line with its checksum, which continues `seed`.
pub(crate) fn sealed(json: &[u8], seed: u32) -> Vec<u8> {
    let sum = pagetier_page::crc32c_append(seed, json);
    let mut bytes = Vec::with_capacity(json.len() + 20);
    bytes.extend_from_slice(json);
    bytes.extend_from_slice(format!("\ncrc32c {sum:08x}\n").as_bytes());
    bytes
}

/// The line of JSON at the start of `bytes`, the length of both lines, and their checksum.
fn opened(bytes: &[u8], seed: u32) -> Result<(&str, usize, u32), &'static str> {
    let line = bytes.iter().position(|byte| *byte == b'\n').ok_or("it is truncated")?;
    let (json, rest) = (&bytes[..line], &bytes[line + 1..]);
    let sum = pagetier_page::crc32c_append(seed, json);
    let expected = format!("crc32c {sum:08x}");
    // Compared as text: a checksum that does not parse is as wrong as one that differs.
    if !rest.starts_with(expected.as_bytes()) {
        return Err("its checksum does not match");
    }
    let json = std::str::from_utf8(json).map_err(|_| "it is not text")?;
    Ok((json, line + 1 + expected.len() + 1, sum))
}

/// Parses a file.
///
/// # Errors
/// The contents or a record are damaged.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, &'static str> {
    let (contents, len, seed) = opened(bytes, 0)?;
    let mut end = End { start: len.next_multiple_of(BLOCK), seed, at: 0, records: 0 };
    let mut records = Vec::new();
    while let Some((json, next)) = end.next_record(bytes) {
        records.push(json);
        end = next;
    }
    // Each append is flushed before the next begins. A sound record after a gap therefore means that a
    // durable record before it was damaged.
    let tail = bytes.get(end.start..).unwrap_or_default();
    let later = (0..tail.len() / (2 * BLOCK) * BLOCK).step_by(SECTOR).filter(|at| *at >= end.at);
    let mut ends = later.map(|at| End { at, ..end });
    if ends.any(|later| later.record(bytes).is_some()) {
        return Err("a record in its tail is damaged");
    }
    Ok(Parsed { contents, records, end })
}

impl End {
    /// The end of the blank tail of a file with these encoded contents.
    pub(crate) fn after(contents: &[u8]) -> Result<Self, &'static str> {
        let (_, len, seed) = opened(contents, 0)?;
        Ok(Self { start: len.next_multiple_of(BLOCK), seed, at: 0, records: 0 })
    }

    /// The first byte of the tail in the file.
    pub(crate) fn start(self) -> usize {
        self.start
    }

    /// The offset in the file just past the tail's last pair.
    pub(crate) fn file_end(self) -> usize {
        self.start + 2 * self.at.next_multiple_of(BLOCK)
    }

    /// Places a record; `None` when it is longer than a block.
    pub(crate) fn place(self, json: &[u8]) -> Option<Placed> {
        let mut bytes = sealed(json, self.seed);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), b'\n');
        if bytes.len() > BLOCK {
            return None;
        }
        // Within one block, so that a corrupt block costs one copy of a record, not parts of two.
        let fits = self.at % BLOCK + bytes.len() <= BLOCK;
        let at = if fits { self.at } else { self.at.next_multiple_of(BLOCK) };
        let placed = Self { at, ..self };
        let offsets = [placed.offset(0), placed.offset(1)];
        let end = Self { at: at + bytes.len(), records: self.records + 1, ..self };
        Some(Placed { bytes, offsets, end })
    }

    fn offset(self, copy: usize) -> usize {
        self.start + (2 * (self.at / BLOCK) + copy) * BLOCK + self.at % BLOCK
    }

    /// The next record: at this position, or in the next pair if it did not fit here.
    fn next_record(self, bytes: &[u8]) -> Option<(&str, Self)> {
        self.record(bytes).or_else(|| Self { at: self.at.next_multiple_of(BLOCK), ..self }.record(bytes))
    }

    /// The record at this position, if one of its copies is sound.
    fn record(self, bytes: &[u8]) -> Option<(&str, Self)> {
        let room = BLOCK - self.at % BLOCK;
        (0..2).find_map(|copy| {
            let from = self.offset(copy);
            let sector = bytes.get(from..from + room)?;
            let (json, len, _) = opened(sector, self.seed).ok()?;
            let (at, records) = (self.at + len.next_multiple_of(SECTOR), self.records + 1);
            Some((json, Self { at, records, ..self }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[&str]) -> (Vec<u8>, End) {
        let contents = sealed(br#"{"a":1}"#, 0);
        let mut end = End::after(&contents).unwrap();
        let mut bytes = contents;
        bytes.resize(64 << 10, b'\n');
        for record in records {
            end = write(&mut bytes, end, record);
        }
        (bytes, end)
    }

    fn write(bytes: &mut [u8], end: End, record: &str) -> End {
        let placed = end.place(record.as_bytes()).unwrap();
        for offset in placed.offsets {
            bytes[offset..offset + placed.bytes.len()].copy_from_slice(&placed.bytes);
        }
        placed.end
    }

    fn long(length: usize) -> String {
        format!("\"{}\"", "x".repeat(length))
    }

    #[test]
    fn records_read_back_in_order_whatever_their_lengths() {
        let lengths = [1, 500, 900, 3000, 2000, 4000, 10, 10, 3500, 600];
        let records: Vec<String> = lengths.map(long).to_vec();
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        let (bytes, end) = file(&records);
        let parsed = parse(&bytes).unwrap();
        assert_eq!((parsed.contents, parsed.records, parsed.end), (r#"{"a":1}"#, records, end));
        assert!(end.place(long(4096).as_bytes()).is_none());
        assert!(end.file_end() <= bytes.len());
        let (blank, end) = file(&[]);
        let parsed = parse(&blank).unwrap();
        assert_eq!((parsed.records.len(), parsed.end), (0, end));
    }

    /// Every subset of the last append's sectors that a power cut can leave: the record is either whole or
    /// absent.
    #[test]
    fn a_torn_append_is_there_or_not_and_harms_no_other_record() {
        let (long, more) = (long(1200), long(700));
        let before = [r#""first""#, &more];
        let (old, end) = file(&before);
        let mut new = old.clone();
        write(&mut new, end, &long);
        let changed: Vec<usize> = (0..new.len())
            .step_by(SECTOR)
            .filter(|at| new[*at..at + SECTOR] != old[*at..at + SECTOR])
            .collect();
        assert_eq!(changed.len(), 6, "three sectors, twice");
        let mut found = [0, 0];
        for landed in 0..1_u32 << changed.len() {
            let mut bytes = old.clone();
            for (_, at) in changed.iter().enumerate().filter(|(nth, _)| landed >> nth & 1 == 1) {
                bytes[*at..at + SECTOR].copy_from_slice(&new[*at..at + SECTOR]);
            }
            let records = parse(&bytes).unwrap().records;
            assert_eq!(records[..2], before);
            assert!(records.len() == 2 || records[2] == long);
            found[records.len() - 2] += 1;
            if landed & 7 == 7 || landed >> 3 == 7 {
                assert_eq!(records.len(), 3, "a whole copy counts");
            }
        }
        assert_eq!(found, [49, 15]);
    }

    #[test]
    fn a_rotten_sector_or_block_costs_no_record() {
        let lengths = [1, 500, 900, 3000, 2000, 4000, 10];
        let records: Vec<String> = lengths.map(long).to_vec();
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        let (bytes, end) = file(&records);
        for unit in [SECTOR, BLOCK] {
            for at in (BLOCK..end.file_end()).step_by(unit) {
                let mut corrupt = bytes.clone();
                corrupt[at..at + unit].fill(0xa5);
                assert_eq!(parse(&corrupt).unwrap().records, records, "{unit} bytes at {at}");
            }
        }
    }

    #[test]
    fn a_record_lost_in_both_copies_is_damage_if_another_follows() {
        let (bytes, _) = file(&[r#""a""#, r#""b""#, r#""c""#]);
        for nth in 0..3 {
            let mut corrupt = bytes.clone();
            for copy in 0..2 {
                corrupt[BLOCK + copy * BLOCK + nth * SECTOR] ^= 1;
            }
            match parse(&corrupt) {
                Err(why) => assert!(nth < 2, "{nth}: {why}"),
                Ok(parsed) => assert_eq!((nth, parsed.records.len()), (2, 2)),
            }
        }
    }

    #[test]
    fn records_count_for_their_own_contents_only() {
        let (bytes, _) = file(&[r#""a""#]);
        let mut other = bytes.clone();
        let contents = sealed(br#"{"a":2}"#, 0);
        other[..contents.len()].copy_from_slice(&contents);
        assert_eq!(parse(&other).unwrap().records.len(), 0);
    }
}
