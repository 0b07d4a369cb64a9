//! CAC's and CC's page statistics: 48 bytes per page, found by page and by slot.
//!
//! A page has a record while it is buffered, on the SSD, or in the outqueue (2013 paper, section 5.1). The
//! outqueue is a list through the records of pages that are neither buffered nor on the SSD, in order of
//! insertion; when it is full, the record inserted first is dropped.

use crate::collections::page_index::PageIndex;
use crate::{Home, Millis, PageCounts, PageId, SlotId};

/// No record, no slot.
pub(crate) const NIL: u32 = u32::MAX;

const BUFFERED: u16 = 1 << 10;
const ON_SSD: u16 = 1 << 11;
const QUEUED: u16 = 1 << 12;
const READ_WAITS_SSD: u16 = 1 << 13;
const READ_WAITS_HDD: u16 = 1 << 14;
const LOGICAL_WAITS_SSD: u16 = 1 << 15;
const SUBRANGE: u16 = (1 << 10) - 1;
const NO_SUBRANGE: u16 = SUBRANGE;

/// The maximum number of subranges per space that a record can distinguish.
pub(crate) const SUBRANGES_MAX: u16 = NO_SUBRANGE;

/// A page's counts. Reads that *wait* are not in the group's sums yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) page: PageId,
    /// r_D: random physical reads while the page was not on the SSD.
    pub(crate) reads_hdd: u32,
    /// r_S: random physical reads while the page was on the SSD.
    pub(crate) reads_ssd: u32,
    /// w_D: writes to the HDD.
    pub(crate) writes_hdd: u32,
    /// w_S: writes to the SSD.
    pub(crate) writes_ssd: u32,
    /// Logical reads while not on the SSD, without the waiting ones.
    pub(crate) logical_hdd: u32,
    /// Logical reads while on the SSD, without the waiting ones.
    pub(crate) logical_ssd: u32,
    /// The time at which tracking began, in tenths of a second.
    born_ds: u32,
    /// The slot of a page on the SSD; the next older record of a queued page; the next free one of a free
    /// record.
    slot_or_older: u32,
    /// The next newer record of a queued page.
    newer: u32,
    /// The page's place, which reads wait, and the subrange of its group.
    tag: u16,
    /// Logical reads that wait, all from one home.
    pub(crate) waiting: u16,
}

const _: () = assert!(size_of::<Record>() == 48);

/// A record's share of its group's sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) reads_ssd: u32,
    pub(crate) reads_hdd: u32,
    pub(crate) logical_ssd: u32,
    pub(crate) logical_hdd: u32,
}

impl Record {
    fn new(page: PageId, now: Millis) -> Self {
        Self {
            page,
            reads_hdd: 0,
            reads_ssd: 0,
            writes_hdd: 0,
            writes_ssd: 0,
            logical_hdd: 0,
            logical_ssd: 0,
            born_ds: deciseconds(now),
            slot_or_older: NIL,
            newer: NIL,
            tag: NO_SUBRANGE,
            waiting: 0,
        }
    }

    /// Whether the page is tracked; a free or newly created record is not.
    const fn is_live(&self) -> bool {
        self.tag & (BUFFERED | ON_SSD | QUEUED) != 0
    }

    /// The page's slot, if it is on the SSD.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        (self.tag & ON_SSD != 0).then_some(SlotId(self.slot_or_older))
    }

    /// The group's subrange, once the page has a group.
    pub(crate) fn subrange(&self) -> Option<u16> {
        let subrange = self.tag & SUBRANGE;
        (subrange != NO_SUBRANGE).then_some(subrange)
    }

    pub(crate) fn set_subrange(&mut self, subrange: u16) {
        debug_assert!(subrange < SUBRANGES_MAX);
        self.tag = self.tag & !SUBRANGE | subrange;
    }

    /// Minutes since tracking began.
    pub(crate) fn age_min(&self, now: Millis) -> f64 {
        f64::from(deciseconds(now).saturating_sub(self.born_ds)) / 600.0
    }

    /// All counts, including the reads that wait. A count of `step` is one access.
    pub(crate) fn counts(&self, step: u32) -> PageCounts {
        let waiting = u64::from(self.waiting);
        let (on_ssd, off_ssd) = if self.tag & LOGICAL_WAITS_SSD != 0 { (waiting, 0) } else { (0, waiting) };
        let accesses = |count: u32| u64::from(count.div_ceil(step));
        PageCounts {
            reads_hdd: accesses(self.reads_hdd),
            reads_ssd: accesses(self.reads_ssd),
            logical_hdd: accesses(self.logical_hdd) + off_ssd,
            logical_ssd: accesses(self.logical_ssd) + on_ssd,
            writes_hdd: accesses(self.writes_hdd),
            writes_ssd: accesses(self.writes_ssd),
        }
    }

    /// All logical reads. Each counts `step` once it no longer waits.
    pub(crate) fn logical(&self, step: u32) -> u64 {
        let counted = u64::from(self.logical_hdd) + u64::from(self.logical_ssd);
        counted / u64::from(step) + u64::from(self.waiting)
    }

    /// The physical reads of the page; a count of `step` is one read.
    pub(crate) fn reads(&self, step: u32) -> u32 {
        self.reads_hdd.saturating_add(self.reads_ssd) / step
    }

    /// Restores counts from before the record was created: reads from the HDD, each also a logical read.
    pub(crate) fn restore_reads(&mut self, reads_hdd: u32) {
        self.reads_hdd = reads_hdd;
        self.logical_hdd = reads_hdd;
    }

    /// Counts a random physical read from `home` as `step`. Only one read can wait: the caller settles the
    /// record first if one does.
    pub(crate) fn count_read(&mut self, home: Home, step: u32) {
        debug_assert!(!self.read_waits());
        let (count, waits) = match home {
            Home::Ssd => (&mut self.reads_ssd, READ_WAITS_SSD),
            Home::Hdd => (&mut self.reads_hdd, READ_WAITS_HDD),
        };
        if let Some(more) = count.checked_add(step) {
            *count = more;
            self.tag |= waits;
        }
    }

    pub(crate) fn read_waits(&self) -> bool {
        self.tag & (READ_WAITS_SSD | READ_WAITS_HDD) != 0
    }

    pub(crate) fn count_write(&mut self, home: Home, step: u32) {
        let count = match home {
            Home::Ssd => &mut self.writes_ssd,
            Home::Hdd => &mut self.writes_hdd,
        };
        *count = count.saturating_add(step);
    }

    /// Counts up to `n` logical reads at `home`, and returns the number not counted: they require that the
    /// record is settled first.
    #[must_use]
    pub(crate) fn count_logical(&mut self, n: u32, home: Home) -> u32 {
        let at = if home == Home::Ssd { LOGICAL_WAITS_SSD } else { 0 };
        if self.waiting == 0 {
            self.tag = self.tag & !LOGICAL_WAITS_SSD | at;
        } else if self.tag & LOGICAL_WAITS_SSD != at {
            return n;
        }
        let taken = n.min(u32::from(u16::MAX - self.waiting));
        self.waiting += taken as u16;
        n - taken
    }

    /// The record's share of its group's sums, in which a read counts `step`.
    pub(crate) fn counted(&self, step: u32) -> Counted {
        let waits = |flag: u16| if self.tag & flag == 0 { 0 } else { step };
        Counted {
            reads_ssd: self.reads_ssd - waits(READ_WAITS_SSD),
            reads_hdd: self.reads_hdd - waits(READ_WAITS_HDD),
            logical_ssd: self.logical_ssd,
            logical_hdd: self.logical_hdd,
        }
    }

    /// Ends all waiting, and returns the record's new share of its group's sums. An access counts `step`.
    pub(crate) fn settle(&mut self, step: u32) -> Counted {
        let logical =
            if self.tag & LOGICAL_WAITS_SSD != 0 { &mut self.logical_ssd } else { &mut self.logical_hdd };
        *logical = logical.saturating_add(u32::from(self.waiting).saturating_mul(step));
        self.waiting = 0;
        self.tag &= !(READ_WAITS_SSD | READ_WAITS_HDD | LOGICAL_WAITS_SSD);
        self.counted(step)
    }

    /// Halves every count. No read may wait.
    pub(crate) fn halve(&mut self) {
        for count in [
            &mut self.reads_hdd,
            &mut self.reads_ssd,
            &mut self.writes_hdd,
            &mut self.writes_ssd,
            &mut self.logical_hdd,
            &mut self.logical_ssd,
        ] {
            *count /= 2;
        }
    }
}

fn deciseconds(at: Millis) -> u32 {
    u32::try_from(at.0 / 100).unwrap_or(u32::MAX)
}

/// A record's place; valid as long as the record lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordId(u32);

/// The records, found by page and by slot, and the outqueue.
#[derive(Debug)]
pub(crate) struct PageStats {
    records: Vec<Record>,
    free: u32,
    index: PageIndex,
    /// The record of the page in each slot.
    by_slot: Vec<u32>,
    oldest: u32,
    newest: u32,
    queued: usize,
    queued_max: usize,
    /// The record found last; it may have been removed since.
    found_last: u32,
}

impl PageStats {
    pub(crate) fn new(slots: usize, frames: usize, outqueue_entries: usize) -> Self {
        let most = slots + frames + outqueue_entries;
        Self {
            // Reserve all memory at once: the bound is known, growing would copy every record, and the system
            // provides the memory only as it is used.
            records: Vec::with_capacity(most + 1),
            free: NIL,
            index: PageIndex::with_capacity(most),
            by_slot: vec![NIL; slots],
            oldest: NIL,
            newest: NIL,
            queued: 0,
            queued_max: outqueue_entries,
            found_last: NIL,
        }
    }

    /// The page's record.
    pub(crate) fn get_by_page(&self, page: PageId) -> Option<&Record> {
        let found = self.index.find(page, |at| self.records[at as usize].page)?;
        Some(&self.records[found as usize])
    }

    /// Finds the page's record. A page is looked up several times in a row while it is cleaned or leaves, so
    /// the record found last is tried first.
    pub(crate) fn find(&mut self, page: PageId) -> Option<RecordId> {
        let last = self.records.get(self.found_last as usize);
        if !last.is_some_and(|record| record.page == page && record.is_live()) {
            self.found_last = self.index.find(page, |at| self.records[at as usize].page)?;
        }
        Some(RecordId(self.found_last))
    }

    /// Finds the page's record, or creates it.
    pub(crate) fn find_or_track(&mut self, page: PageId, now: Millis) -> RecordId {
        self.find(page).unwrap_or_else(|| self.track(page, now))
    }

    /// Creates the record of a page that has none.
    pub(crate) fn track(&mut self, page: PageId, now: Millis) -> RecordId {
        let record = Record::new(page, now);
        let at = if self.free == NIL {
            self.records.push(record);
            (self.records.len() - 1) as u32
        } else {
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

    pub(crate) fn get(&self, id: RecordId) -> &Record {
        &self.records[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: RecordId) -> &mut Record {
        &mut self.records[id.0 as usize]
    }

    /// The record of the page in `slot`.
    pub(crate) fn in_slot(&self, slot: SlotId) -> Option<RecordId> {
        self.by_slot.get(slot.at()).copied().filter(|&at| at != NIL).map(RecordId)
    }

    /// The slots that hold a page, with their records, in the order of the records in memory: in the order of
    /// slots, each record would be a cache miss.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, &Record)> {
        self.records.iter().filter_map(|record| Some((record.slot()?, record)))
    }

    /// Records whether the page is in the pool. Returns the record that thereby drops out of the outqueue.
    pub(crate) fn set_buffered(&mut self, id: RecordId, buffered: bool) -> Option<Record> {
        let record = self.get_mut(id);
        if buffered {
            record.tag |= BUFFERED;
        } else {
            record.tag &= !BUFFERED;
        }
        self.place(id)
    }

    /// Records that the page is in `slot`, or not on the SSD. Returns the record that thereby drops out of
    /// the outqueue.
    pub(crate) fn set_slot(&mut self, id: RecordId, slot: Option<SlotId>) -> Option<Record> {
        self.unqueue(id);
        if let Some(before) = self.get(id).slot() {
            self.by_slot[before.at()] = NIL;
        }
        let record = self.get_mut(id);
        match slot {
            Some(slot) => {
                record.tag |= ON_SSD;
                record.slot_or_older = slot.0;
                if slot.at() >= self.by_slot.len() {
                    self.by_slot.resize(slot.at() + 1, NIL);
                }
                self.by_slot[slot.at()] = id.0;
            }
            None => {
                record.tag &= !ON_SSD;
                record.slot_or_older = NIL;
            }
        }
        self.place(id)
    }

    /// Removes the record.
    pub(crate) fn forget(&mut self, id: RecordId) -> Record {
        self.unqueue(id);
        let record = *self.get(id);
        if let Some(slot) = record.slot() {
            self.by_slot[slot.at()] = NIL;
        }
        let records = &self.records;
        self.index.remove(record.page, |at| records[at as usize].page);
        let freed = &mut self.records[id.0 as usize];
        freed.tag = NO_SUBRANGE;
        freed.slot_or_older = self.free;
        self.free = id.0;
        record
    }

    /// Puts the record into the outqueue if its page is neither buffered nor on the SSD, and takes it out
    /// otherwise.
    fn place(&mut self, id: RecordId) -> Option<Record> {
        if self.get(id).tag & (BUFFERED | ON_SSD) != 0 {
            self.unqueue(id);
            return None;
        }
        if self.get(id).tag & QUEUED != 0 {
            return None;
        }
        let newest = self.newest;
        let record = self.get_mut(id);
        record.tag |= QUEUED;
        record.slot_or_older = newest;
        record.newer = NIL;
        match newest {
            NIL => self.oldest = id.0,
            at => self.records[at as usize].newer = id.0,
        }
        self.newest = id.0;
        self.queued += 1;
        (self.queued > self.queued_max).then(|| self.forget(RecordId(self.oldest)))
    }

    fn unqueue(&mut self, id: RecordId) {
        let Record { slot_or_older: older, newer, tag, .. } = *self.get(id);
        if tag & QUEUED == 0 {
            return;
        }
        match older {
            NIL => self.oldest = newer,
            at => self.records[at as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            at => self.records[at as usize].slot_or_older = older,
        }
        let record = self.get_mut(id);
        record.tag &= !QUEUED;
        record.slot_or_older = NIL;
        record.newer = NIL;
        self.queued -= 1;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.by_slot.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }

    /// Every record in use, mutably.
    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.iter_mut().filter(|record| record.is_live())
    }

    /// Every record in use.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.is_live())
    }

    /// Recounts index, slots, outqueue and free list.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut live, mut in_slots, mut queued) = (0, 0, 0);
        for record in self.live() {
            live += 1;
            let found = self.get_by_page(record.page);
            if !found.is_some_and(|found| std::ptr::eq(found, record)) {
                return Err(format!("page {} is not in the index", record.page));
            }
            if let Some(slot) = record.slot() {
                in_slots += 1;
                if self.in_slot(slot).map(|id| self.get(id).page) != Some(record.page) {
                    return Err(format!("slot {slot:?} does not know page {}", record.page));
                }
            }
            if record.tag & QUEUED != 0 {
                queued += 1;
                if record.tag & (BUFFERED | ON_SSD) != 0 {
                    return Err(format!("page {} is queued and elsewhere", record.page));
                }
            }
        }
        if live != self.index.len() || in_slots != self.by_slot.iter().filter(|&&at| at != NIL).count() {
            return Err(format!("{live} records, {} in the index, {in_slots} in slots", self.index.len()));
        }
        let (mut walked, mut at) = (0, self.oldest);
        while at != NIL && walked <= queued {
            walked += 1;
            at = self.records[at as usize].newer;
        }
        if walked != queued || queued != self.queued || queued > self.queued_max {
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
