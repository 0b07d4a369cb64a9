//! Where a database lives: files in a folder, given files or devices, or memory.

use crate::OpenDevice;
use crate::command::cli::{Cli, HddModel, Io, SsdModel};
use crate::command::policies::Policies;
use pagetier::{
    Builder, MemoryManifest, PageSize, PageStore, SsdPolicy,
    device::{Backend, MemoryDevice, SharedDevice},
    options::CostSource,
    options::Create,
    options::OnHdd,
};
use pagetier_devio::{OpenOptions, open_file};
use pagetier_subscriber::names_a_device;
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice, VirtualClock};
use pagetier_wal::{Keep, Wal, WalError, WalOptions};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The pool's size during a load, in bytes.
const LOAD_POOL_BYTES: u64 = 256 << 20;

/// The size of a new home volume in bytes: it grows.
const NEW_HOME_BYTES: u64 = 64 << 20;

/// The size of a new log volume in bytes.
const NEW_LOG_BYTES: u64 = 4 << 30;

/// Why the location cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocationError {
    /// An I/O error on a file or folder.
    #[error("{path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The notes of an earlier run are unreadable.
    #[error("{path}: the notes of an earlier run cannot be read: {why}", path = .path.display())]
    Notes {
        path: PathBuf,
        /// What is wrong with them.
        why: String,
    },
    /// A database would be loaded beside the log of another one.
    #[error("{path}: there is a log of another database: load into another folder", path = .path.display())]
    LogInTheWay { path: PathBuf },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] pagetier::device::DeviceError),
    /// A device that is neither a file nor a block device cannot be opened.
    #[error("a device cannot be opened")]
    Open(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
}

/// A kept folder's description of its database, written once the load is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Notes {
    pub(crate) page_bytes: u64,
    /// The size of the loaded database.
    pub(crate) loaded_bytes: u64,
    pub(crate) ssd_bytes: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) log_bytes: u64,
}

enum Place {
    Files { dir: PathBuf, removed_at_end: Option<TempDir> },
    Memory { hdd: Arc<MemoryDevice>, ssd: Arc<MemoryDevice>, manifest: Arc<MemoryManifest> },
}

/// The location of the database between opens.
pub(crate) struct Location {
    place: Place,
    hdd: Option<PathBuf>,
    /// The HDD, and the log, on devices that are neither files nor block devices.
    hdd_device: Option<SharedDevice>,
    log_device: Option<SharedDevice>,
    ssd_log_bytes: Option<u64>,
    ssd: Option<PathBuf>,
    model: HddModel,
    ssd_model: SsdModel,
    clock: EmulatedClock,
    io: Backend,
    force: bool,
}

/// A store to be opened, with the switch for the delays of its emulated devices.
pub(crate) struct Prepared {
    pub(crate) builder: Builder,
    emulated: Vec<Arc<EmulatedDevice>>,
    /// The backend of the file behind an emulated HDD.
    pub(crate) backend: Option<&'static str>,
}

impl Prepared {
    /// A function that switches the delays.
    pub(crate) fn delays(&self) -> impl Fn(bool) + use<> {
        let devices = self.emulated.clone();
        move |on| devices.iter().for_each(|device| device.set_timing(on))
    }
}

impl Location {
    /// The location that the command line selects. `clock` is that of virtual time.
    pub(crate) fn new(cli: &Cli, clock: Option<VirtualClock>) -> Result<Self, LocationError> {
        let place = if cli.emulated() {
            Place::Memory {
                hdd: Arc::new(MemoryDevice::new("hdd", 0)),
                ssd: Arc::new(MemoryDevice::new("ssd", 0)),
                manifest: Arc::default(),
            }
        } else if let Some(dir) = &cli.dir {
            std::fs::create_dir_all(dir).map_err(io(dir))?;
            Place::Files { dir: dir.clone(), removed_at_end: None }
        } else {
            let temp = tempfile::Builder::new().prefix("tpcc_lite-").tempdir();
            let temp = temp.map_err(io(&std::env::temp_dir()))?;
            Place::Files { dir: temp.path().to_path_buf(), removed_at_end: Some(temp) }
        };
        let io = match cli.io {
            None => Backend::Auto,
            Some(Io::Uring) => Backend::Uring,
            Some(Io::Threads) => Backend::Threads,
        };
        Ok(Self {
            place,
            hdd: cli.hdd.clone(),
            hdd_device: None,
            log_device: None,
            ssd_log_bytes: cli.ssd_log_bytes,
            ssd: cli.ssd.clone(),
            model: cli.hdd_model,
            ssd_model: cli.ssd_model,
            clock: clock.map_or(EmulatedClock::Wall, EmulatedClock::Virtual),
            io,
            force: cli.force,
        })
    }

    /// Opens the devices of the command line that are neither files nor block devices.
    pub(crate) fn with_devices(mut self, cli: &Cli, open: OpenDevice) -> Result<Self, LocationError> {
        let name = cli.hdd.as_ref().map(|path| path.to_string_lossy().into_owned());
        if let Some(name) = name.as_deref().filter(|name| names_a_device(name)) {
            self.hdd_device = Some(open(name, NEW_HOME_BYTES).map_err(LocationError::Open)?);
        }
        if let Some(name) = &cli.log_device {
            self.log_device = Some(open(name, NEW_LOG_BYTES).map_err(LocationError::Open)?);
        }
        Ok(self)
    }

    /// The store on the files or devices of this location.
    fn on_files(&self, builder: Builder, dir: &Path) -> Builder {
        let builder = self.ssd.iter().fold(builder.directory(dir), Builder::ssd);
        match (&self.hdd_device, &self.hdd) {
            // Another machine may open the device, and can find the manifest only there.
            (Some(device), _) => builder.hdd(Arc::clone(device)).manifest(OnHdd::default()),
            (None, Some(path)) => builder.hdd(path),
            (None, None) => builder,
        }
    }

    /// A copy of the loaded location in memory under another clock; runs on copies are independent.
    pub(crate) fn share(&self, clock: EmulatedClock) -> Option<Self> {
        let Place::Memory { hdd, ssd, manifest } = &self.place else { return None };
        // The devices may be shared, because a run opens forks of them: none is written after the load.
        let (hdd, ssd, manifest) = (Arc::clone(hdd), Arc::clone(ssd), Arc::clone(manifest));
        Some(Self {
            place: Place::Memory { hdd, ssd, manifest },
            hdd: None,
            hdd_device: None,
            log_device: None,
            ssd_log_bytes: self.ssd_log_bytes,
            ssd: None,
            model: self.model,
            ssd_model: self.ssd_model,
            clock,
            io: self.io,
            force: self.force,
        })
    }

    /// Whether the HDD is a device of another kind, such as an image on Ceph. Another machine could open it.
    pub(crate) fn is_on_a_device(&self) -> bool {
        self.hdd_device.is_some()
    }

    /// Descriptions of HDD and SSD.
    pub(crate) fn describe(&self) -> (String, String) {
        let pace = match self.model {
            HddModel::Paper => "at the speed of the paper's disk",
            HddModel::Rpm7200 => "at the speed of a 7200 rpm disk",
            HddModel::Replicated => "at the speed of a replicated volume",
            HddModel::None => "at its own speed",
        };
        let given = |path: &Path| format!("{} at its own speed", path.display());
        match &self.place {
            Place::Files { dir, .. } => (
                self.hdd
                    .as_deref()
                    .map_or_else(|| format!("{} {pace}", dir.join("hdd.vol").display()), given),
                given(self.ssd.as_ref().unwrap_or(&dir.join("ssd.cache"))),
            ),
            Place::Memory { .. } => {
                let ssd_pace = match self.ssd_model {
                    SsdModel::Paper => "at the speed of the paper's SSD",
                    SsdModel::Nvme => "at the speed of an NVMe device",
                };
                (format!("memory {pace}"), format!("memory {ssd_pace}"))
            }
        }
    }

    /// Whether the run leaves nothing behind.
    pub(crate) fn is_temporary(&self) -> bool {
        let on_device = self.hdd_device.is_some() || self.log_device.is_some();
        !on_device && !matches!(&self.place, Place::Files { removed_at_end: None, .. })
    }

    /// The notes of the run that loaded this database, if any.
    pub(crate) fn notes(&self) -> Result<Option<Notes>, LocationError> {
        let Place::Files { dir, .. } = &self.place else {
            return Ok(None);
        };
        let path = dir.join(NOTES);
        match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(notes) => Ok(Some(notes)),
                Err(why) => Err(LocationError::Notes { path, why: why.to_string() }),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(&path)(error)),
        }
    }

    /// Marks the folder as being loaded; removes the remains of an incomplete load.
    pub(crate) fn begin_load(&self) -> Result<(), LocationError> {
        let Place::Files { dir, .. } = &self.place else {
            return Ok(());
        };
        let (marker, log) = (dir.join(LOADING), dir.join(LOG));
        if marker.exists() {
            // The marker proves that the files are of an unfinished load; else nothing is removed.
            match std::fs::remove_dir_all(&log) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&log)(error)),
                _ => {}
            }
            for name in ["manifest.json", "hdd.vol", "ssd.cache", "ring"] {
                match std::fs::remove_file(dir.join(name)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(io(&dir.join(name))(error));
                    }
                    _ => {}
                }
            }
        }
        // Before the marker: the next load would remove what is found now.
        let wal = if self.log_device.is_none() { Some(Wal::open(&log, WalOptions::new())?) } else { None };
        if wal.as_ref().is_some_and(|wal| !wal.is_new()) {
            return Err(LocationError::LogInTheWay { path: log });
        }
        std::fs::write(&marker, "").map_err(io(&marker))
    }

    /// Marks the load as complete.
    pub(crate) fn write_notes(&self, notes: &Notes) -> Result<(), LocationError> {
        let Place::Files { dir, .. } = &self.place else {
            return Ok(());
        };
        // The marker goes last: notes always mean a complete load, even if the program ends in between.
        let (path, new) = (dir.join(NOTES), dir.join("tpcc_lite.json.new"));
        let text = serde_json::to_vec_pretty(notes)
            .map_err(|why| LocationError::Notes { path: path.clone(), why: why.to_string() })?;
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| std::fs::remove_file(dir.join(LOADING)))
            .map_err(io(&path))
    }

    /// The log of a run.
    pub(crate) async fn wal(&self, notes: &Notes) -> Result<Wal, LocationError> {
        let mut options = WalOptions::new().capacity_bytes(notes.log_bytes);
        if let Some(bytes) = self.ssd_log_bytes {
            options = options.keep(Keep::ForSsdLoss).ssd_log_bytes(bytes);
        }
        if let Some(device) = &self.log_device {
            return Ok(Wal::on_device(Arc::clone(device), options).await?);
        }
        let Place::Files { dir, .. } = &self.place else { return Ok(Wal::in_memory(options)) };
        let path = dir.join(LOG);
        Ok(Wal::open(&path, options)?)
    }

    /// The store to load into: a large pool, no delays, and an SSD that does not admit pages yet. For a
    /// calibration it opens with delays.
    pub(crate) fn for_load(
        &self,
        page_size: PageSize,
        ssd_bytes: u64,
        db_bytes: u64,
        calibration: Option<Duration>,
    ) -> Result<Prepared, LocationError> {
        let builder = PageStore::builder()
            .page_size(page_size)
            .ssd_bytes(ssd_bytes)
            // The pool's bytes include the tables of the SSD's slots, which grow with the SSD.
            .pool_bytes(LOAD_POOL_BYTES + ssd_bytes / 64)
            // A load in key order says nothing about the pages that the SSD should have.
            .ssd_policy(SsdPolicy::None)
            .create(if self.force { Create::Overwriting } else { Create::OnBlank })
            .io(self.io);
        if let Some(budget) = calibration {
            let budget_ms = budget.as_millis().max(1) as u64;
            let page_bytes = page_size.bytes() as u64;
            return self.with_delays(
                builder.costs(CostSource::CalibratedMs(budget_ms)),
                true,
                db_bytes,
                page_bytes,
            );
        }
        let builder = match &self.place {
            Place::Files { dir, .. } => self.on_files(builder, dir),
            Place::Memory { hdd, ssd, manifest } => builder
                .in_memory(Arc::clone(manifest))
                .hdd(Arc::clone(hdd) as SharedDevice)
                .ssd(Arc::clone(ssd) as SharedDevice),
        };
        Ok(Prepared { builder, emulated: Vec::new(), backend: None })
    }

    /// The loaded store with the given policies. In memory it is a copy, so that every run starts from the
    /// same state.
    pub(crate) fn for_run(&self, policies: &Policies, notes: &Notes) -> Result<Prepared, LocationError> {
        let builder = PageStore::builder()
            .ssd_bytes(notes.ssd_bytes)
            .pool_bytes(notes.pool_bytes)
            .pool_policy(policies.pool.as_str())
            .ssd_policy(policies.ssd.as_str())
            // A checkpoint cuts a log that is three quarters full to five eighths. The cleaner keeps to
            // the same bound, so that the checkpoint finds little left to write.
            .redo_span_max(notes.log_bytes / 8 * 5)
            // Row lookups are random. Neighbouring pages missed by chance (the districts of a Delivery) would
            // trigger useless read-ahead; InnoDB's waits for 56 pages of 64.
            .read_ahead(false)
            .io(self.io);
        self.with_delays(builder, false, notes.loaded_bytes, notes.page_bytes)
    }

    /// The store on this location's devices, with delays for emulated ones. With `fresh` it is created there;
    /// otherwise it exists, and in memory it is a copy.
    fn with_delays(
        &self,
        builder: Builder,
        fresh: bool,
        db_bytes: u64,
        page_bytes: u64,
    ) -> Result<Prepared, LocationError> {
        let mut prepared = Prepared { builder, emulated: Vec::new(), backend: None };
        let model = self.hdd_model(db_bytes, page_bytes);
        match &self.place {
            Place::Files { dir, .. } => {
                prepared.builder = self.on_files(prepared.builder, dir);
                match &self.hdd {
                    // A device that the command line names has its own speed.
                    Some(_) => {}
                    None if self.model == HddModel::None => {}
                    None => {
                        let options =
                            OpenOptions { backend: self.io, create: fresh, ..OpenOptions::default() };
                        let file = open_file(&dir.join("hdd.vol"), &options)?.device;
                        prepared.backend = Some(file.backend());
                        let hdd = prepared.emulate(file, model, &self.clock);
                        prepared.builder = prepared.builder.hdd(hdd);
                    }
                }
            }
            Place::Memory { hdd, ssd, manifest } => {
                let (hdd, ssd, manifest) = if fresh {
                    (Arc::clone(hdd), Arc::clone(ssd), Arc::clone(manifest))
                } else {
                    // Each run changes a copy, so that all begin with the same load.
                    (Arc::new(hdd.fork()), Arc::new(ssd.fork()), Arc::new(manifest.fork()))
                };
                let hdd = prepared.emulate(hdd, model, &self.clock);
                let ssd_model = match self.ssd_model {
                    SsdModel::Paper => DeviceModel::paper_ssd().with_page_bytes(page_bytes as u32),
                    SsdModel::Nvme => DeviceModel::nvme(),
                };
                let ssd = prepared.emulate(ssd, ssd_model, &self.clock);
                prepared.builder = prepared.builder.in_memory(manifest).hdd(hdd).ssd(ssd);
            }
        }
        Ok(prepared)
    }

    /// The 7200 rpm disk has a size that the database fills to two thirds.
    fn hdd_model(&self, db_bytes: u64, page_bytes: u64) -> DeviceModel {
        match self.model {
            HddModel::Rpm7200 => DeviceModel::disk_7200rpm(db_bytes / 2 * 3),
            HddModel::Replicated => DeviceModel::replicated_volume(),
            _ => DeviceModel::paper_hdd().with_page_bytes(page_bytes as u32),
        }
    }
}

impl Prepared {
    fn emulate(&mut self, device: SharedDevice, model: DeviceModel, clock: &EmulatedClock) -> SharedDevice {
        let device = Arc::new(EmulatedDevice::new(device, model, clock.clone()));
        self.emulated.push(Arc::clone(&device));
        device
    }
}

const NOTES: &str = "tpcc_lite.json";
const LOADING: &str = "tpcc_lite.loading";
const LOG: &str = "wal";

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> LocationError {
    let path = path.to_path_buf();
    move |source| LocationError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[tokio::test]
    async fn the_log_of_another_database_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let dir = folder.path().join(name);
            let cli = Cli::parse_from(["tpcc_lite".into(), "--dir".into(), dir.clone().into_os_string()]);
            (dir, Location::new(&cli, None).unwrap())
        };
        let loaded = |location: &Location| {
            location.begin_load().unwrap();
            let sizes = (4096, 1 << 20, 0, 1 << 20, 1 << 20);
            let (page_bytes, loaded_bytes, ssd_bytes, pool_bytes, log_bytes) = sizes;
            let notes = Notes { page_bytes, loaded_bytes, ssd_bytes, pool_bytes, log_bytes };
            location.write_notes(&notes).unwrap();
            notes
        };
        let (one, first) = at("one");
        let notes = loaded(&first);
        assert_eq!(first.notes().unwrap(), Some(notes));
        let wal = first.wal(&notes).await.unwrap();
        wal.flush(wal.append_commit(b"a transaction").unwrap()).await.unwrap();
        drop(wal);
        first.wal(&notes).await.unwrap();

        // A load beside it would be redone from it. What a load that did not end has left is removed.
        std::fs::remove_file(one.join(NOTES)).unwrap();
        assert!(matches!(first.begin_load(), Err(LocationError::LogInTheWay { .. })));
        std::fs::write(one.join(LOADING), "").unwrap();
        first.begin_load().unwrap();
    }
}
