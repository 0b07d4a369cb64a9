//! Inputs and outputs of the state machine: plain values.

use crate::format::map::MapBody;
use crate::protocol::flushes::SsdFlush;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::SlotId;

/// Sizes of the moving parts, from the layout and the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotParams {
    /// Slots in all.
    pub slots: u32,
    /// Slots of the eviction zone: what recovery has to read.
    pub zone: u32,
    /// Slots that stay without a page, so that a page on the SSD can be rewritten elsewhere.
    pub reserve: u32,
    /// How many of the next victims are kept clean.
    pub clean_ahead: u32,
}

impl SlotParams {
    /// For `slots` slots and a zone of `zone_percent` per cent.
    #[must_use]
    pub fn new(slots: u32, zone_percent: f64) -> Self {
        let reserve = (slots / 64).clamp(4, 1 << 16);
        let zone = (f64::from(slots) * zone_percent / 100.0) as u32;
        let zone = zone.clamp((2 * reserve).max(8), slots.max(8));
        Self { slots, zone, reserve, clean_ahead: (zone / 8).clamp(2, 64) }
    }
}

/// A slot given out for one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The slot to write.
    pub slot: SlotId,
    /// The page that goes there.
    pub page: PageId,
    /// The stamp that its image carries.
    pub stamp: Stamp,
    /// Whether the version is newer than the HDD's.
    pub dirty: bool,
    /// Whether the page had no copy before.
    pub arrives: bool,
    /// The page whose copy was given up for it.
    pub displaced: Option<PageId>,
    /// The slot is to back the page's way home, which follows at once.
    pub backs_home: bool,
    /// The superseded copy is of a version that the HDD lacks.
    pub over_only_copy: bool,
    /// A copy of a home write that is not durable, and nothing else backs: dirty until it is.
    pub waits_for_home: bool,
}

/// A second chance: a page's way from the slot that is taken back to the front of the circle. Held like a
/// read until [`Slots::end_move`](super::Slots::end_move).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where it is.
    pub from: WriteBack,
    /// Where it goes.
    pub to: Ticket,
}

/// What to do with a dirty page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Write it to this slot.
    Ssd(Ticket),
    /// Write it to its home.
    Hdd,
    /// No slot may be written before the checkpoint in progress (or the next one) has ended.
    Wait,
}

/// Why a page gets no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSlot {
    /// None may be written for now; one will, after a checkpoint, a flush or a write-back.
    Soon,
    /// The policy does not take it, or waiting leads nowhere.
    Never,
}

/// Where the newest version below memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Located {
    /// At home.
    Hdd,
    /// In this slot, which is held until [`Slots::end_read`](super::Slots::end_read).
    Slot {
        /// The slot.
        slot: SlotId,
        /// The version that must be found there.
        stamp: Stamp,
        /// Whether it is the only copy of that version.
        dirty: bool,
    },
    /// Being written to the SSD: ask again when that write has ended.
    Pending,
}

/// A victim-to-be that has to reach the HDD first. Held like a read until
/// [`Slots::end_write_back`](super::Slots::end_write_back).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// The slot to read.
    pub slot: SlotId,
    /// Its page.
    pub page: PageId,
    /// Its version.
    pub stamp: Stamp,
    /// The SSD flush that must be over before the HDD write starts, because the slot backs it.
    pub durable_at: Option<SsdFlush>,
}

/// What is due so that slots can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapWork {
    /// Write a map checkpoint.
    Checkpoint,
    /// Flush the SSD, so that retired slots become free.
    Flush,
}

/// Counters of the SSD cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SlotCounts {
    /// Pages written into a free slot when there was room.
    pub admitted_free: u64,
    /// Pages that took the place of another.
    pub admitted_over: u64,
    /// Pages that the policy rejected.
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
    /// Bad clean copies that were read from the HDD instead.
    pub healed: u64,
    /// Pages admitted when they were read from the HDD.
    pub admitted_on_read: u64,
    /// Copies replaced because their pages had been written home (write-through).
    pub renewed: u64,
    /// Pages appended again when their slots were taken back.
    pub second_chances: u64,
    /// Pages whose slots backed their way home, which is durable (doublewrite).
    pub doublewritten: u64,
}

/// Slots without a page, by what they wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeSlots {
    /// May be written now.
    pub writable: usize,
    /// Outside the zone: may be written after the next checkpoint.
    pub waiting: usize,
    /// Obsolete, until a flush of the SSD has completed.
    pub retired: usize,
    /// A checkpoint is being written.
    pub checkpointing: bool,
}

/// A map captured for a checkpoint.
#[derive(Debug)]
pub struct Capture {
    /// The new generation.
    pub generation: u64,
    /// What goes to disk.
    pub body: MapBody,
}
