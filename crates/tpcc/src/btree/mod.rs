//! B+-trees on pages: keys and values of fixed lengths, keys in byte order.
//!
//! A tree owns a space. Page 0 is always its root; page 1 is its meta page, the head of the list of free
//! pages. Leaves are chained to the right.
//!
//! **Latches.** A child is latched before its parent is released. Readers, and writers of a leaf with room,
//! latch inner nodes shared and only the leaf exclusively. A split restarts from the root with exclusive
//! latches, and releases everything above a node with room for one more entry. All latches are taken in this
//! order, so there is no deadlock:
//!
//! 1. from the root downward;
//! 2. on one level from left to right (scans, and the removal of an empty leaf, which also holds the parent);
//! 3. the meta page, then a page from its list, which no other task can reach.
//!
//! **Splits** propagate upward under latches already held and form one log record, so the tree on disk is
//! whole after any crash. A leaf that fills by ascending inserts is split at the insertion and stays full.
//!
//! **Deletes** do not merge half-empty leaves. A leaf that loses its last entry is removed from the tree
//! (unless it is its parent's only child), so a queue that is filled at one end and emptied at the other
//! stays short.
//!
//! The caller must not hold a page during a call. The closures passed to [`Tree::get`] and [`Tree::scan`] run
//! under a leaf's latch and cannot await.

mod append;
mod node;
mod remove;
mod split;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use append::Appender;
pub(crate) use node::RowLens;
pub(crate) use tree::{Tree, TreeError};
