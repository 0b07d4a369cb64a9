//! The seeded fault campaign: whole stores on simulated devices in virtual time, crashed at the boundaries of
//! their I/O; after each crash every page must read as a version that the contract allows.
//!
//! One life of a store yields many crashes. The campaign keeps a [moment](pagetier_testing::SimMoment) of
//! both devices with the manifest and the model, and recovers it later, any number of times, while the life
//! continues undisturbed. The seed determines everything.
//!
//! | module | what is in it |
//! | --- | --- |
//! | `draw` | what a seed draws: geometry and work (`plan`), the hazard that it is directed at (`hazard`), what an adversary does to the log and the devices (`twist`) |
//! | `contract` | the versions that every page may read as (`model`), the pages' contents, operations and calls in progress |
//! | `report` | counters (`totals`), protocol states in which crashes were taken (`coverage`), violations |
//! | `world` | a store's devices, manifest and log; taking moments (`probe`, `watched`, `peek`); what a crash leaves (`crash`); faults to inject (`planned`); the check of every page (`examine`) |
//! | `between` | bit rot, lost SSDs, devices of another time or store, looks without writing, between two lives |
//! | `log` | engines with a log of `pagetier-wal` |
//! | `work` | every operation and how often a life draws it (`operations`), the tasks that perform them (`worker`), and each operation's checks |
//! | `lives` | lives of a store, of one seed (`seed`) or of every short workload and every failing operation (`exhaustive`, `faults`) |
//! | `takeover` | owners that follow one another on other machines |
//! | `threads` | a store with a log on several threads, in real time |
//! | `polls` | futures dropped at an await |
//!
//! Begin with `draw::plan`, then `lives::life` and `world::examine`.

mod between;
pub(crate) mod contract;
mod draw;
mod lives;
mod log;
mod polls;
mod report;
mod takeover;
mod threads;
mod work;
mod world;

pub use contract::running::Drawn;
pub use draw::hazard::Hazard;
pub use draw::plan::{Plan, ssd_policy};
pub use draw::twist::Twist;
pub use lives::exhaustive::Base;
pub use lives::faults::FaultBase;
pub use lives::seed::run_seed;
pub use lives::shrink::shrink;
pub use report::coverage::Coverage;
pub use report::totals::Totals;
pub use report::violation::Violation;
pub use takeover::run_takeovers;
pub use threads::run_threads;
pub use work::operations::drawn;
