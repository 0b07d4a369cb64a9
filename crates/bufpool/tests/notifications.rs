//! The pool's notifications to its policy, and how soon a returned frame is reused.

use crate::common::{Memory, page};
use pagetier_bufpool::{Pool, PoolError, PoolParams};
use pagetier_devio::IoClass;
use pagetier_page::{PageId, PageSize};
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, Location, PolicyChoice, SlotPolicyParams, SsdPolicy,
};
use pagetier_rivals::pool::Casa;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FRAMES: usize = 16;
const PAGES: u32 = 60;
/// A page that does not exist.
const BAD: u32 = 99;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Dirtied,
    Cleaned(CleanReason),
    Invalidated,
    Costs(Costs),
}

type Notes = Arc<Mutex<Vec<Event>>>;

/// CASA with a record of its notifications.
#[derive(Debug)]
struct Recording {
    casa: Casa,
    notes: Notes,
}

impl Recording {
    fn note(&self, event: Event) {
        self.notes.lock().unwrap().push(event);
    }
}

impl FramePolicy for Recording {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        self.casa.insert(frame, page, location, access);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        self.casa.hit(frame, write);
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
        self.note(Event::Cleaned(reason));
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        self.casa.ssd_invalidated(frame);
        self.note(Event::Invalidated);
    }

    fn set_costs(&mut self, costs: Costs) {
        self.casa.set_costs(costs);
        self.note(Event::Costs(costs));
    }

    fn choice(&self) -> Option<PolicyChoice> {
        a_choice()
    }

    fn len(&self) -> usize {
        self.casa.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.casa.validate()
    }
}

/// That of a policy which adapts.
fn a_choice() -> Option<PolicyChoice> {
    SsdPolicy::default().build(&SlotPolicyParams::new(Costs::PAPER, FRAMES, FRAMES)).choice()
}

fn start(tier: &Arc<Memory>) -> (Pool<Memory>, Notes) {
    let notes = Notes::default();
    let policy = Box::new(Recording { casa: Casa::new(FRAMES, Costs::PAPER), notes: Arc::clone(&notes) });
    // Prevent unrequested writes.
    let params = PoolParams { clean_depth: 0, read_ahead_pages: 0, ..PoolParams::new(FRAMES, PageSize::MIN) };
    (Pool::start(params, policy, Arc::clone(tier), None).unwrap(), notes)
}

async fn change(pool: &Pool<Memory>, no: u32, value: u8) {
    pool.get_mut(page(no)).await.unwrap()[4] = value;
}

#[tokio::test(start_paused = true)]
async fn a_page_changed_while_it_is_written_is_reported_dirty_again() {
    let tier = Memory::with_pages(PAGES);
    let (pool, notes) = start(&tier);
    for meanwhile in [false, true] {
        notes.lock().unwrap().clear();
        change(&pool, 1, 1).await;
        let flush = async { pool.flush_all().await.unwrap() };
        let changes = async {
            sleep(Duration::from_millis(1)).await;
            if meanwhile {
                change(&pool, 1, 2).await;
            }
        };
        tokio::join!(flush, changes);
        let events = notes.lock().unwrap().clone();
        let last = events.iter().rposition(|event| matches!(event, Event::Cleaned(_))).unwrap();
        assert_eq!(events[0], Event::Dirtied);
        assert_eq!(events[last + 1..] == [Event::Dirtied], meanwhile, "{events:?}");
        pool.flush_all().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_copy_is_reported_only_if_there_was_one() {
    for has_copies in [false, true] {
        let tier = Memory::with_pages(PAGES);
        tier.has_copies.store(has_copies, Ordering::Relaxed);
        let (pool, notes) = start(&tier);
        change(&pool, 1, 1).await;
        let events = notes.lock().unwrap().clone();
        assert_eq!(events, [Event::Dirtied, Event::Invalidated][..1 + usize::from(has_copies)]);
    }
}

#[tokio::test(start_paused = true)]
async fn new_costs_reach_the_policy() {
    let tier = Memory::with_pages(PAGES);
    let (pool, notes) = start(&tier);
    let costs = Costs { hdd_read_ms: 5.5, ..Costs::PAPER };
    pool.set_costs(costs);
    assert_eq!(*notes.lock().unwrap(), [Event::Costs(costs)]);
}

#[tokio::test(start_paused = true)]
async fn the_setting_that_an_adaptive_policy_follows_is_reported() {
    let tier = Memory::with_pages(PAGES);
    let (pool, _) = start(&tier);
    assert!(a_choice().is_some());
    assert_eq!(pool.choice(), a_choice());
}

#[tokio::test(start_paused = true)]
async fn a_write_is_urgent_only_when_staging_buffers_run_out() {
    let tier = Memory::with_pages(PAGES);
    let (pool, _) = start(&tier);
    change(&pool, 1, 1).await;
    pool.flush_all().await.unwrap();
    assert_eq!(*tier.classes.lock().unwrap(), [IoClass::Clean]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_gets_the_frame_of_a_failed_load_at_once() {
    let tier = Memory::with_pages(PAGES);
    let (pool, _) = start(&tier);
    let mut guards = Vec::new();
    for no in 0..FRAMES as u32 - 1 {
        guards.push(pool.get(page(no)).await.unwrap());
    }
    let begun = Instant::now();
    let bad = async { assert!(matches!(pool.get(page(BAD)).await, Err(PoolError::Tier(_)))) };
    let waiting = async {
        sleep(Duration::from_millis(1)).await;
        drop(pool.get(page(50)).await.unwrap());
        begun.elapsed()
    };
    let ((), waited) = tokio::join!(bad, waiting);
    assert_eq!(waited, Duration::from_millis(6), "two consecutive reads without a pause between them");
}

/// A task may keep the future of a request and poll another one for a long time.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_is_not_polled_does_not_delay_others() {
    let tier = Memory::with_pages(PAGES);
    let (pool, _) = start(&tier);
    for no in 0..FRAMES as u32 {
        change(&pool, no, 1).await;
    }
    // All pages are dirty and nothing writes them, so it waits for a frame.
    tier.fail_writes.store(true, Ordering::Relaxed);
    let mut kept = Box::pin(pool.get(page(50)));
    tokio::time::timeout(Duration::from_micros(1), &mut kept).await.expect_err("no frame is free");
    tier.fail_writes.store(false, Ordering::Relaxed);
    pool.flush_all().await.unwrap();
    for no in 51..55 {
        let begun = Instant::now();
        drop(pool.get(page(no)).await.unwrap());
        assert_eq!(begun.elapsed(), Duration::from_millis(3), "one read, and no pause before it");
    }
    kept.await.unwrap();
}

/// Frames become available without a write: a slow one is under way when guards are dropped.
#[tokio::test(start_paused = true)]
async fn requests_do_not_queue_behind_a_slow_write_once_guards_are_dropped() {
    let tier = Memory::with_pages(PAGES);
    tier.permits.forget_permits(tokio::sync::Semaphore::MAX_PERMITS);
    let pool = Arc::new(start(&tier).0);
    change(&pool, 0, 1).await;
    let flush = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.flush_all().await }
    });
    let mut guards = Vec::new();
    for no in 1..FRAMES as u32 {
        guards.push(pool.get(page(no)).await.unwrap());
    }
    // The first finds no frame. The others come while it waits, and while one of them does.
    let (first, each) = (FRAMES as u32, 4);
    let tasks: Vec<_> = (0..11)
        .map(|task| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                sleep(Duration::from_millis(u64::from(task))).await;
                let begun = Instant::now();
                for no in 0..each {
                    drop(pool.get(page(first + task * each + no)).await.unwrap());
                }
                begun.elapsed()
            })
        })
        .collect();
    sleep(Duration::from_micros(500)).await;
    drop(guards);
    for task in tasks {
        let took = task.await.unwrap();
        assert!(took <= Duration::from_millis(6 + 3 * u64::from(each)), "one pause and the reads: {took:?}");
    }
    tier.permits.add_permits(100);
    flush.await.unwrap().unwrap();
}

/// The schedule: the tier forgets a page that is being discarded, and another thread asks for the pages in
/// memory before the page has left. The list would outlive the page, and no notification would follow.
#[tokio::test]
async fn a_page_that_the_tier_has_forgotten_is_not_among_the_pages_in_memory() {
    let tier = Memory::with_pages(PAGES);
    let (pool, _) = start(&tier);
    drop(pool.create(page(1)).await.unwrap());
    drop(pool.create(page(2)).await.unwrap());
    let (seen, lists) = std::sync::mpsc::channel();
    let asked = pool.clone();
    *tier.on_discard.lock().unwrap() = Some(Box::new(move || {
        let (asked, seen, (now, answer)) = (asked.clone(), seen.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let pages = asked.with_pages(<[_]>::to_vec);
            let _ = now.send(());
            let _ = seen.send(pages);
        });
        // An answer before the page has left is the fault.
        let _ = answer.recv_timeout(Duration::from_millis(200));
    }));
    pool.discard(page(1)).await.unwrap();
    assert_eq!(lists.recv().unwrap(), [page(2)]);
}

/// After a shutdown the policy must not name a frame that has lost its page.
#[tokio::test(start_paused = true)]
async fn the_policy_forgets_the_pages_of_a_pool_that_retires() {
    let tier = Memory::with_pages(PAGES);
    for fails in [false, true] {
        let (pool, _) = start(&tier);
        for no in 0..8 {
            change(&pool, no, 1).await;
            drop(pool.get(page(20 + no)).await.unwrap());
        }
        pool.validate().unwrap();
        tier.fail_writes.store(fails, Ordering::Relaxed);
        assert_eq!(pool.retire().await.is_err(), fails);
        pool.validate().unwrap();
    }
}
