//! Another size of the pool while the store is in use.

use crate::builder::{POOL_POLICY_BYTES, tables_bytes};
use crate::error::Error;
use crate::store::PageStore;
use pagetier_bufpool::{FRAMES_MIN, PoolParams};

impl PageStore {
    /// Changes the store's memory budget to `bytes`, of which [`crate::Builder::pool_bytes`] says what it
    /// covers, and the number of frames with it, while the store is in use. Returns the number of frames. The
    /// store's next opening uses the builder's budget.
    ///
    /// Hits go on undisturbed, and guards stay valid. The policy keeps what it knows, and its shares of the
    /// pool follow. To grow, the store needs the memory at once, and at most as much as the machine has. To
    /// shrink, it evicts the pages that would be evicted next, and gives their memory back to the system; the
    /// metadata of the frames, some 60 bytes each, stay. It waits for dirty pages to be written, and for
    /// guards when those pin more pages than are to stay.
    ///
    /// Cancel-safe: dropped, it leaves the pool at the size that it has reached. Simulations of
    /// [`PageStore::what_if`] that run go on with the size at which they were started.
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
    /// [`Error::PoolTooSmall`]; [`crate::PoolError::Memory`] when the system does not provide the memory: the
    /// size is as before. [`crate::PoolError::Shrink`] when no page could leave for
    /// [`crate::Builder::exhausted_after`], with what keeps them: the pool has the size that it names.
    pub async fn resize_pool(&self, bytes: u64) -> Result<u64, Error> {
        let shared = &self.shared;
        drop(shared.ending.enter()?);
        let slots = u64::from(shared.tier.slots());
        let tables = tables_bytes(slots, shared.builder.outqueue_entries(slots));
        let size = shared.page_size();
        let frames = PoolParams::for_budget(bytes.saturating_sub(tables), size, POOL_POLICY_BYTES).frames;
        if frames < FRAMES_MIN {
            let needed = PoolParams::bytes_for(FRAMES_MIN, size, POOL_POLICY_BYTES).saturating_add(tables);
            return Err(Error::PoolTooSmall { bytes, needed });
        }
        let before = shared.frames();
        let resized = shared.ending.unless_ended(self.pool.resize(frames)).await;
        tracing::info!(before, frames = shared.frames(), wanted = frames, "the pool's size");
        resized.ok_or(Error::Closed)??;
        Ok(frames as u64)
    }
}
