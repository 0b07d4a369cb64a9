//! Writing: a dirty page goes to the SSD, to its home or to both; a clean page that leaves memory may get a
//! copy.

use crate::exec::Core;
use crate::exec::io::coalesce::{Piece, write_runs};
use crate::exec::write::write_home::{HomeBound, Outcome};
use crate::format::journal::Backing;
use crate::protocol::Protocol;
use crate::protocol::slots::{Plan, Ticket};
use futures_util::future::join;
use futures_util::stream::StreamExt;
use pagetier_bufpool::{DirtyPage, Displaced, TierError, WrittenPage};
use pagetier_devio::listen;
use pagetier_devio::locks::flow;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{Flags, Header, Lsn, PageId};
use pagetier_policy::{Cause, Location};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// By page, the page that lost its copy to it.
type Displacements = FxHashMap<PageId, PageId>;

/// Dirty pages by destination.
#[derive(Default)]
struct Sorted {
    slots: Vec<(Ticket, IoBuf, Lsn)>,
    home: Vec<HomeBound>,
    wait: Vec<DirtyPage>,
}

/// The outcome of slot writes.
#[derive(Default)]
struct SlotsWritten {
    /// The writes that failed: these pages have to be written home instead.
    failed: Vec<HomeBound>,
    /// The pages in slots that back their home writes, which come next.
    appended: Vec<HomeBound>,
    /// For pages of both lists: the pages displaced for them.
    displaced: Displacements,
}

/// A write of the pool's dirty pages.
struct DirtyWrite<'a> {
    core: &'a Arc<Core>,
    class: IoClass,
    /// Receives the pages that wait for the ring to be put into use; `None`: it is in use.
    refused: Option<&'a Mutex<Vec<DirtyPage>>>,
    done: &'a (dyn Fn(WrittenPage) + Send + Sync),
}

impl Core {
    /// Writes the pages of `batch`, and calls `done` for each.
    pub(crate) async fn write_dirty(
        self: &Arc<Self>,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &(dyn Fn(WrittenPage) + Send + Sync),
    ) {
        let refused = Mutex::new(Vec::new());
        DirtyWrite { core: self, class, refused: Some(&refused), done }.write(batch).await;
        let left = refused.into_inner();
        if !left.is_empty() {
            // The ring is put into use while no write is under way, so not inside `write`. The pages that
            // were refused go through it, and their writers learn nothing of that.
            self.use_ring().await;
            DirtyWrite { core: self, class, refused: None, done }.write(left).await;
        }
    }
}

impl DirtyWrite<'_> {
    async fn write(&self, batch: Vec<DirtyPage>) {
        let core = self.core;
        let _inside = core.writers.read().await;
        // Pages that find no slot are routed anew in each round: the mode, the policy or the SSD's state may
        // have changed while they waited.
        let mut left = batch;
        while !left.is_empty() {
            // Register before looking. A checkpoint that ended between the look and the wait would otherwise
            // go unnoticed, and the pages would wait for the next one, which may never come.
            listen!(changed = core.changed);
            if let Some(refusal) = core.refusal() {
                left.into_iter().for_each(|d| self.end(d.page, d.image, Err(refusal.clone()), None));
                return;
            }
            if let Some(refused) = self.refused.filter(|_| core.refused_whole.load(Ordering::Acquire)) {
                // A slot may be free only after a write-back, which is refused.
                refused.lock().extend(left);
                return;
            }
            let sorted = core.route(left);
            left = sorted.wait;
            let stuck = sorted.slots.is_empty() && sorted.home.is_empty();
            if stuck {
                // Only a checkpoint or a flush frees slots. Nothing else may ask for one: without this wake
                // the writers and an idle maintenance task would wait for each other.
                core.wake.notify_one();
                changed.await;
                continue;
            }
            let none = Displacements::default();
            // Both at once: one slow home write would otherwise keep a whole batch of pages dirty that the
            // SSD takes in a millisecond.
            let (written, ()) = join(
                flow(core.write_slots(sorted.slots, self.class, Some(self))),
                flow(self.write_pages_home(sorted.home, &none)),
            )
            .await;
            let SlotsWritten { failed, appended, displaced } = written;
            // A page whose slot could not be written goes home instead, so a failed SSD slows writes down but
            // fails none.
            join(
                flow(self.write_pages_home(failed, &displaced)),
                flow(self.write_appended_home(appended, &displaced)),
            )
            .await;
        }
    }

    /// Writes pages home that no slot backs.
    async fn write_pages_home(&self, pages: Vec<HomeBound>, displaced: &Displacements) {
        let core = self.core;
        let lsns: FxHashMap<PageId, Lsn> = match self.refused {
            Some(_) if !core.doublewrite() => pages.iter().map(|b| (b.page, b.lsn)).collect(),
            _ => FxHashMap::default(),
        };
        let each = |page, image: IoBuf, outcome| {
            if let (Some(refused), Outcome::Failed(error)) = (self.refused, &outcome)
                && core.wants_ring(error)
            {
                let recovery_lsn = lsns.get(&page).copied().unwrap_or_default();
                core.state.lock().slots.note_unreported(displaced.get(&page).copied());
                return refused.lock().push(DirtyPage { page, image, logical: 0, recovery_lsn });
            }
            let mut displaced = displaced.get(&page).copied();
            let result = match outcome {
                Outcome::Failed(error) => Err(error),
                Outcome::Home | Outcome::Superseded | Outcome::GivenUp => {
                    let (location, by_copy) = core.arrived_home(page, image.as_slice());
                    displaced = displaced.or(by_copy);
                    Ok(location)
                }
            };
            self.end(page, image, result, displaced);
        };
        // Without a ring, a page over an only copy takes the opposite order: its record comes last (I6).
        let (over, pages) = core.over_only_copies(pages);
        core.write_home(Backing::Ring, pages, self.class, &each).await;
        core.write_home_first(over, self.class, &each).await;
    }

    /// Writes pages home whose slots back the home writes. A page whose home write fails is written again
    /// through the ring: its home may be torn, and unlike a slot the ring keeps the image even if the page is
    /// discarded.
    async fn write_appended_home(&self, pages: Vec<HomeBound>, displaced: &Displacements) {
        let core = self.core;
        let again = Mutex::new(Vec::new());
        let each = |page, image: IoBuf, outcome| {
            let now = core.now();
            let mut state = core.state.lock();
            // If the home write never began, nothing is backed any more. A claim left behind would hold the
            // slot forever.
            state.home.cancel_appended(page, Header::peek(image.as_slice()).stamp);
            let result = match outcome {
                Outcome::Failed(TierError::Device { .. }) if core.refusing.cause().is_none() => {
                    let lsn = state.slots.lsn_of(page);
                    drop(state);
                    return again.lock().push(HomeBound::new(page, image, lsn));
                }
                Outcome::Failed(error) => Err(error),
                Outcome::Superseded | Outcome::GivenUp => Ok(state.slots.location(page)),
                Outcome::Home => {
                    state.slots.policy_mut().wrote(page, Location::Hdd, now);
                    Ok(state.slots.location(page))
                }
            };
            let displaced = displaced.get(&page).copied().or_else(|| state.slots.take_unreported());
            drop(state);
            self.end(page, image, result, displaced);
        };
        core.write_home(Backing::Appended, pages, self.class, &each).await;
        self.write_pages_home(again.into_inner(), displaced).await;
    }

    /// Reports that the write of `page` has ended, by which `over` lost its copy.
    fn end(&self, page: PageId, image: IoBuf, result: Result<Location, TierError>, over: Option<PageId>) {
        if result.is_ok() {
            self.core.homes.written(page);
        }
        (self.done)(WrittenPage { page, result, displaced: Displaced(over), image });
    }
}

impl Core {
    fn route(&self, batch: Vec<DirtyPage>) -> Sorted {
        let now = self.now();
        let mut sorted = Sorted::default();
        let (has_slots, doublewrite) = (self.has_slots(), self.doublewrite());
        let mut state = self.state.lock();
        self.charge(&mut state, now);
        for mut dirty in batch {
            let (page, lsn) = (dirty.page, dirty.recovery_lsn);
            // Without a ring, keep a page with an only copy on the SSD: its older copy would have to be
            // written back before the page could be written home.
            let only = state.slots.is_only_copy(page) && !state.slots.waits_for_home(page);
            let stays = !doublewrite && state.ssd_error.is_none() && only;
            let to_slots = stays || (state.writes_back() && !state.slots.writes_home_first());
            if !has_slots || !to_slots {
                sorted.home.push(HomeBound::new(page, dirty.image, lsn));
                continue;
            }
            let location = state.slots.location(page);
            state.slots.policy_mut().logical(page, std::mem::take(&mut dirty.logical), location, now);
            match state.slots.plan_dirty(page, now, &mut || self.stamps.fresh()) {
                Plan::Ssd(ticket) => {
                    state.slots.note_lsn(ticket.slot, lsn);
                    // Claim the backing before the lock is released. A discard in between would free the
                    // slot, and then nothing could repair the home if its write is torn (I4).
                    if ticket.backs_home {
                        state.home.plan_appended(page, ticket.stamp);
                    }
                    sorted.slots.push((ticket, dirty.image, lsn));
                }
                Plan::Hdd => sorted.home.push(HomeBound::new(page, dirty.image, lsn)),
                Plan::Wait => sorted.wait.push(dirty),
            }
        }
        sorted
    }

    /// Writes images to their slots as copies, which no write of the pool waits for.
    pub(crate) async fn write_copies(&self, slots: Vec<(Ticket, IoBuf, Lsn)>) {
        let written = self.write_slots(slots, IoClass::Clean, None).await;
        written.failed.into_iter().for_each(|failed| self.give_back(failed.image));
    }

    /// Writes images to their slots, for `write` or (`None`) as copies. Returns those whose slots back their
    /// home writes, and those that failed.
    async fn write_slots(
        &self,
        slots: Vec<(Ticket, IoBuf, Lsn)>,
        class: IoClass,
        write: Option<&DirtyWrite<'_>>,
    ) -> SlotsWritten {
        let ssd = self.ssd();
        let pieces = slots
            .into_iter()
            .map(|(ticket, mut buf, lsn)| {
                // The flag tells a recovery that the HDD has this version too (I17). Without it, a damaged
                // copy would pass for a lost page.
                let flags = if ticket.dirty { Flags::NONE } else { Flags::CLEAN_COPY };
                pagetier_page::seal(self.seed, buf.as_mut_slice(), ticket.stamp, flags);
                Piece { offset: self.slot_at(ticket.slot), buf, tag: (ticket, lsn) }
            })
            .collect();
        let mut back = SlotsWritten::default();
        let mut runs = write_runs(&ssd, pieces, class);
        while let Some((written, result)) = runs.next().await {
            for ((ticket, lsn), image) in written {
                self.end_slot_write(ticket, &result);
                let page = ticket.page;
                // A slot that backs a home write is only half the way: such a page counts as written when it
                // is home.
                if result.is_ok() && !ticket.backs_home {
                    match write {
                        Some(write) => write.end(page, image, Ok(Location::Ssd), ticket.displaced),
                        None => self.give_back(image),
                    }
                    continue;
                }
                back.displaced.extend(ticket.displaced.map(|displaced| (page, displaced)));
                if result.is_ok() {
                    let over_only_copy = ticket.over_only_copy;
                    back.appended.push(HomeBound { page, image, lsn, over_only_copy });
                } else {
                    back.failed.push(HomeBound::new(page, image, lsn));
                }
            }
            self.changed.notify_waiters();
        }
        self.wake.notify_one();
        back
    }

    fn end_slot_write(&self, ticket: Ticket, result: &Result<(), DeviceError>) {
        // Ask now that the write has ended. A flush that began earlier may not cover it, and would free the
        // slot of the version before too soon (I1).
        let durable_at = self.next_ssd_flush();
        let now = self.now();
        let mut state = self.state.lock();
        state.slots.end_write(ticket, result.is_ok(), durable_at, now);
        if result.is_err() {
            state.home.cancel_appended(ticket.page, ticket.stamp);
        }
        if result.is_ok() && ticket.dirty && !ticket.waits_for_home {
            state.slots.policy_mut().wrote(ticket.page, Location::Ssd, now);
        }
        drop(state);
        if let Err(error) = result {
            self.ssd_failed(error);
        }
    }

    /// Handles the arrival of `page` at home as `image`. Returns where the page is kept from now on, and the
    /// page displaced for its copy.
    fn arrived_home(self: &Arc<Self>, page: PageId, image: &[u8]) -> (Location, Option<PageId>) {
        let now = self.now();
        let mut state = self.state.lock();
        state.slots.note_home(true);
        // A page without a home was not written: its space is being dropped.
        if !state.slots.writes_home_first() || self.homes.offset(page).is_none() {
            // A copy that could not, or should not, be rewritten is obsolete.
            if state.slots.location(page) == Location::Ssd {
                state.slots.discard(page);
            }
            state.slots.policy_mut().wrote(page, Location::Hdd, now);
            return (Location::Hdd, state.slots.take_unreported());
        }
        state.slots.policy_mut().wrote(page, Location::Hdd, now);
        // The copy that the page had is of an older version now. One step gives it up and plans a new one, so
        // that no read can find the old one in between (I17).
        let may = state.may_admit(self.admissions_max);
        let fresh = &mut || self.stamps.fresh();
        let ticket = state.slots.plan_arrived(page, may, now, fresh);
        let displaced = ticket.and_then(|ticket| ticket.displaced).or_else(|| state.slots.take_unreported());
        if let Some(ticket) = ticket {
            self.copy_to_slot(&mut state, ticket, image);
        }
        (state.slots.location(page), displaced)
    }

    /// Starts writing a copy of `image`, which the HDD has, to its slot.
    pub(crate) fn copy_to_slot(self: &Arc<Self>, state: &mut Protocol, mut ticket: Ticket, image: &[u8]) {
        // The page's last home write is not durable, and no ring backs it. If the copy counted as clean, it
        // could be evicted, and a power cut would then lose both (I5).
        if let Some(lsn) = self.unbacked(ticket.page) {
            state.slots.wait_for_home(&mut ticket, lsn);
        }
        // Count before the task starts: an exchange of the SSD waits for this number to be 0.
        state.admissions += 1;
        let mut buf = self.buffer();
        buf.as_mut_slice().copy_from_slice(image);
        let task = Arc::clone(self);
        self.runtime.spawn(async move {
            // The displaced page has been reported to the pool, or is queued for that.
            task.write_copies(vec![(ticket, buf, Lsn(0))]).await;
            task.state.lock().admissions -= 1;
            task.changed.notify_waiters();
        });
    }
}

/// Handles a clean page that leaves the pool.
pub(crate) fn evicted(core: &Arc<Core>, page: PageId, logical: u32, image: &[u8]) -> Displaced {
    if !core.has_slots() {
        return Displaced(None);
    }
    let now = core.now();
    let mut state = core.state.lock();
    core.charge(&mut state, now);
    let location = state.slots.location(page);
    state.slots.policy_mut().logical(page, logical, location, now);
    let may = state.may_admit(core.admissions_max);
    let fresh = &mut || core.stamps.fresh();
    let ticket = if may { state.slots.plan_copy(page, Cause::Evicted, now, fresh) } else { None };
    state.slots.policy_mut().left_pool(page, now);
    let Some(ticket) = ticket else {
        // A rejection may mean that the zone has no candidate left. Nothing else asks for a new zone then:
        // without a wake every later page would be rejected, too.
        let look = state.slots.wants_look();
        let displaced = Displaced(state.slots.take_unreported());
        drop(state);
        if look {
            core.wake.notify_one();
        }
        return displaced;
    };
    core.copy_to_slot(&mut state, ticket, image);
    Displaced(ticket.displaced)
}
