//! Lookups of several pages at once.

use crate::common::{Memory, page, pool, word};
use pagetier_bufpool::{Pool, PoolError, TierError};
use pagetier_page::PageId;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

fn pages(numbers: &[u32]) -> Vec<PageId> {
    numbers.iter().map(|no| page(*no)).collect()
}

/// Lets every other task do what it can without waiting for time.
async fn step() {
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pages_come_in_the_order_asked_for_and_missing_ones_are_read_at_the_same_time() {
    let memory = Memory::with_pages(60);
    let pool = pool(&memory, "gd2l", 64);
    for no in [3, 7, 40] {
        drop(pool.get(page(no)).await.unwrap());
    }
    // Longer than a group; some in memory, some not, some twice.
    let wanted: Vec<u32> = (0..40).rev().chain([7, 50, 50, 0, 51]).collect();
    let begun = Instant::now();
    let found = pool.get_many(&pages(&wanted)).await.unwrap();
    assert_eq!(begun.elapsed(), memory.read_takes, "as long as one read");
    assert_eq!(found.iter().map(|page| word(page)).collect::<Vec<_>>(), wanted);
    assert_eq!(memory.fetches.load(Ordering::Relaxed), 3 + 38 + 2);
    assert!(pool.get_many(&[]).await.unwrap().is_empty());
    // Shared with other readers, and writers wait.
    drop(pool.get(page(50)).await.unwrap());
    let writer = tokio::time::timeout(Duration::from_secs(1), pool.get_mut(page(50)));
    assert!(writer.await.is_err());
    drop(found);
    drop(pool.get_mut(page(50)).await.unwrap());
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_queues_up_does_not_part_a_call_from_its_own_page() {
    let memory = Memory::with_pages(8);
    let pool = pool(&memory, "gd2l", 16);
    drop(pool.get(page(1)).await.unwrap());
    let held = pool.get_mut(page(2)).await.unwrap();
    let again = pages(&[1, 2, 1, 2, 2]);
    let reader = {
        let (pool, again) = (pool.clone(), again.clone());
        tokio::spawn(async move {
            let found = pool.get_many(&again).await.unwrap();
            found.iter().map(|page| (word(page), page[4])).collect::<Vec<_>>()
        })
    };
    step().await;
    // The call has page 1 and waits for page 2. Writers ask for both: named again, neither may wait behind
    // one of them.
    let writers = [1, 2].map(|no| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get_mut(page(no)).await.unwrap()[4] = 1 })
    });
    step().await;
    assert!(!reader.is_finished());
    drop(held);
    assert_eq!(reader.await.unwrap(), [(1, 0), (2, 0), (1, 0), (2, 0), (2, 0)]);
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(pool.get(page(2)).await.unwrap()[4], 1);
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pages_are_free_while_a_call_reads_the_others() {
    let memory = Memory::with_pages(8);
    let pool = pool(&memory, "gd2l", 16);
    drop(pool.get(page(1)).await.unwrap());
    let reader = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get_many(&pages(&[1, 2])).await.unwrap().len() })
    };
    step().await;
    assert!(pool.try_get_mut(page(1)).is_some(), "page 2 is being read, and page 1 is not latched");
    assert_eq!(reader.await.unwrap(), 2);
    // A call that waits for a latch pins what it waits for: of the pages of another one, none leaves.
    let held = pool.get_mut(page(2)).await.unwrap();
    let reader = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get_many(&pages(&[1, 2, 3])).await.unwrap().len() })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    for no in 0..2 {
        pool.discard(page(3)).await.unwrap();
        assert_eq!(memory.fetches.load(Ordering::Relaxed), 3 + no, "reads while it waits");
        drop(pool.get(page(3)).await.unwrap());
    }
    drop(held);
    assert_eq!(reader.await.unwrap(), 3);
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_or_is_dropped_leaves_no_latch() {
    let memory = Memory::with_pages(30);
    let pool = pool(&memory, "gd2l", 32);
    drop(pool.get(page(0)).await.unwrap());
    let all = pages(&(0..20).collect::<Vec<_>>());
    for round in 0..20 {
        let absent: Vec<PageId> = all.iter().copied().chain([page(99)]).collect();
        let failed = pool.get_many(&absent).await.unwrap_err();
        assert!(matches!(failed, PoolError::Tier(TierError::NoSuchPage { .. })), "{failed}");
        let dropped = tokio::time::timeout(Duration::from_micros(round * 300), pool.get_many(&absent)).await;
        drop(dropped);
        for no in 0..20 {
            let guard = tokio::time::timeout(Duration::from_secs(1), pool.get_mut(page(no))).await;
            assert_eq!(word(&guard.unwrap().unwrap()), no);
        }
    }
    assert_eq!(pool.get_many(&all).await.unwrap().len(), 20);
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_needs_more_frames_than_there_are_fails_and_gives_them_back() {
    let memory = Memory::with_pages(40);
    let pool = pool(&memory, "gd2l", 16);
    let failed = pool.get_many(&pages(&(0..20).collect::<Vec<_>>())).await.unwrap_err();
    assert!(matches!(failed, PoolError::Exhausted { frames: 16, .. }), "{failed}");
    for no in 20..40 {
        assert_eq!(word(&pool.get(page(no)).await.unwrap()), no);
    }
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_of_two_pages_and_writers_of_one_each_all_come_to_an_end() {
    let memory = Memory::with_pages(200);
    let pool = pool(&memory, "gd2l", 16);
    let (a, b) = (page(0), page(100));
    let readers = |pool: &Pool<Memory>| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get_many(&[a, b]).await.unwrap().len() })
    };
    let writers = |pool: &Pool<Memory>, page| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get_mut(page).await.unwrap()[4] += 1 })
    };
    // Page A is in memory, B is not. Guards of other pages pin the rest: the first reader waits for a frame.
    drop(pool.get(a).await.unwrap());
    let mut pinned = Vec::new();
    for no in 1..16 {
        pinned.push(pool.get(page(no)).await.unwrap());
    }
    drop(pool.get(a).await.unwrap());
    let first = readers(&pool);
    step().await;
    let writer_of_a = writers(&pool, a);
    step().await;
    // The second reader finds frames, before the first one looks again.
    pinned.truncate(13);
    let second = readers(&pool);
    step().await;
    let writer_of_b = writers(&pool, b);
    tokio::time::timeout(Duration::from_secs(3600), async {
        assert_eq!([first.await.unwrap(), second.await.unwrap()], [2, 2]);
        writer_of_a.await.unwrap();
        writer_of_b.await.unwrap();
    })
    .await
    .expect("they wait for each other");
    drop(pinned);
    assert_eq!([a, b].map(|page| pool.try_get(page).map(|page| page[4])), [Some(1), Some(1)]);
    pool.validate().unwrap();
}
