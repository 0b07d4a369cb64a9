//! Rivals of CAC: SSD managers, and the doublewrite buffer on SSD as a read cache.

mod doublewrite;
mod lru2;
mod mv_fifo;
mod slot_table;
mod tac;
mod zoned_slots;

pub use doublewrite::Doublewrite;
pub use lru2::Lru2;
pub use mv_fifo::{MvFifo, VersionQueue};
pub use tac::Tac;

use pagetier_policy::custom::SsdPolicyFactory;
use pagetier_policy::{SlotPolicy, SlotPolicyParams};

/// An SSD policy that the papers compare with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RivalSsd {
    /// `lru2`: LRU-2 with lazy cleaning (Do et al. 2011).
    Lru2,
    /// `tac`: temperature-aware caching, write-through (Canim et al. 2010).
    Tac,
    /// `mv-fifo`: a circular queue of page versions (FaCE; Kang et al. 2012).
    MvFifo,
    /// `mv-fifo-gsc`: the same with group second chance: pages that were read in their slots are appended
    /// again.
    MvFifoGsc,
    /// `doublewrite`: the doublewrite buffer as a read cache (Kang et al.).
    Doublewrite,
}

impl RivalSsd {
    /// Every policy.
    pub const ALL: &[Self] = &[Self::Lru2, Self::Tac, Self::MvFifo, Self::MvFifoGsc, Self::Doublewrite];
}

impl SsdPolicyFactory for RivalSsd {
    fn name(&self) -> String {
        let name = match self {
            Self::Lru2 => "lru2",
            Self::Tac => "tac",
            Self::MvFifo => "mv-fifo",
            Self::MvFifoGsc => "mv-fifo-gsc",
            Self::Doublewrite => "doublewrite",
        };
        name.to_owned()
    }

    fn build(&self, params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
        match self {
            Self::Lru2 => Box::new(Lru2::new(params)),
            Self::Tac => Box::new(Tac::new(params)),
            Self::MvFifo => Box::new(MvFifo::new(params, false)),
            Self::MvFifoGsc => Box::new(MvFifo::new(params, true)),
            Self::Doublewrite => Box::new(Doublewrite::new(params)),
        }
    }
}

pub(crate) const NAMES: &[&str] = &["lru2", "tac", "mv-fifo", "mv-fifo-gsc", "doublewrite"];

pub(crate) fn find(name: &str) -> Option<&'static dyn SsdPolicyFactory> {
    let found = RivalSsd::ALL.iter().find(|policy| policy.name() == name)?;
    Some(found)
}
