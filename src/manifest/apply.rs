//! How a change is applied to the manifest: by the same code in memory and when the file is read.

use super::changes::Change;
use super::contents::{Manifest, SpaceRecord};
use super::extents::{
    EXTENT_PAGES, HOLE, append, first, is_within, merged, places, replaced, reserved, take_extents, without,
};

impl Manifest {
    /// Applies `change`.
    ///
    /// # Errors
    /// The change does not fit the manifest: the record belongs to another one. The manifest may be half
    /// changed and must not be used.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), &'static str> {
        match change {
            Change::Add { space, name } => {
                // Numbers are never reused. A page of a dropped space may still have a copy on the SSD, which
                // would become a page of the new one.
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
                // Every growth formats its extents.
                self.unformatted = without(&self.unformatted, *run);
                let runs = &mut self.space_mut(*space)?.runs;
                match *at {
                    None => append(runs, *run),
                    // In the middle of a space, only a hole may be filled: pages that lie there would lose
                    // their homes.
                    Some(at) if is_within(runs, at, run.1) && places(runs, at..at + run.1).is_empty() => {
                        *runs = replaced(runs, at, *run);
                    }
                    Some(_) => return Err("a record gives a space extents that it has"),
                }
            }
            Change::Free { space, pages } => {
                let space = self.space_mut(*space)?;
                // A page cannot be freed twice in a row. If a record says so, it belongs to another state of
                // the manifest.
                if !pages.iter().all(|(first, count)| space.free.insert(*first, *count)) {
                    return Err("a record frees a free page");
                }
                // After a crash the space may have more pages than the manifest counts.
                space.count_to(pages)?;
            }
            Change::Reuse { space, pages } => {
                let space = self.space_mut(*space)?;
                if !pages.iter().all(|(first, count)| space.free.remove(*first, *count)) {
                    return Err("a record reuses a page that is not free");
                }
                // They exist: one beyond the end that `shrink` set makes the space end after it again.
                space.count_to(pages)?;
            }
            Change::GiveBack { space, extents: (at, count) } => self.give_back(*space, *at, *count)?,
            Change::Cut { space, extents } => self.cut(*space, *extents)?,
            Change::Log(record) => self.log = Some(*record),
            Change::BeginDrop { space } => self.space_mut(*space)?.dropping = true,
            Change::EndDrop { space } => {
                let at = self.spaces.binary_search_by_key(space, |space| space.id);
                let dropped = self.spaces.remove(at.map_err(|_| "a record names no space")?);
                // Holes of the dropped space were given back earlier, when they became holes.
                self.add_free(dropped.runs.into_iter().filter(|(first, _)| *first != HOLE).collect());
            }
        }
        Ok(())
    }

    /// Applies [`Change::GiveBack`].
    fn give_back(&mut self, space: u32, at: u64, count: u64) -> Result<(), &'static str> {
        let space = self.space_mut(space)?;
        let extent = u64::from(EXTENT_PAGES);
        let pages = at.checked_mul(extent).zip(count.checked_mul(extent));
        // A page that exists needs its home.
        let free = pages.is_some_and(|(first, count)| space.free.has_run(first, count));
        if !free || !is_within(&space.runs, at, count) {
            return Err("a record gives back extents with pages");
        }
        let given = places(&space.runs, at..at + count);
        space.runs = replaced(&space.runs, at, (HOLE, count));
        self.add_free(given);
        Ok(())
    }

    /// Applies [`Change::Cut`].
    fn cut(&mut self, space: u32, extents: u64) -> Result<(), &'static str> {
        let space = self.space_mut(space)?;
        // Free pages keep their numbers, so only extents beyond the last number may go.
        let has = reserved(&space.runs) / u64::from(EXTENT_PAGES);
        if extents >= has || u64::from(space.end()) > extents * u64::from(EXTENT_PAGES) {
            return Err("a record cuts off extents with pages");
        }
        let cut = places(&space.runs, extents..has);
        space.runs = first(&space.runs, extents);
        self.add_free(cut);
        Ok(())
    }

    fn add_free(&mut self, runs: Vec<(u64, u64)>) {
        self.extents_free = merged(self.extents_free.iter().copied().chain(runs).collect());
    }

    fn space_mut(&mut self, id: u32) -> Result<&mut SpaceRecord, &'static str> {
        let at = self.spaces.binary_search_by_key(&id, |space| space.id);
        at.map(|at| &mut self.spaces[at]).map_err(|_| "a record names no space")
    }
}

impl SpaceRecord {
    /// Counts the pages up to the last of `pages`, which the space has or had.
    fn count_to(&mut self, pages: &[(u32, u32)]) -> Result<(), &'static str> {
        let end = pages.iter().map(|(first, count)| first + count).max();
        self.pages = self.pages.max(end.unwrap_or(0));
        let has_room = u64::from(self.pages) <= reserved(&self.runs);
        has_room.then_some(()).ok_or("a record names a page without room")
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
        // A free page beyond the end, which a save had lowered, is counted again once it is in use, and its
        // extent stays.
        let mut shrunk = freed.clone();
        shrunk.spaces[1].pages = 3;
        assert!(shrunk.clone().apply(&Change::Cut { space: 2, extents: 0 }).is_err());
        shrunk.apply(&reuse(&[(8, 1)])).unwrap();
        assert_eq!(shrunk.spaces[1].pages, 9);
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
    fn what_is_cut_off_or_dropped_becomes_free() {
        let base = [add(1), add(2), grow(2, (0, 1)), grow(1, (1, 2)), grow(2, (3, 3))];
        let with = |more: &[Change]| applied(&[&base, more].concat());
        let cut = |extents| Change::Cut { space: 2, extents };
        // The space has 65 pages.
        let pages = Change::Free { space: 2, pages: vec![(64, 1)] };
        let shorter = with(&[pages.clone(), cut(2)]).unwrap();
        assert_eq!((&shorter.spaces[1].runs, &shorter.extents_free), (&vec![(0, 1), (3, 1)], &vec![(4, 2)]));
        for wrong in [cut(1), cut(4), cut(5), Change::Cut { space: 3, extents: 0 }] {
            assert!(with(&[pages.clone(), wrong.clone()]).is_err(), "{wrong:?}");
        }
        let (begin, end) = (Change::BeginDrop { space: 1 }, Change::EndDrop { space: 1 });
        assert!(with(std::slice::from_ref(&begin)).unwrap().spaces[0].dropping);
        let gone = with(&[begin, end.clone()]).unwrap();
        assert_eq!((gone.spaces.len(), gone.spaces[0].id, &gone.extents_free), (1, 2, &vec![(1, 2)]));
        assert!(with(&[end.clone(), end]).is_err());
    }
}
