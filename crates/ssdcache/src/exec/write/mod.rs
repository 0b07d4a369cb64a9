//! Writes of pages, to a slot or home, in the order that keeps an older version until the newer one is
//! durable. The task that writes ahead of need is in `upkeep`.
//!
//! Begin with `route` (where a page goes), then `write_home` (in which order).

pub(crate) mod route;
mod write_back;
mod write_first;
pub(crate) mod write_home;
