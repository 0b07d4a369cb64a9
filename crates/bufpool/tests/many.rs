//! Lookups of several pages at once.

use crate::common::{Memory, page, pool, word};
use pagetier_bufpool::{PoolError, TierError};
use pagetier_page::PageId;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

fn pages(numbers: &[u32]) -> Vec<PageId> {
    numbers.iter().map(|no| page(*no)).collect()
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
    drop(pool.get_mut(page(1)).await.unwrap());
    // While page 2 is read, a writer asks for page 1, which the call has already, and for page 2, which it
    // will have: named again, neither may wait behind it.
    let writers = [1, 2].map(|no| {
        let pool = pool.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            pool.get_mut(page(no)).await.unwrap()[4] = 1;
        })
    });
    let again = pages(&[1, 2, 1, 2, 2]);
    let found = tokio::time::timeout(Duration::from_secs(9), pool.get_many(&again)).await.unwrap().unwrap();
    assert_eq!(found.iter().map(|page| (word(page), page[4])).collect::<Vec<_>>().len(), 5);
    assert!(found.iter().all(|page| page[4] == 0));
    drop(found);
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(pool.get(page(2)).await.unwrap()[4], 1);
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
