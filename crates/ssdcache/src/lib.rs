//! The SSD cache: slots for pages, write-back to the HDD, map checkpoints, the doublewrite ring, recovery.
//!
//! Two halves. Pure: [`slots`](Slots) says which slot may be written and which must be kept,
//! [`recovery`](Evidence) what a crash left, the codecs what stands on disk. Executing: [`SsdTier`] carries
//! it out over two devices. A policy decides only what is worth a slot; a bad one costs speed, never data.

#![forbid(unsafe_code)]

mod again;
mod backed;
mod bytes;
mod control;
mod core;
mod drain;
mod flush;
mod home;
mod home_writes;
mod images;
mod journal;
mod layout;
mod life;
mod maintain;
mod map;
mod mend;
#[cfg(feature = "mutations")]
mod moment;
mod mutation;
mod newest;
mod open;
mod plan;
mod prove;
mod read;
mod readmit;
mod recovery;
mod remember;
mod ring;
mod scrub;
mod side;
mod slots;
mod superblock;
mod tier;
mod unread;
mod write;

pub use crate::core::Homes;
pub use control::{ExchangeError, Exchanged, NewSide};
pub use drain::{DrainProgress, DrainReport};
pub use journal::{Backing, Block, RECORDS_MAX, Record};
pub use layout::{
    BLOCK_BYTES, Layout, MAP_ENTRY_BYTES, RING_PAGES_MAX, SLOTS_MIN, TooSmall, zone_bitmap_bytes,
};
pub use life::{SsdEvent, SsdMode, SsdState};
pub use map::{Entry, MapBody, MapHeader, decode_mark, encode_mark};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use moment::Moment;
#[doc(hidden)]
pub use mutation::{Broken, Mutation};
pub use open::{OpenError, OpenParams, Progress, RecoveryReport, format, identify, mark};
pub use readmit::{ReadmitError, ReadmitReport};
pub use recovery::{Evidence, Image, Verdict};
pub use remember::{Flushed, Remember, RememberInMemory, Unproved};
pub use ring::{FailedHome, Ring, RingSpan};
pub use scrub::Checked;
pub use slots::{
    Capture, FreeSlots, Located, MapWork, Move, Plan, SlotCounts, SlotParams, Slots, Ticket, WriteBack,
};
pub use superblock::{Found, Marks, Superblock, write_superblocks};
pub use tier::{SsdTier, TierStats};
