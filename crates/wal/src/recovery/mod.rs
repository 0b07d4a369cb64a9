//! What an open does with the log that it finds: checks that it is the pages' own, and redoes it. Which
//! records are trusted is decided in `log/segments.rs`.
//!
//! Begin with `recover`, then `redo`.

mod identity;
pub(crate) mod recover;
pub(crate) mod redo;
