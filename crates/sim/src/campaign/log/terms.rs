//! How the log of a seed's store is kept, and where on its device.

use crate::campaign::draw::plan::Plan;
use pagetier_wal::{Keep, WalOptions};

/// The slots of a log on a device begin there.
pub(super) const SLOTS_AT: u64 = 64 << 10;
/// The size of a slot; in some logs, which were made for a larger capacity, twice that: a record that fits
/// into a segment may be longer than the capacity.
const SLOT_BYTES: u64 = 256 << 10;

/// How the log of a seed's store is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) keep: Keep,
    pub(super) capacity: u64,
    pub(super) slots: u64,
    /// How long the log may be that is kept for the loss of the SSD.
    pub(super) ssd_log_bytes: u64,
    /// The log is on files instead of a device.
    pub(super) on_files: bool,
    pub(super) slot_bytes: u64,
}

impl Terms {
    pub(super) fn of(plan: &Plan) -> Self {
        // Bits of the seed that nothing else reads.
        let mixed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let keep = if mixed & 1 == 1 { Keep::ForSsdLoss } else { Keep::ForCrash };
        // A record has whole pages.
        let scale = u64::from(plan.page_kib) / 4;
        let slot_bytes = SLOT_BYTES * scale;
        let capacity = scale * [256 << 10, 256 << 10, 300 << 10, 512 << 10][(mixed >> 1 & 3) as usize];
        // What the device of a log needs at least, and as much again for what the SSD may hold.
        let least = capacity * 4 / slot_bytes * if keep == Keep::ForSsdLoss { 3 } else { 1 };
        let slots = least + [1, 2, 4, 8][(mixed >> 3 & 3) as usize];
        let slot_bytes = if mixed >> 5 & 3 == 3 { 2 * slot_bytes } else { slot_bytes };
        let ssd_log_bytes = capacity * [2, 3, 4, 8][(mixed >> 8 & 3) as usize];
        Self { keep, capacity, slots, ssd_log_bytes, slot_bytes, on_files: mixed >> 7 & 1 == 1 }
    }

    pub(super) fn options(self) -> WalOptions {
        WalOptions::new().capacity_bytes(self.capacity).keep(self.keep).ssd_log_bytes(self.ssd_log_bytes)
    }

    /// The size of the log's device.
    pub(super) fn log_bytes(self) -> u64 {
        SLOTS_AT + self.slots * self.slot_bytes
    }
}
