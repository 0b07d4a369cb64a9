//! The records of an SSD policy, found by page and by slot.
//!
//! A page has a record while it is buffered, on the SSD, or in the outqueue (2013 paper, section 5.1). The
//! outqueue is a list through the records of pages that are neither buffered nor on the SSD, in order of
//! insertion. The policy drops the oldest ones when it exceeds its capacity ([`Tracked::surplus`]).

use crate::collections::page_index::PageIndex;
use crate::{PageId, SlotId};

/// No record, no slot.
const NIL: u32 = u32::MAX;

const BUFFERED: u8 = 1;
const ON_SSD: u8 = 1 << 1;
const QUEUED: u8 = 1 << 2;

/// The number of bits of a place.
pub(crate) const PLACE_BITS: u32 = 3;

/// What a policy keeps of a page. It also stores the page's place, in unused bits of its own, because a field
/// for it would make each record larger.
pub(crate) trait Kept: Copy + Default {
    /// The place stored last; 0 by default.
    fn place(&self) -> u8;

    /// Stores the page's place, [`PLACE_BITS`] bits.
    fn set_place(&mut self, place: u8);
}

/// A page's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<T> {
    pub(crate) page: PageId,
    /// The slot of a page on the SSD; the next older record of a queued page; the next free one of a free
    /// record.
    slot_or_older: u32,
    /// The next newer record of a queued page.
    newer: u32,
    pub(crate) kept: T,
}

impl<T: Kept> Record<T> {
    /// The page's slot, if it is on the SSD.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        self.is_in(ON_SSD).then_some(SlotId(self.slot_or_older))
    }

    /// Whether the page is tracked; a free or newly created record is not.
    fn is_live(&self) -> bool {
        self.kept.place() != 0
    }

    fn is_in(&self, places: u8) -> bool {
        self.kept.place() & places != 0
    }

    fn set(&mut self, place: u8, there: bool) {
        let others = self.kept.place() & !place;
        self.kept.set_place(if there { others | place } else { others });
    }
}

/// A record's place; valid as long as the record lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordId(pub(crate) u32);

/// The records.
#[derive(Debug)]
pub(crate) struct Tracked<T> {
    records: Vec<Record<T>>,
    free: u32,
    index: PageIndex,
    /// The record of the page in each slot.
    by_slot: Vec<u32>,
    /// Pages on the SSD.
    on_ssd: usize,
    oldest: u32,
    newest: u32,
    queued: usize,
    queued_max: usize,
    /// The record found last; it may have been removed since.
    found_last: u32,
}

impl<T: Kept> Tracked<T> {
    /// For this many slots and frames, and an outqueue of `queued_max` pages. Reserves room for `spare` more
    /// records.
    pub(crate) fn new(slots: usize, frames: usize, queued_max: usize, spare: usize) -> Self {
        let most = slots + frames + queued_max + spare;
        Self {
            // Reserve all memory at once: the bound is known, growing would copy every record, and the system
            // provides the memory only as it is used.
            records: Vec::with_capacity(most + 1),
            free: NIL,
            index: PageIndex::with_capacity(most),
            by_slot: vec![NIL; slots],
            on_ssd: 0,
            oldest: NIL,
            newest: NIL,
            queued: 0,
            queued_max,
            found_last: NIL,
        }
    }

    /// Finds the page's record. A page is looked up several times in a row while it is cleaned or leaves, so
    /// the record found last is tried first.
    pub(crate) fn find(&mut self, page: PageId) -> Option<RecordId> {
        let last = self.records.get(self.found_last as usize);
        // `is_live`: a free record keeps the number of the page that it was of.
        if !last.is_some_and(|record| record.page == page && record.is_live()) {
            self.found_last = self.index.find(page, |at| self.records[at as usize].page)?;
        }
        Some(RecordId(self.found_last))
    }

    /// The page's record, for reports.
    pub(crate) fn get_by_page(&self, page: PageId) -> Option<&Record<T>> {
        let found = self.index.find(page, |at| self.records[at as usize].page)?;
        Some(&self.records[found as usize])
    }

    /// Creates the record of a page that has none. The page is in no place yet: the caller calls
    /// [`Tracked::set_buffered`] or [`Tracked::set_slot`] at once.
    pub(crate) fn track(&mut self, page: PageId, kept: T) -> RecordId {
        let record = Record { page, slot_or_older: NIL, newer: NIL, kept };
        let at = if self.free == NIL {
            self.records.push(record);
            (self.records.len() - 1) as u32
        } else {
            // The records freed last are reused first: they are likely still in the processor's cache.
            let at = self.free;
            self.free = self.records[at as usize].slot_or_older;
            self.records[at as usize] = record;
            at
        };
        let records = &self.records;
        self.index.insert(page, at, |at| records[at as usize].page);
        self.found_last = at;
        RecordId(at)
    }

    pub(crate) fn get(&self, id: RecordId) -> &Record<T> {
        &self.records[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: RecordId) -> &mut Record<T> {
        &mut self.records[id.0 as usize]
    }

    /// The record of the page in `slot`.
    pub(crate) fn in_slot(&self, slot: SlotId) -> Option<RecordId> {
        self.by_slot.get(slot.at()).copied().filter(|&at| at != NIL).map(RecordId)
    }

    /// The slots that hold a page, with their records, in the order of the records in memory: in the order of
    /// slots, each record would be a cache miss.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, &Record<T>)> {
        self.records.iter().filter_map(|record| Some((record.slot()?, record)))
    }

    /// Records whether the page is in the pool.
    pub(crate) fn set_buffered(&mut self, id: RecordId, buffered: bool) {
        self.get_mut(id).set(BUFFERED, buffered);
        self.settle(id);
    }

    /// Records that the page is in `slot`, or not on the SSD.
    pub(crate) fn set_slot(&mut self, id: RecordId, slot: Option<SlotId>) {
        // First, since slot and queue share a field of the record.
        self.unqueue(id);
        self.vacate(id);
        self.on_ssd += usize::from(slot.is_some());
        let record = self.get_mut(id);
        record.set(ON_SSD, slot.is_some());
        record.slot_or_older = slot.map_or(NIL, |slot| slot.0);
        if let Some(slot) = slot {
            if slot.at() >= self.by_slot.len() {
                // The SSD may have grown since the policy was built.
                self.by_slot.resize(slot.at() + 1, NIL);
            }
            self.by_slot[slot.at()] = id.0;
        }
        self.settle(id);
    }

    /// If the outqueue exceeds its capacity: the least recently queued record, and the excess.
    pub(crate) fn surplus(&self) -> Option<(RecordId, usize)> {
        (self.queued > self.queued_max).then(|| (RecordId(self.oldest), self.queued - self.queued_max))
    }

    /// Moves a queued record to the newer end of the outqueue.
    pub(crate) fn requeue(&mut self, id: RecordId) {
        self.unqueue(id);
        self.settle(id);
    }

    /// Removes the record.
    pub(crate) fn forget(&mut self, id: RecordId) -> Record<T> {
        self.unqueue(id);
        self.vacate(id);
        let record = *self.get(id);
        let records = &self.records;
        self.index.remove(record.page, |at| records[at as usize].page);
        let freed = &mut self.records[id.0 as usize];
        // No place: the record is not live any more, and `find` passes it over.
        freed.kept = T::default();
        freed.slot_or_older = self.free;
        self.free = id.0;
        record
    }

    /// Empties the page's slot, if it has one. The record is not changed.
    fn vacate(&mut self, id: RecordId) {
        if let Some(slot) = self.get(id).slot() {
            self.by_slot[slot.at()] = NIL;
            self.on_ssd -= 1;
        }
    }

    /// Puts the record into the outqueue if its page is neither buffered nor on the SSD, and takes it out
    /// otherwise.
    fn settle(&mut self, id: RecordId) {
        if self.get(id).is_in(BUFFERED | ON_SSD) {
            return self.unqueue(id);
        }
        if self.get(id).is_in(QUEUED) {
            // It keeps its place: only a new stay in the queue puts a page at its end.
            return;
        }
        let newest = self.newest;
        let record = self.get_mut(id);
        record.set(QUEUED, true);
        record.slot_or_older = newest;
        record.newer = NIL;
        match newest {
            NIL => self.oldest = id.0,
            at => self.records[at as usize].newer = id.0,
        }
        self.newest = id.0;
        self.queued += 1;
    }

    fn unqueue(&mut self, id: RecordId) {
        if !self.get(id).is_in(QUEUED) {
            return;
        }
        let Record { slot_or_older: older, newer, .. } = *self.get(id);
        match older {
            NIL => self.oldest = newer,
            at => self.records[at as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            at => self.records[at as usize].slot_or_older = older,
        }
        let record = self.get_mut(id);
        record.set(QUEUED, false);
        record.slot_or_older = NIL;
        record.newer = NIL;
        self.queued -= 1;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record<T>>()
            + self.by_slot.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }

    /// Every record in use.
    pub(crate) fn live(&self) -> impl Iterator<Item = (RecordId, &Record<T>)> {
        let all = self.records.iter().enumerate();
        all.filter(|(_, record)| record.is_live()).map(|(at, record)| (RecordId(at as u32), record))
    }

    /// Every record in use, mutably.
    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut Record<T>> {
        self.records.iter_mut().filter(|record| record.is_live())
    }

    /// Recounts index, slots, outqueue and free list.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut live, mut in_slots, mut queued) = (0, 0, 0);
        for (id, record) in self.live() {
            live += 1;
            let found = self.index.find(record.page, |at| self.records[at as usize].page);
            if found != Some(id.0) {
                return Err(format!("page {} is not in the index", record.page));
            }
            if let Some(slot) = record.slot() {
                in_slots += 1;
                if self.in_slot(slot) != Some(id) {
                    return Err(format!("slot {slot:?} does not know page {}", record.page));
                }
            }
            if record.is_in(QUEUED) {
                queued += 1;
                if record.is_in(BUFFERED | ON_SSD) {
                    return Err(format!("page {} is queued and elsewhere", record.page));
                }
            }
        }
        let occupied = self.by_slot.iter().filter(|&&at| at != NIL).count();
        if live != self.index.len() || in_slots != occupied || in_slots != self.on_ssd {
            return Err(format!("{live} records, {} in the index, {in_slots} in slots", self.index.len()));
        }
        let (mut walked, mut at) = (0, self.oldest);
        while at != NIL && walked <= queued {
            walked += 1;
            at = self.records[at as usize].newer;
        }
        if walked != queued || queued != self.queued {
            return Err(format!("outqueue: {queued} records, {walked} linked, {} counted", self.queued));
        }
        let (mut unused, mut at) = (0, self.free);
        while at != NIL && unused <= self.records.len() {
            unused += 1;
            at = self.records[at as usize].slot_or_older;
        }
        if unused + live != self.records.len() {
            return Err(format!("{} records: {live} live, {unused} free", self.records.len()));
        }
        Ok(())
    }
}
