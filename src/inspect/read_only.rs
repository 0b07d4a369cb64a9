//! Opening a store without writing to it.
//!
//! The devices are opened for reading only, each under an overlay that keeps writes in memory; the manifest
//! is a copy in memory. A store that crashed thus recovers in memory, and its files stay unchanged. Shared
//! locks keep a writing store out, and other read-only opens in.

use crate::config::builder::Builder;
use crate::config::choices::{Create, OnHdd, Place};
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::areas::Areas;
use crate::manifest::manifest_store::ManifestStore;
use crate::manifest::medium::Medium;
use crate::manifest::memory::MemoryManifest;
use crate::manifest::saver::Saver;
use crate::ownership::held_dir::At;
use crate::ownership::lock::{FileLock, ReadLocks, owner_of};
use crate::store::devices::Used;
use crate::store::page_store::PageStore;
use pagetier_devio::{MemoryDevice, OpenOptions, OverlayDevice, Reap, SharedDevice};
use pagetier_ssdcache::SsdMode;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The memory for what recovery and the embedder write, in bytes per device.
const WRITES_BYTES_MAX: u64 = 1 << 30;

impl Builder {
    /// Opens an existing store without writing to it: for inspection, verification, and copies of a store
    /// that must not change. Requires no permission to write.
    ///
    /// A store that crashed is recovered in memory: what [`Builder::open`] would write to the devices stays
    /// in this process, so the store looks as after a recovery, and the files do not change. The same holds
    /// for what the embedder writes, for example by redo: it is readable until the store is closed or
    /// dropped, then discarded; [`PageStore::sync`] makes nothing durable. Such writes take memory, at most 1
    /// GiB per device; beyond that they fail for lack of space. Calls that would put another device into use,
    /// or whose result must be durable, fail with [`Error::ReadOnly`](crate::Error::ReadOnly):
    /// [`Ssd::replace`](crate::Ssd::replace), [`Ssd::readmit`](crate::Ssd::readmit),
    /// [`Ssd::abandon`](crate::Ssd::abandon), switching the SSD off or on,
    /// [`Ssd::acknowledge_loss`](crate::Ssd::acknowledge_loss), and [`PageStore::redo_from`], by which an
    /// engine removes its log. The SSD starts in [`SsdMode::ReadOnly`], so
    /// that pages which leave memory are not copied there.
    ///
    /// Any number of read-only opens may exist at the same time, but no writing one.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::PageStore;
    ///
    /// let store = PageStore::builder().directory("/var/lib/db").open_read_only().await?;
    /// for space in store.spaces().list() {
    ///     println!("{}: {} pages", space.name, space.pages);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]; [`OpenError::NotFound`] when there is no store; [`OpenError::AlreadyOpen`]
    /// while a writing store is open or leaving: unlike [`Builder::open`], this does not wait.
    ///
    /// # Panics
    /// As [`Builder::open`].
    pub async fn open_read_only(mut self) -> Result<PageStore, OpenError> {
        let config = &mut self.config;
        config.hold_directories()?;
        let mut used = Used::default();
        let mut locks = Vec::new();
        if let (None, Some(held)) = (&config.memory, &config.held) {
            locks.extend(lock_shared(&At::within(held, "lock"), held.path())?);
        }
        if config.options.manifest.is_on_hdd() {
            config.hdd_device =
                config.overlaid(config.hdd_place(), "hdd.vol", "hdd", &mut locks, &mut used)?;
        }
        let bytes = match config.kept_manifest(config.hdd_device.clone()) {
            Some(manifests) => manifests.bytes().await?,
            None => None,
        };
        let bytes = bytes.ok_or_else(|| config.no_manifest())?;
        // The open works on a copy: what it records of itself must not reach the store's manifest.
        let cell = Arc::new(MemoryManifest::from_bytes(bytes));
        let manifest = ManifestStore::memory(Arc::clone(&cell)).load().await?;
        let manifest = manifest.filter(|m| !m.is_unused()).ok_or_else(|| config.not_found())?;
        let has_ssd = manifest.ssd.is_some() && config.ssd_size() > 0;
        if !std::mem::take(&mut config.options.manifest).is_on_hdd() {
            config.hdd_device =
                config.overlaid(config.hdd_place(), "hdd.vol", "hdd", &mut locks, &mut used)?;
        }
        if has_ssd && let Some(path) = config.missing_ssd() {
            if !config.options.accept_ssd_loss {
                let path = path.display().to_string();
                return Err(manifest.ssd_missing(format!("is missing ({path})"), &path));
            }
            // A blank SSD in memory takes its place.
            config.ssd_device = Some(Arc::new(MemoryDevice::new("ssd", 0)));
        } else if has_ssd {
            config.ssd_device =
                config.overlaid(config.ssd_place(), "ssd.cache", "ssd", &mut locks, &mut used)?;
        } else if manifest.ssd.is_none() && manifest.ring_on_hdd.is_none() {
            config.ring_device =
                config.overlaid(config.ring_place(), "ring", "ring_device", &mut locks, &mut used)?;
        }
        config.memory = Some(cell);
        // No file of the directory is opened or created from here on.
        (config.options.directory, config.held) = (None, None);
        config.options.create = Create::Never;
        config.options.ssd_mode = SsdMode::ReadOnly;
        // The directory was locked first, and is released last.
        locks.reverse();
        self.read_locks = ReadLocks { _held: locks };
        config.read_only = true;
        self.open().await
    }
}

impl Config {
    /// The manifest of an existing store, which is not locked, with the HDD that may have it.
    pub(crate) fn kept_manifest(&self, hdd: Option<SharedDevice>) -> Option<ManifestStore> {
        match (&self.memory, &self.held, hdd.zip(self.options.manifest.on_hdd())) {
            (Some(cell), ..) => Some(ManifestStore::memory(Arc::clone(cell))),
            (None, _, Some((hdd, OnHdd { bytes_max, .. }))) => {
                let areas = Areas::new(Medium::to_read(&hdd), bytes_max);
                Some(ManifestStore::areas(areas, Saver::of_tasks(Handle::current())))
            }
            (None, Some(held), _) if !self.options.manifest.is_on_hdd() => {
                let areas = Areas::in_directory(Arc::clone(held));
                Some(ManifestStore::areas(areas, Saver::of_threads(Handle::current())))
            }
            _ => None,
        }
    }

    /// The device at `place` under an overlay.
    fn overlaid(
        &self,
        place: Place,
        default: &str,
        option: &'static str,
        locks: &mut Vec<FileLock>,
        used: &mut Used,
    ) -> Result<Option<SharedDevice>, OpenError> {
        // Recovery and the engine's redo write. The overlay keeps those writes in memory.
        let over = |device| Some(Arc::new(OverlayDevice::new(device, WRITES_BYTES_MAX)) as SharedDevice);
        if let Place::Device(device) = place {
            return Ok(over(device));
        }
        // Refused by the open, which names the option.
        let Some(at) = self.at(&place, default) else { return Ok(None) };
        used.refuse_twice(&at, option)?;
        let options = OpenOptions {
            direct: self.options.direct_io,
            backend: self.options.io,
            read_only: true,
            reap: Reap::Reactor,
            ..OpenOptions::default()
        };
        let opened = at.open_device(&options)?;
        used.note(&at, option);
        locks.extend(lock_shared(&at, &at.shown)?);
        Ok(over(opened.device))
    }
}

/// A shared lock on the file; `None` if there is no such file. Errors name `named`.
fn lock_shared(at: &At, named: &Path) -> Result<Option<FileLock>, OpenError> {
    let failed = |e: Errno| OpenError::directory(named, "cannot be locked", e.into());
    // The open of a pipe would wait for another process.
    let fd = match at.open(OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(Some(FileLock::new(fd))),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(OpenError::AlreadyOpen { path: named.to_owned(), owner: owner_of(&fd) });
            }
            Err(e) => return Err(failed(e)),
        }
    }
}
