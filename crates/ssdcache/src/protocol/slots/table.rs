//! The slots in memory: 18 bytes each, with what few slots have at a time beside them. The 8 of the page are
//! shared with the policy.
//!
//! A [`Slot`] is what the protocol works with, and takes 40 bytes. Three of its fields are rarely in use. The
//! flush that a version waits for is known of versions written since the last flush, readers in large numbers
//! of hardly any slot, and log positions only in a store with a log. So [`SlotTable`] takes a slot apart when
//! it stores it and puts it together when it is asked for it: nothing is rounded, and nothing is lost.
//!
//! Beside them stand four bits of each slot: the two zones that it may be in, and what a checkpoint looks for
//! among all slots.

mod bits;

use super::slot::{Phase, Slot, Standing};
use crate::protocol::flushes::SsdFlush;
use bits::{Bits, slots_of};
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{SlotId, SlotPages};
use rustc_hash::FxHashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The bits of [`Packed::flags`]: the phase in the lowest four; the readers in the highest six.
const PHASE: u16 = 0xF;
const PERHAPS_HOME: u16 = 1 << 6;
const MOVING: u16 = 1 << 7;
/// The slot waits for a flush that [`SlotTable::flushes`] names.
const AWAITS: u16 = 1 << 8;
/// The log position is that of a page that was created and not changed: [`Lsn::BLANK`].
const BLANK: u16 = 1 << 9;
const READERS_SHIFT: u32 = 10;
/// So many readers or more: [`SlotTable::crowded`] has their number.
const CROWDED: u16 = u16::MAX >> READERS_SHIFT;

/// The standing is in the two bits that a stamp does not use.
const STANDING_SHIFT: u32 = Stamp::MASK.trailing_ones();

/// A slot as it is stored.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(2))]
struct Packed {
    /// The stamp's bits, and above them the standing.
    version: u64,
    flags: u16,
}

/// `Builder` budgets the memory of a slot as `SLOT_BYTES`.
const _: () = assert!(size_of::<Packed>() == 10);

impl Packed {
    const FREE: Self = Self { version: 0, flags: 0 };
}

/// The slots.
#[derive(Debug)]
pub(super) struct SlotTable {
    packed: Vec<Packed>,
    pages: Arc<SlotPages>,
    /// The flushes that slots wait for.
    flushes: FxHashMap<SlotId, SsdFlush>,
    /// The readers of slots that have many.
    crowded: FxHashMap<SlotId, u16>,
    /// By slot, its log position; empty while every one is 0 or blank, as in a store without a log.
    lsns: Vec<u64>,
    /// The zone of the durable checkpoint.
    zone: Bits,
    /// The zone of the checkpoint being written.
    next: Bits,
    /// The slots that hold nothing of value.
    free: Bits,
    /// The slots that are being written or retired: their contents are about to count for less or more than
    /// they do now.
    unsettled: Bits,
}

impl SlotTable {
    /// `slots` free slots.
    pub(super) fn new(slots: u32) -> Self {
        Self {
            packed: vec![Packed::FREE; slots as usize],
            pages: Arc::new(SlotPages::new(slots as usize)),
            flushes: FxHashMap::default(),
            crowded: FxHashMap::default(),
            lsns: Vec::new(),
            zone: Bits::new(slots, false),
            next: Bits::new(slots, false),
            free: Bits::new(slots, true),
            unsettled: Bits::new(slots, false),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The page in `slot`, which counts as [`Slot::version`] says.
    pub(super) fn page(&self, slot: SlotId) -> PageId {
        self.pages.get(slot).unwrap_or_default()
    }

    /// By slot, its page.
    pub(super) fn pages(&self) -> &Arc<SlotPages> {
        &self.pages
    }

    /// The slot `slot`, which exists.
    pub(super) fn get(&self, slot: SlotId) -> Slot {
        self.unpacked(slot, self.packed[slot.at()])
    }

    /// The slot `slot`, if there is one.
    pub(super) fn find(&self, slot: SlotId) -> Option<Slot> {
        self.packed.get(slot.at()).map(|packed| self.unpacked(slot, *packed))
    }

    /// Whether `slot`, if there is one, holds its page's current copy. A policy asks this of every slot.
    pub(super) fn is_live(&self, slot: SlotId) -> bool {
        let phase = self.packed.get(slot.at()).map(|packed| phase_of(packed.flags));
        matches!(phase, Some(Phase::Live { .. }))
    }

    /// Whether the write to `slot`, which exists, failed. A new zone asks this of each of its slots.
    pub(super) fn is_bad(&self, slot: SlotId) -> bool {
        phase_of(self.packed[slot.at()].flags) == Phase::Bad
    }

    /// The slot `slot`, which exists, to be changed.
    pub(super) fn edit(&mut self, slot: SlotId) -> Edited<'_> {
        let value = self.get(slot);
        Edited { table: self, slot, value }
    }

    /// The slots with their numbers, in order.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (SlotId, Slot)> + '_ {
        self.ids().map(|slot| (slot, self.get(slot)))
    }

    /// The slots, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.ids().map(|slot| self.get(slot))
    }

    // ---- zones

    /// Whether `slot` is in the zone of the durable checkpoint.
    #[cfg(test)]
    pub(super) fn in_zone(&self, slot: SlotId) -> bool {
        self.zone.has(slot)
    }

    /// The zone of the checkpoint being written.
    pub(super) fn next_zone(&self) -> &Bits {
        &self.next
    }

    /// Whether recovery would read `slot` under every checkpoint that a crash could find (I2).
    pub(super) fn writable(&self, slot: SlotId, capturing: bool) -> bool {
        self.zone.has(slot) && (!capturing || self.next.has(slot))
    }

    /// The slots of word `at` that may be written under every checkpoint.
    fn writable_word(&self, at: usize, capturing: bool) -> u64 {
        let next = if capturing { self.next.words()[at] } else { u64::MAX };
        self.zone.words()[at] & next
    }

    /// The free slots that may be written under every checkpoint, in order.
    pub(super) fn free_writable(&self, capturing: bool) -> impl Iterator<Item = SlotId> + '_ {
        let free = self.free.words().iter().enumerate();
        slots_of(free.map(move |(at, free)| free & self.writable_word(at, capturing)))
    }

    /// The free slots, those first that have many free ones beside them, and otherwise in order.
    pub(super) fn free_in_runs(&self) -> impl Iterator<Item = SlotId> + '_ {
        // Of 64 neighbours; few steps, since each takes a look at every word.
        [64..65, 48..64, 32..48, 0..32].into_iter().flat_map(|free| {
            let words = self.free.words().iter();
            slots_of(words.map(move |word| if free.contains(&word.count_ones()) { *word } else { 0 }))
        })
    }

    /// The first of [`SlotTable::free_writable`] from slot `from` on; those before it follow the last one.
    pub(super) fn next_free_writable(&self, from: SlotId, capturing: bool) -> Option<SlotId> {
        let (words, first) = (self.free.words(), from.at() / 64);
        let ready = |at: usize| (at, words[at] & self.writable_word(at, capturing));
        let behind: u64 = (1 << (from.0 % 64)) - 1;
        let from_it = (first..words.len()).map(ready);
        let from_it = from_it.map(|(at, word)| (at, if at == first { word & !behind } else { word }));
        let mut found = from_it.chain((0..words.len().min(first + 1)).map(ready));
        let (at, word) = found.find(|(_, word)| *word != 0)?;
        Some(SlotId(at as u32 * 64 + word.trailing_zeros()))
    }

    pub(super) fn count_free(&self) -> usize {
        self.free.count()
    }

    /// The slots that are being written or retired, in order.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = SlotId> + '_ {
        slots_of(self.unsettled.words().iter().copied())
    }

    /// Begins the zone of the checkpoint being written with `first`; the others follow.
    pub(super) fn begin_next_zone(&mut self, first: &[SlotId]) {
        self.next.set_words(|_| 0);
        first.iter().for_each(|slot| self.next.set(*slot, true));
    }

    /// Puts `slot` into the zone of the checkpoint being written.
    pub(super) fn put_in_next_zone(&mut self, slot: SlotId) {
        self.next.set(slot, true);
    }

    /// Ends the checkpoint being written. Its zone is in force; if it failed (`ok` is false), as far as the
    /// one before is, too.
    pub(super) fn end_next_zone(&mut self, ok: bool) {
        if ok {
            std::mem::swap(&mut self.zone, &mut self.next);
        } else {
            self.zone.keep_those_in(&self.next);
        }
        self.next.set_words(|_| 0);
    }

    /// Takes `slot` out of both zones.
    pub(super) fn leave_zones(&mut self, slot: SlotId) {
        self.zone.set(slot, false);
        self.next.set(slot, false);
    }

    /// The numbers of the slots, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.packed.len() as u32).map(SlotId)
    }

    /// Forgets that copies waited for flushes up to `over`, which have completed. Obsolete versions wait
    /// until they are freed, whichever flush completes.
    pub(super) fn covered(&mut self, over: SsdFlush) {
        let packed = &mut self.packed;
        self.flushes.retain(|slot, until| {
            let flags = packed[slot.at()].flags;
            let waits = *until > over || phase_of(flags) == Phase::Retired;
            if !waits {
                packed[slot.at()].flags = flags & !AWAITS;
            }
            waits
        });
        // A burst between two flushes must not keep its space for ever.
        if self.flushes.capacity() / 8 > self.flushes.len().max(64) {
            self.flushes.shrink_to_fit();
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let waiting = self.flushes.capacity() * (size_of::<(SlotId, SsdFlush)>() + 1);
        let packed = self.packed.capacity() * size_of::<Packed>() + self.pages.memory_bytes();
        let bits = [&self.zone, &self.next, &self.free, &self.unsettled].map(Bits::memory_bytes);
        packed + self.lsns.capacity() * size_of::<u64>() + waiting + bits.iter().sum::<usize>()
    }

    fn unpacked(&self, slot: SlotId, packed: Packed) -> Slot {
        let Packed { version, flags } = packed;
        let awaits = flags & AWAITS != 0;
        let readers = flags >> READERS_SHIFT;
        Slot {
            page: self.page(slot),
            stamp: Stamp::from_bits(version),
            lsn: if flags & BLANK != 0 {
                Lsn::BLANK
            } else {
                Lsn(self.lsns.get(slot.at()).copied().unwrap_or(0))
            },
            durable_at: if awaits { named(&self.flushes, slot) } else { SsdFlush::NONE },
            readers: if readers == CROWDED { named(&self.crowded, slot) } else { readers },
            phase: phase_of(flags),
            standing: match version >> STANDING_SHIFT {
                0 => Standing::Clean,
                1 => Standing::Only,
                2 => Standing::AwaitsFlush,
                _ => Standing::Stuck,
            },
            perhaps_home: flags & PERHAPS_HOME != 0,
            moving: flags & MOVING != 0,
        }
    }

    fn store(&mut self, slot: SlotId, value: &Slot) {
        let before = self.packed[slot.at()].flags;
        if phase_of(before) != value.phase {
            self.free.set(slot, value.phase == Phase::Free);
            self.unsettled.set(slot, value.is_writing() || value.is_retired());
        }
        let awaits = value.durable_at != SsdFlush::NONE;
        if awaits {
            self.flushes.insert(slot, value.durable_at);
        } else if before & AWAITS != 0 {
            self.flushes.remove(&slot);
        }
        let crowded = value.readers >= CROWDED;
        if crowded {
            self.crowded.insert(slot, value.readers);
        } else if before >> READERS_SHIFT == CROWDED {
            self.crowded.remove(&slot);
        }
        let blank = value.lsn == Lsn::BLANK;
        if value.lsn != Lsn(0) && !blank && self.lsns.is_empty() {
            // Numbers, which the allocator provides zeroed and untouched: the state is locked meanwhile.
            self.lsns = vec![0; self.packed.len()];
        }
        if let Some(lsn) = self.lsns.get_mut(slot.at()) {
            *lsn = value.lsn.0;
        }
        let flag = |is: bool, flag: u16| if is { flag } else { 0 };
        let flags = flag(value.perhaps_home, PERHAPS_HOME)
            | flag(value.moving, MOVING)
            | flag(awaits, AWAITS)
            | flag(blank, BLANK);
        self.pages.set(slot, value.page);
        self.packed[slot.at()] = Packed {
            version: value.stamp.bits() | (value.standing as u64) << STANDING_SHIFT,
            flags: phase_bits(value.phase) | flags | value.readers.min(CROWDED) << READERS_SHIFT,
        };
    }
}

/// A slot that is being changed: the table has the change when this is dropped.
#[derive(Debug)]
pub(super) struct Edited<'a> {
    table: &'a mut SlotTable,
    slot: SlotId,
    value: Slot,
}

impl Deref for Edited<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.value
    }
}

impl DerefMut for Edited<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        &mut self.value
    }
}

impl Drop for Edited<'_> {
    fn drop(&mut self) {
        self.table.store(self.slot, &self.value);
    }
}

/// What a map has for `slot`, which has an entry in it.
fn named<T: Copy + Default>(map: &FxHashMap<SlotId, T>, slot: SlotId) -> T {
    debug_assert!(map.contains_key(&slot), "slot {} has no entry", slot.0);
    map.get(&slot).copied().unwrap_or_default()
}

fn phase_bits(phase: Phase) -> u16 {
    match phase {
        Phase::Free => 0,
        Phase::Bad => 1,
        Phase::Retired => 2,
        Phase::Live { being_replaced } => 4 | u16::from(being_replaced),
        Phase::Writing { abandoned, renews } => 8 | u16::from(abandoned) | u16::from(renews) << 1,
    }
}

fn phase_of(flags: u16) -> Phase {
    match flags & PHASE {
        0 => Phase::Free,
        1 => Phase::Bad,
        2 | 3 => Phase::Retired,
        bits @ 4..8 => Phase::Live { being_replaced: bits & 1 != 0 },
        bits => Phase::Writing { abandoned: bits & 1 != 0, renews: bits & 2 != 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;
    use proptest::prelude::*;

    fn any_slot() -> impl Strategy<Value = Slot> {
        let phases = prop::sample::select(vec![
            Phase::Free,
            Phase::Bad,
            Phase::Retired,
            Phase::Live { being_replaced: false },
            Phase::Live { being_replaced: true },
            Phase::Writing { abandoned: false, renews: false },
            Phase::Writing { abandoned: true, renews: false },
            Phase::Writing { abandoned: false, renews: true },
            Phase::Writing { abandoned: true, renews: true },
        ]);
        let standings = prop::sample::select(vec![
            Standing::Clean,
            Standing::Only,
            Standing::AwaitsFlush,
            Standing::Stuck,
        ]);
        let readers = prop_oneof![0..4_u16, CROWDED - 2..CROWDED + 2, any::<u16>()];
        let lsns = [Lsn(0), Lsn(0), Lsn::BLANK, Lsn(7), Lsn(u64::MAX)];
        let numbers = (any::<[u32; 2]>(), any::<u64>(), 0..lsns.len(), 0..4_u64, readers);
        (numbers, phases, standings, any::<[bool; 2]>()).prop_map(
            move |(([space, no], stamp, lsn, until, readers), phase, standing, flags)| Slot {
                page: PageId::new(SpaceId(space), no),
                stamp: Stamp::from_bits(stamp),
                lsn: lsns[lsn],
                durable_at: SsdFlush(until),
                readers,
                phase,
                standing,
                perhaps_home: flags[0],
                moving: flags[1],
            },
        )
    }

    proptest! {
        #[test]
        fn the_next_free_slot_is_the_first_writable_one_from_there_on(
            slots in prop::collection::vec(any::<[bool; 3]>(), 1..200),
            from in 0..260_u32,
            capturing: bool,
        ) {
            let mut table = SlotTable::new(slots.len() as u32);
            for (slot, [free, zone, next]) in table.ids().zip(&slots) {
                table.edit(slot).phase = if *free { Phase::Free } else { Phase::Bad };
                table.zone.set(slot, *zone);
                table.next.set(slot, *next);
            }
            let ready = |slot: &SlotId| {
                let [free, zone, next] = slots[slot.at()];
                free && zone && (next || !capturing)
            };
            let ready: Vec<SlotId> = table.ids().filter(ready).collect();
            prop_assert!(table.free_writable(capturing).eq(ready.iter().copied()));
            let next = ready.iter().find(|slot| slot.0 >= from).or(ready.first());
            prop_assert_eq!(table.next_free_writable(SlotId(from), capturing), next.copied());
        }

        #[test]
        fn what_is_stored_is_what_was_written(
            writes in prop::collection::vec((0..4_u32, any_slot(), prop::option::of(0..4_u64)), 1..60),
        ) {
            let mut table = SlotTable::new(4);
            let mut model = [Slot::FREE; 4];
            for (at, value, over) in writes {
                *table.edit(SlotId(at)) = value;
                model[at as usize] = value;
                if let Some(over) = over {
                    table.covered(SsdFlush(over));
                    let done = |s: &&mut Slot| s.durable_at.0 <= over && s.phase != Phase::Retired;
                    model.iter_mut().filter(done).for_each(|s| s.durable_at = SsdFlush::NONE);
                }
                let stored: Vec<Slot> = table.iter().collect();
                prop_assert_eq!(&stored[..], &model[..]);
                let kept = |f: &dyn Fn(&Slot) -> bool| model.iter().filter(|s| f(s)).count();
                prop_assert_eq!(table.flushes.len(), kept(&|s| s.durable_at != SsdFlush::NONE));
                prop_assert_eq!(table.crowded.len(), kept(&|s| s.readers >= CROWDED));
                prop_assert_eq!(table.count_free(), kept(&Slot::is_free));
                let unsettled = |s: &Slot| s.is_writing() || s.is_retired();
                let all = table.ids().filter(|slot| unsettled(&model[slot.at()]));
                prop_assert!(table.unsettled().eq(all));
            }
        }
    }
}
