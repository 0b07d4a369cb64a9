//! The manifest's record of what failed flushes left unverified.

use crate::manifest::manifest_store::ManifestStore;
use crate::manifest::only_copies::UnverifiedRecord;
use crate::ownership::lock::Ownership;
use pagetier_devio::task::Boxed;
use pagetier_ssdcache::{Flushed, Remember, Unverified};
use std::any::Any;
use std::future::ready;
use std::io;
use std::sync::{Arc, Weak};

/// Records failed flushes in the manifest while the store lives or a flush is in flight: no other opener gets
/// the store until the flush's result is recorded.
pub(crate) struct InManifest {
    manifests: Weak<ManifestStore>,
    ownership: Arc<Ownership>,
}

impl InManifest {
    pub(crate) fn of(manifests: &Arc<ManifestStore>, ownership: &Arc<Ownership>) -> Arc<dyn Remember> {
        Arc::new(Self { manifests: Arc::downgrade(manifests), ownership: Arc::clone(ownership) })
    }

    /// Begins to change the record.
    fn change(
        &self,
        change: impl FnOnce(&mut Unverified) + Send + 'static,
    ) -> Boxed<'static, io::Result<()>> {
        let Some(manifests) = self.manifests.upgrade() else { return Box::pin(ready(Err(dropped()))) };
        let change = |record: Option<UnverifiedRecord>| {
            let mut unverified = record.as_ref().map(UnverifiedRecord::unverified).unwrap_or_default();
            change(&mut unverified);
            UnverifiedRecord::of(&unverified)
        };
        // Record it even after a drop: no other opener may get the store before it can read that its flush
        // failed (I14).
        manifests.change_unverified(change, self.ownership.hold_locks().unwrap_or_default())
    }
}

impl Remember for InManifest {
    fn recall(&self) -> Unverified {
        let record = self.manifests.upgrade().and_then(|manifests| manifests.unverified());
        record.as_ref().map(UnverifiedRecord::unverified).unwrap_or_default()
    }

    fn note(&self, unverified: &Unverified) -> Boxed<'static, io::Result<()>> {
        let unverified = unverified.clone();
        self.change(move |noted| noted.add(&unverified))
    }

    fn made_durable(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>> {
        let devices = devices.to_vec();
        let clear = move |noted: &mut Unverified| devices.iter().for_each(|device| noted.clear(*device));
        // Clear nothing after a drop: the next open may have failed flushes of its own by then, which this
        // would clear.
        let begun = self.ownership.while_open(|| self.change(clear));
        begun.unwrap_or_else(|| Box::pin(ready(Err(dropped()))))
    }

    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        Some(Box::new((self.manifests.upgrade()?, self.ownership.hold_locks()?)))
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
    use crate::ownership::lock::ReadLocks;
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

    /// What a later open finds.
    async fn found(device: &SimDevice) -> Unverified {
        let manifests = on(&Arc::new(device.after_kill(1, &SimPower::new())));
        manifests.load().await.unwrap().unwrap();
        let (ownership, _leave) = Ownership::new(ReadLocks::default());
        InManifest::of(&manifests, &ownership).recall()
    }

    /// A failed flush of the HDD.
    fn failed() -> Unverified {
        Unverified { hdd: true, ..Unverified::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_save_of_an_older_copy_keeps_the_record_of_a_failed_flush() {
        let device = device();
        let manifests = on(&device);
        let (ownership, _leave) = Ownership::new(ReadLocks::default());
        let remember = InManifest::of(&manifests, &ownership);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        let noting = remember.note(&failed());
        // It begins before the record is durable, with a copy from before the failure.
        let saving = manifests.save(manifest(), Slack::Keep, Vec::new());
        noting.await.unwrap();
        assert!(saving.await.unwrap().unverified.is_some());
        assert_eq!(found(&device).await, failed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_could_not_be_cleared_is_in_the_next_save() {
        let device = device();
        let manifests = on(&device);
        let (ownership, _leave) = Ownership::new(ReadLocks::default());
        let remember = InManifest::of(&manifests, &ownership);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        remember.note(&failed()).await.unwrap();
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
        remember.made_durable(&[Flushed::Hdd]).await.unwrap_err();
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        assert_eq!(found(&device).await, failed());
        remember.made_durable(&[Flushed::Hdd]).await.unwrap();
        assert_eq!(found(&device).await, Unverified::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_store_notes_a_failure_under_its_locks_and_clears_none() {
        let device = device();
        let manifests = on(&device);
        manifests.save(manifest(), Slack::Keep, Vec::new()).await.unwrap();
        let (ownership, leave) = Ownership::new(ReadLocks::default());
        let shared = Arc::clone(&device) as SharedDevice;
        ownership.take(&shared, None).await.unwrap();
        let remember = InManifest::of(&manifests, &ownership);
        let noting = remember.note(&failed());
        drop(leave);
        // The next open would not find the record yet.
        assert!(shared.occupancy().occupy().is_err());
        noting.await.unwrap();
        shared.occupancy().vacated().await;
        shared.occupancy().occupy().unwrap();
        remember.made_durable(&[Flushed::Hdd]).await.unwrap_err();
        assert_eq!(found(&device).await, failed());
    }
}
