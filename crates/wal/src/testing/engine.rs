//! Random histories of an engine on a simulated store and log, against a model: nothing acknowledged is lost,
//! nothing unlogged appears, and what a record frees is free after every crash, until it is allocated again.
//! Some have an archive, which fails, too, and a backup; at their end the store is restored to a moment.
//! `PAGETIER_WAL_CASES=1000 cargo test --release -p pagetier-wal --lib engine` tries more.

use super::builder;
use super::shelf::Shelf;
use super::sim::{SimMedia, WAYS};
use crate::{CheckpointError, Keep, LoggedStore, MiniTx, RecoverError, Wal, WalError, WalOptions};
use pagetier::{Builder, Error, Loss, MemoryManifest, PageId, PageMut, SpaceId};
use pagetier_testing::{SimDevice, SimPower};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;
pub(super) const SPACE: &str = "t";

/// A step of an engine's history.
#[derive(Clone, Debug)]
enum Step {
    /// Changes up to three pages in one record.
    Change {
        pages: [u8; 3],
        at: u16,
    },
    /// Allocates a page; `zero`: formats it in the record.
    Allocate {
        zero: bool,
    },
    /// Changes up to three pages in one record, keeps them, and changes them by another one, or takes
    /// that back.
    Keep {
        pages: [u8; 3],
        commits: bool,
    },
    /// Frees a page in a record that changes another one, or the page itself.
    Free {
        page: u8,
        itself: bool,
    },
    Commit,
    Sync,
    Checkpoint,
    FreePending,
    /// The log's operation of this number fails.
    Fault {
        n: u8,
        way: usize,
    },
    Crash {
        kill: bool,
    },
    /// A crash, after which the SSD is gone.
    LoseSsd,
    Close,
    ArchiveNow,
    /// The archive's file system fails at its call of this number.
    ArchiveFault {
        n: u8,
        torn: bool,
    },
    ArchiveFull(bool),
    BackUp,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<[u8; 3]>(), 0..3_000_u16).prop_map(|(pages, at)| Step::Change { pages, at }),
        3 => (any::<[u8; 3]>(), any::<bool>()).prop_map(|(pages, commits)| Step::Keep { pages, commits }),
        6 => any::<bool>().prop_map(|zero| Step::Allocate { zero }),
        5 => (any::<u8>(), any::<bool>()).prop_map(|(page, itself)| Step::Free { page, itself }),
        5 => Just(Step::Commit),
        1 => Just(Step::Sync),
        3 => Just(Step::Checkpoint),
        2 => Just(Step::FreePending),
        1 => (0..6_u8, 0..WAYS.len()).prop_map(|(n, way)| Step::Fault { n, way }),
        2 => any::<bool>().prop_map(|kill| Step::Crash { kill }),
        1 => Just(Step::LoseSsd),
        1 => Just(Step::Close),
        1 => Just(Step::ArchiveNow),
        1 => (0..9_u8, any::<bool>()).prop_map(|(n, torn)| Step::ArchiveFault { n, torn }),
        1 => any::<bool>().prop_map(Step::ArchiveFull),
        1 => Just(Step::BackUp),
    ]
}

/// What a record does to a page: its new contents, or that it is free.
type Effect = (PageId, Option<Vec<u8>>);

pub(super) struct Engine {
    power: SimPower,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    ring: Arc<SimDevice>,
    manifest: Arc<MemoryManifest>,
    pub(super) log: SimMedia,
    keep: Keep,
    seed: u64,
    /// The records by LSN, and what they do.
    records: Vec<(u64, Vec<Effect>)>,
    acknowledged: u64,
    /// The pages as the records leave them.
    pages: BTreeMap<PageId, Option<Vec<u8>>>,
    counter: u64,
    shelf: Option<Shelf>,
}

impl Engine {
    pub(super) fn new(keep: Keep) -> Self {
        let power = SimPower::new();
        let device = |name| Arc::new(SimDevice::new(name, 0, 1, &power));
        Self {
            hdd: device("hdd"),
            ssd: device("ssd"),
            ring: device("ring"),
            power: power.clone(),
            manifest: Arc::default(),
            log: SimMedia::new(1),
            keep,
            seed: 1,
            records: Vec::new(),
            acknowledged: 0,
            pages: BTreeMap::new(),
            counter: 0,
            shelf: None,
        }
    }

    pub(super) fn builder(&self) -> Builder {
        builder(&self.manifest, [&self.hdd, &self.ssd, &self.ring]).pool_bytes(48 * PAGE)
    }

    pub(super) async fn open(&self, builder: Builder) -> Result<LoggedStore, RecoverError> {
        let options = WalOptions::new().capacity_bytes(96 << 10).keep(self.keep);
        let wal = Wal::on(Box::new(self.log.clone()), options)?;
        self.shelf.as_ref().map_or(Ok(()), |shelf| shelf.archive(&wal))?;
        LoggedStore::on(builder, wal).await
    }

    /// A new store without checkpoints in the background.
    pub(super) async fn open_alone(&self) -> LoggedStore {
        let db = self.open(self.builder()).await.unwrap();
        db.checkpoints.end();
        db.spaces().create(SPACE).await.unwrap();
        db
    }

    /// Restarts on what a crash at this moment leaves of the devices.
    pub(super) fn restart(&mut self, kill: bool) {
        self.seed += 10;
        let (power, seed) = (SimPower::new(), self.seed);
        for (n, device) in [&mut self.hdd, &mut self.ssd, &mut self.ring].into_iter().enumerate() {
            let seed = seed + n as u64;
            let left =
                if kill { device.after_kill(seed, &power) } else { device.after_power_cut(seed, &power) };
            *device = Arc::new(left);
        }
        self.log = if kill { self.log.after_kill(seed) } else { self.log.after_power_cut(seed) };
        self.power = power;
        if let Some(shelf) = &mut self.shelf {
            shelf.restart(kill, seed);
        }
    }

    /// Ends the store as a crash does, and waits until its operations have ended.
    pub(super) async fn crash(&mut self, db: LoggedStore, kill: bool) {
        let closed = db.store().wait_closed();
        if !kill {
            self.power.cut_now();
            self.log.cut();
            self.shelf.iter().for_each(Shelf::cut);
        }
        drop(db);
        closed.await;
        self.restart(kill);
    }

    fn live(&self) -> Vec<PageId> {
        self.pages.iter().filter(|(_, contents)| contents.is_some()).map(|(page, _)| *page).collect()
    }

    fn recorded(&mut self, lsn: u64, effects: Vec<Effect>) {
        self.pages.extend(effects.iter().cloned());
        self.records.push((lsn, effects));
    }

    /// Writes new words to a page of a mini-transaction, every other time as a whole image; returns the
    /// effect. A history's log has several segments.
    fn words(&mut self, change: &mut MiniTx<'_>, page: usize, at: usize) -> Effect {
        self.counter += 1;
        let words = self.counter.to_le_bytes().repeat(120);
        if self.counter.is_multiple_of(2) {
            change.write(page, at, &words);
        } else {
            let mut image = change.payload(page).to_vec();
            image[at..at + words.len()].copy_from_slice(&words);
            change.replace(page, &image);
        }
        (change.id(page), Some(change.payload(page).to_vec()))
    }

    /// Latches pages for a change.
    async fn latched<'d>(&self, db: &'d LoggedStore, pages: [u8; 3]) -> Option<(MiniTx<'d>, usize)> {
        let live = self.live();
        let mut chosen: Vec<PageId> =
            pages.iter().filter_map(|n| live.get(usize::from(*n) % live.len().max(1)).copied()).collect();
        chosen.sort();
        chosen.dedup();
        let mut change = db.begin().await.ok()?;
        for page in &chosen {
            change.add(db.get_mut(*page).await.ok()?);
        }
        Some((change, chosen.len()))
    }

    async fn change(&mut self, db: &LoggedStore, pages: [u8; 3], at: usize) -> Option<()> {
        let (mut change, count) = self.latched(db, pages).await?;
        let effects = (0..count).map(|page| self.words(&mut change, page, at)).collect();
        let lsn = change.commit().unwrap();
        self.recorded(lsn.0, effects);
        Some(())
    }

    async fn keep(&mut self, db: &LoggedStore, pages: [u8; 3], commits: bool) -> Option<()> {
        let (mut change, count) = self.latched(db, pages).await?;
        let effects = (0..count).map(|page| self.words(&mut change, page, 100)).collect();
        let (lsn, kept) = change.commit_keeping().unwrap();
        self.recorded(lsn.0, effects);
        assert!(kept.len() == count && kept.iter().all(|page| page.lsn() == lsn));
        let mut next = MiniTx::new(Some(db.wal()));
        for page in kept {
            next.add(page);
        }
        let effects = (0..count).map(|page| self.words(&mut next, page, 600)).collect();
        if commits {
            let lsn = next.commit().unwrap();
            self.recorded(lsn.0, effects);
        }
        Some(())
    }

    pub(super) async fn allocate(&mut self, db: &LoggedStore, space: SpaceId, zero: bool) -> Option<()> {
        let mut change = db.begin().await.ok()?;
        let page = change.add(db.allocate(space).await.ok()?);
        let live = self.pages.get(&change.id(page)).is_some_and(Option::is_some);
        assert!(!live, "{} is allocated twice", change.id(page));
        assert!(change.payload(page).iter().all(|byte| *byte == 0), "a new page has old contents");
        if zero {
            change.zero(page);
        }
        let effect = self.words(&mut change, page, 0);
        let lsn = change.commit().unwrap();
        self.recorded(lsn.0, vec![effect]);
        Some(())
    }

    /// Allocates a page by a short record, whatever the log's length.
    async fn allocate_small(&mut self, db: &LoggedStore, space: SpaceId) {
        let mut change = MiniTx::on(Some(db.wal()), db.allocate(space).await.unwrap());
        change.write(0, 0, b"small");
        let effect = (change.id(0), Some(change.payload(0).to_vec()));
        let lsn = change.commit().unwrap();
        self.recorded(lsn.0, vec![effect]);
    }

    pub(super) async fn free(&mut self, db: &LoggedStore, page: u8, itself: bool) -> Option<()> {
        let live = self.live();
        let page = *live.get(usize::from(page) % live.len().max(1))?;
        let other = *live.iter().find(|other| **other != page || itself)?;
        let mut change = db.begin().await.ok()?;
        let index = change.add(db.get_mut(if itself { page } else { other }).await.ok()?);
        let mut effects = vec![self.words(&mut change, index, 8)];
        change.free(page);
        effects.push((page, None));
        let lsn = change.commit().unwrap();
        self.recorded(lsn.0, effects);
        Some(())
    }

    async fn commit(&mut self, db: &LoggedStore) {
        let end = db.wal().end().0;
        if db.wal().flush(db.wal().end()).await.is_ok() {
            self.acknowledged = end;
        }
    }

    /// Compares an opened store with the records that its log still had.
    async fn check(&mut self, db: &LoggedStore) {
        let end = db.wal().end().0;
        assert!(end >= self.acknowledged, "the log ends at {end} of {}", self.acknowledged);
        self.records.retain(|(lsn, _)| *lsn <= end);
        self.pages = self.records.iter().flat_map(|(_, effects)| effects.iter().cloned()).collect();
        self.acknowledged = end;
        self.shelf.iter_mut().for_each(|shelf| shelf.lost_from(end));
        for (page, contents) in &self.pages {
            let found = match db.get(*page).await {
                Ok(found) => Some(found.to_vec()),
                Err(Error::NoSuchPage { .. }) => None,
                Err(error) => panic!("{page}: {error}"),
            };
            assert!(found == *contents, "{page} has other contents, free: {}", contents.is_none());
            if contents.is_none() {
                let freed = db.store().free(*page).await;
                assert!(matches!(freed, Ok(0)), "{page} has leaked: {freed:?}");
            }
        }
    }

    async fn reopen(&mut self) -> LoggedStore {
        let db = self.open(self.builder()).await.unwrap();
        self.check(&db).await;
        db
    }

    async fn run(&mut self, steps: Vec<Step>, archived: bool) {
        self.shelf = archived.then(Shelf::new);
        let mut db = self.open(self.builder()).await.unwrap();
        db.spaces().create(SPACE).await.unwrap();
        for step in steps {
            let (confirmed, end) = (self.acknowledged, db.wal().end().0);
            self.shelf.iter_mut().for_each(|shelf| shelf.step(confirmed, end));
            let space = db.spaces().find(SPACE).unwrap();
            // An operation may fail for want of a log; it has changed nothing then.
            match step {
                Step::Change { pages, at } => drop(self.change(&db, pages, at.into()).await),
                Step::Keep { pages, commits } => drop(self.keep(&db, pages, commits).await),
                Step::Allocate { zero } => drop(self.allocate(&db, space, zero).await),
                Step::Free { page, itself } => drop(self.free(&db, page, itself).await),
                Step::Commit => self.commit(&db).await,
                Step::Sync => drop(db.sync().await),
                Step::Checkpoint => drop(db.checkpoint().await),
                Step::FreePending => drop(db.wal().free_pending(db.store()).await),
                Step::Fault { n, way } => self.log.fail(n.into(), WAYS[way]),
                Step::Crash { kill } => {
                    let (oldest, span) = (db.wal().oldest(), db.wal().to_redo(Loss::Crash).unwrap());
                    self.crash(db, kill).await;
                    db = self.reopen().await;
                    // All of it, if a page is damaged that the SSD should have.
                    let read = db.recovered().read;
                    let is_less = span.from <= read.from && read.bytes <= span.bytes;
                    assert!(is_less || read.from == oldest, "{read:?} was read, not {span:?}");
                }
                Step::LoseSsd => {
                    self.crash(db, false).await;
                    self.ssd = Arc::new(SimDevice::new("blank", 0, self.seed, &self.power));
                    if self.keep == Keep::ForCrash {
                        // Whether the log suffices depends on luck; a backup would be restored.
                        return;
                    }
                    db = self.open(self.builder().accept_ssd_loss(true)).await.unwrap();
                    self.check(&db).await;
                }
                Step::Close => {
                    let closed = db.store().wait_closed();
                    let (clean, before) = (db.shutdown().await.is_ok(), db.wal().end());
                    assert!(matches!(db.begin::<PageMut<'_>>().await, Err(WalError::Stopped)));
                    assert!(db.wal().append_commit(b"late").is_err() && db.wal().end() == before);
                    drop(db);
                    closed.await;
                    self.restart(!self.log.is_off() && !clean);
                    db = self.reopen().await;
                }
                Step::ArchiveNow => drop(db.wal().archive_now().await),
                Step::ArchiveFault { n, torn } => self.shelf.iter().for_each(|shelf| shelf.fail(n, torn)),
                Step::ArchiveFull(full) => self.shelf.iter().for_each(|shelf| shelf.set_full(full)),
                Step::BackUp => {
                    if let Some(shelf) = &mut self.shelf {
                        shelf.back_up(&db, self.acknowledged).await;
                    }
                }
            }
        }
        self.commit(&db).await;
        self.crash(db, false).await;
        let db = self.reopen().await;
        self.restore(db).await;
    }

    /// Restores the store to a moment, and compares it with the records up to that.
    async fn restore(&mut self, db: LoggedStore) {
        let Some(shelf) = &self.shelf else { return };
        shelf.works_again();
        db.wal().archive_now().await.unwrap();
        drop(db);
        let lsns: Vec<u64> = self.records.iter().map(|(lsn, _)| *lsn).collect();
        if let Some(restored) = shelf.restored(&lsns, self.counter).await {
            // Of what was confirmed later nothing is there.
            self.acknowledged = 0;
            self.check(&restored).await;
        }
    }
}

fn run(keep: Keep, steps: Vec<Step>, archived: bool) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(Engine::new(keep).run(steps, archived));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PAGETIER_WAL_CASES").map_or(24, |n| n.parse().expect("a number")),
        max_shrink_iters: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_engine_is_always_what_its_log_says(
        steps in prop::collection::vec(step(), 1..160),
        archived in any::<bool>(),
    ) {
        run(Keep::ForCrash, steps, archived);
    }

    #[test]
    fn an_engine_whose_log_is_kept_for_it_survives_the_loss_of_the_ssd(
        steps in prop::collection::vec(step(), 1..160),
        archived in any::<bool>(),
    ) {
        run(Keep::ForSsdLoss, steps, archived);
    }
}

#[test]
fn a_backup_without_a_record_is_restored_from_its_archive_after_several_opens_without_one() {
    let crash = || Step::Crash { kill: false };
    let change = Step::Change { pages: [0, 0, 0], at: 0 };
    let steps = vec![Step::BackUp, crash(), crash(), Step::Allocate { zero: false }, change];
    run(Keep::ForSsdLoss, steps, true);
}

/// The schedule that loses a page to an engine that frees it by itself: the record that frees the page is
/// durable, a checkpoint removes the record, and a crash comes before the store has freed the page.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_between_a_durable_free_and_the_store_leaks_no_page() {
    let mut engine = Engine::new(Keep::ForCrash);
    let db = engine.open_alone().await;
    let space = db.spaces().find(SPACE).unwrap();
    for _ in 0..4 {
        engine.allocate(&db, space, true).await.unwrap();
    }
    db.sync().await.unwrap();
    engine.free(&db, 2, false).await.unwrap();
    engine.commit(&db).await;
    let freed = db.wal().oldest_unfinished().expect("the free is pending");
    for _ in 0..20 {
        let filler = db.wal().append_commit(&[0; 9_000]).unwrap();
        db.wal().append_applied(filler);
        engine.commit(&db).await;
    }
    let end = db.wal().end();
    db.flush_to(end).await.unwrap();
    let from = db.redo_from(end, Loss::Crash).await.unwrap();
    assert_eq!(from, end, "the store needs none of the log");
    db.wal().truncate(end, from).await.unwrap();
    assert!(db.wal().oldest() < freed, "the record is gone");
    engine.crash(db, false).await;
    let db = engine.reopen().await;
    assert_eq!(db.recovered().freed, 1);
    // The recovery has freed it: the log need not keep the record any longer.
    db.wal().truncate(end, end).await.unwrap();
    assert!(db.wal().oldest() > freed);
    engine.crash(db, false).await;
    engine.reopen().await;
}

/// A store that cannot free pages at present keeps their records, and the next checkpoint retries.
#[tokio::test(start_paused = true)]
async fn frees_that_fail_stay_pending() {
    let mut engine = Engine::new(Keep::ForCrash);
    let db = engine.open_alone().await;
    let space = db.spaces().find(SPACE).unwrap();
    for _ in 0..300 {
        engine.allocate_small(&db, space).await;
    }
    db.sync().await.unwrap();
    let first = engine.live()[1];
    for _ in 0..200 {
        let page = engine.live()[1];
        let mut change = MiniTx::<PageMut<'_>>::new(Some(db.wal()));
        change.free(page);
        let lsn = change.commit().unwrap();
        engine.recorded(lsn.0, vec![(page, None)]);
    }
    // Before the records are durable, no page is freed.
    engine.log.set_full(true);
    engine.log.take_reserve();
    assert!(matches!(db.wal().free_pending(db.store()).await, Err(CheckpointError::Log(_))));
    assert!(db.get(first).await.is_ok());
    engine.log.set_full(false);
    engine.commit(&db).await;
    // The second of two batches fails.
    engine.manifest.fail_saves(1, 1, false);
    assert!(db.wal().free_pending(db.store()).await.is_err());
    assert!(db.wal().oldest_unfinished().is_some());
    // Freed pages are in use again before the others are freed.
    for _ in 0..100 {
        engine.allocate_small(&db, space).await;
    }
    db.checkpoint().await.unwrap();
    assert_eq!(db.wal().oldest_unfinished(), None);
    engine.commit(&db).await;
    engine.crash(db, false).await;
    engine.reopen().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_frees_its_pages_once() {
    let mut engine = Engine::new(Keep::ForCrash);
    let db = engine.open_alone().await;
    let space = db.spaces().find(SPACE).unwrap();
    for _ in 0..40 {
        engine.allocate(&db, space, true).await.unwrap();
    }
    for polls in 0..12 {
        engine.free(&db, polls, false).await.unwrap();
        {
            let freeing = db.wal().free_pending(db.store());
            tokio::pin!(freeing);
            for _ in 0..polls {
                tokio::select! { biased; _ = &mut freeing => break, () = tokio::task::yield_now() => {} }
            }
        }
        // The number may be in use again before the next call.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        engine.allocate(&db, space, false).await.unwrap();
        db.wal().free_pending(db.store()).await.unwrap();
        assert_eq!(db.wal().oldest_unfinished(), None);
    }
    engine.commit(&db).await;
    engine.crash(db, false).await;
    engine.reopen().await;
}

/// Schedule: a backup, or an archive that is away, holds the log for long, so that no segment goes. The store
/// did not record meanwhile from where a crash needs the log: the next recovery read all that was held.
#[tokio::test(start_paused = true)]
async fn a_recovery_reads_what_the_log_says_whatever_it_holds() {
    for keep in [Keep::ForCrash, Keep::ForSsdLoss] {
        let mut engine = Engine::new(keep);
        let db = engine.open_alone().await;
        let space = db.spaces().find(SPACE).unwrap();
        for _ in 0..4 {
            engine.allocate(&db, space, true).await.unwrap();
        }
        let (hold, oldest) = db.wal().hold();
        for n in 0..300 {
            engine.change(&db, [0, 1, 2], n * 7).await.unwrap();
            engine.commit(&db).await;
            if n % 10 == 9 {
                db.checkpoint().await.unwrap();
            }
        }
        let (crash, ssd) = (db.wal().to_redo(Loss::Crash).unwrap(), db.wal().to_redo(Loss::Ssd));
        assert!(db.wal().end().0 - oldest.0 > 2 * db.wal().capacity_bytes());
        assert!(crash.bytes <= db.wal().capacity_bytes() && crash.from > oldest, "{crash:?}");
        assert_eq!(ssd.map(|span| span.from), (keep == Keep::ForSsdLoss).then_some(oldest));
        drop(hold);
        engine.crash(db, true).await;
        let db = engine.reopen().await;
        assert_eq!(db.recovered().read, crash, "{keep:?}");
        db.checkpoints.end();
        let Some(ssd) = db.wal().to_redo(Loss::Ssd) else { continue };
        engine.crash(db, true).await;
        engine.ssd = Arc::new(SimDevice::new("blank", 0, engine.seed, &engine.power));
        let db = engine.open(engine.builder().accept_ssd_loss(true)).await.unwrap();
        assert_eq!(db.recovered().read, ssd);
        engine.check(&db).await;
        db.shutdown().await.unwrap();
        drop(db);
        let db = engine.reopen().await;
        assert!(db.recovered().read.bytes <= 64 << 10 && db.recovered().applied == 0, "{:?}", db.recovered());
    }
}

/// Schedule: `archive_now` every few seconds ends a segment after few records, and its file keeps the
/// space of a whole one. In bytes such a log is short: it took many times the space of its limit.
#[tokio::test(start_paused = true)]
async fn segments_that_end_early_count_as_whole_ones() {
    for (keep, most) in [(Keep::ForCrash, 5), (Keep::ForSsdLoss, 20)] {
        let mut engine = Engine::new(keep);
        engine.shelf = Some(Shelf::new());
        let db = engine.open_alone().await;
        let space = db.spaces().find(SPACE).unwrap();
        for _ in 0..4 {
            engine.allocate(&db, space, true).await.unwrap();
        }
        for n in 0..60 {
            engine.change(&db, [n, 1, 2], 0).await.unwrap();
            engine.commit(&db).await;
            db.wal().archive_now().await.unwrap();
            db.checkpoint().await.unwrap();
            let segments = db.wal().segment_starts().len();
            assert!(segments <= most, "{keep:?}: {segments} segments after {n} changes");
        }
        engine.crash(db, false).await;
        engine.reopen().await;
    }
}
