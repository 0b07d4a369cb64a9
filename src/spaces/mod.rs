//! Creates, drops and grows spaces, frees pages, and gives disk space back, durably and in that order: the
//! table itself is in `volume`.
//!
//! Begin with `calls` (`Spaces`), then `growth`, then `free`, whose steps decide what a freed page is.

pub(crate) mod calls;
mod free;
mod growth;
mod set_hints;
