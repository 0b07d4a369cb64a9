//! The store's part of the seam at which broken protocols act ([`pagetier_ssdcache::Seam`]): openings,
//! growth, losses and leaving pass their decisions through it. Nothing else asks whether a rule is left out.

use pagetier_bufpool::PoolParams;
use pagetier_devio::{DeviceError, Fence, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{Lsn, PageId, Stamp, StoreSeed};
use pagetier_ssdcache::Mutation;
use std::path::Path;
use std::sync::Arc;

/// A step of growing a space; each completes before the next begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrowthStep {
    /// The HDD gets the room, durably.
    Hdd,
    /// The homes in the new room are formatted, durably.
    Format,
    Manifest,
    Memory,
}

/// Does nothing in a normal build: each method returns its argument, or what every store does. Under a
/// mutation (tests only) one of them breaks a rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seam(pub(crate) pagetier_ssdcache::Seam);

impl Seam {
    fn lack(self, rule: Mutation) -> bool {
        self.0.lack(rule)
    }

    /// The seed of the store's checksums.
    pub(crate) fn seed(self, seed: StoreSeed) -> StoreSeed {
        if self.lack(Mutation::ChecksumsUnseeded) { StoreSeed::NONE } else { seed }
    }

    /// Mutation `CleanerSleeps`: a paused cleaner is not woken by requests.
    pub(crate) fn pool(self, params: &mut PoolParams) {
        let _ = &params;
        #[cfg(feature = "mutations")]
        {
            params.cleaner_sleeps = self.lack(Mutation::CleanerSleeps);
        }
    }

    /// The order in which a space grows.
    pub(crate) fn growth(self) -> &'static [GrowthStep] {
        use GrowthStep::{Format, Hdd, Manifest, Memory};
        if self.lack(Mutation::GrowthInMemoryFirst) {
            &[Memory, Hdd, Manifest]
        } else if self.lack(Mutation::ExtentsNotFormatted) {
            &[Hdd, Manifest, Memory]
        } else {
            &[Hdd, Format, Manifest, Memory]
        }
    }

    /// The HDD of an opening, at its current size.
    pub(crate) fn sized(self, hdd: &SharedDevice) -> Result<&SharedDevice, DeviceError> {
        if self.lack(Mutation::OpeningGrows) {
            hdd.grow(hdd.size() + (1 << 20))?;
        }
        Ok(hdd)
    }

    /// Writes formatted homes at `at` of the HDD.
    pub(crate) async fn format(self, hdd: &SharedDevice, at: u64, homes: IoBuf) -> Result<(), DeviceError> {
        if self.lack(Mutation::FormattedByLooks) {
            let there = IoBufs::from_iter([IoBuf::zeroed(homes.as_slice().len())]);
            let read = hdd.read(at, there, IoClass::Meta).await;
            if read.result.is_ok() && read.bufs.iter().all(|buf| buf.as_slice() == homes.as_slice()) {
                return Ok(());
            }
        }
        hdd.write(at, IoBufs::from_iter([homes]), IoClass::Meta).await.result
    }

    /// Whether the manifest notes that a space is being dropped.
    pub(crate) fn notes_drop(self) -> bool {
        !self.lack(Mutation::DropUnmarked)
    }

    /// The lock that is held while a drop waits for guards: none.
    pub(crate) fn waits_locked<T>(self, lock: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.lack(Mutation::GuardsAwaitedLocked) { lock() } else { None }
    }

    /// The page for which a space of `room` pages takes its next extents, to hold `page` in the end.
    pub(crate) fn grows_for(self, page: PageId, room: u64) -> PageId {
        if !self.lack(Mutation::FailedGrowthKept) {
            return page;
        }
        PageId::new(page.space, page.no.min(u32::try_from(room).unwrap_or(u32::MAX)))
    }

    /// Whether a failed growth gives back what it has taken.
    pub(crate) fn gives_back(self) -> bool {
        !self.lack(Mutation::FailedGrowthKept)
    }

    /// Takes extents away from a space by `cut`, before they are given back.
    pub(crate) fn cut_tail<P: Clone, T>(self, of: &mut P, cut: impl FnOnce(&mut P) -> T) -> T {
        if self.lack(Mutation::TailInUse) { cut(&mut of.clone()) } else { cut(of) }
    }

    /// The path at which a directory that is held is looked up again at each use.
    pub(crate) fn looked_up_again(self, path: &Path) -> Option<&Path> {
        self.lack(Mutation::DirectoryByName).then_some(path)
    }

    /// Whether a save of the manifest counts as failed if its caller does not wait for its end.
    pub(crate) fn doubts_unfinished_saves(self) -> bool {
        !self.lack(Mutation::SaveForgotten)
    }

    /// What a save may do with the manifest's slack; `all`: use it.
    pub(crate) fn slack<S>(self, slack: S, all: S) -> S {
        if self.lack(Mutation::SlackGivenAway) { all } else { slack }
    }

    /// Whether a change may be appended to the manifest; `differs`: the file may differ from the one in
    /// memory.
    pub(crate) fn appends(self, differs: bool) -> bool {
        !differs || self.lack(Mutation::AppendedInDoubt)
    }

    /// Whether a freed page's copies are dropped before the manifest lists it as free.
    pub(crate) fn drops_before_record(self) -> bool {
        self.lack(Mutation::FreedBeforeRecord)
    }

    /// Records that pages are free, by `record`.
    pub(crate) async fn frees<E>(self, record: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        if self.lack(Mutation::FreeUnrecorded) { Ok(()) } else { record.await }
    }

    /// Mutation `GivenBackInUse`: returns extents while their page numbers are still reusable.
    pub(crate) fn gives_back_in_use(self) -> bool {
        self.lack(Mutation::GivenBackInUse)
    }

    /// The stamp above which the next backup copies pages; `upto` was drawn before the pages are read.
    pub(crate) fn backed_up(self, upto: Stamp) -> Stamp {
        let late = if self.lack(Mutation::BackupUptoLate) { 1 << 10 } else { 0 };
        Stamp::from_bits(upto.bits() + late)
    }

    /// Whether a page without a version was freed after the backup began.
    pub(crate) fn freed_meanwhile(self, freed: bool) -> bool {
        freed && !self.lack(Mutation::FreedMeanwhileKept)
    }

    /// Whether the last backup lacks a page.
    pub(crate) fn missing_before(self, missing: bool) -> bool {
        missing && !self.lack(Mutation::FreedBeforeSkipped)
    }

    /// Whether the store has lost pages since a moment, given its numbers of losses then and now.
    pub(crate) fn lost_since(self, then: Option<u64>, now: u64) -> bool {
        then != Some(now) && !self.lack(Mutation::LossKeepsChain)
    }

    /// Whether pages were lost while a backup ran, given the store's numbers of losses then and now.
    pub(crate) fn lost_meanwhile(self, then: Option<u64>, now: u64) -> bool {
        then != Some(now) && !self.lack(Mutation::LossMeanwhileIgnored)
    }

    /// Waits for the writes in flight to end before a backup reads their pages.
    pub(crate) async fn before_copying(self, writes: impl Future<Output = ()>) {
        if !self.lack(Mutation::BackupReadsEarly) {
            writes.await;
        }
    }

    /// Makes durable what a backup has read.
    pub(crate) async fn sync_copied<E>(self, syncing: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        if self.lack(Mutation::BackupUnsynced) { Ok(()) } else { syncing.await }
    }

    /// Records an exchange of the cache device, by `record`.
    pub(crate) async fn exchanges<E>(self, record: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        if self.lack(Mutation::ExchangeUnrecorded) { Ok(()) } else { record.await }
    }

    /// The reused pages to record. `reused` returns them; given true, it includes unwritten ones.
    pub(crate) fn reused<T>(self, reused: impl FnOnce(bool) -> Vec<T>) -> Vec<T> {
        if self.lack(Mutation::ReuseUnrecorded) {
            return Vec::new();
        }
        reused(self.lack(Mutation::ReuseRecordedEarly))
    }

    /// The position to record before it is handed out for the loss of the SSD.
    pub(crate) fn handed_out(self, from: Lsn) -> Option<Lsn> {
        (!self.lack(Mutation::RedoUnrecorded)).then_some(from)
    }

    /// Why no SSD may be attached.
    pub(crate) fn refuses_attach(self, cause: Option<Arc<str>>) -> Option<Arc<str>> {
        cause.filter(|_| !self.lack(Mutation::AttachInDoubt))
    }

    /// Waits for the writes in flight to end before the SSD is given up.
    pub(crate) async fn settled(self, writes: impl Future<Output = ()>) {
        if !self.lack(Mutation::AbandonedInHaste) {
            writes.await;
        }
    }

    /// Whether a page that is lost with the SSD is in memory, and marked to be written again.
    pub(crate) fn is_saved(self, saved: impl FnOnce() -> bool) -> bool {
        !self.lack(Mutation::AbandonedInHaste) && saved()
    }

    /// Whether a list of losses is exact.
    pub(crate) fn is_exact(self, exact: bool) -> bool {
        exact || self.lack(Mutation::ListPassesForExact)
    }

    /// The loss to record in the manifest.
    pub(crate) fn listed_loss<L>(self, lost: Option<L>) -> Option<L> {
        lost.filter(|_| !self.lack(Mutation::LossUnrecorded))
    }

    /// The losses that an opening finds in the manifest.
    pub(crate) fn known_loss<L>(self, lost: Option<L>) -> Option<L> {
        lost.filter(|_| !self.lack(Mutation::LossForgotten))
    }

    /// Whether the manifest names the devices of a fresh store before they are formatted.
    pub(crate) fn named_first(self, fresh: bool) -> bool {
        fresh && !self.lack(Mutation::FirstOpeningUnnamed)
    }

    /// Marks the devices of an opening.
    pub(crate) async fn mark<E>(self, marking: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        if self.lack(Mutation::RecoveryUnflushed) { Ok(()) } else { marking.await }
    }

    /// The opening that a device must at least have taken part in.
    pub(crate) fn opened_at_least(self, opened: u32) -> u32 {
        if self.lack(Mutation::RecoveryUnflushed) { 0 } else { opened }
    }

    /// Whether the marks of manifest and device agree.
    pub(crate) fn marks_agree<E>(self, agree: Result<(), E>) -> Result<(), E> {
        if self.lack(Mutation::EpochUnchecked) { Ok(()) } else { agree }
    }

    /// Searches a device that is taken over for data.
    pub(crate) async fn look_for_data<E>(
        self,
        looking: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        if self.lack(Mutation::AttachedUnchecked) { Ok(()) } else { looking.await }
    }

    /// Whether a home counts as written.
    pub(crate) fn is_written(self, written: bool, sound: bool) -> bool {
        if self.lack(Mutation::EndsBySoundHomes) { sound } else { written }
    }

    /// Waits until no operation of an earlier opening is in flight on a device.
    pub(crate) async fn occupy<E>(self, occupying: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        if self.lack(Mutation::DrainNotAwaited) { Ok(()) } else { occupying.await }
    }

    /// The area of a manifest on the HDD that a save writes; `current` is the manifest.
    pub(crate) fn area_to_write(self, current: u64) -> u64 {
        if self.lack(Mutation::ManifestInPlace) { current } else { 1 - current }
    }

    /// Whether the contents of an area are flushed before its headers are written.
    pub(crate) fn contents_first(self) -> bool {
        !self.lack(Mutation::HeadersBeforeContents)
    }

    /// Whether the headers of an area are blanked before its contents are written.
    pub(crate) fn blanks_headers(self) -> bool {
        !self.lack(Mutation::FailedHeadersKept)
    }

    /// What an opening found of the manifest on the HDD, unless it counts as durable.
    pub(crate) fn unproved(self, found: Option<u32>) -> Option<u32> {
        found.filter(|_| !self.lack(Mutation::FoundAreaTrusted))
    }

    /// Closes the fence of a store that is dropped.
    pub(crate) fn close(self, fence: &Fence) {
        if !self.lack(Mutation::FenceOpen) {
            fence.close();
        }
    }

    /// What a dropped store holds until its last operation ends.
    pub(crate) fn held<T>(self, held: Option<T>) -> Option<T> {
        held.filter(|_| !self.lack(Mutation::DrainNotAwaited))
    }
}
