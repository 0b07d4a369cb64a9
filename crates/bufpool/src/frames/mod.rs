//! The frames of a pool, and what says which page each holds: memory, page table, free frames. Nothing here
//! waits for a device, evicts, or knows the policy.
//!
//! Begin with `frame` and `set` (`Frames`), then `page_table`, whose lookups take no lock.

mod arena;
pub(crate) mod frame;
pub(crate) mod free_stack;
mod hinted_spaces;
pub(crate) mod memory;
pub(crate) mod page_table;
pub(crate) mod set;
pub(crate) mod unwritten;
pub(crate) mod uses;
pub(crate) mod writing;
