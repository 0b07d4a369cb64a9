//! Inserts that split nodes, and the allocation of their pages.
//!
//! A split first latches everything and acquires every new page. Then it changes the nodes without an await
//! point, so an error or a dropped future leaves the tree untouched. (The space loses a page that was already
//! allocated.)

use super::node::{self, FREE, INNER, LEAF, Layout, META};
use super::tree::{META_PAGE, Tree, TreeError};
use pagetier::{PageId, PageMut};
use pagetier_wal::MiniTx;

/// Latched pages for new nodes, taken from the free list or allocated.
struct Spare<'s> {
    /// The meta page, and the head of its list after the pages were taken.
    list: Option<(PageMut<'s>, u32)>,
    pages: Vec<PageMut<'s>>,
}

impl Tree {
    /// Inserts an entry into a leaf that was recently full.
    #[cold]
    pub(super) async fn put_splitting(&self, key: &[u8], val: &[u8]) -> Result<(), TreeError> {
        // 1. Descend with exclusive latches; release those above a node with room.
        let mut held: Vec<PageMut<'_>> = Vec::new();
        let mut page = self.root_exclusive().await?;
        while node::level(&page) > 0 {
            let child = self.inner.child(&page, self.inner.slot_for(&page, key));
            let child = self.node_exclusive(child, Some(node::level(&page) - 1)).await?;
            held.push(page);
            if !self.is_full(&child) {
                held.clear();
            }
            page = child;
        }
        // 2. Acquire pages for the right halves, and one more if the root must be split.
        let mut wanted = 0;
        if self.is_full(&page) && self.leaf.search(&page, key).is_err() {
            let full = held.iter().rev().take_while(|node| self.is_full(node)).count();
            wanted = 1 + full + usize::from(full == held.len());
        }
        let spare = self.spare(wanted).await?;
        // 3. Ascend, splitting full nodes, until an entry finds room. All of it is one log record.
        self.put_upward(page, held, spare, key, val);
        Ok(())
    }

    fn put_upward<'s>(
        &'s self,
        leaf: PageMut<'s>,
        mut held: Vec<PageMut<'s>>,
        spare: Spare<'s>,
        key: &[u8],
        val: &[u8],
    ) {
        let mut m = MiniTx::new(self.wal.as_ref());
        if let Some((meta, free)) = spare.list {
            let meta = m.add(meta);
            node::set_next(&mut m, meta, free);
        }
        let mut spare: Vec<usize> = spare.pages.into_iter().map(|page| m.add(page)).collect();
        let mut page = m.add(leaf);
        let mut entry = (key.to_vec(), val.to_vec());
        while let Some(right) = spare.pop() {
            match held.pop() {
                Some(parent) => {
                    entry = self.split(&mut m, page, right, &entry.0, &entry.1);
                    page = m.add(parent);
                }
                None => {
                    if let Some(left) = spare.pop() {
                        self.split_root(&mut m, page, left, right, &entry.0, &entry.1);
                    }
                    m.commit();
                    return;
                }
            }
        }
        let layout = self.layout(m.payload(page));
        match layout.search(m.payload(page), &entry.0) {
            Ok(slot) => layout.patch(&mut m, page, slot, 0, &entry.1),
            Err(slot) => layout.insert(&mut m, page, slot, &entry.0, &entry.1),
        }
        m.commit();
    }

    /// Splits `page` and inserts the entry into the proper half. Returns the entry that the parent needs for
    /// `right`.
    fn split(
        &self,
        m: &mut MiniTx<'_>,
        page: usize,
        right: usize,
        key: &[u8],
        val: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let level = node::level(m.payload(page));
        let layout = self.layout(m.payload(page));
        let slot = layout.search(m.payload(page), key).unwrap_or_else(|slot| slot);
        let at = split_point(m.payload(page), slot);
        // A run that continues in the middle of a leaf continues in the left half, which it can fill.
        let stays = slot < at || slot == at && at < node::count(m.payload(page));
        node::format(m, right, if level == 0 { LEAF } else { INNER }, level);
        layout.move_tail(m, page, at, right);
        if level == 0 {
            let next = node::next(m.payload(page));
            node::set_next(m, right, next);
            let right_no = m.id(right).no;
            node::set_next(m, page, right_no);
        }
        if stays {
            layout.insert(m, page, slot, key, val);
        } else {
            layout.insert(m, right, slot - at, key, val);
        }
        let separator = layout.key(m.payload(right), 0).to_vec();
        (separator, m.id(right).no.to_le_bytes().to_vec())
    }

    /// Makes the full root the parent of its two halves: its page number must not change.
    fn split_root(&self, m: &mut MiniTx<'_>, root: usize, left: usize, right: usize, key: &[u8], val: &[u8]) {
        let level = node::level(m.payload(root));
        let layout = self.layout(m.payload(root));
        node::format(m, left, if level == 0 { LEAF } else { INNER }, level);
        layout.move_tail(m, root, 0, left);
        let (separator, child) = self.split(m, left, right, key, val);
        node::format(m, root, INNER, level + 1);
        let left_no = m.id(left).no.to_le_bytes();
        self.inner.insert(m, root, 0, &vec![0; self.row.key], &left_no);
        self.inner.insert(m, root, 1, &separator, &child);
    }

    fn layout(&self, node: &[u8]) -> &Layout {
        if node::level(node) == 0 { &self.leaf } else { &self.inner }
    }

    fn is_full(&self, node: &[u8]) -> bool {
        node::count(node) == self.layout(node).capacity()
    }

    /// Acquires and latches `wanted` pages that belong to no tree.
    async fn spare(&self, wanted: usize) -> Result<Spare<'_>, TreeError> {
        let mut pages = Vec::with_capacity(wanted);
        if wanted == 0 {
            return Ok(Spare { list: None, pages });
        }
        let meta = self.meta_exclusive().await?;
        let mut free = node::next(&meta);
        while pages.len() < wanted && free != node::NONE {
            let page = self.store.get_mut(PageId::new(self.space, free)).await?;
            check_kind(&page, FREE)?;
            free = node::next(&page);
            pages.push(page);
        }
        let list = if pages.is_empty() { None } else { Some((meta, free)) };
        while pages.len() < wanted {
            pages.push(self.store.allocate(self.space).await?);
        }
        Ok(Spare { list, pages })
    }

    pub(super) async fn meta_exclusive(&self) -> Result<PageMut<'_>, TreeError> {
        let meta = self.store.get_mut(PageId::new(self.space, META_PAGE)).await?;
        check_kind(&meta, META)?;
        Ok(meta)
    }
}

/// Where to split a full node for an insert at `slot`: in the middle, or at the insert if it continues a run.
fn split_point(node: &[u8], slot: usize) -> usize {
    if slot > 0 && slot == node::run_slot(node) { slot } else { node::count(node) / 2 }
}

fn check_kind(page: &PageMut<'_>, kind: u8) -> Result<(), TreeError> {
    if node::kind(page) == kind {
        Ok(())
    } else {
        Err(TreeError::Damaged { page: page.id(), what: "its place in the list of free pages" })
    }
}
