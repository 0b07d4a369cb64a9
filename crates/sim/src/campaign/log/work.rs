//! An engine at work: the operations that its tasks draw.

use super::backup::Shelf;
use super::model::{Found, Model, SpaceState};
use super::open::{LEAVES, causes, create_space, look};
use super::watch::Watch;
use crate::campaign::contract::content::fill;
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use pagetier::{Error, Lsn, PageId, PageMut, SpaceId};
use pagetier_wal::{LoggedStore, MiniTx, WalError};
use parking_lot::MutexGuard;
use rand::Rng;
use rand::rngs::SmallRng;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

pub(super) type Outcome = Result<(), String>;

/// Changes of pages, with their contents afterwards.
type Changes = Vec<(PageId, Arc<[u8]>)>;

/// A task that uses a store with a log.
pub(super) struct Worker {
    pub(super) db: Arc<LoggedStore>,
    pub(super) watch: Arc<Watch>,
    pub(super) plan: Arc<Plan>,
    pub(super) rng: SmallRng,
    /// Where backups go, if any are taken.
    pub(super) shelf: Option<Shelf>,
}

type Run = for<'a> fn(&'a mut Worker) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// An operation, its share of all, the kind of work that it belongs to, and the public functions it calls.
pub(super) struct Operation {
    share: u32,
    kind: &'static str,
    pub(super) calls: &'static [&'static str],
    run: Run,
}

const fn op(share: u32, kind: &'static str, calls: &'static [&'static str], run: Run) -> Operation {
    Operation { share, kind, calls, run }
}

/// Every operation of the engine.
pub(super) const TABLE: &[Operation] = &[
    op(
        60,
        "",
        &[
            "LoggedStore::begin",
            "LoggedStore::admit",
            "LoggedStore::commit",
            "MiniTx::new",
            "MiniTx::add",
            "MiniTx::write",
            "MiniTx::shift",
            "MiniTx::copy",
            "MiniTx::zero",
            "MiniTx::replace",
            "MiniTx::payload",
            "MiniTx::commit",
            "MiniTx::commit_keeping",
            "Wal::flush",
        ],
        |w| Box::pin(w.change()),
    ),
    op(16, "", &["PageStore::allocate"], |w| Box::pin(w.insert())),
    op(10, "free", &["MiniTx::free"], |w| Box::pin(w.remove())),
    op(12, "", &["PageStore::get"], |w| Box::pin(w.read())),
    op(4, "", &["PageStore::get_many"], |w| Box::pin(w.read_many())),
    op(4, "", &["LoggedStore::checkpoint"], |w| Box::pin(w.checkpoint())),
    op(2, "", &["Wal::free_pending"], |w| Box::pin(w.free_pending())),
    op(3, "", &["PageStore::sync"], |w| Box::pin(w.sync())),
    op(2, "", &["PageStore::flush_to"], |w| Box::pin(w.flush_to())),
    op(1, "drop-space", &["Spaces::create"], |w| Box::pin(w.create_space())),
    op(2, "drop-space", &["LoggedStore::drop_space"], |w| Box::pin(w.drop_space())),
    op(4, "bulk", &["MiniTx::on"], |w| Box::pin(w.load())),
    op(3, "steps", &["Wal::append_commit", "Wal::append_applied"], |w| Box::pin(w.steps())),
    op(1, "long-records", &[], |w| Box::pin(w.long_record())),
    op(1, "log-fails", &[], |w| Box::pin(w.log_fails())),
    op(1, "readmit", &["Ssd::readmit"], |w| Box::pin(w.readmit())),
    op(1, "openers", &[], |w| Box::pin(w.second_opener())),
    op(2, "backup", &["LoggedStore::backup"], |w| Box::pin(w.back_up())),
    op(2, "backup", &["Wal::archive_now", "Wal::archived"], |w| Box::pin(w.archive())),
    op(3, "pause", &[], |w| Box::pin(w.pause())),
];

/// Called when a store is opened, and by the checks of crashed and closed stores.
const EXAMINATIONS: &[&str] = &[
    "Backups::at",
    "Backups::purge",
    "Backups::verify",
    "DeviceMedia::open",
    "LoggedStore::on",
    "LoggedStore::open",
    "LoggedStore::recovered",
    "LoggedStore::restorable",
    "LoggedStore::restore",
    "LoggedStore::restore_until",
    "LoggedStore::shutdown",
    "LoggedStore::store",
    "LoggedStore::wal",
    "Wal::archive_to",
    "Wal::end",
    "Wal::on",
    "Wal::to_redo",
    "WalOptions::capacity_bytes",
    "WalOptions::keep",
    "WalOptions::ssd_log_bytes",
    "WalOptions::new",
];

/// Every public function that an engine with a log draws, as `Type::name`.
pub(in crate::campaign) fn drawn() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|operation| operation.calls).chain(EXAMINATIONS).copied()
}

impl Worker {
    pub(super) async fn run(mut self, ops: u32) -> Outcome {
        let share = |op: &Operation, plan: &Plan| if plan.has(op.kind) { op.share } else { 0 };
        let sum: u32 = TABLE.iter().map(|op| share(op, &self.plan)).sum();
        for _ in 0..ops {
            let mut left = self.rng.random_range(0..sum);
            let drawn = TABLE.iter().find(|op| {
                let share = share(op, &self.plan);
                let found = left < share;
                left = left.saturating_sub(share);
                found
            });
            if let Some(op) = drawn {
                (op.run)(&mut self).await?;
            }
        }
        Ok(())
    }

    pub(super) fn model(&self) -> MutexGuard<'_, Model> {
        self.watch.model.lock()
    }

    /// What an error of a call means: a violation, unless devices fail.
    pub(super) fn judge(&self, what: &str, error: &(dyn std::error::Error + 'static)) -> Outcome {
        if self.watch.is_troubled() { Ok(()) } else { Err(format!("{what}: {}", causes(error))) }
    }

    /// A space, entered: [`Model::leave`] follows.
    fn enter(&mut self) -> Option<SpaceId> {
        let live = self.model().live();
        let space = *live.get(self.rng.random_range(0..live.len().max(1)))?;
        self.model().enter(space).then_some(space)
    }

    /// Some pages of one space, in ascending order.
    fn some(&mut self, space: SpaceId, most: usize) -> Vec<PageId> {
        let all: Vec<PageId> = self.model().usable().into_iter().filter(|p| p.space == space).collect();
        if all.is_empty() {
            return all;
        }
        let count = self.rng.random_range(1..=most);
        let mut some: Vec<PageId> = (0..count).map(|_| all[self.rng.random_range(0..all.len())]).collect();
        // In one order, as every task latches: no two wait for each other.
        some.sort_unstable();
        some.dedup();
        some
    }

    /// Latches the page; `None` if it was freed meanwhile, or an error is no violation.
    async fn latched<'a>(&self, db: &'a LoggedStore, page: PageId) -> Result<Option<PageMut<'a>>, String> {
        match db.get_mut(page).await {
            Ok(guard) => {
                // Asked under the latch: the last commit of the page is in the model by then.
                let current = self.model().current(page);
                match current {
                    Some(bytes) if guard[..] == bytes[..] => Ok(Some(guard)),
                    Some(bytes) => Err(self.wrong(page, &guard, &bytes)),
                    None => Ok(None),
                }
            }
            Err(Error::NoSuchPage { .. } | Error::NoSuchSpace { .. })
                if self.model().current(page).is_none() =>
            {
                Ok(None)
            }
            Err(error) => self.judge(&format!("get_mut {page}"), &error).map(|()| None),
        }
    }

    fn wrong(&self, page: PageId, found: &[u8], current: &[u8]) -> String {
        let model = self.model();
        let why = model.judge(page, &Found::Bytes(found.into()), u64::MAX, false).err().unwrap_or_default();
        format!(
            "the running engine reads page {page} as {:x?}, committed is {:x?}; {why}",
            &found[..16],
            &current[..16]
        )
    }

    /// Changes a page of the mini-transaction in some way.
    fn alter(&mut self, tx: &mut MiniTx<'_, PageMut<'_>>, at: usize) {
        let len = tx.payload(at).len();
        let content = {
            let mut model = self.model();
            model.content += 1;
            model.content as u32
        };
        let (from, to) = (self.rng.random_range(0..len), self.rng.random_range(0..len));
        let some = self.rng.random_range(1..=(len - from.max(to)).min(400));
        // A number that grows goes into the contents: the model tells versions apart by them.
        match self.rng.random_range(0..8) {
            0..3 => {
                let mut bytes = vec![0; len];
                fill(&mut bytes, tx.id(at), content);
                tx.write(at, 0, &bytes);
            }
            3..6 => {
                let bytes = content.to_le_bytes().repeat(some.div_ceil(4));
                // Both ways to change a range: `write` is told it, `replace` finds it by comparing.
                if some.is_multiple_of(2) {
                    tx.write(at, from, &bytes[..some]);
                } else {
                    let mut image = tx.payload(at).to_vec();
                    image[from..from + some].copy_from_slice(&bytes[..some]);
                    tx.replace(at, &image);
                }
            }
            6 => {
                tx.shift(at, from, to, some);
                tx.write(at, 0, &content.to_le_bytes());
            }
            _ => {
                tx.zero(at);
                tx.write(at, from.min(len - 4), &content.to_le_bytes());
            }
        }
    }

    /// The contents of the mini-transaction's pages.
    fn changes(tx: &MiniTx<'_, PageMut<'_>>, pages: usize) -> Changes {
        (0..pages).map(|at| (tx.id(at), tx.payload(at).into())).collect()
    }

    /// Commits in one of the ways that there are.
    async fn commit(
        &mut self,
        db: &LoggedStore,
        tx: MiniTx<'_, PageMut<'_>>,
        changes: Changes,
        freed: &[PageId],
    ) -> Outcome {
        if changes.is_empty() && freed.is_empty() {
            return Ok(());
        }
        // Half of the commits take the engine's usual call, the others its parts, with and without the
        // guards kept.
        let drawn = self.rng.random_range(0..12_u32);
        if drawn >= 6 {
            return self.commit_by_call(db, tx, &changes, freed).await;
        }
        let (lsn, kept) =
            match if drawn < 3 { tx.commit_keeping() } else { tx.commit().map(|lsn| (lsn, Vec::new())) } {
                Ok(done) => done,
                Err(error) => return self.judge("commit", &error),
            };
        // Nothing was awaited since the commit, so no task has seen the pages before the model knows
        // them.
        self.model().recorded(lsn.0, &changes, freed);
        let lsn = self.go_on(db, kept, freed, lsn)?;
        // Some become durable with a later one.
        if drawn.is_multiple_of(3) {
            return Ok(());
        }
        match db.wal().flush(lsn).await {
            Ok(()) => self.model().acknowledged(lsn.0),
            Err(error) => return self.judge("flush", &error),
        }
        Ok(())
    }

    /// Changes once more the pages whose guards a commit returned, and commits that or undoes it. Returns the
    /// last record's LSN.
    fn go_on<'p>(
        &mut self,
        db: &LoggedStore,
        kept: Vec<PageMut<'p>>,
        freed: &[PageId],
        lsn: Lsn,
    ) -> Result<Lsn, String> {
        let mut tx = MiniTx::new(Some(db.wal()));
        // The number of a freed page cannot be used again before its guard is dropped.
        let kept: Vec<_> = kept.into_iter().filter(|page| !freed.contains(&page.id())).collect();
        let count = kept.into_iter().map(|page| tx.add(page)).count();
        (0..count).for_each(|at| self.alter(&mut tx, at));
        // A mini-transaction that is dropped puts back its changes, which the next look at the pages
        // checks.
        if count == 0 || self.rng.random_bool(0.4) {
            return Ok(lsn);
        }
        let changes = Self::changes(&tx, count);
        match tx.commit() {
            Ok(lsn) => {
                self.model().recorded(lsn.0, &changes, &[]);
                Ok(lsn)
            }
            Err(error) => self.judge("commit", &error).map(|()| lsn),
        }
    }

    async fn commit_by_call(
        &mut self,
        db: &LoggedStore,
        tx: MiniTx<'_, PageMut<'_>>,
        changes: &Changes,
        freed: &[PageId],
    ) -> Outcome {
        let before = db.wal().end().0;
        let call = self.model().call(before, changes, freed);
        let polls = self.polls(0.1);
        let mut committing = pin!(db.commit(tx));
        // The first poll appends the record: no other one can come between.
        let first = up_to(1, committing.as_mut()).await;
        self.model().resolve(db.wal().end().0);
        let refused = self.model().refused(call);
        let done = match first {
            Some(done) => Some(done),
            None => up_to(polls, committing).await,
        };
        match done {
            Some(Ok(lsn)) if refused => Err(format!("a record was committed at {lsn}, but not appended")),
            Some(Ok(lsn)) => {
                self.model().acknowledged(lsn.0);
                Ok(())
            }
            // Refused beforehand: the pages are as they were, which the next look at them checks.
            Some(Err(WalError::TooLong { .. })) if refused => Ok(()),
            Some(Err(error)) => self.judge("commit", &error),
            None => Ok(()),
        }
    }

    /// The number of polls after which a call is dropped, with this probability; otherwise none is.
    pub(super) fn polls(&mut self, probability: f64) -> u32 {
        let dropped = self.plan.has("drop-future") && self.rng.random_bool(probability);
        if dropped { self.rng.random_range(1..12) } else { u32::MAX }
    }

    async fn begin<'a>(&self, db: &'a LoggedStore) -> Result<Option<MiniTx<'a, PageMut<'a>>>, String> {
        let mut begun = db.begin().await;
        // An engine that does not apply its commits keeps the log. A task beside this one may have applied
        // them at the very moment.
        if matches!(begun, Err(WalError::Full { .. })) {
            loop {
                let open = self.model().unapplied();
                let Some(commit) = open else { break };
                let lsn = db.wal().append_applied(Lsn(commit));
                self.model().applied(commit, lsn.0);
            }
            begun = db.begin().await;
        }
        match begun {
            Ok(tx) => Ok(Some(tx)),
            Err(error) => self.judge("begin", &error).map(|()| None),
        }
    }

    /// Changes some pages by one record.
    pub(super) async fn change(&mut self) -> Outcome {
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let done = self.change_in(&db, space).await;
        self.model().leave(space);
        done
    }

    async fn change_in(&mut self, db: &LoggedStore, space: SpaceId) -> Outcome {
        let pages = self.some(space, 4);
        let Some(mut tx) = self.begin(db).await? else { return Ok(()) };
        let mut count = 0;
        for page in pages {
            if let Some(guard) = self.latched(db, page).await? {
                tx.add(guard);
                count += 1;
            }
        }
        (0..count).for_each(|at| self.alter(&mut tx, at));
        if count > 1 && self.rng.random_bool(0.2) {
            tx.copy(0, 100, 1, 200, 64);
        }
        let changes = Self::changes(&tx, count);
        self.commit(db, tx, changes, &[]).await
    }

    /// Adds a page.
    async fn insert(&mut self) -> Outcome {
        if self.model().pages_in_use() >= self.plan.pages as usize {
            return self.change().await;
        }
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let done = self.insert_in(&db, space).await;
        self.model().leave(space);
        done
    }

    async fn insert_in(&mut self, db: &LoggedStore, space: SpaceId) -> Outcome {
        let Some(mut tx) = self.begin(db).await? else { return Ok(()) };
        let Some(guard) = self.allocated(db, space).await? else { return Ok(()) };
        tx.add(guard);
        self.alter(&mut tx, 0);
        let changes = Self::changes(&tx, 1);
        self.commit(db, tx, changes, &[]).await
    }

    /// A new page, which must not be in use.
    async fn allocated<'a>(
        &self,
        db: &'a LoggedStore,
        space: SpaceId,
    ) -> Result<Option<PageMut<'a>>, String> {
        let guard = match db.allocate(space).await {
            Ok(guard) => guard,
            Err(error) => return self.judge("allocate", &error).map(|()| None),
        };
        let page = guard.id();
        if self.model().is_in_use(page) {
            return Err(format!("page {page} was handed out twice"));
        }
        if guard.iter().any(|byte| *byte != 0) {
            return Err(format!("page {page} was handed out with contents"));
        }
        self.model().handed(page, guard.len());
        Ok(Some(guard))
    }

    /// Frees a page by the record of a change to another one.
    async fn remove(&mut self) -> Outcome {
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let done = self.remove_in(&db, space).await;
        self.model().leave(space);
        done
    }

    async fn remove_in(&mut self, db: &LoggedStore, space: SpaceId) -> Outcome {
        let pages = self.some(space, 3);
        let Some(mut tx) = self.begin(db).await? else { return Ok(()) };
        let mut guards = Vec::new();
        for page in pages {
            guards.extend(self.latched(db, page).await?);
        }
        let Some(victim) = guards.pop() else { return Ok(()) };
        let page = victim.id();
        let count = guards.len();
        for guard in guards {
            tx.add(guard);
        }
        (0..count).for_each(|at| self.alter(&mut tx, at));
        let changes = Self::changes(&tx, count);
        tx.free(page);
        if self.rng.random_bool(0.5) {
            tx.add(victim);
            return self.commit(db, tx, changes, &[page]).await;
        }
        // Under its guard until the record is there.
        let lsn = match tx.commit() {
            Ok(lsn) => lsn,
            Err(error) => return self.judge("commit", &error),
        };
        self.model().recorded(lsn.0, &changes, &[page]);
        drop(victim);
        match db.wal().flush(lsn).await {
            Ok(()) => self.model().acknowledged(lsn.0),
            Err(error) => return self.judge("flush", &error),
        }
        Ok(())
    }

    pub(super) async fn read(&mut self) -> Outcome {
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let mut done = Ok(());
        for page in self.some(space, 3) {
            done = match db.get(page).await {
                Ok(guard) => {
                    let current = self.model().current(page);
                    match current {
                        Some(bytes) if bytes[..] != guard[..] => Err(self.wrong(page, &guard, &bytes)),
                        _ => Ok(()),
                    }
                }
                Err(Error::NoSuchPage { .. }) if self.model().current(page).is_none() => Ok(()),
                Err(error) => self.judge(&format!("get {page}"), &error),
            };
            if done.is_err() {
                break;
            }
        }
        self.model().leave(space);
        done
    }

    async fn read_many(&mut self) -> Outcome {
        let Some(space) = self.enter() else { return Ok(()) };
        let mut pages = self.some(space, 6);
        if self.rng.random_bool(0.5) {
            // Any order will do: the call latches in an order of its own.
            pages.reverse();
        }
        let db = Arc::clone(&self.db);
        let done = match db.get_many(&pages).await {
            Ok(_) | Err(Error::NoSuchPage { .. }) => Ok(()),
            Err(error) => self.judge("get_many", &error),
        };
        self.model().leave(space);
        done
    }

    async fn checkpoint(&mut self) -> Outcome {
        let db = Arc::clone(&self.db);
        let end = db.wal().durable().0;
        let polls = self.polls(0.25);
        let mut removes = false;
        let mut checkpoint = pin!(db.checkpoint());
        // Another one beside it may have been told of an earlier end.
        let own = poll_fn(|cx| {
            let oldest = db.wal().oldest();
            let polled = checkpoint.as_mut().poll(cx);
            removes |= db.wal().oldest() > oldest;
            polled
        });
        match up_to(polls, own).await {
            Some(Ok(())) => {
                // One that removes a segment tells the pages how far the log goes.
                if removes {
                    self.model().know(end);
                }
                Ok(())
            }
            Some(Err(error)) => self.judge("checkpoint", &error),
            None => Ok(()),
        }
    }

    async fn free_pending(&mut self) -> Outcome {
        let db = Arc::clone(&self.db);
        let polls = self.polls(0.25);
        match up_to(polls, db.wal().free_pending(db.store())).await {
            Some(Err(error)) => self.judge("free_pending", &error),
            _ => Ok(()),
        }
    }

    async fn sync(&mut self) -> Outcome {
        // Taken before the call, which vouches only for changes that were there when it began.
        let unsynced = self.model().unsynced();
        let db = Arc::clone(&self.db);
        let polls = self.polls(0.15);
        match up_to(polls, db.sync()).await {
            Some(Ok(())) => self.model().synced(&unsynced),
            Some(Err(error)) => return self.judge("sync", &error),
            None => {}
        }
        Ok(())
    }

    async fn flush_to(&mut self) -> Outcome {
        let db = Arc::clone(&self.db);
        let to = Lsn(self.rng.random_range(0..=db.wal().end().0));
        match db.flush_to(to).await {
            Ok(()) => Ok(()),
            Err(error) => self.judge("flush_to", &error),
        }
    }

    async fn create_space(&mut self) -> Outcome {
        if self.model().live().len() > 3 {
            return Ok(());
        }
        let db = Arc::clone(&self.db);
        match create_space(&db, &self.watch.model).await {
            Ok(_) => Ok(()),
            Err(error) => self.judge("create", &error),
        }
    }

    /// Drops a space, perhaps half-way. Then it looks whether the space is there: if so, it uses it.
    async fn drop_space(&mut self) -> Outcome {
        let live = self.model().live();
        if live.len() < 2 {
            return Ok(());
        }
        let space = live[self.rng.random_range(0..live.len())];
        if !self.model().begin_drop(space) {
            return Ok(());
        }
        let db = Arc::clone(&self.db);
        let polls = self.polls(0.5);
        let done = up_to(polls, db.drop_space(space)).await;
        match done {
            Some(Ok(())) => {
                self.model().space_is(space, SpaceState::Gone);
                return Ok(());
            }
            Some(Err(error)) => return self.judge("drop_space", &error),
            None => {}
        }
        // A drop whose caller is gone may go on. Only then does the list of spaces show how it ended.
        tokio::time::sleep(LEAVES).await;
        let there = db.spaces().list().iter().any(|info| info.id == space);
        // One whose record failed may be gone after a crash.
        if !there || !self.watch.is_troubled() {
            self.model().space_is(space, if there { SpaceState::Live } else { SpaceState::Gone });
        }
        Ok(())
    }

    /// Adds pages without a record, as a bulk load does, and syncs them.
    async fn load(&mut self) -> Outcome {
        if self.model().pages_in_use() >= self.plan.pages as usize {
            return Ok(());
        }
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let done = self.load_in(&db, space).await;
        self.model().leave(space);
        done?;
        self.sync().await
    }

    async fn load_in(&mut self, db: &LoggedStore, space: SpaceId) -> Outcome {
        for _ in 0..self.rng.random_range(1..=4) {
            let Some(guard) = self.allocated(db, space).await? else { return Ok(()) };
            let mut tx = MiniTx::on(None, guard);
            self.alter(&mut tx, 0);
            let changes = Self::changes(&tx, 1);
            self.model().unlogged(&changes);
            tx.commit().map_err(|error| causes(&error))?;
        }
        Ok(())
    }

    /// Begins a transaction of several steps, or records that one was applied.
    async fn steps(&mut self) -> Outcome {
        let db = Arc::clone(&self.db);
        let open = self.model().unapplied();
        // Steps end more often than they begin: one that stays open keeps the log from being shortened.
        let lsn = match open.filter(|_| self.rng.random_bool(0.6)) {
            Some(commit) => {
                let before = db.wal().end();
                let lsn = db.wal().append_applied(Lsn(commit));
                // A log that is being closed does not take it.
                if lsn > before {
                    self.model().applied(commit, lsn.0);
                }
                lsn
            }
            None => {
                let operations = vec![7; self.rng.random_range(0..300)];
                let lsn = match db.wal().append_commit(&operations) {
                    Ok(lsn) => lsn,
                    Err(error) => return self.judge("append_commit", &error),
                };
                self.model().began_steps(lsn.0);
                lsn
            }
        };
        match db.wal().flush(lsn).await {
            Ok(()) => self.model().acknowledged(lsn.0),
            Err(error) => return self.judge("flush", &error),
        }
        Ok(())
    }

    /// Commits a record that may be longer than the log takes: it is refused beforehand, or lasts.
    async fn long_record(&mut self) -> Outcome {
        let Some(space) = self.enter() else { return Ok(()) };
        let db = Arc::clone(&self.db);
        let done = self.long_record_in(&db, space).await;
        self.model().leave(space);
        done
    }

    async fn long_record_in(&mut self, db: &LoggedStore, space: SpaceId) -> Outcome {
        let pages = self.some(space, 1);
        let Some(mut tx) = self.begin(db).await? else { return Ok(()) };
        let Some(page) = pages.first() else { return Ok(()) };
        let Some(guard) = self.latched(db, *page).await? else { return Ok(()) };
        tx.add(guard);
        let capacity = db.wal().capacity_bytes() as usize;
        // Well within the capacity, half of it, and beyond it, where the log may refuse.
        let wanted = [capacity / 5, capacity / 2, capacity * 5 / 4][self.rng.random_range(0..3)];
        let times = wanted / tx.payload(0).len();
        // A record has every change, also those of the same bytes, so one page makes it as long as
        // wanted.
        for _ in 0..times {
            let mut bytes = vec![0; tx.payload(0).len()];
            fill(&mut bytes, *page, self.rng.random());
            tx.write(0, 0, &bytes);
        }
        let changes = Self::changes(&tx, 1);
        self.commit_by_call(db, tx, &changes, &[]).await
    }

    async fn pause(&mut self) -> Outcome {
        // Shorter than most I/O, about as long, and long enough for the store to come to rest.
        let us = [100, 5_000, 400_000][self.rng.random_range(0..3)];
        tokio::time::sleep(Duration::from_micros(self.rng.random_range(1..us))).await;
        Ok(())
    }

    /// Reads every page once nothing fails any more.
    pub(super) async fn look_at_all(&self) -> Outcome {
        let usable = self.model().usable();
        for page in usable {
            let found = match look(&self.db, page).await {
                Ok(found) => found,
                Err(_) if self.watch.is_troubled() => continue,
                Err(error) => return Err(error),
            };
            self.model().judge(page, &found, u64::MAX, false).map_err(|e| format!("running: {e}"))?;
        }
        Ok(())
    }
}
