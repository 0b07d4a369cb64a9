//! Where a space's extents lie on the HDD. Extents whose pages are all free may have no place there: they
//! form holes.

use crate::manifest::extents::{EXTENT_PAGES, HOLE, append, first, places, replaced};
use std::ops::Range;

/// The extents of a space in page order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    runs: Vec<(u64, u64)>,
    /// For each run, the number of the space's extents before it.
    before: Vec<u64>,
    extents: u64,
}

impl Placement {
    pub(crate) fn new(runs: &[(u64, u64)]) -> Self {
        let mut this = Self::default();
        runs.iter().for_each(|run| this.append(*run));
        this
    }

    pub(crate) fn append(&mut self, run: (u64, u64)) {
        append(&mut self.runs, run);
        // A run that continues the last one is joined to it, and has no entry of its own.
        if self.before.len() < self.runs.len() {
            self.before.push(self.extents);
        }
        self.extents += run.1;
    }

    /// The extents as runs: first, count. Those without a place begin at [`HOLE`].
    pub(crate) fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// The HDD's extent that holds the space's `nth`, in O(log n) for n runs.
    pub(crate) fn extent(&self, nth: u64) -> Option<u64> {
        let run = self.before.partition_point(|before| *before <= nth).checked_sub(1)?;
        let (first, count) = self.runs[run];
        let within = nth - self.before[run];
        // Past the end, or in a hole: there is no place, and the caller must grow the space first.
        (within < count && first != HOLE).then(|| first + within)
    }

    /// The extents of the hole that contains the `nth`, if it lies in one.
    pub(crate) fn hole(&self, nth: u64) -> Option<Range<u64>> {
        let run = self.before.partition_point(|before| *before <= nth).checked_sub(1)?;
        let (first, count) = self.runs[run];
        let hole = self.before[run]..self.before[run] + count;
        (first == HOLE && hole.contains(&nth)).then_some(hole)
    }

    /// Replaces the extents from the `nth` on with the run, or with a hole if the run begins at [`HOLE`].
    pub(crate) fn replace(&mut self, nth: u64, run: (u64, u64)) {
        // Rebuilt as a whole: changes are rare, a lookup is on every miss.
        *self = Self::new(&replaced(&self.runs, nth, run));
    }

    /// The first of the first `extents` extents that has no place: in a hole, or past the end.
    pub(crate) fn first_without_place(&self, extents: u64) -> Option<u64> {
        let runs = self.runs.iter().zip(&self.before);
        let hole = runs.filter(|((first, _), _)| *first == HOLE).map(|(_, before)| *before).next();
        Some(hole.unwrap_or(self.extents)).filter(|nth| *nth < extents)
    }

    /// The number of the space's first `pages` pages whose extents have no place.
    pub(crate) fn roomless_pages(&self, pages: u32) -> u64 {
        let upto = |extents: u64| (extents * u64::from(EXTENT_PAGES)).min(pages.into());
        let holes = self.runs.iter().zip(&self.before).filter(|((first, _), _)| *first == HOLE);
        holes.map(|((_, count), before)| upto(before + count) - upto(*before)).sum()
    }

    /// Those of `pages` that have a place, in order.
    pub(crate) fn placed(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        let page = |extents: u64| u32::try_from(extents * u64::from(EXTENT_PAGES)).unwrap_or(u32::MAX);
        let run = self.before.partition_point(|before| page(*before) <= pages.start).saturating_sub(1);
        let runs = self.runs[run..].iter().zip(&self.before[run..]);
        let runs = runs.take_while(|(_, before)| page(**before) < pages.end).filter(|(run, _)| run.0 != HOLE);
        let within = |((_, count), before): (&(u64, u64), &u64)| {
            page(*before).max(pages.start)..page(before + count).min(pages.end)
        };
        runs.map(within).filter(|range| !range.is_empty()).collect()
    }

    /// The number of extents, holes included.
    pub(crate) fn extents(&self) -> u64 {
        self.extents
    }

    /// Keeps the first `extents` extents. Returns the places of the others on the HDD, in page order.
    pub(crate) fn truncate(&mut self, extents: u64) -> Vec<(u64, u64)> {
        if extents >= self.extents {
            return Vec::new();
        }
        // Holes in the tail have no place to give back.
        let cut = places(&self.runs, extents..self.extents);
        *self = Self::new(&first(&self.runs, extents));
        cut
    }

    /// The number of pages for which there is room.
    pub(crate) fn pages(&self) -> u64 {
        self.extents * u64::from(EXTENT_PAGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extent_is_found_among_many_runs_and_neighbours_are_one_run() {
        let (mut placement, mut plain) = (Placement::default(), Vec::new());
        let (mut next, mut seed) = (0, 3_u64);
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            next += seed >> 33 & 1;
            let count = 1 + (seed >> 40 & 3);
            placement.append((next, count));
            plain.extend(next..next + count);
            next += count;
        }
        assert_eq!(placement.pages(), plain.len() as u64 * u64::from(EXTENT_PAGES));
        for (nth, extent) in plain.iter().enumerate() {
            assert_eq!(placement.extent(nth as u64), Some(*extent));
        }
        assert_eq!(placement.extent(plain.len() as u64), None);
        let runs = placement.runs();
        assert!(runs.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0));
        assert_eq!(Placement::new(runs).runs(), runs);
        assert_eq!(Placement::default().extent(0), None);
    }

    #[test]
    fn extents_are_taken_out_and_put_back_anywhere() {
        let (mut placement, mut plain) = (Placement::default(), Vec::new());
        for nth in 0..40 {
            placement.append((3 * nth, 2));
            plain.extend([Some(3 * nth), Some(3 * nth + 1)]);
        }
        let mut seed = 5_u64;
        for turn in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let nth = (seed >> 33) % 80;
            let count = 1 + (seed >> 50) % (80 - nth).min(7);
            let first = if seed >> 60 < 8 { HOLE } else { 1000 + 10 * turn };
            let expected: Vec<(u64, u64)> =
                (nth..nth + count).filter_map(|at| plain[at as usize]).map(|extent| (extent, 1)).collect();
            let places = places(placement.runs(), nth..nth + count);
            let single = |(first, count): (u64, u64)| (first..first + count).map(|extent| (extent, 1));
            assert_eq!(places.into_iter().flat_map(single).collect::<Vec<_>>(), expected);
            placement.replace(nth, (first, count));
            for at in 0..count {
                plain[(nth + at) as usize] = (first != HOLE).then(|| first + at);
            }
            for (nth, extent) in (0..).zip(&plain) {
                assert_eq!(placement.extent(nth), *extent);
                assert_eq!(placement.hole(nth).is_some(), extent.is_none());
            }
            assert_eq!(placement.pages(), 80 * u64::from(EXTENT_PAGES));
            if turn % 20 == 0 {
                let (from, to) = (((seed >> 10) % 5300) as u32, ((seed >> 20) % 5300) as u32);
                let extent_of = |no: u32| plain.get((no / EXTENT_PAGES) as usize);
                let placed = (from..to).filter(|no| extent_of(*no).is_some_and(Option::is_some));
                assert!(placement.placed(from..to).into_iter().flatten().eq(placed));
                let roomless = (0..to).filter(|no| extent_of(*no).is_some_and(Option::is_none)).count();
                assert_eq!(placement.roomless_pages(to), roomless as u64);
            }
            let (mut some, cut) = (placement.clone(), nth + count);
            let expected: Vec<u64> = plain[cut as usize..].iter().copied().flatten().collect();
            let given: Vec<u64> =
                some.truncate(cut).iter().flat_map(|(first, count)| *first..first + count).collect();
            assert_eq!((given, some.extents()), (expected, cut));
            assert!((0..90).all(|at| some.extent(at) == placement.extent(at).filter(|_| at < cut)));
        }
    }

    /// A lookup is a binary search.
    #[test]
    fn finding_an_extent_does_not_take_time_in_proportion_to_the_runs() {
        let mut placement = Placement::default();
        (0..1_000_000).for_each(|nth| placement.append((2 * nth, 1)));
        // A linear search would take about 10^12 steps for these.
        for nth in 0..1_000_000 {
            assert_eq!(placement.extent(nth), Some(2 * nth));
        }
    }
}
