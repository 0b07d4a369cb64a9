//! The workloads of YCSB's core package.

use crate::Failure;
use crate::engine::{EngineName, Store};
use crate::report::Row;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// YCSB's skew.
const SKEW: f64 = 0.99;
/// The longest scan of workload E.
const SCAN_MAX: usize = 100;
/// The number of entries that all clients together load at once.
const LOAD_BATCH: u64 = 1000;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "UPPER")]
pub(crate) enum Workload {
    /// Half reads, half updates.
    A,
    /// 95% reads, 5% updates.
    B,
    /// Reads only.
    C,
    /// 95% reads of the latest entries, 5% inserts.
    D,
    /// 95% scans of up to 100 entries, 5% inserts.
    E,
    /// Half reads, half reads followed by an update.
    F,
}

impl Workload {
    pub(crate) const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];
}

pub(crate) struct Run {
    pub(crate) store: Arc<Store>,
    pub(crate) value_bytes: usize,
    pub(crate) records: u64,
    pub(crate) clients: u64,
    pub(crate) took: Duration,
    /// The bytes of all keys and values put so far.
    pub(crate) changed: Arc<AtomicU64>,
}

/// What a client needs.
struct Client {
    store: Arc<Store>,
    changed: Arc<AtomicU64>,
    workload: Workload,
    value_bytes: usize,
    loaded: u64,
    /// The number of entries, inserted ones included.
    records: Arc<AtomicU64>,
    until: Instant,
}

impl Run {
    /// Loads the entries in batches, one per client at a time. The result counts entries as operations.
    pub(crate) async fn load(&self, name: EngineName) -> Result<Row, Failure> {
        let began = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let (records, bytes, step) = (self.records, self.value_bytes, (LOAD_BATCH / self.clients).max(1));
        let mut clients = JoinSet::new();
        for client in 0..self.clients {
            let (store, next, changed) =
                (Arc::clone(&self.store), Arc::clone(&next), Arc::clone(&self.changed));
            clients.spawn(async move {
                let mut rng = SmallRng::seed_from_u64(client);
                let mut times = Histogram::new(3)?;
                loop {
                    let first = next.fetch_add(step, Ordering::Relaxed);
                    if first >= records {
                        return Ok::<_, Failure>(times);
                    }
                    let numbers = first..(first + step).min(records);
                    let entries: Vec<_> =
                        numbers.map(|number| (key(number), value(&mut rng, bytes))).collect();
                    let put: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
                    changed.fetch_add(put as u64, Ordering::Relaxed);
                    let batch = Instant::now();
                    let count = store.load(entries).await?;
                    times.record_n(batch.elapsed().as_micros() as u64, count)?;
                }
            });
        }
        let mut times: Histogram<u64> = Histogram::new(3)?;
        while let Some(done) = clients.join_next().await {
            times.add(done??)?;
        }
        Ok(Row::new(name.to_string(), "load".into(), &times, began.elapsed()))
    }

    /// Runs `workload`. `records` is the number of entries, which it updates.
    pub(crate) async fn go(
        &self,
        name: EngineName,
        workload: Workload,
        records: &mut u64,
    ) -> Result<Row, Failure> {
        let began = Instant::now();
        let counter = Arc::new(AtomicU64::new(*records));
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let client = Client {
                store: Arc::clone(&self.store),
                changed: Arc::clone(&self.changed),
                workload,
                value_bytes: self.value_bytes,
                loaded: *records,
                records: Arc::clone(&counter),
                until: began + self.took,
            };
            clients.spawn(async move { client.work(number).await });
        }
        let mut times = Histogram::new(3)?;
        while let Some(done) = clients.join_next().await {
            times.add(done??)?;
        }
        *records = counter.load(Ordering::Relaxed);
        Ok(Row::new(name.to_string(), format!("{workload:?}"), &times, began.elapsed()))
    }
}

impl Client {
    /// Runs operations until the time is up; returns the time of each operation in microseconds.
    async fn work(&self, number: u64) -> Result<Histogram<u64>, Failure> {
        let mut rng = SmallRng::seed_from_u64(number);
        let zipf = Zipf::new(self.loaded as f64, SKEW)?;
        let mut times = Histogram::new(3)?;
        while Instant::now() < self.until {
            let began = Instant::now();
            self.operation(&mut rng, &zipf).await?;
            times.record(began.elapsed().as_micros() as u64)?;
        }
        Ok(times)
    }

    async fn operation(&self, rng: &mut SmallRng, zipf: &Zipf<f64>) -> Result<(), Failure> {
        let rank = zipf.sample(rng) as u64 - 1;
        let popular = key(rank);
        let share = rng.random_range(0..100);
        match self.workload {
            Workload::A if share < 50 => self.update(rng, popular).await,
            Workload::B if share < 5 => self.update(rng, popular).await,
            Workload::D | Workload::E if share < 5 => {
                let number = self.records.fetch_add(1, Ordering::Relaxed);
                self.update(rng, key(number)).await
            }
            Workload::D => {
                let newest = self.records.load(Ordering::Relaxed) - 1;
                self.store.get(&key(newest.saturating_sub(rank))).await.map(drop)
            }
            Workload::E => self.store.scan(&popular, rng.random_range(1..=SCAN_MAX)).await.map(drop),
            Workload::F if share < 50 => {
                self.store.get(&popular).await?;
                self.update(rng, popular).await
            }
            _ => self.store.get(&popular).await.map(drop),
        }
    }

    async fn update(&self, rng: &mut SmallRng, key: Vec<u8>) -> Result<(), Failure> {
        let value = value(rng, self.value_bytes);
        self.changed.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
        self.store.put(key, value).await
    }
}

/// The key of entry `number`. Neighbouring numbers have scattered keys, like YCSB's hashed inserts.
fn key(number: u64) -> Vec<u8> {
    format!("user{:020}", scattered(number)).into_bytes()
}

fn value(rng: &mut SmallRng, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    rng.fill(&mut value[..]);
    value
}

/// The finaliser of MurmurHash3, which gives no two numbers the same result.
fn scattered(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}
