//! What keeps slots writable: write-backs of the next victims, and checkpoints that name a new zone.

use super::{Capture, MapWork, Slot, Slots, State, WriteBack};
use crate::format::map::{Entry, MapBody};
use pagetier_policy::{Millis, SlotId};

impl Slots {
    // ---- write-back
    // -----------------------------------------------------------------------------------------

    /// The next victims that are dirty, at most `max`; each is held until [`Slots::end_write_back`].
    pub fn begin_write_back(&mut self, max: usize, now: Millis) -> Vec<WriteBack> {
        let mut next = if self.appends() { self.front_dirty() } else { self.dirty_victims(now) };
        next.truncate(max);
        next.into_iter()
            .filter_map(|slot| {
                let s = &mut self.slots[slot.at()];
                // A policy may name a slot twice.
                if self.going_home.contains(&s.page) {
                    return None;
                }
                s.readers += 1;
                self.going_home.push(s.page);
                Some(WriteBack { slot, page: s.page, stamp: s.stamp, durable_at: s.durable_at })
            })
            .collect()
    }

    /// Whether the next write-back is urgent: a circle cannot go on before it is over; and since this was
    /// taken last, a dirty page went to the disk though it would have replaced a victim that was dirty still,
    /// which cost the disk what a write-back in time would have.
    pub fn take_urgency(&mut self) -> bool {
        std::mem::take(&mut self.held_up) || self.appends()
    }

    fn dirty_victims(&mut self, now: Millis) -> Vec<SlotId> {
        let mut next = self.victims(self.params.clean_ahead as usize, now);
        next.retain(|slot| {
            let s = &self.slots[slot.at()];
            s.state == State::Live && s.dirty && s.readers == 0
        });
        next
    }

    /// The policy's next victims, at most `n`, as far as they are slots.
    pub(super) fn victims(&mut self, n: usize, now: Millis) -> Vec<SlotId> {
        let mut next = Vec::new();
        self.policy.next_victims(n, now, &mut next);
        next.retain(|slot| slot.0 < self.params.slots);
        next.truncate(n);
        next
    }

    /// The write-back is over; when `ok`, the HDD was flushed after it, and the slot is clean if it still
    /// holds that version.
    pub fn end_write_back(&mut self, done: WriteBack, ok: bool) {
        if let Some(at) = self.going_home.iter().position(|page| *page == done.page) {
            self.going_home.swap_remove(at);
        }
        let s = &mut self.slots[done.slot.at()];
        if ok && s.state == State::Live && s.stamp == done.stamp {
            s.dirty = false;
            self.counts.written_back += 1;
            self.policy.copied_home(done.page, done.slot);
        }
        self.end_read(done.slot);
    }

    // ---- checkpoints
    // ----------------------------------------------------------------------------------------

    /// What is due, most urgent first. `journal_high`: only a checkpoint makes room in the journal.
    pub fn map_work(&mut self, journal_high: bool, now: Millis) -> Option<MapWork> {
        if self.appends() {
            return self.front_map_work(journal_high);
        }
        // Early enough that writers do not run dry while the checkpoint is written.
        let low = self.params.reserve as usize / 2 + 1;
        let short = self.writable.len() < low || self.starved;
        if !self.capturing && self.params.slots > 0 {
            let freed = self.waiting.len() * 2 >= low || (self.starved && !self.waiting.is_empty());
            let used_up = self.is_stale() && self.zone_is_used_up(now);
            if journal_high || (short && freed) || used_up {
                return Some(MapWork::Checkpoint);
            }
        }
        if short && !self.retired.is_empty() {
            return Some(MapWork::Flush);
        }
        self.starved = false;
        None
    }

    /// Whether a new zone could be another one than the present.
    pub(super) fn is_stale(&self) -> bool {
        self.changes > 0 || self.counts.rejected - self.rejected_before >= u64::from(self.params.zone)
    }

    fn zone_is_used_up(&mut self, now: Millis) -> bool {
        if self.has_room() {
            return false;
        }
        let few = self.params.clean_ahead as usize / 2 + 1;
        self.victims(few, now).len() < few
    }

    /// Whether a write-back is due: fewer than half of the next victims could be given up at once.
    pub fn next_victims_are_dirty(&mut self, now: Millis) -> bool {
        if self.appends() {
            return self.front_wants_write_back();
        }
        if self.has_room() {
            return false;
        }
        let next = self.victims(self.params.clean_ahead as usize, now);
        let ready = next.iter().filter(|slot| !self.slots[slot.at()].dirty).count();
        let to_clean = next.iter().any(|slot| {
            let s = &self.slots[slot.at()];
            s.state == State::Live && s.dirty && s.readers == 0
        });
        to_clean && ready * 2 < next.len()
    }

    /// Captures the map and names the next zone: everything being written, retired or free (as far as the
    /// zone's size goes), and the pages of lowest benefit; or what is next in circular order. Until
    /// [`Slots::end_checkpoint`], only slots in both zones are given out.
    pub fn begin_checkpoint(&mut self, now: Millis) -> Capture {
        debug_assert!(!self.capturing);
        if self.appends() {
            self.name_front_zone();
        } else {
            self.name_zone(now);
        }
        self.capturing = true;
        self.changes = 0;
        self.rejected_before = self.counts.rejected;
        self.starved = false;
        self.spent = false;
        self.relist();
        Capture { generation: self.generation + 1, body: self.body() }
    }

    fn name_zone(&mut self, now: Millis) {
        let mut left = self.params.zone as usize;
        for s in &mut self.slots {
            s.in_next = matches!(s.state, State::Writing | State::Retired);
            left = left.saturating_sub(usize::from(s.in_next));
        }
        let free = self.writable.iter().rev().chain(self.waiting.iter());
        for slot in free.take(left) {
            self.slots[slot.at()].in_next = true;
        }
        left = left.saturating_sub(self.writable.len() + self.waiting.len());
        let mut candidates = Vec::new();
        let slots = &self.slots;
        let mut eligible = |slot: SlotId| slots[slot.at()].state == State::Live;
        self.policy.start_zone(left, &mut eligible, now, &mut candidates);
        // A zone of other slots, or of more, would make a recovery read more than was asked for.
        for slot in candidates {
            let chosen = self.slots.get_mut(slot.at()).filter(|s| s.state == State::Live && !s.in_next);
            if let Some(s) = chosen.filter(|_| left > 0) {
                s.in_next = true;
                left -= 1;
            }
        }
    }

    /// The checkpoint is durable, or failed. After a failure either of the two may be what a crash finds, so
    /// only slots in both zones stay writable until one succeeds.
    pub fn end_checkpoint(&mut self, ok: bool) {
        debug_assert!(self.capturing);
        for s in &mut self.slots {
            s.in_zone = s.in_next && (ok || s.in_zone);
            s.in_next = false;
        }
        self.capturing = false;
        if let Some(circle) = &mut self.circle {
            circle.end_checkpoint(ok);
        }
        // The next one after a failure goes to the same area: the other has the one that is known to be
        // durable.
        if ok {
            self.in_force = self.generation + 1;
        }
        self.generation += if ok { 1 } else { 2 };
        self.counts.checkpoints += u64::from(ok);
        self.relist();
    }

    fn body(&self) -> MapBody {
        let entry = |s: &Slot| {
            let named = s.state == State::Live || (s.state == State::Writing && !s.abandoned);
            named.then_some(Entry { page: s.page, stamp: s.stamp, clean: !s.dirty })
        };
        MapBody {
            entries: self.slots.iter().map(entry).collect(),
            zone: self.slots.iter().map(|s| s.in_next).collect(),
            in_flight: self
                .slots
                .iter()
                .map(|s| s.state == State::Writing && s.dirty && !s.abandoned)
                .collect(),
        }
    }

    /// Sorts the free slots into writable and waiting, so that low slots are given out first, in runs.
    fn relist(&mut self) {
        let mut free: Vec<SlotId> = self.writable.drain(..).chain(self.waiting.drain(..)).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        for slot in free {
            let list = if self.slots[slot.at()].writable(self.capturing, self.broken) {
                &mut self.writable
            } else {
                &mut self.waiting
            };
            list.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::slots::{MapWork, Plan, SlotParams, Slots};
    use pagetier_page::{PageId, SpaceId, Stamp};
    use pagetier_policy::{Access, Cause, Costs, Home, Millis, SlotPolicyParams, SsdPolicy};

    const NOW: Millis = Millis(0);

    #[test]
    fn the_policy_learns_which_slots_a_write_back_made_clean() {
        let params = SlotParams { slots: 8, zone: 8, reserve: 0, clean_ahead: 2 };
        let policy = "cac:dirty".parse::<SsdPolicy>().expect("a policy").build(&SlotPolicyParams::new(
            Costs::PAPER,
            8,
            4,
        ));
        let mut slots = Slots::new(params, policy, &[], 0);
        let checkpoint = |slots: &mut Slots| {
            slots.begin_checkpoint(NOW);
            slots.end_checkpoint(true);
        };
        checkpoint(&mut slots);
        for no in 0..6 {
            let page = PageId::new(SpaceId(1), no);
            let plan = slots.plan_dirty(page, NOW, &mut || Stamp::from_bits(u64::from(no) + 1));
            let Plan::Ssd(ticket) = plan else { panic!("{plan:?}") };
            slots.end_write(ticket, true, 1, NOW);
            slots.policy().wrote(page, Home::Ssd, NOW);
        }
        checkpoint(&mut slots);
        let batch = slots.begin_write_back(32, NOW);
        assert_eq!(batch.len(), 2);
        let copy_ms = Costs::PAPER.ssd_read_ms + Costs::PAPER.hdd_write_ms;
        for (one, ok) in batch.into_iter().zip([false, true]) {
            let page = one.page;
            let before = slots.policy().benefit(page).expect("tracked");
            slots.end_write_back(one, ok);
            let saved = before - slots.policy().benefit(page).expect("tracked");
            assert!((saved - if ok { copy_ms } else { 0.0 }).abs() < 1e-9, "{saved}");
        }
        slots.validate().expect("sound slots");
    }

    #[test]
    fn a_spent_zone_is_noticed_at_the_first_page_rejected_for_it() {
        for policy in ["lru2", "cac"] {
            let params = SlotParams { slots: 32, zone: 8, reserve: 4, clean_ahead: 2 };
            let policy = policy.parse::<SsdPolicy>().expect("a policy").build(&SlotPolicyParams::new(
                Costs::PAPER,
                32,
                64,
            ));
            let mut slots = Slots::new(params, policy, &[], 0);
            let (mut stamp, mut rejected, mut admitted) = (0, 0, 0);
            for no in 0..200 {
                let page = PageId::new(SpaceId(1), no);
                // Later pages are worth more.
                for _ in 0..=no {
                    slots.note_read(page, Some(Home::Hdd), Access::Random, NOW);
                }
                let ticket = slots.plan_copy(page, Cause::Evicted, NOW, &mut || {
                    stamp += 1;
                    Stamp::from_bits(stamp)
                });
                match ticket {
                    Some(ticket) => {
                        slots.end_write(ticket, true, 1, NOW);
                        slots.flushed(1);
                        admitted += 1;
                    }
                    None => {
                        rejected += 1;
                        assert!(slots.wants_look(), "page {no}: no look is due");
                        assert_eq!(slots.map_work(false, NOW), Some(MapWork::Checkpoint), "page {no}");
                        slots.begin_checkpoint(NOW);
                        slots.end_checkpoint(true);
                    }
                }
            }
            assert!(admitted > 150 && rejected > 5, "{admitted} admitted, {rejected} rejected");
            slots.validate().expect("sound slots");
        }
    }
}
