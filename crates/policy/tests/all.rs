//! Every test of this crate that shares a process: linking one binary per file takes longer than the tests.

mod cac;
mod cac_model;
mod common;
mod gd2l;
mod gd2l_weighted;
mod hinted;
mod obligations;
