//! The seeded fault campaign: whole stores on simulated devices in virtual time, crashed at the boundaries of
//! their I/O; after each crash every page must read as a version that the contract allows.
//!
//! One life of a store yields many crashes. The campaign keeps a [moment](pagetier_testing::SimMoment) of
//! both devices with the manifest and the model, and recovers it later, any number of times, while the life
//! continues undisturbed. The seed determines everything.
//!
//! | file | job |
//! | --- | --- |
//! | `plan`, `opening` | geometry and work of a seed; its store's options |
//! | `content`, `model` | the pages' contents, and the versions that the contract allows |
//! | `table` | every operation, and how often a life draws each |
//! | `work`, `drive`, `life` | the tasks that use a store, and their ways to read and write |
//! | `running`, `calls`, `desk`, `disks` | operations and calls in progress, a session's files, a store's devices |
//! | `by_number` | pages by number, owned guards, what is in memory, inserts under a guard |
//! | `ssd_calls` | the SSD given up, readmitted, switched, drained among other work; devices that fail |
//! | `hazard`, `directed` | hazards that random work seldom meets, and the work directed at them |
//! | `dropped`, `polls` | calls dropped at one of their awaits |
//! | `planned` | the faults that are injected |
//! | `records` | failures of the manifest, superblocks and growth |
//! | `openers` | two openers at once |
//! | `ssd_life` | the same alone, with exact checks of the reports of a loss |
//! | `frees` | pages freed, their numbers reused, spaces shrunk |
//! | `operator` | resizes, policies, costs, write budgets, scrubs, recordings and backups of a store in use |
//! | `upkeep` | lives with all of these, shutdowns under load, another SSD |
//! | `gate` | the embedder's log |
//! | `log` | engines with a log of `pagetier-wal` |
//! | `rot` | bit rot between lives |
//! | `read_only` | read-only openings and inspections of crashed stores |
//! | `loss` | SSDs lost for good, and the pages that the report of the loss lists |
//! | `past` | devices of another store, older copies of the store's own, truncated devices |
//! | `moment` | a moment of a store, and what a crash there leaves |
//! | `probe`, `watched`, `peek` | taking moments, and the protocol states in which they were taken |
//! | `world` | checking a store after a crash |
//! | `seed` | lives and crashes of one seed |
//! | `threads` | a store with a log on several threads, in real time |
//! | `takeover` | owners that follow one another on other machines |
//! | `exhaustive` | every short workload, every boundary, every subset of unflushed writes |
//! | `faults` | the n-th operation of a device fails |
//! | `coverage`, `totals`, `violation` | counters, and what is reported |
//! | `shrink` | reduction to a smaller failing scenario |

mod by_number;
mod calls;
pub(crate) mod content;
mod coverage;
mod desk;
mod directed;
mod disks;
mod drive;
mod dropped;
mod exhaustive;
mod faults;
mod frees;
mod gate;
mod hazard;
mod life;
mod log;
mod loss;
mod model;
mod moment;
mod openers;
mod opening;
mod operator;
mod past;
mod peek;
mod plan;
mod planned;
mod polls;
mod probe;
mod read_only;
mod records;
mod rot;
mod running;
mod saves;
mod seed;
mod shrink;
mod ssd_calls;
mod ssd_life;
mod table;
mod takeover;
mod threads;
mod totals;
mod twist;
mod upkeep;
mod violation;
mod watched;
mod work;
mod world;

pub use coverage::Coverage;
pub use exhaustive::Base;
pub use faults::FaultBase;
pub use hazard::Hazard;
pub use plan::{Plan, ssd_policy};
pub use running::Drawn;
pub use seed::run_seed;
pub use shrink::shrink;
pub use table::drawn;
pub use takeover::run_takeovers;
pub use threads::run_threads;
pub use totals::Totals;
pub use twist::Twist;
pub use violation::Violation;
