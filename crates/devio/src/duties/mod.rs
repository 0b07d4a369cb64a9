//! What every device does for each operation: checks, counters, errors with their place, a mark while it is
//! in flight. The bytes are moved elsewhere: in `ram`, in `kernel`, in other crates.
//!
//! Begin with `metered` (`RawDevice`), the entry point for devices of other crates; then `check`.

pub(crate) mod check;
pub(crate) mod meter;
pub(crate) mod metered;
pub(crate) mod recorder;
