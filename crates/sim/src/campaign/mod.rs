//! The seeded fault campaign: whole stores on simulated devices in virtual time, crashed at the boundaries of
//! their I/O; after each crash every page must read as a version that the contract allows.
//!
//! From one life of a store many crashes are taken: a [`SimMoment`](pagetier_devio::SimMoment) of both
//! devices, the manifest and the model is kept, and recovered later, as often as wanted, while the life goes
//! on undisturbed. Everything follows from the seed.
//!
//! | file | its job |
//! | --- | --- |
//! | `plan` | geometry and work of a seed |
//! | `content`, `model` | what pages hold, and what the contract allows them to read as |
//! | `work`, `life` | tasks at work on a store |
//! | `steer` | work steered to hazards that random work seldom meets |
//! | `dropped`, `polls` | calls dropped at one of their awaits |
//! | `records` | the manifest, superblocks and growth fail |
//! | `openers` | two openers at once |
//! | `ssd_life` | the SSD given up, taken back, switched off; what is told of its loss |
//! | `gate` | the embedder's log |
//! | `rot` | media that rot between lives |
//! | `loss` | SSDs lost for good, and what the report of the loss names |
//! | `past` | devices of another store, older copies of the store's own, cut short |
//! | `probe`, `peek` | moments, and the states of the protocol they were taken in |
//! | `world` | opening, crashing, checking |
//! | `seed` | lives and crashes of one seed |
//! | `exhaustive` | every short workload, every boundary, every subset of unflushed writes |
//! | `faults` | the n-th operation of a device fails |
//! | `coverage`, `totals` | what was counted |
//! | `shrink` | a smaller scenario that fails too |

mod content;
mod coverage;
mod dropped;
mod exhaustive;
mod faults;
mod gate;
mod life;
mod loss;
mod model;
mod openers;
mod past;
mod peek;
mod plan;
mod polls;
mod probe;
mod records;
mod rot;
mod seed;
mod shrink;
mod ssd_life;
mod steer;
mod totals;
mod work;
mod world;

pub use coverage::Coverage;
pub use exhaustive::Base;
pub use faults::FaultBase;
pub use plan::{Plan, ssd_policy};
pub use seed::{Violation, run_seed};
pub use shrink::shrink;
pub use steer::Steer;
pub use totals::Totals;
