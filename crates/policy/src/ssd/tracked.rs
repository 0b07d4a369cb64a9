//! The records of an SSD policy, found by page and by slot.
//!
//! A page has a record while it is buffered, on the SSD, or in the outqueue (2013 paper, section 5.1). The
//! outqueue is a list through the records of pages that are neither buffered nor on the SSD, in order of
//! insertion. The policy drops the oldest ones when it exceeds its capacity ([`Tracked::surplus`]).
//!
//! Most records are those of pages on the SSD, so they are small: which page is in a slot is written down
//! there, by the store if it [shares](Tracked::share) that. Only a page that is not on the SSD needs room for
//! its number and for its neighbours in the outqueue, which is apart ([`Away`]).

use crate::collections::page_index::PageIndex;
use crate::{PageId, SlotId, SlotPages};
use std::sync::Arc;

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

    /// Whether the page is on the SSD.
    fn is_on_ssd(&self) -> bool {
        self.place() & ON_SSD != 0
    }
}

/// A page's record: `K` is what is kept of it, or a reference to that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<K> {
    pub(crate) page: PageId,
    /// The page's slot, if it is on the SSD.
    pub(crate) slot: Option<SlotId>,
    pub(crate) kept: K,
}

impl<T> Record<&mut T> {
    /// The record, for reading.
    pub(crate) fn shared(&self) -> Record<&T> {
        Record { page: self.page, slot: self.slot, kept: self.kept }
    }
}

/// A record as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<T> {
    /// The slot of a page on the SSD; of another page, the number of its [`Away`]; the next free one of a
    /// free record. In halves, so that it does not need more than the alignment of `kept`.
    link: [u16; 2],
    kept: T,
}

/// A page that is not on the SSD.
#[derive(Clone, Copy, Debug)]
struct Away {
    page: PageId,
    /// The next older record of a queued page; of a free one, the next free one.
    older: u32,
    /// The next newer record of a queued page.
    newer: u32,
}

impl<T: Kept> Stored<T> {
    fn new(link: u32, kept: T) -> Self {
        let mut new = Self { link: [0; 2], kept };
        new.set_link(link);
        new
    }

    fn link(&self) -> u32 {
        u32::from(self.link[0]) << 16 | u32::from(self.link[1])
    }

    fn set_link(&mut self, link: u32) {
        self.link = [(link >> 16) as u16, link as u16];
    }

    fn slot(&self) -> Option<SlotId> {
        self.is_in(ON_SSD).then(|| SlotId(self.link()))
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

/// By slot, its page.
#[derive(Debug)]
enum Pages {
    Own(Vec<PageId>),
    /// The store's, which has them already.
    Shared(Arc<SlotPages>),
}

impl Pages {
    fn get(&self, slot: u32) -> PageId {
        match self {
            Self::Own(pages) => pages.get(slot as usize).copied(),
            Self::Shared(pages) => pages.get(SlotId(slot)),
        }
        .unwrap_or_default()
    }

    fn put(&mut self, slot: SlotId, page: PageId) {
        match self {
            Self::Own(pages) => {
                if slot.at() >= pages.len() {
                    pages.resize(slot.at() + 1, PageId::default());
                }
                pages[slot.at()] = page;
            }
            Self::Shared(pages) => debug_assert_eq!(pages.get(slot), Some(page)),
        }
    }
}

/// All records, without the ways to find them.
#[derive(Debug)]
struct Records<T> {
    stored: Vec<Stored<T>>,
    away: Vec<Away>,
    pages: Pages,
}

impl<T: Kept> Records<T> {
    /// The page of record `at`, which is in use.
    fn page(&self, at: u32) -> PageId {
        let stored = &self.stored[at as usize];
        if stored.is_in(ON_SSD) {
            self.pages.get(stored.link())
        } else {
            self.away.get(stored.link() as usize).map(|away| away.page).unwrap_or_default()
        }
    }

    /// The neighbours of record `at`, which is not on the SSD.
    fn neighbours(&mut self, at: u32) -> &mut Away {
        let link = self.stored[at as usize].link();
        &mut self.away[link as usize]
    }
}

/// The records.
#[derive(Debug)]
pub(crate) struct Tracked<T> {
    all: Records<T>,
    free: u32,
    free_away: u32,
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
        let away = frames + queued_max + spare;
        let all = Records {
            // Reserve all memory at once: the bound is known, growing would copy every record, and the system
            // provides the memory only as it is used.
            stored: Vec::with_capacity(slots + away + 1),
            away: Vec::with_capacity(away + 1),
            pages: Pages::Own(Vec::new()),
        };
        Self {
            all,
            free: NIL,
            free_away: NIL,
            index: PageIndex::with_capacity(slots + away),
            by_slot: vec![NIL; slots],
            on_ssd: 0,
            oldest: NIL,
            newest: NIL,
            queued: 0,
            queued_max,
            found_last: NIL,
        }
    }

    /// Reads which page is in a slot from `pages` from now on: those of the store whose slots these are. No
    /// page is tracked yet.
    pub(crate) fn share(&mut self, pages: &Arc<SlotPages>) {
        debug_assert!(self.index.is_empty());
        self.all.pages = Pages::Shared(Arc::clone(pages));
    }

    /// Finds the page's record. A page is looked up several times in a row while it is cleaned or leaves, so
    /// the record found last is tried first.
    pub(crate) fn find(&mut self, page: PageId) -> Option<RecordId> {
        let last = self.all.stored.get(self.found_last as usize);
        // `is_live`: a free record has no page.
        if !last.is_some_and(|record| record.is_live() && self.all.page(self.found_last) == page) {
            self.found_last = self.index.find(page, |at| self.all.page(at))?;
        }
        Some(RecordId(self.found_last))
    }

    /// The page's record, for reports.
    pub(crate) fn get_by_page(&self, page: PageId) -> Option<Record<&T>> {
        let found = self.index.find(page, |at| self.all.page(at))?;
        Some(self.get(RecordId(found)))
    }

    /// Creates the record of a page that has none. The page is in no place yet: the caller calls
    /// [`Tracked::set_buffered`] or [`Tracked::set_slot`] at once.
    pub(crate) fn track(&mut self, page: PageId, kept: T) -> RecordId {
        let away = self.put_away(page);
        let record = Stored::new(away, kept);
        let at = if self.free == NIL {
            self.all.stored.push(record);
            (self.all.stored.len() - 1) as u32
        } else {
            // The records freed last are reused first: they are likely still in the CPU's cache.
            let at = self.free;
            self.free = self.all.stored[at as usize].link();
            self.all.stored[at as usize] = record;
            at
        };
        let all = &self.all;
        self.index.insert(page, at, |at| all.page(at));
        self.found_last = at;
        RecordId(at)
    }

    /// Makes room for a page that is not on the SSD; returns its number.
    fn put_away(&mut self, page: PageId) -> u32 {
        let away = Away { page, older: NIL, newer: NIL };
        let Self { all: Records { away: all, .. }, free_away, .. } = self;
        if *free_away == NIL {
            all.push(away);
            return (all.len() - 1) as u32;
        }
        let at = *free_away;
        *free_away = all[at as usize].older;
        all[at as usize] = away;
        at
    }

    /// Frees the place of record `at`, whose page is not on the SSD.
    fn come_back(&mut self, at: u32) {
        let link = self.all.stored[at as usize].link();
        self.all.away[link as usize].older = std::mem::replace(&mut self.free_away, link);
    }

    pub(crate) fn get(&self, id: RecordId) -> Record<&T> {
        let Stored { kept, .. } = &self.all.stored[id.0 as usize];
        Record { page: self.page(id), slot: self.slot(id), kept }
    }

    pub(crate) fn get_mut(&mut self, id: RecordId) -> Record<&mut T> {
        let (page, slot) = (self.page(id), self.slot(id));
        Record { page, slot, kept: self.kept_mut(id) }
    }

    /// The page of a record: in memory, it is apart from the record.
    pub(crate) fn page(&self, id: RecordId) -> PageId {
        self.all.page(id.0)
    }

    /// The slot of the record's page, if it is on the SSD.
    pub(crate) fn slot(&self, id: RecordId) -> Option<SlotId> {
        self.all.stored[id.0 as usize].slot()
    }

    pub(crate) fn kept(&self, id: RecordId) -> &T {
        &self.all.stored[id.0 as usize].kept
    }

    pub(crate) fn kept_mut(&mut self, id: RecordId) -> &mut T {
        &mut self.all.stored[id.0 as usize].kept
    }

    /// The record of the page in `slot`.
    pub(crate) fn in_slot(&self, slot: SlotId) -> Option<RecordId> {
        self.by_slot.get(slot.at()).copied().filter(|&at| at != NIL).map(RecordId)
    }

    /// The slots that hold a page, with their records, in the order of the records in memory: in the order of
    /// slots, each record would be a cache miss.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, RecordId)> {
        let all = self.all.stored.iter().enumerate();
        all.filter_map(|(at, stored)| Some((stored.slot()?, RecordId(at as u32))))
    }

    /// Records whether the page is in the pool.
    pub(crate) fn set_buffered(&mut self, id: RecordId, buffered: bool) {
        self.all.stored[id.0 as usize].set(BUFFERED, buffered);
        self.settle(id);
    }

    /// Records that the page is in `slot`, or not on the SSD.
    pub(crate) fn set_slot(&mut self, id: RecordId, slot: Option<SlotId>) {
        // First, since slot and queue share a field of the record.
        self.unqueue(id);
        let page = self.page(id);
        match (self.vacate(id), slot) {
            (false, Some(_)) => self.come_back(id.0),
            (true, None) => {
                let away = self.put_away(page);
                self.all.stored[id.0 as usize].set_link(away);
            }
            _ => {}
        }
        self.on_ssd += usize::from(slot.is_some());
        let stored = &mut self.all.stored[id.0 as usize];
        stored.set(ON_SSD, slot.is_some());
        if let Some(slot) = slot {
            stored.set_link(slot.0);
            self.all.pages.put(slot, page);
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
        let Record { page, slot, kept } = self.get(id);
        let record = Record { page, slot, kept: *kept };
        let all = &self.all;
        self.index.remove(page, |at| all.page(at));
        if !self.vacate(id) {
            self.come_back(id.0);
        }
        // No place: the record is not live any more, and `find` passes it over.
        self.all.stored[id.0 as usize] = Stored::new(self.free, T::default());
        self.free = id.0;
        record
    }

    /// Empties the page's slot; returns whether it has one. The record is not changed.
    fn vacate(&mut self, id: RecordId) -> bool {
        let slot = self.slot(id);
        if let Some(slot) = slot {
            self.by_slot[slot.at()] = NIL;
            self.on_ssd -= 1;
        }
        slot.is_some()
    }

    /// Puts the record into the outqueue if its page is neither buffered nor on the SSD, and takes it out
    /// otherwise.
    fn settle(&mut self, id: RecordId) {
        let stored = &mut self.all.stored[id.0 as usize];
        if stored.is_in(BUFFERED | ON_SSD) {
            return self.unqueue(id);
        }
        if stored.is_in(QUEUED) {
            // It keeps its place: only a new stay in the queue puts a page at its end.
            return;
        }
        stored.set(QUEUED, true);
        let newest = self.newest;
        let away = self.all.neighbours(id.0);
        (away.older, away.newer) = (newest, NIL);
        match newest {
            NIL => self.oldest = id.0,
            at => self.all.neighbours(at).newer = id.0,
        }
        self.newest = id.0;
        self.queued += 1;
    }

    fn unqueue(&mut self, id: RecordId) {
        let stored = &mut self.all.stored[id.0 as usize];
        if !stored.is_in(QUEUED) {
            return;
        }
        stored.set(QUEUED, false);
        let Away { older, newer, .. } = *self.all.neighbours(id.0);
        match older {
            NIL => self.oldest = newer,
            at => self.all.neighbours(at).newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            at => self.all.neighbours(at).older = older,
        }
        self.queued -= 1;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let own = if let Pages::Own(pages) = &self.all.pages { pages.capacity() } else { 0 };
        own * size_of::<PageId>()
            + self.all.stored.capacity() * size_of::<Stored<T>>()
            + self.all.away.capacity() * size_of::<Away>()
            + self.by_slot.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }

    /// Every record in use.
    pub(crate) fn live(&self) -> impl Iterator<Item = (RecordId, Record<&T>)> {
        let all = self.all.stored.iter().zip(0..).filter(|(stored, _)| stored.is_live());
        all.map(|(_, at)| (RecordId(at), self.get(RecordId(at))))
    }

    /// Recounts index, slots, outqueue and free lists.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut live, mut in_slots, mut queued) = (0, 0, 0);
        for (id, record) in self.live() {
            live += 1;
            let found = self.index.find(record.page, |at| self.all.page(at));
            if found != Some(id.0) {
                return Err(format!("page {} is not in the index", record.page));
            }
            if let Some(slot) = record.slot {
                in_slots += 1;
                if self.in_slot(slot) != Some(id) {
                    return Err(format!("slot {slot:?} does not know page {}", record.page));
                }
            }
            let place = record.kept.place();
            if place & QUEUED != 0 {
                queued += 1;
                if place != QUEUED {
                    return Err(format!("page {} is queued and elsewhere", record.page));
                }
            }
        }
        let occupied = self.by_slot.iter().filter(|&&at| at != NIL).count();
        if live != self.index.len() || in_slots != occupied || in_slots != self.on_ssd {
            return Err(format!("{live} records, {} in the index, {in_slots} in slots", self.index.len()));
        }
        let follow = |first: u32, most: usize, next: &dyn Fn(u32) -> u32| {
            let linked = |at: u32| Some(at).filter(|&at| at != NIL);
            std::iter::successors(linked(first), |&at| linked(next(at))).take(most + 1).count()
        };
        let Records { stored, away, .. } = &self.all;
        let newer = |at: u32| away[stored[at as usize].link() as usize].newer;
        let walked = follow(self.oldest, queued, &newer);
        if walked != queued || queued != self.queued {
            return Err(format!("outqueue: {queued} records, {walked} linked, {} counted", self.queued));
        }
        let unused = follow(self.free, stored.len(), &|at| stored[at as usize].link());
        let unused_away = follow(self.free_away, away.len(), &|at| away[at as usize].older);
        if unused + live != stored.len() || unused_away + live - in_slots != away.len() {
            return Err(format!(
                "{} records: {live} live, {unused} free; {} not on the SSD: {unused_away} free",
                stored.len(),
                away.len()
            ));
        }
        Ok(())
    }
}
