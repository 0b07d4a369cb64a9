//! One slot: what it holds, and how that relates to the HDD's version.
//!
//! A slot goes `Free → Writing → Live → (Retired →) Free`, or from `Writing` to `Bad`.
//!
//! There is one for each page of the SSD, so a smaller form of it is stored (`table`).

use crate::protocol::flushes::SsdFlush;
use pagetier_page::{Lsn, PageId, SpaceId, Stamp};

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
pub(super) enum Phase {
    /// It holds nothing of value.
    Free,
    /// A page image is on its way into the slot.
    Writing {
        /// The page has changed: the image is obsolete.
        abandoned: bool,
        /// The image is a copy of a version just written home.
        renews: bool,
    },
    /// The newest version of its page below memory.
    Live {
        /// A newer version has been stamped and is on its way to another slot.
        being_replaced: bool,
    },
    /// It holds an obsolete version, and is free once its flush has completed and nothing reads it.
    Retired,
    /// A write into it failed: it is not used again before the next open.
    Bad,
}

/// A slot. [`Slot::version`], [`Slot::stored`] and [`Slot::live`] say what counts of its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) page: PageId,
    pub(super) stamp: Stamp,
    /// For dirty versions: the HDD has every change older than this.
    pub(super) lsn: Lsn,
    /// The SSD flush that makes the stored version durable or, once it is retired, its successor;
    /// [`SsdFlush::NONE`]: no flush is awaited.
    pub(super) durable_at: SsdFlush,
    /// Reads, write-backs and second chances that hold the slot.
    pub(super) readers: u16,
    pub(super) phase: Phase,
    pub(super) standing: Standing,
    /// A recovery or a readmission found it dirty. It may have been written back earlier, so the HDD may
    /// have it.
    pub(super) perhaps_home: bool,
    /// A second chance copies it to another slot.
    pub(super) moving: bool,
}

impl Slot {
    pub(super) const FREE: Self = Self {
        page: PageId::new(SpaceId(0), 0),
        stamp: Stamp::from_bits(0),
        lsn: Lsn(0),
        durable_at: SsdFlush::NONE,
        readers: 0,
        phase: Phase::Free,
        standing: Standing::Clean,
        perhaps_home: false,
        moving: false,
    };

    /// Puts the version `stamp` of `page` into the slot: from here on nothing is left of what it held.
    pub(super) fn hold(&mut self, page: PageId, stamp: Stamp, standing: Standing, phase: Phase) {
        *self = Self { page, stamp, standing, phase, ..Self::FREE };
    }

    /// Whether its version is newer than the HDD's durable version.
    pub(super) fn is_dirty(&self) -> bool {
        self.standing != Standing::Clean
    }

    /// Whether its version is newer than the version that reads of the HDD return.
    pub(super) fn is_only(&self) -> bool {
        matches!(self.standing, Standing::Only | Standing::Stuck)
    }

    pub(super) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    pub(super) fn is_writing(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. })
    }

    pub(super) fn is_retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
    }

    /// The slot, if a complete version is in it.
    pub(super) fn stored(&self) -> Option<Self> {
        (self.is_live() || self.is_retired()).then_some(*self)
    }

    pub(super) fn stored_mut(&mut self) -> Option<&mut Self> {
        (self.is_live() || self.is_retired()).then_some(self)
    }

    /// The slot, if it holds its page's current copy.
    pub(super) fn live(&self) -> Option<Self> {
        self.is_live().then_some(*self)
    }

    pub(super) fn live_mut(&mut self) -> Option<&mut Self> {
        self.is_live().then_some(self)
    }

    /// The slot, if a version is in it or on its way there.
    pub(super) fn version(&self) -> Option<Self> {
        (!matches!(self.phase, Phase::Free | Phase::Bad)).then_some(*self)
    }

    pub(super) fn version_mut(&mut self) -> Option<&mut Self> {
        (!matches!(self.phase, Phase::Free | Phase::Bad)).then_some(self)
    }

    pub(super) fn readers(&self) -> u16 {
        self.stored().map_or(0, |stored| stored.readers)
    }

    /// Whether it holds a dirty copy that nothing reads and that may be written home.
    pub(super) fn is_idle_dirty(&self) -> bool {
        self.live().is_some_and(|s| s.is_dirty() && s.readers == 0)
    }

    /// Whether it holds a clean copy that nothing reads and that may be given up.
    pub(super) fn is_idle_clean(&self) -> bool {
        self.live().is_some_and(|s| !s.is_dirty() && s.readers == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::slots::{SlotParams, Slots};
    use pagetier_policy::{Costs, Millis, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    /// Bytes per slot of a full SSD, of which the policy takes the second number: the entry 18, the map 5.3,
    /// and four bits 0.5.
    fn bytes_per_slot(policy: SsdPolicy) -> (f64, f64) {
        let slots = 1 << 14;
        let held = |no| Entry { page: PageId::new(SpaceId(1), no), stamp: Stamp::from_bits(1), clean: true };
        let map: Vec<_> = (0..slots).map(|no| Some(held(no))).collect();
        let params = SlotPolicyParams {
            outqueue_entries: 0,
            ..SlotPolicyParams::new(Costs::PAPER, slots as usize, 16)
        };
        let mut full = Slots::new(SlotParams::new(slots, 10.0), policy.build(&params), &map, 0);
        full.begin_checkpoint(Millis(0));
        full.end_checkpoint(true);
        let per_slot = |bytes: usize| bytes as f64 / f64::from(slots);
        (per_slot(full.memory_bytes()), per_slot(full.policy().memory_bytes()))
    }

    #[test]
    fn a_slot_takes_24_bytes_and_the_policys_record() {
        let named = |name: &str| name.parse::<SsdPolicy>().expect("a policy");
        for (policy, most) in [
            (named("none"), 24.0),
            (SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT), 40.0),
            (SsdPolicy::Custom(&RivalSsd::Tac, ZonePercent::DEFAULT), 40.0),
            (SsdPolicy::Custom(&RivalSsd::MvFifo, ZonePercent::DEFAULT), 40.0),
            (named("auto"), 59.0),
            (named("cac"), 73.0),
        ] {
            let (all, own) = bytes_per_slot(policy);
            eprintln!("{policy}: {all:.1} bytes, {own:.1} of them the policy's");
            assert!((all - own - 23.9).abs() < 0.1, "{policy}: {all} bytes, {own} of them the policy's");
            assert!(all <= most, "{policy}: {all} bytes");
        }
    }
}
