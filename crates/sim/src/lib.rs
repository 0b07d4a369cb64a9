//! Two simulators. One runs the pure policies without a store: page references pass through a pool and an SSD
//! without data. The other ([`campaign`]) runs the whole store on simulated devices and crashes it at the
//! boundaries of its I/O.
//!
//! [`Tiers`] runs any pool policy with any SSD policy over the references of a [`Source`]: a page trace
//! ([`Trace`]), TPC-C's page references ([`Tpcc`]), or [`Zipf`]. The `replay` binary is its command line;
//! `replay what-if` estimates the cost of other sizes.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published: a doc is written where a name does not say enough")]

mod bound;
pub mod campaign;
pub mod fuzz;
pub mod options;
mod peers;
pub mod suite;
mod trace;
mod zipf;

pub use bound::{Accesses, Bound};
pub use pagetier_ghost::{Counts, Reference, Source, TierParams, Tiers, Use};
pub use pagetier_tpcc::references::{TABLES, Tpcc, table_name};
pub use trace::{RECORD_BYTES, Trace, TraceError, TraceSource, decode, encode};
pub use zipf::Zipf;
