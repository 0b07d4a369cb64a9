//! The configuration of a store. The open completes it with the directories that it finds; from then on
//! it does not change. What does change while the store runs is in `store::devices`.

use super::choices::{Create, Place};
use super::options::Options;
use crate::error::OpenError;
use crate::manifest::id::id_bytes;
use crate::manifest::memory::MemoryManifest;
use crate::ownership::held_dir::{At, HeldDir};
use pagetier_devio::SharedDevice;
use pagetier_page::StoreSeed;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a store is configured.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) options: Options,
    pub(crate) memory: Option<Arc<MemoryManifest>>,
    pub(crate) hdd_device: Option<SharedDevice>,
    pub(crate) ssd_device: Option<SharedDevice>,
    pub(crate) ring_device: Option<SharedDevice>,
    /// Whether the store is opened for reading only.
    pub(crate) read_only: bool,
    /// The store's directory, from the open on.
    pub(crate) held: Option<Arc<HeldDir>>,
    /// The working directory at the open: relative paths of the options lead from it.
    pub(super) working: Option<Arc<HeldDir>>,
    #[cfg(feature = "probes")]
    pub(crate) before_saves: Option<crate::manifest::saver::BeforeSaves>,
    #[cfg(feature = "probes")]
    pub(crate) map_piece: u32,
    /// The directory is a restoration's: a store in it is unfinished, and begins again as a new one under the
    /// same id, so that devices formatted for it are its own.
    pub(crate) starts_over: bool,
}

impl Config {
    /// The seed of all checksums in the store with this id.
    pub(crate) fn seed(&self, store: &str) -> StoreSeed {
        StoreSeed::of_store(id_bytes(store))
    }

    /// Whether the open may create a store, and files.
    pub(crate) fn creates(&self) -> bool {
        matches!(self.options.create, Create::OnBlank | Create::Overwriting)
    }

    /// Whether what is formatted may hold data.
    pub(crate) fn overwrites(&self) -> bool {
        matches!(self.options.create, Create::NeverOverwritingSsd | Create::Overwriting)
    }

    /// The bytes of the SSD to use.
    pub(crate) fn ssd_size(&self) -> u64 {
        self.options.ssd_bytes.unwrap_or(256 << 20)
    }

    /// Looks the directory up: the working directory, and the store's if it exists. From here on they stay
    /// the same ones.
    pub(crate) fn hold_directories(&mut self) -> Result<(), OpenError> {
        let is_relative = |path: &Option<PathBuf>| path.as_deref().is_some_and(Path::is_relative);
        // Only if needed: a process without a working directory can still open a store by absolute paths.
        if is_relative(&self.options.hdd) || is_relative(&self.options.ssd) {
            let working = HeldDir::working();
            let failed = |e| OpenError::directory(Path::new("."), "cannot be opened", e);
            self.working = Some(working.map_err(failed)?);
        }
        if let (Some(path), None) = (&self.options.directory, &self.memory) {
            self.held = match HeldDir::open(path) {
                Ok(held) => Some(held),
                // It may be created later, once nothing else refuses the open.
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) if e.kind() == ErrorKind::NotADirectory && path.exists() => {
                    return Err(OpenError::NotADirectory { path: path.clone() });
                }
                Err(e) => return Err(OpenError::directory(path, "cannot be opened", e)),
            };
        }
        Ok(())
    }

    /// Where the file or block device of `place` is; `None` for a device of the embedder, or if the file
    /// would be in the directory of a store that has none.
    pub(crate) fn at(&self, place: &Place, default: &str) -> Option<At> {
        match place {
            Place::Path(path) => Some(At::named(path.clone(), self.working.as_ref())),
            Place::Default => self.held.as_ref().map(|held| At::within(held, default)),
            Place::Device(_) => None,
        }
    }

    pub(crate) fn hdd_place(&self) -> Place {
        place_of(self.hdd_device.as_ref(), self.options.hdd.as_ref())
    }

    pub(crate) fn ssd_place(&self) -> Place {
        place_of(self.ssd_device.as_ref(), self.options.ssd.as_ref())
    }

    /// What later messages call the SSD `device`, which is at `place`: they may come from another directory.
    pub(crate) fn ssd_at(&self, place: &Place, device: &SharedDevice) -> String {
        let absolute = self.at(place, "ssd.cache").and_then(|at| std::path::absolute(at.shown).ok());
        absolute.map_or_else(|| device.name().to_owned(), |path| path.display().to_string())
    }

    pub(crate) fn ring_place(&self) -> Place {
        place_of(self.ring_device.as_ref(), None)
    }
}

fn place_of(device: Option<&SharedDevice>, path: Option<&PathBuf>) -> Place {
    match (device, path) {
        (Some(device), _) => Place::Device(Arc::clone(device)),
        (None, Some(path)) => Place::Path(path.clone()),
        (None, None) => Place::Default,
    }
}
