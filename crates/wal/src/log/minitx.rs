//! A mini-transaction: pages changed together by one log record, or not at all.

use crate::error::WalError;
use crate::guard::Guard;
use crate::log::Wal;
use crate::record;
use pagetier::{Lsn, PageId, PageMut};
use std::cell::Cell;
use std::ops::Range;

/// The pages latched for one change, and the operations on them so far. `G` is the kind of their guards:
/// [`PageMut`], or [`OwnedPageMut`](pagetier::OwnedPageMut).
///
/// [`MiniTx::commit`] sets the record's LSN on the pages, then releases their latches. A mini-transaction
/// that is dropped without a commit, by an error, a panic or with its future, or whose record is too long
/// ([`WalError::TooLong`]), gives its pages their earlier contents back. Without a log it cannot. One that
/// was dropped before its first change leaves its pages as they were, with their LSNs. A page that was
/// allocated for it stays in use even so: free it ([`PageStore::free`](pagetier::PageStore::free)).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path().join("pages")).ssd_bytes(4 << 20);
/// # let log = temporary.path().join("log");
/// # let db = pagetier_wal::LoggedStore::open(builder, log, pagetier_wal::WalOptions::new()).await?;
/// let space = db.spaces().create("t").await?;
/// let mut change = db.begin().await?;
/// let one = change.add(db.allocate(space).await?);
/// let other = change.add(db.allocate(space).await?);
/// change.write(one, 0, b"both or");
/// change.write(other, 0, b"neither");
/// let freed = change.id(other);
/// db.commit(change).await?;
///
/// // Frees a page in the record that removes the last reference to it.
/// let mut change = db.begin().await?;
/// let one = change.add(db.get_mut(pagetier::PageId::new(space, 0)).await?);
/// change.write(one, 0, b"only me");
/// change.free(freed);
/// db.commit(change).await?;
/// # db.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub struct MiniTx<'s, G: Guard = PageMut<'s>> {
    wal: Option<&'s Wal>,
    pages: Vec<G>,
    freed: Vec<PageId>,
    ops: Vec<u8>,
    /// What was overwritten: the bytes of each range, then the page's index, the offset and the length.
    undo: Vec<u8>,
}

/// The maximum number of pages of a mini-transaction.
const PAGES_MAX: usize = 255;

/// The bytes that [`MiniTx::replace`] compares at a time.
const PIECE: usize = 32;

/// The most bytes of a vector that a thread keeps.
const SPARE_MAX: usize = 32 << 10;

thread_local! {
    /// The last `ops` and `undo`, empty: to allocate and grow them takes longer than to fill them.
    static SPARE: Cell<[Vec<u8>; 2]> = const { Cell::new([const { Vec::new() }; 2]) };
}

impl<G: Guard> std::fmt::Debug for MiniTx<'_, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.pages.iter().map(Guard::id)).finish()
    }
}

/// Whether all bytes are zero: each is the one before it, which is one comparison of memory.
fn is_blank(payload: &[u8]) -> bool {
    payload.first().is_none_or(|first| *first == 0 && payload[1..] == payload[..payload.len() - 1])
}

/// The next range from `from` on in which `new` differs from `old`, which is as long. Differences that lie so
/// close that another operation of the record would take more than the bytes between them are one.
fn next_difference(old: &[u8], new: &[u8], from: usize) -> Option<Range<usize>> {
    let differs = |at: &usize| old[*at] != new[*at];
    // In pieces first, since most of a page is equal.
    let pieces = old[from..].chunks(PIECE).zip(new[from..].chunks(PIECE));
    let equal = pieces.take_while(|(old, new)| old == new).count();
    let start = (from + equal * PIECE..old.len()).find(differs)?;
    let mut end = start + 1;
    while let Some(next) = (end..old.len().min(end + record::WRITE_BYTES)).find(differs) {
        end = next + 1;
    }
    Some(start..end)
}

impl<'s, G: Guard> MiniTx<'s, G> {
    /// Creates an empty mini-transaction. Without a log (`None`), as in a bulk load, it records no change and
    /// sets no LSN; the store gives a page without an LSN that of the log's end, so that redo leaves it
    /// alone.
    #[must_use]
    pub fn new(wal: Option<&'s Wal>) -> Self {
        let [ops, undo] = SPARE.try_with(Cell::take).unwrap_or_default();
        Self { wal, pages: Vec::new(), freed: Vec::new(), ops, undo }
    }

    /// Creates a mini-transaction on one page.
    #[must_use]
    pub fn on(wal: Option<&'s Wal>, page: G) -> Self {
        let mut change = Self::new(wal);
        change.pages.reserve_exact(1);
        change.add(page);
        change
    }

    /// Adds a latched page; returns its index, by which the other methods name it. Redo of a page that is
    /// blank and was never logged starts with this record, as after [`MiniTx::zero`]. A page that stays
    /// unchanged takes 8 bytes of the record, gets its LSN and is written as if it had changed; if no page of
    /// the mini-transaction changes, there is no record, and all this costs nothing.
    ///
    /// # Panics
    /// If it already has 255 pages: a record has one byte for the index.
    pub fn add(&mut self, page: G) -> usize {
        assert!(self.pages.len() < PAGES_MAX, "a mini-transaction of more than {PAGES_MAX} pages");
        let index = self.pages.len();
        // A new page. Otherwise redo would begin with what the store has of it; after the loss of an SSD that
        // may be a version from before the number was freed.
        if self.wal.is_some() && is_blank(&page) {
            record::put_zero(&mut self.ops, index as u8);
        }
        self.pages.push(page);
        index
    }

    /// The payload of a page, with the changes so far.
    ///
    /// # Panics
    /// If no page has this index; so do the other methods.
    #[must_use]
    pub fn payload(&self, page: usize) -> &[u8] {
        &self.pages[page]
    }

    /// The id of a page.
    #[must_use]
    pub fn id(&self, page: usize) -> PageId {
        self.pages[page].id()
    }

    /// Zeroes a page. Redo of the page starts here and needs none of its earlier contents.
    pub fn zero(&mut self, page: usize) {
        // A new page is blank: there is nothing to keep.
        if !is_blank(&self.pages[page]) {
            self.keep(page, 0, self.pages[page].len());
            self.pages[page].fill(0);
        }
        if self.wal.is_some() {
            record::put_zero(&mut self.ops, page as u8);
        }
    }

    /// Overwrites a range of a page's payload.
    ///
    /// # Panics
    /// If the range exceeds the payload: the page is unchanged.
    pub fn write(&mut self, page: usize, offset: usize, bytes: &[u8]) {
        self.keep(page, offset, bytes.len());
        self.pages[page][offset..offset + bytes.len()].copy_from_slice(bytes);
        if self.wal.is_some() {
            record::put_write(&mut self.ops, page as u8, offset, bytes);
        }
    }

    /// Overwrites a page's payload by `image`, and records the bytes that differ: for engines that make a
    /// page's new contents in a buffer of their own. It never records more than the whole image would take.
    ///
    /// # Panics
    /// If `image` is not as long as the payload: the page is unchanged.
    pub fn replace(&mut self, page: usize, image: &[u8]) {
        assert_eq!(image.len(), self.pages[page].len(), "an image of another length than the payload");
        let mut from = 0;
        while let Some(differs) = next_difference(&self.pages[page], image, from) {
            from = differs.end;
            self.write(page, differs.start, &image[differs]);
        }
    }

    /// Moves a range within a page, as `memmove` does.
    ///
    /// # Panics
    /// As [`MiniTx::write`].
    pub fn shift(&mut self, page: usize, from: usize, to: usize, len: usize) {
        if len > 0 {
            self.keep(page, to, len);
            self.pages[page].copy_within(from..from + len, to);
            if self.wal.is_some() {
                record::put_move(&mut self.ops, page as u8, from, to, len);
            }
        }
    }

    /// Copies a range of one page to another one.
    ///
    /// # Panics
    /// As [`MiniTx::write`].
    pub fn copy(&mut self, source: usize, from: usize, target: usize, to: usize, len: usize) {
        if len > 0 {
            let bytes = self.pages[source][from..from + len].to_vec();
            self.write(target, to, &bytes);
        }
    }

    /// Frees `page` with this record; it may be one of the mini-transaction's pages. The store frees it once
    /// the record is durable: in the next [`checkpoint`](crate::checkpoint), or in [`Wal::free_pending`]. Do
    /// not use its number before that; [`PageStore::allocate`](pagetier::PageStore::allocate) does not return
    /// it. Until then the log keeps this record, and after a crash [`recover`](crate::recover) frees the page
    /// again.
    ///
    /// # Panics
    /// Without a log: no record could come first. Call [`PageStore::free`](pagetier::PageStore::free).
    pub fn free(&mut self, page: PageId) {
        assert!(self.wal.is_some(), "a page is freed by a record, and there is no log");
        self.freed.push(page);
    }

    /// As [`MiniTx::commit`]; also whether the record frees a page.
    pub(crate) fn record(mut self) -> Result<(Lsn, bool), WalError> {
        let frees = !self.freed.is_empty();
        Ok((self.append()?, frees))
    }

    /// Records the change, releases the pages, and returns the record's LSN; zero without a log or a change.
    /// The record is durable once [`Wal::flush`] of its LSN returns.
    ///
    /// # Errors
    /// [`WalError::TooLong`], and [`WalError::Stopped`] if the log is being closed: the pages are unchanged,
    /// and none is freed.
    pub fn commit(mut self) -> Result<Lsn, WalError> {
        self.append()
    }

    /// As [`MiniTx::commit`], and keeps the latches: also returns the guards, in the order in which the pages
    /// were added. For an operation of several records: add what it changes next to another mini-transaction,
    /// made by [`MiniTx::new`] ([`LoggedStore::begin`](crate::LoggedStore::begin) may wait for a checkpoint,
    /// and that for these pages). Each record is a change of its own: a crash may leave the first ones alone,
    /// and a later mini-transaction that is dropped takes back only itself. Drop the guards of pages that the
    /// record frees.
    ///
    /// # Errors
    /// As [`MiniTx::commit`]; the pages are released then.
    pub fn commit_keeping(mut self) -> Result<(Lsn, Vec<G>), WalError> {
        let lsn = self.append()?;
        Ok((lsn, std::mem::take(&mut self.pages)))
    }

    fn append(&mut self) -> Result<Lsn, WalError> {
        let Some(wal) = self.wal.filter(|_| !(self.ops.is_empty() && self.freed.is_empty())) else {
            return Ok(Lsn(0));
        };
        let lsn = wal.append_pages(&mut self.pages, &self.ops, &self.freed)?;
        self.undo.clear();
        Ok(lsn)
    }

    /// Keeps a range that is about to be overwritten.
    fn keep(&mut self, page: usize, offset: usize, len: usize) {
        if self.wal.is_some() {
            self.undo.extend_from_slice(&self.pages[page][offset..offset + len]);
            // As in a record: a payload has less than 64 KiB.
            let [[o0, o1], [l0, l1]] = [offset, len].map(|n| (n as u16).to_le_bytes());
            self.undo.extend_from_slice(&[page as u8, o0, o1, l0, l1]);
        }
    }
}

impl<G: Guard> Drop for MiniTx<'_, G> {
    /// Unless it was recorded, puts back what was overwritten, the newest first. Otherwise the pages could be
    /// written with a change that no record has.
    fn drop(&mut self) {
        while let Some((rest, &[page, o0, o1, l0, l1])) = self.undo.split_last_chunk() {
            let offset = usize::from(u16::from_le_bytes([o0, o1]));
            let (rest, bytes) = rest.split_at(rest.len() - usize::from(u16::from_le_bytes([l0, l1])));
            self.pages[usize::from(page)][offset..offset + bytes.len()].copy_from_slice(bytes);
            let left = rest.len();
            self.undo.truncate(left);
        }
        self.ops.clear();
        self.undo.clear();
        let spare = [&mut self.ops, &mut self.undo].map(std::mem::take);
        if spare.iter().all(|vec| vec.capacity() <= SPARE_MAX) {
            let _ = SPARE.try_with(|last| last.set(spare));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_differences_are_all_and_take_no_more_than_the_image(
            old in prop::collection::vec(any::<u8>(), 0..300),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 1..40_usize, any::<u8>()), 0..6),
        ) {
            let mut new = old.clone();
            for (at, len, value) in changes.into_iter().filter(|_| !old.is_empty()) {
                let at = at.index(old.len());
                let end = old.len().min(at + len);
                new[at..end].fill(value);
            }
            let (mut made, mut from, mut bytes) = (old.clone(), 0, 0);
            while let Some(differs) = next_difference(&old, &new, from) {
                prop_assert!(differs.start >= from && !differs.is_empty());
                from = differs.end;
                bytes += record::WRITE_BYTES + differs.len();
                made[differs.clone()].copy_from_slice(&new[differs]);
            }
            prop_assert_eq!(&made, &new);
            prop_assert!(bytes <= record::WRITE_BYTES + new.len());
        }
    }
}
