//! Waits: the queues in which requests wait for a latch, and the task that reports waits that take long.
//!
//! | file | what it has |
//! | --- | --- |
//! | `queues` | the queue of each frame's latch: first come, first served, handed over directly |
//! | `stalls` | every wait for anything else, and the task that warns of old ones |
//! | `place` | which calls led to a wait, for its warning |
//! | `watch` | wakes that task, which rests while no request waits |
//! | `patience` | a limit on a wait, without the time in which the process was stopped |
//! | `holders` | in debug builds: which task holds a guard of which page, to refuse a wait for itself |
//!
//! Begin with `queues`; the future that waits for a latch is in `read::latch`.

pub(crate) mod holders;
pub(crate) mod patience;
pub(crate) mod place;
pub(crate) mod queues;
pub(crate) mod stalls;
pub(crate) mod watch;
