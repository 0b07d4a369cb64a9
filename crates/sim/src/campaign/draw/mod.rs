//! What a seed draws: geometry and work of a scenario, the hazard that it is directed at, what an adversary
//! does. Plain values; no store is opened here.
//!
//! Begin with `plan`.

pub(crate) mod hazard;
pub(crate) mod plan;
pub(crate) mod twist;
