//! SQLite, unchanged, with its database in a space of Pagetier. See `README.md`.

mod locks;
pub mod vfs;
