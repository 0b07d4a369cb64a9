//! The types that all policies share.

pub use pagetier_page::{PageId, SpaceId};

/// A frame of the buffer pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(pub u32);

/// A slot of the SSD cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotId(pub u32);

impl FrameId {
    /// As an index.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl SlotId {
    /// As an index.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Milliseconds on the store's own clock, from its open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Millis(pub u64);

/// The cost of one page read or write on each device, in milliseconds (2013 paper, Table 1).
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Costs {
    /// R_D: a random read from the HDD.
    pub hdd_read_ms: f64,
    /// W_D: a write to the HDD.
    pub hdd_write_ms: f64,
    /// R_S: a read from the SSD.
    pub ssd_read_ms: f64,
    /// W_S: a write to the SSD.
    pub ssd_write_ms: f64,
}

impl Costs {
    /// As measured in section 6.2 of the 2013 paper.
    pub const PAPER: Self =
        Self { hdd_read_ms: 7.2, hdd_write_ms: 4.96, ssd_read_ms: 0.11, ssd_write_ms: 0.27 };

    /// Whether every cost is positive and finite, as the policies require.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let all = [self.hdd_read_ms, self.hdd_write_ms, self.ssd_read_ms, self.ssd_write_ms];
        all.iter().all(|ms| ms.is_finite() && *ms > 0.0)
    }

    /// The costs of a read from `location` and of a write to it, in milliseconds: R and W.
    pub(crate) fn of(&self, location: Location) -> (f64, f64) {
        match location {
            Location::Ssd => (self.ssd_read_ms, self.ssd_write_ms),
            Location::Hdd => (self.hdd_read_ms, self.hdd_write_ms),
        }
    }

    /// The saving of a read from the SSD, in milliseconds: R_D - R_S.
    pub fn read_saving_ms(&self) -> f64 {
        self.hdd_read_ms - self.ssd_read_ms
    }
}

/// The device below the pool that a page would be read from, or was written to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// The page has a copy on the SSD.
    Ssd,
    /// The page has no copy on the SSD: the HDD's is the newest below memory.
    Hdd,
}

/// How a page was requested. CAC counts random reads only (2013 paper, section 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// On demand.
    Random,
    /// By read-ahead or a scan.
    Sequential,
}

/// Why a cleaner wrote a page (2013 paper, section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CleanReason {
    /// The page is about to be replaced.
    Replacement,
    /// The page's oldest change is too old: redo must stay bounded. Also `sync` and `flush_to`.
    Recoverability,
}
