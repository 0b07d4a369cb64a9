//! turso with its database in a space of a store: what turso needs of input and output, on a [`File`].
//!
//! turso hands a completion to each request, and may go on until it is reported. Here each request is
//! carried out before its call returns, as turso's own files on Unix do.

use pagetier::blocking::PageStore;
use pagetier_example_redb::file::File;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use turso_core::io::{FileId, FileSyncType};
use turso_core::{
    Buffer, Clock, Completion, CompletionError, IO, MonotonicInstant, OpenFlags, PlatformIO, Result,
    WallClockInstant, io_error,
};

/// What turso needs: a database is the space of that name, its WAL is a file in a folder. Temporary files,
/// whose names have a folder, are the system's.
pub struct Spaces {
    store: Arc<PageStore>,
    wals: PathBuf,
    system: PlatformIO,
    /// By this turso tells the databases of a process apart.
    number: u64,
    open: Mutex<HashMap<String, Weak<InStore>>>,
}

impl Spaces {
    /// Databases in `store`, with their WALs in the folder `wals`, which exists.
    ///
    /// # Errors
    /// turso's.
    pub fn new(store: Arc<PageStore>, wals: impl Into<PathBuf>) -> Result<Self> {
        // No device of the system has such a number.
        static NUMBER: AtomicU64 = AtomicU64::new(u64::MAX / 2);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Self { store, wals: wals.into(), system: PlatformIO::new()?, number, open: Mutex::default() })
    }

    /// The path of a file that is not in the store.
    fn plain(&self, path: &str) -> Option<PathBuf> {
        if Path::new(path).parent().is_some_and(|folder| folder != Path::new("")) {
            return Some(path.into());
        }
        path.ends_with("-wal").then(|| self.wals.join(path))
    }
}

impl IO for Spaces {
    fn open_file(&self, path: &str, flags: OpenFlags, direct: bool) -> Result<Arc<dyn turso_core::File>> {
        if let Some(plain) = self.plain(path) {
            let plain = plain.to_str().ok_or_else(|| io_error(ErrorKind::InvalidInput.into(), "open"))?;
            return self.system.open_file(plain, flags, direct);
        }
        let mut open = self.open.lock();
        if let Some(file) = open.get(path).and_then(Weak::upgrade) {
            return Ok(file);
        }
        if !flags.contains(OpenFlags::Create) && self.store.spaces().find(path).is_none() {
            return Err(io_error(ErrorKind::NotFound.into(), "open"));
        }
        let file = File::open(Arc::clone(&self.store), path).map_err(|error| io_error(error, "open"))?;
        let file = Arc::new(InStore(file));
        open.insert(path.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        if let Some(plain) = self.plain(path) {
            return std::fs::remove_file(plain).map_err(|error| io_error(error, "remove"));
        }
        self.open.lock().remove(path);
        let space = self.store.spaces().find(path);
        let space = space.ok_or_else(|| io_error(ErrorKind::NotFound.into(), "remove"))?;
        self.store.block_on(self.store.spaces().drop(space)).map_err(|error| io_error(error.into(), "remove"))
    }

    fn file_id(&self, path: &str) -> Result<FileId> {
        match self.plain(path) {
            Some(plain) => self.system.file_id(&plain.to_string_lossy()),
            None => Ok(FileId { dev: self.number, ..FileId::from_path_hash(path) }),
        }
    }
}

impl Clock for Spaces {
    fn current_time_monotonic(&self) -> MonotonicInstant {
        self.system.current_time_monotonic()
    }

    fn current_time_wall_clock(&self) -> WallClockInstant {
        self.system.current_time_wall_clock()
    }
}

/// A database. The store is open in one process, so its lock keeps other ones out.
struct InStore(File);

/// Reports what a request came to.
fn report(completion: Completion, outcome: std::io::Result<usize>, what: &'static str) -> Result<Completion> {
    let count = |bytes: usize| i32::try_from(bytes).map_err(|_| Error::from(ErrorKind::InvalidInput));
    match outcome.and_then(count) {
        Ok(bytes) => completion.complete(bytes),
        Err(error) => completion.error(CompletionError::IOError(error.kind(), what)),
    }
    Ok(completion)
}

impl turso_core::File for InStore {
    fn lock_file(&self, _exclusive: bool) -> Result<()> {
        Ok(())
    }

    fn unlock_file(&self) -> Result<()> {
        Ok(())
    }

    fn pread(&self, pos: u64, c: Completion) -> Result<Completion> {
        let read = self.0.read_at(c.as_read().buf().as_mut_slice(), pos);
        report(c, read, "read")
    }

    fn pwrite(&self, pos: u64, buffer: Arc<Buffer>, c: Completion) -> Result<Completion> {
        report(c, self.0.write_at(buffer.as_slice(), pos), "write")
    }

    fn pwritev(&self, pos: u64, buffers: Vec<Arc<Buffer>>, c: Completion) -> Result<Completion> {
        // The trait's own form does not report the error of a part.
        let mut at = pos;
        for buffer in buffers {
            match self.0.write_at(buffer.as_slice(), at) {
                Ok(bytes) => at += bytes as u64,
                Err(error) => return report(c, Err(error), "write"),
            }
        }
        report(c, Ok((at - pos) as usize), "write")
    }

    fn sync(&self, c: Completion, _sync_type: FileSyncType) -> Result<Completion> {
        report(c, self.0.sync().map(|()| 0), "sync")
    }

    fn size(&self) -> Result<u64> {
        Ok(self.0.len())
    }

    fn truncate(&self, len: u64, c: Completion) -> Result<Completion> {
        report(c, self.0.set_len(len).map(|()| 0), "truncate")
    }
}
