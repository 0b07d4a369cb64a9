//! The page by which a store names its log.

use crate::error::WalError;
use crate::log::Wal;
use crate::minitx::MiniTx;
use crate::record::u64_at;
use crate::recover::RecoverError;
use pagetier::{Error, PageId, PageStore};

/// The space of the page, which is its only one.
const SPACE: &str = "pagetier-wal";

const MAGIC: &[u8; 8] = b"PTLOGID\x01";

/// The identity in the pages; `None` if the page was not written yet.
pub(crate) async fn read(store: &PageStore) -> Result<Option<u64>, Error> {
    let Some(space) = store.spaces().find(SPACE) else { return Ok(None) };
    match store.get(PageId::new(space, 0)).await {
        Ok(page) => Ok((page[..8] == *MAGIC).then(|| u64_at(&page, 8))),
        Err(Error::NoSuchPage { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the identity of a new log: its first record. So the page cannot be on a device before the log has
/// its identity, and the log keeps the record until a checkpoint has written the page.
pub(crate) async fn write(store: &PageStore, wal: &Wal) -> Result<(), RecoverError> {
    let space = match store.spaces().find(SPACE) {
        Some(space) => space,
        None => store.spaces().create(SPACE).await?,
    };
    let mut change = MiniTx::on(Some(wal), store.overwrite(PageId::new(space, 0)).await?);
    change.zero(0);
    change.write(0, 0, MAGIC);
    change.write(0, 8, &wal.id().to_le_bytes());
    let written: Result<(), WalError> = wal.flush(change.commit()?).await;
    Ok(written?)
}
