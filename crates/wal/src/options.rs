//! Options of a log.

/// The failure that the log must be able to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// A crash: keep the changes that only memory has.
    #[default]
    ForCrash,
    /// A crash, or the loss of the SSD: also keep the changes that the HDD lacks. The log grows beyond its
    /// capacity, from the oldest change on that only the SSD has, up to
    /// [`WalOptions::ssd_log_bytes`](crate::WalOptions::ssd_log_bytes): checkpoints then bring the pages with
    /// the oldest changes home. They also do so when the disk is full, or a log on a device has few slots
    /// left. A recovery after a crash reads no more than without this. The store records how far the log was
    /// shortened, so an engine may choose this at any open; the log suffices once the store has recorded a
    /// position, which [`recover`](crate::recover) checks.
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
    /// In capacities, unless it is set.
    pub(crate) ssd_log_bytes: Option<u64>,
}

/// The capacities that a log may have that is kept for the loss of the SSD, unless its option says otherwise.
const SSD_LOG: u64 = 8;
/// The fewest: less than this, and the log would have to be without a change that only the SSD has.
const SSD_LOG_MIN: u64 = 2;

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
        Self { capacity_bytes: 64 << 20, keep: Keep::ForCrash, ssd_log_bytes: None }
    }

    /// The log that a recovery after a crash reads at most, in bytes, and up to a segment more, since it
    /// reads whole ones: when it is longer, changes wait for a checkpoint
    /// ([`Wal::has_space`](crate::Wal::has_space)). It bounds the duration of a recovery. It is at least
    /// 256 KiB, since a log is shortened by whole segments; less counts as that. A record that is longer
    /// is refused ([`Wal::record_bytes_max`](crate::Wal::record_bytes_max)). Files take the space of four
    /// segments more, a sixteenth of the capacity each, from 64 KiB to 64 MiB. Default: 64 MiB.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes.max(CAPACITY_MIN);
        self
    }

    /// The failure that the log must be able to repair. Default: a crash.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// The length of a log that is kept for the loss of the SSD ([`Keep::ForSsdLoss`]), in bytes: a
    /// recovery from that reads as much. When half is in use, checkpoints bring the pages with the oldest
    /// changes home from the SSD, a segment's worth at a time; at ten sixteenths, changes wait for that. Of
    /// pages that were on the SSD at an open, none is known to have older changes than another: they go
    /// home bit by bit, and changes wait at fifteen sixteenths. So a recovery with a longer log than that
    /// lets changes wait until all of them are home. A shorter log costs more writes of the HDD: a page that
    /// is changed again and again goes home about once in the time in which the log grows by half of its
    /// limit, so choose some times the SSD's size (the guide has figures). Less than two capacities counts as
    /// that. Default: eight capacities.
    pub fn ssd_log_bytes(mut self, bytes: u64) -> Self {
        self.ssd_log_bytes = Some(bytes);
        self
    }

    /// The most that the log may have, which grows no longer for a crash alone.
    pub(crate) fn kept_bytes(self) -> u64 {
        let capacities = |n: u64| self.capacity_bytes.saturating_mul(n);
        match self.keep {
            Keep::ForCrash => u64::MAX,
            Keep::ForSsdLoss => {
                self.ssd_log_bytes.unwrap_or(capacities(SSD_LOG)).max(capacities(SSD_LOG_MIN))
            }
        }
    }

    pub(crate) fn segment_bytes(self) -> u64 {
        (self.capacity_bytes / 16).clamp(64 << 10, 64 << 20)
    }
}
