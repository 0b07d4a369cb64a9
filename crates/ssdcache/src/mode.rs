//! What the SSD is used for, how it is, and what happened to it.

use pagetier_page::PageId;
use std::sync::Arc;

/// What the SSD is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SsdMode {
    /// Changed pages may go to the SSD alone, and reach the HDD later.
    #[default]
    WriteBack,
    /// Changed pages go to the HDD; the SSD takes copies of pages as they leave memory. It gets no only
    /// copies; those that it has stay until their pages are written again, or are drained.
    WriteThrough,
    /// Nothing new goes to the SSD but the doublewrite ring and the journal; what it holds is read from it.
    ReadOnly,
    /// The SSD is not used at all: nothing is on it that counts, and it may be taken away.
    Off,
}

/// How the SSD is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SsdState {
    /// In use, as its [`SsdMode`] says.
    Active,
    /// A write, a flush or the device itself failed: it takes no new pages until it is re-admitted. Pages
    /// that the HDD has too are read there when the SSD cannot give them. Writes are refused once they can no
    /// longer be made safely.
    Degraded,
    /// Not in use: the store works as one without an SSD.
    Off,
}

/// What happened to the SSD.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SsdEvent {
    /// It failed, and takes no new pages.
    Degraded {
        /// The first error.
        cause: Arc<str>,
    },
    /// Writes are refused from now on: going on would lose data.
    Refusing {
        /// The first error.
        cause: Arc<str>,
        /// Whether it was the SSD's, so that re-admitting it or going on without it ends the refusal.
        by_ssd: bool,
    },
    /// Its mode was changed.
    Mode {
        /// The mode now in force.
        mode: SsdMode,
    },
    /// It is out of use: the store works as one without an SSD.
    Off,
    /// It was admitted, or taken back.
    Active,
    /// The subscriber was slow: so many events before the next one were dropped.
    Missed {
        /// How many.
        events: u64,
    },
    /// The only copy of a page's newest version turned out to be lost or damaged.
    Lost {
        /// The page.
        page: PageId,
    },
}

/// Events kept for a slow subscriber; older ones are dropped for it.
pub(crate) const EVENTS_KEPT: usize = 64;
