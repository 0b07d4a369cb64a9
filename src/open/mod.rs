//! How a store is opened: for use, for reading only, and for inspection. Reads and checks everything first,
//! so that a refused opening has changed nothing.
//!
//! Begin with `steps` (`Builder::open`), then `check` (what is refused) and `commit` (the first writes).

pub(crate) mod blank;
pub(crate) mod caveats;
pub(crate) mod check;
mod commit;
mod file_system;
mod hdd_ring;
pub(crate) mod inspect;
mod kept;
mod log_line;
mod read_only;
mod space_ends;
mod steps;
