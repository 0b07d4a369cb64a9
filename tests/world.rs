//! The world around a store: what the system refuses, limits or does to the process. Each row of each table
//! states what must hold: the store opens, or fails with a typed error that names the cause, and nothing that
//! was synced is lost. A row that needs what this machine lacks says so and is skipped.

#[path = "world/child.rs"]
mod child;
#[path = "world/limits.rs"]
mod limits;
#[path = "world/process.rs"]
mod process;
