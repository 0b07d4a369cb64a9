//! Frees that are logged: the store frees a page once the record that frees it is durable.
//!
//! The record first: otherwise a crash could leave a reference to a page that does not exist, or is in use
//! for something else. From the record on until the store has freed the page, the free is *pending*, and the
//! log keeps the record: without it, a crash after a checkpoint would leave a page that nothing refers to and
//! that is not free. The store has freed it once its manifest says so. Then the page has to leave memory, for
//! which its guards must be dropped; only the next use of its number waits for that. Redo makes the frees of
//! the log pending again, except those of pages that a later record changes: these were free before that.

use crate::error::{CheckpointError, WalError};
use crate::log::{FREES_AT_ONCE, Wal};
use pagetier::{Error, Lsn, PageId, PageStore};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The calls of the store that have recorded frees, and wait for the pages to leave memory.
#[derive(Default)]
pub(crate) struct Freed {
    pages: u64,
    leaving: Vec<JoinHandle<Result<u32, Error>>>,
}

impl Wal {
    /// Frees in the store the pages that committed mini-transactions have freed
    /// ([`MiniTx::free`](crate::MiniTx::free)), after making their records durable. Returns how many. A
    /// [`checkpoint`](crate::checkpoint) begins with it; call it when the pages are needed earlier. Waits for
    /// all guards of these pages, so the caller must hold none; the log need not keep the records meanwhile.
    /// Cancel-safe: it continues without its caller.
    ///
    /// # Errors
    /// The log or the store failed. What was not freed stays pending, and the next call retries.
    pub async fn free_pending(&self, store: &Arc<PageStore>) -> Result<u64, CheckpointError> {
        let Freed { pages, leaving } = self.record_frees(store).await?;
        for left in leaving {
            left.await.map_err(|_| WalError::Stopped)??;
        }
        Ok(pages)
    }

    /// As [`Wal::free_pending`], but waits for no guard: leaves that to tasks.
    pub(crate) async fn record_frees(&self, store: &Arc<PageStore>) -> Result<Freed, CheckpointError> {
        if self.0.state.lock().frees.is_empty() {
            return Ok(Freed::default());
        }
        let (wal, store) = (self.clone(), Arc::clone(store));
        // In a task of its own: of a call that was dropped half-way, the pages could have been freed and be
        // in use again. The next call would free them a second time.
        let freeing = tokio::spawn(async move { wal.free_all(&store).await });
        freeing.await.map_err(|_| WalError::Stopped)?
    }

    async fn free_all(&self, store: &Arc<PageStore>) -> Result<Freed, CheckpointError> {
        let _one_at_a_time = self.0.freeing.lock().await;
        let mut freed = Freed::default();
        let Some((upto, _)) = self.0.state.lock().frees.last().copied() else { return Ok(freed) };
        self.flush_or_reserve(Lsn(upto)).await?;
        // The pages lose their contents. Redo by a log that has lost these records would change what is not
        // there any more, so the store knows of them first (I45).
        self.record_end(Lsn(upto)).await?;
        while let Some(batch) = self.oldest_frees(upto) {
            let (space, pages) =
                (batch[0].1.space, batch.iter().map(|(_, page)| page.no).collect::<Vec<_>>());
            let (note, noted) = oneshot::channel();
            let store = Arc::clone(store);
            let call = tokio::spawn(async move {
                let noting = |pages| {
                    let _ = note.send(pages);
                };
                store.free_noting(space, &pages, noting).await
            });
            match noted.await {
                Ok(pages) => {
                    freed.pages += u64::from(pages);
                    freed.leaving.push(call);
                }
                Err(_) => match call.await.map_err(|_| WalError::Stopped)? {
                    // It was removed, and its pages with it.
                    Ok(_) | Err(Error::NoSuchSpace { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
            }
            let mut state = self.0.state.lock();
            for free in &batch {
                state.frees.remove(free);
            }
        }
        Ok(freed)
    }

    /// Some of the oldest pending frees up to `upto`. Of one space, and no more than the store records with
    /// one write: so if the store fails, none of them can be in use again.
    fn oldest_frees(&self, upto: u64) -> Option<Vec<(u64, PageId)>> {
        let state = self.0.state.lock();
        let &(_, first) = state.frees.first().filter(|(lsn, _)| *lsn <= upto)?;
        let durable = state.frees.iter().take_while(|(lsn, _)| *lsn <= upto);
        Some(durable.filter(|(_, page)| page.space == first.space).take(FREES_AT_ONCE).copied().collect())
    }
}
