//! Readmits the SSD after a failure: its contents count only as far as they were verified (I31).
//!
//! (1) Quiet: no slot is being written, and none will be before the end, since the SSD still counts as
//! failed. (2) Every copy is read beside the store's work; unverified versions are written again, the same
//! bytes to the same slot. (3) Quiet: bad copies give way to their predecessors. (4) A flush makes what was
//! written again durable, losses are recorded, and a checkpoint names what counts. (5) Quiet: the SSD is in
//! use. Writes wait for the quiet steps only, none of which reads a slot.

use crate::exec::Core;
use crate::exec::flush::cache_device::CacheDevice;
use crate::exec::io::join_all::join_all;
use crate::exec::io::single::write_one;
use crate::exec::open::identify;
use crate::exec::read::fetch::SlotHold;
use crate::exec::tier::SsdTier;
use crate::format::superblock::{Found, Superblock};
use crate::mode::SsdEvent;
use crate::protocol::slots::{Fallen, Slots, ToVerify};
use crate::remember::Flushed;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoClass};
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{Location, SlotId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of copies read at once.
const DEPTH: usize = 32;

/// The findings of a readmission.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReadmitReport {
    /// Copies that were verified and are in use again.
    pub verified: u64,
    /// Damaged copies of versions that the HDD has, which were dropped.
    pub dropped: u64,
    /// Versions written before the failure whose durability was uncertain: rewritten and durable.
    pub rewritten: u64,
    /// Pages whose newest version was written after the last successful flush of the SSD, and is damaged or
    /// gone: they read as an older version again, though never as one older than the last `sync` that
    /// succeeded before. Those in memory are not listed: the store writes them again from there. They are
    /// part of the loss that the store reports. Empty under a log gate: see [`ReadmitError::LogNeeded`].
    pub reverted: Vec<PageId>,
    /// Pages whose newest version was durable on the SSD alone and is damaged or gone. Reading them fails
    /// until they are rewritten, which the store does for those that it has in memory.
    pub lost: Vec<PageId>,
}

/// Why the SSD was not readmitted.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadmitError {
    /// The SSD or the HDD failed, so nothing could be verified.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is not the SSD that this store was using.
    #[error("{device}: the SSD that the store was using is not there; what is there is {found}")]
    OtherSsd {
        /// The name of the device that stands where the SSD was.
        device: String,
        /// What its superblock holds.
        found: String,
    },
    /// Writes are refused for a cause that a readmission does not remove.
    #[error("the store refuses writes after an earlier error: {cause}; close it and open it again")]
    Refusing {
        /// The error after which the store refuses writes.
        cause: Arc<str>,
    },
    /// A device failed while the copies were verified.
    #[error("a device failed while the SSD was verified, so the SSD stays out of use: {cause}")]
    FailedAgain {
        /// The error that came while the copies were being verified.
        cause: Arc<str>,
    },
    /// The embedder has a log, and the SSD lost versions of pages that only the log has by now: they would
    /// read as older than what was committed. Until the store is closed and opened again, reading these pages
    /// is an error. A recovery after a crash then redoes them: the log was not shortened since the last
    /// successful flush.
    #[error(
        "the SSD lost the newest versions of {pages} pages, which the log has: close the store, and open it \
         again to redo them"
    )]
    LogNeeded {
        /// How many pages.
        pages: u64,
    },
    /// The store was shut down meanwhile.
    #[error("the store was shut down while the SSD was verified")]
    Stopped,
    /// The lost pages could not be recorded.
    #[error(
        "the list of lost pages could not be saved in the manifest, so the SSD stays out of use: {cause}"
    )]
    Unrecorded {
        /// Why the manifest could not be saved.
        cause: String,
    },
}

/// What the caller of a readmission decides and records.
pub trait Readmitter: Send + Sync {
    /// Whether this is the superblock of the SSD that the store was using.
    fn is_ours(&self, found: &Superblock) -> bool;

    /// Whether to give up.
    fn is_stopped(&self) -> bool;

    /// Writes again those of `pages` that are in memory: their copies are bad. Each has the position from
    /// which redo would bring it back.
    fn rewrite(&self, pages: Vec<(PageId, Lsn)>) -> impl Future<Output = ()> + Send;

    /// Whether the embedder has a log, which brings back what no good flush has covered: no page may read as
    /// an older version then, and one that memory has is no loss.
    fn has_log(&self) -> bool;

    /// Whether [`Readmitter::rewrite`] found `page` in memory.
    fn is_saved(&self, page: PageId) -> bool;

    /// Makes the list of lost and reverted pages durable.
    fn record(&self, lost: Vec<(PageId, Lsn)>) -> impl Future<Output = Result<(), String>> + Send;
}

/// How the store was when a readmission began.
struct Begun {
    old: Arc<CacheDevice>,
    /// Why the store refuses writes, or will once its journal is full. If seen again, it is no new failure.
    refusal: Option<Arc<str>>,
    /// A flush of the SSD had failed.
    flush_failed: bool,
}

#[derive(Default)]
struct Verified {
    sound: u64,
    rewritten: u64,
    /// The versions that cannot be read.
    bad: FxHashMap<SlotId, (PageId, Stamp)>,
}

/// The state of one copy.
enum CopyState {
    Sound,
    /// It is sound, and was written again because no good flush had covered it.
    Rewritten,
    Bad,
}

impl SsdTier {
    /// Readmits the SSD after a failure, as `by` decides; does nothing if it has not failed.
    /// Reads every copy on it, beside other work. The caller calls [`SsdTier::reported`] afterwards. Must
    /// be driven to completion, or be the last call: if it is dropped, the SSD stays degraded, but a write
    /// of a copy may still be under way.
    ///
    /// # Errors
    /// [`ReadmitError`]; the SSD stays degraded.
    pub async fn readmit(&self, by: &impl Readmitter) -> Result<ReadmitReport, ReadmitError> {
        let core = &*self.core;
        let Some(begun) = core.begin_readmission(by).await? else { return Ok(ReadmitReport::default()) };
        let verified = core.verify(&begun, by).await?;
        let bad: FxHashSet<PageId> = verified.bad.values().map(|(page, _)| *page).collect();
        let mut only = self.ask(Slots::only_copies);
        only.retain(|(page, _)| bad.contains(page));
        // A page that is still in memory need not be lost: write it again before its bad copy is judged.
        by.rewrite(only).await;
        let (report, mut given_up) = core.end_verification(&begun, verified, by).await?;
        if by.has_log() {
            // Memory has them, and until they are durable the log has.
            given_up.clear();
        }
        // A later `sync` cannot make durable what is gone, so pages that fell back are losses, too.
        let only = self.ask(Slots::only_copies);
        given_up.extend(only.into_iter().filter(|(page, _)| report.lost.contains(page)));
        given_up.sort_unstable();
        if !given_up.is_empty() {
            by.record(given_up).await.map_err(|cause| ReadmitError::Unrecorded { cause })?;
        }
        // Until this flush, what was written again is as volatile as it was before (I31).
        core.flush_ssd().await?;
        let duty = core.map_duty.lock().await;
        // A bad slot may read well after the next power cycle. Unless a new checkpoint leaves it out, a
        // recovery would take it for the page's newest version.
        core.checkpoint().await.inspect_err(|error| core.ssd_failed(error))?;
        drop(duty);
        let quiet = core.quiesce().await;
        // If the SSD failed once more while it was verified, the findings count for nothing.
        core.may_readmit(&begun)?;
        if !(report.reverted.is_empty() && report.lost.is_empty()) {
            // In the quiet moment before flushes succeed again: one that began before does not make durable
            // what is gone (I31).
            core.reversions.fetch_add(1, Ordering::AcqRel);
        }
        let mut state = core.state.lock();
        state.slots.take_into_use();
        core.forgive(&mut state);
        drop(state);
        drop(quiet);
        tracing::info!(?report, "the SSD was verified and is in use again");
        core.event(SsdEvent::Active);
        Ok(report)
    }
}

impl Core {
    /// Step 1. `None`: the SSD has not failed.
    async fn begin_readmission(&self, by: &impl Readmitter) -> Result<Option<Begun>, ReadmitError> {
        let quiet = self.quiesce().await;
        if let Some(cause) = self.refusing.by_hdd() {
            return Err(ReadmitError::Refusing { cause });
        }
        let old = self.cache_device();
        let refusal = self.refusing.cause().or_else(|| self.map_failure());
        let failed = refusal.is_some() || self.state.lock().ssd_error.is_some();
        // From here on no slot is written: a failed SSD takes no pages.
        drop(quiet);
        // Another SSD at the same path, say after cables were swapped, would be read by this one's map.
        match identify(&old.device).await? {
            Found::Superblock(found) if by.is_ours(&found) && found.layout == old.layout => {}
            found => {
                let device = old.device.name().to_owned();
                return Err(ReadmitError::OtherSsd { device, found: found.to_string() });
            }
        }
        if !failed {
            return Ok(None);
        }
        let flush_failed = old.flush.failed().is_some();
        if flush_failed {
            // It proves nothing about what was written before, but that the SSD flushes again.
            old.device.flush(IoClass::Meta).await?;
        } else {
            old.flush.forget_covered();
            self.flush_ssd().await?;
        }
        // Copies of home writes are the only ones until the HDD is flushed: a damaged one would pass for a
        // lost page.
        self.flush(&[Flushed::Hdd]).await?;
        Ok(Some(Begun { old, refusal, flush_failed }))
    }

    /// Step 2: reads every copy, some at a time.
    async fn verify(&self, begun: &Begun, by: &impl Readmitter) -> Result<Verified, ReadmitError> {
        // Fixed at the start: a flush from now on says nothing about what was written before the failure.
        let completed = begun.old.flush.completed();
        let (mut slots, unverified) = {
            let state = self.state.lock();
            (state.slots.to_verify(), state.slots.unverified_predecessors(completed))
        };
        let mut verified = Verified::default();
        loop {
            let some: Vec<(ToVerify, SlotHold<'_>)> = {
                let mut state = self.state.lock();
                // Each copy is held as by a read, and only a few at once: the store goes on, and needs slots
                // to become free.
                let held = slots.by_ref().filter_map(|slot| {
                    let one = state.slots.begin_verification(slot, completed, &unverified)?;
                    Some((one, SlotHold { core: self, slot }))
                });
                held.take(DEPTH).collect()
            };
            if some.is_empty() {
                return Ok(verified);
            }
            if by.is_stopped() {
                return Err(ReadmitError::Stopped);
            }
            let checks = some.into_iter().map(|(one, hold)| async move {
                let state_of_copy = self.verify_one(one, &begun.old).await;
                drop(hold);
                (one, state_of_copy)
            });
            for (ToVerify { slot, entry, .. }, state_of_copy) in join_all(checks).await {
                match state_of_copy? {
                    CopyState::Sound => verified.sound += 1,
                    CopyState::Rewritten => verified.rewritten += 1,
                    CopyState::Bad => drop(verified.bad.insert(slot, (entry.page, entry.stamp))),
                }
            }
        }
    }

    async fn verify_one(&self, one: ToVerify, old: &CacheDevice) -> Result<CopyState, DeviceError> {
        let ToVerify { slot, entry, unverified } = one;
        let at = old.layout.slot_at(slot.0);
        let read =
            self.read_image(&old.device, at, (entry.page, entry.stamp), self.buffer(), IoClass::Recovery);
        let (image, result) = read.await;
        match result {
            // A flush alone proves nothing about a version that a failed one should have covered.
            Ok(()) if unverified && !entry.clean => {
                write_one(&old.device, at, image, IoClass::Recovery).await?;
                Ok(CopyState::Rewritten)
            }
            Ok(()) => {
                self.give_back(image);
                Ok(CopyState::Sound)
            }
            // A bad sector is no reason to give up the other copies; a device that is gone is.
            Err(TierError::Device { source, .. }) if !matches!(source.kind, DeviceErrorKind::Io(_)) => {
                Err(source)
            }
            Err(_) => {
                self.give_back(image);
                Ok(CopyState::Bad)
            }
        }
    }

    /// Step 3: judges the bad copies by what their pages have now. Returns the pages that fell back, too.
    async fn end_verification(
        &self,
        begun: &Begun,
        verified: Verified,
        by: &impl Readmitter,
    ) -> Result<(ReadmitReport, Vec<(PageId, Lsn)>), ReadmitError> {
        let _quiet = self.quiesce().await;
        self.may_readmit(begun)?;
        let Verified { sound, rewritten, bad } = verified;
        let mut report = ReadmitReport { verified: sound, rewritten, ..ReadmitReport::default() };
        let completed = begun.old.flush.completed();
        let mut all: Vec<(SlotId, PageId, Stamp)> =
            bad.iter().map(|(slot, of)| (*slot, of.0, of.1)).collect();
        all.sort_unstable();
        let is_bad = |slot, stamp| bad.get(&slot).is_some_and(|(_, of)| *of == stamp);
        // Before anything changes: a refused readmission may be tried again, and comes to the same result.
        if by.has_log() {
            let reverts = |one: &&_| self.state.lock().slots.falls_back(**one, completed, &is_bad);
            let pages = all.iter().filter(|one| !by.is_saved(one.1)).filter(reverts).count() as u64;
            if pages > 0 {
                return Err(ReadmitError::LogNeeded { pages });
            }
        }
        // From here on flushes of this SSD count again: whatever the failed one left unverified has been
        // written again, or is given up below.
        if begun.flush_failed {
            *self.cache_device.write() = begun.old.without_failure();
        }
        let again = self.next_ssd_flush();
        let now = self.now();
        let mut reverted = Vec::new();
        let mut state = self.state.lock();
        for one in all {
            let page = one.1;
            match state.slots.fall_back(one, completed, &is_bad, now) {
                Fallen::Changed => {}
                Fallen::Dropped => report.dropped += 1,
                Fallen::Back(lsn) => {
                    if state.slots.location(page) == Location::Hdd {
                        // The home of a number in its second life may still show the first.
                        self.homes.discarded(page);
                    }
                    report.reverted.push(page);
                    reverted.push((page, lsn));
                }
                Fallen::Lost => report.lost.push(page),
            }
        }
        state.slots.written_again(completed, again);
        drop(state);
        for page in report.reverted.iter().chain(&report.lost) {
            self.event(SsdEvent::Lost { page: *page });
        }
        Ok((report, reverted))
    }

    /// Checks, in a quiet moment, that nothing has failed since the readmission began.
    fn may_readmit(&self, begun: &Begun) -> Result<(), ReadmitError> {
        if let Some(cause) = self.refusing.by_hdd() {
            return Err(ReadmitError::Refusing { cause });
        }
        let cache = self.cache_device();
        let flush = cache.flush.failed().filter(|_| !(begun.flush_failed && Arc::ptr_eq(&cache, &begun.old)));
        let refused = self.refusing.cause().filter(|cause| begun.refusal.as_ref() != Some(cause));
        match flush.map(|error| Arc::from(error.to_string())).or(refused) {
            Some(cause) => Err(ReadmitError::FailedAgain { cause }),
            None => Ok(()),
        }
    }
}
