//! Examines a closed store without writing to it: reports what its devices hold
//! ([`Builder::inspect`](crate::Builder::inspect)), and opens it for reading only
//! ([`Builder::open_read_only`](crate::Builder::open_read_only)).

mod devices;
mod read_only;

pub use crate::open::caveats::Caveat;
pub use devices::{
    HddInspection, Inspection, JournalInspection, ManifestInspection, MapInspection, SpaceInspection,
    SsdInspection, SuperblockInspection, SuperblockState,
};
pub use pagetier_ssdcache::OpeningMarks;
