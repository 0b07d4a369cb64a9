//! The open store: its handle `PageStore`, the guards of pages, and what its parts share until it is closed.
//! What is changed while it runs lies in `tuning`, `spaces` and `ssd`; how it came to be, in `open`.
//!
//! Begin with `pages` and `store_wide` (the calls), then `shared` (the parts) and `record` (how a change is
//! recorded).

pub(crate) mod background;
pub(crate) mod devices;
pub(crate) mod guards;
pub(crate) mod handles;
pub(crate) mod headroom;
pub(crate) mod hot_state;
pub(crate) mod lease;
pub(crate) mod owned;
pub(crate) mod pace;
pub(crate) mod page_store;
pub(crate) mod pages;
pub(crate) mod record;
pub(crate) mod shared;
mod shutdown;
pub(crate) mod stats;
pub(crate) mod store_wide;
