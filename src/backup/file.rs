//! One backup file: a head, the pages, a tail. Each record has its own checksum; a file without a sound tail
//! is incomplete. `docs/format.md` has the byte tables.

use crate::error::BackupError;
use crate::manifest::changes::LogRecord;
use crate::manifest::page_runs::PageRuns;
use pagetier_page::{HEADER_BYTES, Header, Lsn, PageId, SpaceId, Stamp};
use rustc_hash::FxHashMap;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"PGTIERBK";
/// The format that this version writes and reads.
const BACKUP_FORMAT: u32 = 1;
/// The kind of a page's record, and of the tail's.
const PAGE: u32 = 1;
const TAIL: u32 = 2;
/// The length of the fields before a record's bytes: kind, length, checksum.
const RECORD_BYTES: usize = 12;
/// The length of the fields before a page's payload: space, number, LSN, stamp.
const PAGE_FIELDS: usize = 24;
/// The maximum length of a record: a length read from a file is not trusted. 30 million runs of free pages.
pub(super) const TEXT_BYTES_MAX: u32 = 1 << 30;

/// The head of a file: of which store it is, and what it continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) store: String,
    /// The id of the store's SSD when the backup was taken.
    pub(super) ssd: Option<String>,
    pub(super) page_bytes: u64,
    /// The file's number in its directory.
    pub(super) number: u32,
    /// The id of the backup that this one continues; `None`: a full backup.
    pub(super) after: Option<String>,
    /// The file has only pages with larger stamps, and pages that the previous backup has not.
    pub(super) since: u64,
    /// Every version with a smaller stamp is in the chain or was superseded.
    pub(super) upto: u64,
    /// The store's number of losses when the backup began; `None`: an earlier version made the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) losses: Option<u64>,
    /// The log that the backup's pages need when they are restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<LogRecord>,
    /// A copy of that log belongs to the backup, and had its name before the backup did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_log: bool,
}

impl Head {
    pub(super) fn read(file: &mut impl Read, path: &Path) -> Result<Self, BackupError> {
        let mut start = [0; 12];
        file.read_exact(&mut start).map_err(|e| short(path, e))?;
        let format = word_at(&start, 8);
        if start[..8] != MAGIC {
            return Err(BackupError::damaged(path, "it is not a store's backup"));
        }
        if format != BACKUP_FORMAT {
            let why = format!("it has format {format}, this version reads {BACKUP_FORMAT}");
            return Err(BackupError::damaged(path, why));
        }
        let (kind, text) = read_record(file, path)?;
        let head = serde_json::from_slice(&text).ok().filter(|_| kind == 0);
        head.ok_or_else(|| BackupError::damaged(path, "its head is damaged"))
    }
}

/// The tail of a file, which proves that the file is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    /// The number of pages in the file.
    pub(super) pages: u64,
    /// The id of the store's next space.
    pub(super) next_space: u32,
    /// The spaces: id, name, pages.
    pub(super) spaces: Vec<(u32, String, u32)>,
    /// Pages that do not exist, as runs, which may overlap: space, first, count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) free: Vec<(u32, u32, u32)>,
}

impl Tail {
    /// Whether the page exists; an older file of the chain may have it even if not (I35).
    pub(super) fn has(&self, page: PageId) -> bool {
        let counted = self.spaces.iter().any(|(id, _, pages)| *id == page.space.0 && page.no < *pages);
        let is_free = |(of, first, count): &(u32, u32, u32)| {
            *of == page.space.0 && page.no.checked_sub(*first).is_some_and(|behind| behind < *count)
        };
        counted && !self.free.iter().any(is_free)
    }

    /// The number after the last page of `space` that is listed as free: it may lie beyond the space's end.
    pub(super) fn free_end(&self, space: u32) -> u32 {
        let of_space = self.free.iter().filter(|(of, ..)| *of == space);
        of_space.map(|(_, first, count)| first.saturating_add(*count)).max().unwrap_or(0)
    }

    /// The pages of `space` that do not exist; `pages` is the space's number of pages.
    pub(super) fn free_in(&self, space: u32, pages: u32) -> PageRuns {
        let of_space = self.free.iter().filter(|(of, ..)| *of == space);
        of_space.flat_map(|(_, first, count)| *first..first.saturating_add(*count).min(pages)).collect()
    }
}

/// Which pages a backup has, for many questions.
pub(super) struct Had(FxHashMap<u32, (u32, PageRuns)>);

impl Had {
    pub(super) fn by(tail: &Tail) -> Self {
        let spaces = tail.spaces.iter();
        Self(spaces.map(|(id, _, pages)| (*id, (*pages, tail.free_in(*id, *pages)))).collect())
    }

    /// As [`Tail::has`].
    pub(super) fn has(&self, page: PageId) -> bool {
        let space = self.0.get(&page.space.0);
        space.is_some_and(|(pages, free)| page.no < *pages && !free.contains(page.no))
    }
}

/// A page as read from a file.
pub(super) struct Copied {
    pub(super) page: PageId,
    pub(super) lsn: Lsn,
    pub(super) payload: Vec<u8>,
}

pub(super) fn name_of(number: u32) -> String {
    format!("{number:06}.backup")
}

/// The numbers of the backups in a directory, in order. A directory that does not exist has none.
pub(super) fn numbers(dir: &Path) -> Result<Vec<u32>, BackupError> {
    numbered(dir, number_of)
}

/// The number of a backup that has this name. Only names that a backup gives: `5.backup` and `+5.backup` are
/// other files.
pub(super) fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".backup")?.parse().ok()?;
    (number > 0 && name == name_of(number)).then_some(number)
}

/// Opens a file of a directory with backups for reading.
pub(super) fn opened(path: &Path) -> Result<File, BackupError> {
    // The open of a pipe would wait for a writer.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(BackupError::io(path))?;
    if !file.metadata().map_err(BackupError::io(path))?.is_file() {
        return Err(BackupError::damaged(path, "it is no regular file"));
    }
    Ok(file)
}

/// The numbers of the names in a directory, in order.
pub(super) fn numbered(dir: &Path, number: impl Fn(&str) -> Option<u32>) -> Result<Vec<u32>, BackupError> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(BackupError::io(dir))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(BackupError::io(dir))?.file_name();
        all.extend(name.to_str().and_then(&number));
    }
    all.sort_unstable();
    Ok(all)
}

fn record(kind: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    // The kind is covered, too: a flipped bit must not make a page of a tail.
    let seed = pagetier_page::crc32c(&kind.to_le_bytes());
    let sum = parts.iter().fold(seed, |sum, part| pagetier_page::crc32c_append(sum, part));
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(&sum.to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

pub(super) fn encode_head(head: &Head) -> serde_json::Result<Vec<u8>> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&BACKUP_FORMAT.to_le_bytes());
    record(0, &[&serde_json::to_vec(head)?], &mut out);
    Ok(out)
}

/// Encodes a page. With a stamp up to the head's `since` it would be taken for the previous backup's.
pub(super) fn encode_page(image: &[u8], stamp: Stamp, out: &mut Vec<u8>) {
    let Header { page, lsn, .. } = Header::peek(image);
    let mut fields = [0; PAGE_FIELDS];
    fields[..4].copy_from_slice(&page.space.0.to_le_bytes());
    fields[4..8].copy_from_slice(&page.no.to_le_bytes());
    fields[8..16].copy_from_slice(&lsn.0.to_le_bytes());
    fields[16..24].copy_from_slice(&stamp.bits().to_le_bytes());
    record(PAGE, &[&fields, &image[HEADER_BYTES..]], out);
}

/// These runs of pages (space, first, count), each page once.
pub(super) fn united(mut runs: Vec<(u32, u32, u32)>) -> Vec<(u32, u32, u32)> {
    runs.sort_unstable();
    let mut united: Vec<(u32, u32, u32)> = Vec::new();
    for (space, first, count) in runs {
        match united.last_mut() {
            Some((of, from, long)) if *of == space && first - *from <= *long => {
                *long = (*long).max(first - *from + count);
            }
            _ => united.push((space, first, count)),
        }
    }
    united
}

pub(super) fn encode_tail(tail: &Tail) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    record(TAIL, &[&serde_json::to_vec(tail)?], &mut out);
    Ok(out)
}

/// Reads a file record by record, after its head.
pub(super) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    pub(super) head: Head,
    pages: u64,
}

/// The next record of a file.
pub(super) enum Next {
    Page(Copied),
    Tail(Tail),
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self, BackupError> {
        let mut file = BufReader::with_capacity(1 << 20, opened(path)?);
        let head = Head::read(&mut file, path)?;
        Ok(Self { path: path.to_owned(), file, head, pages: 0 })
    }

    /// The tail, found from the file's end. The pages before it are not read.
    pub(super) fn into_tail(mut self) -> Result<Tail, BackupError> {
        let path = self.path.clone();
        let io = |error| BackupError::io(&path)(error);
        let first = self.file.stream_position().map_err(io)?;
        let end = self.file.get_ref().metadata().map_err(io)?.len();
        // All records of pages have one length. The tail is the record that ends where the file does.
        let record = (RECORD_BYTES + PAGE_FIELDS) as u64;
        let record = record.saturating_add(self.head.page_bytes).saturating_sub(HEADER_BYTES as u64);
        let least = end.saturating_sub(u64::from(TEXT_BYTES_MAX) + RECORD_BYTES as u64).max(first);
        for pages in ((least - first) / record..=end.saturating_sub(first) / record).rev() {
            let (at, mut fields) = (first + pages * record, [0; RECORD_BYTES]);
            let Some(len) = end.checked_sub(at + RECORD_BYTES as u64) else { continue };
            self.file.get_ref().read_exact_at(&mut fields, at).map_err(io)?;
            if word_at(&fields, 0) == TAIL && u64::from(word_at(&fields, 4)) == len {
                self.file.seek(SeekFrom::Start(at)).map_err(io)?;
                // As if they had been read: the tail counts them.
                self.pages = pages;
                if let Next::Tail(tail) = self.next()? {
                    return Ok(tail);
                }
            }
        }
        Err(BackupError::damaged(&self.path, "it has no tail: it is incomplete"))
    }

    pub(super) fn next(&mut self) -> Result<Next, BackupError> {
        let (kind, bytes) = read_record(&mut self.file, &self.path)?;
        let damaged = |why: &str| BackupError::damaged(&self.path, why);
        let page_bytes = self.head.page_bytes as usize;
        match kind {
            PAGE if bytes.len() + HEADER_BYTES == PAGE_FIELDS + page_bytes => {
                self.pages += 1;
                let word = |at| word_at(&bytes, at);
                let long = |at| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
                // A page that this backup should not have would overwrite a newer one from the chain.
                if long(16) <= self.head.since {
                    return Err(damaged("it has a page that belongs to the previous backup"));
                }
                Ok(Next::Page(Copied {
                    page: PageId::new(SpaceId(word(0)), word(4)),
                    lsn: Lsn(long(8)),
                    payload: bytes[PAGE_FIELDS..].to_vec(),
                }))
            }
            TAIL => {
                let tail: Tail =
                    serde_json::from_slice(&bytes).map_err(|_| damaged("its tail is damaged"))?;
                // Each record has its own checksum, so only the number tells that whole records are gone.
                if tail.pages != self.pages {
                    return Err(damaged("pages are missing from it"));
                }
                Ok(Next::Tail(tail))
            }
            _ => Err(damaged("it has a record of an unknown kind or length")),
        }
    }
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(path: &Path, error: std::io::Error) -> BackupError {
    match error.kind() {
        ErrorKind::UnexpectedEof => BackupError::damaged(path, "it is incomplete: it ends within a record"),
        _ => BackupError::io(path)(error),
    }
}

fn read_record(file: &mut impl Read, path: &Path) -> Result<(u32, Vec<u8>), BackupError> {
    let mut fields = [0; RECORD_BYTES];
    file.read_exact(&mut fields).map_err(|e| short(path, e))?;
    let [kind, len, sum] = [0, 4, 8].map(|at| word_at(&fields, at));
    if len > TEXT_BYTES_MAX {
        return Err(BackupError::damaged(path, "it has a record of an impossible length"));
    }
    let mut bytes = Vec::new();
    // Read up to the length, not allocated by it: a damaged one could ask for 1 GiB.
    let read = file.take(u64::from(len)).read_to_end(&mut bytes).map_err(BackupError::io(path))?;
    if read < len as usize {
        return Err(BackupError::damaged(path, "it is incomplete: it ends within a record"));
    }
    if pagetier_page::crc32c_append(pagetier_page::crc32c(&kind.to_le_bytes()), &bytes) != sum {
        return Err(BackupError::damaged(path, "a record's checksum does not match"));
    }
    Ok((kind, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_names_each_free_page_once_and_can_be_read_however_many_there_are() {
        let lists = [(2, 5, 3), (1, 0, 4), (1, 2, 1), (1, 4, 2), (2, 7, 9), (1, 9, 1)];
        assert_eq!(united(lists.to_vec()), [(1, 0, 6), (1, 9, 1), (2, 5, 11)]);
        let free = || (0..2_500_000).map(|nth| (1, 2 * nth + 1_000_000, 1));
        // Free at the begin of the backup and at its end.
        let free = united(free().chain(free()).collect());
        assert_eq!(free.len(), 2_500_000);
        let tail = Tail { pages: 0, next_space: 2, spaces: vec![(1, "t".into(), 8_000_000)], free };
        let bytes = encode_tail(&tail).unwrap();
        assert!(read_record(&mut &bytes[..], Path::new("x")).is_ok(), "{} bytes", bytes.len());
    }
}
