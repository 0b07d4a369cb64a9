//! A running store on simulated devices, its load, and raw lines over its socket.

use pagetier::{Error, MemoryManifest, PageId, PageSize, PageStore, SpaceId};
use pagetier_control::{Answer, AskError, Client, Control, Request, listen};
use pagetier_devio::SharedDevice;
use pagetier_testing::{SimDevice, SimPower};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub(crate) const PAGES: u32 = 300;
/// The memory budget at first.
pub(crate) const POOL_BYTES: u64 = 271_500;
/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) hdd: Arc<SimDevice>,
    pub(crate) ssd: Arc<SimDevice>,
    pub(crate) store: Arc<PageStore>,
    pub(crate) space: SpaceId,
    /// The memory budget.
    pool_bytes: AtomicU64,
}

impl World {
    /// A store whose pages are in version 1, with some of them on the SSD alone.
    pub(crate) async fn new() -> Self {
        Self::with_latency(Duration::ZERO).await
    }

    /// The same, with devices that take up to `latency`.
    pub(crate) async fn with_latency(latency: Duration) -> Self {
        pagetier_rivals::register();
        let power = SimPower::new();
        let device = |name, seed| Arc::new(SimDevice::new(name, 0, seed, &power).with_latency(latency));
        let (hdd, ssd, ring) = (device("hdd", 1), device("ssd", 2), device("ring", 3));
        let store = PageStore::builder()
            .in_memory(Arc::new(MemoryManifest::default()))
            .hdd(Arc::clone(&hdd) as SharedDevice)
            .ssd(Arc::clone(&ssd) as SharedDevice)
            .ring_device(ring as SharedDevice)
            .page_size(PageSize::MIN)
            .ssd_bytes(160 * 4096)
            .ring_pages(8)
            .exhausted_after(Duration::from_secs(2))
            .pool_bytes(POOL_BYTES)
            .open()
            .await
            .unwrap();
        let space = store.spaces().create("t").await.unwrap();
        for _ in 0..PAGES {
            let mut page = store.allocate(space).await.unwrap();
            page[..4].copy_from_slice(&1_u32.to_le_bytes());
        }
        store.sync().await.unwrap();
        assert!(store.stats().ssd.dirty_pages > 20);
        Self {
            dir: tempfile::tempdir().unwrap(),
            hdd,
            ssd,
            store: Arc::new(store),
            space,
            pool_bytes: POOL_BYTES.into(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn listen(&self) -> Control {
        listen(&self.store, self.dir()).await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.dir()).await.unwrap().unwrap()
    }

    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, AskError> {
        let mut client = self.client().await;
        let answer = timeout(LONG, client.ask(&request, |_| ())).await.unwrap();
        if let (Request::ResizePool { bytes }, Ok(_)) = (request, &answer) {
            self.pool_bytes.store(bytes, Ordering::Relaxed);
        }
        answer
    }

    /// A request that must be done completely, within the memory budget.
    pub(crate) async fn done(&self, request: Request) -> Answer {
        let what = format!("{request:?}");
        let answer = self.ask(request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(answer.complete && answer.text.ends_with('\n'), "{what}: {answer:?}");
        let (used, budget) = (self.store.stats().memory_bytes(), self.pool_bytes.load(Ordering::Relaxed));
        assert!(used <= budget, "{what}: {used} bytes of {budget}");
        answer
    }

    /// A request that must be refused; returns why.
    pub(crate) async fn refused(&self, request: Request) -> String {
        let what = format!("{request:?}");
        match self.ask(request).await {
            Err(AskError::Refused(why)) => why.error,
            other => panic!("{what}: {other:?}"),
        }
    }

    /// The version of a page.
    pub(crate) async fn version(&self, no: u32) -> Result<u32, Error> {
        let page = self.store.get(PageId::new(self.space, no)).await?;
        Ok(u32::from_le_bytes(page[..4].try_into().unwrap()))
    }

    /// Checks that every page has at least the version that `at_least` names.
    pub(crate) async fn has(&self, at_least: impl Fn(u32) -> u32) {
        for no in 0..PAGES {
            let version = self.version(no).await.unwrap();
            assert!(version >= at_least(no), "page {no}: {version} < {}", at_least(no));
        }
        self.store.validate().unwrap();
    }
}

/// Writes and reads pages until it is ended.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    versions: Arc<Vec<AtomicU32>>,
    task: JoinHandle<u64>,
}

impl Load {
    pub(crate) fn on(world: &World) -> Self {
        let (stop, versions) = (Arc::new(AtomicBool::new(false)), (0..PAGES).map(|_| AtomicU32::new(1)));
        let versions: Arc<Vec<AtomicU32>> = Arc::new(versions.collect());
        let (stopped, store, space) = (Arc::clone(&stop), Arc::clone(&world.store), world.space);
        let written = Arc::clone(&versions);
        let task = tokio::spawn(async move {
            let mut changes = 0;
            for version in 2_u32.. {
                for step in 0..PAGES {
                    if stopped.load(Ordering::Relaxed) {
                        return changes;
                    }
                    let no = step * 37 % PAGES;
                    // While an SSD is gone, some pages cannot be read, and no frame may be free.
                    let Ok(mut page) = store.get_mut(PageId::new(space, no)).await else { continue };
                    page[..4].copy_from_slice(&version.to_le_bytes());
                    written[no as usize].store(version, Ordering::Relaxed);
                    changes += 1;
                    drop(page);
                    if step % 16 == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
                let _ = store.sync().await;
            }
            changes
        });
        Self { stop, versions, task }
    }

    /// Ends it, and returns the version of each page.
    pub(crate) async fn end(self) -> Vec<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let changes = timeout(LONG, self.task).await.unwrap().unwrap();
        assert!(changes > 0, "the load did nothing");
        self.versions.iter().map(|version| version.load(Ordering::Relaxed)).collect()
    }
}

/// A client that sends what it likes.
pub(crate) struct Raw(BufReader<UnixStream>);

impl Raw {
    pub(crate) async fn connect(world: &World) -> Self {
        Self(BufReader::new(UnixStream::connect(world.dir().join("control")).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn half_close(&mut self) {
        self.0.get_mut().shutdown().await.unwrap();
    }

    /// The next line; empty at the end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        // A connection that is closed with bytes unread ends in an error.
        let _ = timeout(LONG, self.0.read_line(&mut line)).await.unwrap();
        line
    }

    /// The next line that is no progress.
    pub(crate) async fn reply(&mut self) -> String {
        loop {
            let line = self.line().await;
            if !line.starts_with("{\"progress\"") {
                return line;
            }
        }
    }
}
