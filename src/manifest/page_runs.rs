//! A set of page numbers, as runs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A set of page numbers of one space. Its runs never touch. Serialised as a list of runs: first, count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub(crate) struct PageRuns {
    /// Maps the first page of each run to the number after its last.
    ends: BTreeMap<u32, u32>,
    pages: u32,
}

impl PageRuns {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// The number after the last page; 0 for an empty set.
    pub(crate) fn end(&self) -> u32 {
        self.ends.last_key_value().map_or(0, |(_, end)| *end)
    }

    pub(crate) fn first(&self) -> Option<u32> {
        self.ends.first_key_value().map(|(first, _)| *first)
    }

    pub(crate) fn contains(&self, no: u32) -> bool {
        self.ends.range(..=no).next_back().is_some_and(|(_, end)| no < *end)
    }

    /// Where the run begins that has the number before `end`; `end` if none has.
    pub(crate) fn begin_before(&self, end: u32) -> u32 {
        let run = self.ends.range(..end).next_back().filter(|(_, last)| **last >= end);
        run.map_or(end, |(first, _)| *first)
    }

    /// How many pages of the set have numbers from `from` on.
    pub(crate) fn pages_from(&self, from: u32) -> u32 {
        let runs = self.ends.iter().rev().take_while(|(_, end)| **end > from);
        runs.map(|(first, end)| end - from.max(*first)).sum()
    }

    /// Whether all pages of the run are in the set.
    pub(crate) fn has_run(&self, first: u64, count: u64) -> bool {
        let (Ok(first), Some(end)) = (u32::try_from(first), first.checked_add(count)) else { return false };
        self.ends.range(..=first).next_back().is_some_and(|(_, last)| end <= u64::from(*last))
    }

    /// The runs in order: first, count.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ends.iter().map(|(first, end)| (*first, end - first))
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter().flat_map(|(first, count)| first..first + count)
    }

    /// The set of these runs, without those that overlap earlier ones.
    pub(crate) fn from_runs(list: &[(u32, u32)]) -> Self {
        let mut runs = Self::default();
        for (first, count) in list {
            let _ = runs.insert(*first, *count);
        }
        runs
    }

    /// Adds the run. Returns false, without effect, if it is empty, ends beyond the largest number, or
    /// overlaps the set.
    pub(crate) fn insert(&mut self, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|end| *end > first) else { return false };
        // A page listed twice would be counted twice, and `remove` would leave one of them.
        if self.ends.range(..end).next_back().is_some_and(|(_, last)| *last > first) {
            return false;
        }
        self.pages += count;
        // Joined on both sides: the manifest has one entry per run, and its size matters on a full disk.
        let end = self.ends.remove(&end).unwrap_or(end);
        match self.ends.range_mut(..first).next_back().filter(|(_, last)| **last == first) {
            Some((_, last)) => *last = end,
            None => {
                let _ = self.ends.insert(first, end);
            }
        }
        true
    }

    /// Removes the run. Returns false, without effect, unless all of its pages are in the set.
    pub(crate) fn remove(&mut self, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|end| *end > first) else { return false };
        let Some((&start, &last)) = self.ends.range(..=first).next_back().filter(|(_, last)| end <= **last)
        else {
            return false;
        };
        let _ = self.ends.remove(&start);
        if start < first {
            let _ = self.ends.insert(start, first);
        }
        if end < last {
            let _ = self.ends.insert(end, last);
        }
        self.pages -= count;
        true
    }
}

impl FromIterator<u32> for PageRuns {
    fn from_iter<T: IntoIterator<Item = u32>>(pages: T) -> Self {
        let mut runs = Self::default();
        for no in pages {
            let _ = runs.insert(no, 1);
        }
        runs
    }
}

impl TryFrom<Vec<(u32, u32)>> for PageRuns {
    type Error = &'static str;

    fn try_from(list: Vec<(u32, u32)>) -> Result<Self, Self::Error> {
        let mut runs = Self::default();
        if list.into_iter().all(|(first, count)| runs.insert(first, count)) {
            Ok(runs)
        } else {
            Err("a page is listed twice, or a run of pages has no end")
        }
    }
}

impl From<PageRuns> for Vec<(u32, u32)> {
    fn from(runs: PageRuns) -> Self {
        runs.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_set_equals_a_plain_one_and_its_runs_never_touch() {
        let (mut runs, mut plain) = (PageRuns::default(), BTreeSet::new());
        let mut seed = 7_u32;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (first, count) = (seed >> 8 & 127, seed >> 20 & 7);
            let pages = first..first + count;
            if seed & 1 << 30 == 0 {
                let free = count > 0 && pages.clone().all(|no| !plain.contains(&no));
                assert_eq!(runs.insert(first, count), free);
                plain.extend(pages.filter(|_| free));
            } else {
                let all = count > 0 && pages.clone().all(|no| plain.contains(&no));
                assert_eq!(runs.remove(first, count), all);
                pages.filter(|_| all).for_each(|no| assert!(plain.remove(&no)));
            }
            assert_eq!(runs.pages() as usize, plain.len());
            assert_eq!(runs.first(), plain.first().copied());
            assert_eq!(runs.end(), plain.last().map_or(0, |no| no + 1));
            assert!((0..140).all(|no| runs.contains(no) == plain.contains(&no)));
            for end in [0, first, first + count, 140] {
                assert_eq!(runs.pages_from(end) as usize, plain.range(end..).count());
                let begin = runs.begin_before(end);
                assert!((begin..end).all(|no| plain.contains(&no)));
                assert!(begin == 0 || !plain.contains(&(begin - 1)) || begin == end);
            }
            if count > 0 {
                let all = (first..first + count).all(|no| plain.contains(&no));
                assert_eq!(runs.has_run(first.into(), count.into()), all);
            }
            let list: Vec<(u32, u32)> = runs.iter().collect();
            assert!(list.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0));
            assert_eq!(PageRuns::try_from(list).as_ref(), Ok(&runs));
        }
    }

    #[test]
    fn impossible_runs_are_refused() {
        for list in [vec![(3, 0)], vec![(u32::MAX, 1)], vec![(1, 4), (4, 1)], vec![(4, 1), (1, 4)]] {
            assert!(PageRuns::try_from(list).is_err());
        }
    }
}
