//! The SSD cache: slots for pages, write-back to the HDD, map checkpoints, the doublewrite ring, recovery.
//!
//! The crate has two halves. The pure half decides: [`Slots`] which slots may be written and which must be
//! kept, [`Evidence`] what survived a crash, and the codecs what the bytes on disk mean. The executing half,
//! [`SsdTier`], carries the decisions out on two devices. A policy decides only which pages are worth a slot,
//! so a bad one costs speed, never data.

#![forbid(unsafe_code)]

// The unit tests share the harness of the integration tests, which refers to the crate by name.
#[cfg(test)]
extern crate self as pagetier_ssdcache;

mod exec;
mod format;
mod mode;
mod protocol;
mod remember;

pub use exec::Homes;
pub use exec::life::drain::{DrainProgress, DrainReport};
pub use exec::life::quiet::{ExchangeError, Exchanged, NewCacheDevice};
pub use exec::life::readmit::{ReadmitError, ReadmitReport, Readmitter};
pub use exec::open::{
    OldRing, OpenError, OpenParams, RecoveryProgress, RecoveryReport, assign, format, identify, mark,
    newest_label,
};
pub use exec::read::scrub::Checked;
pub use exec::stats::TierStats;
pub use exec::tier::{ModeLimit, SsdTier};
pub use exec::upkeep::budget::BudgetStats;
pub use format::journal::{Backing, Block, RECORDS_MAX, Record};
pub use format::layout::{
    BLOCK_BYTES, JournalSeq, Layout, MAP_ENTRY_BYTES, RING_PAGES_MAX, SLOTS_MIN, SsdTooSmall,
    zone_bitmap_bytes,
};
pub use format::map::{Entry, MapBody, MapHeader, MapPiece, decode_mark, encode_mark};
pub use format::superblock::{Found, Label, OpeningMarks, Superblock, is_striped};
pub use mode::{HomeWrites, SsdEvent, SsdMode, SsdState};
pub use protocol::flushes::{FlushNumber, HddFlush, SsdFlush};
pub use protocol::home_batches::{BatchId, FailedHome, HomeBatches, NoPlace, Places};
pub use protocol::recovery::{Evidence, Image, Verdict};
#[cfg(feature = "probes")]
#[doc(hidden)]
pub use protocol::slots::Moment;
pub use protocol::slots::{
    Capture, FreeSlots, Located, MapWork, Move, Plan, SlotCounts, SlotParams, Slots, Ticket, WriteBack,
};
pub use remember::{Flushed, Remember, RememberInMemory, Unverified};
