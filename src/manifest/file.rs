//! The manifest's file in the store's directory. It is laid out as the head of an HDD that has the manifest
//! ([`areas`](super::areas)): a block that earlier versions refuse with a clear error, the headers of two
//! areas, then the areas. A save overwrites an area and needs no space, even on a full disk.
//!
//! A new file is made for a new store, for a manifest of earlier versions (one text, not two areas), and when
//! the areas have become too small. It is written under another name with all that it will ever need, synced,
//! and renamed. So `manifest.json` is one of the two files, whole, at every moment; a crash leaves either,
//! and nothing else is ever read.
//!
//! A name that can be seen may not be durable: a sync of the directory may have failed, or the process that
//! renamed the file was killed. A later sync may succeed without writing what an earlier one has lost. So
//! before the first save of a process, and before the next one after a failure, a name in the directory is
//! changed, which makes the file system write the directory again, and that is synced (I43).
//!
//! **Only ours.** The file stays open, so no save reaches a file that has taken its place: another store's,
//! or a copy. But what is saved to a file that has lost its name would be lost with it. So a save is refused
//! when `manifest.json` is not the open file (I40). A missing file is made again.

use super::tail;
use crate::ownership::held_dir::HeldDir;
use pagetier_devio::files::{Access, DirFile, Identity};
use pagetier_devio::overwrite_in_place;
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const FILE: &str = "manifest.json";
/// Versions before the areas kept a second file to overwrite.
pub(crate) const SPARE: &str = "manifest.spare";
const FRESH: &str = "manifest.json.new";

/// The start of the file: a manifest without spaces of a format that earlier versions do not read. Without it
/// they would take the file for damaged.
const PREAMBLE: &[u8] = br#"{"format":7,"store":"","page_bytes":4096,"generation":0,"epoch":0,"opened":0,"closed":0,"ssd":null,"next_space":1,"extents_used":0,"extents_free":[],"spaces":[]}"#;

/// Why a file that is too short is refused.
pub(super) const CUT: &str = "it was cut: its end is missing";

/// The store's `manifest.json` is not the file that this store wrote.
#[derive(Debug, thiserror::Error)]
#[error("another manifest has taken the place of this store's")]
pub(crate) struct NotOurs {
    pub(crate) path: PathBuf,
}

/// The manifest's file. See the module.
#[derive(Debug)]
pub(crate) struct ManifestFile {
    directory: Arc<HeldDir>,
    held: Mutex<Option<Held>>,
    /// A sync of the directory has failed in this process: a later one may succeed without the names that
    /// this lost.
    lost_names: AtomicBool,
}

/// The open file.
#[derive(Debug)]
struct Held {
    file: Box<dyn DirFile>,
    id: Identity,
    /// It is open for writing, and its name is durable.
    is_ready: bool,
}

impl Held {
    fn of(file: Box<dyn DirFile>) -> Result<Self> {
        Ok(Self { id: file.stat()?.id, file, is_ready: false })
    }
}

/// The first block of a file with areas.
pub(super) fn preamble() -> Vec<u8> {
    let mut block = tail::sealed(PREAMBLE, 0);
    block.resize(tail::BLOCK, b'\n');
    block
}

impl ManifestFile {
    pub(crate) fn new(directory: Arc<HeldDir>) -> Self {
        Self { directory, held: Mutex::default(), lost_names: AtomicBool::default() }
    }

    pub(crate) fn directory(&self) -> &Arc<HeldDir> {
        &self.directory
    }

    /// Opens the file that has the name now, if there is one.
    pub(super) fn open(&self) -> Result<()> {
        *self.held.lock() = match self.directory.open_file(FILE, Access::Read) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            file => Some(Held::of(file?)?),
        };
        Ok(())
    }

    /// Makes the file ready for a save. Returns false if there is none.
    pub(super) fn is_ready(&self) -> Result<bool> {
        let mut held = self.held.lock();
        let Some(found) = self.directory.identity_of(FILE)? else { return Ok(false) };
        let held = held.as_mut().filter(|held| held.id == found).ok_or_else(|| self.not_ours())?;
        if !held.is_ready {
            let file = Held::of(self.directory.open_file(FILE, Access::Write)?)?;
            if file.id != found {
                return Err(self.not_ours());
            }
            *held = file;
            self.settle_name(held)?;
        }
        Ok(true)
    }

    fn not_ours(&self) -> Error {
        Error::other(NotOurs { path: self.directory.path().join(FILE) })
    }

    /// Makes the name of the open file durable.
    fn settle_name(&self, held: &mut Held) -> Result<()> {
        let touched = self.directory.open_file(FRESH, Access::Create);
        match touched.and_then(|_| self.directory.remove(FRESH)).map_err(full) {
            // There is no room for a further file: the sync has to do, unless one is known to have failed.
            Err(error)
                if error.kind() == ErrorKind::StorageFull && !self.lost_names.load(Ordering::Relaxed) => {}
            touched => touched?,
        }
        self.directory.sync().inspect_err(|_| self.lost_names.store(true, Ordering::Relaxed))?;
        self.lost_names.store(false, Ordering::Relaxed);
        held.is_ready = true;
        Ok(())
    }

    /// Puts a new file of these `bytes` in the place of the present one. After an error the present one has
    /// its name; until [`Self::is_ready`] says so, the name of the new one is not durable.
    pub(super) fn put(&self, bytes: &[u8]) -> Result<()> {
        let mut held = self.held.lock();
        // Nothing reads it, and its space may be needed.
        let _ = self.directory.remove(SPARE);
        // Emptied: a killed process may have left a file of that name, which nothing reads.
        let written = self.directory.open_file(FRESH, Access::Replace).and_then(|file| {
            if let Some(new) = file.as_file() {
                overwrite_in_place(new);
            }
            file.write_at(0, bytes).map_err(full)?;
            file.sync().map_err(full)?;
            let held = Held::of(file)?;
            self.directory.rename(FRESH, FILE)?;
            Ok(held)
        });
        let written = written.inspect_err(|_| {
            // Free the space that the file took.
            let _ = self.directory.remove(FRESH);
        })?;
        *held = Some(written);
        Ok(())
    }

    pub(super) fn size(&self) -> Result<u64> {
        self.held.lock().as_ref().map_or(Ok(0), |held| Ok(held.file.stat()?.len))
    }

    /// Reads the whole file; `None` if there is none.
    pub(super) fn read_whole(&self) -> Result<Option<Vec<u8>>> {
        self.held.lock().as_ref().map(|held| held.file.read_from(0)).transpose()
    }

    pub(super) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let bytes = self.with(|file| file.read_part(at, len))?;
        if bytes.len() < len { Err(Error::new(ErrorKind::InvalidData, CUT)) } else { Ok(bytes) }
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.with(|file| file.write_at(at, bytes)).map_err(full)
    }

    /// Makes what was written durable: the size never changes, so its metadata need not be flushed.
    pub(super) fn sync(&self) -> Result<()> {
        self.with(|file| file.sync_data()).map_err(full)
    }

    fn with<T>(&self, act: impl FnOnce(&dyn DirFile) -> Result<T>) -> Result<T> {
        self.held.lock().as_ref().map_or_else(|| Err(ErrorKind::NotFound.into()), |held| act(&*held.file))
    }
}

/// Treats an exhausted quota as a full disk.
fn full(error: Error) -> Error {
    match error.kind() {
        ErrorKind::QuotaExceeded => Error::new(ErrorKind::StorageFull, error),
        _ => error,
    }
}
