//! Changes the pool's size while the store is in use: to another budget, and beside an SSD of another size.

use crate::config::sizes::{pool_for, tables_bytes};
use crate::error::Error;
use crate::store::devices::Budget;
use crate::store::shared::Shared;
use pagetier_devio::locks::MutexGuard;
use pagetier_policy::SsdPolicy;

impl Shared {
    /// See [`PageStore::resize_pool`](crate::PageStore::resize_pool).
    pub(crate) async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        drop(self.ending.enter()?);
        let mut budget = self.budget().await?;
        let frames = self.frames_beside(Budget { bytes, ..*budget })?;
        self.resize(frames).await?;
        // Only now: a call that failed, or was dropped, leaves the budget as it was.
        budget.bytes = bytes;
        Ok(frames as u64)
    }

    /// Takes from the pool what the tables of an SSD of `slots` slots under `policy` need of the budget.
    /// After a success, call [`Shared::fit_pool`] once the tables are in use, or will not be put into use.
    pub(crate) async fn make_room(&self, slots: u32, policy: SsdPolicy) -> Result<(), Error> {
        let mut budget = self.budget().await?;
        let with_tables = Budget { tables_to_come: tables_of(slots, policy), ..*budget };
        let frames = self.frames_beside(with_tables)?;
        // A pool that is smaller, since it failed to shrink all the way, need not grow for this.
        if frames < self.frames() {
            self.resize(frames).await?;
        }
        // Until they are in use, a `resize_pool` leaves room for them, too.
        *budget = with_tables;
        Ok(())
    }

    /// Gives the pool all of the budget that the SSD's tables leave.
    pub(crate) async fn fit_pool(&self) -> Result<(), Error> {
        let mut budget = self.budget().await?;
        budget.tables_to_come = 0;
        let frames = self.frames_beside(*budget)?;
        if frames == self.frames() { Ok(()) } else { self.resize(frames).await }
    }

    async fn budget(&self) -> Result<MutexGuard<'_, Budget>, Error> {
        // Another change of the pool may hold it while that one waits for guards.
        self.ending.or_shutdown(self.devices.budget.lock()).await.ok_or(Error::Closed)
    }

    /// The frames of a pool with `budget` beside the SSD's tables.
    fn frames_beside(&self, budget: Budget) -> Result<usize, Error> {
        let policy = self.devices.in_use.lock().ssd_policy;
        let tables = tables_of(self.tier.slots(), policy).max(budget.tables_to_come);
        Ok(pool_for(budget.bytes, tables, self.page_size())?.frames)
    }

    async fn resize(&self, frames: usize) -> Result<(), Error> {
        let before = self.frames();
        // Shrinking waits for guards; a shutdown must not wait for that.
        let resized = self.ending.or_shutdown(self.pool.resize(frames)).await;
        tracing::info!(before, frames = self.frames(), wanted = frames, "the pool was resized");
        Ok(resized.ok_or(Error::Closed)??)
    }
}

fn tables_of(slots: u32, policy: SsdPolicy) -> u64 {
    let slots = u64::from(slots);
    tables_bytes(slots, policy.outqueue_entries(slots))
}
