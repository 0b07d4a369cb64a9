//! The manifest's record of what failed flushes left unproved.

use crate::lock::Tenure;
use crate::manifest::ManifestStore;
use crate::runs::UnprovedRecord;
use pagetier_ssdcache::{Flushed, Remember, Unproved};
use std::any::Any;
use std::io;
use std::sync::{Arc, Weak};

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
        Some(Box::new((self.manifests.upgrade()?, self.tenure.hold_locks()?)))
    }
}

fn dropped() -> io::Error {
    io::Error::other("the store was dropped")
}
