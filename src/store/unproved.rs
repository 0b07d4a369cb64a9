//! The manifest's record of what failed flushes left unproved.

use crate::manifest::kept::ManifestStore;
use crate::manifest::only_copies::UnprovedRecord;
use crate::tenure::lock::Tenure;
use pagetier_devio::task::Boxed;
use pagetier_ssdcache::{Flushed, Remember, Unproved};
use std::any::Any;
use std::future::ready;
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

    /// Begins to change the record.
    fn change(&self, change: impl FnOnce(&mut Unproved) + Send + 'static) -> Boxed<'static, io::Result<()>> {
        let Some(manifests) = self.manifests.upgrade() else { return Box::pin(ready(Err(dropped()))) };
        let change = |record: Option<UnprovedRecord>| {
            let mut unproved = record.as_ref().map(UnprovedRecord::unproved).unwrap_or_default();
            change(&mut unproved);
            UnprovedRecord::of(&unproved)
        };
        // Also after a drop: no other opener may get the store before it can read that its flush failed
        // (I14).
        manifests.change_unproved(change, self.tenure.hold_locks().unwrap_or_default())
    }
}

impl Remember for InManifest {
    fn recall(&self) -> Unproved {
        let record = self.manifests.upgrade().and_then(|manifests| manifests.unproved());
        record.as_ref().map(UnprovedRecord::unproved).unwrap_or_default()
    }

    fn note(&self, unproved: &Unproved) -> Boxed<'static, io::Result<()>> {
        let unproved = unproved.clone();
        self.change(move |noted| noted.add(&unproved))
    }

    fn made_durable(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>> {
        let devices = devices.to_vec();
        let clear = move |noted: &mut Unproved| devices.iter().for_each(|device| noted.clear(*device));
        // Not after a drop: the next opening may have failed flushes of its own by then, which this would
        // clear.
        let begun = self.tenure.while_open(|| self.change(clear));
        begun.unwrap_or_else(|| Box::pin(ready(Err(dropped()))))
    }

    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        Some(Box::new((self.manifests.upgrade()?, self.tenure.hold_locks()?)))
    }
}

fn dropped() -> io::Error {
    io::Error::other("the store was dropped")
}
