//! Data structures that several policies share, those of `pagetier-rivals` among them. No part of the
//! interface: they may change in any version.

#![expect(clippy::len_without_is_empty, reason = "no policy asks whether one is empty")]

pub(crate) mod chains;
pub(crate) mod links;
pub(crate) mod page_index;
pub(crate) mod queues;
pub(crate) mod sketch;
pub(crate) mod slot_pages;
pub(crate) mod slot_set;

pub use chains::{Chain, ChainLinks};
pub use links::{NIL, QueueNo};
pub use queues::Queues;
pub use slot_set::SlotSet;
