//! A medium that stalls, and guards that stay: who waits for what, counted in events.

use super::full::{Disks, pages, put};
use super::sim::{Gate, SimMedia};
use super::{LIMITS, SMALL, append_and_flush, bodies, in_use};
use crate::{LoggedStore, Media, MiniTx, Wal, blocking};
use pagetier::errors::Advice;
use pagetier::{Lsn, OpenError, PageId, PageMut, SpaceId};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};
use tokio::task::yield_now;
use tokio::time::Instant;

/// A medium whose writes block their threads.
struct Stalling {
    media: SimMedia,
    writes: Gate,
}

impl Stalling {
    fn new() -> Self {
        let writes = Gate::default();
        Self { media: SimMedia::new(1).behind(&writes), writes }
    }
}

/// Polls the future once, as a caller does that gives up soon, and drops it.
async fn give_up<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
    assert!(!polled, "it does not wait");
}

/// Each caller that gave up left a thread in the stalled write: the embedder's own blocking calls starved.
#[test]
fn callers_that_give_up_leave_one_thread_to_a_stalled_disk() {
    let threads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&threads);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let runtime = runtime.enable_all().on_thread_start(count).build().unwrap();
    runtime.block_on(async {
        let media = Stalling::new();
        let wal = in_use(Box::new(media.media.clone()), LIMITS).unwrap();
        append_and_flush(&wal, b"first").await;
        media.writes.set(true);
        for n in 0..100_u8 {
            let lsn = wal.append_commit(&[n; 100]).unwrap();
            give_up(wal.flush(lsn)).await;
            give_up(wal.flush_or_reserve(lsn)).await;
        }
        for _ in 0..100 {
            give_up(wal.truncate(Lsn(64), Lsn(64))).await;
        }
        media.writes.is_reached().await;
        // A hold waits for no disk.
        drop(wal.hold());
        let of_embedder = tokio::task::spawn_blocking(|| 7);
        assert_eq!(of_embedder.await.unwrap(), 7);
        media.writes.set(false);
        wal.flush(wal.end()).await.unwrap();
        assert_eq!(bodies(&wal).len(), 101);
    });
    drop(runtime);
    let threads = threads.load(Ordering::Relaxed);
    assert!(threads < 10, "{threads} threads");
}

/// Schedule: a copy to the archive is being made when the store is shut down. An open right after that met
/// the archive's lock, and went on without its archive.
#[tokio::test]
async fn a_shutdown_waits_for_the_copy_that_is_being_made() {
    let (disks, archive) = (Disks::new(), Stalling::new());
    let wal = Wal::on(Box::new(SimMedia::new(1).behind(&Gate::default())), SMALL).unwrap();
    let media = archive.media.clone();
    let opens = move || Ok(Box::new(media.clone()) as Box<dyn crate::Media>);
    wal.archive_on("/archive".into(), opens, SystemTime::now, Duration::from_secs(60)).unwrap();
    let db = Arc::new(LoggedStore::on(disks.builder(), wal).await.unwrap());
    archive.writes.set(true);
    let space = pages(&db, 30).await;
    while db.wal().segment_starts().len() < 3 {
        put(&db, PageId::new(space, 1), 7).await.unwrap();
    }
    archive.writes.is_reached().await;
    let ending = Arc::clone(&db);
    let mut shutdown = tokio::spawn(async move { ending.shutdown().await });
    let waited = tokio::time::timeout(Duration::from_millis(500), &mut shutdown).await;
    archive.writes.set(false);
    assert!(waited.is_err(), "the archive's lock was still held");
    shutdown.await.unwrap().unwrap();
}

/// Schedule: a shutdown gives the store up, and stalls before it removes segments of the log. Until it goes
/// on, the next owner may have used their space again, and loses what it has there.
#[tokio::test]
async fn a_shutdown_keeps_the_store_until_the_log_is_short() {
    let (disks, log) = (Disks::new(), Stalling::new());
    let wal = Wal::on(Box::new(log.media.clone()), SMALL).unwrap();
    let db = LoggedStore::on(disks.builder(), wal).await.unwrap();
    let (hold, _) = db.wal().hold();
    let space = pages(&db, 30).await;
    while db.wal().segment_starts().len() < 3 {
        put(&db, PageId::new(space, 1), 7).await.unwrap();
    }
    db.sync().await.unwrap();
    db.wal().flush(db.wal().end()).await.unwrap();
    log.writes.set(true);
    drop(hold);
    let next = async {
        log.writes.is_reached().await;
        let next = disks.builder().open().await;
        log.writes.set(false);
        next.map(drop)
    };
    let (ended, next) = tokio::join!(db.shutdown(), next);
    assert!(matches!(next, Err(OpenError::AlreadyOpen { .. })), "{next:?}");
    ended.unwrap();
    assert_eq!(log.media.clone().list().unwrap().len(), 1);
}

/// All that wait share the end of one write, be it a failure.
#[tokio::test]
async fn waiting_callers_share_a_write_and_its_failure() {
    let media = Stalling::new();
    let wal = in_use(Box::new(media.media.clone()), LIMITS).unwrap();
    media.writes.set(true);
    let flush = |wal: &Wal| {
        let (wal, lsn) = (wal.clone(), wal.append_commit(b"one of many").unwrap());
        tokio::spawn(async move { wal.flush(lsn).await })
    };
    let first = flush(&wal);
    media.writes.is_reached().await;
    let others: Vec<_> = (0..50).map(|_| flush(&wal)).collect();
    for _ in 0..10 {
        yield_now().await;
    }
    media.media.fail(1, super::sim::Way::Refused);
    media.writes.set(false);
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap().unwrap_err();
    }
    assert!(wal.is_failing());
    wal.flush(wal.end()).await.unwrap();
    assert_eq!(bodies(&wal).len(), 51);
}

/// The write is split into segments, and that of the second record fails.
#[tokio::test]
async fn a_write_that_fails_half_way_fails_no_caller_whose_record_it_made_durable() {
    let media = Stalling::new();
    let wal = in_use(Box::new(media.media.clone()), LIMITS).unwrap();
    media.writes.set(true);
    let first = wal.append_commit(b"first").unwrap();
    let first = tokio::spawn({
        let wal = wal.clone();
        async move { wal.flush(first).await }
    });
    media.writes.is_reached().await;
    let segment = vec![7; LIMITS.segment_bytes() as usize];
    let [one, other] = [(); 2].map(|()| wal.append_commit(&segment).unwrap());
    // The second one is polled first: it writes both, once the write that has begun is over.
    let mut both = pin!(futures_util::future::join(wal.flush(other), wal.flush(one)));
    assert!(poll_fn(|cx| Poll::Ready(both.as_mut().poll(cx).is_pending())).await);
    media.media.fail(2, super::sim::Way::Refused);
    media.writes.set(false);
    let (other, one) = both.await;
    first.await.unwrap().unwrap();
    other.unwrap_err();
    one.unwrap();
}

/// Two changes that free pages: the record of the first uses the reserve up before the second is committed.
async fn free_two<'s>(db: &'s LoggedStore, space: SpaceId) -> (MiniTx<'s>, MiniTx<'s>) {
    let begin = async |head, freed| {
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        let at = change.add(db.get_mut(PageId::new(space, head)).await.unwrap());
        change.write(at, 100, b"frees a page");
        change.free(PageId::new(space, freed));
        change
    };
    (begin(0, 10).await, begin(1, 11).await)
}

/// It waits for as long as the checkpoint works, on whatever disk.
#[tokio::test(start_paused = true)]
async fn a_free_waits_for_a_checkpoint_not_for_a_clock() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 30).await;
    db.sync().await.unwrap();
    media.set_full(true);
    let (one, other) = free_two(&db, space).await;
    for device in [&disks.hdd, &disks.ring] {
        for op in [IoOp::Write, IoOp::Flush] {
            device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(30))).on(op));
        }
    }
    db.commit(one).await.unwrap();
    assert!(!media.has_reserve());
    let before = Instant::now();
    let lsn = db.commit(other).await.unwrap();
    assert!(db.wal().durable() >= lsn && before.elapsed() > Duration::from_secs(29), "the disk is not slow");
}

/// The same through the blocking form.
#[test]
fn a_blocking_free_waits_for_the_reserve_too() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
    let db = blocking::LoggedStore::on(disks.builder(), wal).unwrap();
    let space = db.block_on(async { pages(&db.logged, 30).await });
    db.block_on(db.store().sync()).unwrap();
    db.logged.checkpoints.end();
    media.set_full(true);
    let [one, other] = [(0, 10), (1, 11)].map(|(head, freed)| {
        let mut change = db.begin::<PageMut<'_>>().unwrap();
        let at = change.add(db.get_mut(PageId::new(space, head)).unwrap());
        change.write(at, 100, b"frees a page");
        change.free(PageId::new(space, freed));
        change
    });
    db.commit(one).unwrap();
    assert!(!media.has_reserve());
    db.commit(other).unwrap();
    media.set_full(false);
    db.shutdown().unwrap();
}

/// The checkpoint waits for a guard of the caller: the commit is refused, and nothing hangs.
#[tokio::test(start_paused = true)]
async fn a_free_beside_a_guard_that_the_checkpoint_needs_is_refused() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 30).await;
    db.sync().await.unwrap();
    put(&db, PageId::new(space, 5), 2).await.unwrap();
    media.set_full(true);
    let (one, other) = free_two(&db, space).await;
    let held = db.get_mut(PageId::new(space, 5)).await.unwrap();
    db.commit(one).await.unwrap();
    let refused = db.commit(other).await.unwrap_err();
    assert_eq!(refused.advice(), Advice::FreeSpace, "{refused}");
    drop(held);
    db.checkpoint().await.unwrap();
    assert!(db.wal().durable() == db.wal().end() && media.has_reserve());
    assert!(!db.exists(PageId::new(space, 11)));
}

/// A checkpoint that waited for the guard could not shorten the log: after some changes all were refused.
#[tokio::test(start_paused = true)]
async fn a_guard_of_a_freed_page_holds_no_log() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 12).await;
    let (freed, head) = (PageId::new(space, 7), PageId::new(space, 0));
    let guard = db.get(freed).await.unwrap();
    let lsn = super::full::trim(&db, head, freed).await.unwrap();
    for no in 0..2_000 {
        put(&db, PageId::new(space, 1 + no % 5), no as u8).await.unwrap();
    }
    db.checkpoint().await.unwrap();
    assert!(db.wal().oldest() > lsn, "the log is kept for a page that is free");
    assert!(guard[..8] == [1; 8] && !db.exists(freed));
    // The number is in use until the guard is gone.
    assert_ne!(db.allocate(space).await.unwrap().id(), freed);
    db.sync().await.unwrap();
    drop(guard);
    while db.allocate(space).await.unwrap().id() != freed {
        yield_now().await;
    }
    db.shutdown().await.unwrap();
}

/// A caller that asks for the frees needs the pages: when the call returns nothing else uses them.
#[tokio::test(start_paused = true)]
async fn frees_that_are_asked_for_wait_for_the_guards_of_their_pages() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 3).await;
    let (head, freed) = (PageId::new(space, 0), PageId::new(space, 1));
    let guard = db.get(freed).await.unwrap();
    super::full::trim(&db, head, freed).await.unwrap();
    let mut freeing = pin!(db.wal().free_pending(db.store()));
    let waited = tokio::time::timeout(Duration::from_secs(60), freeing.as_mut()).await;
    assert!(waited.is_err() && !db.exists(freed), "{waited:?}");
    drop(guard);
    assert_eq!(freeing.await.unwrap(), 1);
}

/// What keeps the log long goes with other tasks: checkpoints that follow each other until then only work.
#[tokio::test(start_paused = true)]
async fn a_change_that_waits_for_room_does_not_keep_checkpoints_busy() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 6).await;
    let unfinished = db.wal().append_commit(b"applied later").unwrap();
    while !db.wal().is_long() {
        put(&db, PageId::new(space, 1), 7).await.unwrap();
    }
    let mut polls = 0;
    let mut admission = Box::pin(db.admit(Duration::from_secs(3)));
    let refused = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "each checkpoint wakes it");
        admission.as_mut().poll(cx)
    });
    assert!(matches!(refused.await, Err(crate::WalError::Full { .. })));
    drop(admission);
    db.wal().append_applied(unfinished);
    db.admit(Duration::from_secs(3)).await.unwrap();
    db.shutdown().await.unwrap();
}

/// The log was shortened beyond a commit once its changes were appended: after a power cut it had neither.
#[tokio::test(start_paused = true)]
async fn a_commit_is_kept_until_it_is_durable_that_it_was_applied() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let open = async |media: SimMedia| {
        LoggedStore::on(disks.builder(), in_use(Box::new(media), LIMITS).unwrap()).await.unwrap()
    };
    let db = open(media.clone()).await;
    let space = pages(&db, 6).await;
    let commit = db.wal().append_commit(b"set page 2").unwrap();
    while db.wal().segment_starts().len() < 4 {
        put(&db, PageId::new(space, 1), 7).await.unwrap();
    }
    db.sync().await.unwrap();
    let mut applying = db.begin().await.unwrap();
    let at = applying.add(db.get_mut(PageId::new(space, 2)).await.unwrap());
    applying.write(at, 0, b"is set");
    applying.commit().unwrap();
    db.wal().append_applied(commit);
    db.checkpoint().await.unwrap();
    super::full::crash(db).await;
    let db = open(media.after_power_cut(3)).await;
    let is_set = db.get(PageId::new(space, 2)).await.unwrap()[..6] == *b"is set";
    assert!(is_set || db.recovered().commits.contains_key(&commit));
}

/// The store had recorded the first generation; the log had only the second one, which nothing named.
#[tokio::test(start_paused = true)]
async fn a_recovery_that_is_repeated_begins_no_second_generation() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 3).await;
    put(&db, PageId::new(space, 1), 7).await.unwrap();
    super::full::crash(db).await;
    let wal = in_use(Box::new(media.after_kill(2)), SMALL).unwrap();
    let store = Arc::new(disks.builder().log_gate(wal.gate()).open().await.unwrap());
    crate::recover(&store, &wal).await.unwrap();
    let begun = wal.mark();
    crate::recover(&store, &wal).await.unwrap();
    assert_eq!(wal.mark().generation, begun.generation);
}
