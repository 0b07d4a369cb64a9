//! The database: a store, a log, eleven trees, and transactions over them.
//!
//! A transaction reads rows under row locks, collects its changes, and commits: one log record makes them
//! durable, then they are applied to the trees. The log's module explains what this means for recovery.

use crate::database::catalog::Catalog;
use crate::database::error::DbError;
use crate::database::locks::{LockTable, RowKey, RowLock};
use crate::database::operations::{Operation, Operations};
use crate::database::schema::Table;
use pagetier::{PageStore, Retention, SpaceHints};
use pagetier_btree::Tree;
use pagetier_wal::{Wal, checkpoint, recover};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::time::Instant;

/// An open database.
pub(crate) struct Database {
    pub(crate) store: Arc<PageStore>,
    pub(crate) wal: Wal,
    pub(crate) catalog: Catalog,
    trees: Vec<Tree>,
    locks: LockTable,
    next_history: AtomicU32,
    stopped: AtomicBool,
    checkpoints_end: AtomicBool,
    began: Instant,
    epoch_ms: i64,
}

/// The work done by recovery when a database is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovered {
    /// Page records read from the log.
    pub(crate) records: u64,
    /// Page changes applied again.
    pub(crate) applied: u64,
    /// Commits executed again.
    pub(crate) commits: u64,
}

impl Database {
    /// Opens the loaded database in `store`, recovering it from the log. `epoch_ms` is the current date.
    pub(crate) async fn open(
        store: Arc<PageStore>,
        wal: Wal,
        catalog: Catalog,
        epoch_ms: i64,
    ) -> Result<(Self, Recovered), DbError> {
        let found = recover(&store, &wal).await?;
        let mut trees = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            let space =
                store.spaces().find(table.name()).ok_or_else(|| DbError::NotOurs(table.name().into()))?;
            trees.push(Tree::open(Arc::clone(&store), Some(wal.clone()), space));
        }
        let database = Self {
            store,
            wal,
            catalog,
            trees,
            locks: LockTable::default(),
            next_history: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            checkpoints_end: AtomicBool::new(false),
            began: Instant::now(),
            epoch_ms,
        };
        let recovered = database.repeat_commits(&found).await?;
        // Only now, since the commits that were repeated may have inserted rows there.
        let last = database.tree(Table::History).scan(..).backward().next().await?;
        let last = last.and_then(|(key, _)| <[u8; 4]>::try_from(key).ok()).map_or(0, u32::from_be_bytes);
        database.next_history.store(last + 1, Ordering::Relaxed);
        Ok((database, recovered))
    }

    async fn repeat_commits(&self, found: &pagetier_wal::Recovered) -> Result<Recovered, DbError> {
        for (&commit, operations) in &found.commits {
            self.apply(operations).await?;
            self.wal.append_applied(commit);
        }
        self.wal.flush(self.wal.end()).await?;
        Ok(Recovered { records: found.records, applied: found.applied, commits: found.commits.len() as u64 })
    }

    pub(crate) fn tree(&self, table: Table) -> &Tree {
        &self.trees[table as usize]
    }

    /// Gives the store the hints of `--hints`. Each table has a space of its own.
    pub(crate) fn hint(&self) -> Result<(), DbError> {
        let kept = SpaceHints::new().retention(Retention::KeepInMemory);
        // Its last page is written again and again, so it is no scan; but what left memory is never read.
        let off_ssd = SpaceHints::new().never_to_ssd(true);
        let hints = [(Table::Warehouse, kept), (Table::District, kept), (Table::History, off_ssd)];
        for (table, hints) in hints {
            self.store.spaces().set_hints(self.tree(table).space(), hints)?;
        }
        Ok(())
    }

    /// The current time, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        // The runtime's clock, not the system's: virtual runs of one seed must write the same dates.
        self.epoch_ms + self.began.elapsed().as_millis() as i64
    }

    /// Begins a transaction that collects its changes in `operations`. Waits while the log is full.
    pub(crate) async fn begin<'d>(&'d self, operations: &'d mut Operations) -> Result<Tx<'d>, DbError> {
        // Before any row is locked: a transaction that waited for the log with locks would stop all that
        // need its rows.
        self.wal.has_space().await;
        // After the wait, because a stop ends the wait too.
        if self.stopped.load(Ordering::Acquire) {
            return Err(DbError::Stopped);
        }
        operations.clear();
        // A New-Order takes the most locks, 16: its district and up to 15 rows of stock.
        Ok(Tx { database: self, operations, locks: Vec::with_capacity(20) })
    }

    /// Applies the operations of a commit; idempotent.
    async fn apply(&self, operations: &[u8]) -> Result<(), DbError> {
        for operation in Operations::read(operations) {
            match operation.ok_or(DbError::BadCommit)? {
                Operation::Put { table, key, val } => {
                    self.tree(table).put(key, &self.catalog.scale.stored(val)).await?;
                }
                Operation::Patch { table, key, at, bytes } => {
                    // A transaction reads a row before it patches it: a missing one means that the tree
                    // has lost it.
                    if !self.tree(table).patch(key, at, bytes).await? {
                        return Err(DbError::MissingRow { table, key: key.to_vec() });
                    }
                }
                Operation::Delete { table, key } => {
                    // The row may be gone already, since recovery repeats partly applied commits.
                    self.tree(table).delete(key).await?;
                }
            }
        }
        Ok(())
    }

    async fn commit(&self, operations: &[u8]) -> Result<(), DbError> {
        let commit = self.wal.append_commit(operations)?;
        // From here on recovery may apply the commit, although it is not yet durable.
        let unapplied = Unapplied(self);
        self.wal.flush(commit).await?;
        self.apply(operations).await?;
        std::mem::forget(unapplied);
        self.wal.append_applied(commit);
        Ok(())
    }

    /// One step of a fuzzy checkpoint.
    pub(crate) async fn checkpoint_step(&self) -> Result<(), DbError> {
        Ok(checkpoint(&self.store, &self.wal).await?)
    }

    /// Stops the database: no transaction begins, locks another row, or waits for space in the log.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wal.abandon();
    }

    /// Makes [`Database::keep_log_short`] return after its current step.
    pub(crate) fn end_checkpoints(&self) {
        self.checkpoints_end.store(true, Ordering::Release);
        // The task may be waiting for the log to grow, which it no longer does once the terminals have
        // ended.
        self.wal.signal_grown();
    }

    /// Keeps the log below its capacity until [`Database::end_checkpoints`], or an error, which stops the
    /// database.
    pub(crate) async fn keep_log_short(self: Arc<Self>) -> Result<(), DbError> {
        loop {
            self.wal.grown().await;
            if self.checkpoints_end.load(Ordering::Acquire) {
                return Ok(());
            }
            // Without checkpoints the log fills up, and every terminal would wait for space for ever.
            if let Err(error) = self.checkpoint_step().await {
                self.stop();
                return Err(error);
            }
        }
    }
}

/// A logged commit whose rows are not all in memory. If an error or a dropped future drops it in this state,
/// it stops the database. Otherwise another transaction would read the old rows, and recovery, which applies
/// this commit, would overwrite what that transaction wrote.
struct Unapplied<'d>(&'d Database);

impl Drop for Unapplied<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A transaction. Dropped without a commit, it has changed nothing.
pub(crate) struct Tx<'d> {
    database: &'d Database,
    operations: &'d mut Operations,
    locks: Vec<(RowKey, RowLock<'d>)>,
}

impl Tx<'_> {
    /// Locks a row until the transaction ends. Rows must be locked in ascending order.
    pub(crate) async fn lock(&mut self, row: RowKey) -> Result<(), DbError> {
        // Two lines of an order may name the same row of stock; sorted, they are neighbours.
        if self.locks.last().is_some_and(|(last, _)| *last == row) {
            return Ok(());
        }
        debug_assert!(self.locks.last().is_none_or(|(last, _)| *last < row), "locks out of order");
        self.locks.push((row, self.database.locks.lock(row).await));
        // The lock may come from a commit that was dropped half-way. Such a commit stops the database
        // before it releases its locks, so this check never misses it.
        if self.database.stopped.load(Ordering::Acquire) {
            return Err(DbError::Stopped);
        }
        Ok(())
    }

    /// Reads a row, including this transaction's own changes; false when it does not exist. For locked rows,
    /// and for columns that never change.
    pub(crate) async fn find(&mut self, table: Table, key: &[u8], row: &mut [u8]) -> Result<bool, DbError> {
        // What follows the columns is the overhead that a row was given.
        let see = |stored: &[u8]| row.copy_from_slice(&stored[..row.len()]);
        let found = self.database.tree(table).get(key, see).await?.is_some();
        Ok(self.operations.overlay(table, key, row, found))
    }

    /// Reads a row that must exist.
    pub(crate) async fn read(&mut self, table: Table, key: &[u8], row: &mut [u8]) -> Result<(), DbError> {
        if self.find(table, key, row).await? {
            Ok(())
        } else {
            Err(DbError::MissingRow { table, key: key.to_vec() })
        }
    }

    /// Passes the rows from `from` on to `see` until it breaks, without this transaction's own changes.
    pub(crate) async fn scan(
        &self,
        table: Table,
        from: &[u8],
        see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), DbError> {
        Ok(self.database.tree(table).visit(from, see).await?)
    }

    /// Inserts or replaces a row.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], val: &[u8]) {
        self.operations.put(table, key, val);
    }

    /// Overwrites a part of a row.
    pub(crate) fn patch(&mut self, table: Table, key: &[u8], at: usize, bytes: &[u8]) {
        self.operations.patch(table, key, at, bytes);
    }

    /// Deletes a row.
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) {
        self.operations.delete(table, key);
    }

    /// A number for a history row.
    pub(crate) fn next_history(&self) -> u32 {
        self.database.next_history.fetch_add(1, Ordering::Relaxed)
    }

    /// The current time, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.database.now_ms()
    }

    /// Releases the locks early, for a reader.
    pub(crate) fn unlock(&mut self) {
        debug_assert!(self.operations.is_empty());
        self.locks.clear();
    }

    /// Makes the changes durable, applies them and releases the locks. Must not be dropped half-way: the rows
    /// would be behind the log, so the database stops and must be reopened.
    pub(crate) async fn commit(self) -> Result<(), DbError> {
        if self.operations.is_empty() {
            return Ok(());
        }
        self.database.commit(self.operations.bytes()).await
    }
}
