//! A B+-tree for engines on Pagetier, shared by `pagetier-kv` and `tpcc_lite`: variable-length keys and
//! values, range scans in both directions, and one `pagetier-wal` record per change.
//!
//! | question | file |
//! | --- | --- |
//! | How is a page laid out, and how is it changed? | `node.rs`, `edit.rs` |
//! | What do readers and writers latch? | `tree.rs` |
//! | How are pages allocated and freed? | `pages.rs` |
//! | How many pages are latched at once? | `latch_budget.rs` |
//! | How does the tree grow and shrink? | `grow.rs`, `shrink.rs` |
//! | How is it scanned and bulk-loaded? | `scan.rs`, `append.rs` |
//! | What makes a tree sound? | `check.rs` |

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published: a doc is written where a name does not say enough")]

mod append;
mod check;
mod edit;
mod grow;
mod latch_budget;
mod node;
mod pages;
mod scan;
mod shrink;
#[cfg(test)]
mod tests;
mod tree;

pub use append::{Appender, full_pages};
pub use check::CheckReport;
pub use node::{ENTRY_BYTES, Meta};
pub use scan::{Entry, Scan};
pub use tree::{Tree, TreeError};
