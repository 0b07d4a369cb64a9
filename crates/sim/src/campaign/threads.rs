//! A store with a log on several threads, in real time: readers and writers of single pages and of many,
//! with borrowed and owned guards, calls dropped half-way, commits, checkpoints. A page's version is noted
//! under its exclusive latch, so each holder of a latch on the page must find exactly that version. A wait
//! that does not end is a violation. Every second seed makes its calls by threads that they block.

use super::contract::content::{fill, version_in};
use super::draw::plan::Plan;
use super::log::{open_shared, open_shared_blocking};
use super::polls::up_to;
use super::report::violation::{Violation, judged};
use super::{Hazard, Totals};
use pagetier::{Error, PageId, PageMut, PageRef, PageStore, SpaceId};
use pagetier_wal::{CheckpointError, LoggedStore, MiniTx, Wal, WalError, blocking};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Pages of the store: more than fit into memory.
const PAGES: usize = 120;

/// The operations of a task.
const OPS: u32 = 1500;

/// How long an operation may take: far longer than any does, on a machine however busy.
const ENDS: Duration = Duration::from_secs(120);

/// Runs the scenario of a seed with two to four threads and more tasks.
///
/// # Errors
/// The first [`Violation`].
pub fn run_threads(seed: u64, totals: &mut Totals) -> Result<(), Violation> {
    totals.seeds += 1;
    let plan = Plan { frames: 90, pages: 0, ..Plan::directed(seed, Hazard::Log) };
    judged(&plan, "on several threads".to_owned(), totals, |_, totals| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x7472);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(rng.random_range(2..=4))
            .enable_time()
            .build()
            .map_err(|error| error.to_string())?;
        totals.lives += 2;
        let checked = runtime.block_on(run(&plan, rng))?;
        totals.pages_checked += checked;
        Ok(())
    })
}

/// The store, by calls of tasks, or by calls that block the threads that make them.
enum Db {
    Tasks(LoggedStore),
    Threads(blocking::LoggedStore),
}

/// What the tasks share.
struct Shared {
    db: Db,
    space: SpaceId,
    /// The version of each page, which changes under its exclusive latch alone.
    versions: Vec<AtomicU32>,
    last: AtomicU32,
    checked: AtomicU64,
}

async fn run(plan: &Plan, mut rng: SmallRng) -> Result<u64, String> {
    let media = super::log::SharedMedia::blank(plan);
    let db = match plan.seed % 2 {
        0 => Db::Tasks(open_shared(plan, &media).await?),
        _ => Db::Threads(open_shared_blocking(plan, &media).await?),
    };
    let created = db.wait_for(db.store().spaces().create("t")).await;
    let space = created.map_err(|error| error.to_string())?;
    let versions = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let shared =
        Arc::new(Shared { db, space, versions, last: AtomicU32::new(0), checked: AtomicU64::new(0) });
    for no in 0..PAGES as u32 {
        let page = PageId::new(space, no);
        shared.admit().await?;
        let guard = shared.db.wait_for(shared.db.store().get_or_create(page)).await;
        shared.commit(vec![guard.map_err(|error| error.to_string())?]).await?;
    }
    let work = (0..rng.random_range(4..=12)).map(|_| SmallRng::seed_from_u64(rng.random()));
    match &shared.db {
        Db::Tasks(_) => by_tasks(&shared, work.collect()).await?,
        Db::Threads(_) => by_threads(&shared, work.collect())?,
    }
    shared.db.store().validate()?;
    let shared = Arc::try_unwrap(shared).map_err(|_| "a task still holds the store".to_owned())?;
    let Shared { db, versions, checked, .. } = shared;
    // A drop ends nothing at once: the next open would meet the locks of operations in flight.
    let left = db.store().wait_closed();
    if rng.random_bool(0.5) {
        ends("shutdown", db.shutdown()).await?.map_err(|error| format!("shutdown: {error}"))?;
    } else {
        drop(db);
        ends("the store's leaving", left).await?;
    }
    // After either end every commit must be there: those that a drop left in memory alone are in the log.
    let db = open_shared(plan, &media).await?;
    for (no, version) in versions.iter().enumerate() {
        let page = PageId::new(space, no as u32);
        let guard = db.get(page).await.map_err(|error| error.to_string())?;
        let (found, noted) = (version_in(&guard, page)?, version.load(Ordering::Relaxed));
        if found != noted {
            return Err(format!("reopened: page {page} reads as version {found}, committed is {noted}"));
        }
    }
    Ok(checked.into_inner() + PAGES as u64)
}

async fn by_tasks(shared: &Arc<Shared>, work: Vec<SmallRng>) -> Result<(), String> {
    let mut tasks = tokio::task::JoinSet::new();
    for rng in work {
        let shared = Arc::clone(shared);
        tasks.spawn(async move { shared.work(rng).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| format!("a task panicked: {error}"))??;
    }
    Ok(())
}

fn by_threads(shared: &Arc<Shared>, work: Vec<SmallRng>) -> Result<(), String> {
    let (done, ended) = mpsc::channel();
    let threads = work.len();
    for rng in work {
        let (shared, done) = (Arc::clone(shared), done.clone());
        std::thread::spawn(move || {
            // The store's calls block this thread and need no runtime. The time limits around them do.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let outcome = match runtime {
                Ok(runtime) => runtime.block_on(shared.work(rng)),
                Err(error) => Err(error.to_string()),
            };
            // Before the result is sent: once all results are there, the receiver needs the only
            // reference.
            drop(shared);
            let _ = done.send(outcome);
        });
    }
    // A call that blocks its thread has no time limit of its own.
    (0..threads).try_for_each(|_| match ended.recv_timeout(ENDS) {
        Ok(outcome) => outcome,
        Err(_) => Err("a thread panicked, or its call does not end".to_owned()),
    })
}

impl Db {
    fn store(&self) -> &Arc<PageStore> {
        match self {
            Self::Tasks(db) => db.store(),
            Self::Threads(db) => db.store(),
        }
    }

    fn wal(&self) -> &Wal {
        match self {
            Self::Tasks(db) => db.wal(),
            Self::Threads(db) => db.wal(),
        }
    }

    /// Waits for a call of the asynchronous store.
    async fn wait_for<T: Send>(&self, call: impl Future<Output = T> + Send) -> T {
        match self {
            Self::Tasks(_) => call.await,
            Self::Threads(db) => db.block_on(call),
        }
    }

    async fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        match self {
            Self::Tasks(db) => db.get(page).await,
            Self::Threads(db) => db.get(page),
        }
    }

    async fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        match self {
            Self::Tasks(db) => db.get_mut(page).await,
            Self::Threads(db) => db.get_mut(page),
        }
    }

    async fn admit(&self) -> Result<(), WalError> {
        match self {
            Self::Tasks(db) => LoggedStore::admit(db, ENDS).await,
            Self::Threads(db) => db.admit(ENDS),
        }
    }

    async fn commit(&self, change: MiniTx<'_, PageMut<'_>>) -> Result<(), WalError> {
        match self {
            Self::Tasks(db) => LoggedStore::commit(db, change).await,
            Self::Threads(db) => db.commit(change),
        }
        .map(drop)
    }

    async fn checkpoint(&self) -> Result<(), CheckpointError> {
        match self {
            Self::Tasks(db) => LoggedStore::checkpoint(db).await,
            Self::Threads(db) => db.checkpoint(),
        }
    }

    async fn shutdown(&self) -> Result<(), CheckpointError> {
        match self {
            Self::Tasks(db) => LoggedStore::shutdown(db).await,
            Self::Threads(db) => db.shutdown(),
        }
    }
}

/// Waits for a call, which must end.
async fn ends<T>(what: &str, call: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(ENDS, call).await.map_err(|_| format!("{what} does not end"))
}

impl Shared {
    async fn work(&self, mut rng: SmallRng) -> Result<(), String> {
        for _ in 0..OPS {
            let what = rng.random_range(0..100);
            let one = PageId::new(self.space, rng.random_range(0..PAGES as u32));
            match what {
                0..30 => {
                    let guard = ends("get", self.db.get(one)).await?;
                    self.check(one, &guard.map_err(|error| error.to_string())?)?;
                }
                30..40 => {
                    let guard = ends("get", self.db.wait_for(self.db.store().get(one))).await?;
                    let guard = guard.map(|page| page.into_owned(self.db.store()));
                    self.check(one, &guard.map_err(|error| error.to_string())?)?;
                }
                40..60 => self.read_many(&mut rng).await?,
                60..64 => {
                    if let Some(guard) = self.db.store().try_get(one) {
                        self.check(one, &guard)?;
                    }
                }
                64..74 => {
                    // A dropped request must leave the queue of the latch: otherwise those behind it wait
                    // without end.
                    let polls = rng.random_range(1..6);
                    let guard = ends("a dropped get_mut", up_to(polls, self.db.get_mut(one))).await?;
                    if let Some(guard) = guard {
                        self.check(one, &guard.map_err(|error| error.to_string())?)?;
                    }
                }
                74..98 => self.change(&mut rng).await?,
                98 => {
                    let done = ends("checkpoint", self.db.checkpoint()).await?;
                    done.map_err(|error| error.to_string())?;
                }
                _ => {
                    ends("sync", self.db.wait_for(self.db.store().sync()))
                        .await?
                        .map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Reads some pages at once, in any order, perhaps one twice.
    async fn read_many(&self, rng: &mut SmallRng) -> Result<(), String> {
        let count = rng.random_range(2..=6);
        let some = |_| PageId::new(self.space, rng.random_range(0..PAGES as u32));
        let pages: Vec<PageId> = (0..count).map(some).collect();
        match ends("get_many", self.db.wait_for(self.db.store().get_many(&pages))).await? {
            Ok(guards) => guards.iter().zip(&pages).try_for_each(|(guard, page)| self.check(*page, guard)),
            // More pages than frames that are not pinned.
            Err(Error::Pool(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Changes one to three pages by a record.
    async fn change(&self, rng: &mut SmallRng) -> Result<(), String> {
        let mut nos: Vec<u32> =
            (0..rng.random_range(1..=3)).map(|_| rng.random_range(0..PAGES as u32)).collect();
        // Ascending: two tasks that latch the same pages in other orders would wait for each other.
        nos.sort_unstable();
        nos.dedup();
        // Before the latches: the checkpoint that makes space in the log writes those pages.
        self.admit().await?;
        let mut guards = Vec::new();
        for no in nos {
            let guard = ends("get_mut", self.db.get_mut(PageId::new(self.space, no))).await?;
            guards.push(guard.map_err(|error| error.to_string())?);
        }
        self.commit(guards).await
    }

    /// Waits until the log has room for a change, which may be all that its device has.
    async fn admit(&self) -> Result<(), String> {
        ends("admit", self.db.admit()).await?.map_err(|error| format!("admit: {error}"))
    }

    async fn commit(&self, guards: Vec<PageMut<'_>>) -> Result<(), String> {
        // Versions only have to differ: the latches order those of one page.
        let version = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut change = MiniTx::new(Some(self.db.wal()));
        for guard in guards {
            self.check(guard.id(), &guard)?;
            let at = change.add(guard);
            let page = change.id(at);
            let mut bytes = vec![0; change.payload(at).len()];
            fill(&mut bytes, page, version);
            change.write(at, 0, &bytes);
            // Under the latch, which goes with the commit: the next holder finds page and note changed
            // together.
            self.versions[page.no as usize].store(version, Ordering::Release);
        }
        ends("commit", self.db.commit(change)).await?.map_err(|error| format!("commit: {error}"))
    }

    /// Compares a page under a latch with its version.
    fn check(&self, page: PageId, bytes: &[u8]) -> Result<(), String> {
        self.checked.fetch_add(1, Ordering::Relaxed);
        let (found, noted) =
            (version_in(bytes, page)?, self.versions[page.no as usize].load(Ordering::Acquire));
        if found == noted {
            Ok(())
        } else {
            Err(format!("page {page} reads as {found}, committed is {noted}"))
        }
    }
}
