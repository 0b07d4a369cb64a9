//! The inputs and outputs of the state machine: plain values.

use crate::protocol::flushes::SsdFlush;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::SlotId;

/// Sizes of the moving parts, from the layout and the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotParams {
    /// The total number of slots.
    pub slots: u32,
    /// Slots of the eviction zone, all of which a recovery reads.
    pub zone: u32,
    /// Slots kept without a page, so that a page on the SSD can be rewritten elsewhere.
    pub reserve: u32,
    /// The slots kept without a page while rewrites come in bursts, at least the reserve. A burst takes those
    /// of pages of little benefit, and new pages get them once there are no more bursts.
    pub burst: u32,
    /// The number of next victims to keep clean.
    pub clean_ahead: u32,
}

/// What a burst may take on a small SSD: at most this number and an eighth of the slots.
const BURST_MIN: u32 = 256;

impl SlotParams {
    /// The sizes for `slots` slots and a zone of `zone_percent` per cent of them.
    #[must_use]
    pub fn new(slots: u32, zone_percent: f64) -> Self {
        let reserve = (slots / 64).clamp(4, 1 << 16);
        // With the reserve alone, a burst on a small SSD would write a map checkpoint every few dozen pages;
        // a larger reserve would keep the slots from pages also while there is no burst.
        let burst = BURST_MIN.min(slots / 8).max(reserve);
        let zone = (f64::from(slots) * zone_percent / 100.0) as u32;
        let zone = zone.clamp((2 * reserve).max(burst).max(8), slots.max(8));
        Self { slots, zone, reserve, burst, clean_ahead: (zone / 8).clamp(2, 64) }
    }
}

/// A slot given out for one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The slot to write.
    pub slot: SlotId,
    /// The page to write there.
    pub page: PageId,
    /// The stamp of its image.
    pub stamp: Stamp,
    /// Whether the version is newer than the HDD's.
    pub dirty: bool,
    /// Whether the page had no copy.
    pub arrives: bool,
    /// The page whose copy was given up for it.
    pub displaced: Option<PageId>,
    /// Whether the slot backs the page's home write, which follows at once.
    pub backs_home: bool,
    /// Whether the superseded copy is of a version that the HDD lacks.
    pub over_only_copy: bool,
    /// Whether it is a copy of a home write that is not durable and that nothing else backs; it is dirty
    /// until the home write is durable.
    pub waits_for_home: bool,
}

/// A second chance: the copy of a page from a slot about to be reused to the front of the circle. Held as by
/// a read until [`Slots::end_move`](super::Slots::end_move).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The slot about to be reused, whose page stays.
    pub from: WriteBack,
    /// The slot at the front, with the copy's new stamp.
    pub to: Ticket,
}

/// What to do with a dirty page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Write it to this slot.
    Ssd(Ticket),
    /// Write it to its home.
    Hdd,
    /// Wait: no slot may be written before the checkpoint in progress (or the next one) has ended.
    Wait,
}

/// Why a page gets no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSlot {
    /// None may be written at present, but one may after a checkpoint, a flush or a write-back.
    Soon,
    /// The policy rejects the page, or waiting would be futile.
    Never,
}

/// The location of the newest version below memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Located {
    /// At its home on the HDD.
    Hdd,
    /// In this slot, which is held until [`Slots::end_read`](super::Slots::end_read).
    Slot {
        /// The slot to read.
        slot: SlotId,
        /// The version that it must hold.
        stamp: Stamp,
        /// Whether it is the only copy of that version.
        dirty: bool,
    },
    /// On its way to the SSD: ask again when that write has ended.
    Pending,
}

/// A future victim that must be copied to the HDD first. Held as by a read until
/// [`Slots::end_write_back`](super::Slots::end_write_back).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// The slot to read.
    pub slot: SlotId,
    /// The page to be copied home.
    pub page: PageId,
    /// The version that the slot held at the plan. If it holds another later, nothing is copied (I8).
    pub stamp: Stamp,
    /// The SSD flush that must complete before the HDD write starts, because the slot backs it.
    pub durable_at: SsdFlush,
}

/// The work due to make slots writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapWork {
    /// Write a map checkpoint.
    Checkpoint,
    /// Flush the SSD, which frees retired slots.
    Flush,
}

/// Counters of the SSD cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SlotCounts {
    /// Pages admitted to a free slot.
    pub admitted_free: u64,
    /// Pages admitted in place of another.
    pub admitted_over: u64,
    /// Pages rejected by the policy.
    pub rejected: u64,
    /// Pages rejected because no slot could be written at that moment.
    pub rejected_no_slot: u64,
    /// Dirty pages rewritten on the SSD.
    pub rewritten: u64,
    /// Copies dropped because the page was changed in memory.
    pub invalidated: u64,
    /// Copies given up for other pages.
    pub evicted: u64,
    /// Victims copied to the HDD ahead of their eviction.
    pub written_back: u64,
    /// Checkpoints that became durable.
    pub checkpoints: u64,
    /// Clean copies that were bad and were dropped in favour of the HDD's.
    pub healed: u64,
    /// Pages admitted as they were read from the HDD.
    pub admitted_on_read: u64,
    /// Copies replaced because their pages were written home (write-through).
    pub renewed: u64,
    /// Pages appended again when their slots were about to be reused.
    pub second_chances: u64,
    /// Pages whose home writes were backed by their slots and are durable (doublewrite).
    pub doublewritten: u64,
}

/// The slots without a page, by what they wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct FreeSlots {
    /// In the zone of every checkpoint that a crash could find, so writable at once (I2).
    #[serde(rename = "free_writable")]
    pub writable: usize,
    /// Outside the zone: writable after the next checkpoint.
    #[serde(rename = "free_waiting")]
    pub waiting: usize,
    /// Obsolete: free after the next flush of the SSD.
    #[serde(rename = "free_retired")]
    pub retired: usize,
    /// Whether a checkpoint is being written.
    #[serde(default)]
    pub checkpointing: bool,
}

/// What a checkpoint captures at its begin.
#[derive(Debug)]
pub struct Capture {
    /// The generation that the header will state.
    pub generation: u64,
    /// The zone, a bit per slot, the lowest slot in the lowest bit.
    pub zone: Vec<u64>,
}
