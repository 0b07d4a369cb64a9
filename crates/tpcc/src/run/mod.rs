//! A session: where the database lives, terminals that run transactions against it, and the report of their
//! costs.
//!
//! Begin with `session`, then `terminals` and `report`.

pub(crate) mod location;
pub(crate) mod report;
pub(crate) mod runtime;
pub(crate) mod session;
pub(crate) mod terminals;
