//! Page allocation, and the chains of long values.
//!
//! The meta page counts the pages ever allocated. A page that was created in the store but never logged is
//! therefore allocated again, and nothing leaks. Free pages form a linked list; a chain of any length joins
//! it as a whole, through its last page.

use crate::edit;
use crate::node::{Chain, HEADER_BYTES, META, Meta, NONE, Node, OVERFLOW};
use crate::tree::{META_PAGE, Tree, TreeError};
use pagetier::PageMut;
use pagetier_wal::MiniTx;

/// The pages that a change allocates, and the chain that it frees. Acquired before anything changes.
pub(crate) struct Supply<'s> {
    meta: PageMut<'s>,
    now: Meta,
    pages: Vec<PageMut<'s>>,
    /// A chain to free, and its last page.
    freed: Option<(Chain, PageMut<'s>)>,
}

/// A [`Supply`] whose pages have joined the mini-transaction.
pub(crate) struct Supplied {
    meta: usize,
    now: Meta,
    pub(crate) pages: Vec<usize>,
}

impl Tree {
    /// Acquires `wanted` pages, and what freeing the chain `freed` requires. The caller holds `structure` in
    /// shared mode and has latched every other page that it needs: the meta page comes after them.
    pub(crate) async fn supply(&self, wanted: usize, freed: Option<Chain>) -> Result<Supply<'_>, TreeError> {
        let meta = self.store.get_mut(self.id(META_PAGE)).await?;
        // Only this copy changes until every page is there: an error or a dropped future leaves the meta
        // page as it was.
        let Some(mut now) = Meta::read(&meta) else {
            return Err(TreeError::Damaged { page: self.id(META_PAGE), what: "its kind" });
        };
        let mut pages = Vec::with_capacity(wanted);
        while pages.len() < wanted && now.head != NONE {
            let page = self.store.get_mut(self.id(now.head)).await?;
            // Otherwise a damaged list could hand out a page that is in use.
            if now.free == 0 || page[0] <= 2 || page[0] == META {
                return Err(TreeError::Damaged { page: page.id(), what: "a free page" });
            }
            now.head = Node(&page).next();
            now.free -= 1;
            pages.push(page);
        }
        while pages.len() < wanted {
            // `overwrite` reads nothing. The page may exist, from an allocation that was never logged; its
            // contents mean nothing.
            pages.push(self.store.overwrite(self.id(now.end)).await?);
            now.end += 1;
        }
        let freed = match freed {
            Some(chain) => {
                let last = self.store.get_mut(self.id(chain.last)).await?;
                self.expect_overflow(&last, chain.last)?;
                Some((chain, last))
            }
            None => None,
        };
        Ok(Supply { meta, now, pages, freed })
    }

    fn expect_overflow(&self, payload: &[u8], no: u32) -> Result<(), TreeError> {
        if Node(payload).kind() == OVERFLOW {
            Ok(())
        } else {
            Err(TreeError::Damaged { page: self.id(no), what: "a part of a long value" })
        }
    }

    /// Reads a long value. The caller holds the latch of its leaf.
    pub(crate) async fn read_chain(&self, chain: Chain) -> Result<Vec<u8>, TreeError> {
        let mut value = Vec::with_capacity(chain.bytes.min(self.value_bytes_max()));
        let mut no = chain.first;
        while value.len() < chain.bytes {
            let page = self.store.get(self.id(no)).await?;
            self.expect_overflow(&page, no)?;
            let node = Node(&page);
            // A damaged chain could otherwise lead round in a circle for ever.
            if node.part().is_empty() {
                return Err(TreeError::Damaged { page: page.id(), what: "a part of a long value" });
            }
            value.extend_from_slice(node.part());
            no = node.next();
        }
        Ok(value)
    }

    /// The number of pages that a value of `bytes` takes outside its leaf.
    pub(crate) fn chain_pages(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.payload() - HEADER_BYTES)
    }
}

impl<'s> Supply<'s> {
    /// Adds the pages to the mini-transaction, and frees the chain if there is one.
    pub(crate) fn enter(self, m: &mut MiniTx<'s>, payload: usize) -> Supplied {
        let meta = m.add(self.meta);
        let mut supplied =
            Supplied { meta, now: self.now, pages: self.pages.into_iter().map(|page| m.add(page)).collect() };
        if let Some((chain, last)) = self.freed {
            let last = m.add(last);
            // The chain joins the free list as it is: freeing a value of any length changes one of its
            // pages.
            edit::set_next(m, last, supplied.now.head);
            supplied.now.head = chain.first;
            supplied.now.free += chain.pages(payload) as u32;
        }
        supplied
    }
}

impl Supplied {
    /// Frees a page of the mini-transaction.
    pub(crate) fn free(&mut self, m: &mut MiniTx<'_>, page: usize) {
        edit::build_free(m, page, self.now.head);
        self.now.head = m.id(page).no;
        self.now.free += 1;
    }

    /// Records the new state of the meta page.
    pub(crate) fn finish(self, m: &mut MiniTx<'_>) {
        edit::set_meta(m, self.meta, self.now);
    }

    /// Writes a long value to the first `count` of the allocated pages.
    pub(crate) fn write_chain(&mut self, m: &mut MiniTx<'_>, count: usize, value: &[u8]) -> Chain {
        let pages: Vec<usize> = self.pages.drain(..count).collect();
        let numbers: Vec<u32> = pages.iter().map(|page| m.id(*page).no).collect();
        let part_bytes = m.payload(self.meta).len() - HEADER_BYTES;
        for (i, part) in value.chunks(part_bytes).enumerate() {
            let next = numbers.get(i + 1).copied().unwrap_or(NONE);
            edit::build_overflow(m, pages[i], next, part);
        }
        let [first, last] = [numbers.first(), numbers.last()].map(|no| no.copied().unwrap_or(NONE));
        Chain { bytes: value.len(), first, last }
    }
}
