//! A small write-ahead log: page-oriented physical redo, logical commits, group commit, fuzzy checkpoints.
//!
//! **Positions.** An LSN is the log position at which its record *ends*; a record is durable when the log is
//! durable up to its LSN. Page records carry the changed ranges and are applied where `page.lsn <
//! record.lsn`, so redo may start anywhere and be repeated.
//!
//! **Transactions** do not touch pages before they commit. `Commit` carries the row operations, which are
//! idempotent. Once it is durable they are applied to the trees (each with its page record); then `Applied`
//! is written. Recovery repeats the pages' history, then executes the operations of every commit without an
//! `Applied`. There is nothing to undo, although dirty pages may be written at any time (steal), and none
//! must be written at commit (no-force).
//!
//! **Group commit.** The first commit that needs durability writes and syncs on behalf of all that wait.
//!
//! **Locks.** `sink` before `state`; neither is held across an `.await`. [`MiniTx::commit`] assigns the LSN
//! and sets it on the pages under `state`, so a caller that has read [`Wal::end`] finds every earlier record
//! in the store's `min_recovery_lsn`.

mod file;
mod minitx;
mod record;
mod redo;
#[cfg(test)]
mod tests;

pub(crate) use minitx::MiniTx;
pub(crate) use redo::{RedoError, Redone, redo};

use file::FileLog;
use pagetier::{LogGate, Lsn, PageMut};
use parking_lot::Mutex;
use record::{Kind, Record, Records};
use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// The start of a new log: above zero, the LSN of a page that no record has touched.
const FIRST_LSN: u64 = 64;

/// What went wrong with the log.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum WalError {
    /// A file operation failed. Nothing is written to the log after that.
    #[error("log {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another process has the log open.
    #[error("log {path}: it is in use, here or in another process")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A segment with a successor ends in the middle of a record.
    #[error("log {path}: damaged at position {at}, though later segments exist")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The position of the first unreadable record.
        at: u64,
    },
    /// The background write did not complete.
    #[error("the log writer was stopped")]
    Stopped,
}

/// Limits of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalLimits {
    /// Transactions wait while the log is larger than this, in bytes.
    pub(crate) capacity_bytes: u64,
}

impl WalLimits {
    fn segment_bytes(self) -> u64 {
        (self.capacity_bytes / 16).clamp(64 << 10, 64 << 20)
    }
}

/// Log segments in memory, for stores that live no longer than the process.
#[derive(Debug, Default)]
struct MemoryLog {
    segments: VecDeque<(u64, Vec<u8>)>,
}

#[derive(Debug)]
enum Sink {
    File(FileLog),
    Memory(MemoryLog),
}

#[derive(Debug)]
struct Output {
    sink: Sink,
    /// The bytes being written; swapped with the buffer that records are appended to.
    writing: Vec<u8>,
    failed: Option<WalError>,
}

#[derive(Debug)]
struct State {
    /// Records appended since the last flush began.
    buf: Vec<u8>,
    end: u64,
    unapplied: BTreeSet<u64>,
    next_signal: u64,
}

#[derive(Debug)]
struct Shared {
    limits: WalLimits,
    state: Mutex<State>,
    output: Mutex<Output>,
    durable: AtomicU64,
    oldest: AtomicU64,
    end: AtomicU64,
    in_memory: bool,
    /// The log will not be truncated any more: waiting for that is pointless.
    abandoned: AtomicBool,
    leader: tokio::sync::Mutex<()>,
    grown: Notify,
    truncated: Notify,
}

/// The log; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Wal(Arc<Shared>);

impl Wal {
    /// A log in memory: without delay, and lost with the process.
    pub(crate) fn in_memory(limits: WalLimits) -> Self {
        let sink = Sink::Memory(MemoryLog { segments: VecDeque::from([(FIRST_LSN, Vec::new())]) });
        Self::new(sink, limits, FIRST_LSN, FIRST_LSN)
    }

    /// Opens the log in `dir`, or creates an empty one. Cuts off a torn tail, which was never durable.
    pub(crate) fn open(dir: &Path, limits: WalLimits) -> Result<Self, WalError> {
        let (log, oldest, end) = FileLog::open(dir, FIRST_LSN)?;
        Ok(Self::new(Sink::File(log), limits, oldest, end))
    }

    fn new(sink: Sink, limits: WalLimits, oldest: u64, end: u64) -> Self {
        let in_memory = matches!(sink, Sink::Memory(_));
        let next_signal = end + limits.capacity_bytes / 32;
        Self(Arc::new(Shared {
            limits,
            state: Mutex::new(State { buf: Vec::new(), end, unapplied: BTreeSet::new(), next_signal }),
            output: Mutex::new(Output { sink, writing: Vec::new(), failed: None }),
            durable: AtomicU64::new(end),
            oldest: AtomicU64::new(oldest),
            end: AtomicU64::new(end),
            in_memory,
            abandoned: AtomicBool::new(false),
            leader: tokio::sync::Mutex::new(()),
            grown: Notify::new(),
            truncated: Notify::new(),
        }))
    }

    /// The log's end: the LSN of the newest record.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.0.state.lock().end)
    }

    /// Bytes from the oldest retained segment to the end.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.0.end.load(Ordering::Acquire).saturating_sub(self.0.oldest.load(Ordering::Acquire))
    }

    /// The log's size at which transactions wait, in bytes.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.0.limits.capacity_bytes
    }

    /// Appends the operations of a mini-transaction and sets its LSN on the pages.
    fn append_pages(&self, pages: &mut [PageMut<'_>], ops: &[u8]) -> Lsn {
        let mut state = self.0.state.lock();
        let at = state.end;
        let lsn = record::put_pages(&mut state.buf, at, pages, ops);
        for page in pages {
            page.set_lsn(Lsn(lsn));
        }
        self.appended(&mut state, lsn)
    }

    /// Appends a transaction's row operations; it counts as unapplied until [`Wal::append_applied`].
    pub(crate) fn append_commit(&self, operations: &[u8]) -> Lsn {
        let mut state = self.0.state.lock();
        let at = state.end;
        let lsn = record::put(&mut state.buf, at, Kind::Commit, |body| body.extend_from_slice(operations));
        state.unapplied.insert(lsn);
        self.appended(&mut state, lsn)
    }

    /// Records that every operation of the commit at `commit` is in the trees' pages, and its page record in
    /// the log.
    pub(crate) fn append_applied(&self, commit: Lsn) -> Lsn {
        let mut state = self.0.state.lock();
        let at = state.end;
        let lsn = record::put(&mut state.buf, at, Kind::Applied, |body| {
            body.extend_from_slice(&commit.0.to_le_bytes());
        });
        state.unapplied.remove(&commit.0);
        self.appended(&mut state, lsn)
    }

    fn appended(&self, state: &mut State, lsn: u64) -> Lsn {
        state.end = lsn;
        self.0.end.store(lsn, Ordering::Release);
        if lsn >= state.next_signal {
            state.next_signal = lsn + self.0.limits.capacity_bytes / 32;
            self.signal_grown();
        }
        Lsn(lsn)
    }

    /// Makes the log durable at least up to `lsn`. Cancel-safe: a write that has begun continues without the
    /// caller.
    pub(crate) async fn flush(&self, lsn: Lsn) -> Result<(), WalError> {
        if self.0.durable.load(Ordering::Acquire) >= lsn.0 {
            return Ok(());
        }
        if self.0.in_memory {
            return self.0.write_out();
        }
        let _leader = self.0.leader.lock().await;
        if self.0.durable.load(Ordering::Acquire) >= lsn.0 {
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || shared.write_out()).await.map_err(|_| WalError::Stopped)?
    }

    /// Waits until the log has grown by another fraction of its capacity.
    pub(crate) async fn grown(&self) {
        self.0.grown.notified().await;
    }

    /// Wakes the current or the next call of [`Wal::grown`].
    pub(crate) fn signal_grown(&self) {
        self.0.grown.notify_one();
    }

    /// Waits until the log is below its capacity, or abandoned. Callers must hold no locks and no pages.
    pub(crate) async fn has_room(&self) {
        let full =
            || self.len_bytes() > self.0.limits.capacity_bytes && !self.0.abandoned.load(Ordering::Acquire);
        while full() {
            let truncated = self.0.truncated.notified();
            tokio::pin!(truncated);
            truncated.as_mut().enable();
            if !full() {
                return;
            }
            self.signal_grown();
            truncated.await;
        }
    }

    /// Releases all tasks that wait for room: checkpoints have ended.
    pub(crate) fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.0.truncated.notify_waiters();
    }

    /// The oldest unapplied commit.
    pub(crate) fn oldest_unapplied(&self) -> Option<Lsn> {
        self.0.state.lock().unapplied.first().copied().map(Lsn)
    }

    /// Whether [`Wal::truncate`] would probably remove a segment.
    pub(crate) fn can_truncate(&self, keep: Lsn) -> bool {
        keep.0.saturating_sub(self.0.oldest.load(Ordering::Acquire)) > self.0.limits.segment_bytes()
    }

    /// Removes the segments whose records are all older than `keep`.
    pub(crate) async fn truncate(&self, keep: Lsn) -> Result<(), WalError> {
        let shared = Arc::clone(&self.0);
        let cut = move || shared.truncate(keep.0);
        if self.0.in_memory {
            cut()?;
        } else {
            tokio::task::spawn_blocking(cut).await.map_err(|_| WalError::Stopped)??;
        }
        self.0.truncated.notify_waiters();
        Ok(())
    }

    /// The durable segments, oldest first, which a recovery reads.
    fn segment_starts(&self) -> Vec<u64> {
        match &self.0.output.lock().sink {
            Sink::File(log) => log.starts(),
            Sink::Memory(log) => log.segments.iter().map(|s| s.0).collect(),
        }
    }

    /// The records of one durable segment.
    fn segment(&self, start: u64) -> Result<Vec<u8>, WalError> {
        match &self.0.output.lock().sink {
            Sink::File(log) => log.read(start),
            Sink::Memory(log) => {
                Ok(log.segments.iter().find(|s| s.0 == start).map(|s| s.1.clone()).unwrap_or_default())
            }
        }
    }

    /// Marks a commit that recovery found without its `Applied` as unapplied again.
    fn readopt(&self, commit: Lsn) {
        self.0.state.lock().unapplied.insert(commit.0);
    }
}

impl Shared {
    /// Writes and syncs everything appended so far. Blocks; one caller at a time.
    fn write_out(&self) -> Result<(), WalError> {
        let mut output = self.output.lock();
        if let Some(error) = &output.failed {
            return Err(error.clone());
        }
        let Output { sink, writing, failed } = &mut *output;
        let end = {
            let mut state = self.state.lock();
            std::mem::swap(&mut state.buf, writing);
            state.end
        };
        let start = end - writing.len() as u64;
        let written = match sink {
            Sink::File(log) => log.append(start, writing, self.limits.segment_bytes()),
            Sink::Memory(log) => {
                log.append(start, writing, self.limits.segment_bytes());
                Ok(())
            }
        };
        writing.clear();
        match written {
            Ok(()) => self.durable.store(end, Ordering::Release),
            Err(error) => {
                *failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn truncate(&self, keep: u64) -> Result<(), WalError> {
        let mut output = self.output.lock();
        let oldest = match &mut output.sink {
            Sink::File(log) => log.truncate(keep)?,
            Sink::Memory(log) => log.truncate(keep),
        };
        self.oldest.store(oldest, Ordering::Release);
        Ok(())
    }
}

impl MemoryLog {
    fn append(&mut self, start: u64, bytes: &[u8], segment_bytes: u64) {
        match self.segments.back_mut() {
            Some((_, last)) if (last.len() as u64) < segment_bytes => last.extend_from_slice(bytes),
            _ => self.segments.push_back((start, bytes.to_vec())),
        }
    }

    fn truncate(&mut self, keep: u64) -> u64 {
        while self.segments.len() > 1 && self.segments[1].0 < keep {
            self.segments.pop_front();
        }
        self.segments.front().map_or(FIRST_LSN, |s| s.0)
    }
}

impl LogGate for Wal {
    fn make_durable(
        &self,
        lsn: Lsn,
    ) -> Pin<Box<dyn Future<Output = Result<(), Arc<dyn Error + Send + Sync>>> + Send + '_>> {
        Box::pin(async move {
            self.flush(lsn).await.map_err(|error| Arc::new(error) as Arc<dyn Error + Send + Sync>)
        })
    }
}
