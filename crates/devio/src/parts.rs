//! What the devices of `pagetier-testing` are made of. No part of the interface: it may change in any
//! version.

pub use crate::count::class::Counter;
pub use crate::duties::check::{Spot, check, check_range, refused, total_len};
pub use crate::duties::meter::Meter;
pub use crate::duties::recorder::{Recorder, RetryReason};
pub use crate::handover::ticket::{Promise, Ticket, ticket};
pub use crate::kernel::queue::rank;
pub use crate::ram::image::Image;
