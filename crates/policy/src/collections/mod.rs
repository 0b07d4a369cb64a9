//! Data structures that several policies share.

pub(crate) mod chains;
pub(crate) mod dirty_slots;
pub(crate) mod links;
pub(crate) mod page_index;
pub(crate) mod queues;
pub(crate) mod sketch;
pub(crate) mod slot_table;
pub(crate) mod tournament;
