//! Copies of the HDD's versions: admissions of clean pages, and slots of pages that are written through.

use super::slot::{Phase, Standing};
use super::{NoSlot, Slots, Ticket};
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{Cause, Location, Millis, SlotId};

impl Slots {
    /// Whether a changed page is written home first and only then to a slot.
    pub fn writes_home_first(&self) -> bool {
        self.through && !self.appends()
    }

    /// Whether a changed page is first written to a slot, which then backs its home write.
    pub fn backs_home(&self) -> bool {
        self.through && self.appends()
    }

    /// Whether the policy decides about pages as they are read from the HDD.
    pub fn admits_on_read(&self) -> bool {
        self.on_read
    }

    /// Decides whether `page` gets a copy. The HDD has its version in memory: the page is leaving the pool,
    /// or was just read from the HDD or written there.
    pub fn plan_copy(
        &mut self,
        page: PageId,
        cause: Cause,
        now: Millis,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Option<Ticket> {
        if self.location(page) == Location::Ssd || !self.admits(page) {
            return None;
        }
        if !self.is_worth_its_price(page) {
            self.counts.rejected += 1;
            return None;
        }
        let (slot, displaced) = match self.place_copy(page, cause, now) {
            Ok(place) => place,
            Err(why) => {
                self.counts.rejected_no_slot += u64::from(why == NoSlot::Soon);
                return None;
            }
        };
        self.counts.admitted_on_read += u64::from(cause == Cause::Read);
        Some(self.start_copy(slot, page, displaced, now, fresh()))
    }

    /// Plans a copy of `page`, which was just written home, so that any existing copy is outdated. A page
    /// with a copy gets a new one in another slot; otherwise the policy decides. With `may` false, or without
    /// a writable slot, the page loses its copy.
    pub fn plan_arrived(
        &mut self,
        page: PageId,
        may: bool,
        now: Millis,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Option<Ticket> {
        let had = self.location(page) == Location::Ssd;
        if !had {
            return if may { self.plan_copy(page, Cause::Cleaned, now, fresh) } else { None };
        }
        // A copy must be worth its slot again, since it is a new write: an overdrawn budget may reject it.
        let may = may && self.admits(page) && self.is_worth_its_price(page);
        self.give_up_copy(page);
        // The same slot may be given out again: its contents do not count.
        let Some(slot) = may.then(|| self.take_writable()).flatten() else {
            self.policy.removed(page, false, now);
            self.counts.rejected_no_slot += u64::from(may);
            return None;
        };
        self.counts.renewed += 1;
        let ticket = self.start_copy(slot, page, None, now, fresh());
        if let Phase::Writing { renews, .. } = &mut self.slots.edit(slot).phase {
            *renews = true;
        }
        Some(ticket)
    }

    /// Sets the price of a write to the SSD, in milliseconds; `None` while the write budget is not overdrawn.
    pub(crate) fn set_write_price(&mut self, price_ms: Option<f64>) {
        self.write_price_ms = price_ms;
    }

    /// Whether the benefit of a copy of `page`, whose version the HDD has, exceeds the price of writing it. A
    /// policy that estimates no benefit gets no copies while the budget is overdrawn.
    fn is_worth_its_price(&self, page: PageId) -> bool {
        let Some(price_ms) = self.write_price_ms else { return true };
        self.policy.benefit(page).is_some_and(|benefit_ms| benefit_ms > price_ms)
    }

    fn start_copy(
        &mut self,
        slot: SlotId,
        page: PageId,
        displaced: Option<PageId>,
        now: Millis,
        stamp: Stamp,
    ) -> Ticket {
        let ticket = self.start(slot, page, Standing::Clean, displaced, now, stamp);
        self.pending.insert(page, slot);
        ticket
    }

    /// Notes that the copy on its way with `ticket` is of a home write that is not durable; the HDD may lack
    /// changes from `lsn` on. The copy counts as the only one of its version until [`Slots::homes_flushed`].
    pub(crate) fn wait_for_home(&mut self, ticket: &mut Ticket, lsn: Lsn) {
        if let Some(version) = self.slots.edit(ticket.slot).version_mut() {
            (version.standing, version.lsn) = (Standing::AwaitsFlush, lsn);
        }
        self.note_captured(lsn);
        (ticket.dirty, ticket.waits_for_home) = (true, true);
        self.waiting_for_home.push((ticket.slot, ticket.stamp));
    }

    /// Notes that a flush of the HDD has completed: copies whose homes are not `unflushed` become clean.
    pub(crate) fn homes_flushed(&mut self, unflushed: &dyn Fn(PageId) -> bool) {
        for (slot, stamp) in std::mem::take(&mut self.waiting_for_home) {
            let mut s = self.slots.edit(slot);
            let (retired, writing) = (s.is_retired(), s.is_writing());
            let Some(version) = s.version_mut().filter(|v| !retired && v.stamp == stamp) else { continue };
            match version.standing {
                // An image still in flight, or a newer home write since, keeps the copy waiting (I5).
                Standing::AwaitsFlush if writing || unflushed(version.page) => {
                    self.waiting_for_home.push((slot, stamp));
                }
                Standing::AwaitsFlush => version.standing = Standing::Clean,
                _ => {}
            }
        }
    }

    /// Whether the copy of `page` becomes clean with a flush of the HDD.
    pub(crate) fn waits_for_home(&self, page: PageId) -> bool {
        self.live(page).is_some_and(|stored| stored.standing == Standing::AwaitsFlush)
    }

    /// Whether a flush of the HDD would make any copy clean. It does not for pages whose home writes are
    /// `in_flight`.
    pub(crate) fn wants_home_flush(&self, in_flight: &dyn Fn(PageId) -> bool) -> bool {
        self.waiting_for_home.iter().any(|(slot, stamp)| {
            self.slots.get(*slot).live().is_some_and(|version| {
                let waits = version.standing == Standing::AwaitsFlush && version.stamp == *stamp;
                waits && !in_flight(version.page)
            })
        })
    }

    /// Notes that the home write of version `stamp` of `page`, which its slot backed, is durable.
    pub(crate) fn backed_home(&mut self, page: PageId, stamp: Stamp) {
        self.counts.doublewritten += 1;
        if let Some((_, mut stored)) = self.live_mut(page).filter(|(_, stored)| stored.stamp == stamp) {
            stored.standing = Standing::Clean;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flushes::SsdFlush;
    use crate::protocol::slots::{Plan, SlotParams};
    use pagetier_page::SpaceId;
    use pagetier_policy::{Access, Costs, SlotPolicyParams, SsdPolicy};

    const NOW: Millis = Millis(0);

    fn slots(policy: &str) -> Slots {
        pagetier_rivals::register();
        let policy = policy.parse::<SsdPolicy>().expect("a policy");
        let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, 12, 8));
        let mut slots = Slots::new(SlotParams::new(12, 50.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        slots
    }

    /// Plans a copy of `page`, which is leaving the pool.
    fn copied(slots: &mut Slots, page: PageId) -> Option<Ticket> {
        slots.plan_copy(page, Cause::Evicted, NOW, &mut || Stamp::from_bits(1))
    }

    /// Writes a new version of `page` to a slot.
    fn written(slots: &mut Slots, page: PageId, stamp: u64) {
        let plan = slots.plan_dirty(page, NOW, &mut || Stamp::from_bits(stamp));
        let Plan::Ssd(ticket) = plan else { panic!("there is room: {plan:?}") };
        slots.end_write(ticket, true, SsdFlush(stamp), NOW);
        slots.flushed(SsdFlush(stamp));
    }

    #[test]
    fn a_copy_that_is_not_worth_its_price_is_not_written() {
        let page = PageId::new(SpaceId(1), 1);
        // The first estimates no benefits.
        for (policy, price_ms, worth) in [("lru2", 1e-9, false), ("cac", 1e9, false), ("cac", 1e-9, true)] {
            let mut slots = slots(policy);
            for _ in 0..4 {
                slots.note_read(page, Some(Location::Hdd), Access::Random, NOW);
            }
            slots.set_write_price(Some(price_ms));
            assert_eq!(copied(&mut slots, page).is_some(), worth, "{policy}, {price_ms} ms");
            assert_eq!(slots.counts().rejected, u64::from(!worth), "{policy}, {price_ms} ms");
            // The budget is not overdrawn any more.
            slots.set_write_price(None);
            assert_eq!(copied(&mut slots, page).is_some(), !worth, "{policy}, {price_ms} ms");
        }
    }

    #[test]
    fn a_slot_that_got_a_newer_version_is_not_clean_when_the_older_one_is_home() {
        let mut slots = slots("doublewrite");
        let page = PageId::new(SpaceId(1), 1);
        written(&mut slots, page, 1);
        written(&mut slots, page, 2);
        slots.backed_home(page, Stamp::from_bits(1));
        assert!(slots.is_only_copy(page), "the HDD lacks the newer version");
        slots.backed_home(page, Stamp::from_bits(2));
        assert!(!slots.is_only_copy(page), "the HDD has it");
    }

    #[test]
    fn a_copy_that_was_written_back_wants_no_flush_of_its_home() {
        let mut slots = slots("lru2");
        let page = PageId::new(SpaceId(1), 1);
        let mut ticket = copied(&mut slots, page).expect("there is room");
        slots.wait_for_home(&mut ticket, Lsn(0));
        slots.end_write(ticket, true, SsdFlush(1), NOW);
        assert!(slots.wants_home_flush(&|_| false));
        let copy = slots.hold_copy(page).expect("a copy");
        slots.end_write_back(copy, true);
        assert!(!slots.wants_home_flush(&|_| false), "the flush of the write-back has made it clean");
    }

    #[test]
    fn a_copy_on_its_way_wants_no_flush_of_the_home_before_it_is_there() {
        let mut slots = slots("lru2");
        let page = PageId::new(SpaceId(1), 1);
        let mut ticket = copied(&mut slots, page).expect("there is room");
        slots.wait_for_home(&mut ticket, Lsn(0));
        assert!(!slots.wants_home_flush(&|_| false), "it is not there yet");
        slots.end_write(ticket, true, SsdFlush(1), NOW);
        assert!(slots.wants_home_flush(&|_| false));
        assert!(!slots.wants_home_flush(&|_| true), "its home is being written");
        slots.homes_flushed(&|_| false);
        assert!(!slots.wants_home_flush(&|_| false), "it is clean");
    }
}
