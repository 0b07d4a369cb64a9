//! Copies from slots to the HDD: of victims, of pages whose homes are repaired, and of drained pages.
//!
//! All take the same steps: the slot is durable and backs the home write, the journal voids older copies, and
//! the slot is clean only after a flush of the HDD.

use super::write_home::{HomeBound, Outcome};
use crate::exec::Core;
use crate::exec::io::join_all::join_all;
use crate::format::journal::Backing;
use crate::protocol::slots::WriteBack;
use crate::remember::Flushed;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoClass};
use pagetier_page::{Lsn, PageId};
use parking_lot::Mutex;
use std::time::Duration;

/// The outcome of a batch.
pub(crate) struct Copied {
    /// The copies that are durable at home.
    pub(crate) home: Vec<WriteBack>,
    /// The pages whose slot or home failed, each with its own error.
    pub(crate) failed: Vec<(PageId, TierError)>,
    /// The error that concerns the whole batch.
    pub(crate) result: Result<(), DeviceError>,
}

impl Core {
    /// Copies held slots home, then releases them.
    pub(crate) async fn copy_home(&self, batch: Vec<WriteBack>, class: IoClass) -> Copied {
        let held = HeldSlots { core: self, batch, class, home: Vec::new() };
        held.copy().await
    }

    /// Copies the slots of `pages` home, clean or dirty. Skips pages without a copy, and slots that are being
    /// read; if none is left, waits briefly for the reads.
    pub(crate) async fn copy_pages_home(&self, pages: &[PageId]) -> Copied {
        let copied = self.copy_held_home(pages).await;
        if !copied.failed.iter().any(|(_, error)| self.wants_ring(error)) {
            return copied;
        }
        self.use_ring().await;
        self.copy_held_home(pages).await
    }

    async fn copy_held_home(&self, pages: &[PageId]) -> Copied {
        let _duty = self.home_duty.lock().await;
        let batch: Vec<WriteBack> = pages.iter().filter_map(|page| self.hold_copy(*page)).collect();
        if batch.is_empty() {
            // Each copy is gone or being read; reads end soon.
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Copied { home: Vec::new(), failed: Vec::new(), result: Ok(()) };
        }
        self.copy_home(batch, IoClass::WriteBack).await
    }

    fn hold_copy(&self, page: PageId) -> Option<WriteBack> {
        let mut state = self.state.lock();
        let held = state.slots.hold_copy(page)?;
        state.home.hold(page);
        Some(held)
    }
}

/// A batch of held slots, released on drop, even if the copying was cut short.
struct HeldSlots<'a> {
    core: &'a Core,
    batch: Vec<WriteBack>,
    /// The class of the home writes.
    class: IoClass,
    home: Vec<WriteBack>,
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        for one in self.batch.drain(..) {
            state.end_write_back(one, self.home.contains(&one));
        }
        // From here on a checkpoint names the actual state of these slots.
        state.home.forget_write_backs();
        drop(state);
        self.core.changed.notify_waiters();
        self.core.wake.slots.notify_one();
    }
}

impl HeldSlots<'_> {
    async fn copy(mut self) -> Copied {
        let mut failed = Vec::new();
        let result = self.copy_batch(&mut failed).await;
        // A home write that no flush has followed proves nothing: the slots stay dirty, and are tried again
        // (I5).
        if result.is_err() {
            self.home.clear();
        }
        let home = self.home.clone();
        drop(self);
        Copied { home, failed, result }
    }

    async fn copy_batch(&mut self, failed: &mut Vec<(PageId, TierError)>) -> Result<(), DeviceError> {
        let core = self.core;
        // The slots take the ring's place, so their images must be durable before a home can be torn (I4).
        // Most are: victims were written long ago.
        let durable_at = self.batch.iter().map(|w| w.durable_at).max();
        let completed = core.cache_device().flush.completed();
        if let Some(number) = durable_at.filter(|number| completed < *number) {
            core.cover_ssd(number).await?;
        }
        let pages = self.read(failed).await;
        let arrived = Mutex::new(Vec::with_capacity(pages.len()));
        let errors = Mutex::new(Vec::new());
        let each = |page, image, outcome| {
            core.give_back(image);
            match outcome {
                Outcome::Home => arrived.lock().push(page),
                // Not a failure: the write that superseded the slot brings the newer version where it
                // belongs.
                Outcome::Superseded => {}
                // The copy has no home, so it is not worth another attempt.
                Outcome::GivenUp => core.state.lock().slots.discard(page),
                Outcome::Failed(error) => errors.lock().push((page, error)),
            }
        };
        core.write_home(Backing::WriteBack, pages, self.class, &each).await;
        let errors = errors.into_inner();
        if !(errors.is_empty() && arrived.lock().is_empty()) {
            core.state.lock().slots.note_home(!arrived.lock().is_empty());
        }
        failed.extend(errors);
        // One flush for the whole batch. Until it has completed, the slots hold the only durable versions
        // (I5).
        core.flush(&[Flushed::Hdd]).await?;
        let arrived = arrived.into_inner();
        self.home = self.batch.iter().filter(|one| arrived.contains(&one.page)).copied().collect();
        Ok(())
    }

    async fn read(&self, failed: &mut Vec<(PageId, TierError)>) -> Vec<HomeBound> {
        let core = self.core;
        let ssd = core.ssd();
        let reads = self.batch.iter().map(|one| {
            let (at, version, buf) = (core.slot_at(one.slot), (one.page, one.stamp), core.buffer());
            let read = core.read_image(&ssd, at, version, buf, IoClass::WriteBack);
            async move { (one, read.await) }
        });
        let mut pages = Vec::with_capacity(self.batch.len());
        for (one, (image, result)) in join_all(reads).await {
            let Err(error) = result else {
                pages.push(HomeBound::new(one.page, image, Lsn(0)));
                continue;
            };
            if let TierError::Device { source, .. } = &error {
                core.ssd_failed(source);
            }
            let causes = pagetier_devio::Causes(&error);
            tracing::error!(error = %causes, "a copy on the SSD cannot be read, so it cannot be written to the HDD");
            // Under a policy that appends, the front would otherwise wait for this slot forever.
            core.state.lock().slots.cannot_be_read(*one);
            failed.push((one.page, error));
        }
        pages
    }
}
