//! The media of the log's segments: files, or memory.
//!
//! `docs/format.md` has the layout of a file.
//!
//! A file is a segment if its name is one that this module gives: 16 lower-case hexadecimal digits, then
//! `.log`. Others are ignored, whatever they are: whether a segment is missing is known by the positions of
//! the others, not by what lies beside them.
//!
//! **Spares** are files that a segment takes over and writes over, which costs less (see `appending.rs`): a
//! segment that was removed, or zeroes. A record's checksum covers its position, and in a later segment the
//! same offset is another position, so old records are unsound: `docs/log.md` has the schedules (I47).

use crate::appending::{Appending, BLOCK};
use pagetier_devio::Owner;
use pagetier_devio::files::{Access, DirFile, Directory, RealDir, create_durably};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The newest version of the segments' format, and of the records in them: that of a log whose writes have
/// times, because it is archived.
pub(crate) const LOG_FORMAT: u32 = 3;
/// The version of other logs.
pub(crate) const LOG_FORMAT_USUAL: u32 = 2;

/// The oldest version that this program reads: its segments say nothing of generations and of writes.
const LOG_FORMAT_MIN: u32 = 1;

/// The start of a segment; the version follows.
const MAGIC: &[u8; 7] = b"PTLOG\0\0";
const HEADER_BYTES: usize = 32;

/// The segments of one log, each named by the position of its first byte. The caller has exclusive use.
pub trait Media: Send + Debug {
    /// The log's identity, drawn when it was created.
    fn id(&self) -> u64;

    /// The log has been accepted: called once, before the first change. An open that is refused must
    /// change nothing, so what an open has to write waits until now. Default: nothing.
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

    /// The bytes of a segment, and whatever follows them in its place.
    ///
    /// # Errors
    /// The medium failed, or the segment is another log's.
    fn read(&mut self, start: u64) -> io::Result<Vec<u8>>;

    /// The first `most` bytes of a segment, or fewer if it is shorter. Default: by [`Media::read`].
    ///
    /// # Errors
    /// As [`Media::read`].
    fn peek(&mut self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.read(start)?;
        bytes.truncate(most);
        Ok(bytes)
    }

    /// Creates the segment with these contents, or replaces it as a whole, and makes it durable. After a
    /// crash the segment has either the new contents or the old ones. Later appends go to it.
    ///
    /// # Errors
    /// The medium failed; a later open may find either state.
    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()>;

    /// As [`Media::create`], for a segment that a generation begins, and that the log can do without: refused
    /// if the medium is so full that the segment's space cannot be set aside. Default: as [`Media::create`].
    ///
    /// # Errors
    /// As [`Media::create`].
    fn begin(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.create(start, bytes)
    }

    /// Continues a segment that exists and of which `bytes` are the sound part, as an open does with the
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

    /// Sets space of that many bytes aside for one segment, unless it is set aside already. Default: this
    /// medium sets none aside.
    ///
    /// # Errors
    /// There is no space, or the medium cannot set it aside, or fails.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Err(ErrorKind::Unsupported.into())
    }

    /// As [`Media::create`], in the space set aside, which is then used up: a full medium does not refuse it.
    ///
    /// # Errors
    /// No space is set aside, or too little; otherwise as [`Media::create`].
    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = (start, bytes);
        Err(ErrorKind::StorageFull.into())
    }

    /// The most segments that there can be besides the space set aside. When three quarters of them are in
    /// use, a checkpoint brings the pages home that need the older half. Default: no limit.
    fn segments_max(&self) -> usize {
        usize::MAX
    }

    /// The most bytes that a segment can have. Default: no limit.
    fn segment_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// The version of the segments' format, which is at least this one from now on: called before a record
    /// that needs it. Default: a medium that no other version reads.
    fn format(&mut self, at_least: u32) -> u32 {
        at_least
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

/// The file whose space is set aside.
const RESERVE: &str = "reserve";
/// Begins the names of the files that segments can take over.
const SPARE: &str = "spare-";
/// More would seldom be used: a checkpoint removes few segments.
const SPARES_MAX: usize = 2;
/// The zeroes that are written to a spare if there is none: an open waits for that.
const ZEROED_BYTES_MAX: u64 = 4 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
/// A segment that is being written, or was removed.
const ASIDE: &str = "next.tmp";
/// Locked while the log is open.
const LOCK: &str = "lock";

/// Segments as files of one directory, which is held, and locked, while this value lives. They belong to the
/// process that opened them: a forked one can read them, and is refused otherwise.
#[derive(Debug)]
pub struct FileMedia {
    dir: Arc<dyn Directory>,
    id: u64,
    /// The newest version of a segment, in which later ones are written.
    format: u32,
    active: Option<Appending>,
    /// The space to set aside: in the file `reserve`, which is the next segment if the disk is full, and in
    /// each segment, so that the oldest one can become that file.
    reserve_bytes: u64,
    /// The space that the file `reserve` has, which may be less; 0: there is none. A full disk seldom has
    /// just as many blocks free as were given back.
    reserve_allocated: u64,
    spares: Spares,
    /// A segment whose removal failed, with the name that its file has instead.
    half_removed: Option<(PathBuf, String)>,
    owner: Owner,
    /// Directories that were made for a log that is not in use yet.
    made: Vec<PathBuf>,
    _lock: Option<Box<dyn DirFile>>,
}

#[derive(Debug, Default)]
struct Spares {
    /// Drawn by this open: a former owner that wakes up and renames its spare must not hit one of ours.
    drawn: u64,
    /// The number of names given so far.
    named: u64,
    /// Each spare's name, and the start of the segment that it was; 0: it has zeroes.
    files: Vec<(String, u64)>,
    /// The start of the first segment that this open created since an append failed, which may have left a
    /// bad block behind: earlier ones never become spares.
    created_from: Option<u64>,
}

impl Spares {
    /// A name that no file has had, or may still have after a change of names that failed.
    fn name(&mut self) -> String {
        self.named += 1;
        format!("{SPARE}{:016x}-{}", self.drawn, self.named)
    }
}

impl FileMedia {
    /// Opens the log's directory; creates it if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be used, or another opener has it ([`ErrorKind::ResourceBusy`]).
    pub fn open(dir: &Path) -> io::Result<Self> {
        let made = create_durably(&RealDir::working(), dir)?;
        // Absolute, since the program may have changed its directory by the time that they are removed.
        let made = made.iter().map(std::path::absolute).collect::<io::Result<_>>()?;
        let mut media = Self::on(Arc::new(RealDir::open(dir)?))?;
        media.made = made;
        Ok(media)
    }

    /// As [`FileMedia::open`], for a directory that is open, and whose name is durable.
    ///
    /// # Errors
    /// As [`FileMedia::open`].
    #[doc(hidden)]
    pub fn on(dir: Arc<dyn Directory>) -> io::Result<Self> {
        Self::locked(dir)?.identified(None)
    }

    /// The segments of a log that no store has open, for reading: its directory may be read-only.
    pub(crate) fn reading(dir: Arc<dyn Directory>) -> io::Result<Self> {
        Self::of(dir, None).identified(None)
    }

    /// An archive, or an empty directory for that of the log with this identity.
    pub(crate) fn archive(dir: Arc<dyn Directory>, id: u64) -> io::Result<Self> {
        Self::locked(dir)?.identified(Some(id))
    }

    /// Empties a directory for a log that continues the one with this identity, as for the copy in a backup.
    /// What an interrupted copy left is removed; other files are refused.
    pub(crate) fn copy(dir: Arc<dyn Directory>, id: u64) -> io::Result<Self> {
        let mut media = Self::locked(dir)?;
        media.id = id;
        let left = media.list()?.into_iter().map(name_of).chain([ASIDE.to_owned()]);
        for name in left {
            match media.dir.remove(Path::new(&name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if media.dir.names()?.iter().any(|name| name != LOCK) {
            return Err(Error::new(ErrorKind::AlreadyExists, "it has files that no copy of a log left"));
        }
        Ok(media)
    }

    fn locked(dir: Arc<dyn Directory>) -> io::Result<Self> {
        // Locks out a second opener, which would take records being written for a torn tail.
        let mut lock = dir.open(Path::new(LOCK), Access::Create)?;
        // A refused open removes the file that it created: a lock on that one excludes no opener.
        let named = |lock: &dyn DirFile| {
            Ok::<_, Error>(dir.stat(Path::new(LOCK))?.map(|s| s.id) == Some(lock.stat()?.id))
        };
        if lock.try_lock()? && named(&*lock)? {
            Ok(Self::of(dir, Some(lock)))
        } else {
            Err(ErrorKind::ResourceBusy.into())
        }
    }

    fn of(dir: Arc<dyn Directory>, lock: Option<Box<dyn DirFile>>) -> Self {
        let (active, reserve_bytes, reserve_allocated, owner) = (None, 0, 0, Owner::here());
        let (id, format) = (0, LOG_FORMAT_USUAL);
        let (spares, half_removed, made) = (Spares::default(), None, Vec::new());
        Self {
            dir,
            id,
            format,
            active,
            reserve_bytes,
            reserve_allocated,
            spares,
            half_removed,
            owner,
            made,
            _lock: lock,
        }
    }

    /// `new` is the identity of what has no segment yet; a random one by default.
    fn identified(mut self, new: Option<u64>) -> io::Result<Self> {
        self.id = match self.list()?.into_iter().max() {
            Some(newest) => {
                let header = self.beginning(newest, HEADER_BYTES)?;
                let id = identity(&header)?;
                self.format(header[7].into());
                id
            }
            None => new.unwrap_or_else(drawn_id),
        };
        Ok(self)
    }

    fn whole(&self, start: u64) -> io::Result<Vec<u8>> {
        self.dir.open(Path::new(&name_of(start)), Access::Read)?.read_from(0)
    }

    /// The first `most` bytes of a segment's file.
    fn beginning(&self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        self.dir.open(Path::new(&name_of(start)), Access::Read)?.read_part(0, most)
    }

    fn without_header(&self, start: u64, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let of_this_log = identity(&bytes)? == self.id && crate::record::u64_at(&bytes, 16) == start;
        if !of_this_log {
            return Err(invalid("it is not a segment of this log"));
        }
        bytes.drain(..HEADER_BYTES);
        Ok(bytes)
    }

    /// Gives a file the space to set aside, its end unchanged.
    fn allocate(&self, file: &dyn DirFile) -> io::Result<()> {
        if self.reserve_bytes == 0 { Ok(()) } else { file.allocate(self.reserve_bytes) }
    }

    /// How much of the space that a file has can be the reserve, if it is enough to be one.
    fn usable(&self, allocated: u64) -> Option<u64> {
        let is_enough = self.reserve_bytes > 0 && allocated >= self.reserve_bytes / 2;
        is_enough.then(|| allocated.min(self.reserve_bytes))
    }

    /// Sets the reserve aside.
    fn set_aside(&mut self, bytes: u64) -> io::Result<()> {
        // Its contents are those of a segment that was removed, or of a use that a crash interrupted.
        let file = self.dir.open(Path::new(RESERVE), Access::Create)?;
        let allocated = match self.allocate(&*file) {
            Ok(()) => bytes,
            Err(error) => {
                // What it got of a full disk may do, or a part that fits. So does what it had before.
                let taken = self.usable(file.stat()?.allocated);
                let taken = taken.or_else(|| file.allocate(bytes / 2).ok().map(|()| bytes / 2));
                taken.ok_or(error)?
            }
        };
        file.sync()?;
        // If its name were not durable, a power cut could show its next contents under the name of the
        // segment that it was.
        self.dir.sync()?;
        self.reserve_allocated = allocated;
        Ok(())
    }

    fn whole_file(&self, start: u64, bytes: &[u8]) -> Vec<u8> {
        [&self.header(start)[..], bytes].concat()
    }

    /// Writes a whole segment to `file`, which is at `aside`, and gives it its name.
    fn install(&mut self, file: Box<dyn DirFile>, aside: &str, start: u64, bytes: &[u8]) -> io::Result<()> {
        let mut whole = self.whole_file(start, bytes);
        let (end, is_spare) = (whole.len(), is_spare(OsStr::new(aside)));
        if is_spare {
            // Directly behind the head, what the file had could pass for what precedes the records.
            whole.resize(end.next_multiple_of(BLOCK), 0);
        }
        file.write_at(0, &whole)?;
        let had = file.stat()?;
        // Only if it is longer: a cut also takes away the space beyond the end. A full disk gives back at
        // most the space that the file had.
        if had.len > end as u64 && !is_spare {
            file.set_len(end as u64)?;
            let _ = file.allocate(had.allocated.min(self.reserve_bytes));
        }
        file.sync()?;
        // Renamed, so that a crash leaves the old contents or the new ones.
        self.dir.rename(Path::new(aside), Path::new(&name_of(start)))?;
        self.spares.created_from.get_or_insert(start);
        self.dir.sync()?;
        self.active = Some(if is_spare {
            Appending::over(file, &whole[..end], had.len)
        } else {
            Appending::growing(file, end as u64, self.reserve_bytes > 0)
        });
        Ok(())
    }

    /// Creates a segment in the file of a spare; `None`: there is none.
    fn create_over(&mut self, start: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        // In a file that had this position at the same place, old records would be sound.
        let fits = |(_, was): &(String, u64)| *was == 0 || was + BLOCK as u64 <= start;
        let (name, _) = self.spares.files.pop_if(|spare| fits(spare))?;
        let file = self.dir.open(Path::new(&name), Access::Write).ok();
        let created = file.map(|file| self.install(file, &name, start, bytes));
        if !matches!(created, Some(Ok(()))) {
            // It may have records that are never confirmed, at the place of later ones.
            let _ = self.dir.remove(Path::new(&name));
        }
        created
    }

    /// Writes a spare with zeroes: a log that was just opened has removed no segment yet.
    fn fill_spare(&mut self, name: String) -> io::Result<()> {
        let file = self.dir.open(Path::new(&name), Access::Replace)?;
        // A full disk refuses this before anything is taken of it.
        self.allocate(&*file)?;
        for at in (0..self.reserve_bytes.min(ZEROED_BYTES_MAX)).step_by(ZEROES.len()) {
            file.write_at(at, &ZEROES)?;
        }
        file.sync()?;
        self.spares.files.push((name, 0));
        Ok(())
    }

    /// Gives a segment its name back whose removal failed. Before that nothing may be written to its file: a
    /// power cut could show the segment's name again, with that in it (I47).
    fn undo_removal(&mut self) -> io::Result<()> {
        let Some((aside, name)) = &self.half_removed else { return Ok(()) };
        match self.dir.rename(aside, Path::new(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => self.half_removed = None,
        }
        Ok(())
    }

    /// Creates a segment; if its space cannot be set aside, only if `goes_on` says so.
    fn create_if(
        &mut self,
        start: u64,
        bytes: &[u8],
        goes_on: impl FnOnce(&Error) -> bool,
    ) -> io::Result<()> {
        self.owner.check()?;
        self.undo_removal()?;
        if let Some(created) = self.create_over(start, bytes) {
            return created;
        }
        let file = self.dir.open(Path::new(ASIDE), Access::Replace)?;
        let created = match self.allocate(&*file) {
            Err(error) if !goes_on(&error) => Err(error),
            _ => self.install(file, ASIDE, start, bytes),
        };
        if created.is_err() {
            // What it has taken of a full disk others may need. It is gone if only its name is not durable.
            let _ = self.dir.remove(Path::new(ASIDE));
        }
        created
    }

    fn header(&self, start: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..7].copy_from_slice(MAGIC);
        header[7] = self.format as u8;
        header[8..16].copy_from_slice(&self.id.to_le_bytes());
        header[16..24].copy_from_slice(&start.to_le_bytes());
        let sum = pagetier_page::crc32c(&header[..28]);
        header[28..].copy_from_slice(&sum.to_le_bytes());
        header
    }
}

impl Drop for FileMedia {
    fn drop(&mut self) {
        // The log was refused, or never used: an empty directory in its place would be in the way of the
        // right one. Under the lock, so that no other opener has it.
        if !self.made.is_empty() && self.owner.is_here() {
            let _ = self.dir.remove(Path::new(LOCK));
            for made in self.made.iter().rev() {
                let _ = RealDir::working().remove_directory(made);
            }
        }
    }
}

impl Media for FileMedia {
    fn id(&self) -> u64 {
        self.id
    }

    fn own(&mut self) -> io::Result<()> {
        self.owner.check()?;
        self.made.clear();
        self.spares = Spares { drawn: drawn_id(), ..Spares::default() };
        // Old spares may have records that end where this open's will, and a former owner may write there.
        let names = self.dir.names()?;
        let found = names.iter().filter(|name| is_spare(name));
        found.for_each(|spare| drop(self.dir.remove(Path::new(spare))));
        // After a kill its old name may still be durable, and a segment that was written to it would be found
        // under that.
        match self.dir.remove(Path::new(ASIDE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn list(&mut self) -> io::Result<Vec<u64>> {
        let start = |name: &str| u64::from_str_radix(name.strip_suffix(".log")?, 16).ok();
        let names = self.dir.names()?;
        let names = names.iter().filter_map(|name| name.to_str());
        Ok(names.filter_map(|name| start(name).filter(|start| name == name_of(*start))).collect())
    }

    fn read(&mut self, start: u64) -> io::Result<Vec<u8>> {
        self.without_header(start, self.whole(start)?)
    }

    fn peek(&mut self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        self.without_header(start, self.beginning(start, HEADER_BYTES + most)?)
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        // A segment that is written nevertheless is as good; it only gives no space back later.
        self.create_if(start, bytes, |_| true)
    }

    fn begin(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let before = self.active.take();
        // Without its space, the log would have no segment that can become the reserve: see below.
        if let Err(error) = self.create_if(start, bytes, |error| error.kind() != ErrorKind::StorageFull) {
            self.active = before;
            return Err(error);
        }
        // The segment before ends early, and gives back what its records do not take: otherwise each open
        // would take the space of a whole segment. Only now, since this one has the space that the next
        // reserve needs. It is kept until the segment goes if this fails, or after a crash here.
        if let Some(before) = before {
            before.cut();
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.owner.check()?;
        self.undo_removal()?;
        self.reserve_bytes = bytes;
        if self.reserve_allocated < bytes {
            self.set_aside(bytes)?;
        }
        // Only with a reserve: this space can be done without.
        if self.spares.files.is_empty() {
            let name = self.spares.name();
            if self.fill_spare(name.clone()).is_err() {
                let _ = self.dir.remove(Path::new(&name));
            }
        }
        Ok(())
    }

    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.owner.check()?;
        // Undone later, it could take the name of the new segment.
        self.undo_removal()?;
        if (HEADER_BYTES + bytes.len()) as u64 > self.reserve_allocated {
            return Err(ErrorKind::StorageFull.into());
        }
        let file = self.dir.open(Path::new(RESERVE), Access::Write)?;
        self.reserve_allocated = 0;
        self.install(file, RESERVE, start, bytes)
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.owner.check()?;
        let file = self.dir.open(Path::new(&name_of(start)), Access::Write)?;
        // The bytes may be readable without being durable: after a failed sync the kernel takes them for
        // written, and only writing them again makes the next sync write them. A crash meanwhile is harmless,
        // because each sector keeps its contents.
        let whole = self.whole_file(start, bytes);
        file.write_at(0, &whole)?;
        let end = whole.len() as u64;
        // Otherwise a later, shorter record could be followed by old bytes that pass for the next record.
        file.set_len(end)?;
        let _ = self.allocate(&*file);
        let is_allocated = self.reserve_bytes > 0;
        file.sync()?;
        // The names, too, may be readable without being durable, if a crash came between a rename and the
        // directory's sync, or after a sync that failed. Only if some name changes does the next one write.
        let _ = self.dir.open(Path::new(ASIDE), Access::Create);
        let _ = self.dir.remove(Path::new(ASIDE));
        self.dir.sync()?;
        self.active = Some(Appending::growing(file, end, is_allocated));
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.owner.check()?;
        let active = self.active.as_mut().ok_or(ErrorKind::NotFound)?;
        let appended = active.append(bytes, self.reserve_bytes);
        if appended.is_err() {
            self.spares.created_from = None;
        }
        appended
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        self.owner.check()?;
        self.undo_removal()?;
        let name = name_of(start);
        let Some(stat) = self.dir.stat(Path::new(&name))? else { return self.dir.sync() };
        // Kept as the reserve if there is none: once its space is given back, others may take it.
        let keep = self.usable(stat.allocated).filter(|_| self.reserve_allocated == 0);
        // Or as a spare, if all of it was written, and a long record has not made it much longer than others.
        // An earlier owner may still write to what this one found.
        let is_ours = self.spares.created_from.is_some_and(|from| from <= start);
        let is_usual = (1..=stat.len).contains(&self.reserve_bytes) && stat.len <= 3 * self.reserve_bytes;
        let takes = keep.is_none() && is_ours && is_usual && self.spares.files.len() < SPARES_MAX;
        let spare = takes.then(|| self.spares.name());
        let other = if keep.is_some() { RESERVE } else { ASIDE };
        let aside = Path::new(spare.as_deref().unwrap_or(other));
        self.dir.rename(Path::new(&name), aside)?;
        if let Err(error) = self.dir.sync() {
            // It is still a segment, to be removed later. That must change a name: the next sync of the
            // directory may succeed without writing what this one has not.
            self.half_removed = Some((aside.to_owned(), name));
            let _ = self.undo_removal();
            return Err(error);
        }
        self.reserve_allocated += keep.unwrap_or(0);
        if let Some(spare) = spare {
            self.spares.files.push((spare, start));
        } else if keep.is_none() {
            // If this fails, the next segment takes the file.
            let _ = self.dir.remove(aside);
        }
        Ok(())
    }

    fn format(&mut self, at_least: u32) -> u32 {
        self.format = self.format.max(at_least);
        self.format
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.path().join(name_of(start))
    }
}

/// A new log's identity.
pub(crate) fn drawn_id() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn is_spare(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(SPARE.as_bytes())
}

fn name_of(start: u64) -> String {
    format!("{start:016x}.log")
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
    if pagetier_page::crc32c(&header[..28]) != sum {
        return Err(invalid("the segment's header is damaged"));
    }
    Ok(crate::record::u64_at(header, 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_reserve_keeps_its_room_as_the_next_segment_and_the_oldest_segment_becomes_one() {
        let dir = tempfile::tempdir().unwrap();
        let room = |name: &str| fs::metadata(dir.path().join(name)).map_or(0, |file| file.blocks() * 512);
        let segment = |start: u64| format!("{start:016x}.log");
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.create(64, b"old").unwrap();
        assert_eq!(media.create_reserved(67, b"none").unwrap_err().kind(), ErrorKind::StorageFull);
        if media.reserve(1 << 20).is_err() {
            return; // The file system sets no space aside.
        }
        assert!(room("reserve") >= 1 << 20);
        // What was there before the first call gets space with the next record.
        media.append(b"er").unwrap();
        assert!(media.create_reserved(67, &vec![0; 1 << 20]).is_err(), "more than it has room for");
        media.create_reserved(67, b"next").unwrap();
        media.append(b", more").unwrap();
        assert!(room(&segment(67)) >= 1 << 20 && !dir.path().join("reserve").exists());
        assert_eq!(media.read(67).unwrap(), b"next, more");
        // The segment that was there before has got such space, too, and keeps it.
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
        // An open, too, leaves a segment its space.
        drop(media);
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.reserve(1 << 20).unwrap();
        media.resume(78, b"later").unwrap();
        assert!(room(&segment(78)) >= 1 << 20);
    }

    /// Schedule: a segment that ended early goes while the reserve is in use, and becomes the next one.
    #[test]
    fn a_reserve_that_is_short_gets_the_rest_of_its_room() {
        let dir = tempfile::tempdir().unwrap();
        let room = || fs::metadata(dir.path().join("reserve")).map_or(0, |file| file.blocks() * 512);
        let mut media = FileMedia::open(dir.path()).unwrap();
        if media.reserve(1 << 20).is_err() {
            return; // The file system sets no space aside.
        }
        media.create(64, &vec![1; 600 << 10]).unwrap();
        media.begin((64 << 10) + 1, b"next").unwrap();
        media.create_reserved(1 << 20, b"in use").unwrap();
        media.remove(64).unwrap();
        assert!((600 << 10..1 << 20).contains(&room()), "{}", room());
        media.reserve(1 << 20).unwrap();
        assert!(room() >= 1 << 20);
        media.create_reserved(2 << 20, &vec![2; 900 << 10]).unwrap();
    }

    #[test]
    fn a_log_without_a_reserve_leaves_nothing_of_a_removed_segment() {
        let dir = tempfile::tempdir().unwrap();
        let mut media = FileMedia::open(dir.path()).unwrap();
        media.create(64, b"old").unwrap();
        media.create(67, b"new").unwrap();
        media.remove(64).unwrap();
        let names = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
        let names: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(names, [LOCK.to_owned(), name_of(67)].map(OsString::from).into());
    }
}
