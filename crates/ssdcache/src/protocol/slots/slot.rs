//! One slot: what it holds, how that relates to the HDD's version, and which zones it is in.
//!
//! A slot goes `Free → Writing → Live → (Retired →) Free`, or from `Writing` to `Bad`.

use crate::protocol::flushes::SsdFlush;
use pagetier_page::{Lsn, PageId, Stamp};

/// How a version in a slot relates to the HDD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// The HDD durably has it.
    Clean,
    /// The HDD lacks it.
    Only,
    /// A copy of a home write that is not durable: the only copy until an HDD flush.
    AwaitsFlush,
    /// The HDD lacks it, and the slot cannot be read.
    Stuck,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    pub(super) page: PageId,
    pub(super) stamp: Stamp,
    pub(super) standing: Standing,
    /// For dirty versions: the HDD has every change older than this.
    pub(super) lsn: Lsn,
    /// A recovery or a readmission found it dirty. It may have been written back earlier, so the HDD may
    /// have it.
    pub(super) perhaps_home: bool,
}

impl Version {
    /// Whether it is newer than the HDD's durable version.
    pub(super) fn is_dirty(&self) -> bool {
        self.standing != Standing::Clean
    }

    /// Whether it is newer than the version that reads of the HDD return.
    pub(super) fn is_only(&self) -> bool {
        matches!(self.standing, Standing::Only | Standing::Stuck)
    }
}

/// A version whose write has completed and whose slot is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub(super) version: Version,
    /// The SSD flush that makes it durable or, once it is retired, its successor; `None`: no flush is
    /// awaited.
    pub(super) durable_at: Option<SsdFlush>,
    /// Reads, write-backs and second chances that hold the slot.
    pub(super) readers: u16,
    /// A second chance copies it to another slot.
    pub(super) moving: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    /// It holds nothing of value.
    Free,
    /// A page image is on its way into the slot.
    Writing {
        version: Version,
        /// The page has changed: the image is obsolete.
        abandoned: bool,
        /// The image is a copy of a version just written home.
        renews: bool,
    },
    /// The newest version of its page below memory.
    Live {
        stored: Stored,
        /// A newer version has been stamped and is on its way to another slot.
        being_replaced: bool,
    },
    /// It holds an obsolete version, and is free once its flush has completed and nothing reads it.
    Retired(Stored),
    /// A write into it failed: it is not used again before the next opening.
    Bad,
}

/// `Builder` budgets the memory of a slot as `SLOT_BYTES`.
const _: () = assert!(size_of::<Slot>() <= 72);

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    /// It is in the zone of the durable checkpoint.
    pub(super) in_zone: bool,
    /// It is in the zone of the checkpoint being written.
    pub(super) in_next: bool,
}

impl Slot {
    pub(super) const FREE: Self = Self { state: SlotState::Free, in_zone: false, in_next: false };

    /// Whether recovery would read the slot under every checkpoint that a crash could find (I2).
    pub(super) fn writable(&self, capturing: bool) -> bool {
        self.in_zone && (!capturing || self.in_next)
    }

    pub(super) fn is_free(&self) -> bool {
        self.state == SlotState::Free
    }

    pub(super) fn is_writing(&self) -> bool {
        matches!(self.state, SlotState::Writing { .. })
    }

    pub(super) fn is_retired(&self) -> bool {
        matches!(self.state, SlotState::Retired(_))
    }

    /// The complete version in the slot.
    pub(super) fn stored(&self) -> Option<&Stored> {
        match &self.state {
            SlotState::Live { stored, .. } | SlotState::Retired(stored) => Some(stored),
            _ => None,
        }
    }

    pub(super) fn stored_mut(&mut self) -> Option<&mut Stored> {
        match &mut self.state {
            SlotState::Live { stored, .. } | SlotState::Retired(stored) => Some(stored),
            _ => None,
        }
    }

    /// The version, if it is its page's current copy.
    pub(super) fn live(&self) -> Option<&Stored> {
        self.stored().filter(|_| matches!(self.state, SlotState::Live { .. }))
    }

    pub(super) fn live_mut(&mut self) -> Option<&mut Stored> {
        match &mut self.state {
            SlotState::Live { stored, .. } => Some(stored),
            _ => None,
        }
    }

    /// The version in the slot or on its way there.
    pub(super) fn version(&self) -> Option<&Version> {
        match &self.state {
            SlotState::Writing { version, .. } => Some(version),
            _ => self.stored().map(|stored| &stored.version),
        }
    }

    pub(super) fn version_mut(&mut self) -> Option<&mut Version> {
        match &mut self.state {
            SlotState::Writing { version, .. } => Some(version),
            SlotState::Live { stored, .. } | SlotState::Retired(stored) => Some(&mut stored.version),
            SlotState::Free | SlotState::Bad => None,
        }
    }

    pub(super) fn readers(&self) -> u16 {
        self.stored().map_or(0, |stored| stored.readers)
    }

    /// Whether it holds a dirty copy that nothing reads and that may be written home.
    pub(super) fn is_idle_dirty(&self) -> bool {
        self.live().is_some_and(|s| s.version.is_dirty() && s.readers == 0)
    }

    /// Whether it holds a clean copy that nothing reads and that may be given up.
    pub(super) fn is_idle_clean(&self) -> bool {
        self.live().is_some_and(|s| !s.version.is_dirty() && s.readers == 0)
    }
}
