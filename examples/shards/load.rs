//! The clients of all shards, and what they know to be there.

use crate::Failure;
use crate::fleet::{Fleet, Link};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) struct Load {
    fleet: Arc<Fleet>,
    shards: Vec<Known>,
    reads: AtomicU64,
    writes: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<Failure>>,
    has_failed: Notify,
}

/// What the clients know of a shard.
struct Known {
    /// The version of each page that was acknowledged last. A page has one client that writes it, so what is
    /// there is this version, or the next one, whose acknowledgement is on its way.
    acknowledged: Vec<AtomicU64>,
    pause: Mutex<Pause>,
    answered: Notify,
}

/// The longest time between two acknowledged writes of a shard since a moment.
struct Pause {
    last: Instant,
    longest: Duration,
    answers: u64,
}

impl Load {
    /// Learns what is there.
    pub(crate) async fn begin(fleet: Arc<Fleet>) -> Result<Self, Failure> {
        let mut shards = Vec::new();
        for shard in 0..fleet.cli.shards {
            let mut link = fleet.link(fleet.place(shard)).await?;
            let mut acknowledged = Vec::new();
            for page in 0..fleet.cli.pages {
                let version = link.ask(&format!("get {shard} {page}")).await?.ok_or("a shard is not open")?;
                acknowledged.push(AtomicU64::new(version));
            }
            let pause = Pause { last: Instant::now(), longest: Duration::ZERO, answers: 0 };
            shards.push(Known { acknowledged, pause: Mutex::new(pause), answered: Notify::new() });
        }
        let [reads, writes] = [0, 0].map(AtomicU64::new);
        let (stopped, failure, has_failed) = (AtomicBool::new(false), Mutex::new(None), Notify::new());
        Ok(Self { fleet, shards, reads, writes, stopped, failure, has_failed })
    }

    pub(crate) fn clients(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let cli = &self.fleet.cli;
        let all = (0..cli.shards).flat_map(|shard| (0..cli.clients).map(move |client| (shard, client)));
        all.map(|(shard, client)| {
            let load = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(failure) = load.work(shard, client).await {
                    load.failure.lock().unwrap().get_or_insert(failure);
                    load.has_failed.notify_one();
                }
            })
        })
        .collect()
    }

    async fn work(&self, shard: u32, client: u32) -> Result<(), Failure> {
        let (pages, clients) = (self.fleet.cli.pages, self.fleet.cli.clients);
        let mut rng = SmallRng::seed_from_u64(u64::from(shard) << 32 | u64::from(client));
        let mut place = self.fleet.place(shard);
        let mut link = self.fleet.link(place).await?;
        while !self.stopped.load(Ordering::Relaxed) {
            // Low numbers are asked for most.
            let page = (f64::from(pages) * rng.random::<f64>().powi(2)) as u32;
            let own = page - page % clients + client;
            let done = if own < pages && rng.random_bool(0.5) {
                self.put(&mut link, shard, own).await?
            } else {
                self.get(&mut link, shard, page).await?
            };
            if !done {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let now = self.fleet.place(shard);
                if now != place {
                    (place, link) = (now, self.fleet.link(now).await?);
                }
            }
        }
        Ok(())
    }

    /// Writes the page's next version. Returns whether the shard was there.
    async fn put(&self, link: &mut Link, shard: u32, page: u32) -> Result<bool, Failure> {
        let known = &self.shards[shard as usize];
        let next = known.acknowledged[page as usize].load(Ordering::Acquire) + 1;
        if link.ask(&format!("put {shard} {page} {next}")).await?.is_none() {
            return Ok(false);
        }
        known.acknowledged[page as usize].store(next, Ordering::Release);
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut pause = known.pause.lock().unwrap();
        pause.longest = pause.longest.max(pause.last.elapsed());
        (pause.last, pause.answers) = (Instant::now(), pause.answers + 1);
        drop(pause);
        known.answered.notify_waiters();
        Ok(true)
    }

    /// Reads a page and checks its version. Returns whether the shard was there.
    async fn get(&self, link: &mut Link, shard: u32, page: u32) -> Result<bool, Failure> {
        let acknowledged = &self.shards[shard as usize].acknowledged[page as usize];
        let least = acknowledged.load(Ordering::Acquire);
        let Some(found) = link.ask(&format!("get {shard} {page}")).await? else { return Ok(false) };
        let most = acknowledged.load(Ordering::Acquire) + 1;
        if !(least..=most).contains(&found) {
            return Err(format!(
                "LOST: page {page} of shard {shard} has version {found}, acknowledged was {least}"
            )
            .into());
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads every page of a shard where it is now.
    pub(crate) async fn check(&self, shard: u32) -> Result<u64, Failure> {
        let mut link = self.fleet.link(self.fleet.place(shard)).await?;
        for page in 0..self.fleet.cli.pages {
            if !self.get(&mut link, shard, page).await? {
                return Err(format!("shard {shard} is not where it should be").into());
            }
        }
        Ok(u64::from(self.fleet.cli.pages))
    }

    pub(crate) async fn check_all(&self) -> Result<u64, Failure> {
        let mut pages = 0;
        for shard in 0..self.fleet.cli.shards {
            pages += self.check(shard).await?;
        }
        Ok(pages)
    }

    pub(crate) fn begin_pause(&self, shard: u32) {
        self.shards[shard as usize].pause.lock().unwrap().longest = Duration::ZERO;
    }

    /// Waits for the shard's next acknowledged write. Returns the longest time without one since
    /// `begin_pause`: a client sees the drain, the closing and the open as this pause.
    pub(crate) async fn end_pause(&self, shard: u32) -> Duration {
        let known = &self.shards[shard as usize];
        let before = known.pause.lock().unwrap().answers;
        loop {
            let answered = known.answered.notified();
            let (answers, longest) = {
                let pause = known.pause.lock().unwrap();
                (pause.answers, pause.longest)
            };
            if answers > before {
                return longest;
            }
            answered.await;
        }
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn none_missed(&self) -> Result<(), Failure> {
        self.failure.lock().unwrap().take().map_or(Ok(()), Err)
    }

    /// Waits for a client's failure.
    pub(crate) async fn failed(&self) -> Failure {
        loop {
            self.has_failed.notified().await;
            if let Some(failure) = self.failure.lock().unwrap().take() {
                return failure;
            }
        }
    }
}
