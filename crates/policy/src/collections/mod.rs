//! Data structures that several policies share.

pub(crate) mod chains;
pub(crate) mod links;
pub(crate) mod page_index;
pub(crate) mod queues;
pub(crate) mod sketch;
pub(crate) mod slot_pages;
pub(crate) mod slot_set;
pub(crate) mod slot_table;
pub(crate) mod tournament;
