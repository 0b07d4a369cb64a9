//! A closed store is examined without a write to it: what its devices hold
//! ([`Builder::inspect`](crate::Builder::inspect)), and an open for reading only
//! ([`Builder::open_read_only`](crate::Builder::open_read_only)).

mod devices;
mod read_only;

pub use crate::open::caveats::Caveat;
pub use devices::{
    HddInspection, Inspection, JournalInspection, ManifestInspection, MapInspection, SpaceInspection,
    SsdInspection, SuperblockInspection, SuperblockState,
};
pub use pagetier_ssdcache::OpeningMarks;
