//! The command line.

use super::{AskedDevice, Failure, OpenDevice};
use crate::Options;
use clap::{Args, Parser, Subcommand, ValueEnum};
use pagetier::device::SharedDevice;
use pagetier::parse_bytes;
use pagetier_subscriber::{LogArgs, names_a_device};
use std::ffi::OsString;
use std::path::PathBuf;

/// The size of a new home volume in bytes: it grows.
const NEW_HOME_BYTES: u64 = 64 << 20;

/// The size of a new log volume, in capacities of the log: it does not grow, and keeps what the HDD lacks.
const NEW_LOGS: u64 = 64;

/// Reads a size in MiB: a number of them, or a size with its unit.
fn mib<const MIN: u64>(text: &str) -> Result<u64, String> {
    let bare = text.parse().ok();
    let mib = bare.map_or_else(|| parse_bytes(text).map(|bytes| bytes >> 20), Ok);
    let mib = mib.map_err(|error| error.to_string())?;
    // Callers shift by 20 bits: 2^44 MiB would no longer fit into 64 bits as bytes.
    if (MIN..1 << 44).contains(&mib) { Ok(mib) } else { Err(format!("at least {MIN} MiB")) }
}

/// An ordered key-value store on Pagetier.
///
/// Every change is durable when its command ends. Stopping a command, even with SIGKILL, loses nothing that
/// was confirmed; the next one recovers. Keys and values are bytes, not necessarily UTF-8.
///
/// Exit codes: 0 success, 1 failure, or problems that `check` found, 2 wrong usage, 3 no such key (get,
/// delete), 130 stopped by Ctrl-C or SIGTERM.
#[derive(Parser)]
#[command(name = "kv", version)]
pub(crate) struct Cli {
    /// The database's directory; created by `put`, `load` and `bench` if it does not exist. The store, for
    /// the `pagetier` tool, is its folder `pages`
    #[arg(short, long, env = "KV_DIR", default_value = "kv-data", global = true)]
    dir: PathBuf,
    /// Memory for pages, in MiB or with a unit (1GiB)
    #[arg(long, default_value_t = 64, value_parser = mib::<4>, global = true)]
    pool_mib: u64,
    /// The SSD cache, in MiB or with a unit; 0: none. An SSD in use keeps its size, with a warning
    /// if another one is named [default: its size; 256 for a new store]
    #[arg(long, value_parser = mib::<0>, global = true)]
    ssd_mib: Option<u64>,
    /// A file or block device for the SSD cache; by default a file in the directory
    #[arg(long, global = true)]
    ssd: Option<PathBuf>,
    /// A file or block device for the pages' homes, or another device such as rbd:POOL/IMAGE, which then has
    /// the store's manifest, too; by default a file in the directory
    #[arg(long, visible_alias = "home", global = true)]
    hdd: Option<PathBuf>,
    /// A device for the log, such as rbd:POOL/IMAGE; by default the log is in the directory
    #[arg(long, value_name = "DEVICE", global = true)]
    log_device: Option<String>,
    /// Take the devices of --hdd and --log-device over from the store that has them: it can write no more.
    /// The SSD of its machine is lost, so --accept-ssd-loss is needed, too
    #[arg(long, requires = "accept_ssd_loss", conflicts_with = "create_devices", global = true)]
    take_over: bool,
    /// Create the devices of --hdd and --log-device that are missing
    #[arg(long, global = true)]
    create_devices: bool,
    /// The maximum log that a recovery must read, in MiB or with a unit
    #[arg(long, default_value_t = 64, value_parser = mib::<16>, global = true)]
    log_mib: u64,
    /// For a new store: keep enough log to restore what a lost SSD had. A store keeps this setting; one
    /// created without it refuses the option
    #[arg(long, global = true)]
    survive_ssd_loss: bool,
    /// Open although the SSD is lost; without its file, the store goes on without an SSD. The log must reach
    /// back far enough
    #[arg(long, global = true)]
    accept_ssd_loss: bool,
    /// Open with an empty log although the store's own is missing, and give up every change that only the log
    /// has; then run `check`
    #[arg(long, global = true)]
    accept_log_loss: bool,
    /// Take requests of `pagetier` while the command runs, such as `pagetier drain DIR/pages`
    #[arg(long, global = true)]
    control_socket: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Insert a key, or replace its value
    Put {
        /// The key
        key: OsString,
        /// The value; standard input by default
        value: Option<OsString>,
    },
    /// Print the value of a key; exit code 3 if there is none
    Get {
        /// The key
        key: OsString,
    },
    /// Remove a key; exit code 3 if there is none
    Delete {
        /// The key
        key: OsString,
    },
    /// Print entries in key order, one per line: key, tab, value
    Scan(ScanArgs),
    /// Insert lines of standard input or a file, `key<TAB>value`, or numbered entries with --count
    Load(LoadArgs),
    /// Read every page and verify order, links, chains and free pages; exit code 1 if it finds a problem
    Check,
    /// Run a YCSB workload on the store and print its throughput and latencies
    Bench(BenchArgs),
    /// Copy the store to a new directory while it is in use
    Backup {
        /// The directory to create
        to: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct ScanArgs {
    /// The first key
    #[arg(long)]
    pub(crate) from: Option<OsString>,
    /// The first key that is not printed
    #[arg(long)]
    pub(crate) to: Option<OsString>,
    /// Print only keys with this prefix
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// Descending order
    #[arg(long)]
    pub(crate) backward: bool,
    /// Print at most this many entries
    #[arg(long)]
    pub(crate) limit: Option<u64>,
}

#[derive(Args)]
pub(crate) struct LoadArgs {
    /// The file; standard input by default
    #[arg(conflicts_with = "count")]
    pub(crate) file: Option<PathBuf>,
    /// Insert this many entries `user0000000000`, … instead of reading
    #[arg(long)]
    pub(crate) count: Option<u64>,
    /// The length of the values of --count, in bytes
    #[arg(long, default_value_t = 100, requires = "count")]
    pub(crate) value_bytes: usize,
}

/// The workloads of YCSB's core package.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Workload {
    /// Half reads, half updates
    A,
    /// 95% reads, 5% updates
    B,
    /// Reads
    C,
    /// 95% reads of recent entries, 5% inserts
    D,
    /// 95% short scans, 5% inserts
    E,
    /// Half reads, half read-modify-writes
    F,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// The workload
    #[arg(long, value_enum, ignore_case = true, default_value = "A")]
    pub(crate) workload: Workload,
    /// The number of entries that `load --count` inserted
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    /// The length of new values, in bytes
    #[arg(long, default_value_t = 1000)]
    pub(crate) value_bytes: usize,
    /// The number of concurrent tasks
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(crate) tasks: u64,
    /// The duration in seconds
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
}

impl Cli {
    /// What to say if the options name an SSD but the store has none: the store keeps to its manifest, so
    /// that an SSD which failed and was given up is not put into use by the next command.
    pub(crate) fn note_of_unused_ssd(&self) -> Option<String> {
        if self.ssd_mib.unwrap_or(0) == 0 && self.ssd.is_none() {
            return None;
        }
        let mut verb = format!("pagetier attach {}", self.dir.join("pages").display());
        if let Some(hdd) = &self.hdd {
            verb += &format!(" --hdd {}", hdd.display());
        }
        if let Some(ssd) = &self.ssd {
            verb += &format!(" --ssd {}", ssd.display());
        }
        if let Some(mib) = self.ssd_mib {
            verb += &format!(" --ssd-mib {mib}");
        }
        Some(format!("the store has no SSD, and the options do not put one into use; `{verb}` does"))
    }

    /// The device of that name, if it is neither a file nor a block device. A new one, which only
    /// `--create-devices` makes, has `new_bytes`.
    fn device(&self, name: &str, new_bytes: u64, open: OpenDevice) -> Result<Option<SharedDevice>, Failure> {
        let new_bytes = self.create_devices.then_some(new_bytes);
        let asked = AskedDevice { name: name.to_owned(), take_over: self.take_over, new_bytes };
        names_a_device(name).then(|| open(&asked)).transpose()
    }

    pub(crate) fn options(&self, open: OpenDevice) -> Result<Options, Failure> {
        // A mistyped name must not leave a new store behind a command that only reads.
        let creates = matches!(self.command, Command::Put { .. } | Command::Load(_) | Command::Bench(_));
        let mut options = Options::new(&self.dir)
            .create(creates)
            .pool_bytes(self.pool_mib << 20)
            .log_bytes(self.log_mib << 20)
            .survives_ssd_loss(self.survive_ssd_loss)
            .accept_ssd_loss(self.accept_ssd_loss)
            .accept_log_loss(self.accept_log_loss)
            .control_socket(self.control_socket);
        if let Some(mib) = self.ssd_mib {
            options = options.ssd_bytes(mib << 20);
        }
        if let Some(hdd) = &self.hdd {
            options = match self.device(&hdd.to_string_lossy(), NEW_HOME_BYTES, open)? {
                Some(device) => options.hdd_device(device),
                None => options.hdd(hdd),
            };
        }
        if let Some(name) = &self.log_device {
            let device = self.device(name, NEW_LOGS * (self.log_mib << 20), open)?;
            options = options.log_device(device.ok_or("--log-device: a name such as rbd:POOL/IMAGE")?);
        }
        if let Some(ssd) = &self.ssd {
            options = options.ssd(ssd);
        }
        Ok(options)
    }
}
