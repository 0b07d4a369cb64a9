//! Changes the pool's size while the store is in use.

use crate::config::sizes::{pool_for, tables_bytes};
use crate::error::Error;
use crate::store::shared::Shared;

impl Shared {
    /// See [`PageStore::resize_pool`](crate::PageStore::resize_pool).
    pub(crate) async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        drop(self.ending.enter()?);
        let slots = u64::from(self.tier.slots());
        let tables = tables_bytes(slots, self.config.outqueue_entries(slots));
        let frames = pool_for(bytes, tables, self.page_size())?.frames;
        let before = self.frames();
        // Shrinking waits for guards; a shutdown must not wait for that.
        let resized = self.ending.or_shutdown(self.pool.resize(frames)).await;
        tracing::info!(before, frames = self.frames(), wanted = frames, "the pool was resized");
        resized.ok_or(Error::Closed)??;
        Ok(frames as u64)
    }
}
