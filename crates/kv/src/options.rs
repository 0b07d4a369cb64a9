//! The options for opening a store.

use pagetier::device::SharedDevice;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options for [`Kv::open`](crate::Kv::open). Each has a default.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) create: bool,
    pub(crate) pool_bytes: u64,
    pub(crate) ssd_bytes: Option<u64>,
    pub(crate) page_bytes: Option<u64>,
    pub(crate) hdd: Option<PathBuf>,
    pub(crate) ssd: Option<PathBuf>,
    pub(crate) hdd_device: Option<SharedDevice>,
    pub(crate) log_device: Option<SharedDevice>,
    pub(crate) log_bytes: u64,
    pub(crate) survives_ssd_loss: bool,
    pub(crate) accept_ssd_loss: bool,
    pub(crate) accept_log_loss: bool,
    pub(crate) control_socket: bool,
    pub(crate) stall_max: Duration,
    pub(crate) lease: Option<Duration>,
}

impl Options {
    /// The store in directory `dir`.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        Self {
            dir: dir.as_ref().to_owned(),
            create: true,
            pool_bytes: 64 << 20,
            ssd_bytes: None,
            page_bytes: None,
            hdd: None,
            ssd: None,
            hdd_device: None,
            log_device: None,
            log_bytes: 64 << 20,
            survives_ssd_loss: false,
            accept_ssd_loss: false,
            accept_log_loss: false,
            control_socket: false,
            stall_max: Duration::from_secs(30),
            lease: None,
        }
    }

    /// Whether to create a store that does not exist. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Memory for pages, in bytes. Default: 64 MiB.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// The size of the SSD cache in bytes; 0: none. An SSD in use keeps its size, with a warning if
    /// another one is named. Default: its size; 256 MiB for a new store.
    pub fn ssd_bytes(mut self, bytes: u64) -> Self {
        self.ssd_bytes = Some(bytes);
        self
    }

    /// The page size of a new store, in bytes. Default: 16 KiB.
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// The HDD: a file or block device. Default: a file in the directory.
    pub fn hdd(mut self, path: impl AsRef<Path>) -> Self {
        self.hdd = Some(path.as_ref().to_owned());
        self
    }

    /// The SSD: a file or block device. Default: a file in the directory.
    pub fn ssd(mut self, path: impl AsRef<Path>) -> Self {
        self.ssd = Some(path.as_ref().to_owned());
        self
    }

    /// The HDD as a device, which then has the store's manifest, too: together with [`Options::log_device`],
    /// another machine can open the store without this one's directory.
    pub fn hdd_device(mut self, device: SharedDevice) -> Self {
        self.hdd_device = Some(device);
        self
    }

    /// The log on a device, for [`Options::survives_ssd_loss`]. Default: in the directory.
    pub fn log_device(mut self, device: SharedDevice) -> Self {
        self.log_device = Some(device);
        self
    }

    /// The maximum log that a recovery must read, in bytes; at least 256 pages. Default: 64 MiB.
    pub fn log_bytes(mut self, bytes: u64) -> Self {
        self.log_bytes = bytes;
        self
    }

    /// Whether to keep the log for as long as the SSD has changes that the HDD lacks, so that redo restores
    /// what a lost SSD had. The store remembers it for later opens. Of a store that was used without it,
    /// the log suffices from the next checkpoint on. Default: no; after the loss of the SSD, restore a
    /// backup.
    pub fn survives_ssd_loss(mut self, survives: bool) -> Self {
        self.survives_ssd_loss = survives;
        self
    }

    /// Whether to open although the SSD is lost: without one if its file is gone and [`Options::ssd_bytes`]
    /// is not set, or with a blank one in its place. Default: no.
    pub fn accept_ssd_loss(mut self, accept: bool) -> Self {
        self.accept_ssd_loss = accept;
        self
    }

    /// How long a store whose homes are a device serves pages after it last made sure that it owns them: see
    /// [`pagetier::options::OnHdd::lease`]. Default: 10 s.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// Whether to open with an empty log although the store's own is missing, and to give up every change
    /// that only the log has. [`Kv::check`](crate::Kv::check) says whether what is left is sound. Default:
    /// no.
    pub fn accept_log_loss(mut self, accept: bool) -> Self {
        self.accept_log_loss = accept;
        self
    }

    /// Whether operators may watch and change the open store through a socket, the file `control` in the
    /// folder of the pages, which only this process's user can use. Default: no.
    pub fn control_socket(mut self, on: bool) -> Self {
        self.control_socket = on;
        self
    }

    /// How long a change waits for space in the log before it fails. Default: 30 s.
    pub fn stall_max(mut self, wait: Duration) -> Self {
        self.stall_max = wait;
        self
    }

    pub(crate) fn pages_dir(&self) -> PathBuf {
        self.dir.join("pages")
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The file whose presence means [`Options::survives_ssd_loss`].
    pub(crate) fn survives_file(&self) -> PathBuf {
        self.log_dir().join("kept-for-ssd-loss")
    }
}
