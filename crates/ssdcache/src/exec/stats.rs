//! What the tier counts.

use super::tier::SsdTier;
use super::upkeep::budget::BudgetStats;
use crate::mode::{HomeWrites, SsdMode, SsdState};
use crate::protocol::Protocol;
use crate::protocol::slots::{FreeSlots, SlotCounts};
use pagetier_page::Lsn;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A snapshot of the tier's counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TierStats {
    /// Slots of the SSD cache.
    pub slots: u64,
    /// Pages that have a copy in the SSD cache.
    pub pages: u64,
    /// Copies that are newer than the HDD's version.
    pub dirty_pages: u64,
    /// Copies of pages whose space is kept off the SSD: they are being removed.
    #[serde(default)]
    pub leaving: u64,
    /// Slots without a page: writable now, writable after the next checkpoint, and waiting for a flush of the
    /// SSD.
    #[serde(flatten)]
    pub free: FreeSlots,
    /// Blocks of the journal that the next checkpoint will free.
    pub journal_used: u64,
    /// Counters of events of pages and slots.
    #[serde(flatten)]
    pub counts: SlotCounts,
    /// The memory of the slot table, the page map and the policy, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// What the SSD is used for.
    pub mode: SsdMode,
    /// What keeps a crash from tearing the homes of pages.
    #[serde(default)]
    pub home_writes: HomeWrites,
    /// The oldest log position that redo would need if the SSD were lost now: every older change is on the
    /// HDD, or in memory. `None`: the SSD holds no only copy, except of pages that were created and not
    /// changed since. After a recovery it may be older than necessary. The record at this position is needed.
    #[serde(with = "position")]
    pub oldest_lsn: Option<Lsn>,
    /// The write budget, if there is one.
    #[serde(flatten)]
    pub write_budget: Option<BudgetStats>,
    /// Why the SSD takes no new pages; `None`: it takes them.
    #[serde(rename = "error")]
    pub ssd_error: Option<Arc<str>>,
    /// Why writes are refused; `None`: they are accepted.
    pub refusing: Option<Arc<str>>,
}

/// A log position as a plain number.
mod position {
    use super::Lsn;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(lsn: &Option<Lsn>, to: S) -> Result<S::Ok, S::Error> {
        lsn.map(|lsn| lsn.0).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Lsn>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Lsn))
    }
}

impl TierStats {
    /// The SSD's state.
    pub const fn state(&self) -> SsdState {
        match (self.slots, &self.ssd_error) {
            (0, _) => SsdState::Off,
            (_, Some(_)) => SsdState::Degraded,
            (_, None) => SsdState::Active,
        }
    }
}

impl SsdTier {
    /// Counters and sizes. Those of the slots and of home writes are of one moment.
    pub fn stats(&self) -> TierStats {
        let (mode, all) = (self.mode(), u64::from(self.core.layout().slots));
        let state = self.core.state.lock();
        let Protocol { slots, ssd_error, home, .. } = &*state;
        TierStats {
            slots: all,
            mode,
            home_writes: self.core.home_writes(),
            oldest_lsn: state.oldest_lsn(),
            pages: slots.pages() as u64,
            dirty_pages: slots.dirty_pages() as u64,
            leaving: slots.copies_kept_off() as u64,
            free: slots.free_slots(),
            journal_used: home.journal_held(),
            counts: slots.counts(),
            memory_bytes: slots.memory_bytes() as u64,
            write_budget: self.core.budget_stats(),
            ssd_error: ssd_error.clone(),
            refusing: self.core.refused_now(),
        }
    }
}
