//! The SSD as the embedder controls it: modes, drain, loss, exchange. What is on the SSD and in which order
//! it is written, `crates/ssdcache` decides.
//!
//! Begin with `handle` (`Ssd`), then `exchange` (the life cycle).

mod cache_device;
pub(crate) mod exchange;
pub(crate) mod handle;
pub(crate) mod replace;
