//! The command line and its defaults.

use crate::args::{self, PolicyPairs};
use crate::command::comparison::CompareArgs;
use crate::command::policies::Policies;
use clap::{Parser, ValueEnum};
use pagetier::{Costs, PageSize, PoolPolicy, SsdPolicy, device::COST_POINTS};
use pagetier_policy::{CLUSTER_PAGES_MAX, ZonePercent};
use pagetier_subscriber::LogArgs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Runs TPC-C on Pagetier and prints what its storage did for each New-Order.
///
/// Without options: 4 warehouses (320 MiB) on plain files in a temporary folder, removed at the end. Both
/// devices are plain files; the HDD's is slowed down to the speed of the 2013 paper's disk (7.2 ms to read a
/// page, 4.96 ms to write one). Load and warm-up run without these delays, so that the warm-up does the work
/// of hours; then 30 seconds are measured with them. The whole run takes about a minute.
///
/// The main figures count only what the paper's system does as well: reads and writes of pages. Pagetier's
/// doublewrite ring, metadata and flushes add to that; the column "all I/O" includes them.
#[derive(Clone, Debug, Parser)]
#[command(name = "tpcc_lite", verbatim_doc_comment)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Keep the database in this folder; a later run recovers it and continues
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Use this file, block device or other device, such as rbd:POOL/IMAGE, as the HDD, at its own speed
    #[arg(long, value_name = "PATH")]
    pub(crate) hdd: Option<PathBuf>,
    /// Keep the log on this device, such as rbd:POOL/IMAGE [default: in the folder]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) log_device: Option<String>,
    /// Use this file or block device as the SSD
    #[arg(long, value_name = "PATH")]
    pub(crate) ssd: Option<PathBuf>,
    /// Allow --hdd and --ssd to overwrite existing data
    #[arg(long)]
    pub(crate) force: bool,
    /// Warehouses, about 82 MB each [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) warehouses: Option<u16>,
    /// Bytes that a new database's rows take in addition to their columns: the paper's InnoDB keeps a record
    /// header (5), a transaction id (6) and a pointer to the undo log (7) with each; here the tree takes 8,
    /// and the others stay unused
    #[arg(long, value_name = "B", default_value_t = 18, value_parser = clap::value_parser!(u16).range(8..=256))]
    pub(crate) row_overhead: u16,
    /// Size of the SSD cache, such as 100MiB; 0 for none [default: a third of the database]
    #[arg(long, value_name = "B", value_parser = size)]
    pub(crate) ssd_bytes: Option<u64>,
    /// Size of the buffer pool [default: a thirtieth of the database]
    #[arg(long, value_name = "B", value_parser = size)]
    pub(crate) pool_bytes: Option<u64>,
    /// Sizes as a ratio database:SSD:pool of the loaded database, such as 30:10:1
    #[arg(long, value_name = "DB:SSD:POOL", value_parser = ratio, conflicts_with_all = ["ssd_bytes", "pool_bytes"])]
    pub(crate) db_ratio: Option<Ratio>,
    /// What the ratio counts
    #[arg(long, value_enum, value_name = "UNIT", default_value_t = Unit::Cache, requires = "db_ratio")]
    pub(crate) ratio_of: Unit,
    /// Page size: a power of two from 4KiB to 64KiB [default: 16KiB]
    #[arg(long, value_name = "B", value_parser = page_size)]
    pub(crate) page_size: Option<PageSize>,
    #[arg(long, value_name = "NAME", default_value_t)]
    #[arg(help = format!("Pool policy, in any case: {}", PoolPolicy::known()))]
    pub(crate) pool_policy: PoolPolicy,
    #[arg(long, value_name = "NAME", default_value_t)]
    #[arg(help = format!("SSD policy, in any case: {}", SsdPolicy::known()))]
    pub(crate) ssd_policy: SsdPolicy,
    /// Run several policy pairs POOL+SSD from one load, a row each (in memory only), such as
    /// LRU+CC,CFDC-75+CAC. With --compare: pairs in addition to those of the figures
    #[arg(long, value_name = "LIST", conflicts_with_all = ["pool_policy", "ssd_policy"])]
    pub(crate) policies: Option<PolicyPairs>,
    /// Tell the store what its policies cannot know: warehouses and districts, a few pages that every
    /// transaction uses, stay in memory, and the history, to which rows are only added, gets no copies on the
    /// SSD
    #[arg(long, conflicts_with = "compare")]
    pub(crate) hints: bool,
    /// Pages per cluster, for the pool policies that write in clusters (ref: per block); instead of what
    /// their names say [default: 64]
    #[arg(long, value_name = "PAGES", conflicts_with = "compare", value_parser = clap::value_parser!(u32).range(1..=i64::from(CLUSTER_PAGES_MAX)))]
    pub(crate) cluster_pages: Option<u32>,
    /// Milliseconds of an SSD read, HDD read, SSD write and HDD write that the policies use [default: the
    /// result of --calibrate, or the paper's 0.11,7.2,0.27,4.96]
    #[arg(long, value_name = "R_S,R_D,W_S,W_D", value_parser = args::costs, conflicts_with_all = ["calibrate", "compare"])]
    pub(crate) costs: Option<Costs>,
    /// Measure the costs during the run, by moving averages of the last POINTS reads and writes of each
    /// device, and pass them to the policies once a second. The warm-up then also runs with the delays of
    /// emulated devices. Without --costs, the default where the HDD is a device such as rbd:POOL/IMAGE
    #[arg(long, value_name = "POINTS", num_args = 0..=1, require_equals = true, default_missing_value = default_points(), conflicts_with = "compare")]
    pub(crate) online_costs: Option<NonZeroUsize>,
    /// Measure the costs before a new database is loaded, for about this many seconds per device; the store
    /// remembers them
    #[arg(long, value_name = "S", num_args = 0..=1, require_equals = true, default_missing_value = "2", value_parser = args::positive, conflicts_with = "compare")]
    pub(crate) calibrate: Option<f64>,
    /// The SSD's eviction zone in per cent of its pages, above 0 and at most 100, with up to three decimals;
    /// instead of what the policies' names say [default: 10]
    #[arg(long, value_name = "K")]
    pub(crate) zone_percent: Option<ZonePercent>,
    /// Entries of the outqueue; instead of what the policies' names say [default: one per page of the SSD]
    #[arg(long, value_name = "N")]
    pub(crate) outqueue: Option<usize>,
    /// Devices: files, or emulated devices in memory
    #[arg(long, value_enum)]
    pub(crate) devices: Option<Devices>,
    /// The disk to emulate without --hdd
    #[arg(long, value_enum, default_value_t = HddModel::Paper)]
    pub(crate) hdd_model: HddModel,
    /// The SSD to emulate, if the devices are in memory
    #[arg(long, value_enum, default_value_t = SsdModel::Paper, conflicts_with = "compare")]
    pub(crate) ssd_model: SsdModel,
    /// Real or virtual time; virtual time uses emulated devices and depends only on the seed
    #[arg(long, value_enum, default_value_t = Time::Real)]
    pub(crate) time: Time,
    /// Terminals, working without think times [default: two per warehouse]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) terminals: Option<u32>,
    /// Seconds of warm-up before the measurement [default: 10; 1800 of virtual time]
    #[arg(long, value_name = "S")]
    pub(crate) warmup: Option<f64>,
    /// Seconds of measurement [default: 30; 1800 of virtual time]
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Seed of the database and of the terminals' input
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The I/O backend for files
    #[arg(long, value_enum)]
    pub(crate) io: Option<Io>,
    /// Maximum bytes of log that a recovery has to read [default: a tenth of the database, at least 64MiB]
    #[arg(long, value_name = "B", value_parser = size)]
    pub(crate) log_bytes: Option<u64>,
    /// Keep the log for the loss of the SSD, too, at most this long [default: for a crash alone]
    #[arg(long, value_name = "B", value_parser = size)]
    pub(crate) ssd_log_bytes: Option<u64>,
    /// Record the page requests of the run, warm-up included, to this page trace (.ptr)
    #[arg(long, value_name = "FILE", conflicts_with = "policies")]
    pub(crate) record: Option<PathBuf>,
    /// Report at the end what other sizes of pool and SSD would have cost, estimated from a sample of the
    /// requests since the start of the warm-up, and draw it to this file (SVG) if one is given
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "")]
    pub(crate) what_if: Option<PathBuf>,
    /// Take requests of `pagetier` during the run, such as `pagetier stat D`
    #[arg(long, requires = "dir", conflicts_with = "compare")]
    pub(crate) control_socket: bool,
    /// Print one JSON object (an array with --policies) instead of the report
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) comparison: CompareArgs,
}

/// The kinds of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Devices {
    /// Files, with the HDD slowed down unless --hdd is given
    Files,
    /// Both in memory, slowed down
    Emulated,
}

/// The disks that can be emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum HddModel {
    /// 7.2 ms a read, 4.96 ms a write
    Paper,
    /// Seek curve, rotation, transfer, one actuator
    #[value(name = "7200rpm")]
    Rpm7200,
    /// A network volume: 1.2 ms a read, 3 ms a write, 64 at once
    Replicated,
    /// None: the file at its own speed
    None,
}

/// The SSDs that can be emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SsdModel {
    /// 0.11 ms a read, 0.27 ms a write, one at a time
    Paper,
    /// 80 µs a read, 20 µs a write, and the transfer; 16 at once
    Nvme,
}

/// The kinds of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Time {
    /// Wall-clock time
    Real,
    /// Simulated time
    Virtual,
}

/// I/O backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Io {
    /// io_uring
    Uring,
    /// A pool of threads
    Threads,
}

/// The ratio of database to SSD to pool.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Ratio {
    db: f64,
    ssd: f64,
    pool: f64,
}

impl Ratio {
    /// A ratio of whole numbers.
    pub(crate) fn new(db: u32, ssd: u32, pool: u32) -> Self {
        Self { db: db.into(), ssd: ssd.into(), pool: pool.into() }
    }

    /// The ratio of the paper's smallest pool.
    pub(crate) const DEFAULT: Self = Self { db: 30.0, ssd: 10.0, pool: 1.0 };

    /// The SSD's size for a database, in whole pages.
    pub(crate) fn ssd_bytes(self, unit: Unit, db_bytes: u64, page: PageSize) -> u64 {
        let pages = pages(db_bytes as f64 * self.ssd / self.db, page);
        match unit {
            Unit::Bytes => pages * page.bytes() as u64,
            Unit::Cache | Unit::Pages => pagetier::ssd_bytes_for(pages, page),
        }
    }

    /// The pool's size.
    pub(crate) fn pool_bytes(self, unit: Unit, db_bytes: u64, ssd_bytes: u64, page: PageSize) -> u64 {
        let pages = pages(db_bytes as f64 * self.pool / self.db, page);
        match unit {
            Unit::Cache | Unit::Bytes => pages * page.bytes() as u64,
            Unit::Pages => pagetier::pool_bytes_for(pages, ssd_bytes, page),
        }
    }
}

fn pages(bytes: f64, page: PageSize) -> u64 {
    (bytes as u64).div_ceil(page.bytes() as u64)
}

impl Cli {
    /// Checks for contradictions between options; clap has checked each option.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Whether devices are emulated follows from three options, which clap's conflicts cannot express.
        let given = [("--dir", &self.dir), ("--hdd", &self.hdd), ("--ssd", &self.ssd)];
        let file = given.iter().find(|(_, path)| path.is_some());
        if let (true, Some((name, _))) = (self.emulated(), file) {
            return Err(format!("{name} names a file, but the devices are emulated in memory"));
        }
        for (name, seconds) in [("--warmup", self.warmup), ("--seconds", self.seconds)] {
            // `Duration::from_secs_f64` panics beyond its range and for NaN; 1e8 seconds are 3 years.
            if seconds.is_some_and(|s| !(0.0..=1e8).contains(&s)) {
                return Err(format!("{name} must be a number of seconds of at least 0"));
            }
        }
        let why = if self.time == Time::Virtual && self.devices == Some(Devices::Files) {
            "--time virtual needs --devices emulated"
        } else if self.policies.is_some() && !self.emulated() {
            // All pairs start from one load: each needs a copy of the devices, and only memory has forks.
            "--policies compares in memory: add --devices emulated or --time virtual"
        } else if self.emulated() && self.ssd_bytes == Some(0) {
            "without files, omit the SSD with --ssd-policy none"
        } else if self.emulated() && self.hdd_model == HddModel::None {
            "--hdd-model none needs --devices files"
        } else if !self.emulated() && self.ssd_model != SsdModel::Paper {
            "--ssd-model needs --devices emulated: files have their own speed"
        } else if self.seconds == Some(0.0) {
            "--seconds must be above 0"
        } else {
            return Ok(());
        };
        Err(why.into())
    }

    /// Whether the devices are in memory.
    pub(crate) fn emulated(&self) -> bool {
        self.time == Time::Virtual || self.devices == Some(Devices::Emulated) || self.comparison.is_asked()
    }

    /// The number of warehouses of a new database.
    pub(crate) fn warehouses(&self) -> u16 {
        self.warehouses.unwrap_or(4)
    }

    /// The page size of a new database.
    pub(crate) fn page_size(&self) -> PageSize {
        self.page_size.unwrap_or_default()
    }

    /// The number of terminals; by default as in the paper.
    pub(crate) fn terminals(&self, warehouses: u16) -> u32 {
        self.terminals.unwrap_or(2 * u32::from(warehouses))
    }

    /// The length of the warm-up.
    pub(crate) fn warmup(&self) -> Duration {
        self.length(self.warmup, 10.0)
    }

    /// How long to calibrate each device, if at all.
    pub(crate) fn calibration(&self) -> Option<Duration> {
        self.calibrate.map(|seconds| Duration::from_secs_f64(seconds.min(CALIBRATION_MAX_S)))
    }

    /// The length of the measurement.
    pub(crate) fn seconds(&self) -> Duration {
        self.length(self.seconds, 30.0)
    }

    /// The given length, or the default; `real` is that of real time.
    fn length(&self, given: Option<f64>, real: f64) -> Duration {
        // In real time the warm-up runs without the devices' delays, and does the work of hours in
        // seconds. In virtual time it has them, and needs its half hour, which passes at once.
        let usual = if self.time == Time::Virtual { 1_800.0 } else { real };
        Duration::from_secs_f64(given.unwrap_or(usual))
    }

    /// The policies to run, in order.
    pub(crate) fn runs(&self) -> Vec<Policies> {
        match &self.policies {
            Some(pairs) => pairs.0.iter().map(Policies::from).collect(),
            None => vec![Policies { pool: self.pool_policy.to_string(), ssd: self.ssd_policy.to_string() }],
        }
    }

    /// The size of the SSD for a database of `db_bytes`.
    pub(crate) fn ssd_bytes(&self, db_bytes: u64) -> u64 {
        let ratio = self.db_ratio.unwrap_or(Ratio::DEFAULT);
        self.ssd_bytes.unwrap_or_else(|| ratio.ssd_bytes(self.ratio_of, db_bytes, self.page_size()))
    }

    /// The size of the pool for a database of `db_bytes`.
    pub(crate) fn pool_bytes(&self, db_bytes: u64, ssd_bytes: u64) -> u64 {
        let ratio = self.db_ratio.unwrap_or(Ratio::DEFAULT);
        self.pool_bytes
            .unwrap_or_else(|| ratio.pool_bytes(self.ratio_of, db_bytes, ssd_bytes, self.page_size()))
    }

    /// The size of the log for a database of `db_bytes`.
    pub(crate) fn log_bytes(&self, db_bytes: u64) -> u64 {
        // With a shorter log, pages are written to keep redo short, long before the pool wants their
        // frames: the figures would show the log's size instead of the policies.
        self.log_bytes.unwrap_or((db_bytes / 10).max(64 << 20))
    }
}

/// What `--db-ratio` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Unit {
    /// Pages of the SSD cache, and bytes of memory including all tables, the outqueue and staging copies
    Cache,
    /// Bytes of files and memory, including all of Pagetier's overhead
    Bytes,
    /// Pages alone; all overhead is extra
    Pages,
}

/// A number of bytes such as `4096`, `100MiB`, `2g`, `1.5GB`.
fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        other => return Err(format!("{other:?} is not a unit: use KiB, MiB, GiB, TiB, KB, MB, GB or TB")),
    };
    let bytes = number * unit;
    // A greater number may be above `u64::MAX`, to which the cast would reduce it without an error.
    if bytes.fract() == 0.0 && bytes < 1e18 {
        Ok(bytes as u64)
    } else {
        Err("not a whole number of bytes".into())
    }
}

fn page_size(text: &str) -> Result<PageSize, String> {
    PageSize::new(size(text)?).map_err(|error| error.to_string())
}

fn ratio(text: &str) -> Result<Ratio, String> {
    match args::ratio(text)? {
        // The bound catches a ratio that is written backwards, such as 1:10:30: the emulated devices, and
        // the pool, would take that much memory.
        [db, ssd, pool] if ssd <= 10.0 * db && pool <= 10.0 * db => Ok(Ratio { db, ssd, pool }),
        _ => Err("neither SSD nor pool may be larger than ten databases".into()),
    }
}

/// The longest calibration of a device, in seconds; it ends after some thousand operations anyway.
const CALIBRATION_MAX_S: f64 = 3600.0;

fn default_points() -> &'static str {
    static POINTS: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| COST_POINTS.to_string());
    &POINTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in
            [("4096", 4096), ("100MiB", 100 << 20), ("2g", 2 << 30), ("1.5GB", 1_500_000_000), ("0", 0)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1.0001", "7 parsecs", "-1", "1e99"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(page_size("12KiB").is_err());
        assert_eq!(page_size("4k"), Ok(PageSize::MIN));
    }

    #[test]
    fn a_ratio_gives_whole_pages() {
        let ratio = ratio("30:10:2").unwrap();
        let size = PageSize::DEFAULT;
        assert_eq!(ratio.ssd_bytes(Unit::Bytes, 30 << 20, size), 10 << 20);
        assert_eq!(ratio.pool_bytes(Unit::Bytes, (30 << 20) + 30, 0, size), (2 << 20) + (16 << 10));
        assert_eq!(ratio.ssd_bytes(Unit::Pages, 30 << 20, size), pagetier::ssd_bytes_for(640, size));
        assert_eq!(ratio.ssd_bytes(Unit::Cache, 30 << 20, size), pagetier::ssd_bytes_for(640, size));
        assert_eq!(ratio.pool_bytes(Unit::Cache, 30 << 20, 0, size), 2 << 20);
        let pool = ratio.pool_bytes(Unit::Pages, (30 << 20) + 30, 0, size);
        assert_eq!(pool, pagetier::pool_bytes_for(129, 0, size));
        for bad in
            ["30:10", "30:10:0", "0:1:1", "a:b:c", "1:2:3:4", "30:x:10:1", "inf:10:1", "30:1e300:1", "1:1:11"]
        {
            assert!(super::ratio(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let check = |args: &[&str]| Cli::parse_from(["x"].iter().chain(args)).check();
        assert!(check(&[]).is_ok());
        assert!(check(&["--time", "virtual", "--policies", "LRU+CC,GD2L+CAC"]).is_ok());
        for bad in [
            &["--time", "virtual", "--dir", "d"][..],
            &["--time", "virtual", "--devices", "files"],
            &["--devices", "emulated", "--ssd", "s"],
            &["--policies", "LRU+CC"],
            &["--pool-policy", "magic"],
            &["--ssd-policy", "magic"],
            &["--time", "virtual", "--policies", "LRU+magic"],
            &["--db-ratio", "30:x:10:1"],
            &["--zone-percent", "nan"],
            &["--zone-percent", "0"],
            &["--zone-percent", "101"],
            &["--zone-percent", "2.5001"],
            &["--cluster-pages", "0"],
            &["--costs", "1,2,3"],
            &["--costs", "1,2,3,nan"],
            &["--costs", "1,2,3,4", "--calibrate"],
            &["--online-costs=0"],
            &["--calibrate=0"],
            &["--calibrate=nan"],
            &["--compare", "all", "--report", "r", "--online-costs"],
            &["--seconds", "0"],
            &["--warmup", "-1"],
        ] {
            assert!(
                Cli::try_parse_from(["x"].iter().chain(bad)).map_or(true, |cli| cli.check().is_err()),
                "{bad:?}"
            );
        }
        let cli = Cli::parse_from(["x", "--time", "virtual", "--policies", "LRU+CC,gd2l+cac"]);
        assert_eq!(cli.runs()[0], Policies { pool: "lru".into(), ssd: "cc".into() });
        assert_eq!(cli.runs().len(), 2);
        pagetier_rivals::register();
        let cli = Cli::parse_from(["x", "--pool-policy", "CFDC-75", "--ssd-policy", "TAC"]);
        assert_eq!(cli.runs(), [Policies { pool: "cfdc-75".into(), ssd: "tac".into() }]);
    }

    #[test]
    fn costs_are_given_or_measured() {
        let cli = Cli::parse_from(["x", "--costs", "0.11,7.2,0.27,4.96"]);
        assert_eq!((cli.costs, cli.online_costs, cli.calibration()), (Some(Costs::PAPER), None, None));
        let cli = Cli::parse_from(["x", "--online-costs", "--calibrate"]);
        assert_eq!(cli.online_costs.map(NonZeroUsize::get), Some(COST_POINTS));
        assert_eq!(cli.calibration(), Some(Duration::from_secs(2)));
        let cli = Cli::parse_from(["x", "--online-costs=256", "--calibrate=0.5"]);
        assert_eq!(cli.online_costs.map(NonZeroUsize::get), Some(256));
        assert_eq!(cli.calibration(), Some(Duration::from_millis(500)));
    }

    #[test]
    fn help_names_every_policy() {
        pagetier_rivals::register();
        let help = Cli::command().render_long_help().to_string();
        let words: Vec<_> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
        let all = pagetier_rivals::POOL_POLICIES.iter().map(ToString::to_string);
        for name in
            all.chain(pagetier_rivals::SSD_POLICIES.iter().map(ToString::to_string)).chain(["cfdc-75".into()])
        {
            assert!(words.contains(&name.as_str()), "{name}");
        }
    }
}
