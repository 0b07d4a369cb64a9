//! The database engine on `pagetier-btree` and `pagetier-wal`: tables, row locks, commits, the load, the
//! consistency conditions. The transactions are in `tx`.
//!
//! Begin with `schema`, then `engine` (`Database`).

pub(crate) mod catalog;
pub(crate) mod consistency;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod load;
pub(crate) mod locks;
pub(crate) mod operations;
pub(crate) mod random;
pub(crate) mod schema;
