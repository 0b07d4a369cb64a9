//! The protocol states in which crashes were taken, to reveal blind spots.

use serde::Serialize;

macro_rules! states {
    ($($name:ident => $text:literal,)*) => {
        /// A state of the protocol at the moment of a crash, or an outcome of the recovery after it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum State { $($name,)* }

        /// The states' names in the report.
        const NAMES: &[&str] = &[$($text,)*];
    };
}

states! {
    SlotWrite => "slot write in flight",
    SlotWrites => "several slot writes in flight",
    Abandoned => "slot write in flight whose page changed meanwhile",
    Admission => "admission of an evicted page in flight",
    RingWrite => "ring write in flight",
    JournalWrite => "journal write in flight",
    SsdFlush => "SSD flush in flight",
    HddFlush => "HDD flush in flight",
    HomeWrite => "cleaner's home write in flight",
    HomeWrites => "several home writes in flight",
    WritingBack => "write-back of slots under way",
    WriteBackRead => "write-back: reading slots",
    WriteBackHome => "write-back: home write in flight",
    Capturing => "checkpoint in flight",
    MapBody => "checkpoint: body write in flight",
    MapHeader => "checkpoint: header write in flight",
    MapFlush => "checkpoint: flush in flight",
    CapturingSlotWrite => "checkpoint and slot write in flight",
    CapturingHome => "checkpoint and home write in flight",
    ZoneSpent => "zone spent: no slot writable",
    Starved => "a writer waits for a slot",
    Waiting => "free slots outside the zone",
    SsdFull => "SSD full",
    Retired => "retired slot waits for a flush",
    RetiredRead => "retired slot is being read",
    RingFull => "ring full",
    JournalHigh => "journal more than half full",
    JournalFull => "journal full",
    SsdUnflushed => "unflushed SSD writes",
    HddUnflushed => "unflushed HDD writes",
    ThreePlaces => "page in three versions: memory, SSD, HDD",
    StaleCopy => "stale SSD copy of a page whose newer version is home",
    JournalNeeded => "stale SSD copy that only the journal voids",
    Syncing => "sync in flight",
    FlushingTo => "flush_to in flight",
    Discarding => "discard in flight",
    DroppingSpace => "drop of a space in flight",
    Closing => "close in flight",
    Refusing => "store refuses writes after a fault",
    SsdFailed => "SSD admits nothing after a fault",
    Recovering => "recovery: reading",
    RecoveryRepair => "recovery: repairing home pages",
    RecoveryCheckpoint => "recovery: checkpoint in flight",
    Twice => "cut a second time, during recovery or right after",
    Thrice => "cut a third time",
    Killed => "process killed, power on",
    KilledThenCut => "process killed, then the power cut during recovery or later",
    KilledTwice => "process killed twice",
    FlushFailedCached => "flush failed: writes still cached",
    FlushFailedNever => "flush failed: writes readable, never durable",
    FlushFailedReverted => "flush failed: writes gone",
    ReopenedAfterFlush => "reopened without a reboot after a failed flush",
    DroppedCall => "call dropped at an await",
    DroppedClose => "close dropped at an await",
    DroppedOpen => "opening dropped at an await",
    Reopened => "dropped with I/O in flight and reopened",
    NoRing => "geometry: no ring",
    Whole => "geometry: an HDD that writes pages whole",
    RefusedWhole => "the HDD refused to write a page whole",
    NoLongerWhole => "the HDD no longer writes pages whole",
    NoSsd => "geometry: no SSD",
    TinyRing => "geometry: a ring of one or two pages",
    FewSlots => "geometry: the fewest slots",
    TinyZone => "geometry: a zone of one slot",
    HostileSsd => "a hostile SSD policy",
    HostilePool => "a hostile pool policy",
    Gated => "log gate that lags",
    GrowthFailed => "growth failed",
    SaveFailed => "a save of the manifest failed",
    SaveReplaced => "a save of the manifest failed, and took effect",
    SuperblockFailed => "a superblock write failed",
    OpenFailed => "an open failed and was retried",
    CloseFailed => "a close failed",
    Intruded => "a second opener while the store was open",
    TwoOpeners => "two openers at once",
    SsdGivenUp => "SSD given up",
    SsdReadmitted => "SSD readmitted",
    SsdOff => "SSD switched off",
    SsdLossAccepted => "SSD loss accepted",
    SsdCallDropped => "SSD call dropped at an await",
    LossReported => "SSD loss reported, not acknowledged",
    LossAcknowledged => "SSD loss acknowledged",
    AckFailed => "acknowledgement of an SSD loss failed",
    Stranger => "on devices that another store used",
    FoundTrusted => "found: pages trusted from the checkpoint",
    FoundZone => "found: pages in the zone",
    FoundSuperseded => "found: copies voided by journal or ring",
    FoundRepaired => "found: home pages repaired from the ring",
    FoundOlder => "found: an older version than the last written",
    AfterClose => "opened after a close",
    Wrapped => "appending: the front wrapped around",
    Moving => "appending: second chance in flight",
    MovedOver => "appending: second chance in flight whose page was rewritten",
    ReadAdmission => "admission of a page just read in flight",
    Renewing => "write-through: copy of a page just written home in flight",
    Backing => "doublewrite: slot backs a home write that is not durable",
    BackingHome => "doublewrite: such a home write in flight",
    Freeing => "upkeep: free of pages in flight",
    FreePages => "upkeep: pages free",
    ReusedNumbers => "upkeep: freed numbers in use again",
    FreeFailed => "upkeep: a free failed",
    Shrinking => "upkeep: shrink of a space in flight",
    Shrunk => "upkeep: extents given back",
    Lowered => "upkeep: a space ends earlier",
    Resized => "upkeep: pool resized",
    Switching => "upkeep: switch of the SSD policy in flight",
    Budgeted => "upkeep: a write budget set",
    BackingUp => "upkeep: backup in flight",
    BackedUp => "upkeep: backed up, and compared once restored",
    BackedUpMore => "upkeep: backed up incrementally, and compared once restored",
    ShuttingDown => "upkeep: shutdown under load in flight",
    ShutDown => "upkeep: shut down under load",
    Replacing => "upkeep: replacement of the SSD in flight",
    SsdReplaced => "upkeep: SSD replaced",
}

impl State {
    /// The models of a failed flush.
    pub(crate) const FLUSH_FAILED: [Self; 3] =
        [Self::FlushFailedCached, Self::FlushFailedNever, Self::FlushFailedReverted];
}

/// A set of states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct States(u128);

const _: () = assert!(NAMES.len() <= 128);

impl States {
    pub(crate) fn add(&mut self, state: State) {
        self.0 |= 1 << state as u32;
    }

    pub(crate) fn remove(&mut self, state: State) {
        self.0 &= !(1 << state as u32);
    }

    pub(crate) fn add_if(&mut self, yes: bool, state: State) {
        if yes {
            self.add(state);
        }
    }

    pub(crate) fn has(self, state: State) -> bool {
        self.0 >> state as u32 & 1 == 1
    }

    pub(crate) fn any(self, states: &[State]) -> bool {
        states.iter().any(|state| self.has(*state))
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The number of crashes taken in each state.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; NAMES.len()])
    }
}

impl Coverage {
    pub(crate) fn count(&mut self, states: States) {
        for (at, count) in self.0.iter_mut().enumerate() {
            *count += u64::from(states.0 >> at & 1 == 1);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// Every state's name with its count.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().copied().zip(self.0.iter().copied())
    }

    /// States in which no crash was taken. Those of the running operations count if any of these were drawn.
    pub fn blind_spots(&self) -> Vec<&'static str> {
        let upkeep = |name: &str| name.starts_with("upkeep: ");
        let upkept = self.rows().any(|(name, count)| upkeep(name) && count > 0);
        let missed = self.rows().filter(|(name, count)| *count == 0 && (upkept || !upkeep(name)));
        missed.map(|(name, _)| name).collect()
    }
}
