//! The media of the log's segments: files, or memory.
//!
//! `docs/format.md` has the layout of a file.

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The version of the segments' format, and of the records in them.
const LOG_FORMAT: u32 = 2;

/// The oldest version that this program reads: its segments say nothing of ownerships and of writes.
const LOG_FORMAT_MIN: u32 = 1;

/// The start of a segment; the version follows.
const MAGIC: &[u8; 7] = b"PTLOG\0\0";
const HEADER_BYTES: usize = 32;

/// The segments of one log, each named by the position of its first byte. The caller has exclusive use.
pub trait Media: Send + Debug {
    /// The log's identity, drawn when it was created.
    fn id(&self) -> u64;

    /// The log has been accepted: called once, before the first change. An opening that is refused must
    /// change nothing, so what an opening has to write waits until now. Default: nothing.
    ///
    /// # Errors
    /// The medium failed.
    fn own(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The segments' positions, in any order.
    ///
    /// # Errors
    /// The medium failed.
    fn list(&mut self) -> io::Result<Vec<u64>>;

    /// The bytes of a segment.
    ///
    /// # Errors
    /// The medium failed, or the segment is another log's.
    fn read(&mut self, start: u64) -> io::Result<Vec<u8>>;

    /// Creates the segment with these contents, or replaces it as a whole, and makes it durable. After a
    /// crash the segment has either the new contents or the old ones. Later appends go to it.
    ///
    /// # Errors
    /// The medium failed; a later opening may find either state.
    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()>;

    /// Continues a segment that exists and of which `bytes` are the sound part, as an opening does with the
    /// last one: writes them over themselves, cuts off what follows, and makes the segment durable. Needs no
    /// free space where the file system overwrites in place, so that an engine recovers on a full disk. Later
    /// appends go to the segment.
    ///
    /// # Errors
    /// The medium failed. The sound part is intact; what follows it may still be there.
    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()>;

    /// Appends to the segment created or resumed last and makes it durable.
    ///
    /// # Errors
    /// The medium failed. Any part of `bytes` may be readable, and may or may not be durable.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Removes a segment durably: if a crash interrupts several removals in order, the later segments stay.
    ///
    /// # Errors
    /// The medium failed.
    fn remove(&mut self, start: u64) -> io::Result<()>;

    /// Sets room of that many bytes aside for one segment, unless it is set aside already. Default: this
    /// medium sets none aside.
    ///
    /// # Errors
    /// There is no room, or the medium cannot set it aside, or fails.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Err(ErrorKind::Unsupported.into())
    }

    /// As [`Media::create`], in the room set aside, which is then used up: a full medium does not refuse it.
    ///
    /// # Errors
    /// No room is set aside, or too little; otherwise as [`Media::create`].
    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = (start, bytes);
        Err(ErrorKind::StorageFull.into())
    }

    /// The most segments that there can be besides the room set aside. When three quarters of them are in
    /// use, a checkpoint brings the pages home that need the older half. Default: no limit.
    fn segments_max(&self) -> usize {
        usize::MAX
    }

    /// The most bytes that a segment can have. Default: no limit.
    fn room(&self) -> u64 {
        u64::MAX
    }

    /// The segment's name in errors.
    fn path(&self, start: u64) -> PathBuf;

    /// Whether calls block the calling thread.
    fn blocks(&self) -> bool {
        true
    }
}

/// Segments in memory, for stores that live no longer than the process.
#[derive(Debug, Default)]
pub struct MemoryMedia {
    segments: BTreeMap<u64, Vec<u8>>,
    active: u64,
}

impl Media for MemoryMedia {
    fn id(&self) -> u64 {
        0
    }

    fn list(&mut self) -> io::Result<Vec<u64>> {
        Ok(self.segments.keys().copied().collect())
    }

    fn read(&mut self, start: u64) -> io::Result<Vec<u8>> {
        self.segments.get(&start).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.segments.insert(start, bytes.to_vec());
        self.active = start;
        Ok(())
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.create(start, bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.segments.entry(self.active).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        self.segments.remove(&start);
        Ok(())
    }

    fn path(&self, start: u64) -> PathBuf {
        format!("memory/{start:016x}").into()
    }

    fn blocks(&self) -> bool {
        false
    }
}

/// Segments as files of one directory, which is locked while this value lives.
#[derive(Debug)]
pub struct FileMedia {
    dir: PathBuf,
    id: u64,
    active: Option<File>,
    /// The room to set aside: in the file `reserve`, which is the next segment if the disk is full, and in
    /// each segment, so that the oldest one can become that file.
    reserve_bytes: u64,
    /// Whether the file `reserve` has this room.
    has_reserve: bool,
    _lock: Lock,
}

/// The lock on a log's directory. It belongs to the process that took it: a child process that drops its copy
/// of the log does not release it.
#[derive(Debug)]
struct Lock {
    fd: OwnedFd,
    pid: u32,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread starts shares it until it runs
        // its program.
        if self.pid == std::process::id() {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl FileMedia {
    /// Opens the log's directory; creates it if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be used, or another opener has it ([`ErrorKind::ResourceBusy`]).
    pub fn open(dir: &Path) -> io::Result<Self> {
        create_directory(dir)?;
        let lock = lock(dir)?;
        let (reserve_bytes, has_reserve) = (0, false);
        let mut media =
            Self { dir: dir.into(), id: 0, active: None, reserve_bytes, has_reserve, _lock: lock };
        media.id = match media.list()?.into_iter().min() {
            Some(first) => identity(&media.whole(first)?)?,
            None => RandomState::new().build_hasher().finish(),
        };
        Ok(media)
    }

    /// Creates the directory of a log that continues the one with this identity, as for the copy in a backup.
    pub(crate) fn copy(dir: &Path, id: u64) -> io::Result<Self> {
        Ok(Self { id, ..Self::open(dir)? })
    }

    fn whole(&self, start: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(start))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn reserve_path(&self) -> PathBuf {
        self.dir.join("reserve")
    }

    /// Gives a file the room to set aside, its end unchanged.
    fn allocate(&self, file: &File) -> io::Result<()> {
        match self.reserve_bytes {
            0 => Ok(()),
            bytes => Ok(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)?),
        }
    }

    /// Writes a whole segment to `file`, which is at `aside`, and gives it its name.
    fn install(&mut self, mut file: File, aside: &Path, start: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all(&self.header(start))?;
        file.write_all(bytes)?;
        let end = (HEADER_BYTES + bytes.len()) as u64;
        // Only then: it would take away the room beyond the end.
        if file.metadata()?.len() > end {
            file.set_len(end)?;
            let _ = self.allocate(&file);
        }
        file.sync_all()?;
        // Renamed, so that a crash leaves the old contents or the new ones.
        fs::rename(aside, self.path(start))?;
        sync_directory(&self.dir)?;
        self.active = Some(file);
        Ok(())
    }

    fn header(&self, start: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..7].copy_from_slice(MAGIC);
        header[7] = LOG_FORMAT as u8;
        header[8..16].copy_from_slice(&self.id.to_le_bytes());
        header[16..24].copy_from_slice(&start.to_le_bytes());
        let sum = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&sum.to_le_bytes());
        header
    }
}

impl Media for FileMedia {
    fn id(&self) -> u64 {
        self.id
    }

    fn list(&mut self) -> io::Result<Vec<u64>> {
        let mut starts = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let start = name.to_str().and_then(|n| n.strip_suffix(".log")).filter(|n| n.len() == 16);
            starts.extend(start.and_then(|n| u64::from_str_radix(n, 16).ok()));
        }
        Ok(starts)
    }

    fn read(&mut self, start: u64) -> io::Result<Vec<u8>> {
        let mut bytes = self.whole(start)?;
        let of_this_log = identity(&bytes)? == self.id && crate::record::u64_at(&bytes, 16) == start;
        if !of_this_log {
            return Err(invalid("it is not a segment of this log"));
        }
        bytes.drain(..HEADER_BYTES);
        Ok(bytes)
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let aside = self.dir.join("next.tmp");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        // A segment that is written nevertheless is as good; it only gives no room back later.
        let _ = self.allocate(&file);
        let created = self.install(file, &aside, start, bytes);
        if created.is_err() {
            // What it has taken of a full disk others may need. It is gone if only its name is not durable.
            let _ = fs::remove_file(&aside);
        }
        created
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let before = std::mem::replace(&mut self.reserve_bytes, bytes);
        if self.has_reserve {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        // Its contents are those of a segment that was removed, or of a use that a crash interrupted.
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(self.reserve_path())?;
        self.allocate(&file)?;
        file.sync_all()?;
        // If its name were not durable, a power cut could show its next contents under that of the segment
        // that it was.
        sync_directory(&self.dir)?;
        self.has_reserve = true;
        // The segment that an opening has resumed.
        if let Some(active) = self.active.as_ref().filter(|_| before != bytes) {
            let _ = self.allocate(active);
        }
        Ok(())
    }

    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.has_reserve || (HEADER_BYTES + bytes.len()) as u64 > self.reserve_bytes {
            return Err(ErrorKind::StorageFull.into());
        }
        let aside = self.reserve_path();
        let file = OpenOptions::new().write(true).open(&aside)?;
        // Whatever this leaves, the next call of `reserve` looks.
        self.has_reserve = false;
        self.install(file, &aside, start, bytes)
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.path(start))?;
        // The bytes may be readable without being durable: after a failed sync the kernel takes them for
        // written, and only writing them again makes the next sync write them. A crash meanwhile is harmless,
        // because each sector keeps its contents.
        file.write_all(&self.header(start))?;
        file.write_all(bytes)?;
        // Otherwise a later, shorter record could be followed by old bytes that pass for the next record.
        file.set_len((HEADER_BYTES + bytes.len()) as u64)?;
        let _ = self.allocate(&file);
        file.sync_all()?;
        // The name, too, may be readable without being durable, if a crash came between the rename and the
        // directory's sync.
        sync_directory(&self.dir)?;
        self.active = Some(file);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.active else { return Err(ErrorKind::NotFound.into()) };
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        let path = self.path(start);
        let allocated = || fs::metadata(&path).is_ok_and(|file| file.blocks() * 512 >= self.reserve_bytes);
        // Kept as the reserve if there is none: once its room is given back, others may take it.
        let keep = self.reserve_bytes > 0 && !self.has_reserve && allocated();
        match if keep { fs::rename(&path, self.reserve_path()) } else { fs::remove_file(&path) } {
            // An earlier call removed it and could not make that durable.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sync_directory(&self.dir)?;
        self.has_reserve |= keep;
        Ok(())
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(format!("{start:016x}.log"))
    }
}

/// Creates `dir` and its missing parents durably.
fn create_directory(dir: &Path) -> io::Result<()> {
    let Some(parent) = dir.parent() else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let made = !dir.exists();
    if made {
        create_directory(parent)?;
        fs::create_dir(dir)
            .or_else(|e| if e.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })?;
    }
    // Also if it exists: a process that was killed may have made it and not synced.
    match sync_directory(parent) {
        // Another user's directory: this process could not have made it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !made => Ok(()),
        synced => synced,
    }
}

pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// The identity in a segment's header.
fn identity(segment: &[u8]) -> io::Result<u64> {
    let header = segment.get(..HEADER_BYTES).ok_or_else(|| invalid("the segment has no header"))?;
    let sum = u32::from_le_bytes([header[28], header[29], header[30], header[31]]);
    if header[..7] != *MAGIC {
        return Err(invalid("it is not a segment of a log"));
    }
    // The version first: another one may have another header.
    if !(LOG_FORMAT_MIN..=LOG_FORMAT).contains(&u32::from(header[7])) {
        let reads = format!("{LOG_FORMAT_MIN} to {LOG_FORMAT}");
        let why = format!("its format has version {}, and this program reads versions {reads}", header[7]);
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    if crc32c::crc32c(&header[..28]) != sum {
        return Err(invalid("the segment's header is damaged"));
    }
    Ok(crate::record::u64_at(header, 8))
}

/// Locks out a second opener, which would take records being written for a torn tail.
fn lock(dir: &Path) -> io::Result<Lock> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { fd, pid: std::process::id() }),
        Err(Errno::WOULDBLOCK) => Err(ErrorKind::ResourceBusy.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_log_is_free_while_a_starting_child_process_shares_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        // A child process shares open files until it runs its program.
        let shared = held.fd.try_clone().unwrap();
        drop(held);
        assert!(lock(dir.path()).is_ok());
        drop(shared);
    }

    #[test]
    fn a_reserve_keeps_its_room_as_the_next_segment_and_the_oldest_segment_becomes_one() {
        let dir = tempfile::tempdir().unwrap();
        let room = |name: &str| fs::metadata(dir.path().join(name)).map_or(0, |file| file.blocks() * 512);
        let segment = |start: u64| format!("{start:016x}.log");
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.create(64, b"old").unwrap();
        assert_eq!(media.create_reserved(67, b"none").unwrap_err().kind(), ErrorKind::StorageFull);
        if media.reserve(1 << 20).is_err() {
            return; // The file system sets no room aside.
        }
        assert!(room("reserve") >= 1 << 20);
        assert!(media.create_reserved(67, &vec![0; 1 << 20]).is_err(), "more than it has room for");
        media.create_reserved(67, b"next").unwrap();
        media.append(b", more").unwrap();
        assert!(room(&segment(67)) >= 1 << 20 && !dir.path().join("reserve").exists());
        assert_eq!(media.read(67).unwrap(), b"next, more");
        // The segment that was there before has got such room, too, and keeps it.
        media.remove(64).unwrap();
        assert!(room("reserve") >= 1 << 20);
        // What it holds of the old segment does not follow the new one.
        media.create_reserved(77, b"n").unwrap();
        assert_eq!(media.read(77).unwrap(), b"n");
        assert!(room(&segment(77)) >= 1 << 20);
        media.create(78, b"later").unwrap();
        media.remove(67).unwrap();
        media.remove(77).unwrap();
        assert!(room("reserve") >= 1 << 20 && media.list().unwrap() == [78], "one is kept");
        // An opening, too, leaves a segment its room.
        drop(media);
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.reserve(1 << 20).unwrap();
        media.resume(78, b"later").unwrap();
        assert!(room(&segment(78)) >= 1 << 20);
    }

    #[test]
    fn a_reserve_that_fails_is_none_and_is_set_aside_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.create(64, b"old").unwrap();
        // More than any file system has.
        media.reserve(1 << 60).unwrap_err();
        assert_eq!(media.create_reserved(67, b"next").unwrap_err().kind(), ErrorKind::StorageFull);
        media.append(b", more").unwrap();
        if media.reserve(1 << 20).is_err() {
            return; // The file system sets no room aside.
        }
        media.create_reserved(73, b"next").unwrap();
        assert_eq!(media.read(73).unwrap(), b"next");
    }

    #[test]
    fn a_child_process_that_drops_its_copy_of_a_lock_does_not_release_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        drop(Lock { fd: held.fd.try_clone().unwrap(), pid: held.pid + 1 });
        assert_eq!(lock(dir.path()).unwrap_err().kind(), ErrorKind::ResourceBusy);
    }
}
