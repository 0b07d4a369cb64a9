//! Lives of stores, each crashed at many moments: random ones, those with a theme, and every short workload
//! and failing operation in turn.
//!
//! Begin with `life`, then `seed` (the lives of one seed).

pub(crate) mod exhaustive;
pub(crate) mod faults;
mod life;
mod openers;
mod records;
pub(crate) mod seed;
pub(crate) mod shrink;
mod ssd_life;
mod upkeep;
