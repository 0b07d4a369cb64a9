//! Small changes of the manifest, each a record in its tail. A change is applied by the same code in memory
//! and when the file is read.

use crate::manifest::{EXTENT_PAGES, Manifest};
use crate::placement::{HOLE, places, replaced};
use serde::{Deserialize, Serialize};

/// The maximum number of page runs in a record, so that the record fits into a block.
pub(crate) const CHANGE_RUNS_MAX: usize = 128;

/// A record in the tail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its number among the tail's records, from 0.
    pub(crate) n: u64,
    /// The manifest's generation once the record is applied.
    pub(crate) generation: u64,
    pub(crate) change: Change,
}

/// A change of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// A new space, without pages.
    Add { space: u32, name: String },
    /// A space gets extents (first, count), at its end or in a hole from its extent `at` on. They were free,
    /// or are new ones at the volume's end.
    Grow {
        space: u32,
        run: (u64, u64),
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<u64>,
    },
    /// Pages (first, count) of a space cease to exist.
    Free { space: u32, pages: Vec<(u32, u32)> },
    /// Freed pages (first, count) exist again.
    Reuse { space: u32, pages: Vec<(u32, u32)> },
    /// Extents of a space (first in the space, count) become free; all of their pages were.
    GiveBack { space: u32, extents: (u64, u64) },
}

impl Change {
    /// Whether the change makes the manifest name more: extents or a space.
    pub(crate) fn names_more(&self) -> bool {
        matches!(self, Self::Add { .. } | Self::Grow { .. })
    }
}

impl Manifest {
    /// Applies `change`.
    ///
    /// # Errors
    /// The change does not fit the manifest: the record belongs to another one. The manifest may be half
    /// changed and must not be used.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), &'static str> {
        match change {
            Change::Add { space, name } => {
                if *space < self.next_space || *space == u32::MAX {
                    return Err("a record creates a space with a used id");
                }
                self.next_space = space + 1;
                self.add_space(*space, name);
            }
            Change::Grow { space, run, at } => {
                if !take_extents(&mut self.extents_used, &mut self.extents_free, *run) {
                    return Err("a record gives a space extents that are in use");
                }
                let runs = &mut self.space_mut(*space)?.runs;
                match *at {
                    None => append(runs, *run),
                    Some(at) if is_within(runs, at, run.1) && places(runs, at..at + run.1).is_empty() => {
                        *runs = replaced(runs, at, *run);
                    }
                    Some(_) => return Err("a record gives a space extents that it has"),
                }
            }
            Change::Free { space, pages } => {
                let space = self.space_mut(*space)?;
                if !pages.iter().all(|(first, count)| space.free.insert(*first, *count)) {
                    return Err("a record frees a free page");
                }
                // After a crash the space may have more pages than the manifest counts.
                space.pages = space.pages.max(space.free.end());
                if u64::from(space.pages) > reserved(&space.runs) {
                    return Err("a record frees a page without room");
                }
            }
            Change::Reuse { space, pages } => {
                let free = &mut self.space_mut(*space)?.free;
                if !pages.iter().all(|(first, count)| free.remove(*first, *count)) {
                    return Err("a record reuses a page that is not free");
                }
            }
            Change::GiveBack { space, extents: (at, count) } => {
                let space = self.space_mut(*space)?;
                let pages = (*at)
                    .checked_mul(u64::from(EXTENT_PAGES))
                    .zip(count.checked_mul(u64::from(EXTENT_PAGES)));
                let free = pages.is_some_and(|(first, count)| space.free.has_run(first, count));
                if !free || !is_within(&space.runs, *at, *count) {
                    return Err("a record gives back extents with pages");
                }
                let given = places(&space.runs, *at..at + count);
                space.runs = replaced(&space.runs, *at, (HOLE, *count));
                self.extents_free = merged(self.extents_free.iter().copied().chain(given).collect());
            }
        }
        Ok(())
    }

    fn space_mut(&mut self, id: u32) -> Result<&mut crate::manifest::SpaceRecord, &'static str> {
        let at = self.spaces.binary_search_by_key(&id, |space| space.id);
        at.map(|at| &mut self.spaces[at]).map_err(|_| "a record names no space")
    }
}

/// The number of pages that fit into these extents.
pub(crate) fn reserved(runs: &[(u64, u64)]) -> u64 {
    let extents: u64 = runs.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
    extents.saturating_mul(u64::from(EXTENT_PAGES))
}

/// Appends extents to the runs of a space.
pub(crate) fn append(runs: &mut Vec<(u64, u64)>, run: (u64, u64)) {
    let touches = |(first, count): &&mut (u64, u64)| match *first {
        HOLE => run.0 == HOLE,
        _ => first.checked_add(*count) == Some(run.0),
    };
    match runs.last_mut().filter(touches) {
        Some(last) => last.1 = last.1.saturating_add(run.1),
        None => runs.push(run),
    }
}

/// Whether a space with these runs has `count` extents from the `at`-th on.
fn is_within(runs: &[(u64, u64)], at: u64, count: u64) -> bool {
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
    free.last().map_or((used, wanted), |(first, count)| (*first, wanted.min(*count)))
}

/// Takes the extents that [`next_extents`] returns; returns false, without effect, for any others.
pub(crate) fn take_extents(used: &mut u64, free: &mut Vec<(u64, u64)>, run: (u64, u64)) -> bool {
    let (first, count) = run;
    match free.last_mut() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::PageSize;

    fn add(space: u32) -> Change {
        Change::Add { space, name: format!("s{space}") }
    }

    fn grow(space: u32, run: (u64, u64)) -> Change {
        Change::Grow { space, run, at: None }
    }

    fn applied(changes: &[Change]) -> Result<Manifest, &'static str> {
        let mut manifest = Manifest::new("s".into(), PageSize::MIN);
        changes.iter().try_for_each(|change| manifest.apply(change)).map(|()| manifest)
    }

    #[test]
    fn changes_apply_in_order_and_others_are_refused() {
        let free = |pages: &[(u32, u32)]| Change::Free { space: 2, pages: pages.to_vec() };
        let reuse = |pages: &[(u32, u32)]| Change::Reuse { space: 2, pages: pages.to_vec() };
        let base = [add(1), add(2), grow(2, (0, 1)), grow(1, (1, 2)), grow(2, (3, 1)), grow(2, (4, 2))];
        let manifest = applied(&base).unwrap();
        assert_eq!((manifest.next_space, manifest.extents_used), (3, 6));
        assert_eq!(manifest.spaces[1].runs, [(0, 1), (3, 3)]);
        let with = |more: &[Change]| applied(&[&base, more].concat());
        // A space gives back both of its extents, and gets others.
        let empty = Change::Free { space: 1, pages: vec![(0, 128)] };
        let give = |extents| Change::GiveBack { space: 1, extents };
        let given = [empty.clone(), give((1, 1)), give((0, 1))];
        let gone = with(&given).unwrap();
        assert_eq!((&gone.spaces[0].runs, &gone.extents_free), (&vec![(HOLE, 2)], &vec![(1, 2)]));
        let fill = Change::Grow { space: 1, run: (1, 1), at: Some(1) };
        let filled = with(&[&given[..], &[fill.clone(), grow(2, (2, 1))]].concat()).unwrap();
        assert_eq!(filled.spaces[0].runs, [(HOLE, 1), (1, 1)]);
        assert!(filled.extents_free.is_empty());
        assert!(with(&[give((0, 1))]).is_err() && with(&[empty.clone(), give((1, 2))]).is_err());
        assert!(with(&[empty, Change::Grow { space: 1, run: (6, 1), at: Some(1) }]).is_err());
        assert!(with(&[&given[..], &[fill.clone(), fill]].concat()).is_err());
        let freed = with(&[free(&[(3, 2), (9, 1)]), free(&[(5, 4)]), reuse(&[(4, 3)])]).unwrap();
        assert_eq!(Vec::from(freed.spaces[1].free.clone()), [(3, 1), (7, 3)]);
        assert_eq!(freed.spaces[1].pages, 10, "counted when they were freed");
        for wrong in [
            add(2),
            grow(3, (6, 1)),
            grow(1, (5, 1)),
            grow(1, (6, 0)),
            free(&[(3, 2), (4, 1)]),
            free(&[(4 * EXTENT_PAGES, 1)]),
            reuse(&[(3, 1)]),
        ] {
            assert!(with(std::slice::from_ref(&wrong)).is_err(), "{wrong:?}");
        }
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
