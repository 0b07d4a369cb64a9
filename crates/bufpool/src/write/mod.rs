//! How a change gets from memory to the tier: the cleaner's writes, and those of `sync` and `flush_to`. Where
//! a page then goes, the tier decides.
//!
//! Begin with `clean`.

pub(crate) mod clean;
mod flush;
