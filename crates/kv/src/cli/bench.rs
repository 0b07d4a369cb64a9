//! `bench`: the workloads of YCSB's core package; every change is durable before it is counted.

use super::args::{BenchArgs, Workload};
use super::load::numbered_key;
use super::{Failure, STOPPED, Stop, show};
use crate::{Kv, KvError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// YCSB's skew.
const SKEW: f64 = 0.99;
/// The longest scan of workload E.
const SCAN_MAX: u64 = 100;

struct Run {
    kv: Arc<Kv>,
    workload: Workload,
    value_bytes: usize,
    loaded: u64,
    /// The number of entries, inserted ones included.
    records: AtomicU64,
    until: Instant,
    stop: Stop,
}

pub(crate) async fn bench(kv: &Arc<Kv>, args: &BenchArgs, stop: &Stop) -> Result<ExitCode, Failure> {
    // `load` inserts in order, so the last entry vouches for the others.
    if kv.get(&numbered_key(args.records - 1)).await?.is_none() {
        let needed = format!("load --count {} --value-bytes {}", args.records, args.value_bytes);
        return Err(format!("the store lacks the entries: run `kv {needed}` first").into());
    }
    let began = Instant::now();
    let run = Arc::new(Run {
        kv: Arc::clone(kv),
        workload: args.workload,
        value_bytes: args.value_bytes,
        loaded: args.records,
        records: AtomicU64::new(args.records),
        until: began + Duration::from_secs(args.seconds),
        stop: stop.clone(),
    });
    let bar = show::bar("running", None);
    let mut tasks = JoinSet::new();
    for task in 0..args.tasks {
        let (run, bar) = (Arc::clone(&run), bar.clone());
        tasks.spawn(async move { run.work(task, &bar).await });
    }
    let mut micros = Vec::new();
    let mut failure = None;
    // All tasks end, also after a failure: the store is closed next, and they use it.
    while let Some(done) = tasks.join_next().await {
        match done? {
            Ok(mut times) => micros.append(&mut times),
            Err(error) => failure = Some(error),
        }
    }
    bar.finish_and_clear();
    if let Some(error) = failure {
        return Err(error);
    }
    report(args, &mut micros, began.elapsed());
    Ok(if stop.is_asked() { STOPPED.into() } else { ExitCode::SUCCESS })
}

fn report(args: &BenchArgs, micros: &mut [u32], took: Duration) {
    micros.sort_unstable();
    let at = |part: f64| {
        let index = (micros.len() as f64 * part) as usize;
        micros.get(index.min(micros.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    println!(
        "workload {:?}: {:.0} operations/s; latency in µs: median {}, 99% {}, 99.9% {}, max {}",
        args.workload,
        micros.len() as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

impl Run {
    /// Runs operations until the time is up; returns the time of each operation in microseconds.
    async fn work(&self, task: u64, bar: &indicatif::ProgressBar) -> Result<Vec<u32>, Failure> {
        // Fixed seeds, one per task: two runs draw the same operations, and no two tasks of a run do.
        let mut rng = SmallRng::seed_from_u64(task);
        let zipf = Zipf::new(self.loaded as f64, SKEW)?;
        let mut micros = Vec::new();
        while Instant::now() < self.until && !self.stop.is_asked() {
            let began = Instant::now();
            self.operation(&mut rng, &zipf).await?;
            micros.push(began.elapsed().as_micros().min(u128::from(u32::MAX)) as u32);
            bar.inc(1);
        }
        Ok(micros)
    }

    async fn operation(&self, rng: &mut SmallRng, zipf: &Zipf<f64>) -> Result<(), KvError> {
        let rank = zipf.sample(rng) as u64 - 1;
        // Popular entries are scattered over all keys, except in D, where the newest are popular.
        let popular = numbered_key(scattered(rank) % self.loaded);
        let share = rng.random_range(0..100);
        match self.workload {
            Workload::A if share < 50 => self.update(rng, &popular).await,
            Workload::B if share < 5 => self.update(rng, &popular).await,
            Workload::D | Workload::E if share < 5 => {
                let number = self.records.fetch_add(1, Ordering::Relaxed);
                self.update(rng, &numbered_key(number)).await
            }
            Workload::D => {
                // Its insert may still be running. A read that comes too early finds nothing and costs the
                // same descent.
                let newest = self.records.load(Ordering::Relaxed) - 1;
                self.kv.get(&numbered_key(newest.saturating_sub(rank))).await.map(drop)
            }
            Workload::E => self.scan(&popular, rng.random_range(1..=SCAN_MAX)).await,
            Workload::F if share < 50 => {
                self.kv.get(&popular).await?;
                self.update(rng, &popular).await
            }
            _ => self.kv.get(&popular).await.map(drop),
        }
    }

    async fn update(&self, rng: &mut SmallRng, key: &[u8]) -> Result<(), KvError> {
        let mut value = vec![0; self.value_bytes];
        // Random bytes: a device that compresses must not profit from the generator.
        rng.fill(&mut value[..]);
        self.kv.put(key, &value).await
    }

    async fn scan(&self, from: &[u8], entries: u64) -> Result<(), KvError> {
        let mut scan = self.kv.scan(from..);
        for _ in 0..entries {
            if scan.next().await?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Scatters neighbouring numbers (the finaliser of MurmurHash3).
fn scattered(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}
