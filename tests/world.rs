//! The world around a store: file systems and paths, and what the system refuses, limits or does to the
//! process. Each row of each table states what must hold: the store opens, or fails with a typed error that
//! names the cause, and nothing that was synced is lost. A row that needs what this machine lacks says so on
//! standard error and is skipped.

mod mounted;

#[path = "world/child.rs"]
mod child;
#[path = "world/file_systems.rs"]
mod file_systems;
#[path = "world/limits.rs"]
mod limits;
#[path = "world/paths.rs"]
mod paths;
#[path = "world/process.rs"]
mod process;
