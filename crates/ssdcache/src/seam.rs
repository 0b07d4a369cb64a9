//! The seam between the protocol's decisions and their execution. The executor passes plans, flushes and
//! findings through [`Seam`], which returns them unchanged. Under a broken protocol ([`Mutation`], tests
//! only) it drops, delays or reorders some of them, so no other code asks whether a rule is left out.
//!
//! [`GuardedProtocol`] does the same to the protocol's state before each step.

use crate::format::journal::Backing;
use crate::format::map::{MapHeader, MapPiece};
use crate::mutation::Mutation;
use crate::protocol::checkpoint::{Checkpoint, Step};
use crate::protocol::flushes::SsdFlush;
#[cfg(feature = "mutations")]
use crate::protocol::flushes::{FlushNumber, HddFlush};
use crate::protocol::recovery::Evidence;
#[cfg(feature = "mutations")]
use crate::protocol::slots::Tampered;
use crate::protocol::slots::{Fallen, Plan, Slots, Ticket};
use crate::protocol::{HomePlan, InTheWay, Protocol};
use crate::remember::{Flushed, Remember, Unproved};
use pagetier_bufpool::TierError;
use pagetier_devio::task::{self, Boxed};
use pagetier_devio::{Device, DeviceError};
use pagetier_page::{Defect, Lsn, PageId, Stamp, StampSource};
use pagetier_policy::{Location, Millis, SlotId};
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::future::ready;
use std::io;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Does nothing in a normal build: without the feature `mutations` it takes no space, and every method
/// compiles to the identity. Under a mutation one method breaks a rule of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
pub struct Seam(#[cfg(feature = "mutations")] pub Option<Mutation>);

impl Seam {
    /// Whether `rule` is left out.
    #[inline]
    #[must_use]
    pub fn lack(self, rule: Mutation) -> bool {
        #[cfg(feature = "mutations")]
        return self.0 == Some(rule);
        #[cfg(not(feature = "mutations"))]
        {
            let _ = rule;
            false
        }
    }
}

/// Writing.
impl Seam {
    /// [`Slots::plan_dirty`].
    pub(crate) fn plan_dirty(
        self,
        slots: &mut Slots,
        page: PageId,
        now: Millis,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Plan {
        #[cfg(feature = "mutations")]
        match self.0 {
            Some(Mutation::RewriteInPlace) => slots.give_up_in_place(page),
            Some(Mutation::RewriteWaits) if slots.has_no_reserve(page) => return Plan::Wait,
            Some(Mutation::AppendedTooSoon) => return slots.plan_dirty_too_soon(page, now, fresh),
            _ => {}
        }
        slots.plan_dirty(page, now, fresh)
    }

    /// [`Slots::plan_arrived`].
    pub(crate) fn plan_arrived(
        self,
        slots: &mut Slots,
        page: PageId,
        may: bool,
        now: Millis,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Option<Ticket> {
        let keeps = self.lack(Mutation::ChangedCopyKept) && slots.location(page) == Location::Ssd;
        if keeps { None } else { slots.plan_arrived(page, may, now, fresh) }
    }

    /// Whether a page goes home before its record. `only`: the SSD alone has the version before.
    pub(crate) fn supersedes_only_copy(self, only: bool) -> bool {
        only && !self.lack(Mutation::OnlyCopyVoided)
    }

    /// The oldest change that the HDD may lack of a page whose home write nothing backs.
    pub(crate) fn unbacked(self, lsn: Option<Lsn>) -> Option<Lsn> {
        lsn.filter(|_| !self.lack(Mutation::CleanUnflushedRingOff))
    }

    /// Whether images of a batch that never began are held until their pages are home.
    pub(crate) fn holds_unbegun(self, backing: Backing) -> bool {
        backing == Backing::Appended || (backing == Backing::Ring && !self.lack(Mutation::UnbegunForgotten))
    }

    /// What keeps a batch from going home.
    pub(crate) fn in_the_way(self, way: InTheWay) -> InTheWay {
        let InTheWay { mut writing, mut superseded } = way;
        writing &= !self.lack(Mutation::TwoInFlight);
        superseded.retain(|_| !self.lack(Mutation::StaleWriteBack));
        InTheWay { writing, superseded }
    }

    /// The steps that precede home writes.
    pub(crate) fn home_plan(self, mut plan: HomePlan) -> HomePlan {
        let unrecorded = self.lack(Mutation::HomeUnrecorded) && plan.backing != Backing::WriteBack;
        if unrecorded || self.lack(Mutation::NoJournal) {
            plan.blocks.clear();
        }
        plan.images_first &= !self.lack(Mutation::RecordBeforeImage);
        let unflushed = match plan.backing {
            Backing::Ring => false,
            Backing::WriteBack => self.lack(Mutation::WriteBackBeforeFlush),
            Backing::Appended => self.lack(Mutation::DoublewriteBeforeFlush),
        };
        plan.flush &= !(unflushed || self.lack(Mutation::HomeBeforeFlush));
        plan
    }

    /// The flush that must complete before slots are copied home.
    pub(crate) fn durable_first(self, flush: Option<SsdFlush>) -> Option<SsdFlush> {
        flush.filter(|_| !self.lack(Mutation::WriteBackBeforeFlush))
    }

    /// The devices to flush before slots that were copied home count as clean.
    pub(crate) fn flushed_by_write_back(self) -> &'static [Flushed] {
        if self.lack(Mutation::CleanBeforeFlush) { &[] } else { &[Flushed::Hdd] }
    }

    /// The devices to flush in a `sync`.
    pub(crate) fn flushed_by_sync(self, devices: &[Flushed]) -> &[Flushed] {
        if self.lack(Mutation::SyncNotFlushed) { &[] } else { devices }
    }

    /// Whether homes whose writes failed may be repaired.
    ///
    /// # Errors
    /// They may not be repaired.
    pub(crate) fn may_repair_from_ring(self) -> Result<(), TierError> {
        let refused = || TierError::Refusing { cause: "pages on the HDD are not repaired".into() };
        if self.lack(Mutation::FailedHomeKept) { Err(refused()) } else { Ok(()) }
    }

    /// Handles a failed repair of homes whose ring places were needed. `refuse` ends all writes.
    pub(crate) fn ring_repair_failed(self, refuse: impl FnOnce()) {
        if self.lack(Mutation::FailedRepairFinal) {
            refuse();
        }
    }

    /// A checkpoint that has just begun.
    pub(crate) fn checkpoint(self, state: &mut Protocol, mut planned: Checkpoint) -> Checkpoint {
        let journal_next = state.home.journal_next();
        if self.lack(Mutation::JournalFreedEarly) {
            state.home.free_journal(journal_next);
        }
        if self.lack(Mutation::HomingForgotten) {
            planned.header.journal_from = journal_next;
        }
        let body = planned.steps.iter().position(|step| *step == Step::Body);
        if let Some(body) = body.filter(|_| self.lack(Mutation::HeaderBeforeBody)) {
            // The flush that separates the body from the headers.
            planned.steps.remove(body + 1);
        }
        if planned.steps.first() == Some(&Step::WipeMark) && self.lack(Mutation::MarkOutlivesHeaders) {
            // The wiping of the mark, and the flush behind it.
            planned.steps.drain(..2);
        }
        let headers = planned.steps.iter().position(|step| *step == Step::Headers);
        if let Some(headers) = headers.filter(|_| self.lack(Mutation::HeaderNotFlushed)) {
            // The flush behind the headers, and the mark.
            planned.steps.truncate(headers + 1);
        }
        planned
    }

    /// A part of a checkpoint's entries that was just captured.
    pub(crate) fn map_piece(self, slots: &Slots, piece: MapPiece) -> MapPiece {
        #[cfg(feature = "mutations")]
        if self.lack(Mutation::AwaitingCopyUnmarked) {
            let mut piece = piece;
            slots.mark_images_in_flight_alone(&mut piece);
            return piece;
        }
        let _ = slots;
        piece
    }

    /// The header of a checkpoint whose entries have all been captured.
    pub(crate) fn captured(self, header: &mut MapHeader, stamps: &StampSource) {
        if self.lack(Mutation::WatermarkLate) {
            header.watermark = stamps.last();
        }
    }

    /// Starts a flush in a task of its own.
    pub(crate) async fn run_flush(self, runtime: &Handle, flush: impl Future<Output = ()> + Send + 'static) {
        if self.lack(Mutation::FlushInCaller) {
            return flush.await;
        }
        task::spawn(runtime, flush);
    }

    /// What a flush has covered that began when the device's changes were `at_start`.
    pub(crate) fn covered(self, at_start: Option<u64>, device: &dyn Device) -> Option<u64> {
        if self.lack(Mutation::FlushCoversLater) { device.settled() } else { at_start }
    }

    /// The error of a flush that was cut short.
    pub(crate) fn unfinished_flush(self, error: DeviceError) -> Option<DeviceError> {
        (!self.lack(Mutation::FlushInCaller)).then_some(error)
    }
}

/// Reading.
impl Seam {
    /// The number of reads before an image counts as damaged.
    pub(crate) fn reads_max(self, reads: usize) -> usize {
        if self.lack(Mutation::FirstReadBelieved) { 1 } else { reads }
    }

    /// The version that a home must hold, if it is known.
    pub(crate) fn expected_home(self, stamp: Option<Stamp>) -> Option<Stamp> {
        stamp.filter(|_| !self.lack(Mutation::HomesTrusted))
    }

    /// Whether zeroes in a home mean that it was never written.
    pub(crate) fn may_be_blank(self, may: bool) -> bool {
        may || self.lack(Mutation::ZeroesAreAbsence)
    }

    /// The error for reading a bad home.
    pub(crate) fn bad_home(self, error: TierError) -> TierError {
        match error {
            TierError::Corrupt { page, defect: Defect::WrongPage { .. }, .. }
                if self.lack(Mutation::MisplacedMissing) =>
            {
                TierError::NoSuchPage { page }
            }
            error => error,
        }
    }
}

/// Readmission.
impl Seam {
    /// The devices to flush before copies are judged.
    pub(crate) fn flushed_by_readmission(self) -> &'static [Flushed] {
        if self.lack(Mutation::ReadmittedOverVolatileHomes) { &[] } else { &[Flushed::Hdd] }
    }

    /// [`Slots::fall_back`].
    pub(crate) fn fall_back(
        self,
        slots: &mut Slots,
        copy: (SlotId, PageId, Stamp),
        completed: SsdFlush,
        bad: &dyn Fn(SlotId, Stamp) -> bool,
        now: Millis,
    ) -> Fallen {
        if self.lack(Mutation::PredecessorForgotten) && slots.is_only_copy(copy.1) {
            return Fallen::Lost;
        }
        slots.fall_back(copy, completed, bad, now)
    }
}

/// Recovering.
impl Seam {
    /// The number of an opening, and where its failed flushes are noted.
    pub(crate) fn opening(self, epoch: &mut u32, remember: &mut Arc<dyn Remember>) {
        if self.lack(Mutation::StampsRepeat) {
            *epoch = 1;
        }
        if self.lack(Mutation::FailureNotRemembered) {
            *remember = Arc::new(Forgetful(Arc::clone(remember)));
        }
    }

    /// The blocks of the SSD that could not be read.
    pub(crate) fn unread<T: Default>(self, unread: T, closed: bool) -> T {
        if self.lack(Mutation::UnreadableIsEmpty) && !closed { T::default() } else { unread }
    }

    /// What failed flushes may have left unproved. `noted` is the part that the manifest records.
    pub(crate) fn unproved(self, unproved: Unproved, noted: &Unproved) -> Unproved {
        let trusts = [Mutation::KilledTrusted, Mutation::FailureNotRemembered, Mutation::RecoveryUnflushed];
        if trusts.into_iter().any(|rule| self.lack(rule)) { noted.clone() } else { unproved }
    }

    /// The newest checkpoint that a mark names.
    pub(crate) fn marked_generation(self, generation: u64) -> u64 {
        if self.lack(Mutation::MapUnproved) { 0 } else { generation }
    }

    /// The headers whose bodies may be used. `newest` and `all` are headers that were found, newest first.
    pub(crate) fn usable_maps<'a>(
        self,
        newest: &'a [(MapHeader, u8)],
        all: &'a [(MapHeader, u8)],
    ) -> &'a [(MapHeader, u8)] {
        if self.lack(Mutation::MapUnproved) { all } else { newest }
    }

    /// The evidence that recovery read.
    pub(crate) fn evidence(self, mut evidence: Evidence) -> Evidence {
        if self.lack(Mutation::WatermarkIgnored) {
            evidence.watermark = Stamp::ZERO;
        }
        for block in &mut evidence.journal {
            block.slots_back &= !self.lack(Mutation::DoublewriteNotRepaired);
            block.generation = self.marked_generation(block.generation);
        }
        evidence
    }

    /// The devices to flush before a recovery's first write.
    pub(crate) fn flushed_by_recovery(self, unproved: &Unproved) -> &'static [Flushed] {
        match self.lack(Mutation::RecoveryUnflushed) {
            true if unproved.ssd => &[Flushed::Ssd],
            true => &[],
            false => &[Flushed::Ssd, Flushed::Hdd],
        }
    }

    /// The homes that the ring may have to repair.
    pub(crate) fn repaired<T>(self, wanted: Vec<T>) -> Vec<T> {
        if self.lack(Mutation::RingNotRepaired) { Vec::new() } else { wanted }
    }

    /// The places of the ring to wipe, and the place at which the ring continues.
    pub(crate) fn ring_continues(self, outdated: Vec<u32>, from: u32) -> (Vec<u32>, u32) {
        if self.lack(Mutation::RingFromZero) { (Vec::new(), 0) } else { (outdated, from) }
    }
}

/// Forgets failed flushes.
struct Forgetful(Arc<dyn Remember>);

impl Remember for Forgetful {
    fn recall(&self) -> Unproved {
        self.0.recall()
    }

    fn note(&self, _: &Unproved) -> Boxed<'static, io::Result<()>> {
        Box::pin(ready(Ok(())))
    }

    fn made_durable(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>> {
        self.0.made_durable(devices)
    }

    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        self.0.hold()
    }
}

/// The protocol's state behind its lock.
#[derive(Debug)]
pub(crate) struct GuardedProtocol {
    protocol: Mutex<Protocol>,
    #[cfg(feature = "mutations")]
    tampering: Mutex<(Seam, Tampered)>,
}

impl GuardedProtocol {
    pub(crate) fn new(protocol: Protocol, seam: Seam) -> Self {
        let _ = seam;
        Self {
            protocol: Mutex::new(protocol),
            #[cfg(feature = "mutations")]
            tampering: Mutex::new((seam, Tampered::default())),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Protocol> {
        #[cfg_attr(not(feature = "mutations"), expect(unused_mut, reason = "it is tampered with"))]
        let mut state = self.protocol.lock();
        #[cfg(feature = "mutations")]
        self.tamper(&mut state);
        state
    }
}

#[cfg(feature = "mutations")]
impl GuardedProtocol {
    /// Locks the state without tampering with it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Protocol>> {
        self.protocol.try_lock()
    }

    fn tamper(&self, state: &mut Protocol) {
        let (Seam(rule), kept) = &mut *self.tampering.lock();
        match rule {
            None => {}
            Some(Mutation::RingFreedEarly) => state.home.free_ring(HddFlush::nth(u64::MAX)),
            Some(Mutation::DoublewriteFreedEarly) => {
                for (page, stamp) in state.home.settle(HddFlush::nth(u64::MAX)) {
                    state.slots.backed_home(page, stamp);
                }
            }
            Some(Mutation::DrainedPageDiscarded) if state.drains > 0 => {
                for page in state.slots.copies() {
                    while state.home.must_keep_copy(page) && !state.home.is_backed_by_slot(page) {
                        state.home.release(page);
                    }
                }
            }
            Some(rule) => state.slots.tamper(*rule, kept),
        }
    }
}
