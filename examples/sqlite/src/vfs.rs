//! The virtual file system: databases are files in a store, journals are files of the system.
//!
//! A database is a [`File`] in the space with the name of its path's last part. Its rollback journal or WAL
//! is a file in a folder, or in the store as well. Temporary files are the system's.

use crate::locks::{Locks, Mapped, Shm};
use pagetier::blocking::PageStore;
use pagetier_example_redb::file::File;
use parking_lot::Mutex;
use sqlite_plugin::flags::{AccessFlags, LockLevel, OpenOpts, ShmLockMode};
use sqlite_plugin::vars;
use sqlite_plugin::vfs::{RegisterOpts, Vfs, VfsHandle, VfsResult, register_static};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

/// Where rollback journals and WALs are.
#[derive(Clone, Debug)]
pub enum Journals {
    /// Files in this folder.
    In(PathBuf),
    /// Spaces of the store, like the databases.
    InTheStore,
}

/// A registered file system. SQLite keeps it until the process ends; when this is dropped, it lets go of the
/// store once its databases are closed, and opens no further ones.
#[derive(Debug)]
pub struct Registered(Arc<Mutex<Option<Opened>>>);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// Registers `store` as SQLite's file system `name`, by which connections choose it.
///
/// # Errors
/// The name has a NUL; SQLite refuses.
pub fn register(name: &str, store: Arc<PageStore>, journals: Journals) -> io::Result<Registered> {
    let opened = Arc::new(Mutex::new(Some(Opened { store, journals, files: HashMap::new() })));
    let files = Files(Arc::clone(&opened));
    register_static(CString::new(name)?, files, RegisterOpts { make_default: false })
        .map_err(|code| io::Error::other(format!("SQLite refuses a file system, with code {code}")))?;
    Ok(Registered(opened))
}

/// The store and its open files.
#[derive(Debug)]
struct Opened {
    store: Arc<PageStore>,
    journals: Journals,
    files: HashMap<String, Weak<Shared>>,
}

/// A file in the store, with what its connections share.
#[derive(Debug)]
struct Shared {
    file: File,
    locks: Mutex<Locks>,
    shm: Mutex<Shm>,
}

struct Files(Arc<Mutex<Option<Opened>>>);

/// An open file of a connection.
struct Handle {
    file: Kind,
    level: LockLevel,
    mapped: Mapped,
    readonly: bool,
    /// Removed when it is closed.
    temporary: Option<PathBuf>,
}

enum Kind {
    InStore(Arc<Shared>),
    Plain(fs::File),
}

impl VfsHandle for Handle {
    fn readonly(&self) -> bool {
        self.readonly
    }

    fn in_memory(&self) -> bool {
        false
    }
}

/// The error with this code, unless there is no room.
fn code(code: i32) -> impl Fn(io::Error) -> i32 {
    move |error| if error.kind() == io::ErrorKind::StorageFull { vars::SQLITE_FULL } else { code }
}

/// The last part of a path.
fn name_of(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}

/// Whether this is the name of a database, by the suffixes that SQLite gives to its journals.
fn is_database(name: &str) -> bool {
    !["-journal", "-wal", "-shm"].iter().any(|suffix| name.ends_with(suffix)) && !name.contains("-mj")
}

impl Opened {
    /// The path of a file that is not in the store.
    fn plain(&self, name: &str) -> Option<PathBuf> {
        match &self.journals {
            Journals::In(folder) if !is_database(name) => Some(folder.join(name)),
            _ => None,
        }
    }

    fn in_store(&mut self, name: &str, create: bool) -> io::Result<Arc<Shared>> {
        if let Some(shared) = self.files.get(name).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        if !create && self.store.spaces().find(name).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = File::open(Arc::clone(&self.store), name)?;
        let shared = Arc::new(Shared { file, locks: Mutex::default(), shm: Mutex::default() });
        self.files.insert(name.to_owned(), Arc::downgrade(&shared));
        Ok(shared)
    }
}

/// Opens a file of the system. A new one has a durable name: SQLite relies on a journal's being found.
fn open_plain(path: &Path, readonly: bool, create: bool) -> io::Result<fs::File> {
    let is_new = create && !path.exists();
    let file =
        fs::OpenOptions::new().read(true).write(!readonly).create(create).truncate(false).open(path)?;
    if is_new {
        sync_parent(path)?;
    }
    Ok(file)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

impl Files {
    /// Acts on the store, unless it was let go.
    fn with<T>(&self, act: impl FnOnce(&mut Opened) -> io::Result<T>, failed: i32) -> VfsResult<T> {
        let mut opened = self.0.lock();
        act(opened.as_mut().ok_or(vars::SQLITE_CANTOPEN)?).map_err(code(failed))
    }
}

impl Vfs for Files {
    type Handle = Handle;

    fn canonical_path<'a>(&self, path: Cow<'a, str>) -> VfsResult<Cow<'a, str>> {
        Ok(Cow::Owned(name_of(&path).to_owned()))
    }

    fn open(&self, path: Option<&str>, opts: OpenOpts) -> VfsResult<Handle> {
        let readonly = opts.mode().is_readonly();
        let handle = |file, temporary| Handle {
            file,
            level: LockLevel::Unlocked,
            mapped: Mapped::default(),
            readonly,
            temporary,
        };
        let Some(name) = path.map(name_of).filter(|_| !opts.kind().is_temp()) else {
            return Ok(handle(Kind::Plain(tempfile::tempfile().map_err(code(vars::SQLITE_CANTOPEN))?), None));
        };
        let create = opts.flags() & vars::SQLITE_OPEN_CREATE != 0;
        self.with(
            |opened| {
                let Some(path) = opened.plain(name) else {
                    return Ok(handle(Kind::InStore(opened.in_store(name, create)?), None));
                };
                let file = open_plain(&path, readonly, create)?;
                Ok(handle(Kind::Plain(file), opts.delete_on_close().then_some(path)))
            },
            vars::SQLITE_CANTOPEN,
        )
    }

    fn delete(&self, path: &str) -> VfsResult<()> {
        let name = name_of(path);
        self.with(
            |opened| {
                if let Some(path) = opened.plain(name) {
                    fs::remove_file(&path)?;
                    return sync_parent(&path);
                }
                opened.files.remove(name);
                match opened.store.spaces().find(name) {
                    Some(space) => Ok(opened.store.block_on(opened.store.spaces().drop(space))?),
                    None => Err(io::ErrorKind::NotFound.into()),
                }
            },
            vars::SQLITE_IOERR_DELETE,
        )
    }

    fn access(&self, path: &str, _flags: AccessFlags) -> VfsResult<bool> {
        let name = name_of(path);
        let exists = |opened: &mut Opened| match opened.plain(name) {
            Some(path) => path.try_exists(),
            None => Ok(opened.store.spaces().find(name).is_some()),
        };
        self.with(exists, vars::SQLITE_IOERR_ACCESS)
    }

    fn file_size(&self, handle: &mut Handle) -> VfsResult<usize> {
        let bytes = match &handle.file {
            Kind::InStore(shared) => shared.file.len(),
            Kind::Plain(file) => file.metadata().map_err(code(vars::SQLITE_IOERR_FSTAT))?.len(),
        };
        usize::try_from(bytes).map_err(|_| vars::SQLITE_IOERR_FSTAT)
    }

    fn truncate(&self, handle: &mut Handle, size: usize) -> VfsResult<()> {
        let done = match &handle.file {
            Kind::InStore(shared) => shared.file.set_len(size as u64),
            Kind::Plain(file) => file.set_len(size as u64),
        };
        done.map_err(code(vars::SQLITE_IOERR_TRUNCATE))
    }

    fn write(&self, handle: &mut Handle, offset: usize, data: &[u8]) -> VfsResult<usize> {
        let done = match &handle.file {
            Kind::InStore(shared) => shared.file.write_at(data, offset as u64),
            Kind::Plain(file) => file.write_all_at(data, offset as u64).map(|()| data.len()),
        };
        done.map_err(code(vars::SQLITE_IOERR_WRITE))
    }

    fn read(&self, handle: &mut Handle, offset: usize, data: &mut [u8]) -> VfsResult<usize> {
        let done = match &handle.file {
            Kind::InStore(shared) => shared.file.read_at(data, offset as u64),
            Kind::Plain(file) => read_plain(file, data, offset as u64),
        };
        done.map_err(code(vars::SQLITE_IOERR_READ))
    }

    fn lock(&self, handle: &mut Handle, level: LockLevel) -> VfsResult<()> {
        let Kind::InStore(shared) = &handle.file else { return Ok(()) };
        shared.locks.lock().raise(&mut handle.level, level)
    }

    fn unlock(&self, handle: &mut Handle, level: LockLevel) -> VfsResult<()> {
        if let Kind::InStore(shared) = &handle.file {
            shared.locks.lock().lower(&mut handle.level, level);
        }
        Ok(())
    }

    fn check_reserved_lock(&self, handle: &mut Handle) -> VfsResult<bool> {
        let Kind::InStore(shared) = &handle.file else { return Ok(false) };
        Ok(shared.locks.lock().is_reserved())
    }

    fn sync(&self, handle: &mut Handle) -> VfsResult<()> {
        let done = match &handle.file {
            Kind::InStore(shared) => shared.file.sync(),
            Kind::Plain(file) => file.sync_data(),
        };
        done.map_err(code(vars::SQLITE_IOERR_FSYNC))
    }

    fn close(&self, mut handle: Handle) -> VfsResult<()> {
        if let Kind::InStore(shared) = &handle.file {
            shared.locks.lock().lower(&mut handle.level, LockLevel::Unlocked);
            shared.shm.lock().unmap(&mut handle.mapped);
        }
        match &handle.temporary {
            Some(path) => fs::remove_file(path).map_err(code(vars::SQLITE_IOERR_DELETE)),
            None => Ok(()),
        }
    }

    fn device_characteristics(&self, _handle: &mut Handle) -> VfsResult<i32> {
        // A crash leaves each of the store's pages in one version, so bytes beside those that were written
        // do not change. A page of SQLite that has no blank part is in two of the store's: its write is not
        // atomic.
        Ok(vars::SQLITE_IOCAP_POWERSAFE_OVERWRITE)
    }

    fn shm_map(
        &self,
        handle: &mut Handle,
        region_idx: usize,
        region_size: usize,
        extend: bool,
    ) -> VfsResult<Option<NonNull<u8>>> {
        let Kind::InStore(shared) = &handle.file else { return Err(vars::SQLITE_IOERR) };
        Ok(shared.shm.lock().map(&mut handle.mapped, region_idx, region_size, extend))
    }

    fn shm_lock(&self, handle: &mut Handle, offset: u32, count: u32, mode: ShmLockMode) -> VfsResult<()> {
        let Kind::InStore(shared) = &handle.file else { return Err(vars::SQLITE_IOERR) };
        shared.shm.lock().lock(&mut handle.mapped, offset as usize, count as usize, mode)
    }

    fn shm_barrier(&self, _handle: &mut Handle) {
        fence(Ordering::SeqCst);
    }

    fn shm_unmap(&self, handle: &mut Handle, _delete: bool) -> VfsResult<()> {
        if let Kind::InStore(shared) = &handle.file {
            shared.shm.lock().unmap(&mut handle.mapped);
        }
        Ok(())
    }
}

/// Reads as many bytes as there are.
fn read_plain(file: &fs::File, data: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < data.len() {
        match file.read_at(&mut data[read..], at + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
