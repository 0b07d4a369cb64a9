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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::areas::Areas;
    use crate::manifest::changes::Slack;
    use crate::manifest::contents::Manifest;
    use crate::manifest::medium::Medium;
    use crate::manifest::saver::Saver;
    use crate::tenure::lock::ReadLocks;
    use pagetier_devio::{IoOp, SharedDevice};
    use pagetier_page::PageSize;
    use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
    use std::time::Duration;
    use tokio::runtime::Handle;

    fn on(device: &Arc<SimDevice>) -> Arc<ManifestStore> {
        let medium = Medium::to_read(&(Arc::clone(device) as SharedDevice));
        let saver = Saver::of_tasks(Handle::current());
        Arc::new(ManifestStore::areas(Areas::new(medium, 64 << 10), saver))
    }

    fn device() -> Arc<SimDevice> {
        Arc::new(SimDevice::new("hdd", 0, 1, &SimPower::new()).with_latency(Duration::from_millis(5)))
    }

    fn manifest() -> Manifest {
        Manifest::new("s".into(), PageSize::MIN)
    }

    /// What a later opening finds.
    async fn found(device: &SimDevice) -> Unproved {
        let manifests = on(&Arc::new(device.after_kill(1, &SimPower::new())));
        manifests.load().await.unwrap().unwrap();
        let (tenure, _leave) = Tenure::new(ReadLocks::default());
        InManifest::of(&manifests, &tenure).recall()
    }

    /// A failed flush of the HDD.
    fn failed() -> Unproved {
        Unproved { hdd: true, ..Unproved::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_save_of_an_older_copy_keeps_the_record_of_a_failed_flush() {
        let device = device();
        let manifests = on(&device);
        let (tenure, _leave) = Tenure::new(ReadLocks::default());
        let remember = InManifest::of(&manifests, &tenure);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        let noting = remember.note(&failed());
        // It begins before the record is durable, with a copy from before the failure.
        let saving = manifests.save(manifest(), Slack::Keep, Vec::new());
        noting.await.unwrap();
        assert!(saving.await.unwrap().unproved.is_some());
        assert_eq!(found(&device).await, failed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_could_not_be_cleared_is_in_the_next_save() {
        let device = device();
        let manifests = on(&device);
        let (tenure, _leave) = Tenure::new(ReadLocks::default());
        let remember = InManifest::of(&manifests, &tenure);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        remember.note(&failed()).await.unwrap();
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
        remember.made_durable(&[Flushed::Hdd]).await.unwrap_err();
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        assert_eq!(found(&device).await, failed());
        remember.made_durable(&[Flushed::Hdd]).await.unwrap();
        assert_eq!(found(&device).await, Unproved::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_store_notes_a_failure_under_its_locks_and_clears_none() {
        let device = device();
        let manifests = on(&device);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        let (tenure, leave) = Tenure::new(ReadLocks::default());
        let shared = Arc::clone(&device) as SharedDevice;
        tenure.take(&shared, None).await.unwrap();
        let remember = InManifest::of(&manifests, &tenure);
        let noting = remember.note(&failed());
        drop(leave);
        // The next opening would not find the record yet.
        assert!(shared.occupancy().occupy().is_err());
        noting.await.unwrap();
        shared.occupancy().vacated().await;
        shared.occupancy().occupy().unwrap();
        remember.made_durable(&[Flushed::Hdd]).await.unwrap_err();
        assert_eq!(found(&device).await, failed());
    }
}
