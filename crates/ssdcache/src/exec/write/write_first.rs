//! Without a ring: pages that supersede the only copies of their older versions (I6).
//!
//! Nothing backs their home writes, and their records void the only copies. So here the record comes last:
//! (1) home writes, (2) a flush of the HDD, (3) records, (4) a flush of the SSD. Until the record is durable
//! the copy counts as if the home write had not begun, so neither a torn home nor a crash between the steps
//! does harm, and no copy has to be read: whether it is damaged does not matter.

use super::write_home::{Each, HomeBound, Outcome, fail_all, unflushed};
use crate::exec::{Core, RefusedBy};
use crate::format::journal::{Backing, Block};
use crate::protocol::HomePlan;
use crate::protocol::home_batches::BatchId;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::PageId;
use parking_lot::Mutex;

/// A page whose home write has ended.
type Ended = (PageId, IoBuf, Outcome);

impl Core {
    /// Separates the pages that supersede only copies which nothing backs from the others.
    pub(super) fn over_only_copies(&self, pages: Vec<HomeBound>) -> (Vec<HomeBound>, Vec<HomeBound>) {
        if self.doublewrite() {
            return (Vec::new(), pages);
        }
        let state = self.state.lock();
        // With a ring its image would be durable before the record; here nothing is until the home is.
        let over = |b: &HomeBound| state.slots.is_only_copy(b.page);
        pages.into_iter().partition(over)
    }

    /// Writes `pages` home, then records them. They are durable when `each` is called.
    pub(super) async fn write_home_first(&self, pages: Vec<HomeBound>, class: IoClass, each: Each<'_>) {
        let max = self.state.lock().home.batch_max(Backing::Ring);
        let mut pages = pages.into_iter().peekable();
        let mut plain = Vec::new();
        while pages.peek().is_some() {
            let batch: Vec<HomeBound> = pages.by_ref().take(max).collect();
            // No write-back may end between this check and the record: it would mark the copy clean, which a
            // page that goes home first must not have. A crash would leave the copy and a newer home, so the
            // page would read as either.
            let duty = self.home_duty.lock().await;
            if let Err(error) = self.make_copies_durable(&batch).await {
                fail_all(batch, &error, each);
                continue;
            }
            let (over, clean) = self.over_only_copies(batch);
            plain.extend(clean);
            self.write_batch_first(over, class, each).await;
            drop(duty);
            self.changed.notify_waiters();
            self.wake.notify_one();
        }
        self.write_home(Backing::Ring, plain, class, each).await;
    }

    async fn write_batch_first(&self, mut batch: Vec<HomeBound>, class: IoClass, each: Each<'_>) {
        if batch.is_empty() {
            return;
        }
        let plan = match self.plan_batch(Backing::Ring, &mut batch, each).await {
            Ok(Some(plan)) => plan,
            Ok(None) => return,
            Err(error) => return fail_all(batch, &error, each),
        };
        let HomePlan { id, mut blocks, flush, .. } = plan;
        let begun = self.unflushed.begin(&unflushed(&batch));
        if let Err(cause) = &begun {
            self.end_first(id, false, Vec::new());
            return fail_all(batch, &TierError::Refusing { cause: cause.clone() }, each);
        }
        let ended: Mutex<Vec<Ended>> = Mutex::default();
        let note = |page, image, outcome| ended.lock().push((page, image, outcome));
        let failed = self.write_in_place(Backing::Ring, batch, class, &note).await;
        let ended = ended.into_inner();
        let home: Vec<PageId> = ended
            .iter()
            .filter(|(_, _, outcome)| matches!(outcome, Outcome::Home))
            .map(|one| one.0)
            .collect();
        // A home write that failed may have torn the home: its page keeps its copy, so it gets no record.
        blocks.iter_mut().for_each(|block| block.records.retain(|record| home.contains(&record.page)));
        blocks.retain(|block| !block.records.is_empty());
        // The record voids the only copy, so the home must be durable before it (I6).
        let result = match self.flush_hdd().await {
            Ok(()) => self.record(blocks, flush).await,
            Err(source) => Err(source),
        };
        let failed = match &result {
            Ok(()) => failed,
            // Without a record every copy still counts, whatever its home holds by now.
            Err(_) => ended.iter().map(|one| one.0).collect(),
        };
        self.end_first(id, true, failed);
        for (page, image, outcome) in ended {
            let outcome = match (outcome, &result) {
                (Outcome::Home, Err(source)) => {
                    Outcome::Failed(TierError::Device { page, source: source.clone() })
                }
                (outcome, _) => outcome,
            };
            each(page, image, outcome);
        }
    }

    /// Makes the copies of `batch` durable: they must outlive a torn home. Flushes the HDD if that makes any
    /// clean, so that no later flush does.
    async fn make_copies_durable(&self, batch: &[HomeBound]) -> Result<(), TierError> {
        let completed = self.cache_device().flush.completed();
        let (volatile, settles) = {
            let state = self.state.lock();
            let slots = &state.slots;
            let copies = || batch.iter().filter_map(|b| slots.copy_of(b.page));
            let volatile = copies().any(|(slot, _)| !slots.is_durable(slot, completed));
            let waits = |b: &HomeBound| slots.waits_for_home(b.page) || state.home.is_backed_by_slot(b.page);
            (volatile, batch.iter().any(waits))
        };
        if volatile {
            self.flush_ssd().await?;
        }
        if settles {
            self.flush_hdd().await?;
        }
        Ok(())
    }

    async fn record(&self, blocks: Vec<Block>, flush: bool) -> Result<(), DeviceError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let recorded = match self.write_journal(blocks).await {
            Ok(()) if flush => self.flush_ssd().await,
            other => other,
        };
        if let Err(source) = &recorded {
            self.ssd_failed(source);
            self.refuse(&source.to_string(), RefusedBy::Ssd);
        }
        recorded
    }

    fn end_first(&self, id: BatchId, begun: bool, failed: Vec<PageId>) {
        let flush = self.hdd_flush.next();
        let mut state = self.state.lock();
        state.home.end_recording(id);
        state.home.end_home_writes(id, begun, failed, flush);
    }
}
