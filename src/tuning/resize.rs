//! Changes the pool's size while the store is in use.

use crate::config::sizes::{POOL_POLICY_BYTES, tables_bytes};
use crate::error::Error;
use crate::store::page_store::PageStore;
use pagetier_bufpool::{FRAMES_MIN, PoolParams};

impl PageStore {
    /// Changes the store's memory budget to `bytes`, and with it the number of frames, while the store is in
    /// use. Returns the number of frames. [`Builder::pool_bytes`](crate::Builder::pool_bytes) says what the
    /// budget covers. The store's next opening uses the builder's budget.
    ///
    /// Hits continue undisturbed, and guards stay valid. The policy keeps its statistics and scales its
    /// shares of the pool. A growing pool needs the memory at once, and can have at most the machine's. A
    /// shrinking pool evicts the pages that would be evicted next, and gives their memory back to the system;
    /// the frames' metadata, about 60 bytes each, stays. It waits for dirty pages to be written, and for
    /// guards to be dropped if they pin more pages than are to stay.
    ///
    /// Cancel-safe: a dropped call leaves the pool at the size that it has reached. Running simulations of
    /// [`PageStore::what_if`] keep the size that they started with.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = builder.pool_bytes(64 << 20).open().await?;
    /// let frames = store.stats().frames;
    /// assert!(store.resize_pool(16 << 20).await? < frames / 3);
    /// assert_eq!(store.resize_pool(64 << 20).await?, frames);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::PoolTooSmall`], [`Error::PoolTooLarge`], or
    /// [`PoolError::Memory`](crate::errors::PoolError::Memory) when the system does not provide the memory:
    /// the size is unchanged. [`PoolError::Shrink`](crate::errors::PoolError::Shrink) when no page could
    /// leave for [`Builder::exhausted_after`](crate::Builder::exhausted_after): the error names the cause
    /// and the size that the pool has reached.
    pub async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        let shared = &self.shared;
        drop(shared.ending.enter()?);
        let slots = u64::from(shared.tier.slots());
        let tables = tables_bytes(slots, shared.builder.outqueue_entries(slots));
        let size = shared.page_size();
        let machine = PoolParams::machine_bytes();
        if bytes > machine {
            return Err(Error::PoolTooLarge { bytes, machine });
        }
        let frames = PoolParams::for_budget(bytes.saturating_sub(tables), size, POOL_POLICY_BYTES).frames;
        if frames < FRAMES_MIN {
            let needed = PoolParams::bytes_for(FRAMES_MIN, size, POOL_POLICY_BYTES).saturating_add(tables);
            return Err(Error::PoolTooSmall { bytes, needed });
        }
        let before = shared.frames();
        // Shrinking waits for guards; a shutdown must not wait for that.
        let resized = shared.ending.unless_ended(self.pool.resize(frames)).await;
        tracing::info!(before, frames = shared.frames(), wanted = frames, "the pool was resized");
        resized.ok_or(Error::Closed)??;
        Ok(frames as u64)
    }
}
