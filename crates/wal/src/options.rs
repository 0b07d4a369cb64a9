//! Options of a log.

/// The failure that the log must be able to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// A crash: keep the changes that only memory has.
    #[default]
    ForCrash,
    /// A crash, or the loss of the SSD: also keep the changes that the HDD lacks. The log grows beyond its
    /// capacity, from the oldest change on that only the SSD has. [`Ssd::drain`](pagetier::Ssd::drain)
    /// shortens it. A checkpoint drains the pages with the oldest changes when the disk is full, or a log on
    /// a device has few slots left. The store records how far the log was shortened, so an engine may choose
    /// this at any opening; the log suffices once the store has recorded a position, which
    /// [`recover`](crate::recover) checks.
    ForSsdLoss,
}

/// Options of a log.
///
/// ```
/// use pagetier_wal::{Keep, WalOptions};
///
/// let options = WalOptions::new().capacity_bytes(256 << 20).keep(Keep::ForSsdLoss);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct WalOptions {
    pub(crate) capacity_bytes: u64,
    pub(crate) keep: Keep,
}

/// The smallest capacity: four segments of the smallest size.
const CAPACITY_MIN: u64 = 256 << 10;

impl Default for WalOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl WalOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self { capacity_bytes: 64 << 20, keep: Keep::ForCrash }
    }

    /// The log that a recovery after a crash reads at most, in bytes: when it is longer, changes wait for a
    /// checkpoint ([`Wal::has_room`](crate::Wal::has_room)). It bounds the duration of a recovery. It is at
    /// least 256 KiB, since a log is shortened by whole segments; less counts as that. A record that is
    /// longer is refused ([`Wal::record_bytes_max`](crate::Wal::record_bytes_max)). Default: 64 MiB.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes.max(CAPACITY_MIN);
        self
    }

    /// The failure that the log must be able to repair. Default: a crash.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    pub(crate) fn segment_bytes(self) -> u64 {
        (self.capacity_bytes / 16).clamp(64 << 10, 64 << 20)
    }
}
