//! The handle of an open store. Its calls are in `pages` (those for single pages), `store_wide`,
//! `backup::write` and `observe::methods`.

use super::shared::Shared;
use crate::ownership::gate::ReleaseGate;
use crate::ownership::lock::Leave;
use pagetier_bufpool::Pool;
use pagetier_ghost::Stream;
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;

/// An open page store. Share it in an `Arc`; every method takes `&self`.
///
/// Dropping it without [`PageStore::close`] is equivalent to a crash: nothing that [`PageStore::sync`]
/// promised is lost. Its directory and devices stay locked until its last operation has ended, for which the
/// runtime that it was opened on must run or shut down; an open waits for that for at most 30 s.
///
/// A process that is forked while the store is open has no part in it: calls there fail with
/// [`Error::Forked`](crate::Error::Forked), and dropping the copy changes nothing. A program that becomes a
/// daemon opens its stores after the fork.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let directory = temporary.path();
/// use pagetier::PageStore;
///
/// let store = PageStore::builder().directory(directory).ssd_bytes(64 << 20).open().await?;
/// let space = store.spaces().create("greetings").await?;
///
/// let mut page = store.allocate(space).await?;
/// page[..5].copy_from_slice(b"hello");
/// let id = page.id();
/// drop(page); // releases the latch
///
/// store.sync().await?; // durable once this returns
/// assert_eq!(&store.get(id).await?[..5], b"hello");
/// store.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// What a store reports about itself:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// let store = builder.open().await?;
/// println!("recovery read {} bytes from the SSD", store.recovery().bytes_read);
/// println!("{} frames of {} bytes, by {}", store.frames(), store.page_size().bytes(), store.stats().io_backend);
///
/// let space = store.spaces().create("orders").await?;
/// let mut page = store.allocate(space).await?;
/// page[0] = 1;
/// page.set_lsn(pagetier::Lsn(7));
/// let id = page.id();
/// drop(page);
/// assert_eq!(store.min_recovery_lsn(), Some(pagetier::Lsn(7))); // of a change in memory alone
/// store.sync().await?;
/// assert_eq!(store.min_recovery_lsn(), None);
/// store.flush().await?; // makes durable what the store wrote by itself meanwhile
/// println!("below memory, page {id} is on the {:?}", store.location(id));
/// assert!(store.is_owner()); // no other machine has taken it over
/// store.validate()?; // recounts its tables
/// # Ok(())
/// # }
/// ```
///
/// Tasks that hold several guards at once must all latch in one order (parent before child, left before
/// right), as with any latch. A guard held while its task waits for another page keeps its frame in memory.
#[derive(Debug)]
pub struct PageStore {
    /// Dropped first: no I/O starts after that.
    pub(crate) leave: Leave,
    _gate: ReleaseGate,
    /// A second handle to the pool, so that a hit reaches it without an indirection through `shared`.
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) shared: Arc<Shared>,
    /// The running ghosts, shared with the thread that drives them.
    pub(crate) ghosts: parking_lot::Mutex<Option<Arc<parking_lot::Mutex<Stream>>>>,
}

impl Drop for PageStore {
    fn drop(&mut self) {
        if !self.shared.ending.is_here() {
            // In a forked process the store is the parent's: the copy is given up as it is, because its locks
            // may be held by threads that do not exist here.
            let parts = (self.pool.clone(), Arc::clone(&self.shared), Arc::clone(&self._gate.0));
            std::mem::forget(parts);
            return;
        }
        // In this order: what waits for a confirmation ends with the lease, and must find the fence closed.
        drop(self.leave.ownership().leave());
        drop(self.shared.lease.lock().take());
    }
}

impl PageStore {
    pub(crate) fn new(leave: Leave, shared: Arc<Shared>) -> Self {
        let gate = ReleaseGate(Arc::clone(&shared.gate));
        Self { leave, _gate: gate, pool: shared.pool.clone(), shared, ghosts: Default::default() }
    }
}
