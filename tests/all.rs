//! Every test of this crate that does not need a process of its own: linking one binary per file takes longer
//! than the tests.

mod attach;
mod bad_input;
mod blocking;
mod choices;
mod clusters;
mod ends;
mod fixture;
mod foreign;
mod futures;
mod geometry;
mod growth;
mod hostile;
mod identity;
mod leaving;
mod log_gate;
mod loss;
mod map_rot;
mod names;
mod online_costs;
mod options;
mod overwrite;
mod recovery;
mod rewriting;
mod scrub;
mod shutdown;
mod ssd_calls;
mod ssd_crash;
mod ssd_life;
mod stalls;
mod store;
mod unreadable;
mod what_if;
mod zipf;
