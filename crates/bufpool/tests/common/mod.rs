//! The storage below the pool in these tests: pages in memory, with delays, faults and checks.

use pagetier_bufpool::{
    DirtyPage, Displaced, Fetched, GateFuture, LogGate, Pool, PoolParams, Tier, TierError, WrittenPage,
};
use pagetier_devio::task::Boxed;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoClass, IoOp};
use pagetier_page::{Flags, HEADER_BYTES, Header, Lsn, PageId, PageSize, SpaceId, Stamp};
use pagetier_policy::{Access, Costs, FramePolicyParams, Location, PoolPolicy};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

pub(crate) const PAGE: usize = 4096;
pub(crate) const SPACE: SpaceId = SpaceId(1);

pub(crate) fn page(no: u32) -> PageId {
    PageId::new(SPACE, no)
}

/// Pages in a map; reads and writes take some of tokio's time. Reads go on in tasks of their own, with the
/// buffer, when their caller is dropped.
pub(crate) struct Memory {
    pub(crate) pages: Arc<Mutex<HashMap<PageId, Vec<u8>>>>,
    /// The pages that are being read: each only once at a time.
    in_fetch: Arc<Mutex<HashSet<PageId>>>,
    pub(crate) fetches: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) fail_reads: AtomicBool,
    pub(crate) fail_writes: AtomicBool,
    pub(crate) panic_on_write: AtomicBool,
    /// Writes need a permit, except those of `quick` pages.
    pub(crate) permits: Semaphore,
    /// Pages that an SSD would hold: if there are any, the others go home.
    pub(crate) quick: Mutex<HashSet<PageId>>,
    pub(crate) read_takes: Duration,
    /// The time of each page of a write.
    pub(crate) write_takes: Duration,
    /// What the log of [`Memory::gate`] has made durable; `None` without one.
    log_durable: Mutex<Option<Lsn>>,
    /// Whether a change invalidates a copy on the SSD.
    pub(crate) has_copies: AtomicBool,
    /// Pages that became dirty, with the logical reads reported at that moment.
    pub(crate) dirtied: Mutex<Vec<(PageId, u32)>>,
    /// The batches being written, and the most at once.
    batches: AtomicUsize,
    pub(crate) batches_max: AtomicUsize,
    /// The class of each write.
    pub(crate) classes: Mutex<Vec<IoClass>>,
    /// Called after a discard has taken effect.
    pub(crate) on_discard: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            pages: Arc::default(),
            in_fetch: Arc::default(),
            fetches: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            panic_on_write: AtomicBool::new(false),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            quick: Mutex::default(),
            read_takes: Duration::from_millis(3),
            write_takes: Duration::from_millis(2),
            log_durable: Mutex::default(),
            has_copies: AtomicBool::new(false),
            dirtied: Mutex::default(),
            batches: AtomicUsize::new(0),
            batches_max: AtomicUsize::new(0),
            classes: Mutex::default(),
            on_discard: Mutex::default(),
        }
    }
}

impl Memory {
    /// Pages whose payload begins with their number, followed by their version, 0.
    pub(crate) fn with_pages(count: u32) -> Arc<Self> {
        let memory = Self::default();
        memory.add_pages(SPACE, count);
        Arc::new(memory)
    }

    /// Pages of zeroes, written quickly.
    pub(crate) fn zeroed(count: u32) -> Self {
        let memory = Self { write_takes: Duration::from_micros(50), ..Self::default() };
        memory.add_pages(SPACE, count);
        memory.pages.lock().unwrap().values_mut().for_each(|image| image[HEADER_BYTES..].fill(0));
        memory
    }

    pub(crate) fn add_pages(&self, space: SpaceId, count: u32) {
        for no in 0..count {
            let (page, mut image) = (PageId::new(space, no), vec![0; PAGE]);
            Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(&mut image);
            image[HEADER_BYTES..][..4].copy_from_slice(&no.to_le_bytes());
            self.pages.lock().unwrap().insert(page, image);
        }
    }

    /// The first word of the page's payload.
    pub(crate) fn first(&self, no: u32) -> u32 {
        word(&self.pages.lock().unwrap()[&page(no)][HEADER_BYTES..])
    }

    /// The second word: the version, by the convention of these tests.
    pub(crate) fn version(&self, no: u32) -> u32 {
        self.version_of(page(no))
    }

    pub(crate) fn version_of(&self, page: PageId) -> u32 {
        word(&self.pages.lock().unwrap()[&page][HEADER_BYTES + 4..])
    }

    /// The log of these pages. With it, every write checks that the log is durable up to its page.
    pub(crate) fn gate(self: &Arc<Self>) -> Arc<dyn LogGate> {
        self.log_durable.lock().unwrap().get_or_insert_default();
        Arc::new(Gate(Arc::clone(self)))
    }

    pub(crate) fn log_durable(&self) -> Option<Lsn> {
        *self.log_durable.lock().unwrap()
    }
}

pub(crate) fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

fn failed(page: PageId, op: IoOp) -> TierError {
    let kind = DeviceErrorKind::Io(Arc::new(std::io::Error::other("injected")));
    let source = DeviceError { device: Arc::from("memory"), op, offset: 0, len: PAGE as u64, kind };
    TierError::Device { page, source }
}

impl Tier for Memory {
    fn fetch(&self, page: PageId, _: Access, mut buf: IoBuf) -> Boxed<'_, Fetched> {
        Box::pin(async move {
            self.fetches.fetch_add(1, Ordering::Relaxed);
            assert!(self.in_fetch.lock().unwrap().insert(page), "{page} is read twice at once");
            let (pages, in_fetch) = (Arc::clone(&self.pages), Arc::clone(&self.in_fetch));
            let (takes, fails) = (self.read_takes, self.fail_reads.load(Ordering::Relaxed));
            let reading = tokio::spawn(async move {
                // Like a device: the first half arrives long before the rest.
                let image = pages.lock().unwrap().get(&page).cloned();
                if let Some(image) = &image {
                    buf.as_mut_slice()[..PAGE / 2].copy_from_slice(&image[..PAGE / 2]);
                }
                tokio::time::sleep(takes).await;
                if let Some(image) = &image {
                    buf.as_mut_slice()[PAGE / 2..].copy_from_slice(&image[PAGE / 2..]);
                }
                in_fetch.lock().unwrap().remove(&page);
                let found = image.map(|_| Location::Hdd).ok_or(TierError::NoSuchPage { page });
                Fetched { buf, result: if fails { Err(failed(page, IoOp::Read)) } else { found } }
            });
            reading.await.unwrap()
        })
    }

    fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>> {
        Box::pin(async move {
            let mut fetched = Vec::new();
            for (no, buf) in (first.no..).zip(bufs) {
                fetched.push(self.fetch(PageId::new(first.space, no), Access::Sequential, buf).await);
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
            assert!(!self.panic_on_write.load(Ordering::Relaxed), "injected");
            self.classes.lock().unwrap().push(class);
            let batches = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
            self.batches_max.fetch_max(batches, Ordering::Relaxed);
            let is_quick = |page: &PageId| self.quick.lock().unwrap().contains(page);
            let (quick, slow): (Vec<_>, Vec<_>) = batch.into_iter().partition(|dirty| is_quick(&dirty.page));
            for DirtyPage { page, image, .. } in quick.into_iter().chain(slow) {
                if !is_quick(&page) {
                    self.permits.acquire().await.unwrap().forget();
                }
                tokio::time::sleep(self.write_takes).await;
                let header = Header::peek(image.as_slice());
                assert_eq!(header.page, page);
                assert!(self.log_durable().is_none_or(|lsn| header.lsn <= lsn), "written before its log");
                let result = if self.fail_writes.load(Ordering::Relaxed) {
                    Err(failed(page, IoOp::Write))
                } else {
                    self.pages.lock().unwrap().insert(page, image.as_slice().to_vec());
                    self.writes.fetch_add(1, Ordering::Relaxed);
                    Ok(Location::Hdd)
                };
                done(WrittenPage { page, result, displaced: Displaced(None), image });
            }
            self.batches.fetch_sub(1, Ordering::Relaxed);
        })
    }

    fn goes_home(&self, page: PageId) -> bool {
        let quick = self.quick.lock().unwrap();
        !quick.is_empty() && !quick.contains(&page)
    }

    fn flush(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move { Ok(()) })
    }

    fn evicted(&self, page: PageId, _: u32, image: &[u8]) -> Displaced {
        let pages = self.pages.lock().unwrap();
        let below = pages.get(&page).map(|below| &below[HEADER_BYTES..]);
        assert_eq!(below, Some(&image[HEADER_BYTES..]), "a changed page was evicted unwritten");
        Displaced(None)
    }

    fn dirtied(&self, page: PageId, logical: u32) -> bool {
        self.dirtied.lock().unwrap().push((page, logical));
        self.has_copies.load(Ordering::Relaxed)
    }

    fn allocated(&self, _: PageId) {}

    fn discarded(&self, _: PageId) -> bool {
        self.discards.fetch_add(1, Ordering::Relaxed);
        if let Some(call) = &*self.on_discard.lock().unwrap() {
            call();
        }
        true
    }
}

/// A log that becomes durable on request.
struct Gate(Arc<Memory>);

impl LogGate for Gate {
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut durable = self.0.log_durable.lock().unwrap();
            *durable = (*durable).max(Some(lsn));
            Ok(())
        })
    }
}

/// A pool over `memory` and its log, without read-ahead.
pub(crate) fn pool(memory: &Arc<Memory>, policy: &str, frames: usize) -> Pool<Memory> {
    pool_ahead(memory, policy, frames, 0)
}

/// The same, with `ahead` pages per read-ahead.
pub(crate) fn pool_ahead(memory: &Arc<Memory>, policy: &str, frames: usize, ahead: usize) -> Pool<Memory> {
    pagetier_rivals::register();
    let params = PoolParams { read_ahead_pages: ahead, ..PoolParams::new(frames, PageSize::MIN) };
    let policy = policy.parse::<PoolPolicy>().unwrap().build(&FramePolicyParams::new(frames, Costs::PAPER));
    Pool::start(params, policy, Arc::clone(memory), Some(memory.gate())).unwrap()
}
