//! The world around a store: file systems, paths, limits, processes. Each module is a table of surroundings,
//! and what a store does in each. What a machine lacks is skipped, with a line on standard error.

mod mounted;

#[path = "world/file_systems.rs"]
mod file_systems;
#[path = "world/paths.rs"]
mod paths;
