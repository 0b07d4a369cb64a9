//! Operations on devices that know no page's state: one buffer, many futures, sorted and merged writes.
//!
//! Begin with `coalesce`.

pub(crate) mod coalesce;
pub(crate) mod join_all;
pub(crate) mod single;
