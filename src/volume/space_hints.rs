//! What an engine hints for a space.

use pagetier_page::SpaceId;
use pagetier_policy::pool::Retention;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Hints for a space: the store treats its pages differently from what the policies would decide. See
/// [`Spaces::set_hints`](crate::Spaces::set_hints). By default there are none.
///
/// ```
/// use pagetier::{Retention, SpaceHints};
///
/// // A tree's inner pages; an archive that reports read from end to end.
/// let inner = SpaceHints::new().retention(Retention::KeepInMemory);
/// let archive = SpaceHints::new().retention(Retention::ScanOnly).never_to_ssd(true);
/// assert_ne!(inner, archive);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpaceHints {
    /// How long its pages stay in memory, compared with others.
    pub retention: Retention,
    /// Whether its pages get no copies on the SSD.
    pub never_to_ssd: bool,
}

impl SpaceHints {
    /// No hints: the policies decide.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long its pages stay in memory, compared with others. Default: as the pool's policy decides.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Keeps its pages off the SSD: changed ones go home, and clean ones that leave memory get no copy.
    /// Existing copies are removed in the background; only copies are written home first. On their way home,
    /// changed pages pass through the doublewrite ring, if it is in use; it is on the SSD, too, unless the
    /// manifest is on the HDD ([`OnHdd`](crate::options::OnHdd)). Default: the SSD's policy decides.
    #[must_use]
    pub fn never_to_ssd(mut self, never: bool) -> Self {
        self.never_to_ssd = never;
        self
    }
}

/// The hints of all spaces. Its lock precedes all others that are not held across an `.await`: pool and tier
/// are informed of the hints under it.
pub(crate) type AllHints = parking_lot::Mutex<FxHashMap<SpaceId, SpaceHints>>;
