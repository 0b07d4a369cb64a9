//! Hints for spaces: how long their pages stay in memory, and how many frames they take.

use crate::common::{Memory, page, pool, pool_ahead};
use pagetier_bufpool::{GateFuture, LogGate, Pool, PoolParams};
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::pool::{PoolHints, Retention};
use pagetier_policy::{Costs, FramePolicyParams, PoolPolicy};
use pagetier_rivals::POOL_POLICIES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const OTHER: SpaceId = SpaceId(2);

fn other(no: u32) -> PageId {
    PageId::new(OTHER, no)
}

/// `count` pages in each of two spaces.
fn memory(count: u32) -> Arc<Memory> {
    let memory = Memory::with_pages(count);
    memory.add_pages(OTHER, count);
    memory
}

fn hints(retention: Retention, frames_max: Option<usize>) -> PoolHints {
    PoolHints { retention, frames_max }
}

fn quota(frames: usize) -> PoolHints {
    hints(Retention::Usual, Some(frames))
}

async fn read(pool: &Pool<Memory>, page: PageId) -> u32 {
    let guard = pool.get(page).await.unwrap();
    assert_eq!((guard.id(), &guard[..4]), (page, &page.no.to_le_bytes()[..]));
    u32::from_le_bytes(guard[4..8].try_into().unwrap())
}

async fn write(pool: &Pool<Memory>, page: PageId, version: u32) {
    let mut guard = pool.get_mut(page).await.unwrap();
    guard[4..8].copy_from_slice(&version.to_le_bytes());
    guard.set_lsn(Lsn(u64::from(version)));
}

fn resident(pool: &Pool<Memory>, space: SpaceId) -> usize {
    pool.with_pages(|pages| pages.iter().filter(|page| page.space == space).count())
}

#[tokio::test(start_paused = true)]
async fn kept_pages_stay_and_pages_that_are_used_once_do_not_displace_others() {
    for &policy in POOL_POLICIES {
        let memory = memory(400);
        let pool = pool(&memory, &policy.to_string(), 64);
        pool.set_hints(OTHER, hints(Retention::KeepInMemory, None));
        for no in 0..20 {
            read(&pool, other(no)).await;
        }
        for no in (0..400).chain(0..400) {
            read(&pool, page(no)).await;
        }
        assert_eq!(resident(&pool, OTHER), 20, "{policy}");
        // The other way round: the pages of the space are there, and the hints change.
        pool.set_hints(OTHER, hints(Retention::ScanOnly, None));
        pool.set_hints(SpaceId(1), hints(Retention::KeepInMemory, None));
        let kept = resident(&pool, SpaceId(1));
        for no in (0..400).chain(0..400) {
            read(&pool, other(no)).await;
        }
        assert_eq!(resident(&pool, SpaceId(1)), kept, "{policy}");
        pool.set_hints(SpaceId(1), PoolHints::default());
        for no in 0..400 {
            read(&pool, other(no)).await;
        }
        // They had the free frames, and an eighth of the pool.
        assert!(resident(&pool, SpaceId(1)) + 8 >= kept, "{policy}: {}", resident(&pool, SpaceId(1)));
        assert_eq!(pool.frames_of(SpaceId(1)), None);
        pool.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn kept_pages_beyond_the_pool_leave_room_to_work_in() {
    for &policy in POOL_POLICIES {
        let memory = memory(200);
        let pool = pool(&memory, &policy.to_string(), 32);
        pool.set_hints(OTHER, hints(Retention::KeepInMemory, None));
        for no in 0..200 {
            write(&pool, other(no), 1).await;
        }
        for round in 2..5 {
            for no in 0..8 {
                write(&pool, page(no), round).await;
                write(&pool, other(no * 20 + round), round).await;
            }
        }
        assert!(resident(&pool, SpaceId(1)) >= 7, "{policy}: {}", resident(&pool, SpaceId(1)));
        // Every space is kept: the pool works as without hints.
        pool.set_hints(SpaceId(1), hints(Retention::KeepInMemory, Some(4)));
        for no in 0..200 {
            write(&pool, page(no), 9).await;
        }
        assert!(pool.frames_of(SpaceId(1)).unwrap() <= 4, "{policy}");
        pool.flush_all().await.unwrap();
        assert!((0..200).all(|no| memory.version(no) == 9), "{policy}");
        pool.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_space_takes_its_quota_and_no_more_whether_it_is_read_or_written() {
    for &policy in POOL_POLICIES {
        let memory = memory(200);
        let pool = pool_ahead(&memory, &policy.to_string(), 64, 16);
        for no in 0..48 {
            read(&pool, page(no)).await;
        }
        let others = resident(&pool, SpaceId(1));
        pool.set_hints(OTHER, quota(8));
        for no in 0..200 {
            read(&pool, other(no)).await;
            assert!(pool.frames_of(OTHER).unwrap() <= 8, "{policy}");
        }
        pool.prefetch(&(0..100).map(other).collect::<Vec<_>>());
        assert!(pool.frames_of(OTHER).unwrap() <= 8, "{policy}");
        for no in 0..200 {
            write(&pool, other(no), 5).await;
            assert!(pool.frames_of(OTHER).unwrap() <= 8, "{policy}");
        }
        let mut scan = pool.scan(OTHER, 0..200);
        while let Some(guard) = scan.next().await {
            drop(guard.unwrap());
            assert!(pool.frames_of(OTHER).unwrap() <= 8, "{policy}");
        }
        assert_eq!(resident(&pool, SpaceId(1)), others, "{policy}");
        pool.flush_all().await.unwrap();
        assert!((0..200).all(|no| memory.version_of(other(no)) == 5), "{policy}");
        pool.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_the_space_exceeds_is_reached_with_each_miss() {
    let memory = memory(200);
    let pool = pool(&memory, "gd2l", 64);
    for no in 0..40 {
        write(&pool, other(no), 1).await;
    }
    pool.set_hints(OTHER, quota(10));
    assert_eq!(pool.frames_of(OTHER), Some(40), "dirty pages stay until they are written");
    for no in 40..90 {
        read(&pool, other(no)).await;
    }
    assert_eq!(pool.frames_of(OTHER), Some(10));
    // Clean pages leave at once, unless they are pinned.
    let guards = (pool.get(other(89)).await.unwrap(), pool.get(other(88)).await.unwrap());
    pool.set_hints(OTHER, quota(1));
    assert_eq!(pool.frames_of(OTHER), Some(2));
    drop(guards);
    pool.set_hints(OTHER, quota(0));
    for no in 0..20 {
        read(&pool, other(no)).await;
    }
    assert_eq!((pool.frames_of(OTHER), pool.hints(OTHER)), (Some(1), quota(1)));
    // Those that were given up are free.
    pool.set_hints(OTHER, PoolHints::default());
    let evictions = pool.stats().evictions;
    for no in 0..63 {
        read(&pool, page(no)).await;
    }
    assert_eq!(pool.stats().evictions, evictions);
}

#[tokio::test(start_paused = true)]
async fn no_request_fails_because_of_a_quota() {
    let memory = memory(200);
    let pool = pool(&memory, "gd2l", 64);
    pool.set_hints(OTHER, quota(4));
    // Guards pin as many frames as the space may have, and more.
    let mut guards = Vec::new();
    for no in 0..10 {
        let before = Instant::now();
        guards.push(pool.get(other(no)).await.unwrap());
        assert!(before.elapsed() < Duration::from_millis(5), "a read takes 3 ms");
    }
    assert_eq!(pool.frames_of(OTHER), Some(10));
    guards.clear();
    for no in 10..20 {
        read(&pool, other(no)).await;
    }
    assert_eq!(pool.frames_of(OTHER), Some(4));
    // The pages cannot be written.
    memory.fail_writes.store(true, Ordering::Relaxed);
    let before = Instant::now();
    for no in 0..30 {
        write(&pool, other(no), 1).await;
    }
    assert!(before.elapsed() < Duration::from_millis(500), "{:?}", before.elapsed());
    assert!(pool.frames_of(OTHER).unwrap() > 4);
    memory.fail_writes.store(false, Ordering::Relaxed);
    pool.flush_all().await.unwrap();
    for no in 30..70 {
        read(&pool, other(no)).await;
    }
    assert_eq!(pool.frames_of(OTHER), Some(4));
    assert!((0..30).all(|no| memory.version_of(other(no)) == 1));
    pool.validate().unwrap();
}

/// A gate that waits for a resource of the task that waits for the quota: a long wait would be a deadlock.
struct Closed(AtomicBool);

impl LogGate for Closed {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(async move {
            while self.0.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_waits_for_the_request_at_the_quota_does_not_stop_it() {
    let memory = memory(100);
    let policy = PoolPolicy::Lru.build(&FramePolicyParams::new(64, Costs::PAPER));
    let gate = Arc::new(Closed(AtomicBool::new(true)));
    let params = PoolParams { read_ahead_pages: 0, ..PoolParams::new(64, PageSize::MIN) };
    let pool = Pool::start(params, policy, Arc::clone(&memory), Some(Arc::clone(&gate) as _)).unwrap();
    pool.set_hints(OTHER, quota(4));
    for no in 0..6 {
        let before = Instant::now();
        let mut guard = pool.get_mut(other(no)).await.unwrap();
        guard[4] = 1;
        guard.set_lsn(Lsn(7));
        assert!(before.elapsed() < Duration::from_millis(120), "{:?}", before.elapsed());
    }
    assert_eq!(pool.frames_of(OTHER), Some(6));
    gate.0.store(false, Ordering::Relaxed);
}

#[tokio::test(start_paused = true)]
async fn under_load_hints_sizes_and_policies_change_and_no_change_is_lost() {
    const PAGES: u32 = 150;
    let all = [
        hints(Retention::KeepInMemory, None),
        quota(5),
        hints(Retention::ScanOnly, Some(12)),
        hints(Retention::ScanOnly, None),
        PoolHints::default(),
        hints(Retention::KeepInMemory, Some(20)),
    ];
    for (turn, policy) in POOL_POLICIES.iter().enumerate() {
        let memory = memory(PAGES);
        let pool = pool_ahead(&memory, &policy.to_string(), 32, 8);
        let stop = Arc::new(AtomicBool::new(false));
        let written: Arc<Vec<AtomicU32>> = Arc::new((0..2 * PAGES).map(|_| AtomicU32::new(0)).collect());
        let at = |index: u32| if index < PAGES { page(index) } else { other(index - PAGES) };
        // Each task changes pages of its own.
        let tasks: Vec<_> = (0..4_u32)
            .map(|task| {
                let (pool, stop, written) = (pool.clone(), Arc::clone(&stop), Arc::clone(&written));
                tokio::spawn(async move {
                    let mut dice = task + 1 + turn as u32;
                    while !stop.load(Ordering::Relaxed) {
                        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let index = (dice >> 8) % (2 * PAGES / 4) * 4 + task;
                        let last = written[index as usize].load(Ordering::Relaxed);
                        assert_eq!(read(&pool, at(index)).await, last);
                        if dice >> 31 == 0 {
                            write(&pool, at(index), last + 1).await;
                            written[index as usize].store(last + 1, Ordering::Relaxed);
                        }
                        if dice >> 28 == 9 {
                            pool.prefetch(&(0..16).map(|no| other(no + task * 30)).collect::<Vec<_>>());
                        }
                    }
                })
            })
            .collect();
        for step in 0..40 {
            tokio::time::sleep(Duration::from_millis(37)).await;
            let space = if step % 3 == 0 { SpaceId(1) } else { OTHER };
            pool.set_hints(space, all[(step + turn) % all.len()]);
            if step % 4 == 1 {
                pool.resize([64, 24, 200, 32][step / 4 % 4]).await.unwrap();
            }
            if step % 5 == 2 {
                let to = POOL_POLICIES[(step + turn) % POOL_POLICIES.len()];
                pool.set_policy(to.build(&FramePolicyParams::new(pool.params().frames, Costs::PAPER)));
            }
            pool.validate().unwrap_or_else(|error| panic!("{policy}, step {step}: {error}"));
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        pool.set_hints(OTHER, quota(7));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pool.frames_of(OTHER), Some(resident(&pool, OTHER)), "{policy}");
        pool.flush_all().await.unwrap();
        for index in 0..2 * PAGES {
            let expected = written[index as usize].load(Ordering::Relaxed);
            assert_eq!(memory.version_of(at(index)), expected, "{policy}");
        }
        pool.validate().unwrap();
        pool.retire().await.unwrap();
        assert_eq!(pool.frames_of(OTHER), Some(0));
    }
}

/// Frames are counted in the page table, whichever thread enters or takes out a page.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_frames_of_a_space_are_counted_exactly() {
    let memory = memory(64);
    let pool = pool(&memory, "gd2l", 32);
    pool.set_hints(OTHER, quota(6));
    let tasks: Vec<_> = (0..8_u32)
        .map(|task| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for step in 0..60_u32 {
                    let no = (task * 31 + step * 17) % 64;
                    read(&pool, if step % 3 == 0 { page(no) } else { other(no) }).await;
                    if step % 8 == task {
                        pool.set_hints(OTHER, quota(4 + task as usize));
                        pool.discard(other(no)).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pool.frames_of(OTHER), Some(resident(&pool, OTHER)));
    pool.validate().unwrap();
}
