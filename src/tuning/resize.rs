//! Changes the pool's size while the store is in use.

use crate::config::sizes::{POOL_POLICY_BYTES, tables_bytes};
use crate::error::Error;
use crate::store::shared::Shared;
use pagetier_bufpool::{FRAMES_MIN, PoolParams};

impl Shared {
    /// See [`PageStore::resize_pool`](crate::PageStore::resize_pool).
    pub(crate) async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        drop(self.ending.enter()?);
        let slots = u64::from(self.tier.slots());
        let tables = tables_bytes(slots, self.config.outqueue_entries(slots));
        let size = self.page_size();
        let machine = PoolParams::machine_bytes();
        if bytes > machine {
            return Err(Error::PoolTooLarge { bytes, machine });
        }
        let frames = PoolParams::for_budget(bytes.saturating_sub(tables), size, POOL_POLICY_BYTES).frames;
        if frames < FRAMES_MIN {
            let needed = PoolParams::bytes_for(FRAMES_MIN, size, POOL_POLICY_BYTES).saturating_add(tables);
            return Err(Error::PoolTooSmall { bytes, needed });
        }
        let before = self.frames();
        // Shrinking waits for guards; a shutdown must not wait for that.
        let resized = self.ending.or_shutdown(self.pool.resize(frames)).await;
        tracing::info!(before, frames = self.frames(), wanted = frames, "the pool was resized");
        resized.ok_or(Error::Closed)??;
        Ok(frames as u64)
    }
}
