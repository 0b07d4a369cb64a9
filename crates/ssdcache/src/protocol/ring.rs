//! The doublewrite ring's book-keeping: which of its pages back HDD writes that may still be torn or lost.

use pagetier_page::{Lsn, PageId, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

#[derive(Debug)]
struct Held {
    id: u64,
    end: u64,
    stamp_min: Stamp,
    /// The versions that its images are of, in the order of their places.
    versions: Vec<(PageId, Stamp)>,
    /// Its pages lack no older change on the HDD.
    lsn: Option<Lsn>,
    /// The HDD flush after which it is no longer needed; `None` while the home write is in flight.
    until_flush: Option<u64>,
    /// Pages whose home write failed, and may have left it torn: held until they are written home after all.
    failed: Vec<PageId>,
}

/// A page whose home write failed, and its image in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedHome {
    /// The page.
    pub page: PageId,
    /// The version that its home was to get.
    pub stamp: Stamp,
    /// The image's place.
    pub place: u32,
}

/// A place in the ring for one batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingSpan {
    /// Names the batch to [`Ring::written_home`].
    pub id: u64,
    /// The ring page for each page of the batch.
    pub pages: Vec<u32>,
}

/// A cyclic queue of held page images.
#[derive(Debug)]
pub struct Ring {
    pages: u32,
    next: u64,
    tail: u64,
    ids: u64,
    held: VecDeque<Held>,
    /// Of the pages whose home writes failed, those that were discarded since.
    discarded: FxHashSet<PageId>,
}

impl Ring {
    /// A ring of `pages` pages, all free, which goes on at place `from`.
    #[must_use]
    pub fn new(pages: u32, from: u32) -> Self {
        let from = u64::from(from);
        Self { pages, next: from, tail: from, ids: 0, held: VecDeque::new(), discarded: FxHashSet::default() }
    }

    /// The most pages that one batch may have.
    #[must_use]
    pub fn batch_max(&self) -> usize {
        (self.pages as usize / 2).max(1)
    }

    /// Room for `count` pages whose smallest stamp is `stamp_min`, or `None` until an HDD flush makes some.
    pub fn hold(&mut self, count: usize, stamp_min: Stamp) -> Option<RingSpan> {
        let end = self.next + count as u64;
        if end - self.tail > u64::from(self.pages) {
            return None;
        }
        let pages = (self.next..end).map(|at| (at % u64::from(self.pages)) as u32).collect();
        self.next = end;
        self.ids += 1;
        self.held.push_back(Held {
            id: self.ids,
            end,
            stamp_min,
            versions: Vec::new(),
            lsn: None,
            until_flush: None,
            failed: Vec::new(),
        });
        Some(RingSpan { id: self.ids, pages })
    }

    /// Notes that the pages of batch `id` lack no change older than `lsn` on the HDD.
    pub fn note_lsn(&mut self, id: u64, lsn: Lsn) {
        if let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.lsn = Some(lsn);
        }
    }

    /// Notes which versions the images of batch `id` are of, in the order of their places.
    pub fn note_versions(&mut self, id: u64, versions: Vec<(PageId, Stamp)>) {
        if let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.versions = versions;
        }
    }

    /// Where the image of version `stamp` of `page` is, if it is held.
    #[must_use]
    pub fn place_of(&self, page: PageId, stamp: Stamp) -> Option<u32> {
        self.held.iter().find_map(|held| {
            let nth = held.versions.iter().position(|version| *version == (page, stamp))?;
            let first = held.end - held.versions.len() as u64;
            Some(((first + nth as u64) % u64::from(self.pages)) as u32)
        })
    }

    /// The oldest change that an image here has and the HDD may not durably have.
    #[must_use]
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.held.iter().filter_map(|h| h.lsn).min()
    }

    /// The home writes of batch `id` completed. HDD flush number `flush` will make them durable.
    pub fn written_home(&mut self, id: u64, flush: u64) {
        if let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.until_flush = Some(flush);
        }
    }

    /// Home writes of batch `id` failed, those of `pages`: what a power cut finds there may be mended from
    /// here only.
    pub fn home_failed(&mut self, id: u64, pages: Vec<PageId>) {
        if let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.failed = pages;
        }
    }

    /// `page` is home in a later version, which HDD flush number `flush` will make durable.
    pub fn reached_home(&mut self, page: PageId, flush: u64) {
        self.discarded.remove(&page);
        for held in self.held.iter_mut().filter(|h| h.failed.contains(&page)) {
            held.failed.retain(|p| *p != page);
            if held.failed.is_empty() {
                held.until_flush = Some(flush);
            }
        }
    }

    /// `page` is of no value any more. If its home write failed, one more attempt is all that its image is
    /// held for.
    pub fn discard(&mut self, page: PageId) {
        if self.held.iter().any(|h| h.failed.contains(&page)) {
            self.discarded.insert(page);
        }
    }

    /// Whether the home write of `page` failed, and the page was discarded since.
    #[must_use]
    pub fn is_discarded(&self, page: PageId) -> bool {
        self.discarded.contains(&page)
    }

    /// The pages whose home writes failed, each with its newest image.
    #[must_use]
    pub fn failed(&self) -> Vec<FailedHome> {
        let mut newest: FxHashMap<PageId, FailedHome> = FxHashMap::default();
        for held in &self.held {
            let first = held.end - held.versions.len() as u64;
            for ((page, stamp), at) in held.versions.iter().copied().zip(first..) {
                let place = (at % u64::from(self.pages)) as u32;
                let one = FailedHome { page, stamp, place };
                if held.failed.contains(&page) && newest.get(&page).is_none_or(|other| other.stamp < stamp) {
                    newest.insert(page, one);
                }
            }
        }
        let mut failed: Vec<FailedHome> = newest.into_values().collect();
        failed.sort_unstable_by_key(|one| one.page);
        failed
    }

    /// Whether the oldest entry waits for a page whose home write failed.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.held.front().is_some_and(|h| !h.failed.is_empty())
    }

    /// Whether homes may be torn that only images here can mend.
    #[must_use]
    pub fn mends_homes(&self) -> bool {
        self.held.iter().any(|h| !h.failed.is_empty())
    }

    /// HDD flush number `number` is over.
    pub fn flushed(&mut self, number: u64) {
        while self.held.front().is_some_and(|h| h.until_flush.is_some_and(|f| f <= number)) {
            self.tail = self.held.pop_front().map_or(self.tail, |h| h.end);
        }
    }

    /// Images with smaller stamps than this are home, durably. `fresh` is a stamp that no image has yet.
    #[must_use]
    pub fn floor(&self, fresh: Stamp) -> Stamp {
        self.held.iter().map(|h| h.stamp_min).min().unwrap_or(fresh)
    }

    /// Pages held, for coverage.
    #[cfg(feature = "mutations")]
    pub(crate) fn held_pages(&self) -> u64 {
        self.next - self.tail
    }

    /// Whether an HDD flush is due so that the ring does not fill up.
    #[must_use]
    pub fn wants_flush(&self) -> bool {
        self.next - self.tail > u64::from(self.pages) / 2
            && self.held.front().is_some_and(|h| h.until_flush.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_held_until_the_flush_after_its_home_write() {
        let mut ring = Ring::new(4, 0);
        let a = ring.hold(3, Stamp::from_bits(10)).unwrap();
        assert_eq!(a.pages, [0, 1, 2]);
        assert_eq!(ring.hold(2, Stamp::from_bits(20)), None);
        ring.flushed(5);
        assert_eq!(ring.hold(2, Stamp::from_bits(20)), None, "its home write is still in flight");
        ring.written_home(a.id, 7);
        ring.flushed(6);
        assert_eq!(ring.hold(2, Stamp::from_bits(20)), None, "that flush began too early");
        assert_eq!(ring.floor(Stamp::from_bits(99)), Stamp::from_bits(10));
        ring.flushed(7);
        assert_eq!(ring.hold(2, Stamp::from_bits(20)).unwrap().pages, [3, 0]);
        assert_eq!(ring.floor(Stamp::from_bits(99)), Stamp::from_bits(20));
    }
}
