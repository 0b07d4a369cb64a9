//! The command line.

use clap::{Args, Parser, Subcommand};
use pagetier::{Builder, PageStore, parse_bytes};
use std::path::PathBuf;

/// Inspects, verifies, watches, backs up and repairs Pagetier stores.
/// `inspect`, `verify`, `stat`, `why` and `export-hot` write nothing to the store; they recover a crashed
/// store in memory. `drain`, `backup` and `repair` open it for writing. Only `inspect`, `top` and
/// `stat --live` work while another process has the store open.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 damage was found (verify, repair) or pages are left
/// (drain), 130 stopped by Ctrl-C or SIGTERM, which is also how `top` ends. A stopped command leaves the
/// store as a crash does: nothing is lost.
#[derive(Parser)]
#[command(name = "pagetier", version)]
pub(crate) struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
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

/// The location of a store.
#[derive(Args, Clone)]
pub(crate) struct Place {
    /// The store's directory
    #[arg(env = "PAGETIER_DIR")]
    pub(crate) dir: PathBuf,
    /// The HDD, if it is not the file `hdd.vol` in the directory
    #[arg(long)]
    pub(crate) hdd: Option<PathBuf>,
    /// The SSD, if it is not the file `ssd.cache` in the directory
    #[arg(long)]
    pub(crate) ssd: Option<PathBuf>,
    /// Memory, in MiB or with a unit (1GiB)
    #[arg(long, default_value_t = 256, value_parser = mib::<4>)]
    pub(crate) memory_mib: u64,
    /// Open although the SSD is lost or cannot be used; without its file, the store continues without an SSD
    #[arg(long)]
    pub(crate) accept_ssd_loss: bool,
}

impl Place {
    /// Options that open the store as it is.
    pub(crate) fn builder(&self) -> Builder {
        let mut builder = PageStore::builder().directory(&self.dir).create(false);
        if let Some(hdd) = &self.hdd {
            builder = builder.hdd(hdd);
        }
        if let Some(ssd) = &self.ssd {
            builder = builder.ssd(ssd);
        }
        builder.pool_bytes(self.memory_mib << 20).accept_ssd_loss(self.accept_ssd_loss)
    }

    /// Options that open the store as it is, for writing. If the SSD is missing and its loss is accepted, the
    /// store continues without one.
    pub(crate) fn writable(&self) -> Builder {
        let ssd = self.ssd.clone().unwrap_or_else(|| self.dir.join("ssd.cache"));
        let builder = self.builder();
        if self.accept_ssd_loss && !ssd.exists() { builder.ssd_bytes(0) } else { builder }
    }
}

/// Parses a number of seconds between two views.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let fits = (0.1..=86_400.0).contains(&seconds);
    fits.then_some(seconds).ok_or_else(|| "it is not from 0.1 to 86400".into())
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
        place: Option<Place>,
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
    /// Copy the store into a chain of backups: the first is full, later ones incremental
    Backup {
        #[command(flatten)]
        place: Place,
        /// The directory of the chain
        #[arg(long)]
        to: PathBuf,
        /// Begin a new chain
        #[arg(long)]
        full: bool,
    },
    /// Make a new store from a chain of backups
    Restore {
        /// The directory of the chain
        from: PathBuf,
        /// The new store's directory, which must not exist; an interrupted restore starts over when repeated
        #[arg(long)]
        to: PathBuf,
        /// The number of the last backup to restore
        #[arg(long)]
        upto: Option<u32>,
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
    },
}
