//! Reading a page: from its slot if it has one, otherwise from its home; verified before it is returned.

use crate::exec::Core;
use crate::exec::io::join_all::join_all;
use crate::exec::io::single::read_one;
use crate::mode::SsdEvent;
use crate::protocol::slots::Located;
use pagetier_bufpool::{Fetched, TierError};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass};
use pagetier_page::{Defect, PageId, Stamp};
use pagetier_policy::{Access, Cause, Location, SlotId};
use std::sync::Arc;

/// Holds a slot for a read, and releases it even if the read is dropped.
pub(crate) struct SlotHold<'a> {
    pub(crate) core: &'a Core,
    pub(crate) slot: SlotId,
}

impl Drop for SlotHold<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.slots.end_read(self.slot);
        // Only an exchange of the SSD waits for readers. Waking every task at the end of each read would cost
        // more than the rest of this function.
        let awaited = state.slots.is_hidden();
        drop(state);
        if awaited {
            self.core.changed.notify_waiters();
        }
    }
}

/// Adjacent pages on the HDD that are read at once, each with its index in the run.
struct Stretch {
    offset: u64,
    pages: Vec<(usize, PageId)>,
    bufs: IoBufs,
}

fn class_of(access: Access) -> IoClass {
    match access {
        Access::Random => IoClass::Demand,
        Access::Sequential => IoClass::Prefetch,
    }
}

impl Core {
    pub(crate) async fn read_page(self: &Arc<Self>, page: PageId, access: Access, mut buf: IoBuf) -> Fetched {
        // Without slots the newest version below memory is at home, also if the store gets an SSD meanwhile:
        // the frame is latched, so no version can come from memory.
        if self.has_slots() {
            // The copy of a page whose space is dropped may outlive the search for such pages in memory.
            if self.homes.offset(page).is_none() {
                return Fetched { buf, result: Err(TierError::NoSuchPage { page }) };
            }
            if let Located::Slot { slot, stamp, dirty } = self.locate(page).await {
                let (back, result) = self.read_slot(page, slot, stamp, dirty, access, buf).await;
                buf = back;
                match result {
                    Ok(true) => return self.fetched(page, buf, Location::Ssd, access),
                    // The copy was bad, and the HDD has the same version.
                    Ok(false) => {}
                    Err(error) => return Fetched { buf, result: Err(error) },
                }
            }
        }
        self.read_home(page, access, buf).await
    }

    /// Waits until no copy of `page` is on its way to the SSD, then finds its newest version below memory and
    /// holds its slot.
    pub(crate) async fn locate(&self, page: PageId) -> Located {
        self.when_some(|state| Some(state.slots.begin_read(page)).filter(|at| *at != Located::Pending)).await
    }

    /// Reads the image in a held slot, then releases the slot.
    pub(crate) async fn read_copy(
        &self,
        hold: SlotHold<'_>,
        page: PageId,
        stamp: Stamp,
    ) -> Result<IoBuf, TierError> {
        // While the slot is held, the device is not exchanged.
        let cache = self.cache_device();
        let (offset, buf) = (cache.layout.slot_at(hold.slot.0), self.buffer());
        let read = self.read_image(&cache.device, offset, (page, stamp), buf, IoClass::Recovery);
        let (buf, result) = read.await;
        drop(hold);
        result.map(|()| buf)
    }

    /// Reads a held slot. `true`: the page was read. `false`: the copy is bad, but the HDD has the same
    /// version.
    async fn read_slot(
        &self,
        page: PageId,
        slot: SlotId,
        stamp: Stamp,
        dirty: bool,
        access: Access,
        buf: IoBuf,
    ) -> (IoBuf, Result<bool, TierError>) {
        let hold = SlotHold { core: self, slot };
        // While the slot is held, the device is not exchanged.
        let cache = self.cache_device();
        let (ssd, offset) = (&cache.device, cache.layout.slot_at(slot.0));
        let (buf, result) = self.read_image(ssd, offset, (page, stamp), buf, class_of(access)).await;
        drop(hold);
        let Err(error) = result else { return (buf, Ok(true)) };
        // A bad sector concerns one page. A device that is gone fails every read, so stop using it at the
        // first.
        if let TierError::Device { source, .. } = &error
            && matches!(source.kind, DeviceErrorKind::Gone)
        {
            self.ssd_failed(source);
        }
        if !dirty {
            let causes = pagetier_devio::Causes(&error);
            tracing::warn!(%page, error = %causes, "a copy on the SSD is bad: reading the HDD, which has the same version");
            self.state.lock().slots.drop_bad_copy(page, slot, self.now());
            return (buf, Ok(false));
        }
        // Never fall back to the home here: it has an older version, and returning that one would silently
        // undo a synced change.
        if matches!(error, TierError::Corrupt { .. }) {
            self.event(SsdEvent::Lost { page });
        }
        (buf, Err(error))
    }

    async fn read_home(self: &Arc<Self>, page: PageId, access: Access, buf: IoBuf) -> Fetched {
        let Some(offset) = self.homes.source(page) else {
            return Fetched { buf, result: Err(TierError::NoSuchPage { page }) };
        };
        let (buf, result) = read_one(&self.hdd, offset, buf, class_of(access)).await;
        match result {
            Ok(()) => match self.missing(page, &buf) {
                None => self.judge_home(page, offset, buf, access),
                // A failed flush may have dropped a home write that was reported as done. The ring still has
                // the image.
                Some(written) => {
                    let read = self.read_from_ring(page, written, offset, buf, class_of(access));
                    match read.await {
                        (buf, Ok(())) => self.fetched(page, buf, Location::Hdd, access),
                        (buf, Err(error)) => Fetched { buf, result: Err(error) },
                    }
                }
            },
            Err(source) if self.is_unwritten_end(page, &source) => {
                Fetched { buf, result: Err(TierError::NoSuchPage { page }) }
            }
            Err(source) => Fetched { buf, result: Err(TierError::Device { page, source }) },
        }
    }

    /// The version written to the home of `page` since the last flush of the HDD, if `home`, as read from
    /// there, does not hold it: after a failed flush a device may return older contents.
    pub(crate) fn missing(&self, page: PageId, home: &IoBuf) -> Option<Stamp> {
        let written = self.unflushed.expected(page)?;
        self.check(home.as_slice(), page, Some(written)).is_err().then_some(written)
    }

    /// Reads version `written` of `page` from the ring. It was written to the home at `offset`, but `home`,
    /// as read from there, lacks it. If the ring does not have it either, this is an error: never an older
    /// version.
    pub(crate) async fn read_from_ring(
        &self,
        page: PageId,
        written: Stamp,
        offset: u64,
        home: IoBuf,
        class: IoClass,
    ) -> (IoBuf, Result<(), TierError>) {
        let Some(place) = self.state.lock().home.place_of(page, written) else {
            let found = self.check(home.as_slice(), page, Some(written));
            let defect = found.err().unwrap_or(Defect::WrongStamp { expected: written, found: written });
            return (home, Err(self.corrupt(page, &self.hdd, offset, defect)));
        };
        let (ssd, at) = (self.ssd(), self.layout().ring_at(place));
        self.read_image(&ssd, at, (page, written), home, class).await
    }

    /// Whether `home`, as read from there, is the newest version of `page` below memory.
    fn is_at_home(&self, page: PageId, home: &IoBuf) -> bool {
        let on_hdd = self.state.lock().slots.location(page) == Location::Hdd;
        on_hdd && self.missing(page, home).is_none()
    }

    fn judge_home(self: &Arc<Self>, page: PageId, offset: u64, buf: IoBuf, access: Access) -> Fetched {
        match self.check(buf.as_slice(), page, None) {
            Ok(_) => self.fetched(page, buf, Location::Hdd, access),
            Err(defect) if self.is_unwritten(page, defect) => {
                Fetched { buf, result: Err(TierError::NoSuchPage { page }) }
            }
            Err(defect) => Fetched { buf, result: Err(self.corrupt(page, &self.hdd, offset, defect)) },
        }
    }

    /// Whether a home of `page` with this defect was never written. Where homes are formatted, zeroes are
    /// what is left of a lost image (I23).
    pub(crate) fn is_unwritten(&self, page: PageId, defect: Defect) -> bool {
        defect.is_unwritten(self.homes.may_be_blank(page))
    }

    /// Whether a home of `page` was never written, since it lies beyond the end of the HDD.
    pub(crate) fn is_unwritten_end(&self, page: PageId, error: &DeviceError) -> bool {
        let beyond = matches!(error.kind, DeviceErrorKind::UnexpectedEof { .. });
        beyond && self.homes.may_be_blank(page)
    }

    fn fetched(self: &Arc<Self>, page: PageId, buf: IoBuf, from: Location, access: Access) -> Fetched {
        // Without slots the SSD's policy has nothing to decide, and the page has no copy by now.
        if !self.has_slots() {
            return Fetched { buf, result: Ok(Location::Hdd) };
        }
        let now = self.now();
        let mut state = self.state.lock();
        state.slots.note_read(page, Some(from), access, now);
        // Asked again: the SSD may have gone before the state was locked.
        let asked = from == Location::Hdd && self.has_slots() && state.slots.admits_on_read();
        if asked && state.may_admit(self.admissions_max) {
            let fresh = &mut || self.stamps.fresh();
            if let Some(ticket) = state.slots.plan_copy(page, Cause::Read, now, fresh) {
                // A read cannot report displaced pages; queue it for the next write.
                state.slots.note_unreported(ticket.displaced);
                self.copy_to_slot(&mut state, ticket, buf.as_slice());
            } else if state.slots.wants_look() {
                self.wake.notify_one();
            }
        }
        // Look again, since the SSD may have evicted the page meanwhile.
        let location = state.slots.location(page);
        drop(state);
        Fetched { buf, result: Ok(location) }
    }

    /// Reads ahead: one vectored read for each stretch of adjacent pages on the HDD, single reads from the
    /// SSD.
    pub(crate) async fn read_run(self: &Arc<Self>, first: PageId, bufs: Vec<IoBuf>) -> Vec<Fetched> {
        let pages = (first.no..).map(|no| PageId::new(first.space, no));
        let mut singles = Vec::new();
        let mut stretches: Vec<Stretch> = Vec::new();
        for (index, (page, buf)) in pages.zip(bufs).enumerate() {
            let on_ssd = self.has_slots() && self.state.lock().slots.location(page) == Location::Ssd;
            match self.homes.source(page).filter(|_| !on_ssd) {
                Some(offset) => match stretches.last_mut().filter(|s| self.end_of(s) == offset) {
                    // One seek serves the whole stretch. A page with a copy on the SSD ends it, since its
                    // home may be older.
                    Some(stretch) => {
                        stretch.pages.push((index, page));
                        stretch.bufs.push(buf);
                    }
                    None => {
                        let (pages, bufs) = (vec![(index, page)], IoBufs::from_iter([buf]));
                        stretches.push(Stretch { offset, pages, bufs });
                    }
                },
                None => singles.push((index, page, buf)),
            }
        }
        // Both devices work at the same time, so the run takes as long as the slower of the two.
        let from_ssd = join_all(singles.into_iter().map(|(index, page, buf)| async move {
            (index, self.read_page(page, Access::Sequential, buf).await)
        }));
        let from_hdd = join_all(stretches.into_iter().map(|stretch| self.read_stretch(stretch)));
        let (ssd, hdd) = futures_util::future::join(from_ssd, from_hdd).await;
        let mut fetched: Vec<(usize, Fetched)> = ssd.into_iter().chain(hdd.into_iter().flatten()).collect();
        fetched.sort_unstable_by_key(|(index, _)| *index);
        fetched.into_iter().map(|(_, one)| one).collect()
    }

    fn end_of(&self, stretch: &Stretch) -> u64 {
        stretch.offset + (stretch.bufs.len() * self.page_size.bytes()) as u64
    }

    async fn read_stretch(self: &Arc<Self>, stretch: Stretch) -> Vec<(usize, Fetched)> {
        let Stretch { offset, pages, bufs } = stretch;
        let done = self.hdd.read(offset, bufs, IoClass::Prefetch).await;
        let mut fetched = Vec::with_capacity(pages.len());
        let mut at = offset;
        for ((index, page), buf) in pages.into_iter().zip(done.bufs) {
            let one = match &done.result {
                Ok(()) if self.is_at_home(page, &buf) => self.judge_home(page, at, buf, Access::Sequential),
                // The page has moved to the SSD, or the stretch could not be read: read the page alone.
                _ => self.read_page(page, Access::Sequential, buf).await,
            };
            fetched.push((index, one));
            at += self.page_size.bytes() as u64;
        }
        fetched
    }
}
