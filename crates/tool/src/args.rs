//! The command line.

use crate::{AskedDevice, Failure, OpenDevice};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pagetier::{Builder, OpenError, PageStore, SsdMode, device::SharedDevice, parse_bytes};
use pagetier_subscriber::{LogArgs, names_a_device};
use std::path::{Path, PathBuf};

/// Inspects, verifies, watches, backs up and repairs Pagetier stores.
/// `inspect`, `verify`, `stat`, `why` and `export-hot` write nothing to the store; they recover a crashed
/// store in memory. `drain`, `attach`, `readmit`, `replace-ssd`, `set-mode`, `shrink`, `backup` and `repair`
/// open it for writing. While another process has the store open, `inspect`, `top` and `stat --live` work;
/// `stat`, `drain`, `attach`, `readmit`, `replace-ssd`, `set-mode`, `shrink`, `backup`, `scrub`,
/// `set-policy`, `set-budget` and `resize-pool` ask that process, if it has a control socket.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 damage was found (verify, repair, readmit, backups) or
/// pages are left (drain, replace-ssd, set-mode), 130 stopped by Ctrl-C or SIGTERM, which is also how `top`
/// ends. A stopped command leaves the store as a crash does: nothing is lost.
#[derive(Parser)]
#[command(name = "pagetier", version)]
pub(crate) struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Reads a size in MiB: a number of them, or a size with its unit.
fn mib<const MIN: u64>(text: &str) -> Result<u64, String> {
    let bare = text.parse().ok();
    let mib = bare.map_or_else(|| parse_bytes(text).map(|bytes| bytes >> 20), Ok);
    let mib = mib.map_err(|error| error.to_string())?;
    if (MIN..1 << 44).contains(&mib) { Ok(mib) } else { Err(format!("at least {MIN} MiB")) }
}

/// Where a store's parts are, and the memory for opening it.
#[derive(Args, Clone)]
pub(crate) struct Devices {
    /// The store's directory
    #[arg(env = "PAGETIER_DIR")]
    pub(crate) dir: PathBuf,
    /// The HDD, if it is not the file `hdd.vol` in the directory; a name with a colon and no slash before it
    /// is a device such as rbd:POOL/IMAGE. If the directory has no manifest, the HDD has it
    #[arg(long)]
    pub(crate) hdd: Option<PathBuf>,
    /// The HDD, if it is no file.
    #[arg(skip)]
    pub(crate) hdd_device: Option<SharedDevice>,
    /// The SSD, if it is not the file `ssd.cache` in the directory
    #[arg(long)]
    pub(crate) ssd: Option<PathBuf>,
    /// Memory, in MiB or with a unit (1GiB)
    #[arg(long, default_value_t = 256, value_parser = mib::<4>)]
    pub(crate) memory_mib: u64,
}

impl Devices {
    /// Options that open the store as it is.
    pub(crate) fn builder(&self) -> Builder {
        let mut builder = PageStore::builder().directory(&self.dir).create(pagetier::options::Create::Never);
        if let Some(device) = &self.hdd_device {
            builder = builder.hdd(SharedDevice::clone(device));
        } else if let Some(hdd) = &self.hdd {
            builder = builder.hdd(hdd);
        }
        if self.hdd.is_some() && !self.dir.join("manifest.json").exists() {
            builder = builder.manifest(pagetier::options::OnHdd::default());
        }
        if let Some(ssd) = &self.ssd {
            builder = builder.ssd(ssd);
        }
        builder.pool_bytes(self.memory_mib << 20)
    }

    /// Opens the HDD if it is neither a file nor a block device.
    pub(crate) fn open_hdd(&mut self, read_only: bool, open: OpenDevice) -> Result<(), Failure> {
        if let Some(hdd) = &self.hdd {
            self.hdd_device = device(hdd, read_only, open)?;
        }
        Ok(())
    }

    /// Where the HDD is.
    pub(crate) fn hdd_path(&self) -> PathBuf {
        self.hdd.clone().unwrap_or_else(|| self.dir.join("hdd.vol"))
    }

    /// Where the SSD is, or would be.
    pub(crate) fn ssd_path(&self) -> PathBuf {
        self.ssd.clone().unwrap_or_else(|| self.dir.join("ssd.cache"))
    }

    /// Whether the store has an SSD, by its manifest.
    pub(crate) async fn has_ssd(&self) -> Result<bool, OpenError> {
        Ok(self.builder().inspect().await?.manifest.ssd.is_some())
    }

    /// Whether the store opens with the SSD at `path`.
    pub(crate) async fn opens_with(&self, path: &Path) -> bool {
        self.builder().ssd(path).open_read_only().await.is_ok()
    }
}

/// The device of that name, if it is neither a file nor a block device.
pub(crate) fn device(
    name: &Path,
    read_only: bool,
    open: OpenDevice,
) -> Result<Option<SharedDevice>, Failure> {
    let name = name.to_string_lossy().into_owned();
    names_a_device(&name).then(|| open(&AskedDevice { name, read_only })).transpose()
}

/// The location of a store, whose SSD may be lost.
#[derive(Args, Clone)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) at: Devices,
    /// Open although the SSD is lost or cannot be used; without its file, the store continues without an SSD
    #[arg(long)]
    pub(crate) accept_ssd_loss: bool,
}

impl Place {
    /// Options that open the store as it is; without an SSD if that is missing and its loss is accepted.
    pub(crate) fn builder(&self) -> Builder {
        let builder = self.at.builder().accept_ssd_loss(self.accept_ssd_loss);
        if self.accept_ssd_loss && !self.at.ssd_path().exists() { builder.ssd_bytes(0) } else { builder }
    }
}

/// What the SSD can be set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// Drain the SSD and take it out of use
    Off,
    /// Have an SSD in use; attach one if the store has none
    WriteBack,
    /// Of a running store: changed pages go to the HDD, the SSD takes copies
    WriteThrough,
    /// Of a running store: the SSD takes no pages
    ReadOnly,
}

impl From<Mode> for SsdMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::WriteBack => Self::WriteBack,
            Mode::WriteThrough => Self::WriteThrough,
            Mode::ReadOnly => Self::ReadOnly,
        }
    }
}

/// A size in bytes, or with a unit.
fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// A write budget; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget(pub(crate) Option<u64>);

fn budget(text: &str) -> Result<Budget, String> {
    if text == "none" { Ok(Budget(None)) } else { bytes(text).map(|bytes| Budget(Some(bytes))) }
}

fn pages_per_second(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (rate >= 0.0 && rate.is_finite()).then_some(rate).ok_or_else(|| "it is not at least 0".into())
}

/// Parses a number of seconds between two views.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let fits = (0.1..=86_400.0).contains(&seconds);
    fits.then_some(seconds).ok_or_else(|| "it is not from 0.1 to 86400".into())
}

#[derive(Subcommand)]
pub(crate) enum OfBackups {
    /// List the backups; read the head of each file
    List {
        /// The directory
        chain: PathBuf,
        /// The archive of the engine's log: also say to which moments each backup can be restored with it.
        /// Reads what the archive has since the backup
        #[arg(long, value_name = "DIR")]
        archive: Option<PathBuf>,
    },
    /// Read every backup to its end; exit code 3 if one cannot be restored
    Verify {
        /// The directory
        chain: PathBuf,
    },
    /// Remove the oldest backups, but none that one which stays continues
    Purge {
        /// The directory
        chain: PathBuf,
        /// The number of the newest backups that stay restorable
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Describe what is on the devices: manifest, superblocks, map, journal, ring
    Inspect(Place),
    /// Read and verify every page of every tier; list the damage
    Verify(Place),
    /// Show sizes and statistics of a store, or of an export of a running one
    #[command(mut_arg("dir", |dir| dir.required(false)))]
    Stat {
        #[command(flatten)]
        at: Option<Devices>,
        /// Open although the SSD is lost or cannot be used
        #[arg(long)]
        accept_ssd_loss: bool,
        /// Read this file, which a running store exports, instead of a store's directory
        #[arg(long, required_unless_present = "dir")]
        #[arg(conflicts_with_all = ["hdd", "ssd", "memory_mib", "accept_ssd_loss"])]
        live: Option<PathBuf>,
    },
    /// Explain where one page is, and why
    Why {
        #[command(flatten)]
        place: Place,
        /// The space, by name
        #[arg(long)]
        space: String,
        /// The page's number in the space
        #[arg(long)]
        page: u32,
    },
    /// Watch a running store through the file that it exports
    Top {
        /// The file to which the store exports its statistics
        file: PathBuf,
        /// Seconds between views, at least 0.1
        #[arg(long, default_value_t = 1.0, value_parser = interval)]
        every: f64,
        /// End after this many views; by default at Ctrl-C
        #[arg(long)]
        count: Option<u64>,
    },
    /// Write home everything that is newer on the SSD than on the HDD
    Drain {
        #[command(flatten)]
        place: Place,
        /// Take the SSD out of use afterwards: the store opens without it
        #[arg(long)]
        off: bool,
    },
    /// Put an SSD into use in a store that has none: a blank one, or an earlier one of this store, which is
    /// formatted
    Attach {
        #[command(flatten)]
        at: Devices,
        /// The bytes of the SSD to use, in MiB [default: its size if it exists, otherwise 256]
        #[arg(long)]
        ssd_mib: Option<u64>,
    },
    /// Readmit the SSD after a failure, and read every copy on it; if the store has gone on
    /// without it, its old contents are ignored
    Readmit(Devices),
    /// Drain the SSD, then put another one in its place
    ReplaceSsd {
        #[command(flatten)]
        at: Devices,
        /// The new SSD: a file, which is made if it does not exist, or a block device
        #[arg(long)]
        with: PathBuf,
        /// The bytes of the new SSD to use, in MiB [default: its size if it exists, otherwise the old one's]
        #[arg(long)]
        ssd_mib: Option<u64>,
    },
    /// Take the SSD out of use, or back. The modes of an SSD in use (write-back, write-through, read-only)
    /// last until the store is closed: set them on a running store, or by the program that opens it
    SetMode {
        #[command(flatten)]
        place: Place,
        /// The mode
        #[arg(long, value_enum)]
        mode: Mode,
    },
    /// Return the disk space of free pages to other spaces and the file system
    Shrink {
        #[command(flatten)]
        place: Place,
        /// This space, by name
        #[arg(long, required_unless_present = "all")]
        space: Option<String>,
        /// Every space
        #[arg(long, conflicts_with = "space")]
        all: bool,
    },
    /// Of a running store: read and verify every copy at a gentle rate, and repair what has another good copy
    Scrub {
        #[command(flatten)]
        at: Devices,
        /// The maximum number of pages read per second; 0: unlimited
        #[arg(long, default_value_t = 100.0, value_parser = pages_per_second)]
        pages_per_second: f64,
        /// Only report damage
        #[arg(long)]
        no_heal: bool,
    },
    /// Of a running store: change the policies of pool and SSD, until it is closed
    SetPolicy {
        #[command(flatten)]
        at: Devices,
        /// The pool's policy
        #[arg(long, required_unless_present = "ssd_policy")]
        pool: Option<String>,
        /// The SSD's policy
        #[arg(long)]
        ssd_policy: Option<String>,
    },
    /// Of a running store: limit the bytes written to the SSD per day, until it is closed
    SetBudget {
        #[command(flatten)]
        at: Devices,
        /// The bytes per day, or with a unit (50GiB); none: no limit
        #[arg(long, value_parser = budget)]
        per_day: Budget,
    },
    /// Of a running store: change its memory budget, until it is closed
    ResizePool {
        #[command(flatten)]
        at: Devices,
        /// The whole budget in bytes, or with a unit (1GiB)
        #[arg(long, value_parser = bytes)]
        to: u64,
    },
    /// Measure page reads and writes on two devices, in scratch files that are removed afterwards
    Calibrate {
        /// A directory on the HDD
        #[arg(long)]
        hdd: PathBuf,
        /// A directory on the SSD
        #[arg(long)]
        ssd: PathBuf,
        /// Bytes of a page
        #[arg(long, default_value_t = 16384)]
        page_bytes: u64,
        /// Seconds for each device
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
    /// Estimate what other sizes of pool and SSD would cost, from a recorded trace
    WhatIf {
        /// The trace of page requests that a store has recorded
        trace: PathBuf,
        /// Pages of the pool
        #[arg(long)]
        pool_pages: u32,
        /// Pages of the SSD
        #[arg(long)]
        ssd_pages: u32,
        /// Bytes of a page
        #[arg(long, default_value_t = 16384)]
        page_bytes: u64,
        /// The pool's policy
        #[arg(long, default_value = "auto")]
        pool_policy: String,
        /// The SSD's policy
        #[arg(long, default_value = "auto")]
        ssd_policy: String,
    },
    /// List the pages that have a copy on the SSD, as a hot set to import
    ExportHot {
        #[command(flatten)]
        place: Place,
        /// The file
        #[arg(long)]
        to: PathBuf,
    },
    /// Copy the store into a chain of backups: the first is full, later ones incremental. Of a running store
    /// with the engine's log, if its program serves that; at rest without
    Backup {
        #[command(flatten)]
        place: Place,
        /// The directory of the chain
        #[arg(long)]
        to: PathBuf,
        /// Begin a new chain
        #[arg(long)]
        full: bool,
        /// The maximum number of bytes read per second, or with a unit (50MiB) [default: unlimited]
        #[arg(long, value_parser = bytes)]
        bytes_per_second: Option<u64>,
    },
    /// List, verify or purge the backups in a directory
    Backups {
        #[command(subcommand)]
        what: OfBackups,
    },
    /// Make a new store from a chain of backups, or a file from one space or page
    Restore {
        /// The directory of the chain
        from: PathBuf,
        /// The new store's directory, or the file with --space, which must not exist; an interrupted restore
        /// starts over when repeated
        #[arg(long)]
        to: PathBuf,
        /// The number of the last backup to restore
        #[arg(long)]
        upto: Option<u32>,
        /// Write this space's pages, by the space's name, one behind the other, to the file; pages that do
        /// not exist are zeroes
        #[arg(long, conflicts_with_all = ["hdd", "ssd", "ssd_mib"])]
        space: Option<String>,
        /// Write this page alone
        #[arg(long, requires = "space")]
        page: Option<u32>,
        /// Copy the log that the engine backed up with its store to this new directory, for the engine that
        /// opens the new store; if the restore is killed, remove the directory before it is repeated
        #[arg(long, value_name = "DIR", conflicts_with = "space")]
        log_to: Option<PathBuf>,
        /// The new store's HDD, if it is not the file `hdd.vol` in the directory
        #[arg(long)]
        hdd: Option<PathBuf>,
        /// The new store's SSD, if it is not the file `ssd.cache` in the directory
        #[arg(long, requires = "ssd_mib")]
        ssd: Option<PathBuf>,
        /// The bytes of the new store's SSD to use, in MiB or with a unit [default: no SSD]
        #[arg(long, value_parser = mib::<0>)]
        ssd_mib: Option<u64>,
    },
    /// Recover the store and repair what has another good copy
    Repair {
        #[command(flatten)]
        place: Place,
        /// Write to the store; without it, only verify it
        #[arg(long)]
        write: bool,
        /// Take the pages that have no good copy from the newest backup in this directory, as old as they are
        /// there: the engine's log must be redone over them
        #[arg(long, requires = "write")]
        from: Option<PathBuf>,
    },
}

impl Command {
    /// Where the store of a command is, if it opens one.
    pub(crate) fn devices(&mut self) -> Option<&mut Devices> {
        match self {
            Self::Inspect(place)
            | Self::Verify(place)
            | Self::Why { place, .. }
            | Self::Drain { place, .. }
            | Self::SetMode { place, .. }
            | Self::Shrink { place, .. }
            | Self::ExportHot { place, .. }
            | Self::Backup { place, .. }
            | Self::Repair { place, .. } => Some(&mut place.at),
            Self::Stat { at, .. } => at.as_mut(),
            Self::Attach { at, .. }
            | Self::Readmit(at)
            | Self::ReplaceSsd { at, .. }
            | Self::Scrub { at, .. }
            | Self::SetPolicy { at, .. }
            | Self::SetBudget { at, .. }
            | Self::ResizePool { at, .. } => Some(at),
            Self::Top { .. }
            | Self::Calibrate { .. }
            | Self::WhatIf { .. }
            | Self::Backups { .. }
            | Self::Restore { .. } => None,
        }
    }

    /// Whether a command writes nothing to the store.
    pub(crate) fn reads_only(&self) -> bool {
        matches!(
            self,
            Self::Inspect(_)
                | Self::Verify(_)
                | Self::Stat { .. }
                | Self::Why { .. }
                | Self::ExportHot { .. }
                | Self::Repair { write: false, .. }
                // At rest they only say that they need a running store.
                | Self::Scrub { .. }
                | Self::SetPolicy { .. }
                | Self::SetBudget { .. }
                | Self::ResizePool { .. }
        )
    }
}
