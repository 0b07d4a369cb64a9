//! Writing: a dirty page goes to the SSD or home, a clean one that leaves memory may get a copy.

use crate::core::Core;
use crate::home::{Arrived, HomeBound};
use crate::life::SsdMode;
use crate::plan::{Piece, coalesce};
use crate::slots::{Plan, Ticket};
use futures_util::future::join;
use futures_util::stream::StreamExt;
use pagetier_bufpool::{DirtyPage, Displaced, TierError, WrittenPage};
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{Flags, Lsn, PageId};
use pagetier_policy::Home;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The page that lost its copy to another, by that other.
type Displacements = FxHashMap<PageId, PageId>;

/// Dirty pages by where they go.
#[derive(Default)]
struct Sorted {
    slots: Vec<(Ticket, IoBuf, Lsn)>,
    home: Vec<HomeBound>,
    wait: Vec<DirtyPage>,
}

impl Core {
    pub(crate) async fn write_dirty(
        &self,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &(dyn Fn(WrittenPage) + Send + Sync),
    ) {
        let _inside = self.gate.read().await;
        let mut left = batch;
        while !left.is_empty() {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(refusal) = self.refusal() {
                left.into_iter().for_each(|dirty| done(failed(dirty, &refusal)));
                return;
            }
            let sorted = self.sort_out(left);
            left = sorted.wait;
            let stuck = sorted.slots.is_empty() && sorted.home.is_empty();
            if stuck {
                self.wake.notify_one();
                changed.await;
                continue;
            }
            let none = Displacements::default();
            let ((failed, displaced), ()) = join(
                self.write_slots(sorted.slots, class, done),
                self.write_dirty_home(sorted.home, &none, class, done),
            )
            .await;
            self.write_dirty_home(failed, &displaced, class, done).await;
        }
    }

    fn sort_out(&self, batch: Vec<DirtyPage>) -> Sorted {
        let now = self.now();
        let mut sorted = Sorted::default();
        let (has_slots, doublewrite) = (self.has_slots(), self.doublewrite());
        let mut state = self.state.lock();
        for mut dirty in batch {
            let (page, lsn) = (dirty.page, dirty.recovery_lsn);
            // Without a ring an only copy has to be rewritten or written back: on the way home nothing else would back it.
            let stays = !doublewrite && state.ssd_error.is_none() && state.slots.is_only_copy(page);
            if !has_slots || !(state.writes_back() || stays) {
                sorted.home.push(HomeBound { page, image: dirty.image, backed_by_slot: false, lsn });
                continue;
            }
            let home = state.slots.home(page);
            state.slots.policy().logical(page, std::mem::take(&mut dirty.logical), home, now);
            match state.slots.plan_dirty(page, now, &mut || self.stamps.fresh()) {
                Plan::Ssd(ticket) => {
                    state.slots.note_lsn(ticket.slot, lsn);
                    sorted.slots.push((ticket, dirty.image, lsn));
                }
                Plan::Hdd => {
                    sorted.home.push(HomeBound { page, image: dirty.image, backed_by_slot: false, lsn });
                }
                Plan::Wait => sorted.wait.push(dirty),
            }
        }
        sorted
    }

    /// Writes images to their slots. Those that failed come back to be written home, with the pages that had to make room for them.
    async fn write_slots(
        &self,
        slots: Vec<(Ticket, IoBuf, Lsn)>,
        class: IoClass,
        done: &(dyn Fn(WrittenPage) + Send + Sync),
    ) -> (Vec<HomeBound>, Displacements) {
        let ssd = self.ssd();
        let pieces = slots
            .into_iter()
            .map(|(ticket, mut buf, lsn)| {
                let flags = if ticket.dirty { Flags::NONE } else { Flags::CLEAN_COPY };
                pagetier_page::seal(buf.as_mut_slice(), ticket.stamp, flags);
                Piece { offset: self.slot_at(ticket.slot), buf, tag: (ticket, lsn) }
            })
            .collect();
        let mut homeward = Vec::new();
        let mut displacements = Displacements::default();
        let mut runs = self.write_runs(&ssd, coalesce(pieces), class);
        while let Some((tickets, bufs, result)) = runs.next().await {
            for ((ticket, lsn), image) in tickets.into_iter().zip(bufs) {
                self.end_slot_write(ticket, &result);
                let page = ticket.page;
                if result.is_ok() {
                    let displaced = Displaced(ticket.displaced);
                    done(WrittenPage { page, result: Ok(Home::Ssd), displaced, image });
                } else {
                    displacements.extend(ticket.displaced.map(|displaced| (page, displaced)));
                    homeward.push(HomeBound { page, image, backed_by_slot: false, lsn });
                }
            }
            self.changed.notify_waiters();
        }
        self.wake.notify_one();
        (homeward, displacements)
    }

    fn end_slot_write(&self, ticket: Ticket, result: &Result<(), DeviceError>) {
        let durable_at = self.next_ssd_flush();
        let now = self.now();
        let mut state = self.state.lock();
        state.slots.end_write(ticket, result.is_ok(), durable_at, now);
        if result.is_ok() && ticket.dirty {
            state.slots.policy().wrote(ticket.page, Home::Ssd, now);
        }
        drop(state);
        if let Err(error) = result {
            self.ssd_failed(error);
        }
    }

    async fn write_dirty_home(
        &self,
        pages: Vec<HomeBound>,
        displaced: &Displacements,
        class: IoClass,
        done: &(dyn Fn(WrittenPage) + Send + Sync),
    ) {
        let each = |arrived: Arrived| {
            let Arrived { page, image, result } = arrived;
            let result = result.map(|()| {
                self.arrived_home(page);
                Home::Hdd
            });
            let displaced = Displaced(displaced.get(&page).copied());
            done(WrittenPage { page, result, displaced, image });
        };
        self.write_home(pages, class, &each).await;
    }

    fn arrived_home(&self, page: PageId) {
        let now = self.now();
        let mut state = self.state.lock();
        // A copy that could not be rewritten on a failing SSD is obsolete now.
        if state.slots.home(page) == Home::Ssd {
            state.slots.discard(page);
        }
        state.slots.policy().wrote(page, Home::Hdd, now);
    }
}

/// A clean page leaves the pool.
pub(crate) fn evicted(core: &Arc<Core>, page: PageId, logical: u32, image: &[u8]) -> Displaced {
    if !core.has_slots() {
        return Displaced(None);
    }
    let now = core.now();
    let mut state = core.state.lock();
    let home = state.slots.home(page);
    state.slots.policy().logical(page, logical, home, now);
    let takes = matches!(state.mode, SsdMode::WriteBack | SsdMode::WriteThrough) && !state.closing;
    let may = takes && state.ssd_error.is_none() && state.admissions < core.admissions_max;
    let ticket = if may { state.slots.plan_evicted(page, now, &mut || core.stamps.fresh()) } else { None };
    state.slots.policy().left_pool(page, now);
    state.admissions += usize::from(ticket.is_some());
    let look = ticket.is_none() && state.slots.wants_look();
    drop(state);
    let Some(ticket) = ticket else {
        if look {
            core.wake.notify_one();
        }
        return Displaced(None);
    };
    let mut buf = core.buffer();
    buf.as_mut_slice().copy_from_slice(image);
    let displaced = Displaced(ticket.displaced);
    let task = Arc::clone(core);
    core.runtime.spawn(async move {
        let back = |written: WrittenPage| task.give_back(written.image);
        // The pool was told of the displaced page when this was planned.
        let (failed, _) = task.write_slots(vec![(ticket, buf, Lsn(0))], IoClass::Clean, &back).await;
        failed.into_iter().for_each(|f| task.give_back(f.image));
        task.state.lock().admissions -= 1;
        task.changed.notify_waiters();
    });
    displaced
}

fn failed(dirty: DirtyPage, error: &TierError) -> WrittenPage {
    let DirtyPage { page, image, .. } = dirty;
    WrittenPage { page, result: Err(error.clone()), displaced: Displaced(None), image }
}
