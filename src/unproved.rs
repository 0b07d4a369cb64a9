//! The manifest's record of what failed flushes left unproved.

use crate::lock::Tenure;
use crate::loss::{RUNS_MAX, only_copies};
use crate::manifest::ManifestStore;
use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_ssdcache::{Flushed, Remember, Unproved};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::io;
use std::sync::{Arc, Weak};

/// Far more pages than the tier accumulates between two flushes of the HDD.
const HOMES_MAX: u64 = 1 << 20;

/// [`Unproved`] as the manifest records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnprovedRecord {
    pub(crate) hdd: bool,
    pub(crate) ssd: bool,
    /// Runs of pages: space, first, count.
    pub(crate) homes: Vec<(u32, u32, u32)>,
}

impl UnprovedRecord {
    /// The record; `None`: nothing is unproved.
    pub(crate) fn of(unproved: &Unproved) -> Option<Self> {
        let homes: Vec<(PageId, Lsn)> = unproved.homes.iter().map(|page| (*page, Lsn(0))).collect();
        let record = Self { hdd: unproved.hdd, ssd: unproved.ssd, homes: only_copies(&homes, RUNS_MAX).runs };
        (!unproved.is_empty()).then_some(record)
    }

    /// Whether [`UnprovedRecord::of`] can have produced this list.
    pub(crate) fn is_valid(&self) -> bool {
        let pages = self.homes.iter().fold(0, |sum: u64, (.., count)| sum + u64::from(*count));
        let ends = |(_, first, count): &(u32, u32, u32)| first.checked_add(*count).is_some();
        pages <= HOMES_MAX && self.homes.iter().all(ends)
    }

    fn unproved(&self) -> Unproved {
        let pages =
            |(space, first, count)| (first..first + count).map(move |no| PageId::new(SpaceId(space), no));
        let homes = self.homes.iter().copied().flat_map(pages).collect();
        Unproved { hdd: self.hdd, ssd: self.ssd, homes }
    }
}

/// Records failed flushes in the manifest while the store lives or a flush is in flight: no other opener gets
/// the store until the flush's result is recorded.
pub(crate) struct InManifest {
    manifests: Weak<ManifestStore>,
    tenure: Arc<Tenure>,
}

impl InManifest {
    pub(crate) fn of(manifests: &Arc<ManifestStore>, tenure: &Arc<Tenure>) -> Arc<dyn Remember> {
        Arc::new(Self { manifests: Arc::downgrade(manifests), tenure: Arc::clone(tenure) })
    }

    fn change(&self, change: impl FnOnce(&mut Unproved)) -> io::Result<()> {
        let manifests = self.manifests.upgrade().ok_or_else(dropped)?;
        manifests.change_unproved(|record| {
            let mut unproved = record.as_ref().map(UnprovedRecord::unproved).unwrap_or_default();
            change(&mut unproved);
            UnprovedRecord::of(&unproved)
        })
    }
}

impl Remember for InManifest {
    fn recall(&self) -> Unproved {
        let record = self.manifests.upgrade().and_then(|manifests| manifests.unproved());
        record.as_ref().map(UnprovedRecord::unproved).unwrap_or_default()
    }

    fn note(&self, unproved: &Unproved) -> io::Result<()> {
        self.change(|noted| noted.add(unproved))
    }

    fn proved(&self, devices: &[Flushed]) -> io::Result<()> {
        let clear = |noted: &mut Unproved| devices.iter().for_each(|device| noted.clear(*device));
        self.tenure.while_open(|| self.change(clear)).unwrap_or_else(|| Err(dropped()))
    }

    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        Some(Box::new((self.manifests.upgrade()?, self.tenure.stay()?)))
    }
}

fn dropped() -> io::Error {
    io::Error::other("the store was dropped")
}
