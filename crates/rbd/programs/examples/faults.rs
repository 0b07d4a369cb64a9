//! Load on a store whose homes and log are on Ceph, while the cluster fails around it. The script
//! `crates/rbd/run-faults` starts this, does things to the cluster, and notes them in a file. At the end each
//! acknowledged write is looked for, twice: in the open store, and after it was closed and opened again.

mod devices;

use clap::Parser;
use pagetier_ghost::LineChart;
use pagetier_kv::{Kv, Options};
use pagetier_rbd::ImageOptions;
use pagetier_subscriber::LogArgs;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Within as many seconds before the load ends a write must have been acknowledged.
const SECONDS_AT_END: usize = 10;

type Failure = Box<dyn Error + Send + Sync>;

/// Writes and reads keys until a file appears, checks that nothing acknowledged is lost, and draws a chart.
#[derive(Clone, Debug, Parser)]
struct Cli {
    /// The image of the homes
    #[arg(long)]
    home: String,
    /// The image of the log
    #[arg(long)]
    log_device: String,
    /// The folder for the SSD's file, and for the seconds' counts
    #[arg(long)]
    dir: PathBuf,
    /// The load ends when this file exists
    #[arg(long)]
    until: PathBuf,
    /// What was done to the cluster: a line each, with the time, the object stores that run, and words
    #[arg(long)]
    events: PathBuf,
    /// The chart, an SVG file
    #[arg(long)]
    chart: PathBuf,
    /// Number of keys, of some 1,000 bytes each
    #[arg(long, default_value_t = 20_000)]
    keys: usize,
    /// Memory in MiB
    #[arg(long, default_value_t = 8)]
    pool_mib: u64,
    /// SSD in MiB: has room for all keys
    #[arg(long, default_value_t = 128)]
    ssd_mib: u64,
    /// Tasks that write, and as many that read
    #[arg(long, default_value_t = 16)]
    tasks: usize,
    #[command(flatten)]
    log: LogArgs,
}

/// What the clients know.
struct Load {
    kv: Kv,
    /// The version of each key that was acknowledged last; one task writes a key.
    acknowledged: Vec<AtomicU64>,
    writes: AtomicU64,
    reads: AtomicU64,
    errors: AtomicU64,
    stopped: AtomicBool,
}

/// The counts of a second.
struct Second {
    writes: u64,
    reads: u64,
    /// CPU time of this process, in milliseconds.
    busy_ms: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.log.install();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ran = runtime.map_err(Failure::from).and_then(|runtime| run(&cli, &runtime));
    devices::close();
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("faults: {}", pagetier::errors::Causes(&*failure));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, runtime: &tokio::runtime::Runtime) -> Result<(), Failure> {
    let open = || -> Result<Kv, Failure> {
        // Outside of the runtime: they are opened on one of their own.
        let home = devices::open(&cli.home, ImageOptions::default(), Some(64 << 20))?;
        let log = devices::open(&cli.log_device, ImageOptions::default(), Some(512 << 20))?;
        let options = Options::new(&cli.dir).hdd_device(home).log_device(log).log_bytes(8 << 20);
        // Outages are longer than a lease, which would suspend the store.
        let options = options.lease(Duration::ZERO);
        let options = options.ssd_bytes(cli.ssd_mib << 20).pool_bytes(cli.pool_mib << 20);
        Ok(runtime.block_on(Kv::open(&options))?)
    };
    let load = Load::new(open()?, cli.keys);
    let (begun, seconds) = runtime.block_on(load.run(cli))?;
    runtime.block_on(load.check())?;
    let Load { kv, acknowledged, errors, .. } = Arc::into_inner(load).ok_or("a task goes on")?;
    runtime.block_on(kv.shutdown())?;
    let again = Load { acknowledged, ..Load::whole(open()?) };
    runtime.block_on(async {
        let report = again.kv.check(|_, _| ()).await?;
        if report.problems > 0 {
            return Err(format!("{} problems, such as {:?}", report.problems, report.listed).into());
        }
        again.check().await?;
        again.kv.shutdown().await.map_err(Failure::from)
    })?;
    // Otherwise all that came after a fault would prove nothing.
    let recent = &seconds[seconds.len().saturating_sub(SECONDS_AT_END)..];
    if recent.iter().all(|second| second.writes == 0) {
        return Err(format!("no write was acknowledged in the last {SECONDS_AT_END} s").into());
    }
    let errors = errors.into_inner();
    println!("every acknowledged write is there, also after closing and opening; {errors} requests failed");
    report(&seconds);
    draw(cli, begun, &seconds)
}

impl Load {
    fn whole(kv: Kv) -> Self {
        let [writes, reads, errors] = [0; 3].map(AtomicU64::new);
        Self { kv, acknowledged: Vec::new(), writes, reads, errors, stopped: AtomicBool::new(false) }
    }

    fn new(kv: Kv, keys: usize) -> Arc<Self> {
        let acknowledged = (0..keys).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { acknowledged, ..Self::whole(kv) })
    }

    /// Writes every key once, then runs until the file appears. Returns when that began, and the counts of
    /// each second.
    async fn run(self: &Arc<Self>, cli: &Cli) -> Result<(SystemTime, Vec<Second>), Failure> {
        let tasks: Vec<_> =
            (0..cli.tasks).map(|no| tokio::spawn(Arc::clone(self).fill(no, cli.tasks))).collect();
        for task in tasks {
            task.await??;
        }
        println!("loaded {} keys", self.acknowledged.len());
        let mut clients = Vec::new();
        for no in 0..cli.tasks {
            clients.push(tokio::spawn(Arc::clone(self).write(no, cli.tasks)));
            clients.push(tokio::spawn(Arc::clone(self).read(no)));
        }
        let (begun, mut seconds) = (SystemTime::now(), Vec::new());
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let mut before = self.counts()?;
        ticks.tick().await;
        while !cli.until.exists() && !clients.iter().any(tokio::task::JoinHandle::is_finished) {
            ticks.tick().await;
            let now = self.counts()?;
            seconds.push(Second {
                writes: now[0] - before[0],
                reads: now[1] - before[1],
                busy_ms: now[2] - before[2],
            });
            before = now;
        }
        self.stopped.store(true, Ordering::Relaxed);
        for client in clients {
            client.await??;
        }
        Ok((begun, seconds))
    }

    fn counts(&self) -> Result<[u64; 3], Failure> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok([of(&self.writes), of(&self.reads), cpu_ms()?])
    }

    async fn fill(self: Arc<Self>, from: usize, step: usize) -> Result<(), Failure> {
        for key in (from..self.acknowledged.len()).step_by(step) {
            self.put(key).await?;
        }
        Ok(())
    }

    async fn write(self: Arc<Self>, no: usize, of: usize) -> Result<(), Failure> {
        let mut rng = SmallRng::seed_from_u64(no as u64);
        while !self.stopped.load(Ordering::Relaxed) {
            let key = rng.random_range(0..self.acknowledged.len() / of) * of + no;
            if let Err(failure) = self.put(key).await {
                // A full pool, for example: what failed is not acknowledged, and asked for again.
                if self.errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
                    eprintln!("a write failed at {now}: {}", pagetier::errors::Causes(&*failure));
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }

    async fn put(&self, key: usize) -> Result<(), Failure> {
        let next = self.acknowledged[key].load(Ordering::Acquire) + 1;
        self.kv.put(&(key as u64).to_be_bytes(), &next.to_le_bytes().repeat(125)).await?;
        self.acknowledged[key].store(next, Ordering::Release);
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn read(self: Arc<Self>, no: usize) -> Result<(), Failure> {
        let mut rng = SmallRng::seed_from_u64(1 << 32 | no as u64);
        while !self.stopped.load(Ordering::Relaxed) {
            self.get(rng.random_range(0..self.acknowledged.len())).await?;
            self.reads.fetch_add(1, Ordering::Relaxed);
            // Of the order of the writes, so that a chart shows both.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Reads a key: its version is the one acknowledged last, or the next.
    async fn get(&self, key: usize) -> Result<(), Failure> {
        let least = self.acknowledged[key].load(Ordering::Acquire);
        let value = self.kv.get(&(key as u64).to_be_bytes()).await?;
        let most = self.acknowledged[key].load(Ordering::Acquire) + 1;
        let found =
            value.as_deref().and_then(|value| value.first_chunk::<8>()).map(|v| u64::from_le_bytes(*v));
        match found {
            Some(found) if (least..=most).contains(&found) => Ok(()),
            _ => Err(format!("LOST: key {key} has version {found:?}, acknowledged was {least}").into()),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        for key in 0..self.acknowledged.len() {
            self.get(key).await?;
        }
        Ok(())
    }
}

/// The CPU time that this process has used.
fn cpu_ms() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap_or(0)).sum();
    // Linux counts in hundredths of a second.
    Ok(10 * ticks)
}

/// Prints the totals, and what the process did while nothing was acknowledged.
fn report(seconds: &[Second]) {
    let sum = |of: fn(&Second) -> u64| seconds.iter().map(of).sum::<u64>();
    println!("{} s: {} writes, {} reads", seconds.len(), sum(|s| s.writes), sum(|s| s.reads));
    let (mut longest, mut now) = (0, 0);
    for second in seconds {
        now = if second.writes == 0 { now + 1 } else { 0 };
        longest = longest.max(now);
    }
    let still: Vec<_> = seconds.iter().filter(|second| second.writes == 0).collect();
    println!("{} s without an acknowledged write, at most {longest} s at a time", still.len());
    if !still.is_empty() {
        let mean =
            |of: fn(&Second) -> u64| still.iter().map(|s| of(s)).sum::<u64>() as f64 / still.len() as f64;
        let (reads, busy) = (mean(|s| s.reads), mean(|s| s.busy_ms) / 10.0);
        println!("meanwhile: {reads:.0} reads/s from memory and SSD, {busy:.1}% of a CPU");
    }
}

/// Draws both rates and the number of object stores that run.
fn draw(cli: &Cli, begun: SystemTime, seconds: &[Second]) -> Result<(), Failure> {
    let rate = |of: fn(&Second) -> u64| {
        seconds.iter().enumerate().map(|(at, second)| (at as f64, of(second) as f64)).collect::<Vec<_>>()
    };
    let (writes, reads) = (rate(|s| s.writes), rate(|s| s.reads));
    let top = writes.iter().chain(&reads).map(|(_, rate)| *rate).fold(100.0, f64::max) * 1.05;
    let last = seconds.len().max(1) as f64;
    let mut up = vec![(0.0, 3.0)];
    for (at, count) in events(&cli.events, begun)? {
        let before = up[up.len() - 1].1;
        up.extend([(at, before), (at, count)]);
    }
    up.push((last, up[up.len() - 1].1));
    let scaled = up.into_iter().map(|(at, count)| (at.clamp(0.0, last), count * top / 6.0)).collect();
    let chart = LineChart {
        title: "A store on Ceph while the cluster fails".into(),
        x: ("seconds", 0.0..last),
        y: ("per second", 0.0..top),
        lines: vec![
            ("acknowledged writes".into(), writes),
            ("reads".into(), reads),
            ("object stores up (of 3)".into(), scaled),
        ],
        dots: false,
        circled: None,
    };
    std::fs::write(&cli.chart, chart.svg().map_err(|error| error.to_string())?)?;
    println!("chart: {}", cli.chart.display());
    Ok(())
}

/// When the number of object stores that run changed, in seconds since `begun`.
fn events(file: &Path, begun: SystemTime) -> Result<Vec<(f64, f64)>, Failure> {
    let begun = begun.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let text = std::fs::read_to_string(file)?;
    let parsed = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.parse::<f64>().ok()? - begun, words.next()?.parse().ok()?))
    });
    Ok(parsed.collect())
}
