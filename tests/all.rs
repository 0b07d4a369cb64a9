//! Every test of this crate that does not need a process of its own: linking one binary per file takes longer
//! than the tests.

mod attach;
mod backup;
mod bad_input;
mod blocking;
mod changing;
mod clusters;
mod ends;
mod fixture;
mod foreign;
mod futures;
mod geometry;
mod growth;
mod hostile;
mod hot;
mod identity;
mod leaving;
mod log_gate;
mod loss;
mod map_rot;
mod observe;
mod online_costs;
mod overwrite;
mod read_only;
mod recovery;
mod rewriting;
mod scrub;
mod ssd_calls;
mod ssd_crash;
mod ssd_life;
mod store;
mod unreadable;
mod what_if;
mod zipf;
