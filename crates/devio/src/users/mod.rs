//! Who uses a device, and until when: the store that occupies it, operations in flight, the owner of a volume
//! that another machine may take over. Nothing here performs an operation.
//!
//! Begin with `occupancy`.

mod changes;
pub(crate) mod claim;
pub(crate) mod occupancy;
