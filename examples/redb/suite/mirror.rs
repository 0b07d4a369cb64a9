// In place of redb's own file: a file in a store, with the plain file as its mirror. Every write goes to both, and
// every read is compared.

use crate::{DatabaseError, Result, StorageBackend};
use pagetier::{PageStore, blocking};
use pagetier_example_redb::file::File as Stored;
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The stores of this process, by device and inode of the plain file.
static STORES: LazyLock<Mutex<HashMap<(u64, u64), Weak<Stored>>>> = LazyLock::new(Mutex::default);

fn folder_of(key: (u64, u64)) -> PathBuf {
    let all = std::env::var_os("PAGETIER_SUITE").map_or_else(std::env::temp_dir, PathBuf::from);
    all.join(format!("{}-{}-{}", std::process::id(), key.0, key.1))
}

/// The file in the store that belongs to the plain one.
fn stored(plain: &File) -> io::Result<Arc<Stored>> {
    let meta = plain.metadata()?;
    let key = (meta.dev(), meta.ino());
    // A test that panics here says why; the others go on.
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = stores.get(&key).and_then(Weak::upgrade) {
        return Ok(open);
    }
    let folder = folder_of(key);
    // The number of a file that was removed may be another file's now.
    if meta.len() == 0 {
        let _ = std::fs::remove_dir_all(&folder);
    }
    let is_new = !folder.exists();
    let open = || {
        let builder = PageStore::builder().directory(&folder).ssd_bytes(8 << 20).pool_bytes(4 << 20);
        blocking::PageStore::open(builder)
    };
    // The last user of the store may still be closing it.
    let store = (0..100)
        .find_map(|_| match open() {
            Err(pagetier::OpenError::AlreadyOpen { .. }) => {
                std::thread::sleep(Duration::from_millis(50));
                None
            }
            opened => Some(opened),
        })
        .expect("a store is never closed")
        .map_err(io::Error::other)?;
    let stored = Arc::new(Stored::open(Arc::new(store), "redb")?);
    let mut contents = vec![0; meta.len() as usize];
    plain.read_exact_at(&mut contents, 0)?;
    if is_new {
        // Written by another program, or by another version of redb.
        stored.set_len(meta.len())?;
        stored.write_at(&contents, 0)?;
    } else {
        let mut ours = vec![0; stored.len() as usize];
        stored.read_at(&mut ours, 0)?;
        assert!(ours == contents, "RAW: the plain file was changed by other means than this file");
    }
    stores.insert(key, Arc::downgrade(&stored));
    Ok(stored)
}

/// Stores a database as a file in a store.
#[derive(Debug)]
pub struct FileBackend {
    plain: File,
    stored: Mutex<Option<Arc<Stored>>>,
}

impl FileBackend {
    /// Creates a new backend for the given file.
    pub fn new(file: File) -> Result<Self, DatabaseError> {
        Self::new_internal(file, false)
    }

    pub(crate) fn new_internal(file: File, read_only: bool) -> Result<Self, DatabaseError> {
        match if read_only { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => {
                let stored = Mutex::new(Some(stored(&file)?));
                Ok(Self { plain: file, stored })
            }
            Err(TryLockError::WouldBlock) => Err(DatabaseError::DatabaseAlreadyOpen),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    fn stored(&self) -> io::Result<Arc<Stored>> {
        self.stored.lock().unwrap().clone().ok_or_else(|| io::Error::other("closed"))
    }
}

impl Drop for FileBackend {
    /// A plain file keeps what was written and not synced as long as the system runs. A store that is dropped
    /// keeps what was synced, like one whose process was killed.
    fn drop(&mut self) {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stored) = stored {
            stored.sync().expect("synced");
        }
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> Result<u64, io::Error> {
        let len = self.stored()?.len();
        assert_eq!(len, self.plain.metadata()?.len(), "RAW: the length of the mirror");
        Ok(len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let read = self.stored()?.read_at(out, offset)?;
        let mut mirror = vec![0; out.len()];
        self.plain.read_exact_at(&mut mirror, offset)?;
        assert!(read == out.len() && mirror == out, "MISMATCH: {} bytes from {offset} on", out.len());
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.stored()?.set_len(len)?;
        self.plain.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.stored()?.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.stored()?.write_at(data, offset)?;
        self.plain.write_all_at(data, offset)
    }

    fn close(&self) -> Result<(), io::Error> {
        if let Some(stored) = self.stored.lock().unwrap().take() {
            stored.close()?;
        }
        self.plain.unlock()
    }
}
