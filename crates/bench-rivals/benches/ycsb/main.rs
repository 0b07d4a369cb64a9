//! YCSB's core workloads on the key-value store of `crates/kv`, redb, fjall and RocksDB, on equal terms:
//! `cargo bench --bench ycsb` in this directory; `-- --help` lists its options.
//!
//! - **Memory**: each engine runs in its own process, in a cgroup that limits all its memory, including the
//!   system's page cache for its files. Pagetier bypasses that cache; its pool takes the limit less 24 MiB,
//!   which leaves room for the program itself. The others get a quarter of the limit for their own cache and
//!   buffers (they use twice that) and leave the rest to the page cache. fjall has no limit for the sum of
//!   its memtables: the bench makes its writers wait until they fit. A cgroup takes root; `--unlimited` runs
//!   without one.
//! - **Durability**: every change is durable before it counts. Changes by several clients share a flush:
//!   Pagetier and RocksDB do this themselves, redb and fjall through a thread that commits all waiting
//!   changes.
//! - **Data**: `--data-times` the limit, loaded in hash order, by all clients at once. Every engine uses the
//!   same disk. Pagetier's pages have 8 KiB (`--page-kib`), the others' blocks or pages 4 KiB, their default:
//!   Pagetier stores values in their leaves only up to a quarter of a page.
//! - **Bytes written** (`--written`): what the process gave to the storage layer (`/proc/self/io`): directly,
//!   or as pages of the page cache that it made dirty, less those that were gone before the system wrote
//!   them. The file system's journal is not in it. After each workload, an engine first writes out what it
//!   holds back: Pagetier its dirty pages, the LSM trees their memtables. Merges that are due later count for
//!   the workload in which they run.

mod cgroup;
mod engine;
mod report;
mod workload;

use clap::Parser;
use engine::{EngineName, Store};
use report::Row;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use workload::{Run, Workload};

type Failure = Box<dyn Error + Send + Sync>;

/// YCSB's core workloads on Pagetier's key-value store, redb, fjall and RocksDB, with equal memory and equal
/// durability.
#[derive(Parser, Clone, Debug)]
#[command(name = "ycsb")]
struct Args {
    /// The engines, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = EngineName::all())]
    engines: Vec<EngineName>,
    /// The workloads, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// The memory of an engine, page cache included, in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
    /// Sets no memory limit: the page cache then uses all free memory.
    #[arg(long)]
    unlimited: bool,
    /// The bytes of all values, as a multiple of the memory.
    #[arg(long, default_value_t = 10.0)]
    data_times: f64,
    /// The bytes of a value.
    #[arg(long, default_value_t = 1000)]
    value_bytes: usize,
    /// The size of Pagetier's pages in KiB. The others keep their default of 4 KiB.
    #[arg(long, default_value_t = 8)]
    page_kib: u64,
    /// Pagetier's SSD tier, in MiB; 0: none, since all engines use the same disk.
    #[arg(long, default_value_t = 0)]
    ssd_mib: u64,
    /// Pagetier's HDD, a device or a file; default: a file in its directory, where its log is in any case.
    #[arg(long)]
    hdd: Option<PathBuf>,
    /// Pagetier's SSD, a device or a file, of which it uses `--ssd-mib`; default: a file in its directory.
    #[arg(long)]
    ssd: Option<PathBuf>,
    /// The log that a recovery of Pagetier reads at most, in MiB.
    #[arg(long, default_value_t = 64)]
    log_mib: u64,
    /// A command for the shell between load and workloads, such as one that drops caches.
    #[arg(long)]
    after_load: Option<String>,
    /// The number of concurrent clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// The duration of each workload in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The parent of the engines' directories, which are removed afterwards.
    #[arg(long, default_value = "target/ycsb")]
    dir: PathBuf,
    /// Prints the statistics of Pagetier's store after the load and after each workload.
    #[arg(long)]
    profile: bool,
    /// Has the engine write out what it holds back after the load and after each workload, and also prints
    /// the bytes written per byte changed. What a workload starts with differs then.
    #[arg(long)]
    written: bool,
    /// Prints one line of JSON for each result instead of a table.
    #[arg(long)]
    json: bool,
    /// Runs the first engine in this process. This program calls itself with it.
    #[arg(long, hide = true)]
    child: bool,
    /// Ignored; cargo passes it to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn records(&self) -> u64 {
        let bytes = (self.memory_mib << 20) as f64 * self.data_times;
        ((bytes / self.value_bytes as f64) as u64).max(1)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match if args.child { run(&args) } else { run_each(&args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs each engine in its own process and cgroup.
fn run_each(args: &Args) -> Result<(), Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for engine in &args.engines {
        eprintln!("{engine}: {} records of {} bytes", args.records(), args.value_bytes);
        let group = if args.unlimited { None } else { Some(cgroup::Group::new(args.memory_mib << 20)?) };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).arg("--child").stdout(Stdio::piped());
        // With an arena for each thread, memory freed in one could not be used by the others.
        command.env("MALLOC_ARENA_MAX", "2").env("YCSB_ENGINE", engine.to_string());
        let child = match &group {
            Some(group) => group.spawn(&mut command)?,
            None => command.spawn()?,
        };
        let output = child.wait_with_output()?;
        if !output.status.success() {
            eprintln!("{engine}: failed ({})", output.status);
            continue;
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            if args.json {
                println!("{line}");
            }
            rows.push(serde_json::from_str(line)?);
        }
    }
    if !args.json {
        report::print_table(&rows);
    }
    Ok(())
}

/// The bytes that this process has caused to be written.
fn written_bytes() -> Result<u64, Failure> {
    let counts = std::fs::read_to_string("/proc/self/io")?;
    let count = |name: &str| -> Result<u64, Failure> {
        let line = counts.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.ok_or("/proc/self/io lacks a count")?.trim().parse()?)
    };
    // A file that was removed before the system wrote its pages.
    Ok(count("write_bytes:")?.saturating_sub(count("cancelled_write_bytes:")?))
}

/// Loads one engine and runs the workloads on it. Prints a line of JSON for each.
fn run(args: &Args) -> Result<(), Failure> {
    let name: EngineName = std::env::var("YCSB_ENGINE")?.parse()?;
    let dir = args.dir.join(name.to_string());
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    // The engines with blocking calls get a thread for each client, as their users would.
    let workers = if name == EngineName::Pagetier { 2 } else { args.clients as usize };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let done = runtime.block_on(async {
        let store = Store::open(name, &dir, args).await?;
        let run = Run {
            store: Arc::new(store),
            value_bytes: args.value_bytes,
            records: args.records(),
            clients: args.clients,
            took: Duration::from_secs(args.seconds),
            changed: Arc::default(),
        };
        let mut before = [0, 0];
        let mut counted = async |mut row: Row| {
            if args.written {
                run.store.settle().await?;
                let after = [written_bytes()?, run.changed.load(Ordering::Relaxed)];
                let [written, changed] = std::array::from_fn(|at| after[at] as f64 - before[at] as f64);
                row.written = (changed > 0.0).then_some(written / changed);
                before = after;
            }
            Ok::<_, Failure>(row)
        };
        let report = |row: &Row| {
            eprintln!("{row}");
            if let Some(profile) = run.store.profile().filter(|_| args.profile) {
                eprintln!("{profile}");
            }
            println!("{}", serde_json::to_string(row)?);
            Ok::<_, Failure>(())
        };
        report(&counted(run.load(name).await?).await?)?;
        if let Some(command) = &args.after_load {
            let status = Command::new("sh").arg("-c").arg(command).stdout(Stdio::null()).status()?;
            if !status.success() {
                return Err(format!("{command}: {status}").into());
            }
        }
        let mut inserted = run.records;
        for workload in &args.workloads {
            report(&counted(run.go(name, *workload, &mut inserted).await?).await?)?;
        }
        let store = Arc::into_inner(run.store).ok_or("a client still uses the store")?;
        store.close().await
    });
    std::fs::remove_dir_all(&dir)?;
    done
}
