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
        self.resize(self.frames_of(bytes)?).await?;
        self.devices.in_use.lock().pool_bytes = bytes;
        // While this waited for guards, an exchange of the SSD may have fitted the pool to the old budget.
        self.fit().await?;
        Ok(self.frames() as u64)
    }

    /// Takes from the pool what the tables of an SSD of `slots` slots under `policy` need of the budget.
    /// After a success, call [`Shared::fit_pool`] once the tables are in use, or will not be put into use.
    pub(crate) async fn make_room(&self, slots: u32, policy: SsdPolicy) -> Result<(), Error> {
        // Noted before the pool shrinks, so that a concurrent `resize_pool` leaves room for them, too.
        self.devices.in_use.lock().tables_to_come = tables_of(slots, policy);
        let made = self.fit().await;
        if made.is_err() {
            self.devices.in_use.lock().tables_to_come = 0;
        }
        made
    }

    /// Gives the pool all of the budget that the SSD's tables leave.
    pub(crate) async fn fit_pool(&self) -> Result<(), Error> {
        self.devices.in_use.lock().tables_to_come = 0;
        self.fit().await
    }

    /// Call it after each change of the budget or the tables, so that the last call sees both.
    async fn fit(&self) -> Result<(), Error> {
        loop {
            let budget = self.devices.in_use.lock().pool_bytes;
            let frames = self.frames_of(budget)?;
            if frames == self.frames() {
                return Ok(());
            }
            self.resize(frames).await?;
        }
    }

    /// The frames of a pool with a budget of `bytes` beside the SSD's tables.
    fn frames_of(&self, bytes: u64) -> Result<usize, Error> {
        let InUse { ssd_policy, tables_to_come, .. } = *self.devices.in_use.lock();
        let tables = tables_of(self.tier.slots(), ssd_policy).max(tables_to_come);
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

fn tables_of(slots: u32, policy: SsdPolicy) -> u64 {
    let slots = u64::from(slots);
    tables_bytes(slots, policy.outqueue_entries(slots))
}
