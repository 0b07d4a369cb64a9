//! Hints for spaces: how long their pages stay in memory.

use crate::common::{Memory, page, pool, pool_ahead};
use pagetier_bufpool::Pool;
use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_policy::pool::Retention;
use pagetier_policy::{Costs, FramePolicyParams};
use pagetier_rivals::POOL_POLICIES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

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
        pool.set_retention(OTHER, Retention::KeepInMemory);
        for no in 0..20 {
            read(&pool, other(no)).await;
        }
        for no in (0..400).chain(0..400) {
            read(&pool, page(no)).await;
        }
        assert_eq!(resident(&pool, OTHER), 20, "{policy}");
        // The other way round: the pages of the space are there, and the hints change.
        pool.set_retention(OTHER, Retention::ScanOnly);
        pool.set_retention(SpaceId(1), Retention::KeepInMemory);
        let kept = resident(&pool, SpaceId(1));
        for no in (0..400).chain(0..400) {
            read(&pool, other(no)).await;
        }
        assert_eq!(resident(&pool, SpaceId(1)), kept, "{policy}");
        pool.set_retention(SpaceId(1), Retention::Usual);
        for no in 0..400 {
            read(&pool, other(no)).await;
        }
        // They had the free frames, and an eighth of the pool.
        assert!(resident(&pool, SpaceId(1)) + 8 >= kept, "{policy}: {}", resident(&pool, SpaceId(1)));
        pool.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn kept_pages_beyond_the_pool_leave_room_to_work_in() {
    for &policy in POOL_POLICIES {
        let memory = memory(200);
        let pool = pool(&memory, &policy.to_string(), 32);
        pool.set_retention(OTHER, Retention::KeepInMemory);
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
        pool.set_retention(SpaceId(1), Retention::KeepInMemory);
        for no in 0..200 {
            write(&pool, page(no), 9).await;
        }
        pool.flush_all().await.unwrap();
        assert!((0..200).all(|no| memory.version(no) == 9), "{policy}");
        pool.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn under_load_hints_sizes_and_policies_change_and_no_change_is_lost() {
    const PAGES: u32 = 150;
    let all = [Retention::KeepInMemory, Retention::ScanOnly, Retention::Usual];
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
            pool.set_retention(space, all[(step / 2 + turn) % all.len()]);
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
        pool.flush_all().await.unwrap();
        for index in 0..2 * PAGES {
            let expected = written[index as usize].load(Ordering::Relaxed);
            assert_eq!(memory.version_of(at(index)), expected, "{policy}");
        }
        pool.validate().unwrap();
        pool.retire().await.unwrap();
        assert_eq!(resident(&pool, OTHER), 0);
    }
}
