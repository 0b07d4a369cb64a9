//! The two devices and what of their writes is durable: flushes that many waiters share, home writes that no
//! flush has covered. What a flush frees is decided in `protocol`.
//!
//! Begin with `group` (`GroupFlush`).

pub(crate) mod cache_device;
pub(crate) mod group;
pub(crate) mod unflushed;
