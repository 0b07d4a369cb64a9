//! Takes the SSD back into use after a failure: its contents count only as far as they were verified.

use crate::exec::Core;
use crate::exec::cache_device::CacheDevice;
use crate::exec::open::identify;
use crate::exec::quiet::Quiet;
use crate::exec::read::SlotHold;
use crate::exec::single::{read_one, write_one};
use crate::format::superblock::{Found, Superblock};
use crate::mode::SsdEvent;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::SlotId;
use std::sync::Arc;

/// The findings of a re-admission.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReadmitReport {
    /// Copies that were verified and are in use again.
    pub proved: u64,
    /// Damaged copies of versions that the HDD has, which were dropped.
    pub dropped: u64,
    /// Versions written before the failure whose durability was uncertain: rewritten and durable.
    pub rewritten: u64,
    /// Pages whose newest version was on the SSD alone and is damaged or gone. Reading them fails until they
    /// are rewritten, which the store does for those that it has in memory.
    pub lost: Vec<PageId>,
}

/// Why the SSD was not re-admitted.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadmitError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is not the SSD that this store was using.
    #[error("{device}: it is not the SSD that the store was using ({found})")]
    OtherSsd {
        /// The device.
        device: String,
        /// What its superblock holds.
        found: String,
    },
    /// Writes are refused for a cause that a re-admission does not remove.
    #[error("the store refuses writes since: {cause}; close it and open it again")]
    Refusing {
        /// The first error.
        cause: Arc<str>,
    },
    /// The lost pages could not be recorded.
    #[error("the pages that are lost could not be recorded, so the SSD is not taken back: {cause}")]
    Unrecorded {
        /// Why.
        cause: String,
    },
}

/// The state of one copy.
enum Proof {
    Sound,
    /// It is sound, but the flush that should have made it durable failed.
    Unproved(IoBuf),
    Bad,
}

impl Core {
    /// Takes the SSD back after a failure, if `ours` accepts its superblock. Cancel-safe: if the call is
    /// dropped, the SSD stays degraded.
    pub(crate) async fn readmit<F: Future<Output = Result<(), String>>>(
        &self,
        ours: impl Fn(&Superblock) -> bool,
        record: impl FnOnce(Vec<(PageId, Lsn)>) -> F,
    ) -> Result<ReadmitReport, ReadmitError> {
        let quiet = self.quiesce().await;
        if let Some(cause) = self.refusing.by_hdd() {
            return Err(ReadmitError::Refusing { cause });
        }
        let old = self.cache_device();
        match identify(&old.device).await? {
            Found::Superblock(found) if ours(&found) && found.layout == old.layout => {}
            found => {
                let device = old.device.name().to_owned();
                return Err(ReadmitError::OtherSsd { device, found: format!("{found:?}") });
            }
        }
        let report = quiet.prove(&old, record).await?;
        self.forgive(&mut self.state.lock());
        tracing::info!(?report, "the SSD is in use again");
        self.event(SsdEvent::Active);
        Ok(report)
    }
}

impl Quiet<'_> {
    async fn prove<F: Future<Output = Result<(), String>>>(
        &self,
        old: &Arc<CacheDevice>,
        record: impl FnOnce(Vec<(PageId, Lsn)>) -> F,
    ) -> Result<ReadmitReport, ReadmitError> {
        let core = self.core;
        // Its flushes are numbered from one. `old` keeps the failed flush, and the number of the last that
        // completed.
        let cache = core.new_cache_device(Arc::clone(&old.device), old.layout);
        cache.flush.cover(cache.flush.next()).await?;
        core.flush_hdd().await?;
        let mut report = ReadmitReport::default();
        let mut unproved = Vec::new();
        for slot in (0..old.layout.slots).map(SlotId) {
            match core.prove_one(slot, old).await? {
                None => continue,
                Some((_, Proof::Sound)) => report.proved += 1,
                Some((_, Proof::Unproved(image))) => unproved.push((slot, image)),
                Some((page, Proof::Bad)) => {
                    let now = core.now();
                    let mut state = core.state.lock();
                    if state.slots.is_only_copy(page) {
                        drop(state);
                        report.lost.push(page);
                        core.event(SsdEvent::Lost { page });
                    } else {
                        state.slots.drop_clean(page, now);
                        report.dropped += 1;
                    }
                }
            }
        }
        if !report.lost.is_empty() {
            let mut lost = core.state.lock().slots.only_copies();
            lost.retain(|(page, _)| report.lost.contains(page));
            record(lost).await.map_err(|cause| ReadmitError::Unrecorded { cause })?;
        }
        *core.cache_device.write() = cache;
        // From here on writes are possible. A new failure is recorded like any other.
        core.forgive(&mut core.state.lock());
        let done = self.finish(unproved, &mut report).await;
        if let Err(error) = done {
            let cause = error.to_string();
            core.state.lock().ssd_error.get_or_insert_with(|| Arc::from(cause.as_str()));
            core.refuse(&cause, true);
            return Err(error);
        }
        Ok(report)
    }

    /// Rewrites in place the versions that may not be durable: with the same bytes, so a torn write does no
    /// harm. Makes them durable before it changes anything else, then writes a checkpoint.
    async fn finish(
        &self,
        unproved: Vec<(SlotId, IoBuf)>,
        report: &mut ReadmitReport,
    ) -> Result<(), ReadmitError> {
        let core = self.core;
        report.rewritten = unproved.len() as u64;
        let ssd = core.ssd();
        for (slot, image) in unproved {
            write_one(&ssd, core.slot_at(slot), image, IoClass::Recovery).await?;
        }
        core.flush_ssd().await?;
        core.state.lock().slots.proved();
        core.checkpoint().await?;
        Ok(())
    }
}

impl Core {
    async fn prove_one(
        &self,
        slot: SlotId,
        old: &CacheDevice,
    ) -> Result<Option<(PageId, Proof)>, DeviceError> {
        let (entry, durable) = {
            let mut state = self.state.lock();
            let Some(entry) = state.slots.begin_check(slot) else { return Ok(None) };
            (entry, state.slots.is_durable(slot, old.flush.completed()))
        };
        let hold = SlotHold { core: self, slot };
        let buf = self.buffer();
        let (image, result) = read_one(&old.device, old.layout.slot_at(slot.0), buf, IoClass::Recovery).await;
        drop(hold);
        let proof = match result {
            Ok(()) if self.check(image.as_slice(), entry.page, Some(entry.stamp)).is_err() => Proof::Bad,
            Ok(()) if !durable && !entry.clean => Proof::Unproved(image),
            Ok(()) => {
                self.give_back(image);
                Proof::Sound
            }
            // A bad sector is no reason to give up the other copies; a device that is gone is.
            Err(error) if matches!(error.kind, pagetier_devio::DeviceErrorKind::Io(_)) => Proof::Bad,
            Err(error) => return Err(error),
        };
        Ok(Some((entry.page, proof)))
    }
}
