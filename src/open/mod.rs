//! How a store is opened. Reads and checks everything first, so that a refused open has changed nothing.
//!
//! Begin with `steps` (`Builder::open`), then `check` (what is refused) and `commit` (the first writes).

pub(crate) mod blank;
pub(crate) mod caveats;
pub(crate) mod check;
mod commit;
mod file_system;
mod fixed_options;
mod hdd_ring;
mod log_line;
mod space_ends;
mod steps;
