//! redb on Pagetier, unchanged: [`file`] is a file over a space, [`backend`] is what redb needs of one.

#[cfg(feature = "redb")]
pub mod backend;
pub mod file;
pub mod kills;
pub mod measure;
