//! The slots' map checkpoint: what it captures, and what its end changes.
//!
//! The zone is captured at the begin, the entries later, a few slots at a time: the state must not be locked
//! for as long as it takes to look at every slot (I44).

use super::Slots;
use super::slot::{Phase, Slot, Standing};
use super::types::{Capture, SlotParams};
use crate::format::map::{Entry, MapPiece};
use pagetier_page::Lsn;
use pagetier_policy::{Millis, SlotId};
use std::ops::Range;

/// Counts discards of versions that the HDD lacks. A crash may bring such a version back until a checkpoint
/// that began after the discard is durable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Discards {
    all: u64,
    begun: u64,
    final_up_to: u64,
}

impl Discards {
    pub(super) fn note(&mut self) {
        self.all += 1;
    }
}

/// The checkpoints after which the slots kept for bursts are all given to pages, if no rewrite had to wait.
const BURST_LASTS: u32 = 16;

impl Slots {
    /// The number of discards so far of versions that the HDD lacks.
    pub fn discards(&self) -> u64 {
        self.discards.all
    }

    /// Whether no crash brings back a version that one of the first `discards` discards gave up.
    pub fn discards_are_final(&self, discards: u64) -> bool {
        self.discards.final_up_to >= discards
    }

    /// Names the next zone. Until [`Slots::end_checkpoint`], only slots in both zones are given out, so the
    /// entries may be captured ([`Slots::capture`]) at any time before the checkpoint's flush.
    pub fn begin_checkpoint(&mut self, now: Millis) -> Capture {
        debug_assert!(!self.capturing);
        self.name_next_zone(now);
        self.capturing = true;
        self.changes = 0;
        self.discards.begun = self.discards.all;
        self.rejected_before = self.counts.rejected;
        self.starved = false;
        self.oldest_captured = None;
        self.zones_changed();
        // A copy: a discard takes its slot out of the zone, but recovery has to read what was written there
        // since the begin.
        Capture { generation: self.generation + 1, zone: self.slots.next_zone().words().to_vec() }
    }

    /// Captures the entries of `slots` for the checkpoint being written.
    pub fn capture(&mut self, slots: Range<u32>) -> MapPiece {
        debug_assert!(self.capturing);
        let mut piece = MapPiece::empty(slots.clone());
        for slot in slots {
            let s = self.slots.get(SlotId(slot));
            if let Some(version) = s.version().filter(Slot::is_dirty) {
                self.note_captured(version.lsn);
            }
            if let Some(version) = named(&s) {
                piece.set_entry(slot, entry(version), may_be_gone(&s));
            }
        }
        piece
    }

    /// Notes the log position of a dirty copy that the checkpoint being written names, or that is written
    /// meanwhile. The latter counts because the copy that it replaces may be gone when its slot is captured,
    /// and the slot of its successor may have been captured before.
    pub(super) fn note_captured(&mut self, lsn: Lsn) {
        self.oldest_captured = Some(self.oldest_captured.map_or(lsn, |oldest| oldest.min(lsn)));
    }

    /// The oldest log position that redo would need if every copy were lost that the checkpoint being written
    /// names, or that was written since its begin. Once all slots are captured.
    pub(crate) fn oldest_captured(&self) -> Option<Lsn> {
        self.oldest_captured
    }

    /// Ends a checkpoint, which is durable (`ok`) or failed. After a failure a crash may find either of the
    /// two checkpoints, so only slots in both zones stay writable until one succeeds.
    pub fn end_checkpoint(&mut self, ok: bool) {
        debug_assert!(self.capturing);
        self.slots.end_next_zone(ok);
        self.capturing = false;
        self.zone_is_in_force(ok);
        // After a failure the next checkpoint goes to the same area: the other holds the one known to be
        // durable.
        if ok {
            self.in_force = self.generation + 1;
            self.discards.final_up_to = self.discards.begun;
        }
        self.generation += if ok { 1 } else { 2 };
        self.counts.checkpoints += u64::from(ok);
        // Without bursts, the slots for them get pages again, within the next checkpoints.
        let SlotParams { reserve, burst, .. } = self.params;
        let step = burst.saturating_sub(reserve).div_ceil(BURST_LASTS);
        self.keep_empty = self.keep_empty.saturating_sub(step).max(reserve);
        self.zones_changed();
    }

    /// Whether a new zone could differ from the present one.
    pub(super) fn is_stale(&self) -> bool {
        self.changes > 0 || self.counts.rejected - self.rejected_before >= u64::from(self.params.zone)
    }
}

/// Whether the slot may later hold something else without its page being lost: the image is on its way, or it
/// is a copy of a home write. An HDD flush makes such a copy clean, and the slot may then be given to another
/// page. No journal record shows this to recovery, since the home write has an older stamp than its copy.
fn may_be_gone(slot: &Slot) -> bool {
    let version = named(slot).filter(|slot| slot.is_dirty());
    version.is_some_and(|slot| slot.is_writing() || slot.standing == Standing::AwaitsFlush)
}

/// The slot, if a checkpoint names its version: the present one or the one on its way.
fn named(slot: &Slot) -> Option<&Slot> {
    matches!(slot.phase, Phase::Live { .. } | Phase::Writing { abandoned: false, .. }).then_some(slot)
}

fn entry(version: &Slot) -> Entry {
    Entry { page: version.page, stamp: version.stamp, clean: !version.is_dirty() }
}

#[cfg(test)]
mod tests {
    use crate::protocol::flushes::SsdFlush;
    use crate::protocol::slots::{MapWork, Plan, SlotParams, Slots};
    use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
    use pagetier_policy::{Access, Cause, Costs, Location, Millis, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    const NOW: Millis = Millis(0);

    impl Slots {
        /// The zone of the checkpoint being written, as it is by now.
        pub(crate) fn next_zone_words(&self) -> Vec<u64> {
            self.slots.next_zone().words().to_vec()
        }

        /// Begins a checkpoint and captures all of it.
        pub(crate) fn begin_and_capture(&mut self, now: Millis) -> crate::format::map::MapBody {
            let capture = self.begin_checkpoint(now);
            let piece = self.capture(0..self.params.slots);
            crate::format::map::MapBody::of(self.params.slots, &capture.zone, &[piece])
        }
    }

    #[test]
    fn a_discarded_only_copy_may_come_back_until_a_checkpoint_begun_later_is_durable() {
        let policy = SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT).build(&SlotPolicyParams::new(
            Costs::PAPER,
            12,
            8,
        ));
        let mut slots = Slots::new(SlotParams::new(12, 50.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        let discard = |slots: &mut Slots, no| {
            let page = PageId::new(SpaceId(1), no);
            let plan = slots.plan_dirty(page, NOW, &mut || Stamp::from_bits(u64::from(no)));
            let Plan::Ssd(ticket) = plan else { panic!("there is room: {plan:?}") };
            slots.end_write(ticket, true, SsdFlush(1), NOW);
            slots.discard(page);
            slots.discards()
        };
        let first = discard(&mut slots, 1);
        assert!(!slots.discards_are_final(first), "the checkpoint in force is older");
        slots.begin_checkpoint(NOW);
        let second = discard(&mut slots, 2);
        assert!(!slots.discards_are_final(first), "the checkpoint may fail");
        slots.end_checkpoint(false);
        assert!(!slots.discards_are_final(first), "it has failed");
        slots.begin_checkpoint(NOW);
        let third = discard(&mut slots, 3);
        slots.end_checkpoint(true);
        let are_final = [first, second, third].map(|discards| slots.discards_are_final(discards));
        assert_eq!(are_final, [true, true, false], "the last came after the begin");
    }

    #[test]
    fn a_copy_that_awaits_its_homes_flush_may_be_gone_when_a_recovery_looks_for_it() {
        let policy = SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT).build(&SlotPolicyParams::new(
            Costs::PAPER,
            12,
            8,
        ));
        let mut slots = Slots::new(SlotParams::new(12, 50.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        let page = PageId::new(SpaceId(1), 1);
        let ticket = slots.plan_copy(page, Cause::Evicted, NOW, &mut || Stamp::from_bits(1));
        let mut ticket = ticket.expect("there is room");
        let slot = ticket.slot.0;
        slots.wait_for_home(&mut ticket, Lsn(0));
        slots.end_write(ticket, true, SsdFlush(1), NOW);
        let captured = |slots: &mut Slots| {
            let body = slots.begin_and_capture(NOW);
            slots.end_checkpoint(true);
            (body.entry(slot).expect("it is named").clean, body.in_flight(slot))
        };
        assert_eq!(captured(&mut slots), (false, true), "the flush may make it clean, and its slot free");
        slots.homes_flushed(&|_| false);
        assert_eq!(captured(&mut slots), (true, false));
    }

    /// Its slot may have been captured already, and that of the copy that it replaces is captured later.
    #[test]
    fn a_checkpoint_counts_the_change_of_a_copy_that_begins_to_await_its_homes_flush() {
        let policy = SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT).build(&SlotPolicyParams::new(
            Costs::PAPER,
            12,
            8,
        ));
        let mut slots = Slots::new(SlotParams::new(12, 50.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        slots.begin_checkpoint(NOW);
        let page = PageId::new(SpaceId(1), 1);
        let ticket = slots.plan_copy(page, Cause::Evicted, NOW, &mut || Stamp::from_bits(1));
        slots.wait_for_home(&mut ticket.expect("there is room"), Lsn(5));
        assert_eq!(slots.oldest_captured(), Some(Lsn(5)));
    }

    #[test]
    fn a_spent_zone_is_noticed_at_the_first_page_rejected_for_it() {
        pagetier_rivals::register();
        for policy in ["lru2", "cac"] {
            let params = SlotParams { slots: 32, zone: 8, reserve: 4, burst: 4, clean_ahead: 2 };
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
                    slots.note_read(page, Some(Location::Hdd), Access::Random, NOW);
                }
                let ticket = slots.plan_copy(page, Cause::Evicted, NOW, &mut || {
                    stamp += 1;
                    Stamp::from_bits(stamp)
                });
                match ticket {
                    Some(ticket) => {
                        slots.end_write(ticket, true, SsdFlush(1), NOW);
                        slots.flushed(SsdFlush(1));
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
