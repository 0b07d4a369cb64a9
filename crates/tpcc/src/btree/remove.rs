//! Removes empty leaves from the tree.

use super::node::{self, FREE, LEAF};
use super::tree::{Tree, TreeError};
use pagetier::PageMut;
use pagetier_wal::MiniTx;

impl Tree {
    /// Removes `key`, which was recently the only key in its leaf, and the leaf with it.
    ///
    /// Of the leaf and a neighbour under the same parent, the right page is freed, so the link of a leaf
    /// further left never changes. An only child stays in the tree, empty.
    #[cold]
    pub(super) async fn delete_last(&self, key: &[u8]) -> Result<bool, TreeError> {
        // The exclusive latch on the parent keeps descents out of its children; scans leave them to the
        // right.
        let parent = self.level_exclusive(key, 1).await?;
        if node::level(&parent) != 1 {
            return Err(TreeError::Damaged { page: parent.id(), what: "its level" });
        }
        let slot = self.inner.slot_for(&parent, key);
        let left_slot = if slot > 0 { slot - 1 } else { slot };
        let left = self.child_exclusive(&parent, left_slot).await?;
        let right = if left_slot + 1 < node::count(&parent) {
            Some(self.child_exclusive(&parent, left_slot + 1).await?)
        } else {
            None
        };
        let leaf = if left_slot < slot { right.as_ref().unwrap_or(&left) } else { &left };
        let Ok(at) = self.leaf.search(leaf, key) else {
            return Ok(false);
        };
        match right {
            Some(right) if node::count(leaf) == 1 => {
                let meta = self.meta_exclusive().await?;
                self.unlink(parent, left, right, meta, left_slot, left_slot == slot);
            }
            right => {
                let leaf = right.filter(|_| left_slot < slot).unwrap_or(left);
                let mut m = MiniTx::on(self.wal.as_ref(), leaf);
                self.leaf.remove(&mut m, 0, at);
                m.commit();
            }
        }
        Ok(true)
    }

    /// Frees the right one of two neighbours, one of which becomes empty.
    fn unlink<'s>(
        &'s self,
        parent: PageMut<'s>,
        left: PageMut<'s>,
        right: PageMut<'s>,
        meta: PageMut<'s>,
        left_slot: usize,
        left_is_emptied: bool,
    ) {
        let mut m = MiniTx::new(self.wal.as_ref());
        let [parent, left, right, meta] = [parent, left, right, meta].map(|page| m.add(page));
        let (next, right_no) = (node::next(m.payload(right)), m.id(right).no);
        if left_is_emptied {
            node::format(&mut m, left, LEAF, 0);
            self.leaf.move_tail(&mut m, right, 0, left);
        }
        node::set_next(&mut m, left, next);
        self.inner.remove(&mut m, parent, left_slot + 1);
        let free = node::next(m.payload(meta));
        node::format(&mut m, right, FREE, 0);
        node::set_next(&mut m, right, free);
        node::set_next(&mut m, meta, right_no);
        m.commit();
    }

    async fn child_exclusive(&self, parent: &PageMut<'_>, slot: usize) -> Result<PageMut<'_>, TreeError> {
        self.node_exclusive(self.inner.child(parent, slot), Some(0)).await
    }
}
