//! Guards: pages in memory, latched and pinned until the guard is dropped.

use super::page_store::PageStore;
use crate::error::Error;
use futures_util::stream::{Stream, unfold};
use pagetier_bufpool::Cursor;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;

/// A page latched in shared mode. Derefs to its payload. See [`PageStore::get`](crate::PageStore::get).
///
/// ```
/// # use pagetier::*;
/// # async fn example(store: &PageStore, id: PageId)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let page: pagetier::PageRef<'_> = store.get(id).await?;
/// println!("page {} at LSN {}: {:?}", page.id(), page.lsn(), &page[..16]);
/// # Ok(())
/// # }
/// ```
///
/// It is `Send` and may be held across `.await`; while it lives, writers of the page wait, and its frame
/// stays in memory. The slice has [`PageSize::payload_bytes`](crate::PageSize::payload_bytes) bytes.
pub struct PageRef<'a>(pub(crate) pagetier_bufpool::PageRef<'a, SsdTier>);

/// A page latched exclusively. Derefs to its payload; the first mutable access marks the page dirty. See
/// [`PageStore::get_mut`](crate::PageStore::get_mut).
///
/// ```
/// use pagetier::{Lsn, PageMut};
/// use std::sync::Mutex;
///
/// /// A log's tail in memory: its records, and the LSN of the next one, at first 1.
/// struct Tail {
///     records: Vec<u8>,
///     end: u64,
/// }
///
/// /// Changes a page, and logs the change.
/// fn put(log: &Mutex<Tail>, page: &mut PageMut<'_>, at: usize, bytes: &[u8]) -> Lsn {
///     page[at..at + bytes.len()].copy_from_slice(bytes);
///     let mut tail = log.lock().unwrap();
///     let lsn = Lsn(tail.end);
///     tail.records.extend_from_slice(bytes); // and the page's id, `at`, the length, a checksum
///     tail.end += bytes.len() as u64;
///     page.set_lsn(lsn); // still under the log's lock
///     lsn
/// }
/// ```
///
/// It is `Send` and may be held across `.await`; while it lives, all other users of the page wait, and its
/// frame stays in memory. Dropping it without a mutable access or `set_lsn` leaves the page as it was; a page
/// that `allocate`, `overwrite` or `get_or_create` made is dirty even so, but has no change that redo
/// would need. The slice has [`PageSize::payload_bytes`](crate::PageSize::payload_bytes) bytes; the page's
/// header is not part of it.
///
/// **A panic under the guard** drops it like a return: what has been changed so far counts, and becomes
/// durable. The store has no earlier version that it could put back, since the page may hold other changes
/// that are not durable yet. So prepare a change first, and copy it into the page where nothing can panic; or
/// treat a panic under a guard as a crash, and abort the process before the guard is dropped. See the
/// [`guide`](crate::guide#the-ready-made-log).
pub struct PageMut<'a>(pub(crate) pagetier_bufpool::PageMut<'a, SsdTier>);

/// A sequential read of a space's pages, with read-ahead. See
/// [`PageStore::scan`](crate::PageStore::scan).
#[derive(Debug)]
pub struct Scan<'a> {
    pub(crate) cursor: Cursor,
    pub(crate) store: &'a PageStore,
}

impl<'a> Scan<'a> {
    /// The next page, or `None` after the last. Skips pages that were never written. Cancel-safe: after a
    /// dropped call the next one returns the same page.
    ///
    /// # Errors
    /// The page cannot be read; the next call continues with the page after it.
    pub async fn next(&mut self) -> Option<Result<PageRef<'a>, Error>> {
        Some(self.cursor.next(&self.store.pool).await?.map(PageRef).map_err(Error::from))
    }

    /// The scan as a [`Stream`], for its combinators and for `select!`. It ends where [`Scan::next`] does.
    pub fn into_stream(self) -> impl Stream<Item = Result<PageRef<'a>, Error>> + Send {
        unfold(self, async |mut scan| Some((scan.next().await?, scan)))
    }
}

/// What all guards have in common: `$guard` wraps a guard of the pool, reached by `$field`.
macro_rules! guard {
    ($guard:ty, $field:tt, $name:literal $(, $keeps:ident)?) => {
        impl$(<$keeps>)? $guard {
            /// The page's id.
            #[inline]
            #[must_use]
            pub fn id(&self) -> PageId {
                self.$field.id()
            }

            /// The embedder's log position of the last change; 0 for a page that was never logged.
            #[inline]
            #[must_use]
            pub fn lsn(&self) -> Lsn {
                self.$field.lsn()
            }
        }

        impl$(<$keeps>)? std::ops::Deref for $guard {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                &self.$field
            }
        }

        impl$(<$keeps>)? std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($name, "({})"), self.id())
            }
        }
    };
}
pub(crate) use guard;

/// What the exclusive guards have in common besides [`guard!`].
macro_rules! exclusive_guard {
    ($guard:ty, $field:tt $(, $keeps:ident)?) => {
        impl$(<$keeps>)? $guard {
            /// Records that the change made through this guard is logged at `lsn`: the page is not written
            /// before the log is durable up to there, the record at `lsn` included. The first LSN after the
            /// page was clean is its recovery LSN. Marks the page dirty.
            ///
            /// Call it on all pages of a record in the critical section in which the record gets its LSN:
            /// [`LogGate`](crate::LogGate) says why. A page changed without it keeps its earlier LSN, which
            /// then is its recovery LSN: the page may be written before the change is logged, and
            /// [`redo_from`](crate::PageStore::redo_from) may return a position before the log's start. Have
            /// a record for every change. (If the gate tells it, a page without an LSN gets the durable one,
            /// and the recovery LSN is 0: [`LogGate::durable`](crate::LogGate::durable).)
            #[inline]
            pub fn set_lsn(&mut self, lsn: Lsn) {
                self.$field.set_lsn(lsn);
            }
        }

        impl$(<$keeps>)? std::ops::DerefMut for $guard {
            #[inline]
            fn deref_mut(&mut self) -> &mut [u8] {
                &mut self.$field
            }
        }
    };
}
pub(crate) use exclusive_guard;

guard!(PageRef<'_>, 0, "PageRef");
guard!(PageMut<'_>, 0, "PageMut");
exclusive_guard!(PageMut<'_>, 0);

impl<'a> PageMut<'a> {
    /// Converts the exclusive latch into a shared one: other readers may enter.
    #[inline]
    #[must_use]
    pub fn downgrade(self) -> PageRef<'a> {
        PageRef(self.0.downgrade())
    }
}
