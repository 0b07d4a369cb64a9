//! A B+-tree for engines on Pagetier, shared by `pagetier-kv` and `tpcc_lite`: keys and values of any length,
//! range scans in both directions, every change a record of `pagetier-wal`.
//!
//! | question | file |
//! | --- | --- |
//! | How is a page laid out, and how is it changed? | `node.rs`, `edit.rs` |
//! | What do readers and writers latch? | `tree.rs` |
//! | How are pages taken and given back? | `pages.rs` |
//! | How many pages are latched at once? | `room.rs` |
//! | How does the tree grow and shrink? | `grow.rs`, `shrink.rs` |
//! | How is it read in order, and loaded? | `scan.rs`, `append.rs` |
//! | What is a sound tree? | `check.rs` |

#![forbid(unsafe_code)]

mod append;
mod check;
mod edit;
mod grow;
mod node;
mod pages;
mod room;
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
