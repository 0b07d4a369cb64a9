//! The pool and the SSD cache without data: computes the cost of a stream of page references under the
//! store's own policies, at sizes other than the store's.
//!
//! [`Tiers`] runs one pool policy with one SSD policy. [`Ghosts`] runs a grid of sizes at once over a sample
//! of the pages, and reports the cost of each ([`WhatIf`]).

#![forbid(unsafe_code)]

#[cfg(feature = "chart")]
mod chart;
mod counts;
mod grid;
mod reference;
mod stream;
mod tiers;
mod what_if;

#[cfg(feature = "chart")]
pub use chart::{COLORS, LineChart, chart};
pub use counts::{Counts, TierParams};
pub use grid::{GhostError, GhostParams, Ghosts};
pub use reference::{Reference, Source, Use};
pub use stream::Stream;
pub use tiers::Tiers;
pub use what_if::{SampleSummary, WhatIf, WhatIfCost};
