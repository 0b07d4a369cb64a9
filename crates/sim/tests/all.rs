//! Every test of this crate that does not need a process of its own: linking one binary per file takes longer
//! than the tests.

mod adaptive;
mod bound;
mod campaign;
mod drawn;
#[path = "../../../tests/tidy/methods.rs"]
mod methods;
mod own_policies;
mod replay;
mod sources;
mod tiers;
mod what_if;
