//! The pool's notifications to its policy, and how soon a returned frame is reused.

use pagetier_bufpool::{
    DirtyPage, Displaced, Fetched, Pool, PoolError, PoolParams, Tier, TierError, WrittenPage,
};
use pagetier_devio::task::Boxed;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoClass, IoOp};
use pagetier_page::{Flags, Header, Lsn, PageId, PageSize, SpaceId, Stamp};
use pagetier_policy::rivals::pool::Casa;
use pagetier_policy::{Access, CleanReason, Costs, FrameId, FramePolicy, Location};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FRAMES: usize = 16;
/// A page whose reads fail.
const BAD: u32 = 99;

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Pages of zeroes; reads and writes take 3 ms.
#[derive(Default)]
struct Zeroes {
    /// Whether a change invalidates a copy on the SSD.
    has_copies: AtomicBool,
    classes: Mutex<Vec<IoClass>>,
    /// Called after a discard has taken effect.
    on_discard: Mutex<Option<Box<dyn Fn() + Send>>>,
}

fn failed(page: PageId, op: IoOp) -> TierError {
    let kind = DeviceErrorKind::Io(Arc::new(std::io::Error::other("injected")));
    let source = DeviceError { device: Arc::from("zeroes"), op, offset: 0, len: 4096, kind };
    TierError::Device { page, source }
}

impl Tier for Zeroes {
    fn fetch(&self, page: PageId, _: Access, mut buf: IoBuf) -> Boxed<'_, Fetched> {
        Box::pin(async move {
            sleep(Duration::from_millis(3)).await;
            if page.no == BAD {
                return Fetched { buf, result: Err(failed(page, IoOp::Read)) };
            }
            buf.as_mut_slice().fill(0);
            Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(buf.as_mut_slice());
            Fetched { buf, result: Ok(Location::Hdd) }
        })
    }

    fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>> {
        Box::pin(async move {
            let mut fetched = Vec::new();
            for (no, buf) in (first.no..).zip(bufs) {
                fetched.push(self.fetch(page(no), Access::Sequential, buf).await);
            }
            fetched
        })
    }

    fn write<'a>(
        &'a self,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &'a (dyn Fn(WrittenPage) + Send + Sync),
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            self.classes.lock().unwrap().push(class);
            sleep(Duration::from_millis(3)).await;
            for DirtyPage { page, image, .. } in batch {
                done(WrittenPage { page, result: Ok(Location::Hdd), displaced: Displaced(None), image });
            }
        })
    }

    fn flush(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move { Ok(()) })
    }

    fn evicted(&self, _: PageId, _: u32, _: &[u8]) -> Displaced {
        Displaced(None)
    }

    fn dirtied(&self, _: PageId, _: u32) -> bool {
        self.has_copies.load(Ordering::Relaxed)
    }

    fn allocated(&self, _: PageId) {}

    fn discarded(&self, _: PageId) -> bool {
        if let Some(call) = &*self.on_discard.lock().unwrap() {
            call();
        }
        true
    }
}

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
    fn insert(&mut self, frame: FrameId, page: PageId, home: Location, access: Access) {
        self.casa.insert(frame, page, home, access);
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

    fn cleaned(&mut self, frame: FrameId, home: Location, reason: CleanReason) {
        self.casa.cleaned(frame, home, reason);
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

    fn len(&self) -> usize {
        self.casa.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.casa.validate()
    }
}

fn start(tier: &Arc<Zeroes>) -> (Pool<Zeroes>, Notes) {
    let notes = Notes::default();
    let policy = Box::new(Recording { casa: Casa::new(FRAMES, Costs::PAPER), notes: Arc::clone(&notes) });
    // Prevent unrequested writes.
    let params = PoolParams { clean_depth: 0, read_ahead_pages: 0, ..PoolParams::new(FRAMES, PageSize::MIN) };
    (Pool::start(params, policy, Arc::clone(tier), None).unwrap(), notes)
}

async fn change(pool: &Pool<Zeroes>, no: u32, value: u8) {
    pool.get_mut(page(no)).await.unwrap()[4] = value;
}

#[tokio::test(start_paused = true)]
async fn a_page_changed_while_it_is_written_is_reported_dirty_again() {
    let tier = Arc::default();
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
        let tier = Arc::new(Zeroes { has_copies: has_copies.into(), ..Zeroes::default() });
        let (pool, notes) = start(&tier);
        change(&pool, 1, 1).await;
        let events = notes.lock().unwrap().clone();
        assert_eq!(events, [Event::Dirtied, Event::Invalidated][..1 + usize::from(has_copies)]);
    }
}

#[tokio::test(start_paused = true)]
async fn new_costs_reach_the_policy() {
    let tier = Arc::default();
    let (pool, notes) = start(&tier);
    let costs = Costs { hdd_read_ms: 5.5, ..Costs::PAPER };
    pool.set_costs(costs);
    assert_eq!(*notes.lock().unwrap(), [Event::Costs(costs)]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_urgent_only_when_staging_buffers_run_out() {
    let tier = Arc::default();
    let (pool, _) = start(&tier);
    change(&pool, 1, 1).await;
    pool.flush_all().await.unwrap();
    assert_eq!(*tier.classes.lock().unwrap(), [IoClass::Clean]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_gets_the_frame_of_a_failed_load_at_once() {
    let tier = Arc::default();
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

/// The schedule: the tier forgets a page that is being discarded, and another thread asks for the pages in
/// memory before the page has left. The list would outlive the page, and no notification would follow.
#[tokio::test]
async fn a_page_that_the_tier_has_forgotten_is_not_among_the_pages_in_memory() {
    let tier = Arc::default();
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
