//! Runs of extents: (first, count) each, in the order of a space's pages or of the HDD.

use std::ops::Range;

/// Pages per extent: 1 MiB of pages of the default size. Larger ones waste more of small spaces.
pub(crate) const EXTENT_PAGES: u32 = 64;

/// Stands for the first extent of a run without a place on the HDD.
pub(crate) const HOLE: u64 = u64::MAX;

/// The number of pages that fit into these extents.
pub(crate) fn reserved(runs: &[(u64, u64)]) -> u64 {
    let extents: u64 = runs.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
    extents.saturating_mul(u64::from(EXTENT_PAGES))
}

/// Appends extents to the runs of a space.
pub(crate) fn append(runs: &mut Vec<(u64, u64)>, run: (u64, u64)) {
    // Two holes side by side are one hole, but a hole never continues a run of places.
    let touches = |(first, count): &&mut (u64, u64)| match *first {
        HOLE => run.0 == HOLE,
        _ => first.checked_add(*count) == Some(run.0),
    };
    match runs.last_mut().filter(touches) {
        Some(last) => last.1 = last.1.saturating_add(run.1),
        None => runs.push(run),
    }
}

/// The hole after the `extents` extents of a space with which it holds the numbers below `end`; `None` if it
/// holds them already.
pub(crate) fn hole_to(extents: u64, end: u32) -> Option<(u64, u64)> {
    let missing = u64::from(end.div_ceil(EXTENT_PAGES)).saturating_sub(extents);
    (missing > 0).then_some((HOLE, missing))
}

/// Whether a space with these runs has `count` extents from the `at`-th on.
pub(crate) fn is_within(runs: &[(u64, u64)], at: u64, count: u64) -> bool {
    let extents = runs.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    count > 0 && at.checked_add(count).is_some_and(|end| end <= extents)
}

/// Sorts the runs and joins those that touch.
pub(crate) fn merged(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut all = Vec::with_capacity(runs.len());
    runs.into_iter().for_each(|run| append(&mut all, run));
    all
}

/// The extents that a space gets next: the start of the last free run, or new ones at the volume's end.
pub(crate) fn next_extents(used: u64, free: &[(u64, u64)], wanted: u64) -> (u64, u64) {
    // The last run: the list is sorted by place, and taking from its end moves nothing. One run per step, so
    // that a record of the manifest has a fixed size.
    free.last().map_or((used, wanted), |(first, count)| (*first, wanted.min(*count)))
}

/// Takes the extents that [`next_extents`] returns; returns false, without effect, for any others.
pub(crate) fn take_extents(used: &mut u64, free: &mut Vec<(u64, u64)>, run: (u64, u64)) -> bool {
    let (first, count) = run;
    match free.last_mut() {
        // Only what `next_extents` would return: a record from another state of the manifest does not fit,
        // and is refused.
        Some((start, left)) if *start == first && (1..=*left).contains(&count) => {
            (*start, *left) = (first + count, *left - count);
            if *left == 0 {
                let _ = free.pop();
            }
            true
        }
        None if *used == first && count > 0 => used.checked_add(count).map(|end| *used = end).is_some(),
        _ => false,
    }
}

/// The runs of a space after `run` has replaced its extents from the `nth` on.
pub(crate) fn replaced(runs: &[(u64, u64)], nth: u64, run: (u64, u64)) -> Vec<(u64, u64)> {
    let (end, mut at, mut all) = (nth + run.1, 0, Vec::with_capacity(runs.len() + 2));
    let part = |first: u64, skip: u64| if first == HOLE { HOLE } else { first + skip };
    for &(first, count) in runs {
        let next = at + count;
        if at < nth {
            append(&mut all, (first, count.min(nth - at)));
        }
        if (at..next).contains(&nth) {
            append(&mut all, run);
        }
        if next > end {
            // The part behind the replacement keeps its places, which begin later now.
            let skip = end.max(at) - at;
            append(&mut all, (part(first, skip), count - skip));
        }
        at = next;
    }
    all
}

/// The first `extents` extents of these runs.
pub(crate) fn first(runs: &[(u64, u64)], extents: u64) -> Vec<(u64, u64)> {
    let mut left = extents;
    let kept = runs.iter().map_while(|(first, count)| {
        let count = (*count).min(left);
        left -= count;
        (count > 0).then_some((*first, count))
    });
    kept.collect()
}

/// The HDD's extents, as runs, that hold the extents of a space in `range`, without holes.
pub(crate) fn places(runs: &[(u64, u64)], range: Range<u64>) -> Vec<(u64, u64)> {
    let (mut at, mut all) = (0, Vec::new());
    for &(first, count) in runs {
        let (from, to) = (range.start.max(at), range.end.min(at + count));
        if from < to && first != HOLE {
            all.push((first + (from - at), to - from));
        }
        at += count;
    }
    all
}

/// The extents of `runs`, which are in the order of the HDD, that are not in `run`.
pub(crate) fn without(runs: &[(u64, u64)], run: (u64, u64)) -> Vec<(u64, u64)> {
    let (start, end) = (run.0, run.0.saturating_add(run.1));
    let parts = runs.iter().flat_map(|(first, count)| {
        let last = first.saturating_add(*count);
        [(*first, last.min(start)), (end.max(*first), last)]
    });
    parts.filter(|(from, to)| from < to).map(|(from, to)| (from, to - from)).collect()
}

/// Whether one of the runs has the extent.
pub(crate) fn has(runs: &[(u64, u64)], extent: u64) -> bool {
    runs.iter().any(|(first, count)| extent.checked_sub(*first).is_some_and(|within| within < *count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_lose_the_extents_of_a_run_and_no_others() {
        let runs = [(2, 4), (8, 1), (10, 3)];
        for first in 0..15 {
            for count in 0..15 {
                let left = without(&runs, (first, count));
                for extent in 0..20 {
                    let taken = (first..first + count).contains(&extent);
                    assert_eq!(has(&left, extent), has(&runs, extent) && !taken, "{extent} of {left:?}");
                }
                assert!(left.iter().all(|(_, count)| *count > 0));
            }
        }
        assert_eq!(without(&runs, (0, u64::MAX)), []);
    }

    #[test]
    fn free_extents_are_taken_from_the_last_run() {
        let (mut used, mut free) = (10, vec![(1, 1), (4, 3)]);
        for expected in [(4, 2), (6, 1), (1, 1), (10, 2), (12, 2)] {
            let run = next_extents(used, &free, 2);
            assert_eq!(run, expected);
            assert!(!take_extents(&mut used, &mut free, (run.0 + 1, 1)));
            assert!(take_extents(&mut used, &mut free, run));
        }
        assert_eq!((used, free), (14, Vec::new()));
    }
}
