//! The log: positions, group commit, truncation.
//!
//! **Positions.** An LSN is the log position at which its record *ends*; a record is durable when the log is
//! durable up to its LSN. Page records carry the changed ranges and apply only if `page.lsn < record.lsn`, so
//! redo may start anywhere and may be repeated.
//!
//! **Transactions** of several steps do not touch pages before they commit. A `Commit` record carries their
//! operations, which are idempotent. Once it is durable, the operations are applied to the trees (each with
//! its page record); then an `Applied` record is written. Recovery repeats the pages' history, then executes
//! the operations of every commit without an `Applied`. There is nothing to undo, although dirty pages may be
//! written at any time (steal) and need not be written at commit (no-force). An engine whose operations are
//! one page record each needs neither record.
//!
//! **Group commit.** The first commit that needs durability writes and syncs on behalf of all waiting ones.
//! One operation uses the medium at a time, on one thread of the runtime. It has the *turn*, which ends with
//! the operation, not with the future that began it: on a disk that stalls, callers that give up would else
//! leave a blocked thread each. Its end wakes all who wait; those whose records are durable need no turn.
//!
//! **Failures.** Bytes that could not be made durable stay in memory, and the next flush writes them to a new
//! segment: a full disk delays commits until there is space. A reserve takes the records of frees, and lets a
//! checkpoint shorten the log, which gives space back. On a device it is one of the slots.
//!
//! **Locks.** The turn before `output` before `state`; neither of the latter is held across an `.await`.
//! [`MiniTx::commit`] assigns the LSN and sets it on the pages under `state`, so a caller that has read
//! [`Wal::end`] finds every earlier record in the store's `min_recovery_lsn`.
//!
//! [`MiniTx::commit`]: crate::MiniTx::commit

pub(crate) mod archive;
mod end;
mod frees;
mod generation;
pub(crate) mod minitx;
mod open;
pub(crate) mod room;
pub(crate) mod segments;
pub(crate) mod truncate;
pub(crate) mod unfit;

use crate::archive::Archive;
use crate::error::WalError;
use crate::guard::Guard;
use crate::log::segments::{FIRST_LSN, Segments};
use crate::options::{Keep, WalOptions};
use crate::record::{self, Kind};
use pagetier::log::{LogMark, LogNeeds};
use pagetier::{Lsn, PageId, PageStore, SpaceId};
use pagetier_devio::{Claim, Owner};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;

/// The number of pages that the store frees with one write.
pub(crate) const FREES_AT_ONCE: usize = 128;

#[derive(Debug)]
struct Output {
    segments: Segments,
    /// Bytes that are not durable and have left `State::buf`.
    writing: Vec<u8>,
    /// The medium has everything up to here, durably.
    reached: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Records appended since the last flush began.
    buf: Vec<u8>,
    end: u64,
    unapplied: BTreeSet<u64>,
    /// Records that say that a commit was applied, and the commit. It counts as unapplied until they are
    /// durable: a log without both would not repeat it, though its changes may not be durable either.
    applied: VecDeque<(u64, u64)>,
    /// The pages that records have freed and the store has not, each after its record's LSN.
    pub(crate) frees: BTreeSet<(u64, PageId)>,
    next_signal: u64,
    holds: BTreeMap<u64, u64>,
    next_hold: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    options: WalOptions,
    pub(crate) state: Mutex<State>,
    output: Mutex<Output>,
    durable: AtomicU64,
    /// The start of the segment where a recovery after a crash begins.
    needed: AtomicU64,
    /// The start of the segment where the next open would begin to read after a crash.
    redo: AtomicU64,
    /// See [`Wal::crowded`].
    crowded: AtomicU64,
    /// The start of the log's oldest segment, which a [`Hold`] may keep.
    oldest: AtomicU64,
    end: AtomicU64,
    id: u64,
    owner: Owner,
    blocks: bool,
    /// The generation whose records are appended; 0: none.
    generation: AtomicU64,
    /// The generation that the store asked for has begun.
    owned: AtomicBool,
    /// What the store said of its log when it opened.
    needs: Mutex<LogNeeds>,
    /// The position after which the pages need the log, as the store has recorded it.
    from: AtomicU64,
    /// What the store has recorded last.
    recorded: Mutex<Option<LogMark>>,
    /// The pages' store, which records what it needs of the log.
    store: Mutex<Weak<PageStore>>,
    /// That store's claim, which counts for the log once the store is gone, too.
    claim: Mutex<Option<Claim>>,
    /// A segment was created since the store recorded what it needs of the log.
    unmarked: AtomicBool,
    /// The store was opened for reading only: nothing may be written.
    reads_only: AtomicBool,
    /// A store was opened with the log and not recovered: nothing may be appended.
    awaits_recovery: AtomicBool,
    /// A page has an LSN that this log has not reached: the log is older than the pages.
    behind: OnceLock<(u64, u64)>,
    failing: AtomicBool,
    /// The medium was full, and the log has not been shortened since: the reserve may be used up.
    tight: AtomicBool,
    /// The log up to here should go, because its medium is full or almost so, or because it may not be
    /// longer; 0: there is space. A copy of what the segments say, which a write may hold for long.
    to_go: AtomicU64,
    /// The position up to which the oldest segment alone would go that the pages need.
    next_to_go: AtomicU64,
    /// The record that ends here, and later ones, are needed by the pages, for whatever the log is kept.
    kept: AtomicU64,
    /// Where the log ended at the open.
    found: AtomicU64,
    /// How many segments' worth of records there were when pages went home last in shares.
    shared: AtomicU64,
    /// The start of the second segment: the first one goes once no earlier record is kept.
    second: AtomicU64,
    /// Almost all that the log may have is in use: changes wait for a checkpoint.
    scarce: AtomicBool,
    /// No truncation will follow: waiting for one is pointless.
    abandoned: AtomicBool,
    /// Nothing is appended any more. Set under `state`.
    ending: AtomicBool,
    /// The medium was given back. Set under `output`.
    closed: AtomicBool,
    /// The most bytes that a record can have.
    record_bytes_max: u64,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The number of writes that have begun.
    writes: AtomicU64,
    /// The write that has ended last; also notified of other operations' ends.
    ended: watch::Sender<Ended>,
    /// Held while the store frees pages: see `frees.rs`.
    pub(crate) freeing: tokio::sync::Mutex<()>,
    /// One checkpoint at a time: a second one would find the reserve in use before it is set aside anew.
    pub(crate) checkpoints: tokio::sync::Mutex<()>,
    grown: Arc<Notify>,
    truncated: Notify,
    archive: OnceLock<Arc<Archive>>,
}

/// The end of a write.
#[derive(Clone, Debug)]
struct Ended {
    /// Its number, from 1.
    number: u64,
    /// Whether it might use the reserve.
    or_reserve: bool,
    result: Result<(), WalError>,
}

/// The right to use the medium: see the module.
struct Turn {
    log: Arc<Shared>,
    /// `None` only in the drop.
    permit: Option<OwnedMutexGuard<()>>,
    /// Of a write: what its end will be.
    ends: Option<Ended>,
}

impl Turn {
    /// Writes on a thread that may block.
    fn write(mut self, or_reserve: bool) -> JoinHandle<Result<(), WalError>> {
        let number = 1 + self.log.writes.fetch_add(1, Ordering::AcqRel);
        // Until it has ended otherwise: a runtime that ends may drop it before it begins.
        self.ends = Some(Ended { number, or_reserve, result: Err(WalError::Stopped) });
        tokio::task::spawn_blocking(move || {
            let result = self.log.write_out(or_reserve);
            self.ends = Some(Ended { number, or_reserve, result: result.clone() });
            drop(self);
            result
        })
    }
}

/// Dropped: all who wait for the turn try to get it.
struct LooksAgain<'a>(&'a Shared);

impl Drop for LooksAgain<'_> {
    fn drop(&mut self) {
        self.0.ended.send_modify(|_| ());
    }
}

/// Takes what was written out of the vector when it is dropped. To do so after each segment of a large batch
/// would move the rest as often.
struct Written<'a> {
    bytes: &'a mut Vec<u8>,
    len: usize,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.bytes.drain(..self.len);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In this order: the next one to have the turn knows how this write ended, and is told once it can
        // have it.
        if let Some(ends) = self.ends.take() {
            self.log.ended.send_if_modified(|last| {
                *last = ends;
                false
            });
        }
        self.permit = None;
        self.log.ended.send_modify(|_| ());
    }
}

impl State {
    /// The oldest record that the log needs whatever the pages hold: of a commit whose operations are not all
    /// applied, or of a free that the store has not made.
    fn oldest_unfinished(&mut self, durable: u64) -> Option<u64> {
        while let Some((lsn, commit)) = self.applied.front().copied()
            && lsn <= durable
        {
            self.applied.pop_front();
            self.unapplied.remove(&commit);
        }
        let (commit, free) = (self.unapplied.first().copied(), self.frees.first().map(|(lsn, _)| *lsn));
        commit.into_iter().chain(free).min()
    }
}

/// The log; clones share it. See [`LoggedStore`](crate::LoggedStore) for the log and its store in one.
#[derive(Clone, Debug)]
pub struct Wal(pub(crate) Arc<Shared>);

impl Wal {
    /// The log's identity. An engine stores it in its pages and compares both before redo: the log of another
    /// store would overwrite this one's pages.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The log's end: the LSN of the newest record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.0.state.lock().end)
    }

    /// The position up to which the log is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        Lsn(self.0.durable.load(Ordering::Acquire))
    }

    /// Whether no record was ever written.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.end().0 == FIRST_LSN
    }

    /// Whether the log still begins with its first record, or has none yet: redo then needs nothing else.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.oldest().0 == FIRST_LSN
    }

    pub(crate) fn keep(&self) -> Keep {
        self.0.options.keep
    }

    /// Whether the last write failed. The next [`Wal::flush`] retries it.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.0.failing.load(Ordering::Acquire)
    }

    /// The position after which the log holds every record.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        Lsn(self.0.oldest.load(Ordering::Acquire))
    }

    /// The length since the position from which a crash needs the log at which [`Wal::has_space`] waits, in
    /// bytes. What is kept for the loss of the SSD has a limit of its own.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.0.options.capacity_bytes
    }

    /// The most bytes that a record can have: the capacity, or the space of a segment on a device if that is
    /// less. A record has 17 bytes, then 8 for each page of a [`MiniTx`](crate::MiniTx), up to 8 for each of
    /// its operations, the bytes that these write, and 8 for each page that it frees; or, of
    /// [`Wal::append_commit`], 17 bytes and the operations.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.0.record_bytes_max
    }

    /// Refuses a record that no segment can take, before anything of it is in the log: from memory it would
    /// keep all later ones from becoming durable.
    fn fits(&self, bytes: u64) -> Result<(), WalError> {
        let bytes_max = self.record_bytes_max();
        if bytes > bytes_max { Err(WalError::TooLong { bytes, bytes_max }) } else { Ok(()) }
    }

    /// Appends the operations of a mini-transaction and sets its LSN on the pages.
    ///
    /// # Errors
    /// [`WalError::TooLong`], [`WalError::Stopped`].
    pub(crate) fn append_pages<G: Guard>(
        &self,
        pages: &mut [G],
        ops: &[u8],
        freed: &[PageId],
    ) -> Result<Lsn, WalError> {
        self.fits(record::pages_bytes(pages.len(), ops, freed.len()))?;
        let mut state = self.0.to_append()?;
        let at = state.end;
        if let Some(newest) = pages.iter().map(|page| page.lsn().0).max().filter(|newest| *newest > at) {
            // The records that made the page as it is are missing. Redo would skip this one, since the page
            // has a later LSN: nothing is durable from here on.
            let _ = self.0.behind.set((newest, at));
        }
        let lsn = record::put_pages(&mut state.buf, at, pages, ops, freed);
        for page in pages {
            // A page that the record itself frees stays below it: from the record's LSN on, a page is of the
            // number's next life (see `redo`).
            page.set_lsn(Lsn(lsn - u64::from(freed.contains(&page.id()))));
        }
        // Under the lock that assigns the LSN, like those of the pages: a checkpoint that has read a later
        // end keeps this record until the store has freed the pages.
        state.frees.extend(freed.iter().map(|page| (lsn, *page)));
        if state.frees.len() >= FREES_AT_ONCE {
            self.signal_grown();
        }
        Ok(self.appended(&mut state, lsn))
    }

    /// Appends a transaction's operations, for an engine whose transactions take several mini-transactions:
    /// the commit counts as unapplied until [`Wal::append_applied`], and the log keeps its record. Durable
    /// once [`Wal::flush`] of the LSN returns; apply the operations only then.
    ///
    /// # Errors
    /// [`WalError::TooLong`], and [`WalError::Stopped`] if the log is being closed: nothing was appended.
    pub fn append_commit(&self, operations: &[u8]) -> Result<Lsn, WalError> {
        self.fits(record::bytes_with(operations.len()))?;
        let mut state = self.0.to_append()?;
        let at = state.end;
        let lsn = record::put(&mut state.buf, at, Kind::Commit, |body| body.extend_from_slice(operations));
        state.unapplied.insert(lsn);
        Ok(self.appended(&mut state, lsn))
    }

    /// Records that every operation of the commit at `commit` has been applied to the trees' pages, and has
    /// its page record in the log. If the log is being closed, appends nothing, and the next open returns the
    /// commit again; the result is the log's end then.
    pub fn append_applied(&self, commit: Lsn) -> Lsn {
        let Ok(mut state) = self.0.to_append() else { return self.end() };
        let at = state.end;
        let lsn = record::put(&mut state.buf, at, Kind::Applied, |body| {
            body.extend_from_slice(&commit.0.to_le_bytes());
        });
        state.applied.push_back((lsn, commit.0));
        state.oldest_unfinished(self.durable().0);
        self.appended(&mut state, lsn)
    }

    /// Appends that a space is removed: redo needs none of its pages. See
    /// [`LoggedStore::drop_space`](crate::LoggedStore::drop_space).
    pub(crate) fn append_removal(&self, space: SpaceId) -> Result<Lsn, WalError> {
        let mut state = self.0.to_append()?;
        let at = state.end;
        let lsn = record::put(&mut state.buf, at, Kind::Removal, |body| {
            body.extend_from_slice(&u64::from(space.0).to_le_bytes());
        });
        Ok(self.appended(&mut state, lsn))
    }

    fn appended(&self, state: &mut State, lsn: u64) -> Lsn {
        state.end = lsn;
        self.0.end.store(lsn, Ordering::Release);
        if lsn >= state.next_signal {
            state.next_signal = lsn + self.0.options.capacity_bytes / 32;
            self.signal_grown();
        }
        Lsn(lsn)
    }

    /// Makes the log durable at least up to `lsn`. Cancel-safe: a write that has begun continues without its
    /// caller.
    ///
    /// # Errors
    /// The medium failed. The records stay in memory; a later flush may make them durable.
    pub async fn flush(&self, lsn: Lsn) -> Result<(), WalError> {
        self.flush_record(lsn, false).await
    }

    /// As [`Wal::flush`], in the reserve if the medium is full: for records that give space back.
    pub(crate) async fn flush_or_reserve(&self, lsn: Lsn) -> Result<(), WalError> {
        self.flush_record(lsn, true).await
    }

    pub(crate) async fn flush_record(&self, lsn: Lsn, or_reserve: bool) -> Result<(), WalError> {
        self.check_owner()?;
        if self.durable() >= lsn {
            return Ok(());
        }
        if self.0.awaits_recovery.load(Ordering::Acquire) {
            return Err(WalError::NotRecovered);
        }
        let written = self.write(lsn, or_reserve).await;
        let log = self.durable();
        if log >= lsn {
            // Even if the write failed: it may have been split, and its later part is what failed.
            return Ok(());
        }
        written?;
        // A page with such an LSN was written when the log reached it.
        Err(WalError::Behind { page: lsn, log })
    }

    /// Writes the record at `lsn` and makes it durable on the medium.
    async fn write(&self, lsn: Lsn, or_reserve: bool) -> Result<(), WalError> {
        if !self.0.blocks {
            return self.0.write_out(or_reserve);
        }
        // Mostly no write is under way, and there is none to listen to.
        if let Ok(permit) = Arc::clone(&self.0.turn).try_lock_owned() {
            let turn = self.turn(permit);
            // One may have ended since the caller looked.
            if self.durable() >= lsn {
                return Ok(());
            }
            return turn.write(or_reserve).await.unwrap_or(Err(WalError::Stopped));
        }
        let mut ended = self.0.ended.subscribe();
        // A write that has begun may have left the record behind.
        let covering = 1 + self.0.writes.load(Ordering::Acquire);
        let met = |last: &Ended| {
            let is_covered = last.number >= covering && last.or_reserve >= or_reserve;
            if self.durable() >= lsn { Some(Ok(())) } else { is_covered.then(|| last.result.clone()) }
        };
        loop {
            // Without the turn, which the next writer needs: most who wait find that a write has met them.
            if let Some(met) = met(&ended.borrow_and_update()) {
                return met;
            }
            let Ok(permit) = Arc::clone(&self.0.turn).try_lock_owned() else {
                ended.changed().await.map_err(|_| WalError::Stopped)?;
                continue;
            };
            let turn = self.turn(permit);
            // A write may have ended meanwhile. A turn that is given back lets the others look again.
            if let Some(met) = met(&ended.borrow_and_update()) {
                return met;
            }
            return turn.write(or_reserve).await.unwrap_or(Err(WalError::Stopped));
        }
    }

    fn turn(&self, permit: OwnedMutexGuard<()>) -> Turn {
        Turn { log: Arc::clone(&self.0), permit: Some(permit), ends: None }
    }

    /// Refuses what a forked process does with its parent's log, before it takes a lock: a thread that does
    /// not exist in this process may hold that.
    pub(crate) fn check_owner(&self) -> Result<(), WalError> {
        let owner = self.0.owner;
        if owner.is_here() { Ok(()) } else { Err(WalError::Forked { opened_by: owner.pid() }) }
    }

    /// The oldest commit of which the log does not durably say that all its operations are applied, or record
    /// of a free that the store has not made: the log keeps it.
    #[must_use]
    pub fn oldest_unfinished(&self) -> Option<Lsn> {
        let durable = self.durable().0;
        self.0.state.lock().oldest_unfinished(durable).map(Lsn)
    }

    /// Makes durable which commits are applied: the log needs their records no longer.
    pub(crate) async fn flush_applied(&self) -> Result<(), WalError> {
        let last = self.0.state.lock().applied.back().map_or(0, |(lsn, _)| *lsn);
        self.flush_or_reserve(Lsn(last)).await
    }

    /// Where a recovery begins to read, and the segments from there on, oldest first.
    pub(crate) fn needed_starts(&self) -> (u64, Vec<u64>) {
        let needed = self.0.needed.load(Ordering::Acquire);
        (needed, self.segment_starts().into_iter().filter(|start| needed <= *start).collect())
    }

    /// The segments' positions, oldest first.
    #[must_use]
    pub fn segment_starts(&self) -> Vec<u64> {
        self.0.output.lock().segments.starts()
    }

    /// The durable records of one segment, as bytes.
    ///
    /// # Errors
    /// The medium failed.
    pub fn segment(&self, start: u64) -> Result<Vec<u8>, WalError> {
        self.check_owner()?;
        // The lock keeps further records from becoming durable.
        let mut output = self.0.output.lock();
        self.0.check_open()?;
        let durable = output.reached;
        output.segments.read(start, durable)
    }

    /// The version of the log's format.
    pub(crate) fn format(&self) -> u32 {
        self.0.output.lock().segments.format(0)
    }

    /// The durable part of one segment up to `end`, for a copy of the log.
    pub(crate) fn whole_segment(&self, start: u64, end: Lsn) -> Result<Vec<u8>, WalError> {
        let mut output = self.0.output.lock();
        self.0.check_open()?;
        let end = output.reached.min(end.0);
        output.segments.whole(start, end)
    }

    /// Takes over what recovery found unfinished: commits without an `Applied`, and frees.
    pub(crate) fn readopt(
        &self,
        commits: impl Iterator<Item = Lsn>,
        frees: impl Iterator<Item = (u64, PageId)>,
    ) {
        let mut state = self.0.state.lock();
        state.unapplied.extend(commits.map(|commit| commit.0));
        state.frees.extend(frees);
    }
}

impl Shared {
    /// Runs `step`, which may block, where it blocks no task.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        step: impl FnOnce(&Self) -> Result<T, WalError> + Send + 'static,
    ) -> Result<T, WalError> {
        if !self.blocks {
            return step(self);
        }
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || step(&shared)).await.map_err(|_| WalError::Stopped)?
    }

    /// Takes the log into use: what was found is durable from here on.
    fn ready(&self, output: &mut Output) -> Result<(), WalError> {
        self.check_open()?;
        if !output.segments.is_ready() {
            output.segments.ready()?;
            output.segments.reserve(self.options.segment_bytes());
            self.note_space(&output.segments);
            self.durable.fetch_max(output.reached, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes everything appended so far and makes it durable. Blocks; one caller at a time.
    pub(crate) fn write_out(&self, or_reserve: bool) -> Result<(), WalError> {
        let mut output = self.output.lock();
        if self.reads_only.load(Ordering::Acquire) {
            let is_idle = output.writing.is_empty() && self.state.lock().buf.is_empty();
            return if is_idle { Ok(()) } else { Err(WalError::ReadOnly) };
        }
        self.check_claim()?;
        self.ready(&mut output)?;
        let Output { segments, writing, reached } = &mut *output;
        // Once more: that may have taken its time.
        self.check_claim()?;
        // A record of an archived log counts once the mark of its time is durable, too: a restoration to a
        // later moment would leave it out otherwise, although it was confirmed before.
        let timed = self.archive.get().is_some();
        // What was written while the claim had lapsed.
        let counts = !timed || writing.is_empty();
        if counts && self.durable.fetch_max(*reached, Ordering::AcqRel) < *reached {
            self.unmarked.store(true, Ordering::Release);
        }
        let end = {
            let mut state = self.state.lock();
            // Under the lock that assigns LSNs: a record of such a page never becomes durable.
            if let Some((page, log)) = self.behind.get() {
                return Err(WalError::Behind { page: Lsn(*page), log: Lsn(*log) });
            }
            self.mark_time(&mut state);
            if writing.is_empty() {
                std::mem::swap(&mut state.buf, writing);
            } else {
                writing.append(&mut state.buf);
            }
            state.end
        };
        // Split a large batch into several segments, so that truncation can remove the old ones.
        let segment_bytes = segments.usual_bytes(self.options);
        let most = usize::try_from(segments.segment_bytes_max()).unwrap_or(usize::MAX);
        let mut written = Written { bytes: writing, len: 0 };
        while written.len < written.bytes.len() {
            // Another owner's log may be where this would be written.
            self.check_claim()?;
            let rest = &mut written.bytes[written.len..];
            let start = end - rest.len() as u64;
            let chunk = record::whole_records(rest, segment_bytes as usize, most);
            record::begin_batch(&mut rest[..chunk]);
            let appended = segments.append(start, &rest[..chunk], segment_bytes, or_reserve);
            self.failing.store(appended.is_err(), Ordering::Release);
            // Also if the reserve took it, which a checkpoint sets aside anew.
            self.tight.fetch_or(segments.was_full(), Ordering::AcqRel);
            self.note_space(segments);
            let is_new = appended?;
            *reached = start + chunk as u64;
            written.len += chunk;
            // Written, but perhaps after another owner had read the log: this process may have been stopped.
            let confirmed = self.check_claim();
            if confirmed.is_ok() && (!timed || written.len == written.bytes.len()) {
                self.durable.fetch_max(*reached, Ordering::AcqRel);
            }
            // The record says how far the log reaches, this write included.
            self.unmarked.fetch_or(is_new, Ordering::AcqRel);
            if is_new || segments.was_full() {
                self.grown.notify_one();
                self.note_closed();
            }
            confirmed?;
        }
        Ok(())
    }

    /// Refuses an owner that may not be one any more, and a log that was closed.
    fn check_claim(&self) -> Result<(), WalError> {
        self.check_open()?;
        let claim = self.claim.lock();
        if claim.as_ref().is_none_or(Claim::holds) { Ok(()) } else { Err(WalError::Fenced) }
    }
}
