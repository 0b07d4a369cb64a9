//! Loom models: the real pool (table, latch words, waiters, hit buffers, policy) under every interleaving of
//! a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pagetier-bufpool --lib loom` tries all interleavings with
//! at most two preemptions; `LOOM_MAX_PREEMPTIONS=4` tries more. The models watch each frame's bytes: two
//! unordered accesses fail the model.
//!
//! Deliberate faults, and the models that catch them:
//!
//! | fault | caught by |
//! | --- | --- |
//! | a release, or a downgrade, with `Relaxed` | data races, in four models |
//! | latching without `Acquire` | data races, and a wrong page |
//! | an eviction with `Relaxed` | `a_hit_never_sees_the_page_that_took_the_frame` |
//! | no second check of the page after the latch, in `hit` or in `latch_resident` | the same; `a_failed_read_frees_its_frame_and_the_next_one_retries` |
//! | `enter` without a check under the bucket's lock | `a_page_is_read_once_however_many_miss_it` |
//! | the waiters' flag set after the attempt | deadlocks, in seven models |
//! | a cancelled waiter that forgets its grant | `a_cancelled_waiter_leaves_nothing_and_blocks_no_task` |
//! | a cancelled waiter that does not let those behind it in | `a_cancelled_waiter_lets_those_behind_it_in` |
//! | the waits searched before the watch is marked as resting; a wait that wakes it before it is queued | `the_task_that_checks_the_waits_rests_only_if_it_will_be_woken` |
//! | a second write of a page staged beside the first | `one_write_of_a_page_at_a_time_and_no_change_is_lost` |
//! | a dirty page evicted | `a_dirty_page_is_not_evicted` |
//! | the end of a write treats a later change as written | `one_write_of_a_page_at_a_time_and_no_change_is_lost` |
//! | staging with a pin, but no latch | a data race |
//! | a flush that queues behind a waiting writer; one that shares a latch which no reader holds | `a_flush_copies_a_page_beside_its_readers_alone_whatever_waits_behind_them` |
//! | `recovery_lsn` cleared before it is among those being written; removed from there when a write fails; the frames looked at last | `the_redo_position_of_an_unwritten_change_never_disappears` |
//! | the stack of free frames without the number of its changes | `no_frame_is_taken_twice` |
//! | the frames counted before the top of that stack is read | `a_page_in_memory_is_found_while_the_pool_grows` |
//! | "dirty" and "being written" read one after the other | `a_page_whose_write_fails_never_seems_clean` |
//! | the set of unwritten frames: a frame added only if its bit is clear; cleared without a second look; walks that do not exclude each other | `every_later_walk_finds_a_change` |
//! | an orphan that is not freed; an abandoned page that stays in the table | `a_dropped_load_frees_its_frame` |
//! | `enter` without checking `closing` under the bucket's lock; locks not passed | `no_page_enters_a_pool_that_has_retired` |
//! | a page that retires without its latch | `a_change_is_written_before_its_page_retires_or_refused` |
//! | hits of a shared buffer taken or counted by a load and a store | `hits_are_counted_all_and_applied_at_most_once` |
//! | a thread's number given back or claimed with `Relaxed` | `a_buffer_passes_from_thread_to_thread_without_losing_a_hit` |
//! | the table rehashed without its locks; a bucket chosen before its lock is held | `a_page_in_memory_is_found_while_the_pool_grows` |
//! | `get_many` forgets a pin | `a_lookup_of_two_pages_beside_a_writer_of_each_comes_to_an_end` |
//! | a frame's memory given back while a task uses it | `a_shrinking_pool_gives_up_only_frames_that_no_task_uses` |

use crate::feed::hits::{BATCH, HitBuffers, SHARED, ThreadNumbers};
use crate::frames::frame::{Frame, NO_LSN};
use crate::frames::free_stack::FreeStack;
use crate::frames::set::Frames;
use crate::frames::unwritten::Unwritten;
use crate::operate::resize::Shrinking;
use crate::read::latch::Wait;
use crate::state::guard::PageRef;
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::{PoolError, PoolParams};
use crate::tier::{DirtyPage, Displaced, Fetched, Tier, TierError, WrittenPage};
use crate::waits::queues::LatchQueues;
use crate::word::{Attempt, Mode, Word};
use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::thread;
use pagetier_devio::task::Boxed;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::{Flags, HEADER_BYTES, Header, Lsn, PageId, PageSize, SpaceId, Stamp};
use pagetier_policy::{Access, Costs, FrameId, FramePolicy, FramePolicyParams, Location, PoolPolicy};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

const A: PageId = PageId::new(SpaceId(1), 0);
const B: PageId = PageId::new(SpaceId(1), 1);

/// A pool requires a runtime; nothing here runs on it.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    });

/// Storage in which every page holds its own number. The first reads fail if the model asks for it.
#[derive(Default)]
struct Numbers {
    loads: AtomicU32,
    failures: AtomicU32,
}

impl Tier for Numbers {
    fn fetch(&self, page: PageId, _: Access, mut buf: IoBuf) -> Boxed<'_, Fetched> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::Relaxed);
            pending_once().await;
            if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
            {
                return Fetched { buf, result: Err(TierError::NoSuchPage { page }) };
            }
            Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(buf.as_mut_slice());
            buf.as_mut_slice()[HEADER_BYTES..].fill(page.no as u8);
            Fetched { buf, result: Ok(Location::Hdd) }
        })
    }

    fn fetch_run(&self, _: PageId, _: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>> {
        Box::pin(async move { Vec::new() })
    }

    fn write<'a>(
        &'a self,
        _: Vec<DirtyPage>,
        _: IoClass,
        _: &'a (dyn Fn(WrittenPage) + Send + Sync),
    ) -> Boxed<'a, ()> {
        Box::pin(async move {})
    }

    fn flush(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move { Ok(()) })
    }

    fn evicted(&self, _: PageId, _: u32, _: &[u8]) -> Displaced {
        Displaced(None)
    }

    fn dirtied(&self, _: PageId, _: u32) -> bool {
        false
    }

    fn allocated(&self, _: PageId) {}

    fn discarded(&self, _: PageId) -> bool {
        true
    }
}

/// Pending on the first poll: turns the reader into a waiting task.
async fn pending_once() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    LazyLock::force(&RUNTIME);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 10_000;
    builder.check(run);
}

/// The only frame of most models.
const FIRST: FrameId = FrameId(0);

fn pool(frames: usize) -> Pool<Numbers> {
    let mut params = PoolParams::new(frames, PageSize::MIN);
    params.staging = 2;
    params.read_ahead_pages = 0;
    params.frames_max = frames + 2;
    let policy = PoolPolicy::Lru.build(&FramePolicyParams::new(frames, Costs::PAPER));
    let inner = PoolInner::new(params, policy, Arc::new(Numbers::default()), None, RUNTIME.handle().clone());
    match inner {
        Ok(inner) => Pool { inner: Arc::new(inner) },
        Err(error) => panic!("no pool: {error}"),
    }
}

/// A pool with page `A` in frame 0.
fn pool_with_a(frames: usize) -> Pool<Numbers> {
    let pool = pool(frames);
    read(&pool, A);
    pool
}

fn read(pool: &Pool<Numbers>, page: PageId) {
    match block_on(pool.get(page)) {
        Ok(guard) => assert_eq!((guard.id(), guard[0]), (page, page.no as u8)),
        Err(error) => panic!("{page}: {error}"),
    }
}

fn write(pool: &Pool<Numbers>, page: PageId) {
    match block_on(pool.get_mut(page)) {
        Ok(mut guard) => guard[1] += 1,
        Err(error) => panic!("{page}: {error}"),
    }
}

fn writes_of(pool: &Pool<Numbers>, page: PageId) -> u8 {
    match block_on(pool.get(page)) {
        Ok(guard) => guard[1],
        Err(error) => panic!("{page}: {error}"),
    }
}

/// Asserts that no task holds anything: every frame is free or has a page, without latch and pin, and the
/// pool's own count agrees.
fn at_rest(pool: &Pool<Numbers>) {
    let frames = &pool.inner.frames;
    assert!(frames.all.iter().all(|f| f.word.pins() == 0), "a pin was left: {:?}", frames.all);
    let held = frames.all.iter().filter(|f| f.page().is_some()).count();
    assert_eq!(held + frames.free.len(), frames.count(), "a frame was lost");
    assert_eq!(pool.validate(), Ok(()));
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        assert!(thread.join().is_ok());
    }
}

fn with(pool: &Pool<Numbers>, run: impl FnOnce(Pool<Numbers>) + 'static) -> thread::JoinHandle<()> {
    let pool = pool.clone();
    thread::spawn(move || run(pool))
}

#[test]
fn a_latch_excludes_and_is_handed_over() {
    model(2, || {
        let pool = pool_with_a(1);
        let other = with(&pool, |pool| write(&pool, A));
        write(&pool, A);
        join(vec![other]);
        assert_eq!(writes_of(&pool, A), 2);
        at_rest(&pool);
    });
}

#[test]
fn readers_come_in_when_a_writer_lets_go() {
    model(2, || {
        let pool = pool_with_a(1);
        let writer = with(&pool, |pool| match block_on(pool.get_mut(A)) {
            Ok(mut guard) => {
                guard[1] = 7;
                assert_eq!(guard.downgrade()[1], 7);
            }
            Err(error) => panic!("{error}"),
        });
        let reader = with(&pool, |pool| assert!([0, 7].contains(&writes_of(&pool, A))));
        join(vec![writer, reader]);
        assert_eq!(writes_of(&pool, A), 7);
        at_rest(&pool);
    });
}

#[test]
fn a_page_named_twice_is_shared_again_whatever_waits_for_it() {
    model(2, || {
        let pool = pool_with_a(1);
        let writer = with(&pool, |pool| write(&pool, A));
        match block_on(pool.get_many(&[A, A])) {
            Ok(guards) => assert_eq!(guards[0][1], guards[1][1]),
            Err(error) => panic!("{error}"),
        }
        join(vec![writer]);
        assert_eq!(writes_of(&pool, A), 1);
        at_rest(&pool);
    });
}

#[test]
fn a_lookup_of_two_pages_beside_a_writer_of_each_comes_to_an_end() {
    model(1, || {
        let pool = pool_with_a(2);
        read(&pool, B);
        let writers = [A, B].map(|page| with(&pool, move |pool| write(&pool, page)));
        match block_on(pool.get_many(&[B, A])) {
            Ok(guards) => assert_eq!([guards[0].id(), guards[1].id()], [B, A]),
            Err(error) => panic!("{error}"),
        }
        join(writers.into());
        // Each page holds its number, and one write.
        assert_eq!([A, B].map(|page| writes_of(&pool, page)), [1, 2]);
        at_rest(&pool);
    });
}

#[test]
fn lookups_beside_the_stack_of_free_frames_find_their_page_or_none() {
    model(3, || {
        // With two frames, these two share a chain. The newer one is in front: a lookup of `A` passes through
        // its frame.
        let in_front = PageId::new(A.space, 4);
        let pool = pool_with_a(2);
        read(&pool, in_front);
        let frees = with(&pool, move |pool| {
            let inner = &pool.inner;
            let at = inner.frames.table.find(&inner.frames.all, in_front);
            let Some(frame) = at else { panic!("no other thread moves it") };
            inner.evict_page(in_front, frame);
            // Its link is now that of the stack. If a guard kept it, it is in the chain as before.
            let Some(frame) = inner.frames.take_free() else { return };
            assert!(inner.enter(frame, B), "no other thread reads it");
            assert!(block_on(inner.load(frame, B, Access::Random)).is_ok());
            inner.frames.release(frame, Mode::Exclusive);
        });
        if let Some(page) = pool.try_get(in_front) {
            assert_eq!((page.id(), page[0]), (in_front, 4));
        }
        read(&pool, A);
        join(vec![frees]);
        assert!(pool.inner.tier.loads.load(Ordering::Relaxed) <= 3, "a page in memory was read again");
        at_rest(&pool);
    });
}

/// Requests the exclusive latch of frame 0, polls once, and cancels.
fn give_up(pool: &Pool<Numbers>) {
    let frames: &Frames = &pool.inner.frames;
    if frames.at(FIRST).word.try_latch(Mode::Exclusive) == Attempt::Latched {
        return frames.release(FIRST, Mode::Exclusive);
    }
    if frames.at(FIRST).word.pin() {
        let mut wait = Box::pin(Wait::new(frames, FIRST, A, Mode::Exclusive));
        match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(latched) => {
                assert!(latched.is_ok());
                frames.release(FIRST, Mode::Exclusive);
            }
            Poll::Pending => drop(wait),
        }
    }
}

#[test]
fn a_cancelled_waiter_leaves_nothing_and_blocks_no_task() {
    model(2, || {
        let pool = pool_with_a(1);
        let Ok(held) = block_on(pool.get_mut(A)) else { panic!("no task has it") };
        let gives_up = with(&pool, |pool| give_up(&pool));
        let waits = with(&pool, |pool| read(&pool, A));
        drop(held);
        join(vec![gives_up, waits]);
        at_rest(&pool);
    });
}

#[test]
fn a_cancelled_waiter_lets_those_behind_it_in() {
    model(2, || {
        let pool = pool_with_a(1);
        let Ok(held) = block_on(pool.get(A)) else { panic!("no task has it") };
        let gives_up = with(&pool, |pool| give_up(&pool));
        // It can share the latch with its holder, which does not release it before.
        let waits = with(&pool, |pool| read(&pool, A));
        join(vec![gives_up, waits]);
        drop(held);
        at_rest(&pool);
    });
}

#[test]
fn the_task_that_checks_the_waits_rests_only_if_it_will_be_woken() {
    model(3, || {
        let waiters = Arc::new(LatchQueues::new());
        let watch = Arc::clone(&waiters.watch);
        watch.wake();
        let theirs = Arc::clone(&waiters);
        let waits = thread::spawn(move || {
            let word = Word::new();
            word.begin_fill();
            let request = (FIRST, A, Mode::Exclusive);
            assert!(theirs.enqueue(request, &word, Waker::noop()).is_some(), "the latch is held");
        });
        let rests = watch.rest(|| !waiters.is_empty());
        join(vec![waits]);
        assert!(watch.is_awake(), "the task misses a wait; it rests: {rests}");
    });
}

#[test]
fn a_hit_never_sees_the_page_that_took_the_frame() {
    model(3, || {
        let pool = pool_with_a(1);
        let takes = with(&pool, |pool| {
            let inner = &pool.inner;
            let Some(frame) = inner.evict() else { return };
            assert!(inner.enter(frame, B), "no other task loads it");
            assert!(block_on(inner.load(frame, B, Access::Random)).is_ok());
            inner.frames.release(frame, Mode::Exclusive);
        });
        for _ in 0..2 {
            if let Some(page) = pool.try_get(A) {
                assert_eq!((page.id(), page[0]), (A, A.no as u8));
            }
        }
        join(vec![takes]);
        at_rest(&pool);
    });
}

#[test]
fn an_evicted_page_is_not_in_use() {
    model(3, || {
        let pool = pool_with_a(2);
        let evicts = with(&pool, |pool| {
            if let Some(frame) = pool.inner.evict() {
                // This thread owns the frame: no other thread may have it latched or reach it.
                pool.inner.frames.arena.frame_mut(frame.at());
                pool.inner.frames.give_back(frame);
            }
        });
        write(&pool, A);
        join(vec![evicts]);
        at_rest(&pool);
    });
}

#[test]
fn a_dirty_page_is_not_evicted() {
    model(3, || {
        let pool = pool_with_a(2);
        let writes = with(&pool, |pool| {
            let Ok(mut guard) = block_on(pool.get_mut(A)) else { panic!("it is there, or is read again") };
            guard[1] = 9;
            drop(guard);
            assert_eq!(pool.inner.evict(), None);
        });
        if let Some(frame) = pool.inner.evict() {
            assert!(!pool.inner.frames.at(frame).word.is_dirty());
            pool.inner.frames.give_back(frame);
        }
        join(vec![writes]);
        assert_eq!(writes_of(&pool, A), 9);
    });
}

#[test]
fn a_page_is_read_once_however_many_miss_it() {
    model(2, || {
        let pool = pool(2);
        let other = with(&pool, |pool| read(&pool, A));
        read(&pool, A);
        join(vec![other]);
        assert_eq!(pool.inner.tier.loads.load(Ordering::Relaxed), 1);
        at_rest(&pool);
    });
}

#[test]
fn a_failed_read_frees_its_frame_and_the_next_one_retries() {
    model(2, || {
        let pool = pool(2);
        pool.inner.tier.failures.store(1, Ordering::Relaxed);
        let tries = |pool: &Pool<Numbers>| match block_on(pool.get(A)) {
            Ok(guard) => assert_eq!(guard.id(), A),
            Err(error) => assert!(matches!(error, PoolError::Tier(TierError::NoSuchPage { page: A }))),
        };
        let other = with(&pool, move |pool| tries(&pool));
        tries(&pool);
        join(vec![other]);
        read(&pool, A);
        at_rest(&pool);
    });
}

#[test]
fn a_dropped_load_frees_its_frame() {
    model(2, || {
        let pool = pool(2);
        let gives_up = with(&pool, |pool| {
            let mut get = Box::pin(pool.get(A));
            let _ = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        read(&pool, A);
        join(vec![gives_up]);
        at_rest(&pool);
    });
}

#[test]
fn a_change_during_a_write_is_not_treated_as_written() {
    model(3, || {
        let pool = pool_with_a(1);
        write(&pool, A);
        let cleans = with(&pool, |pool| {
            let mut staged = 0;
            pool.inner.clean_one(FIRST, true, |image| staged = image[HEADER_BYTES + 1]);
            // If the page is clean, the write included both changes.
            assert!([0, 1, 2].contains(&staged));
            assert!(staged != 2 || !pool.inner.frames.at(FIRST).word.is_dirty());
        });
        write(&pool, A);
        join(vec![cleans]);
        // Whatever was written, the last change is stored below or still dirty.
        pool.inner.clean_one(FIRST, true, |image| assert_eq!(image[HEADER_BYTES + 1], 2));
        assert!(!pool.inner.frames.at(FIRST).word.is_dirty());
        at_rest(&pool);
    });
}

#[test]
fn one_write_of_a_page_at_a_time_and_no_change_is_lost() {
    model(3, || {
        let pool = pool_with_a(1);
        write(&pool, A);
        // Represents the storage below: two unordered writes fail the model.
        let below = Arc::new((UnsafeCell::new(()), AtomicU32::new(0)));
        let clean = |pool: &Pool<Numbers>, below: &(UnsafeCell<()>, AtomicU32)| {
            pool.inner.clean_one(FIRST, true, |image| {
                below.0.with_mut(|_| ());
                below.1.store(u32::from(image[HEADER_BYTES + 1]), Ordering::Relaxed);
            });
        };
        let theirs = Arc::clone(&below);
        let other = with(&pool, move |pool| clean(&pool, &theirs));
        write(&pool, A);
        clean(&pool, &below);
        join(vec![other]);
        if !pool.inner.frames.at(FIRST).word.is_dirty() {
            assert_eq!(below.1.load(Ordering::Relaxed), 2, "clean, but its last change was never written");
        }
        at_rest(&pool);
    });
}

#[test]
fn a_page_whose_write_fails_never_seems_clean() {
    model(2, || {
        let word = Arc::new(Word::new());
        word.begin_fill();
        word.dirty();
        assert!(word.begin_clean());
        // In a thread of its own: in the main one, loom missed the write between two loads.
        let seen = Arc::clone(&word);
        let sync = thread::spawn(move || {
            let (dirty, being_written) = seen.unwritten();
            assert!(dirty || being_written, "a sync would take the page for written");
        });
        let failing = Arc::clone(&word);
        let write = thread::spawn(move || assert!(!failing.end_clean(false)));
        join(vec![sync, write]);
    });
}

#[test]
fn a_flush_copies_a_page_beside_its_readers_alone_whatever_waits_behind_them() {
    model(2, || {
        let pool = pool_with_a(1);
        write(&pool, A);
        let reader = block_on(pool.get(A));
        let writer = with(&pool, |pool| write(&pool, A));
        match pool.inner.try_share_resident(A) {
            Some(frame) => {
                drop(reader);
                let copied = |image: &[u8]| assert_eq!(image[HEADER_BYTES + 1], 1, "a writer changes it");
                pool.inner.clean_latched(frame, copied);
                pool.inner.frames.release(frame, Mode::Shared);
            }
            None => panic!("behind the writer, the flush would wait for the reader"),
        }
        // The writer has the latch now, or had it, or is about to.
        if let Some(frame) = pool.inner.try_share_resident(A) {
            assert!([1, 2].contains(&PageRef::new(&*pool.inner, frame)[1]));
        }
        join(vec![writer]);
        assert_eq!(writes_of(&pool, A), 2);
        at_rest(&pool);
    });
}

#[test]
fn the_redo_position_of_an_unwritten_change_never_disappears() {
    model(3, || {
        let pool = pool_with_a(1);
        match block_on(pool.get_mut(A)) {
            Ok(mut guard) => guard.set_lsn(Lsn(5)),
            Err(error) => panic!("{error}"),
        }
        let cleans = with(&pool, |pool| assert!(pool.inner.clean_one(FIRST, false, |_| ())));
        assert_eq!(pool.min_recovery_lsn(), Some(Lsn(5)));
        join(vec![cleans]);
        assert_eq!(pool.min_recovery_lsn(), Some(Lsn(5)));
        assert_ne!(pool.inner.frames.at(FIRST).recovery_lsn.load(Ordering::Relaxed), NO_LSN);
    });
}

#[test]
fn no_frame_is_taken_twice() {
    model(3, || {
        let all: Vec<Frame> = (0..3).map(|_| Frame::new(crate::frames::page_table::NONE)).collect();
        let free = FreeStack::new();
        [2, 1, 0].into_iter().for_each(|frame| free.push(&all, FrameId(frame)));
        let shared = loom::sync::Arc::new((all, free));
        let theirs = loom::sync::Arc::clone(&shared);
        // Takes the upper two and returns the first: the top is then the same, and what lies below is not.
        let other = thread::spawn(move || {
            let (all, free) = &*theirs;
            let first = free.pop(all);
            let second = free.pop(all);
            first.into_iter().for_each(|frame| free.push(all, frame));
            second
        });
        let (all, free) = &*shared;
        let mut taken: Vec<FrameId> = free.pop(all).into_iter().collect();
        match other.join() {
            Ok(theirs) => taken.extend(theirs),
            Err(_) => panic!("the other thread panicked"),
        }
        assert_eq!((taken.len(), free.len()), (2, 1));
        taken.extend(std::iter::from_fn(|| free.pop(all)));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2].map(FrameId), "a frame was lost, or is in use twice");
    });
}

#[test]
fn every_later_walk_finds_a_change() {
    model(3, || {
        let frames = || -> Vec<Frame> { vec![Frame::new(crate::frames::page_table::NONE)] };
        let shared = loom::sync::Arc::new((frames(), Unwritten::new(1).expect("memory")));
        shared.1.grow(1).expect("memory");
        // An earlier change, written since: the walks below find the frame clean, and forget it.
        shared.1.add(FrameId(0));
        let theirs = loom::sync::Arc::clone(&shared);
        let other = thread::spawn(move || theirs.1.forget(&theirs.0));
        let (all, set) = &*shared;
        all[0].note_lsn(Lsn(1));
        set.add(FrameId(0));
        let mut found = 0;
        set.walk(all, |_, _| {
            found += 1;
            true
        });
        assert_eq!(found, 1, "a sync would not write the page");
        join(vec![other]);
    });
}

#[test]
fn hits_are_counted_all_and_applied_at_most_once() {
    model(3, || {
        let hits = loom::sync::Arc::new(HitBuffers::new());
        let applied: Arc<[AtomicU32; 4]> = Arc::default();
        let work = |hits: &HitBuffers, applied: &[AtomicU32; 4], first: u32| {
            for frame in first..first + BATCH as u32 {
                if hits.note(SHARED, FrameId(frame), frame % 2 == 1) {
                    hits.drain(SHARED, |frame, write| {
                        assert_eq!(write, frame.0 % 2 == 1, "a hit keeps its kind");
                        applied[frame.at()].fetch_add(1, Ordering::Relaxed);
                    });
                }
            }
        };
        let (theirs, counts) = (loom::sync::Arc::clone(&hits), Arc::clone(&applied));
        let other = thread::spawn(move || work(&theirs, &counts, 0));
        work(&hits, &applied, BATCH as u32);
        join(vec![other]);
        assert_eq!(hits.hits(), 4);
        assert!(applied.iter().all(|n| n.load(Ordering::Relaxed) <= 1), "{applied:?}");
    });
}

#[test]
fn a_buffer_passes_from_thread_to_thread_without_losing_a_hit() {
    model(3, || {
        let shared = loom::sync::Arc::new((HitBuffers::new(), ThreadNumbers::new()));
        let applied = Arc::new(AtomicU32::new(0));
        // A thread of the pool, from its first hit to its end.
        let life = |(hits, numbers): &(HitBuffers, ThreadNumbers), applied: &AtomicU32| {
            let number = numbers.claim();
            let own = number.unwrap_or(SHARED);
            for _ in 0..BATCH {
                hits.note(own, FrameId(1), false);
            }
            hits.drain(own, |_, _| {
                applied.fetch_add(1, Ordering::Relaxed);
            });
            number.into_iter().for_each(|number| numbers.release(number));
        };
        let (theirs, counts) = (loom::sync::Arc::clone(&shared), Arc::clone(&applied));
        let other = thread::spawn(move || life(&theirs, &counts));
        life(&shared, &applied);
        join(vec![other]);
        assert_eq!(shared.0.hits(), 2 * BATCH as u64);
        assert_eq!(applied.load(Ordering::Relaxed), 2 * BATCH as u32, "each thread gets all of its hits");
    });
}

/// [`Pool::retire`] with writes that are copies to `storage`.
fn retire(pool: &Pool<Numbers>, storage: &AtomicU32) {
    pool.inner.refuse_misses();
    for frame in pool.inner.frames.ids() {
        while let Some(page) = pool.inner.frames.at(frame).page() {
            let latched = block_on(pool.inner.latch_resident(page, Mode::Shared));
            let Ok(Some(latched)) = latched else { continue };
            let store = |image: &[u8]| storage.store(u32::from(image[HEADER_BYTES + 1]), Ordering::Relaxed);
            pool.inner.clean_latched(latched, store);
            pool.inner.policy.lock().remove(latched, false);
            pool.inner.frames.unlist(latched, page);
            pool.inner.frames.release(latched, Mode::Shared);
        }
    }
}

#[test]
fn a_change_is_written_before_its_page_retires_or_refused() {
    model(2, || {
        let pool = pool_with_a(1);
        let storage = Arc::new(AtomicU32::new(0));
        let retired = Arc::clone(&storage);
        let retires = with(&pool, move |pool| retire(&pool, &retired));
        let changed = match block_on(pool.get_mut(A)) {
            Ok(mut guard) => {
                guard[1] += 1;
                1
            }
            Err(error) => {
                assert!(matches!(error, PoolError::Closed), "{error}");
                0
            }
        };
        join(vec![retires]);
        assert_eq!(storage.load(Ordering::Relaxed), changed);
        assert!(matches!(block_on(pool.get(A)), Err(PoolError::Closed)));
        at_rest(&pool);
    });
}

#[test]
fn no_page_enters_a_pool_that_has_retired() {
    model(2, || {
        let pool = pool_with_a(2);
        let retires = with(&pool, |pool| retire(&pool, &AtomicU32::new(0)));
        match block_on(pool.get(B)) {
            Ok(guard) => assert_eq!(guard[0], 1),
            Err(error) => assert!(matches!(error, PoolError::Closed), "{error}"),
        }
        join(vec![retires]);
        assert!(pool.inner.frames.all.iter().all(|frame| frame.page().is_none()));
        assert!(pool.try_get(B).is_none());
        at_rest(&pool);
    });
}

#[test]
fn a_page_in_memory_is_found_while_the_pool_grows() {
    model(2, || {
        let pool = pool_with_a(2);
        let grows = with(&pool, |pool| assert!(pool.inner.grow(2).is_ok()));
        read(&pool, A);
        read(&pool, B);
        join(vec![grows]);
        read(&pool, A);
        assert_eq!(pool.inner.tier.loads.load(Ordering::Relaxed), 2, "each page once");
        assert_eq!(pool.inner.frames.count(), 4);
        at_rest(&pool);
    });
}

#[test]
fn a_shrinking_pool_gives_up_only_frames_that_no_task_uses() {
    model(2, || {
        let pool = pool_with_a(2);
        read(&pool, B);
        let shrinks = with(&pool, |pool| {
            let mut shrinking = Shrinking { pool: &pool.inner, taken: Vec::new() };
            shrinking.take();
        });
        write(&pool, A);
        join(vec![shrinks]);
        assert_eq!(writes_of(&pool, A), 1);
        at_rest(&pool);
        assert!(pool.inner.grow(1).is_ok());
        at_rest(&pool);
    });
}
