//! The contents of a closed store: [`Builder::inspect`](crate::Builder::inspect).

mod devices;

pub use crate::open::caveats::Caveat;
pub use devices::{
    HddInspection, Inspection, JournalInspection, ManifestInspection, MapInspection, SpaceInspection,
    SsdInspection, SuperblockInspection, SuperblockState,
};
pub use pagetier_ssdcache::OpeningMarks;
