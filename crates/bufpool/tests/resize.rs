//! The number of frames changes while the pool is in use.

use crate::common::{Memory, page, pool};
use pagetier_bufpool::{Exhausted, Pool, PoolError, PoolParams};
use pagetier_page::{Lsn, PageSize};
use pagetier_policy::{Costs, FramePolicyParams, PoolPolicy};
use pagetier_rivals::POOL_POLICIES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PAGES: u32 = 400;

async fn write(pool: &Pool<Memory>, no: u32, version: u32) {
    let mut guard = pool.get_mut(page(no)).await.unwrap();
    guard[4..8].copy_from_slice(&version.to_le_bytes());
    guard.set_lsn(Lsn(u64::from(version)));
}

async fn version(pool: &Pool<Memory>, no: u32) -> u32 {
    let guard = pool.get(page(no)).await.unwrap();
    assert_eq!(guard[..4], no.to_le_bytes(), "another page's content");
    u32::from_le_bytes(guard[4..8].try_into().unwrap())
}

fn frames(pool: &Pool<Memory>) -> usize {
    pool.params().frames
}

#[tokio::test(start_paused = true)]
async fn under_load_no_change_is_lost_whatever_sizes_the_pool_takes() {
    for policy in POOL_POLICIES {
        let memory = Memory::with_pages(PAGES);
        let pool = pool(&memory, &policy.to_string(), 32);
        let stop = Arc::new(AtomicBool::new(false));
        let written: Arc<Vec<AtomicU32>> = Arc::new((0..PAGES).map(|_| AtomicU32::new(0)).collect());
        // Each task changes its own pages.
        let tasks: Vec<_> = (0..4_u32)
            .map(|task| {
                let (pool, stop, written) = (pool.clone(), Arc::clone(&stop), Arc::clone(&written));
                tokio::spawn(async move {
                    let mut dice = task + 1;
                    while !stop.load(Ordering::Relaxed) {
                        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let no = (dice >> 8) % (PAGES / 4) * 4 + task;
                        let last = written[no as usize].load(Ordering::Relaxed);
                        assert_eq!(version(&pool, no).await, last);
                        if dice >> 31 == 0 {
                            write(&pool, no, last + 1).await;
                            written[no as usize].store(last + 1, Ordering::Relaxed);
                        }
                        let other = (dice >> 12) % PAGES;
                        drop(pool.get(page(other)).await.unwrap());
                    }
                })
            })
            .collect();
        for size in [300, 16, 64, 17, 400, 399, 20, 1000, 16] {
            tokio::time::sleep(Duration::from_millis(200)).await;
            pool.resize(size).await.unwrap();
            assert_eq!(frames(&pool), size);
            assert_eq!(pool.memory().frames, size as u64 * 4096);
            pool.validate().unwrap_or_else(|error| panic!("{policy}, {size} frames: {error}"));
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        pool.flush_all().await.unwrap();
        for no in 0..PAGES {
            assert_eq!(memory.version(no), written[no as usize].load(Ordering::Relaxed), "{policy}");
        }
        assert!(pool.with_pages(<[_]>::len) <= 16);
    }
}

#[tokio::test(start_paused = true)]
async fn a_smaller_pool_keeps_the_pages_that_its_policy_would_keep() {
    let memory = Memory::with_pages(100);
    let pool = pool(&memory, "lru", 64);
    for no in 0..64 {
        pool.get(page(no)).await.unwrap();
    }
    pool.get(page(3)).await.unwrap();
    pool.resize(20).await.unwrap();
    let mut left = pool.with_pages(<[_]>::to_vec);
    left.sort_unstable();
    let kept: Vec<_> = std::iter::once(3).chain(45..64).map(page).collect();
    assert_eq!(left, kept);
    // The frames that were given up hold pages again.
    pool.resize(64).await.unwrap();
    for no in 0..64 {
        assert_eq!(version(&pool, no).await, 0);
    }
    assert_eq!(pool.with_pages(<[_]>::len), 64);
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pinned_pages_stay_where_they_are_and_are_in_the_way_only_if_they_are_too_many() {
    let memory = Memory::with_pages(100);
    let pool = pool(&memory, "gd2l", 32);
    for no in 0..32 {
        pool.get(page(no)).await.unwrap();
    }
    let mut guards = Vec::new();
    for no in (0..32).step_by(4) {
        guards.push(pool.get(page(no)).await.unwrap());
    }
    let before: Vec<*const u8> = guards.iter().map(|guard| guard.as_ptr()).collect();
    pool.resize(16).await.unwrap();
    pool.resize(500).await.unwrap();
    let after: Vec<*const u8> = guards.iter().map(|guard| guard.as_ptr()).collect();
    assert_eq!(before, after);
    assert!(guards.iter().all(|guard| u32::from_le_bytes(guard[..4].try_into().unwrap()) == guard.id().no));

    match pool.resize(4).await {
        Err(PoolError::Shrink { frames: 8, wanted: 4, waited, why }) => {
            assert!(waited >= Duration::from_secs(10));
            let Exhausted::Pinned { pinned: 8, pages } = *why else { panic!("{why}") };
            assert!(pages.contains(&page(28)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(frames(&pool), 8);
    pool.validate().unwrap();
    let shrinking = tokio::spawn({
        let pool = pool.clone();
        async move { pool.resize(4).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!shrinking.is_finished());
    guards.truncate(2);
    shrinking.await.unwrap().unwrap();
    assert_eq!(frames(&pool), 4);
    assert_eq!(u32::from_le_bytes(guards[1][..4].try_into().unwrap()), 4);
}

#[tokio::test(start_paused = true)]
async fn dirty_pages_are_written_first_and_what_cannot_be_written_is_the_reason_that_is_given() {
    let memory = Memory::with_pages(100);
    let pool = pool(&memory, "lru", 64);
    for no in 0..64 {
        write(&pool, no, 7).await;
    }
    memory.fail_writes.store(true, Ordering::Relaxed);
    match pool.resize(16).await {
        Err(PoolError::Shrink { frames, why, .. }) => {
            assert!(frames > 16 && matches!(*why, Exhausted::Storage { .. }), "{frames} frames: {why}");
        }
        other => panic!("{other:?}"),
    }
    pool.validate().unwrap();
    memory.fail_writes.store(false, Ordering::Relaxed);
    pool.resize(16).await.unwrap();
    assert!((0..64).filter(|no| memory.version(*no) == 7).count() >= 48);
    for no in 0..64 {
        assert_eq!(version(&pool, no).await, 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_change_leaves_a_consistent_size() {
    let memory = Memory::with_pages(600);
    let pool = pool(&memory, "lru", 512);
    for no in 0..512 {
        write(&pool, no, 7).await;
    }
    for step in 1..60 {
        let before = frames(&pool);
        let dropped = tokio::time::timeout(Duration::from_millis(step), pool.resize(16)).await;
        let after = frames(&pool);
        assert!(after < before || dropped.is_ok() || after == before, "{before}, then {after}");
        assert_eq!(pool.memory().frames, after as u64 * 4096);
        pool.validate().unwrap();
        write(&pool, 512 + step as u32, 1).await;
        if after < 100 {
            pool.resize(300).await.unwrap();
        }
    }
    pool.resize(16).await.unwrap();
    for no in 0..512 {
        assert_eq!(version(&pool, no).await, 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_grows_no_further_than_its_address_space() {
    let memory = Memory::with_pages(10);
    let params = PoolParams { frames_max: 100, ..PoolParams::new(16, PageSize::MIN) };
    let policy = PoolPolicy::Lru.build(&FramePolicyParams::new(16, Costs::PAPER));
    let pool = Pool::start(params, policy, memory, None).unwrap();
    assert!(matches!(pool.resize(101).await, Err(PoolError::Memory(_))));
    assert_eq!(frames(&pool), 16);
    pool.resize(100).await.unwrap();
    pool.retire().await.unwrap();
    assert!(matches!(pool.resize(50).await, Err(PoolError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn what_follows_the_number_of_frames_follows_it() {
    let memory = Memory::with_pages(10);
    let pool = pool(&memory, "lru", 64);
    pool.resize(64_000).await.unwrap();
    let default = PoolParams::new(64_000, PageSize::MIN);
    assert_eq!(pool.params().clean_depth, default.clean_depth);
    assert_eq!(pool.memory().staging, default.staging as u64 * 4096);
    assert_eq!(pool.params().read_ahead_pages, 0, "it was set");
    pool.resize(64).await.unwrap();
    assert_eq!(pool.params(), PoolParams { read_ahead_pages: 0, ..PoolParams::new(64, PageSize::MIN) });
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_smaller_pool_returns_to_the_system() {
    const MIB: usize = 1 << 20;
    let memory = Memory::with_pages(0);
    let pool = pool(&memory, "lru", 96 * MIB / 4096);
    for no in 0..(96 * MIB / 4096) as u32 {
        let mut guard = pool.create(page(no)).await.unwrap();
        guard.fill(1);
    }
    let before = resident_bytes();
    // Discard most pages: writing them would move them into the memory of the test's tier.
    pool.discard_where(|page| page.no % 16 != 0).await.unwrap();
    pool.resize(8 * MIB / 4096).await.unwrap();
    let after = resident_bytes();
    // Allow for other tests in this process, which take less memory than the difference.
    assert!(before.saturating_sub(after) > 60 * MIB, "{before} bytes, then {after}");
}

/// Threads read pages in memory while the page table grows again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn hits_find_their_pages_while_the_table_grows() {
    let memory = Memory::with_pages(64);
    let pool = pool(&memory, "lru", 64);
    for no in 0..64 {
        pool.get(page(no)).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2_u32)
        .map(|reader| {
            let (pool, stop) = (pool.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut no = reader;
                while !stop.load(Ordering::Relaxed) {
                    no = (no + 1) % 64;
                    assert_eq!(version(&pool, no).await, 0);
                    if no == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for step in 0..10 {
        pool.resize(64 << step).await.unwrap();
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(pool.stats().misses, 64, "no page was read twice");
    pool.validate().unwrap();
}
