//! Every latch operation at once, on several threads: no wait is without end, and no page shows another's
//! bytes. `PAGETIER_STRESS_OPS=1000000` runs longer.
//!
//! The detector counts events instead of time. A task that never waits takes turns with the others; if it
//! has had very many turns since the last of their operations ended, they wait for each other.

use crate::common::{Memory, page, pool, word};
use pagetier_bufpool::{Pool, PoolError};
use pagetier_page::PageId;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

const WORKERS: u64 = 3;
/// More than there are frames, so that pages come and go; few enough to meet.
const PAGES: u32 = 20;
const FRAMES: usize = 16;
/// The pages that a task holds at most. With those of all tasks, frames are left.
const HELD_MAX: usize = 3;
/// The turns without an event after which nothing will happen any more. One takes a fraction of a
/// microsecond, the longest sleep in the pool a few milliseconds.
const TURNS_MAX: u64 = 20_000_000;

#[derive(Default)]
struct Progress {
    ended: AtomicU64,
    /// What each worker does.
    doing: [Mutex<String>; WORKERS as usize],
}

struct Worker {
    pool: Pool<Memory>,
    rng: SmallRng,
    number: usize,
    progress: Arc<Progress>,
}

/// Whether the page holds its own number, or was just created.
fn expect(page: PageId, bytes: &[u8]) {
    assert!([0, page.no].contains(&word(bytes)), "page {page} holds {}", word(bytes));
}

fn fill(page: PageId, bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&page.no.to_le_bytes());
    bytes[4] = bytes[4].wrapping_add(1);
}

impl Worker {
    fn pick(&mut self) -> PageId {
        page(self.rng.random_range(0..PAGES))
    }

    fn several(&mut self) -> Vec<PageId> {
        let mut pages: Vec<PageId> = (0..self.rng.random_range(2..=HELD_MAX)).map(|_| self.pick()).collect();
        // One of them twice.
        pages.extend(pages.first().copied().filter(|_| self.rng.random_bool(0.3)));
        pages
    }

    fn note(&self, what: &str, pages: &[PageId]) {
        *self.progress.doing[self.number].lock().unwrap() = format!("{what} {pages:?}");
    }

    async fn run(mut self, operations: u64) {
        for _ in 0..operations {
            let done = self.operation().await;
            assert!(matches!(done, Ok(())), "{done:?}");
            self.progress.ended.fetch_add(1, Ordering::Relaxed);
            // Otherwise a worker that always finds what it wants would keep its thread.
            tokio::task::yield_now().await;
        }
        self.note("nothing more", &[]);
    }

    async fn operation(&mut self) -> Result<(), PoolError> {
        let pool = self.pool.clone();
        let id = self.pick();
        match self.rng.random_range(0..24) {
            0..8 => {
                let pages = self.several();
                self.note("get_many", &pages);
                for (page, guard) in pages.iter().zip(pool.get_many(&pages).await?) {
                    expect(*page, &guard);
                }
            }
            8..10 => {
                let pages = self.several();
                self.note("get_many, dropped", &pages);
                polled(self.rng.random_range(1..4), pool.get_many(&pages)).await;
            }
            10..16 => {
                self.note("get_mut", &[id]);
                let mut guard = pool.get_mut(id).await?;
                expect(id, &guard);
                fill(id, &mut guard);
                if self.rng.random_bool(0.3) {
                    tokio::task::yield_now().await;
                }
                if self.rng.random_bool(0.3) {
                    expect(id, &guard.downgrade());
                }
            }
            16 => {
                self.note("get_mut, dropped", &[id]);
                polled(1, pool.get_mut(id)).await;
            }
            17 => {
                self.note("get", &[id]);
                expect(id, &pool.get(id).await?);
            }
            18 => {
                self.note("owned guards in other tasks", &[id]);
                let shared = pool.own(pool.get(id).await?);
                tokio::spawn(async move { expect(id, &shared) });
                let mut changed = pool.own(pool.get_mut(id).await?);
                tokio::spawn(async move { fill(id, &mut changed) });
            }
            19 => {
                self.note("create", &[id]);
                fill(id, &mut pool.create(id).await?);
            }
            20 => {
                self.note("get_or_create", &[id]);
                fill(id, &mut pool.get_or_create(id).await?);
            }
            21 => {
                self.note("discard", &[id]);
                pool.discard(id).await?;
            }
            22 => {
                self.note("scan", &[id]);
                let mut scan = pool.scan(id.space, id.no..id.no + 4);
                while let Some(guard) = scan.next().await {
                    let guard = guard?;
                    expect(guard.id(), &guard);
                }
            }
            _ => {
                self.note("flush", &[]);
                pool.flush_all().await?;
            }
        }
        Ok(())
    }
}

/// Polls `call` so many times, then drops it unless it has completed.
async fn polled(mut polls: u32, call: impl Future) {
    let mut call = Box::pin(call);
    std::future::poll_fn(|cx| {
        if polls == 0 || call.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        polls -= 1;
        Poll::Pending
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_wait_is_without_end() {
    let operations = std::env::var("PAGETIER_STRESS_OPS").ok().and_then(|ops| ops.parse().ok());
    let mut memory = Memory::zeroed(PAGES);
    (memory.read_takes, memory.write_takes) = (Duration::ZERO, Duration::ZERO);
    let pool = pool(&Arc::new(memory), "gd2l", FRAMES);
    let progress = Arc::<Progress>::default();
    let workers = (0..WORKERS).map(|number| {
        let (pool, progress) = (pool.clone(), Arc::clone(&progress));
        let worker = Worker { pool, rng: SmallRng::seed_from_u64(number), number: number as usize, progress };
        tokio::spawn(worker.run(operations.unwrap_or(3_000)))
    });
    let workers: Vec<_> = workers.collect();
    let (mut turns, mut ended, mut no) = (0, 0, 0);
    while !workers.iter().all(|worker| worker.is_finished()) {
        no = (no + 1) % PAGES;
        drop(pool.try_get(page(no)));
        drop(pool.try_get_mut(page(no)));
        tokio::task::yield_now().await;
        let now = progress.ended.load(Ordering::Relaxed);
        turns = if now == ended { turns + 1 } else { 0 };
        ended = now;
        assert!(turns < TURNS_MAX, "after {ended} operations all wait: {:#?}", progress.doing);
    }
    for worker in workers {
        worker.await.unwrap();
    }
    drop(pool.get_many(&[page(0), page(1)]).await.unwrap());
    pool.validate().unwrap();
}
