//! The SSD cache: slots for pages, write-back to the HDD, map checkpoints, the doublewrite ring, recovery.
//!
//! Two halves. Pure: [`slots`](Slots) says which slot may be written and which must be kept,
//! [`recovery`](Evidence) what a crash left, the codecs what stands on disk. Executing: [`SsdTier`] carries
//! it out over two devices. A policy decides only what is worth a slot; a bad one costs speed, never data.

#![forbid(unsafe_code)]

// The unit tests use the harness of the integration tests, which names the crate.
#[cfg(test)]
extern crate self as pagetier_ssdcache;

mod exec;
mod format;
mod mode;
#[cfg(feature = "mutations")]
mod moment;
mod mutation;
mod protocol;
mod rules;
mod tier;

pub use exec::Homes;
pub use exec::budget::BudgetStats;
pub use exec::drain::{DrainProgress, DrainReport};
pub use exec::open::{
    OpenError, OpenParams, Progress, RecoveryReport, format, identify, mark, write_superblocks,
};
pub use exec::quiet::{ExchangeError, Exchanged, NewCacheDevice};
pub use exec::readmit::{ReadmitError, ReadmitReport};
pub use exec::remember::{Flushed, Remember, RememberInMemory, Unproved};
pub use exec::scrub::Checked;
pub use format::journal::{Backing, Block, RECORDS_MAX, Record};
pub use format::layout::{
    BLOCK_BYTES, JournalSeq, Layout, MAP_ENTRY_BYTES, RING_PAGES_MAX, SLOTS_MIN, TooSmall, zone_bitmap_bytes,
};
pub use format::map::{Entry, MapBody, MapHeader, decode_mark, encode_mark};
pub use format::superblock::{Found, Marks, Superblock};
pub use mode::{SsdEvent, SsdMode, SsdState};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use moment::Moment;
#[doc(hidden)]
pub use mutation::Mutation;
pub use protocol::flushes::{FlushNumber, HddFlush, SsdFlush};
pub use protocol::home_batches::{BatchId, FailedHome, HomeBatches, NoPlace, Places};
pub use protocol::recovery::{Evidence, Image, Verdict};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use protocol::slots::Tampered;
pub use protocol::slots::{
    Capture, FreeSlots, Located, MapWork, Move, Plan, SlotCounts, SlotParams, Slots, Ticket, WriteBack,
};
#[doc(hidden)]
pub use rules::Rules;
pub use tier::{SsdTier, TierStats};
