//! Lists of pages in the order of their arrival.

use pagetier_policy::PageId;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// `N` lists of pages; a page is in at most one of them. Every operation takes O(log n).
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    lists: [BTreeMap<u64, PageId>; N],
    places: FxHashMap<PageId, (usize, u64)>,
    next: u64,
}

impl<const N: usize> Lists<N> {
    pub(super) fn new() -> Self {
        Self { lists: std::array::from_fn(|_| BTreeMap::new()), places: FxHashMap::default(), next: 0 }
    }

    /// The list that the page is in.
    pub(super) fn list_of(&self, page: PageId) -> Option<usize> {
        self.places.get(&page).map(|(list, _)| *list)
    }

    /// Puts the page at the new end of `list`, out of any other place.
    pub(super) fn put(&mut self, page: PageId, list: usize) {
        self.remove(page);
        // Arrivals start at 1: a hand at 0, as in SIEVE, stands before every page.
        self.next += 1;
        self.lists[list].insert(self.next, page);
        self.places.insert(page, (list, self.next));
    }

    pub(super) fn remove(&mut self, page: PageId) -> Option<usize> {
        let (list, at) = self.places.remove(&page)?;
        self.lists[list].remove(&at);
        Some(list)
    }

    pub(super) fn len(&self, list: usize) -> usize {
        self.lists[list].len()
    }

    pub(super) fn oldest(&self, list: usize) -> Option<PageId> {
        self.lists[list].values().next().copied()
    }

    /// Drops the oldest pages of `list` beyond `most`.
    pub(super) fn trim(&mut self, list: usize, most: usize) {
        while self.len(list) > most {
            let Some(page) = self.oldest(list) else { return };
            self.remove(page);
        }
    }

    /// The pages of `list`, the oldest first.
    pub(super) fn pages(&self, list: usize) -> impl Iterator<Item = PageId> + '_ {
        self.lists[list].values().copied()
    }

    /// The pages of `list` that arrived at `from` or later, the oldest first, with their arrivals.
    pub(super) fn since(&self, list: usize, from: u64) -> impl Iterator<Item = (u64, PageId)> + '_ {
        self.lists[list].range(from..).map(|(at, page)| (*at, *page))
    }
}
