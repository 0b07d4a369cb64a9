//! Every test of this crate that does not need a process of its own: linking one binary per file takes longer
//! than the tests.

mod common;
mod conformance;
mod fence;
mod joint;
mod open;
mod overlay;
mod spliced;
