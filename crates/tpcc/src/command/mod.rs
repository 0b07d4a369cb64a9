//! The command line: options, their defaults, the policies and figures that they name. Nothing here opens a
//! store.
//!
//! Begin with `cli`.

pub(crate) mod cli;
pub(crate) mod comparison;
pub(crate) mod matrix;
pub(crate) mod policies;
