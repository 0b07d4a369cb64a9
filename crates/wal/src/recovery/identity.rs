//! The page by which stores of earlier versions name their log.

use crate::record::u64_at;
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
