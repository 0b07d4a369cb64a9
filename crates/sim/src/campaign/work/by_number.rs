//! Further ways to reach pages: by number, through owned guards, only in memory, far beyond a space's end,
//! and under other guards.

use super::worker::{Outcome, Worker};
use pagetier::log::LogMark;
use pagetier::{Error, Loss, Lsn, PageId, Retention, SpaceHints, SpaceId};
use pagetier_devio::{Device, DeviceErrorKind};
use rand::Rng;
use std::sync::Arc;

/// The largest gap that "create by number" leaves before a new page.
const GAP_MAX: u32 = 3;

impl Worker {
    pub(super) async fn read_owned(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(held) = self.have(page, false) else { return Ok(()) };
        match self.store.get(page).await.map(|page| page.into_owned(&self.store)) {
            Ok(guard) => self.expect(page, &guard),
            Err(Error::NoSuchPage { .. }) if held.was_free => Ok(()),
            Err(error) => self.judge("get_owned", Some(page), &error),
        }
    }

    /// Some pages at once, one of them perhaps twice.
    pub(crate) async fn read_many(&mut self) -> Outcome {
        let wanted = self.rng.random_range(1..5);
        let pages: Vec<PageId> = (0..wanted).filter_map(|_| self.pick()).collect();
        let held: Vec<_> = pages.iter().filter_map(|page| self.have(*page, false)).collect();
        if held.len() < pages.len() {
            return Ok(());
        }
        match self.store.get_many(&pages).await {
            Ok(guards) => pages.iter().zip(&guards).try_for_each(|(page, guard)| self.expect(*page, guard)),
            Err(Error::NoSuchPage { .. }) if held.iter().any(|one| one.was_free) => Ok(()),
            Err(error) => {
                // The error does not always name its page: it is right if it is right for one of them.
                let judged = |page: &PageId| self.judge("get_many", Some(*page), &error);
                if pages.iter().any(|page| judged(page).is_ok()) { Ok(()) } else { judged(&pages[0]) }
            }
        }
    }

    pub(super) async fn try_read(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(_held) = self.have(page, false) else { return Ok(()) };
        self.store.try_get(page).map_or(Ok(()), |guard| self.expect(page, &guard))
    }

    pub(crate) async fn write_owned(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(held) = self.have(page, false) else { return Ok(()) };
        let mut guard = match self.store.get_mut(page).await.map(|page| page.into_owned(&self.store)) {
            Ok(guard) => guard,
            Err(Error::NoSuchPage { .. }) if held.was_free => return Ok(()),
            Err(error) => return self.judge("get_mut_owned", Some(page), &error),
        };
        self.expect(page, &guard)?;
        let version = self.model.lock().write_owned(&mut guard);
        // Readers may enter before the guard is gone.
        drop(guard.downgrade());
        self.model.lock().published(page, version);
        Ok(())
    }

    pub(super) async fn try_write(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(_held) = self.have(page, false) else { return Ok(()) };
        let store = Arc::clone(&self.store);
        let Some(guard) = store.try_get_mut(page) else { return Ok(()) };
        self.expect(page, &guard)?;
        self.publish(guard);
        Ok(())
    }

    /// Creates a page that exists, or one at the end of its space or a little beyond.
    pub(super) async fn create_by_number(&mut self) -> Outcome {
        let full = self.model.lock().pages() >= self.plan.pages as usize;
        let Some(near) = self.pick() else { return Ok(()) };
        if full || self.rng.random_bool(0.4) {
            return self.create_page(near).await;
        }
        let Ok(pages) = self.store.spaces().pages(near.space) else { return Ok(()) };
        let page = PageId::new(near.space, pages + self.rng.random_range(0..=GAP_MAX));
        if self.model.lock().page(page).is_some() {
            return Ok(());
        }
        self.by_number(page).await
    }

    /// Creates a page that the model knows, whether it exists or is free.
    pub(super) async fn create_page(&mut self, page: PageId) -> Outcome {
        let Some(_held) = self.have(page, true) else { return Ok(()) };
        self.by_number(page).await
    }

    pub(super) async fn overwrite(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(_held) = self.have(page, true) else { return Ok(()) };
        self.by_number(page).await
    }

    /// Creates or overwrites `page`, unless an allocation may be about to use its number.
    async fn by_number(&mut self, page: PageId) -> Outcome {
        {
            let mut model = self.model.lock();
            if model.doing.allocate > 0 || !model.live().contains(&page.space.0) {
                return Ok(());
            }
            model.doing.by_number += 1;
        }
        let store = Arc::clone(&self.store);
        let made = store.overwrite(page).await;
        self.model.lock().doing.by_number -= 1;
        match made {
            Ok(guard) if guard.iter().any(|byte| *byte != 0) => {
                Err(format!("page {page} was created, but is not blank"))
            }
            Ok(guard) => {
                self.publish(guard);
                Ok(())
            }
            Err(error) => self.judge("overwrite", None, &error),
        }
    }

    /// Frees a page and creates it anew at once.
    pub(super) async fn free_and_reuse(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        self.free_page(page).await?;
        self.create_page(page).await
    }

    /// Creates a page with a number that cannot fit. The error must be typed, and take no disk space.
    pub(super) async fn create_far(&mut self) -> Outcome {
        let Some(space) = self.any_space() else { return Ok(()) };
        // Beyond any gap that is allowed, beyond the HDD, or beyond all numbers.
        let no = [1 << 30, 4_000_000_000, u32::MAX - 1, u32::MAX, 40_000][self.rng.random_range(0..5)];
        {
            let mut model = self.model.lock();
            if model.doing.allocate > 0 || model.doing.by_number > 0 || model.doing.far {
                return Ok(());
            }
            // Nothing else may take disk space meanwhile.
            model.doing.by_number += 1;
            model.doing.far = true;
        }
        // The store's own space grows, too.
        let alone = self.plan.tasks == 1 && self.plan.hot_ms == 0;
        let pages = self.store.spaces().pages(SpaceId(space)).ok();
        let room = self.store.stats().room.unallocated_bytes;
        let size = self.probe.hdd.size();
        let made = self.store.overwrite(PageId::new(SpaceId(space), no)).await.map(drop);
        {
            let mut model = self.model.lock();
            model.doing.by_number -= 1;
            model.doing.far = false;
        }
        match made {
            Ok(()) => Err(format!("page {no} was created")),
            // Beside other tasks the space may have grown for their pages.
            Err(_) if alone && self.store.spaces().pages(SpaceId(space)).ok() > pages => {
                Err(format!("the creation of page {no} failed, but the space has grown"))
            }
            Err(error) if alone && self.store.stats().room.unallocated_bytes < room => {
                Err(format!("the creation of page {no} failed, but took room: {error}"))
            }
            Err(error) if alone && self.probe.hdd.size() > size => {
                Err(format!("the creation of page {no} failed, but the HDD has grown: {error}"))
            }
            Err(Error::PageGap { .. } | Error::SpaceFull { .. } | Error::NoSuchSpace { .. }) => Ok(()),
            Err(Error::Device(error)) if matches!(error.kind, DeviceErrorKind::NoSpace) => Ok(()),
            Err(error) => self.judge("create", None, &error),
        }
    }

    /// Allocates pages while a guard of the same space is held, as a bulk insert does.
    pub(super) async fn insert_many(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(held) = self.have(page, false) else { return Ok(()) };
        let store = Arc::clone(&self.store);
        let parent = match store.get_mut(page).await {
            Ok(guard) => guard,
            Err(Error::NoSuchPage { .. }) if held.was_free => return Ok(()),
            Err(error) => return self.judge("get_mut", Some(page), &error),
        };
        for _ in 0..[2, 8, 70][self.rng.random_range(0..3)] {
            let full = self.model.lock().pages() >= self.plan.pages as usize;
            if full || self.model.lock().doing.by_number > 0 {
                break;
            }
            // Any space may have to grow meanwhile, or be created.
            if self.rng.random_ratio(1, 12) {
                self.create_space().await?;
            }
            if !self.allocated().await? {
                break;
            }
        }
        drop(parent);
        Ok(())
    }

    pub(crate) async fn flush(&mut self) -> Outcome {
        self.store.flush().await.or_else(|error| self.judge("flush", None, &error))
    }

    /// Every change before the position that the store returns must be durable.
    pub(super) async fn redo_from(&mut self) -> Outcome {
        // What is written during the call has a later position, so the promise does not cover it.
        let (before, end) = {
            let model = self.model.lock();
            (model.clone(), Lsn(u64::from(model.last_version) + 1))
        };
        let loss = if self.rng.random_bool(0.7) { Loss::Crash } else { Loss::Ssd };
        match self.store.redo_from(end, loss).await {
            Ok(from) if from > end => {
                Err(format!("redo would begin at {from:?}, beyond the log's end {end:?}"))
            }
            Ok(from) => {
                // An engine may now remove the records before this position, so the pages must have their
                // changes durably (I33).
                let upto = from.0.saturating_sub(1).min(u64::from(before.last_version)) as u32;
                self.model.lock().keep(before.promise(upto));
                let mark = LogMark { id: 1, generation: 1, end, from, restored: false };
                match self.store.record_log(mark).await {
                    Ok(()) => Ok(()),
                    Err(error) => self.judge("record_log", None, &error),
                }
            }
            Err(error) => self.judge("redo_from", None, &error),
        }
    }

    pub(super) async fn create_space_as(&mut self) -> Outcome {
        let (name, id) = {
            let mut model = self.model.lock();
            let id = model.spaces.keys().last().map_or(1, |last| last + self.rng.random_range(0..4));
            (model.space_name(), SpaceId(id))
        };
        match self.store.spaces().create_as(id, &name).await {
            Ok(()) => {
                self.model.lock().created(id, name);
                Ok(())
            }
            Err(Error::SpaceIdUsed { .. }) => Ok(()),
            Err(error) => self.judge("create_as", None, &error),
        }
    }

    pub(super) async fn set_hints(&mut self) -> Outcome {
        let Some(space) = self.any_space() else { return Ok(()) };
        let kept = [Retention::Usual, Retention::KeepInMemory, Retention::ScanOnly];
        let kept = kept[self.rng.random_range(0..3)];
        let hints = SpaceHints::new().never_to_ssd(self.rng.random_bool(0.5)).retention(kept);
        let set = self.store.spaces().set_hints(SpaceId(space), hints);
        set.or_else(|error| self.judge("set_hints", None, &error))
    }
}
