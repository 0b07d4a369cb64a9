//! The world around a store: its simulated devices, manifest and log, the moments at which it may crash, and
//! the check of every page afterwards. What a store is asked to do is in `work`.
//!
//! Begin with `probe` (taking moments), then `examine` (the check).

mod builder;
pub(crate) mod crash;
pub(crate) mod desk;
pub(crate) mod disks;
pub(crate) mod examine;
mod gate;
pub(crate) mod peek;
pub(crate) mod planned;
pub(crate) mod probe;
pub(crate) mod saves;
mod watched;
