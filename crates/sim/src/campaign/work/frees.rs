//! Tasks free pages singly, in lists and in ranges, and reuse their numbers; spaces shrink, and grow again.

use super::worker::{LONG, Outcome, Use, Worker};
use crate::campaign::contract::content::version_in;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use pagetier::{Error, PageId, SpaceId};
use rand::Rng;
use std::time::Duration;

/// Pages of an extent, the unit that a space gives back.
const EXTENT_PAGES: u32 = 64;

/// A call that frees pages.
#[derive(Clone, Debug)]
enum Free {
    One(PageId),
    Some(Vec<PageId>),
    /// With a `sync`, of this task or another.
    OnSync(Vec<PageId>),
    /// The same, while the page that ceases to refer to them is changed under its guard.
    Unlinked(Vec<PageId>, PageId),
    Range(SpaceId, std::ops::Range<u32>),
}

impl Worker {
    pub(super) async fn free_one(&mut self) -> Outcome {
        match self.pick() {
            Some(page) => self.free(Free::One(page), vec![page]).await,
            None => Ok(()),
        }
    }

    pub(super) async fn free_some(&mut self) -> Outcome {
        let pages: Vec<PageId> = (0..self.rng.random_range(2..12)).filter_map(|_| self.pick()).collect();
        self.free(Free::Some(Vec::new()), pages).await
    }

    /// Lets a `sync` free pages that exist for certain.
    pub(super) async fn free_on_sync(&mut self) -> Outcome {
        let mut pages: Vec<PageId> = (0..self.rng.random_range(1..8)).filter_map(|_| self.pick()).collect();
        let exists = |page: &PageId| self.model.lock().live_page(*page).is_some_and(|p| p.is_in_use());
        pages.retain(exists);
        // A call that is dropped would drop the guard, too: see `free`.
        let from = if self.plan.tasks > 1 { pages.pop() } else { None };
        let from = from.filter(|from| !pages.contains(from));
        match from.and_then(|from| Some((from, self.have(from, true)?))) {
            Some((from, _held)) => self.free(Free::Unlinked(Vec::new(), from), pages).await,
            None => self.free(Free::OnSync(Vec::new()), pages).await,
        }
    }

    pub(super) async fn free_run(&mut self) -> Outcome {
        let Some(first) = self.pick() else { return Ok(()) };
        let count = [2, 5, 20, 70][self.rng.random_range(0..4)];
        self.free_from(first, count).await
    }

    /// Frees an extent's pages, so that the space can give it back, or the last pages of a space, so that it
    /// can end earlier.
    pub(super) async fn free_extent(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Ok(end) = self.store.spaces().pages(page.space) else { return Ok(()) };
        let last = end.saturating_sub([1, 5, 20, EXTENT_PAGES][self.rng.random_range(0..4)]);
        let no = if self.rng.random_bool(0.5) { last } else { page.no / EXTENT_PAGES * EXTENT_PAGES };
        self.free_from(PageId::new(page.space, no), EXTENT_PAGES).await?;
        if self.rng.random_bool(0.7) { self.shrink().await } else { Ok(()) }
    }

    async fn free_from(&mut self, first: PageId, count: u32) -> Outcome {
        // Another task's allocation may be about to use a free page of the range.
        let mut pages = self.model.lock().run(first, count, self.plan.tasks == 1);
        let freed = pages.iter().take_while(|page| self.may_free(**page)).count();
        pages.truncate(freed);
        let Some(last) = pages.last() else { return Ok(()) };
        self.free(Free::Range(first.space, first.no..last.no + 1), pages).await
    }

    pub(super) async fn free_page(&mut self, page: PageId) -> Outcome {
        self.free(Free::One(page), vec![page]).await
    }

    /// Frees those of `pages` that exist and that no task uses.
    async fn free(&mut self, call: Free, pages: Vec<PageId>) -> Outcome {
        let held =
            |page: &PageId| self.have(*page, true).filter(|held| !held.was_free && self.may_free(*page));
        let held: Vec<(PageId, Use)> = pages.iter().filter_map(|page| Some((*page, held(page)?))).collect();
        let pages: Vec<PageId> = held.iter().map(|(page, _)| *page).collect();
        let call = match call {
            Free::Some(_) => Free::Some(pages.clone()),
            _ if pages.is_empty() => return Ok(()),
            Free::OnSync(_) => Free::OnSync(pages.clone()),
            Free::Unlinked(_, from) => Free::Unlinked(pages.clone(), from),
            other => other,
        };
        let (upto, sure) = {
            let mut model = self.model.lock();
            let sure: Vec<bool> =
                pages.iter().map(|page| model.live_page(*page).is_some_and(|p| p.is_in_use())).collect();
            pages.iter().for_each(|page| model.freeing(*page));
            model.doing.free += 1;
            // Meanwhile no task may allocate one of the others: the call would free it.
            model.doing.by_number += u32::from(sure.contains(&false));
            (model.last_version, sure)
        };
        let unsure = sure.contains(&false);
        let polls = [1, 2, 3, 5, 10][self.rng.random_range(0..5)];
        // The second call could free the number's next life, if another task began one.
        let dropped = self.plan.tasks == 1 && self.plan.has("drop-future") && self.rng.random_bool(0.15);
        let first = if dropped { up_to(polls, self.call(&call)).await } else { None };
        let alone = first.is_none() && !dropped;
        let done = match first {
            Some(done) => Ok(done),
            // A dropped call continues, and this one returns once the pages have left memory.
            None => tokio::time::timeout(LONG, self.call(&call)).await.map_err(|_| "free hangs".to_owned()),
        };
        {
            let mut model = self.model.lock();
            model.doing.free -= 1;
            model.doing.by_number -= u32::from(unsure);
        }
        let done = done?;
        match done {
            Ok(freed) => {
                pages.iter().for_each(|page| self.model.lock().freed(*page, upto));
                let least = sure.iter().filter(|sure| **sure).count();
                let live = pages.iter().all(|page| self.model.lock().live_page(*page).is_some());
                if alone && live && freed < least as u32 {
                    return Err(format!("{call:?} freed {freed} pages, {least} were in use"));
                }
                Ok(())
            }
            Err(error) if matches!(call, Free::OnSync(_) | Free::Unlinked(..)) => {
                // Any later `sync` may free them: each may be there or not, and no task uses it, until a
                // crash shows.
                held.into_iter().for_each(|(_, held)| held.keep());
                self.probe.mark(State::FreeFailed);
                self.judge("free_on_sync", None, &error)
            }
            Err(error) => self.free_failed(&call, (&pages, &sure), upto, (alone, error)).await,
        }
    }

    /// Whether `page` exists, or no other task's allocation can be about to use its number.
    fn may_free(&self, page: PageId) -> bool {
        let mut model = self.model.lock();
        model.doing.allocate == 0 || model.live_page(page).is_some_and(|p| p.is_in_use())
    }

    async fn call(&self, call: &Free) -> Result<u32, Error> {
        match call {
            Free::One(page) => match self.store.free(*page).await? {
                0 => Err(Error::NoSuchPage { page: *page }),
                freed => Ok(freed),
            },
            Free::Some(pages) => self.store.free(pages).await,
            Free::OnSync(pages) => {
                let last = self.model.lock().last_version;
                let noted = self.store.free_on_sync(pages)?;
                // Meanwhile the `sync` of another task may free them.
                tokio::time::sleep(Duration::from_micros(u64::from(noted % 3) * self.plan.hdd_us)).await;
                self.store.sync().await?;
                for page in pages {
                    self.left(*page, last).await;
                }
                Ok(noted)
            }
            Free::Unlinked(pages, from) => {
                let last = self.model.lock().last_version;
                let noted = self.unlinked(*from, pages).await?;
                for page in pages {
                    self.left(*page, last).await;
                }
                Ok(noted)
            }
            Free::Range(space, range) => self.store.free((*space, range.clone())).await,
        }
    }

    /// Changes `from`, and lets a `sync` free `pages` while its guard lives: a crash must not leave one of
    /// them free and `from` without the change.
    async fn unlinked(&self, from: PageId, pages: &[PageId]) -> Result<u32, Error> {
        let mut guard = self.store.get_mut(from).await?;
        let version = self.model.lock().write(&mut guard);
        let noted = {
            let mut model = self.model.lock();
            pages.iter().for_each(|page| model.unlinked(*page, from, version));
            self.store.free_on_sync(pages)
        };
        let holding = async {
            tokio::time::sleep(Duration::from_micros(1 + u64::from(version % 3) * self.plan.hdd_us)).await;
            drop(guard);
            self.model.lock().published(from, version);
        };
        let (synced, ()) = tokio::join!(self.store.sync(), holding);
        synced.and(noted)
    }

    /// Waits until the freed page, whose versions ended at `last`, has left memory.
    async fn left(&self, page: PageId, last: u32) {
        // Another task may use the number again at once: a new page is blank, or has a later version.
        let is_old =
            |guard: &[u8]| version_in(guard, page).is_ok_and(|version| (1..=last).contains(&version));
        while self.store.get(page).await.is_ok_and(|guard| is_old(&guard)) {
            tokio::time::sleep(Duration::from_micros(1)).await;
        }
    }

    /// Checks the result of a failed call: each page is free, or as it was.
    async fn free_failed(
        &mut self,
        call: &Free,
        (pages, sure): (&[PageId], &[bool]),
        upto: u32,
        (alone, error): (bool, Error),
    ) -> Outcome {
        let one = matches!(call, Free::One(_));
        if one && matches!(error, Error::NoSuchPage { .. }) {
            if alone {
                self.judge("free", pages.first().copied(), &error)?;
            }
            let mut model = self.model.lock();
            for page in pages {
                if alone { model.not_there(*page) } else { model.freed(*page, upto) }
            }
            return Ok(());
        }
        self.judge("free", None, &error)?;
        self.probe.mark(State::FreeFailed);
        let recorded = !matches!(error, Error::Manifest { .. });
        for (page, sure) in pages.iter().zip(sure) {
            // Another task reused the number, so it was free.
            let again = self.model.lock().is_above(*page, upto);
            // A read may show a freed page's contents until they have left memory.
            let gone = again
                || !self.store.exists(*page)
                || matches!(self.store.get(*page).await, Err(Error::NoSuchPage { .. }));
            // Another task's range may contain the page, which passes for free meanwhile.
            let alone = alone && self.plan.tasks == 1;
            let mut model = self.model.lock();
            match (gone, *sure) {
                (true, true) if one && alone && !recorded && model.live_page(*page).is_some() => {
                    return Err(format!("page {page} does not exist, though freeing it failed: {error}"));
                }
                (true, true) => model.freed(*page, upto),
                (true, false) => model.not_there(*page),
                (false, _) => model.not_freed(*page),
            }
        }
        Ok(())
    }

    pub(crate) async fn shrink(&mut self) -> Outcome {
        let Some(space) = self.any_space() else { return Ok(()) };
        let before = self.store.spaces().pages(SpaceId(space)).ok();
        self.model.lock().doing.shrink += 1;
        let polls = if self.plan.has("drop-future") && self.rng.random_bool(0.2) { 3 } else { u32::MAX };
        let shrunk =
            tokio::time::timeout(LONG, up_to(polls, self.store.spaces().shrink(SpaceId(space)))).await;
        self.model.lock().doing.shrink -= 1;
        match shrunk.map_err(|_| "shrink hangs")? {
            Some(Ok(bytes)) => {
                if bytes > 0 {
                    self.probe.mark(State::Shrunk);
                }
                self.ends_with_a_page(SpaceId(space), before)
            }
            Some(Err(error)) => self.judge("shrink", None, &error),
            None => Ok(()),
        }
    }

    /// Checks the end of a space that has shrunk, and had `before` pages.
    fn ends_with_a_page(&self, space: SpaceId, before: Option<u32>) -> Outcome {
        let Ok(pages) = self.store.spaces().pages(space) else { return Ok(()) };
        if Some(pages) < before {
            self.probe.mark(State::Lowered);
        }
        // Other tasks allocate meanwhile, and the pages of a free that was dropped leave later.
        let alone = self.plan.tasks == 1 && self.plan.hot_ms == 0;
        let alone = alone && !self.plan.faults && !self.plan.has("drop-future");
        // Those of a `sync` that failed are not free yet, although they do not count as existing.
        let pending = |page| self.model.lock().live_page(page).is_some_and(|p| !p.is_free());
        match pages.checked_sub(1).map(|last| PageId::new(space, last)) {
            Some(last) if alone && !self.store.exists(last) && !pending(last) => {
                Err(format!("the space was shrunk, but its last page {last} is free"))
            }
            _ if alone && Some(pages) > before => Err(format!("shrunk, space {space} has {pages} pages")),
            _ => Ok(()),
        }
    }

    /// Reserves room, which later pages of the space must get.
    pub(crate) async fn reserve(&mut self) -> Outcome {
        let Some(space) = self.any_space() else { return Ok(()) };
        let space = SpaceId(space);
        let Ok(pages) = self.store.spaces().pages(space) else { return Ok(()) };
        let pages = pages + [0, 1, 70, 200][self.rng.random_range(0..4)];
        let polls = if self.plan.has("drop-future") && self.rng.random_bool(0.2) { 3 } else { u32::MAX };
        let call = self.store.spaces().reserve(space, pages);
        let reserved = tokio::time::timeout(LONG, up_to(polls, call)).await;
        match reserved.map_err(|_| "reserve hangs")? {
            Some(Err(error)) => self.judge("reserve", None, &error),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Allocates pages, so that extents fill up.
    pub(crate) async fn fill(&mut self) -> Outcome {
        for _ in 0..[1, 5, 20, 80][self.rng.random_range(0..4)] {
            if self.model.lock().pages() >= self.plan.pages as usize || !self.allocated().await? {
                break;
            }
        }
        Ok(())
    }
}
