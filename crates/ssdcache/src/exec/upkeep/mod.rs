//! The background task of a tier, and what it does besides checkpoints: second chances, homes written again
//! from the ring, the write budget.
//!
//! Begin with `maintenance`.

pub(crate) mod budget;
pub(crate) mod maintenance;
mod ring_repair;
mod second_chance;
