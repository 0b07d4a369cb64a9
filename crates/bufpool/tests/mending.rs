//! Behaviour when something goes wrong half-way: aborted tasks, panics below, dropped calls, guards that
//! block.

use crate::common::{Memory, SPACE, page, word};
use pagetier_bufpool::{GateFuture, LogGate, Pool, PoolError, PoolParams, TierError};
use pagetier_page::{Lsn, PageSize};
use pagetier_policy::{Costs, FramePolicyParams, PoolPolicy};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const SHORT: Duration = Duration::from_millis(1);

/// A log that is stuck until the test releases it.
#[derive(Default)]
struct StuckLog {
    go: tokio::sync::Notify,
    asked: AtomicU64,
}

impl LogGate for StuckLog {
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        Box::pin(async move {
            self.asked.fetch_max(lsn.0, Ordering::SeqCst);
            self.go.notified().await;
            Ok(())
        })
    }
}

fn start(tier: &Arc<Memory>, frames: usize, gate: Option<Arc<dyn LogGate>>) -> Pool<Memory> {
    let params = PoolParams { read_ahead_pages: 0, ..PoolParams::new(frames, PageSize::MIN) };
    let policy = "lru".parse::<PoolPolicy>().unwrap().build(&FramePolicyParams::new(frames, Costs::PAPER));
    Pool::start(params, policy, Arc::clone(tier), gate).unwrap()
}

async fn put(pool: &Pool<Memory>, no: u32, value: u32, lsn: u64) {
    let mut guard = pool.get_mut(page(no)).await.unwrap();
    guard[..4].copy_from_slice(&value.to_le_bytes());
    guard.set_lsn(Lsn(lsn));
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_a_dropped_flush_finish() {
    let slow = Arc::new(Memory::zeroed(8));
    slow.permits.forget_permits(Semaphore::MAX_PERMITS);
    let pool = start(&slow, 16, None);
    for round in 1..20 {
        put(&pool, 3, round, u64::from(round)).await;
        assert!(timeout(SHORT, pool.flush_all()).await.is_err());
        slow.permits.add_permits(1);
        pool.flush_all().await.unwrap();
        assert_eq!(slow.first(3), round);
        assert_eq!(pool.min_recovery_lsn(), None);
        assert_eq!(pool.stats().written_recoverability, u64::from(round), "one write did it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_dropped_while_it_waits_for_a_latch_keeps_no_staging_buffer() {
    let slow = Arc::new(Memory::zeroed(8));
    let pool = start(&slow, 16, None);
    put(&pool, 3, 1, 1).await;
    for _ in 0..50 {
        let guard = pool.get_mut(page(3)).await.unwrap();
        assert!(timeout(SHORT, pool.flush_all()).await.is_err(), "the guard blocks the flush");
        drop(guard);
    }
    timeout(Duration::from_secs(60), pool.flush_all()).await.expect("a staging buffer is available").unwrap();
    assert_eq!(slow.first(3), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_below_leaves_pages_dirty_and_the_pool_usable() {
    let slow = Arc::new(Memory::zeroed(8));
    let pool = start(&slow, 16, None);
    slow.panic_on_write.store(true, Ordering::Relaxed);
    for round in 1..20 {
        put(&pool, 3, round, u64::from(round)).await;
        assert!(pool.flush_all().await.is_err());
        assert_eq!(pool.min_recovery_lsn(), Some(Lsn(1)));
    }
    slow.panic_on_write.store(false, Ordering::Relaxed);
    timeout(Duration::from_secs(60), pool.flush_all()).await.expect("no staging buffer was lost").unwrap();
    assert_eq!((slow.first(3), pool.min_recovery_lsn()), (19, None));
    timeout(Duration::from_secs(60), pool.shutdown()).await.expect("nothing is being written");
}

#[tokio::test(start_paused = true)]
async fn the_recovery_lsn_stays_while_a_page_is_written_and_changed_again() {
    let slow = Arc::new(Memory::zeroed(8));
    let log = Arc::new(StuckLog::default());
    let pool = start(&slow, 16, Some(log.clone()));
    put(&pool, 3, 1, 70).await;
    let flush = tokio::spawn({
        let pool = pool.clone();
        async move { pool.flush_all().await }
    });
    tokio::time::sleep(SHORT).await;
    assert_eq!(log.asked.load(Ordering::SeqCst), 70);
    assert_eq!(slow.first(3), 0, "not before the log");
    put(&pool, 3, 2, 90).await;
    assert_eq!(pool.min_recovery_lsn(), Some(Lsn(70)));
    log.go.notify_one();
    flush.await.unwrap().unwrap();
    assert_eq!((slow.first(3), pool.min_recovery_lsn()), (1, Some(Lsn(90))));
    log.go.notify_one();
    pool.flush_to(Lsn(90)).await.unwrap();
    assert_eq!((slow.first(3), pool.min_recovery_lsn()), (2, None));
}

#[tokio::test(start_paused = true)]
async fn flush_to_waits_for_a_guard_that_logged_an_older_change() {
    let slow = Arc::new(Memory::zeroed(8));
    let pool = start(&slow, 16, None);
    let mut guard = pool.get_mut(page(3)).await.unwrap();
    guard.set_lsn(Lsn(5));
    assert!(timeout(SHORT, pool.flush_to(Lsn(4))).await.is_ok());
    assert!(timeout(SHORT, pool.flush_to(Lsn(5))).await.is_err(), "its change is in the log up to 5");
    guard[..4].copy_from_slice(&8u32.to_le_bytes());
    drop(guard);
    pool.flush_to(Lsn(5)).await.unwrap();
    assert_eq!((slow.first(3), pool.min_recovery_lsn()), (8, None));
}

#[tokio::test(start_paused = true)]
async fn a_page_is_rewritten_without_waiting_if_it_is_in_memory_and_not_latched() {
    let slow = Arc::new(Memory::zeroed(8));
    let pool = start(&slow, 16, None);
    assert!(!pool.try_rewrite(page(3), Lsn(5)), "not in memory");
    let guard = pool.get(page(3)).await.unwrap();
    assert!(!pool.try_rewrite(page(3), Lsn(5)), "latched");
    drop(guard);
    assert!(!pool.is_unwritten(page(3)));
    assert!(pool.try_rewrite(page(3), Lsn(5)));
    assert!(pool.is_unwritten(page(3)));
    assert_eq!(pool.min_recovery_lsn(), Some(Lsn(5)));
    pool.flush_all().await.unwrap();
    assert!(!pool.is_unwritten(page(3)));
}

#[tokio::test(start_paused = true)]
async fn old_pinned_pages_do_not_keep_dirty_ones_behind_them_from_being_written() {
    let slow = Arc::new(Memory::zeroed(60));
    let pool = start(&slow, 16, None);
    let mut pinned = Vec::new();
    for no in 0..8 {
        pinned.push(pool.get(page(no)).await.unwrap());
    }
    for no in 8..60 {
        put(&pool, no, no, u64::from(no)).await;
    }
    assert_eq!(slow.first(20), 20);
    drop(pinned);
}

#[tokio::test(start_paused = true)]
async fn pages_that_wait_for_the_disk_leave_staging_buffers_to_the_others() {
    let slow = Arc::new(Memory::zeroed(200));
    slow.permits.forget_permits(Semaphore::MAX_PERMITS);
    slow.quick.lock().unwrap().extend((32..64).map(page));
    let pool = start(&slow, 64, None);
    // The next victims are all dirty and bound for a disk that takes no writes.
    for no in 0..64 {
        put(&pool, no, no, 0).await;
    }
    for no in 64..96 {
        pool.get(page(no)).await.expect("a page of the SSD makes room");
    }
    assert!((32..64).all(|no| slow.first(no) == no));
    assert!((0..32).all(|no| slow.first(no) == 0));
    slow.permits.add_permits(Semaphore::MAX_PERMITS);
    pool.flush_all().await.unwrap();
    assert!((0..64).all(|no| slow.first(no) == no));
}

#[tokio::test(start_paused = true)]
async fn create_blanks_what_read_ahead_found_and_get_or_create_does_not() {
    let slow = Arc::new(Memory::zeroed(8));
    let pool = start(&slow, 16, None);
    put(&pool, 3, 77, 1).await;
    pool.flush_all().await.unwrap();
    pool.prefetch(&[page(3), page(20)]);
    let missing = pool.create(page(20)).await.unwrap();
    assert!(missing.iter().all(|b| *b == 0));
    drop(missing);
    let mut there = pool.get_or_create(page(3)).await.unwrap();
    assert_eq!(word(&there), 77);
    there[..4].copy_from_slice(&78u32.to_le_bytes());
    drop(there);
    assert!(pool.create(page(3)).await.unwrap().iter().all(|b| *b == 0));
    let new = pool.get_or_create(page(21)).await.unwrap();
    assert_eq!((new.id(), new.lsn()), (page(21), Lsn(0)));
    drop(new);
    pool.flush_all().await.unwrap();
    assert_eq!(slow.first(3), 0);
    assert!(slow.pages.lock().unwrap().contains_key(&page(21)));
}

#[tokio::test(start_paused = true)]
async fn discard_waits_for_a_write_in_flight_and_drops_the_rest() {
    let slow = Arc::new(Memory::zeroed(8));
    slow.permits.forget_permits(Semaphore::MAX_PERMITS);
    let pool = start(&slow, 16, None);
    put(&pool, 3, 1, 1).await;
    let flush = tokio::spawn({
        let pool = pool.clone();
        async move { pool.flush_all().await }
    });
    tokio::time::sleep(SHORT).await;
    put(&pool, 3, 2, 2).await;
    assert!(timeout(SHORT, pool.discard(page(3))).await.is_err(), "the page is being written");
    slow.permits.add_permits(1);
    flush.await.unwrap().unwrap();
    pool.discard(page(3)).await.unwrap();
    assert_eq!((pool.min_recovery_lsn(), slow.discards.load(Ordering::Relaxed)), (None, 1));
    assert_eq!(word(&pool.get(page(3)).await.unwrap()), 1);
    pool.discard_where(|p| p == page(3)).await.unwrap();
    pool.discard(page(5)).await.unwrap();
    assert_eq!(slow.discards.load(Ordering::Relaxed), 3);
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn lookups_are_hits_or_misses_also_those_of_scans() {
    let slow = Arc::new(Memory::zeroed(40));
    let pool = start(&slow, 64, None);
    let mut look_ups = 0;
    for round in 0..3 {
        for no in (0..40).step_by(3 - round) {
            drop(pool.get(page(no)).await.unwrap());
            look_ups += 1;
        }
        let pages = [0, 3, 0].map(page);
        drop(pool.get_many(&pages).await.unwrap());
        look_ups += pages.len() as u64;
        let mut scan = pool.scan(SPACE, 0..40);
        while let Some(next) = scan.next().await {
            next.unwrap();
            look_ups += 1;
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.hits + stats.misses, stats.misses), (look_ups, 40));
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_is_reported_to_each_waiter() {
    let slow = Arc::new(Memory::zeroed(1));
    let pool = start(&slow, 16, None);
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.get(page(9)).await.map(|guard| guard.id()) })
        })
        .collect();
    for task in waiting {
        let result = task.await.unwrap();
        assert!(matches!(result, Err(PoolError::Tier(TierError::NoSuchPage { .. }))), "{result:?}");
    }
    assert_eq!(slow.fetches.load(Ordering::Relaxed), 10, "each requested it itself, after the previous one");
    pool.validate().unwrap();
}

/// Drops waiters for one latch in every order and at every stage.
#[tokio::test(start_paused = true)]
async fn dropped_waiters_neither_keep_the_latch_nor_stop_those_behind() {
    let slow = Arc::new(Memory::zeroed(2));
    let pool = start(&slow, 16, None);
    drop(pool.get(page(0)).await.unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    for pattern in 0..64u32 {
        for dropped in 0..64u32 {
            let holder = pool.get_mut(page(0)).await.unwrap();
            let mut waiters: Vec<_> = (0..6)
                .map(|i| {
                    let (pool, exclusive) = (pool.clone(), pattern >> i & 1 == 1);
                    Some(Box::pin(async move {
                        if exclusive {
                            drop(pool.get_mut(page(0)).await.unwrap());
                        } else {
                            drop(pool.get(page(0)).await.unwrap());
                        }
                    }))
                })
                .collect();
            for waiter in waiters.iter_mut().flatten() {
                assert!(waiter.as_mut().poll(&mut cx).is_pending());
            }
            // In every other round the dropped waiters may have been granted the latch already.
            let early = dropped & 1 == 0;
            let mut holder = Some(holder);
            if early {
                holder.take();
            }
            for (i, waiter) in waiters.iter_mut().enumerate() {
                if dropped >> i & 1 == 1 {
                    *waiter = None;
                }
            }
            holder.take();
            for waiter in waiters.iter_mut().flatten() {
                assert!(waiter.as_mut().poll(&mut cx).is_ready(), "modes {pattern:b}, dropped {dropped:b}");
            }
            let mut free = pin!(pool.get_mut(page(0)));
            assert!(free.as_mut().poll(&mut cx).is_ready());
        }
    }
    pool.validate().unwrap();
}

/// Real threads: loads dropped in mid-read while the device continues to fill the frame, with evictions,
/// discards and flushes. All words of a visible page carry the same number.
#[test]
fn threads_that_drop_their_reads_never_see_a_frame_that_is_being_filled() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let mut slow = Memory::zeroed(64);
    slow.read_takes = Duration::from_micros(300);
    let slow = Arc::new(slow);
    runtime.block_on(async {
        let pool = start(&slow, 24, None);
        let tasks: Vec<_> = (0..8u64).map(|seed| tokio::spawn(drop_and_read(pool.clone(), seed))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        pool.flush_all().await.unwrap();
        pool.validate().unwrap();
        for no in 0..64 {
            uniform(&pool.get(page(no)).await.unwrap());
        }
    });
}

fn uniform(payload: &[u8]) {
    let mut words = payload.chunks_exact(4);
    assert!(words.all(|w| w == &payload[..4]), "half changed");
}

async fn drop_and_read(pool: Pool<Memory>, seed: u64) {
    let mut state = seed.wrapping_mul(2) + 1;
    for round in 0..600u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (no, kind) = ((state >> 33) as u32 % 64, (state >> 57) as u32 % 16);
        match kind {
            0..4 => {
                let mut guard = pool.get_mut(page(no)).await.unwrap();
                let value = ((seed as u32) << 16 | round).to_le_bytes();
                guard.chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&value));
                if kind == 0 {
                    uniform(&guard.downgrade());
                }
            }
            4..10 => {
                // Polled once or twice, then dropped: while queued, in mid-read, or with the page.
                let mut get = Box::pin(pool.get(page(no)));
                for _ in 0..=kind % 2 {
                    let polled = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(guard) = polled {
                        uniform(&guard.unwrap());
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            10 => pool.prefetch(&[page(no), page(no ^ 1)]),
            11 if round % 8 == 0 => pool.discard(page(no)).await.unwrap(),
            12 if round % 8 == 0 => drop(timeout(Duration::from_micros(200), pool.flush_all()).await),
            _ => uniform(&pool.get(page(no)).await.unwrap()),
        }
    }
}
