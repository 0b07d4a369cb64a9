//! The SSD's mode, its state and its events.

use pagetier_page::PageId;
use std::sync::Arc;

/// What the SSD is used for. A later mode uses it less.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SsdMode {
    /// Changed pages may go to the SSD alone, and reach the HDD later.
    #[default]
    WriteBack,
    /// Changed pages go to the HDD; the SSD takes copies of pages as they leave memory. It gets no new only
    /// copies; those that it has stay until their pages are written again or drained.
    WriteThrough,
    /// Only the doublewrite ring and the journal are written to the SSD; pages that it holds are read from
    /// it.
    ReadOnly,
    /// The SSD is not used at all. It holds nothing of value and may be removed.
    Off,
}

impl std::fmt::Display for SsdMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
            Self::ReadOnly => "read-only",
            Self::Off => "off",
        })
    }
}

/// What protects the homes of pages from a crash in the middle of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HomeWrites {
    /// The doublewrite ring, which has an image of each page first.
    #[default]
    Ringed,
    /// The HDD, which writes each page whole: the ring has no images.
    Whole,
    /// Nothing: there is no ring, and the HDD may tear a page.
    InPlace,
}

impl std::fmt::Display for HomeWrites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ringed => "through the doublewrite ring",
            Self::Whole => "whole, by the HDD",
            Self::InPlace => "in place, without a ring: a crash may tear pages",
        })
    }
}

/// The state of the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SsdState {
    /// In use, as its [`SsdMode`] says.
    Active,
    /// A write, a flush or the device itself failed: the SSD takes no new pages until it is readmitted. A
    /// page that it cannot return is read from the HDD if the HDD has the same version. Writes are refused
    /// once they cannot be made safely.
    Degraded,
    /// Not in use: the store works as one without an SSD.
    Off,
}

/// An event of the SSD.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SsdEvent {
    /// The SSD failed and takes no new pages.
    Degraded {
        /// The error that came first: later ones usually follow from it.
        cause: Arc<str>,
    },
    /// Writes are refused from now on: continuing could lose data.
    Refusing {
        /// The error that came first: later ones usually follow from it.
        cause: Arc<str>,
        /// Whether the SSD caused it: readmitting the SSD, or continuing without it, then ends the refusal.
        by_ssd: bool,
    },
    /// The mode was changed.
    Mode {
        /// The mode as configured; a call under way may still restrict it further.
        mode: SsdMode,
    },
    /// The SSD is out of use: the store works as one without an SSD.
    Off,
    /// The SSD was put into use or readmitted.
    Active,
    /// The subscriber was slow, and events before the next one were dropped.
    Missed {
        /// The number of dropped events.
        events: u64,
    },
    /// The HDD does not confirm in time that no other machine has taken it over, or does so again. In between
    /// the store serves no page.
    OwnerUnconfirmed {
        /// False: the store serves pages again.
        unconfirmed: bool,
    },
    /// The only copy of a page's newest version turned out to be lost or damaged.
    Lost {
        /// The page, which reads as an error until it is written again or redone.
        page: PageId,
    },
}

/// The number of events kept for a slow subscriber, which misses older ones.
pub(crate) const EVENTS_KEPT: usize = 64;
