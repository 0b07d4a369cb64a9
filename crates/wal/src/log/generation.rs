//! Whose log it is: the store checks the log that it opens with, begins a generation in it, and records how
//! far it needs it (`docs/log.md`, I45).

use super::{Shared, Wal};
use crate::error::WalError;
use crate::log::segments::Segment;
use crate::log::unfit::{self, Fit, UnfitLog};
use pagetier::log::{GateError, GateFuture, LogMark, LogNeeds};
use pagetier::{LogGate, Lsn, PageStore};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Wal {
    /// The log as a store's gate. The gate does not keep the log open: tasks of a dropped store may hold it
    /// for a while, and would lock out the log's next opener.
    #[must_use]
    pub fn gate(&self) -> Arc<dyn LogGate> {
        Arc::new(Gate(Arc::downgrade(&self.0)))
    }

    /// What a store records of the log at this moment. For pages that are copied by other means than a
    /// backup: give it to their store ([`PageStore::record_log`]), with `restored` set, before it opens with
    /// a copy of the log.
    #[must_use]
    pub fn mark(&self) -> LogMark {
        self.0.mark_at(self.durable().0, self.0.from.load(Ordering::Acquire))
    }

    /// Makes durable what the open found: a page must not be newer than the log.
    pub(crate) async fn make_found_durable(&self) -> Result<(), WalError> {
        self.0.run(Shared::make_found_durable).await
    }

    /// Begins the store's present generation in the log: what is appended from now on belongs to it. Returns
    /// what the store is to record before that.
    pub(crate) async fn begin(&self) -> Result<Option<LogMark>, WalError> {
        self.0.run(Shared::begin).await
    }

    /// Takes records from now on: the store has recorded their generation.
    pub(crate) fn recovered(&self) {
        self.0.awaits_recovery.store(false, Ordering::Release);
    }

    /// The store records from now on what it needs of the log.
    pub(crate) fn attach(&self, store: &Arc<PageStore>) {
        *self.0.store.lock() = Arc::downgrade(store);
        *self.0.claim.lock() = store.claim();
    }

    /// What the store said of its log when it opened.
    pub(crate) fn needs(&self) -> LogNeeds {
        *self.0.needs.lock()
    }

    /// After a new segment the store records that the log reaches it: should the segment be missing at the
    /// next open, the store knows (I45). Checkpoints do so, and no commit waits for it: the manifest may
    /// be held by the very write that makes its page's record durable.
    pub(crate) async fn note_segment(&self) {
        if self.0.unmarked.swap(false, Ordering::AcqRel)
            && let Err(error) = self.record(Lsn(0)).await
        {
            // The store knows less of its log than it could until the next checkpoint; no change is lost.
            self.0.unmarked.store(true, Ordering::Release);
            let error = pagetier::errors::Causes(&error);
            tracing::debug!(%error, "the store cannot record how far its log reaches");
        }
    }

    /// Lets the store record that the log is durable up to `end` at least, which it is.
    pub(crate) async fn record_end(&self, end: Lsn) -> Result<(), pagetier::Error> {
        if self.0.recorded.lock().is_some_and(|mark| mark.end >= end) {
            return Ok(());
        }
        self.record(Lsn(0)).await
    }

    /// Lets the store record that its pages need the log from the record that ends at `needed` on, and that
    /// the log is durable up to its present end.
    pub(crate) async fn record(&self, needed: Lsn) -> Result<(), pagetier::Error> {
        if !self.0.is_owned() {
            return Ok(());
        }
        let store = self.0.store.lock().upgrade().ok_or(pagetier::Error::Closed)?;
        let needed = needed.min(self.oldest_unfinished().unwrap_or(needed));
        // A record that ends at this position or before is not needed. Never beyond what is durable: after a
        // crash, other records may follow there.
        let durable = self.durable().0;
        let from = needed.0.saturating_sub(1).min(durable).max(self.0.from.load(Ordering::Acquire));
        let mark = self.0.mark_at(durable, from);
        // A store that was closed has recorded the last of them.
        if self.0.recorded.lock().as_ref() != Some(&mark) {
            store.record_log(mark).await?;
            self.0.from.fetch_max(from, Ordering::AcqRel);
            *self.0.recorded.lock() = Some(mark);
        }
        Ok(())
    }
}

impl Shared {
    pub(super) fn mark_at(&self, end: u64, from: u64) -> LogMark {
        let generation = self.generation.load(Ordering::Acquire);
        LogMark { id: self.id, generation, end: Lsn(end), from: Lsn(from), restored: false }
    }

    /// See [`LogGate::check`].
    fn check(&self, needs: &LogNeeds) -> Result<(), UnfitLog> {
        *self.needs.lock() = *needs;
        self.reads_only.store(needs.reads_only, Ordering::Release);
        let mut output = self.output.lock();
        let found: Vec<Segment> = output.segments.found().copied().collect();
        let log = unfit::Log {
            id: self.id,
            segments: &found,
            oldest: self.oldest.load(Ordering::Acquire),
            end: output.reached,
        };
        match unfit::check(&log, needs)? {
            // What was found is all that there is.
            _ if needs.reads_only => drop(self.durable.fetch_max(output.reached, Ordering::AcqRel)),
            Fit::Yes => {}
            // LSNs never go back: redo would skip records that are below the LSNs of their pages.
            Fit::BeginsAt(first) => {
                output.segments.begin_at(first);
                output.reached = first;
                let mut state = self.state.lock();
                state.end = first;
                state.next_signal = first + self.options.capacity_bytes / 32;
                for position in [&self.durable, &self.needed, &self.oldest, &self.end] {
                    position.store(first, Ordering::Release);
                }
            }
        }
        self.owned.store(false, Ordering::Release);
        let awaits = needs.epoch > 0 && self.id != 0 && !needs.reads_only;
        self.awaits_recovery.store(awaits, Ordering::Release);
        let from = needs.recorded.map_or(0, |mark| mark.from.0).min(output.reached);
        let oldest = self.oldest.load(Ordering::Acquire);
        // The log may begin earlier, for the loss of an SSD: then all of it is needed.
        let needed =
            if needs.lost.is_none() { output.segments.holding(from.saturating_add(1)) } else { oldest };
        self.needed.store(needed.max(oldest), Ordering::Release);
        self.from.store(from.max(oldest), Ordering::Release);
        // Of another open, perhaps.
        self.kept.store(0, Ordering::Release);
        self.found.store(output.reached, Ordering::Release);
        Ok(())
    }

    /// Checks what a recovery will read. Blocks, unless it is no more than the capacity, which an open has
    /// read.
    fn check_needed(&self) -> Result<(), WalError> {
        self.output.lock().segments.check(self.needed.load(Ordering::Acquire))
    }

    /// After this, a recovery reads all that there is: pages that the SSD should have are damaged.
    pub(crate) fn needs_all(&self) -> bool {
        let oldest = self.oldest.load(Ordering::Acquire);
        self.needed.swap(oldest, Ordering::AcqRel) > oldest
    }

    /// Whether the log belongs to a store that records what it needs of it.
    pub(super) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Acquire)
    }

    /// See [`Wal::make_found_durable`]. Blocks.
    fn make_found_durable(&self) -> Result<(), WalError> {
        let mut output = self.output.lock();
        if self.reads_only.load(Ordering::Acquire) { Ok(()) } else { self.ready(&mut output) }
    }

    /// See [`Wal::begin`]. Blocks.
    fn begin(&self) -> Result<Option<LogMark>, WalError> {
        let needs = *self.needs.lock();
        // A log in memory ends with its process, and no store can ask for it later.
        if self.id == 0 || needs.reads_only {
            return Ok(None);
        }
        // A recovery that failed thereafter is repeated: the store may have recorded what it began.
        if self.is_owned() {
            return Ok(Some(
                self.mark_at(self.durable.load(Ordering::Acquire), self.from.load(Ordering::Acquire)),
            ));
        }
        // What an engine appended before is of no generation, and may have no successor.
        self.write_out(true)?;
        let mut output = self.output.lock();
        let drawn = RandomState::new().build_hasher().finish() as u32;
        let generation = u64::from(needs.epoch) << 32 | u64::from(drawn);
        let previous = needs.recorded.map_or(0, |mark| mark.generation);
        let end = output.reached;
        let segment_bytes = self.options.segment_bytes();
        let generation = output.segments.begin(end, (generation, previous), segment_bytes)?;
        self.durable.fetch_max(end, Ordering::AcqRel);
        output.segments.reserve(self.options.segment_bytes());
        self.note_space(&output.segments);
        self.generation.store(generation, Ordering::Release);
        self.owned.store(true, Ordering::Release);
        Ok(Some(self.mark_at(end, self.from.load(Ordering::Acquire))))
    }
}

/// See [`Wal::gate`].
struct Gate(Weak<Shared>);

impl Gate {
    fn log(&self) -> Result<Arc<Shared>, GateError> {
        self.0.upgrade().ok_or_else(|| Arc::new(WalError::Stopped) as GateError)
    }
}

impl LogGate for Gate {
    fn durable(&self) -> Lsn {
        self.0.upgrade().map_or(Lsn(0), |shared| Wal(shared).durable())
    }

    fn check(&self, needs: &LogNeeds) -> Result<(), GateError> {
        let log = self.log()?;
        log.check_open().map_err(|closed| Arc::new(closed) as GateError)?;
        log.check(needs).map_err(|unfit| Arc::new(unfit) as GateError)?;
        log.check_needed().map_err(|error| Arc::new(error) as GateError)
    }

    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        Box::pin(
            async move { Wal(self.log()?).flush(lsn).await.map_err(|error| Arc::new(error) as GateError) },
        )
    }
}
