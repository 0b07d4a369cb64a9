//! The peers' orders of eviction, for either tier.

use super::lists::Lists;
use pagetier_policy::PageId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;

/// A cache's order of eviction. Histories of evicted pages are its own.
pub(super) trait Order: fmt::Debug + Send + Sync {
    /// Records a hit.
    fn used(&mut self, page: PageId);

    /// Records that a page got a place.
    fn entered(&mut self, page: PageId);

    /// The next page to evict among those that `accept` takes. May promote pages that it passes. Default: the
    /// first of [`Order::each`].
    fn victim(&mut self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        self.each(accept)
    }

    /// Offers pages in about the order of eviction until `accept` takes one.
    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId>;

    /// Records that a page lost its place: to another if `evicted`, otherwise because it is gone.
    fn left(&mut self, page: PageId, evicted: bool);

    fn len(&self) -> usize;
}

#[derive(Debug)]
pub(super) struct Lru(Lists<1>);

impl Lru {
    pub(super) fn new() -> Self {
        Self(Lists::new())
    }
}

impl Order for Lru {
    fn used(&mut self, page: PageId) {
        self.0.put(page, 0);
    }

    fn entered(&mut self, page: PageId) {
        self.0.put(page, 0);
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        self.0.pages(0).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, _evicted: bool) {
        self.0.remove(page);
    }

    fn len(&self) -> usize {
        self.0.len(0)
    }
}

/// SIEVE (Zhang et al. 2024): a FIFO queue whose hand passes over visited pages, which stay in place.
#[derive(Debug)]
pub(super) struct Sieve {
    queue: Lists<1>,
    visited: FxHashSet<PageId>,
    hand: u64,
}

impl Sieve {
    pub(super) fn new() -> Self {
        Self { queue: Lists::new(), visited: FxHashSet::default(), hand: 0 }
    }
}

impl Order for Sieve {
    fn used(&mut self, page: PageId) {
        self.visited.insert(page);
    }

    fn entered(&mut self, page: PageId) {
        self.queue.put(page, 0);
    }

    fn victim(&mut self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // Two rounds: the first clears marks.
        for _ in 0..2 {
            let mut passed = Vec::new();
            let found = self.queue.since(0, self.hand).find(|&(_, page)| {
                passed.push(page);
                // The paper knows no pinned pages. The hand passes one that cannot be taken as it does a
                // visited one, and takes it in a later round.
                !self.visited.contains(&page) && accept(page)
            });
            if let Some((at, page)) = found {
                passed.iter().for_each(|page| {
                    self.visited.remove(page);
                });
                // The hand stays where it found the victim, and goes on from there.
                self.hand = at;
                return Some(page);
            }
            passed.iter().for_each(|page| {
                self.visited.remove(page);
            });
            // The hand goes from old to new, so the end of the queue is its newest page, and the next
            // round starts at the oldest.
            self.hand = 0;
        }
        self.each(accept)
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // This walk looks ahead, so it must not clear marks: visited pages come last, as they would after
        // a round that cleared them.
        let before = || self.queue.since(0, 0).take_while(|(at, _)| *at < self.hand);
        let round = || self.queue.since(0, self.hand).chain(before()).map(|(_, page)| page);
        let taken = round().find(|&page| !self.visited.contains(&page) && accept(page));
        taken.or_else(|| round().find(|&page| self.visited.contains(&page) && accept(page)))
    }

    fn left(&mut self, page: PageId, _evicted: bool) {
        self.queue.remove(page);
        self.visited.remove(&page);
    }

    fn len(&self) -> usize {
        self.queue.len(0)
    }
}

/// S3-FIFO (Yang et al. 2023): a small queue for new pages, a main queue with reinsertion, and a history.
#[derive(Debug)]
pub(super) struct S3Fifo {
    /// The small queue, the main queue, and the history.
    lists: Lists<3>,
    uses: FxHashMap<PageId, u8>,
    places: usize,
}

const SMALL: usize = 0;
const MAIN: usize = 1;
const HISTORY: usize = 2;

impl S3Fifo {
    pub(super) fn new(places: usize) -> Self {
        Self { lists: Lists::new(), uses: FxHashMap::default(), places }
    }

    fn uses(&self, page: PageId) -> u8 {
        self.uses.get(&page).copied().unwrap_or(0)
    }

    /// Whether the small queue evicts next.
    fn small_first(&self) -> bool {
        // The small queue has a tenth of the places, as in the paper.
        10 * self.lists.len(SMALL) >= self.places || self.lists.len(MAIN) == 0
    }
}

impl Order for S3Fifo {
    fn used(&mut self, page: PageId) {
        let uses = self.uses(page);
        self.uses.insert(page, (uses + 1).min(3));
    }

    fn entered(&mut self, page: PageId) {
        // A page that comes back soon after it left the small queue would leave it too early again.
        let list = if self.lists.list_of(page) == Some(HISTORY) { MAIN } else { SMALL };
        self.lists.put(page, list);
        self.uses.insert(page, 0);
    }

    fn victim(&mut self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // Counts are at most 3, so after this many steps every page has lost its uses.
        for _ in 0..4 * self.places {
            let small = self.small_first();
            let page = self.lists.oldest(if small { SMALL } else { MAIN })?;
            let uses = self.uses(page);
            match small {
                // One hit is not enough (the condition of the paper): many pages are used twice within a
                // burst and then never again.
                true if uses > 1 => {
                    self.uses.insert(page, 0);
                    self.lists.put(page, MAIN);
                }
                false if uses > 0 => {
                    self.uses.insert(page, uses - 1);
                    self.lists.put(page, MAIN);
                }
                _ if accept(page) => return Some(page),
                // The next victim cannot be taken, such as a pinned one. Promoting others in its place
                // would change the order.
                _ => break,
            }
        }
        self.each(accept)
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let lists = if self.small_first() { [SMALL, MAIN] } else { [MAIN, SMALL] };
        lists.into_iter().flat_map(|list| self.lists.pages(list)).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, evicted: bool) {
        // A page that leaves the main queue has had its rounds without a use, so its return says nothing
        // new. A discarded page does not return.
        if self.lists.remove(page) == Some(SMALL) && evicted {
            self.lists.put(page, HISTORY);
            // The paper has as many entries as the main queue, which is nine tenths of these.
            self.lists.trim(HISTORY, self.places);
        }
        self.uses.remove(&page);
    }

    fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}

/// 2Q (Johnson & Shasha 1994), full version: a quarter for pages seen once, a history of half the places.
#[derive(Debug)]
pub(super) struct TwoQ {
    lists: Lists<3>,
    places: usize,
}

impl TwoQ {
    pub(super) fn new(places: usize) -> Self {
        Self { lists: Lists::new(), places }
    }
}

impl Order for TwoQ {
    fn used(&mut self, page: PageId) {
        // A hit soon after the first is correlated with it: pages seen once stay in FIFO order.
        if self.lists.list_of(page) == Some(MAIN) {
            self.lists.put(page, MAIN);
        }
    }

    fn entered(&mut self, page: PageId) {
        let list = if self.lists.list_of(page) == Some(HISTORY) { MAIN } else { SMALL };
        self.lists.put(page, list);
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // Kin is a quarter of the places, as the paper recommends. The small queue may exceed it while
        // the main one is empty, because then there is nothing else to evict.
        let small = 4 * self.lists.len(SMALL) > self.places || self.lists.len(MAIN) == 0;
        let lists = if small { [SMALL, MAIN] } else { [MAIN, SMALL] };
        lists.into_iter().flat_map(|list| self.lists.pages(list)).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, evicted: bool) {
        if self.lists.remove(page) == Some(SMALL) && evicted {
            self.lists.put(page, HISTORY);
            // Kout, half of the places, is the recommendation of the paper as well. A page evicted from
            // Am gets no entry there: it has not been used for a while.
            self.lists.trim(HISTORY, self.places / 2);
        }
    }

    fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}

/// ARC (Megiddo & Modha 2003): pages seen once and twice, and a history of each.
#[derive(Debug)]
pub(super) struct Arc {
    /// T1, T2, B1, B2.
    lists: Lists<4>,
    places: usize,
    /// The target size of T1.
    target: f64,
}

impl Arc {
    pub(super) fn new(places: usize) -> Self {
        Self { lists: Lists::new(), places, target: 0.0 }
    }
}

impl Order for Arc {
    fn used(&mut self, page: PageId) {
        if self.lists.list_of(page).is_some_and(|list| list < 2) {
            self.lists.put(page, 1);
        }
    }

    fn entered(&mut self, page: PageId) {
        // The paper adapts its target before it replaces a page. Here a place must be free before a page
        // enters, so its hit in a history takes effect at the eviction after this one.
        let [b1, b2] = [2, 3].map(|list| self.lists.len(list) as f64);
        // The page is in the history whose length divides, so that is not zero.
        let to = match self.lists.list_of(page) {
            Some(2) => {
                self.target = (self.target + (b2 / b1).max(1.0)).min(self.places as f64);
                1
            }
            Some(3) => {
                self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
                1
            }
            _ => 0,
        };
        self.lists.put(page, to);
        let t1 = self.lists.len(0);
        // T1 and B1 have at most as many pages as there are places, all four lists twice as many.
        self.lists.trim(2, self.places.saturating_sub(t1));
        let all = t1 + self.lists.len(1) + self.lists.len(2);
        self.lists.trim(3, (2 * self.places).saturating_sub(all));
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let t1 = self.lists.len(0);
        // REPLACE in the paper also takes from T1 at exactly its target if the page to enter comes from
        // B2. That page is not known here, so T2 gives way in that case.
        let first = t1 > 0 && (t1 as f64 > self.target || self.lists.len(1) == 0);
        let lists = if first { [0, 1] } else { [1, 0] };
        lists.into_iter().flat_map(|list| self.lists.pages(list)).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, evicted: bool) {
        if let Some(list @ 0..2) = self.lists.remove(page)
            && evicted
        {
            // T1 is followed by B1, and T2 by B2. A discarded page enters neither, since its number would
            // come back for other contents.
            self.lists.put(page, list + 2);
        }
    }

    fn len(&self) -> usize {
        self.lists.len(0) + self.lists.len(1)
    }
}

/// LIRS (Jiang & Zhang 2002): pages of low reuse distance, a hundredth of the places for others, and a stack
/// that holds evicted ones too, at most three times the places.
#[derive(Debug)]
pub(super) struct Lirs {
    stack: Lists<1>,
    /// Resident pages of high reuse distance.
    queue: Lists<1>,
    low: FxHashSet<PageId>,
    low_max: usize,
    places: usize,
}

impl Lirs {
    pub(super) fn new(places: usize) -> Self {
        // Without a place for pages of high distance, each new page would evict one of low distance.
        let low_max = (places - (places / 100).max(1).min(places)).max(1);
        Self { stack: Lists::new(), queue: Lists::new(), low: FxHashSet::default(), low_max, places }
    }

    /// Makes the page one of low reuse distance, and the oldest of these one of high distance.
    fn lower(&mut self, page: PageId) {
        self.queue.remove(page);
        self.low.insert(page);
        self.prune();
        // The pruned stack ends with a page of low distance, the one whose last use is the longest ago.
        // The paper demotes that one.
        if self.low.len() > self.low_max
            && let Some(oldest) = self.stack.oldest(0)
        {
            self.stack.remove(oldest);
            self.low.remove(&oldest);
            self.queue.put(oldest, 0);
            self.prune();
        }
    }

    /// Removes pages of high reuse distance from the stack's old end.
    fn prune(&mut self) {
        while let Some(page) = self.stack.oldest(0).filter(|page| !self.low.contains(page)) {
            self.stack.remove(page);
        }
    }

    fn refer(&mut self, page: PageId) {
        let known = self.stack.list_of(page).is_some();
        self.stack.put(page, 0);
        if self.low.contains(&page) {
            self.prune();
        // A page that is still in the stack returned sooner than the oldest of low distance was used.
        } else if known || self.low.len() < self.low_max {
            self.lower(page);
        } else {
            self.queue.put(page, 0);
        }
        // The paper lets the stack grow without a bound, and a long scan would make it do so. At most one
        // part in three of this bound is resident.
        if self.stack.len(0) > 3 * self.places {
            let evicted = |page: &PageId| !self.low.contains(page) && self.queue.list_of(*page).is_none();
            let oldest = self.stack.pages(0).find(evicted);
            if let Some(page) = oldest {
                self.stack.remove(page);
            }
        }
    }
}

impl Order for Lirs {
    fn used(&mut self, page: PageId) {
        self.refer(page);
    }

    fn entered(&mut self, page: PageId) {
        self.refer(page);
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // The paper evicts only pages of high distance. All of these may be pinned here, so pages of low
        // distance follow, in the order in which they would be demoted.
        let low = self.stack.pages(0).filter(|page| self.low.contains(page));
        self.queue.pages(0).chain(low).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, evicted: bool) {
        self.queue.remove(page);
        let was_low = self.low.remove(&page);
        // Only a page of high reuse distance leaves a trace, by which its return shows a low one.
        if was_low || !evicted {
            self.stack.remove(page);
            self.prune();
        }
    }

    fn len(&self) -> usize {
        self.low.len() + self.queue.len(0)
    }
}

/// W-TinyLFU (Einziger, Friedman & Manes 2017) without hill climbing: a window of a hundredth, a segmented
/// LRU behind it, and admission from one to the other by frequency.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    /// The window, pages on probation, and protected ones.
    lists: Lists<3>,
    uses: Uses,
    places: usize,
}

impl WTinyLfu {
    pub(super) fn new(places: usize) -> Self {
        Self { lists: Lists::new(), uses: Uses::new(places), places }
    }

    /// Fills the main part from the window while nothing must be evicted for that.
    fn settle(&mut self) {
        // While places are free, a page that overflows the window displaces nothing, so no comparison is
        // due.
        while self.lists.len(0) > (self.places / 100).max(1)
            && self.lists.len(0) + self.lists.len(1) + self.lists.len(2) < self.places
        {
            let Some(page) = self.lists.oldest(0) else { return };
            self.lists.put(page, 1);
        }
        // Four fifths are protected, as in the paper.
        while 5 * self.lists.len(2) > 4 * self.places {
            let Some(page) = self.lists.oldest(2) else { return };
            self.lists.put(page, 1);
        }
    }
}

impl Order for WTinyLfu {
    fn used(&mut self, page: PageId) {
        self.uses.add(page);
        match self.lists.list_of(page) {
            Some(0) => self.lists.put(page, 0),
            // A second use on probation protects a page. Uses in the window only reorder it: they often
            // belong to one burst.
            Some(_) => self.lists.put(page, 2),
            None => {}
        }
        self.settle();
    }

    fn entered(&mut self, page: PageId) {
        self.uses.add(page);
        self.lists.put(page, 0);
        self.settle();
    }

    fn victim(&mut self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        if let (Some(new), Some(old)) = (self.lists.oldest(0), self.lists.oldest(1)) {
            // A tie keeps the old page: a scan, whose pages all have one use, must not displace it.
            if self.uses.of(new) > self.uses.of(old) {
                if accept(old) {
                    self.lists.put(new, 1);
                    return Some(old);
                }
            } else if accept(new) {
                return Some(new);
            }
        }
        self.each(accept)
    }

    fn each(&self, accept: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        [0, 1, 2].into_iter().flat_map(|list| self.lists.pages(list)).find(|&page| accept(page))
    }

    fn left(&mut self, page: PageId, _evicted: bool) {
        self.lists.remove(page);
    }

    fn len(&self) -> usize {
        self.lists.len(0) + self.lists.len(1) + self.lists.len(2)
    }
}

/// Exact counts of uses up to 15, halved every ten uses per place: TinyLFU without its sketch's errors.
#[derive(Debug)]
pub(super) struct Uses {
    counts: FxHashMap<PageId, u8>,
    left: usize,
    period: usize,
}

impl Uses {
    pub(super) fn new(places: usize) -> Self {
        let period = 10 * places.max(1);
        Self { counts: FxHashMap::default(), left: period, period }
    }

    pub(super) fn add(&mut self, page: PageId) {
        let count = self.counts.entry(page).or_default();
        // The paper counts in four bits. A higher limit would let pages that were hot long ago outlast
        // several halvings.
        *count = (*count + 1).min(15);
        self.left -= 1;
        if self.left == 0 {
            self.left = self.period;
            self.counts.retain(|_, count| {
                *count /= 2;
                // The map would otherwise keep an entry of 0 for every page that was ever used.
                *count > 0
            });
        }
    }

    pub(super) fn of(&self, page: PageId) -> u8 {
        self.counts.get(&page).copied().unwrap_or(0)
    }
}
