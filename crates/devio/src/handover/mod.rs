//! What passes between a caller and a device: the buffer of an operation, and its completion to the task that
//! waits. The order in which operations wait for the kernel is in `kernel`.
//!
//! Begin with `buf`, then `ticket`.

pub(crate) mod buf;
mod sync;
pub(crate) mod ticket;
#[cfg(all(test, loom))]
mod ticket_models;
