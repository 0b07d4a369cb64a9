//! What the parts of the tier share: devices, state, stamps, flushes.
//!
//! Locking: `state` is the only lock held across more than a few instructions, and never across an `.await`.
//! The group flushes' locks are leaves. A task that waits for the state to change registers with `changed`
//! before it looks.

use crate::backed::{Backed, Settled};
use crate::flush::{Failures, GroupFlush};
use crate::home_writes::HomeWrites;
use crate::layout::Layout;
use crate::life::{Refusing, SsdEvent, SsdMode};
use crate::mutation::{Broken, Mutation};
use crate::ring::Ring;
use crate::side::Side;
use crate::slots::Slots;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, SharedDevice};
use pagetier_page::{Defect, Header, Lsn, PageId, PageSize, Stamp, StampSource, StoreSeed};
use pagetier_policy::Millis;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

/// Where every page has its home on the HDD: the store's table of spaces.
pub trait Homes: Send + Sync + 'static {
    /// The byte offset of `page`, or `None` when its space or the page does not exist.
    fn offset(&self, page: PageId) -> Option<u64>;
}

/// Positions in the journal.
#[derive(Debug)]
pub(crate) struct JournalPlace {
    pub(crate) next: u64,
    pub(crate) tail: u64,
    /// Blocks whose write is under way.
    pub(crate) writing: BTreeSet<u64>,
    /// Blocks of pages from the pool that are on their way home: the map may still name copies that these
    /// void.
    pub(crate) homing: BTreeSet<u64>,
    /// The block of the write-back under way: the map names its slots as holding only copies, but they may
    /// soon be given away.
    pub(crate) write_back: Option<u64>,
}

impl JournalPlace {
    pub(crate) fn new(next: u64, tail: u64) -> Self {
        Self { next, tail, writing: BTreeSet::new(), homing: BTreeSet::new(), write_back: None }
    }

    /// The oldest block that a checkpoint captured now does not make superfluous. What the map of such a
    /// moment says of pages on their way home is about to be untrue, and only the record tells.
    pub(crate) fn needed_from(&self) -> u64 {
        let homing = self.homing.first().copied();
        homing.into_iter().chain(self.write_back).min().unwrap_or(self.next)
    }

    /// Whether the journal has filled so far that a checkpoint should make room, and one would.
    pub(crate) fn is_high(&self, blocks: u32) -> bool {
        (self.next - self.tail) * 2 > u64::from(blocks) && self.needed_from() > self.tail
    }

    /// Blocks that may not be written over: those that a recovery wants, and those still being written, which
    /// would land on their successors.
    pub(crate) fn used(&self) -> u64 {
        let from = self.writing.first().map_or(self.tail, |oldest| self.tail.min(*oldest));
        self.next - from
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) slots: Slots,
    pub(crate) ring: Ring,
    /// Home writes that slots back in the ring's stead.
    pub(crate) backed: Backed,
    pub(crate) journal: JournalPlace,
    /// Pages with an HDD write in flight: at most one per page, so that versions arrive in order.
    pub(crate) homeward: FxHashSet<PageId>,
    /// Copies of pages that the HDD has on their way to the SSD: of evicted ones, of some just read or
    /// written there.
    pub(crate) admissions: usize,
    /// The SSD failed a write or a checkpoint: nothing new is admitted.
    pub(crate) ssd_error: Option<Arc<str>>,
    /// A map checkpoint failed: the journal gets no more room.
    pub(crate) map_failed: bool,
    /// The last checkpoint failed: the area of the next one may hold its header, whole.
    pub(crate) map_doubtful: bool,
    /// What the SSD is used for, as long as there is one.
    pub(crate) mode: SsdMode,
    /// Drains under way: until they are over the SSD gets no only copies.
    pub(crate) drains: usize,
    /// A task waits for quiet: no new admissions.
    pub(crate) closing: bool,
    /// No change older than this can be on the SSD alone, by the last checkpoint.
    pub(crate) lsn_floor: Lsn,
}

impl State {
    /// The oldest change that the HDD may lack if the SSD were lost now; `None`: it lacks none.
    pub(crate) fn oldest_lsn(&self) -> Option<Lsn> {
        self.slots.oldest_lsn().into_iter().chain(self.ring.oldest_lsn()).min()
    }

    /// What a checkpoint may say of the oldest change that a copy lacks on the HDD, now or written later.
    /// `in_memory`: the oldest change that is dirty in memory, if that is known.
    pub(crate) fn next_lsn_floor(&self, in_memory: Option<Option<Lsn>>) -> Lsn {
        let Some(in_memory) = in_memory else { return self.lsn_floor };
        // With nothing dirty anywhere, nothing is known of the changes to come but that they are newer.
        in_memory.into_iter().chain(self.oldest_lsn()).min().unwrap_or(self.lsn_floor)
    }

    /// Whether a copy of a page that the HDD has may start on its way to the SSD, with at most `max` in
    /// flight.
    pub(crate) fn may_admit(&self, max: usize) -> bool {
        let takes = matches!(self.mode, SsdMode::WriteBack | SsdMode::WriteThrough) && !self.closing;
        takes && self.ssd_error.is_none() && self.admissions < max
    }

    /// The slots of `settled` are clean (`ok`), or only copies, and their records have done their duty.
    pub(crate) fn settle(&mut self, settled: Settled, ok: bool) {
        for copy in settled.copies {
            self.slots.end_backing(copy.slot, copy.stamp, ok);
        }
        for block in settled.blocks {
            self.journal.homing.remove(&block);
        }
    }

    /// HDD flush number `over` is over.
    pub(crate) fn hdd_flushed(&mut self, over: u64) {
        self.ring.flushed(over);
        let settled = self.backed.flushed(over);
        self.settle(settled, true);
    }

    /// Whether a flush of the HDD is due for slots that back home writes.
    pub(crate) fn backed_wants_flush(&self, journal_blocks: u32) -> bool {
        self.backed.can_settle()
            && (self.backed.wants_flush(journal_blocks) || self.slots.front_wants_hdd_flush())
    }

    /// Whether changed pages may go to the SSD alone.
    pub(crate) fn writes_back(&self) -> bool {
        self.mode == SsdMode::WriteBack && self.drains == 0 && self.ssd_error.is_none()
    }
}

/// Wakes the duties of the maintenance task.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    pub(crate) slots: Notify,
    pub(crate) victims: Notify,
}

impl Wake {
    pub(crate) fn notify_one(&self) {
        self.slots.notify_one();
        self.victims.notify_one();
    }
}

/// Asks the pool for the oldest log position that redo would need; `None`: nothing is dirty.
pub(crate) type RedoFrom = Box<dyn Fn() -> Option<Lsn> + Send + Sync>;

pub(crate) struct Core {
    /// What the store's checksums start from.
    pub(crate) seed: StoreSeed,
    pub(crate) page_size: PageSize,
    pub(crate) homes: Arc<dyn Homes>,
    pub(crate) hdd: SharedDevice,
    /// The SSD, or the file that holds the ring of a store without one. Exchanged in [`crate::life::Quiet`]
    /// only.
    pub(crate) side: RwLock<Arc<Side>>,
    pub(crate) state: Mutex<State>,
    pub(crate) stamps: StampSource,
    pub(crate) hdd_flush: GroupFlush,
    /// What failed flushes come to.
    pub(crate) failures: Arc<Failures>,
    /// Home writes that are not durable.
    pub(crate) home_writes: Arc<HomeWrites>,
    /// The state changed in a way that a task may wait for.
    pub(crate) changed: Notify,
    /// Work for the maintenance task.
    pub(crate) wake: Wake,
    pub(crate) opened: Instant,
    /// The first error after which writes can no longer be made safely.
    pub(crate) refusing: Refusing,
    /// Writers are inside with a shared lock. Taken before all that follows; see [`crate::life`].
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// Held while pages are written home from slots, for one batch.
    pub(crate) home_duty: tokio::sync::Mutex<()>,
    /// Held for a checkpoint or a flush of the maintenance.
    pub(crate) map_duty: tokio::sync::Mutex<()>,
    pub(crate) events: broadcast::Sender<SsdEvent>,
    /// The oldest LSN that redo needs for what is dirty in memory; without, nothing is known of it.
    pub(crate) redo_from: OnceLock<RedoFrom>,
    pub(crate) spare: Mutex<Vec<IoBuf>>,
    /// The maintenance task shall end.
    pub(crate) stopping: AtomicBool,
    /// The most admissions of evicted pages in flight; one more is skipped and counted.
    pub(crate) admissions_max: usize,
    /// Where admissions run: the runtime that the tier was opened on.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) broken: Broken,
}

impl Core {
    pub(crate) fn now(&self) -> Millis {
        Millis(self.opened.elapsed().as_millis() as u64)
    }

    pub(crate) fn doublewrite(&self) -> bool {
        self.layout().ring_pages > 0
    }

    pub(crate) fn has_slots(&self) -> bool {
        self.layout().slots > 0
    }

    pub(crate) fn side(&self) -> Arc<Side> {
        Arc::clone(&self.side.read())
    }

    /// What `device` becomes when it takes the place of the SSD.
    pub(crate) fn new_side(&self, device: SharedDevice, layout: Layout) -> Arc<Side> {
        Side::new(device, layout, &self.failures, &self.runtime)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.side.read().layout
    }

    /// The SSD, or the ring's file.
    pub(crate) fn ssd(&self) -> SharedDevice {
        Arc::clone(&self.side.read().device)
    }

    /// The number of the first flush of the SSD that will cover every write completed by now.
    pub(crate) fn next_ssd_flush(&self) -> u64 {
        self.side.read().flush.next()
    }

    /// Waits until the state is so. Cancel-safe.
    pub(crate) async fn when(&self, so: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if so(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// A page-sized buffer with unspecified contents.
    pub(crate) fn buffer(&self) -> IoBuf {
        self.spare.lock().pop().unwrap_or_else(|| IoBuf::zeroed(self.page_size.bytes()))
    }

    pub(crate) fn give_back(&self, buf: IoBuf) {
        let mut spare = self.spare.lock();
        if spare.len() < self.admissions_max && buf.len() == self.page_size.bytes() {
            spare.push(buf);
        }
    }

    /// Flushes the SSD at least once from now, and frees what that makes free.
    pub(crate) async fn flush_ssd(&self, number: u64) -> Result<(), DeviceError> {
        let over = match self.side().flush.cover(number).await {
            Ok(over) => over,
            Err(error) => {
                // What it should have made durable may be lost, and nothing after it can be promised.
                self.ssd_failed(&error);
                self.refuse(&error.to_string(), true);
                return Err(error);
            }
        };
        self.state.lock().slots.flushed(over);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Flushes the HDD likewise, and lets the ring go of what is home.
    pub(crate) async fn flush_hdd(&self, number: u64) -> Result<(), DeviceError> {
        match self.hdd_flush.cover(number).await {
            Ok(over) => {
                self.home_writes.flushed(over);
                let mut state = self.state.lock();
                state.hdd_flushed(over);
                state.slots.homes_flushed(&|page| self.home_writes.unflushed(page).is_some());
                drop(state);
                self.changed.notify_waiters();
                Ok(())
            }
            Err(error) => {
                let mut state = self.state.lock();
                let settled = state.backed.flush_failed();
                state.settle(settled, false);
                drop(state);
                self.refuse(&error.to_string(), false);
                Err(error)
            }
        }
    }

    /// Of a page whose home was written without anything to back it, until that is durable: the oldest change
    /// that the HDD may lack.
    pub(crate) fn unbacked(&self, page: PageId) -> Option<Lsn> {
        let trusts = self.doublewrite() || self.broken.is(Mutation::CleanUnflushedRingOff);
        if trusts { None } else { self.home_writes.unflushed(page) }
    }

    /// From now on writes are refused: going on could lose data.
    pub(crate) fn refuse(&self, cause: &str, by_ssd: bool) {
        if self.refusing.set(cause, by_ssd) {
            tracing::error!(cause, "the store refuses writes from now on");
            self.event(SsdEvent::Refusing { cause: Arc::from(cause), by_ssd });
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn refusal(&self) -> Option<TierError> {
        self.refusing.cause().map(|cause| TierError::Refusing { cause })
    }

    /// The SSD failed: no new pages go there; what it holds stays readable.
    pub(crate) fn ssd_failed(&self, cause: &DeviceError) {
        let mut state = self.state.lock();
        let first = state.ssd_error.is_none().then(|| Arc::<str>::from(cause.to_string()));
        if let Some(cause) = &first {
            state.ssd_error = Some(Arc::clone(cause));
        }
        drop(state);
        if let Some(cause) = first.filter(|_| self.has_slots()) {
            tracing::error!(%cause, "the SSD takes no new pages from now on");
            self.event(SsdEvent::Degraded { cause });
        }
        self.changed.notify_waiters();
    }

    /// Checks an image against the page and, where it is known, the version expected.
    pub(crate) fn check(&self, image: &[u8], page: PageId, stamp: Option<Stamp>) -> Result<Header, Defect> {
        check(self.seed, image, page, stamp)
    }

    pub(crate) fn corrupt(
        &self,
        page: PageId,
        device: &SharedDevice,
        offset: u64,
        defect: Defect,
    ) -> TierError {
        TierError::Corrupt { page, device: Arc::from(device.name()), offset, defect }
    }

    pub(crate) fn slot_at(&self, slot: pagetier_policy::SlotId) -> u64 {
        self.layout().slot_at(slot.0)
    }
}

/// Checks an image against the store, the page and, where it is known, the version expected.
pub(crate) fn check(
    seed: StoreSeed,
    image: &[u8],
    page: PageId,
    stamp: Option<Stamp>,
) -> Result<Header, Defect> {
    let header = pagetier_page::verify(seed, image, page)?;
    match stamp {
        Some(expected) if expected != header.stamp => {
            Err(Defect::WrongStamp { expected, found: header.stamp })
        }
        _ => Ok(header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_frees_no_record_of_pages_on_their_way_home() {
        let mut journal = JournalPlace::new(17, 10);
        assert_eq!((journal.needed_from(), journal.is_high(8)), (17, true));
        journal.homing.extend([15, 12]);
        assert_eq!(journal.needed_from(), 12);
        journal.write_back = Some(10);
        assert_eq!(
            (journal.needed_from(), journal.is_high(8)),
            (10, false),
            "a checkpoint would free nothing"
        );
        assert_eq!(journal.used(), 7);
    }
}
