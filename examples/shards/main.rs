//! Shards: each is a store of its own. Several processes have some of them each; the stores of a process
//! share its runtime, its memory and its SSD. Shards move between the processes under load, and every
//! acknowledged write is looked for after each move.
//!
//! `cargo run --release --example shards`; `-- --help` lists the options. Plain files, no set-up.
//!
//! A move is four steps. Only the third and the fourth interrupt the shard:
//!
//! 1. The process that gets the shard makes room: its other stores' pools shrink (`resize_pool`).
//! 2. The one that has it stops keeping new versions on its SSD alone (`SsdMode::WriteThrough`), and drains
//!    it.
//! 3. It closes the store, and removes the shard's part of the SSD.
//! 4. The other opens the homes, which have the manifest, with a blank part of its own SSD.

mod fleet;
mod host;
mod load;

use clap::Parser;
use fleet::Fleet;
use indicatif::{ProgressBar, ProgressStyle};
use load::Load;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Moves shards between processes under load, and reports how long each was interrupted.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Cli {
    /// Folder with the homes of all shards, and a folder for each process; a later run goes on with it
    #[arg(long, default_value = "target/shards")]
    pub(crate) dir: PathBuf,
    /// Number of shards, each a store of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) shards: u32,
    /// Number of processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) processes: u32,
    /// Memory of each process in MiB, in equal shares for the stores that it has open
    #[arg(long, default_value_t = 32)]
    pub(crate) memory_mib: u64,
    /// Part of each process's SSD in MiB: one quota for each shard, whether the process has it or not
    #[arg(long, default_value_t = 64)]
    pub(crate) ssd_mib: u64,
    /// Pages of a shard (16 KiB each)
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pages: u32,
    /// Clients of each shard, which read and write one page at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) clients: u32,
    /// Number of moves
    #[arg(long, default_value_t = 6)]
    pub(crate) moves: u32,
    /// Milliseconds of load before each move
    #[arg(long, default_value_t = 1_000)]
    pub(crate) every_ms: u64,
    /// Runs as the process of this number, for the one that distributes the shards
    #[arg(long, hide = true)]
    pub(crate) host: Option<u32>,
}

impl Cli {
    /// The folder of a process: stands for its machine.
    pub(crate) fn host_dir(&self, host: u32) -> PathBuf {
        self.dir.join(format!("process-{host}"))
    }

    /// A shard's part of a process's SSD. It exists exactly while the shard is there: see `host`.
    pub(crate) fn ssd(&self, host: u32, shard: u32) -> PathBuf {
        self.host_dir(host).join(format!("shard-{shard}.ssd"))
    }

    /// A shard's homes, which every process reaches.
    pub(crate) fn homes(&self, shard: u32) -> PathBuf {
        self.dir.join(format!("shard-{shard}.vol"))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match cli.host {
                Some(no) => host::run(cli, no).await.map(|()| false),
                None => distribute(cli).await,
            }
        })
    });
    match ended {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(130),
        Err(failure) => {
            eprintln!("shards: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the processes, moves shards between them under load, and checks what they have. Returns whether
/// Ctrl-C ended it early.
async fn distribute(cli: Cli) -> Result<bool, Failure> {
    let fleet = Arc::new(Fleet::start(cli).await?);
    let done = distributed(&fleet).await;
    // Also after a failure the processes close their stores.
    fleet.end().await?;
    done
}

async fn distributed(fleet: &Arc<Fleet>) -> Result<bool, Failure> {
    let load = Arc::new(Load::begin(Arc::clone(fleet)).await?);
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    let clients = load.clients();
    // Looked at between moves: what has begun ends, so that each shard is in one process.
    let stopped = Arc::new(AtomicBool::new(false));
    tokio::spawn({
        let stopped = Arc::clone(&stopped);
        async move { stopped.store(tokio::signal::ctrl_c().await.is_ok(), Ordering::Relaxed) }
    });
    let ended = tokio::select! {
        moved = moves(fleet, &load, &bar, &stopped) => moved,
        failed = load.failed() => Err(failed),
    };
    bar.finish_and_clear();
    load.stop();
    for client in clients {
        client.await?;
    }
    let is_stopped = ended?;
    load.none_missed()?;
    fleet.close_all().await?;
    fleet.open_all().await?;
    let pages = load.check_all().await?;
    let (reads, writes) = load.counts();
    println!("{reads} reads, {writes} acknowledged writes");
    println!("each acknowledged write is there after closing and opening ({pages} pages read)");
    Ok(is_stopped)
}

/// Returns whether it was stopped.
async fn moves(fleet: &Fleet, load: &Load, bar: &ProgressBar, stopped: &AtomicBool) -> Result<bool, Failure> {
    let cli = &fleet.cli;
    println!("{} shards in {} processes, {} clients each", cli.shards, cli.processes, cli.clients);
    println!(
        "{:>5} {:>9} {:>8} {:>10} {:>9} {:>9} {:>10}",
        "shard", "process", "drained", "drain ms", "close ms", "open ms", "pause ms"
    );
    for no in 0..cli.moves {
        if under_load(load, bar, cli.every_ms, stopped).await {
            return Ok(true);
        }
        let shard = no % cli.shards;
        let (from, to) = (fleet.place(shard), (fleet.place(shard) + 1) % cli.processes);
        load.begin_pause(shard);
        let moved = fleet.move_shard(shard, to).await?;
        let pause = load.end_pause(shard).await;
        let [drain, close, open, pause] =
            [moved.drain, moved.close, moved.open, pause].map(|took| took.as_secs_f64() * 1e3);
        bar.suspend(|| {
            println!(
                "{shard:>5} {:>9} {:>8} {drain:>10.1} {close:>9.1} {open:>9.1} {pause:>10.1}",
                format!("{from} -> {to}"),
                moved.drained
            );
        });
        load.check(shard).await?;
    }
    Ok(under_load(load, bar, cli.every_ms, stopped).await)
}

/// Lets the clients work and shows what they have done. Returns whether to stop.
async fn under_load(load: &Load, bar: &ProgressBar, ms: u64, stopped: &AtomicBool) -> bool {
    let until = tokio::time::Instant::now() + Duration::from_millis(ms);
    while tokio::time::Instant::now() < until && !stopped.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (reads, writes) = load.counts();
        bar.set_message(format!("{reads} reads, {writes} acknowledged writes"));
        bar.tick();
    }
    stopped.load(Ordering::Relaxed)
}
