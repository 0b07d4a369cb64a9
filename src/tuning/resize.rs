//! Changes the pool's size while the store is in use: to another budget, and beside an SSD of another size.

use crate::config::sizes::{pool_for, tables_bytes};
use crate::error::Error;
use crate::store::devices::InUse;
use crate::store::shared::Shared;
use pagetier_policy::SsdPolicy;

impl Shared {
    /// See [`PageStore::resize_pool`](crate::PageStore::resize_pool).
    pub(crate) async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        drop(self.ending.enter()?);
        let policy = self.devices.in_use.lock().ssd_policy;
        let frames = self.frames_beside(self.tier.slots(), policy, bytes)?;
        self.resize(frames).await?;
        self.devices.in_use.lock().pool_bytes = bytes;
        Ok(frames as u64)
    }

    /// Takes from the pool what the tables of an SSD of `slots` slots under `policy` need of the budget.
    pub(crate) async fn make_room(&self, slots: u32, policy: SsdPolicy) -> Result<(), Error> {
        let budget = self.devices.in_use.lock().pool_bytes;
        let frames = self.frames_beside(slots, policy, budget)?;
        if frames < self.frames() { self.resize(frames).await } else { Ok(()) }
    }

    /// Gives the pool all of the budget that the SSD's tables leave.
    pub(crate) async fn fit_pool(&self) -> Result<(), Error> {
        let InUse { pool_bytes, ssd_policy, .. } = *self.devices.in_use.lock();
        let frames = self.frames_beside(self.tier.slots(), ssd_policy, pool_bytes)?;
        if frames == self.frames() { Ok(()) } else { self.resize(frames).await }
    }

    /// The frames of a pool with a budget of `bytes` beside the tables of an SSD.
    fn frames_beside(&self, slots: u32, policy: SsdPolicy, bytes: u64) -> Result<usize, Error> {
        let slots = u64::from(slots);
        let tables = tables_bytes(slots, policy.outqueue_entries(slots));
        Ok(pool_for(bytes, tables, self.page_size())?.frames)
    }

    async fn resize(&self, frames: usize) -> Result<(), Error> {
        let before = self.frames();
        // Shrinking waits for guards; a shutdown must not wait for that.
        let resized = self.ending.or_shutdown(self.pool.resize(frames)).await;
        tracing::info!(before, frames = self.frames(), wanted = frames, "the pool was resized");
        Ok(resized.ok_or(Error::Closed)??)
    }
}
