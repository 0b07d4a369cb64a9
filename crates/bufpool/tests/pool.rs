//! The pool over a tier in memory, with delays, errors and checks.

use crate::common::{Memory, SPACE, page, pool, pool_ahead};
use pagetier_bufpool::{Pool, PoolError, PoolParams, TierError};
use pagetier_page::{HEADER_BYTES, Lsn, PageId, PageSize};
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, FramePolicyParams, Location, PoolPolicy,
};
use pagetier_rivals::pool::Casa;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_hundred_concurrent_readers_share_one_read() {
    let memory = Memory::with_pages(4);
    let pool = pool(&memory, "gd2l", 16);
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.get(page(2)).await.unwrap()[0] })
        })
        .collect();
    for reader in readers {
        assert_eq!(reader.await.unwrap(), 2);
    }
    assert_eq!(memory.fetches.load(Ordering::Relaxed), 1);
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses), (99, 1));
}

#[tokio::test(start_paused = true)]
async fn only_changes_beyond_the_redo_bound_are_written_unasked() {
    let memory = Memory::with_pages(8);
    let params = PoolParams {
        redo_span_max: Some(1000),
        clean_depth: 0,
        read_ahead_pages: 0,
        ..PoolParams::new(16, PageSize::MIN)
    };
    let policy = "lru".parse::<PoolPolicy>().unwrap().build(&FramePolicyParams::new(16, Costs::PAPER));
    let gate = memory.gate();
    let pool = Pool::start(params, policy, Arc::clone(&memory), Some(gate)).unwrap();
    for (no, lsn) in [(1, 10), (2, 900), (3, 1000), (4, 1500)] {
        let mut guard = pool.get_mut(page(no)).await.unwrap();
        guard[4..8].copy_from_slice(&7u32.to_le_bytes());
        guard.set_lsn(Lsn(lsn));
        drop(guard);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let too_old = lsn == 1500;
        assert_eq!(memory.version(1), if too_old { 7 } else { 0 }, "at {lsn}");
        assert_eq!(pool.min_recovery_lsn(), Some(Lsn(if too_old { 900 } else { 10 })));
    }
    assert_eq!(memory.writes.load(Ordering::Relaxed), 1);
}

/// The most batches at once, with 100 pages to flush: of `flush_all` and of `flush_to` beside a reader whose
/// every read misses, and of `flush_all` alone.
async fn batches_at_once(clean_batch: usize) -> [usize; 3] {
    let memory = Memory::with_pages(1000);
    let params = PoolParams {
        staging: 32,
        clean_depth: 0,
        clean_batch,
        read_ahead_pages: 0,
        ..PoolParams::new(256, PageSize::MIN)
    };
    let policy = "lru".parse::<PoolPolicy>().unwrap().build(&FramePolicyParams::new(256, Costs::PAPER));
    let pool = Pool::start(params, policy, Arc::clone(&memory), Some(memory.gate())).unwrap();
    let change_and_flush = async |version: u32, to: Option<Lsn>| {
        for no in 0..100 {
            let mut guard = pool.get_mut(page(no)).await.unwrap();
            guard[4..8].copy_from_slice(&version.to_le_bytes());
        }
        memory.batches_max.store(0, Ordering::Relaxed);
        match to {
            Some(lsn) => pool.flush_to(lsn).await.unwrap(),
            None => pool.flush_all().await.unwrap(),
        }
        assert!((0..100).all(|no| memory.version(no) == version));
        memory.batches_max.load(Ordering::Relaxed)
    };
    let reading = tokio::spawn({
        let pool = pool.clone();
        async move {
            for no in 200.. {
                pool.get(page(no % 800 + 200)).await.unwrap();
            }
        }
    });
    let beside = [change_and_flush(1, None).await, change_and_flush(2, Some(Lsn(u64::MAX))).await];
    reading.abort();
    [beside[0], beside[1], change_and_flush(3, None).await]
}

#[tokio::test(start_paused = true)]
async fn sync_writes_one_batch_at_a_time_while_others_read_and_what_the_log_waits_for_all() {
    // A batch takes 4 ms and a read 3 ms, so there is a miss during every batch.
    assert_eq!(batches_at_once(2).await, [1, 8, 8]);
    // A batch takes 16 ms: one of a slow device keeps only those of the next 5 ms waiting.
    assert_eq!(batches_at_once(8).await, [4, 8, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_or_dropped_load_leaves_the_page_loadable_and_the_frame_free() {
    let memory = Memory::with_pages(100);
    let pool = pool(&memory, "lru", 16);
    memory.fail_reads.store(true, Ordering::Relaxed);
    for no in 0..50 {
        assert!(matches!(pool.get(page(no)).await, Err(PoolError::Tier(TierError::Device { .. }))));
    }
    memory.fail_reads.store(false, Ordering::Relaxed);
    for no in 0..50 {
        let dropped = tokio::time::timeout(Duration::from_millis(1), pool.get(page(no))).await;
        assert!(dropped.is_err(), "the read takes longer than that");
        assert_eq!(pool.get(page(no)).await.unwrap()[0], no as u8);
    }
    pool.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_writer_is_not_starved_and_dropped_waiters_leave_nothing_behind() {
    let memory = Memory::with_pages(4);
    let pool = pool(&memory, "lru", 16);
    let first = pool.get(page(1)).await.unwrap();
    let writer = tokio::spawn({
        let pool = pool.clone();
        async move { pool.get_mut(page(1)).await.unwrap()[4] = 9 }
    });
    tokio::task::yield_now().await;
    for _ in 0..20 {
        let impatient = tokio::time::timeout(Duration::from_millis(1), pool.get(page(1))).await;
        assert!(impatient.is_err(), "newcomers queue behind the writer");
    }
    let gives_up = tokio::time::timeout(Duration::from_millis(1), pool.get_mut(page(1))).await;
    assert!(gives_up.is_err());
    drop(first);
    writer.await.unwrap();
    assert_eq!(pool.get(page(1)).await.unwrap()[4], 9);
    drop(pool.get_mut(page(1)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_written_stays_dirty_and_flush_reports_it() {
    let memory = Memory::with_pages(8);
    let pool = pool(&memory, "gd2l", 16);
    let mut guard = pool.get_mut(page(3)).await.unwrap();
    guard[4..8].copy_from_slice(&7u32.to_le_bytes());
    guard.set_lsn(Lsn(40));
    drop(guard);
    assert_eq!(pool.min_recovery_lsn(), Some(Lsn(40)));
    memory.fail_writes.store(true, Ordering::Relaxed);
    assert!(pool.flush_all().await.is_err());
    assert_eq!((pool.min_recovery_lsn(), memory.version(3)), (Some(Lsn(40)), 0));
    memory.fail_writes.store(false, Ordering::Relaxed);
    pool.flush_to(Lsn(39)).await.unwrap();
    assert_eq!(memory.version(3), 0, "its change is younger than that");
    pool.flush_to(Lsn(40)).await.unwrap();
    assert_eq!((pool.min_recovery_lsn(), memory.version(3)), (None, 7));
    assert_eq!(memory.log_durable(), Some(Lsn(40)));
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_frames_are_all_pinned_is_an_error_not_a_hang() {
    let memory = Memory::with_pages(40);
    let pool = pool(&memory, "midpoint-lru", 16);
    let mut guards = Vec::new();
    for no in 0..16 {
        guards.push(pool.get(page(no)).await.unwrap());
    }
    assert!(matches!(pool.get(page(20)).await, Err(PoolError::Exhausted { frames: 16, .. })));
    guards.pop();
    assert_eq!(pool.get(page(20)).await.unwrap()[0], 20);
}

/// A notification to the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Loaded,
    Hit { write: bool },
    Dirtied,
}

/// CASA with a record of its notifications and τ after each.
#[derive(Debug)]
struct Recording {
    casa: Casa,
    events: Arc<Mutex<Vec<(Event, f64)>>>,
}

impl Recording {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push((event, self.casa.tau()));
    }
}

impl FramePolicy for Recording {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        self.casa.insert(frame, page, location, access);
        self.note(Event::Loaded);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        self.casa.hit(frame, write);
        self.note(Event::Hit { write });
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.casa.first_to_go(accept)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        self.casa.remove(frame, evicted);
    }

    fn dirtied(&mut self, frame: FrameId) {
        self.casa.dirtied(frame);
        self.note(Event::Dirtied);
    }

    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        self.casa.cleaned(frame, location, reason);
    }

    fn len(&self) -> usize {
        self.casa.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.casa.validate()
    }
}

/// CASA's τ moves on a write that finds its page dirty (Algorithm 2, line 8), not on the write that makes it
/// dirty (line 5).
#[tokio::test(start_paused = true)]
async fn the_policy_learns_of_a_write_before_its_page_becomes_dirty() {
    let memory = Memory::with_pages(4);
    let events = Arc::default();
    let policy = Box::new(Recording { casa: Casa::new(16, Costs::PAPER), events: Arc::clone(&events) });
    let pool = Pool::start(PoolParams::new(16, PageSize::MIN), policy, Arc::clone(&memory), None).unwrap();
    for no in 0..3 {
        let _ = pool.get(page(no)).await.unwrap();
    }
    pool.get_mut(page(3)).await.unwrap()[4] = 1;
    events.lock().unwrap().clear();
    let _ = pool.get(page(1)).await.unwrap();
    pool.get_mut(page(0)).await.unwrap()[4] = 1;
    pool.get_mut(page(0)).await.unwrap()[4] = 2;
    let _ = pool.get(page(2)).await.unwrap();
    pool.get_mut(page(2)).await.unwrap()[4] = 1;

    let (read, write) = (Event::Hit { write: false }, Event::Hit { write: true });
    let read_share = Costs::PAPER.hdd_read_ms / (Costs::PAPER.hdd_read_ms + Costs::PAPER.hdd_write_ms);
    // |C| = 3 and |D| = 1 at the first read, both 2 at the second write of page 0 and the read of page 2.
    let first = read_share / 3.0;
    let second = (first - (1.0 - read_share)).max(0.0);
    let third = second + read_share;
    let expected = [
        (read, first),
        (write, first),
        (Event::Dirtied, first),
        (write, second),
        (read, third),
        (write, third),
        (Event::Dirtied, third),
    ];
    assert_eq!(*events.lock().unwrap(), expected);
    // The tier has learned of the same hits by then, since they preceded the change of home.
    assert_eq!(*memory.dirtied.lock().unwrap(), [(page(3), 0), (page(0), 1), (page(2), 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_scan_reads_ahead_and_spares_what_is_hot() {
    for policy in ["midpoint-lru", "gd2l"] {
        let memory = Memory::with_pages(4000);
        let pool = pool_ahead(&memory, policy, 256, 16);
        for _ in 0..50 {
            touch_hot(&pool).await;
        }
        let mut scan = pool.scan(SPACE, 1000..4000);
        let mut seen = 0;
        while let Some(next) = scan.next().await {
            if seen % 100 == 0 {
                touch_hot(&pool).await;
            }
            assert_eq!(next.unwrap().id(), page(1000 + seen));
            seen += 1;
        }
        assert_eq!(seen, 3000);
        assert!(pool.stats().prefetched > 2500, "{policy}: {:?}", pool.stats());
        let before = memory.fetches.load(Ordering::Relaxed);
        touch_hot(&pool).await;
        let lost = memory.fetches.load(Ordering::Relaxed) - before;
        assert!(lost <= 5, "{policy}: the scan threw out {lost} of 100 hot pages");
    }
}

async fn touch_hot(pool: &Pool<Memory>) {
    for no in 0..100 {
        drop(pool.get(page(no)).await.unwrap());
    }
}

#[tokio::test]
async fn no_task_keeps_a_dropped_pool_alive() {
    let memory = Memory::with_pages(4);
    let pool = pool(&memory, "lru", 16);
    drop(pool.get(page(0)).await.unwrap());
    drop(pool);
    for _ in 0..100 {
        tokio::task::yield_now().await;
        if Arc::strong_count(&memory) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{} owners are left", Arc::strong_count(&memory));
}

/// All words of a page carry the same number whenever no guard holds it exclusively.
#[test]
fn threads_never_see_a_page_half_changed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = Memory::with_pages(60);
        for image in memory.pages.lock().unwrap().values_mut() {
            image[HEADER_BYTES..].fill(0);
        }
        let pool = pool(&memory, "gd2l", 24);
        let tasks: Vec<_> = (0..8u32).map(|task| tokio::spawn(hammer(pool.clone(), task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        pool.flush_all().await.unwrap();
        pool.validate().unwrap();
    });
}

async fn hammer(pool: Pool<Memory>, task: u32) {
    let mut state = u64::from(task) + 1;
    for round in 0..400u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (no, kind) = ((state >> 33) as u32 % 60, (state >> 60) as u32 % 4);
        if kind == 0 {
            let mut guard = pool.get_mut(page(no)).await.unwrap();
            let value = (task << 16 | round).to_le_bytes();
            guard.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&value));
        } else if kind == 1 {
            let _ = tokio::time::timeout(Duration::from_micros(200), pool.get(page(no))).await;
        } else {
            let guard = pool.get(page(no)).await.unwrap();
            assert!(guard.chunks_exact(4).all(|word| word == &guard[..4]), "page {no} is half changed");
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Get(u32),
    Put(u32),
    Create,
    Prefetch(u32),
    Flush,
    FlushTo,
    Drop(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let no = 0..60u32;
    let op = prop_oneof![
        6 => no.clone().prop_map(Op::Get),
        6 => no.clone().prop_map(Op::Put),
        1 => Just(Op::Create),
        2 => no.clone().prop_map(Op::Prefetch),
        1 => Just(Op::Flush),
        1 => Just(Op::FlushTo),
        2 => no.prop_map(Op::Drop),
    ];
    prop::collection::vec(op, 1..200)
}

async fn follow(ops: Vec<Op>, policy: &str) {
    let memory = Memory::with_pages(40);
    let pool = pool(&memory, policy, 16);
    let mut model: HashMap<u32, u32> = (0..40).map(|no| (no, 0)).collect();
    let (mut next, mut lsn) = (40, 0);
    for op in ops {
        match op {
            Op::Get(no) => match (pool.get(page(no)).await, model.get(&no)) {
                (Ok(guard), Some(version)) => assert_eq!(guard[4..8], version.to_le_bytes()),
                (Err(PoolError::Tier(TierError::NoSuchPage { .. })), None) => {}
                (other, expected) => panic!("page {no}: {other:?}, expected {expected:?}"),
            },
            Op::Put(no) => {
                if let Some(version) = model.get_mut(&no) {
                    *version += 1;
                    lsn += 1;
                    let mut guard = pool.get_mut(page(no)).await.unwrap();
                    guard[4..8].copy_from_slice(&version.to_le_bytes());
                    guard.set_lsn(Lsn(lsn));
                }
            }
            Op::Create => {
                drop(pool.create(page(next)).await.unwrap());
                model.insert(next, 0);
                next += 1;
            }
            Op::Prefetch(no) => pool.prefetch(&[page(no), page(no + 1), page(no + 2)]),
            Op::Flush => {
                pool.flush_all().await.unwrap();
                assert_eq!(pool.min_recovery_lsn(), None);
                for (no, version) in &model {
                    assert_eq!(memory.version(*no), *version, "page {no} after a flush");
                }
            }
            Op::FlushTo => {
                pool.flush_to(Lsn(lsn / 2)).await.unwrap();
                assert!(pool.min_recovery_lsn().is_none_or(|left| left > Lsn(lsn / 2)));
            }
            Op::Drop(no) => {
                let _ = tokio::time::timeout(Duration::from_millis(1), pool.get(page(no))).await;
            }
        }
        pool.validate().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_operations_agree_with_a_map(ops in ops(), policy in prop::sample::select(vec!["gd2l", "lru", "midpoint-lru"])) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(follow(ops, policy));
    }
}
