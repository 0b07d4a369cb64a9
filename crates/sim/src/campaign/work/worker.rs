//! The operations of a life's tasks on the store, and their checks.

use crate::campaign::contract::content::version_in;
use crate::campaign::contract::model::{Model, Promise};
use crate::campaign::draw::plan::Plan;
use crate::campaign::world::desk::Desk;
use crate::campaign::world::examine::is_torn_discard;
use crate::campaign::world::probe::Probe;
use pagetier::{Error, Lsn, PageId, PageMut, PageStore, SpaceId};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any call takes, unless it hangs.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// How a task picks its pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum AccessPattern {
    Uniform,
    /// Prefers the first pages.
    Skewed,
    /// A few neighbouring pages, and others after a while: pages alternate between hot and cold.
    Wandering {
        at: u32,
        width: u32,
    },
}

/// One task of a life.
pub(crate) struct Worker {
    pub(crate) store: Arc<PageStore>,
    pub(crate) probe: Arc<Probe>,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) rng: SmallRng,
    /// Devices may fail: errors are allowed, wrong data is not.
    pub(crate) errors_allowed: bool,
    pub(crate) reads: Reads,
    /// Frees pages, too.
    pub(crate) frees: bool,
    /// Makes devices fail.
    pub(crate) troubled: bool,
    pub(super) pattern: AccessPattern,
    /// Where backups and other files go, if it makes any.
    pub(crate) desk: Option<Desk>,
}

/// What a task of a life is allowed.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) errors_allowed: bool,
    pub(crate) reads: Reads,
    pub(crate) frees: bool,
    /// The task makes devices fail.
    pub(crate) troubled: bool,
    pub(crate) desk: Option<Desk>,
}

impl Terms {
    /// Nothing fails, and no files are made.
    pub(crate) const fn usual(frees: bool) -> Self {
        Self { errors_allowed: false, reads: Reads::TheNewest, frees, troubled: false, desk: None }
    }
}

/// What reads may return while a store lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reads {
    TheNewest,
    /// A failed flush may have reverted writes that no `sync` covers.
    NothingOlderThanSynced,
    /// The store cannot detect every lost write.
    Anything,
}

/// Marks a page as in use by this task while it lives; exclusively, if so requested.
pub(super) struct Use {
    model: Arc<Mutex<Model>>,
    page: PageId,
    exclusive: bool,
    /// The page was free: another task may have reused its number since.
    pub(super) was_free: bool,
    kept: bool,
}

impl Use {
    /// Leaves the page marked until a crash.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Some(p) = self.model.lock().page(self.page) {
            if self.exclusive { p.reserved = false } else { p.users -= 1 }
        }
    }
}

pub(crate) type Outcome = Result<(), String>;

impl Worker {
    pub(crate) fn new(
        (store, probe, plan): (&Arc<PageStore>, &Arc<Probe>, &Arc<Plan>),
        rng: SmallRng,
        Terms { errors_allowed, reads, frees, troubled, desk }: Terms,
    ) -> Self {
        let (store, plan) = (Arc::clone(store), Arc::clone(plan));
        let (probe, model) = (Arc::clone(probe), Arc::clone(&probe.model));
        let pattern = AccessPattern::Uniform;
        Self { store, probe, model, plan, rng, errors_allowed, reads, frees, troubled, pattern, desk }
    }

    pub(super) fn pick(&mut self) -> Option<PageId> {
        let (pattern, model) = (self.pattern, Arc::clone(&self.model));
        let model = model.lock();
        let live = model.live();
        let space = *live.get(self.rng.random_range(0..live.len().max(1)))?;
        // Free pages, too: a read of one must find no page, and a write begins its next life.
        let pages = &model.spaces.get(&space)?.pages;
        let count = pages.len() as u32;
        if count == 0 {
            return None;
        }
        let index = match pattern {
            AccessPattern::Uniform => self.rng.random_range(0..count),
            AccessPattern::Skewed => {
                let a = self.rng.random_range(0..count);
                self.rng.random_range(0..=a)
            }
            AccessPattern::Wandering { at, width } => (at + self.rng.random_range(0..width)) % count,
        };
        let no = *pages.keys().nth(index as usize)?;
        Some(PageId::new(SpaceId(space), no))
    }

    pub(super) fn have(&self, page: PageId, exclusive: bool) -> Option<Use> {
        let mut model = self.model.lock();
        let p = model.page(page)?;
        // A discard beside a write has no order that the model could know: it could not say what the page
        // reads as.
        if p.reserved || (exclusive && p.users > 0) {
            return None;
        }
        if exclusive {
            p.reserved = true
        } else {
            p.users += 1
        }
        let was_free = p.is_free();
        Some(Use { model: Arc::clone(&self.model), page, exclusive, was_free, kept: false })
    }

    /// Checks that the error is allowed: devices fail, or the page was discarded or dropped.
    pub(crate) fn judge(&self, what: &str, page: Option<PageId>, error: &Error) -> Outcome {
        if self.errors_allowed {
            return Ok(());
        }
        if page.is_some_and(|page| is_torn_discard(&self.model, page, error)) {
            return Ok(());
        }
        if page.is_some_and(|page| self.is_lost(page, None)) {
            return Ok(());
        }
        // Nothing fails, so the one error left is that the page or its space is missing, if it may be.
        let may_miss = matches!(error, Error::NoSuchPage { .. } | Error::NoSuchSpace { .. });
        let gone = page.is_none_or(|page| self.model.lock().live_page(page).is_none_or(|p| p.reads_as(0)));
        if may_miss && gone { Ok(()) } else { Err(format!("{what}: {error}")) }
    }

    pub(super) fn expect(&self, page: PageId, payload: &[u8]) -> Outcome {
        let found = version_in(payload, page)?;
        let mut model = self.model.lock();
        // In a space that another task drops no version is wrong: its pages are of no value any more.
        let Some(p) = model.live_page(page) else { return Ok(()) };
        if p.is_absent() {
            return Err(format!("page {page} was freed, but reads as version {found}"));
        }
        let fine = match self.reads {
            Reads::TheNewest => p.reads_as(found),
            Reads::NothingOlderThanSynced => p.allows(found),
            Reads::Anything => true,
        };
        if fine {
            return Ok(());
        }
        let wrong =
            format!("page {page} reads as version {found}, is {}, allowed {}", p.published, p.allowed());
        drop(model);
        if self.is_lost(page, Some(found)) { Ok(()) } else { Err(wrong) }
    }

    /// Whether the report of a loss covers that the page reads as `found`, or not at all.
    fn is_lost(&self, page: PageId, found: Option<u32>) -> bool {
        let reported = self.store.ssd().loss().is_some_and(|loss| loss.contains(page));
        let mut model = self.model.lock();
        // The acknowledgement ends the report, and a page without any copy stays unreadable until it is
        // rewritten.
        let was_gone = found.is_none() && model.live_page(page).is_some_and(|p| p.gone);
        was_gone || (reported && model.lost(page, found, true))
    }

    pub(crate) async fn read(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        self.read_page(page).await
    }

    pub(super) async fn read_page(&mut self, page: PageId) -> Outcome {
        let Some(held) = self.have(page, false) else { return Ok(()) };
        match self.store.get(page).await {
            Ok(guard) => self.expect(page, &guard),
            Err(Error::NoSuchPage { .. }) if held.was_free => Ok(()),
            Err(error) => self.judge("get", Some(page), &error),
        }
    }

    pub(crate) async fn write(&mut self, hold: bool) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        self.write_page(page, hold).await
    }

    pub(super) async fn write_page(&mut self, page: PageId, hold: bool) -> Outcome {
        // Not exclusively: writers take turns by the page's latch, and the model learns of each version
        // under it.
        let Some(held) = self.have(page, false) else { return Ok(()) };
        let store = Arc::clone(&self.store);
        let mut guard = match store.get_mut(page).await {
            Ok(guard) => guard,
            Err(error @ Error::NoSuchPage { .. }) => {
                if !held.was_free {
                    self.judge("get_mut", Some(page), &error)?;
                }
                // An allocation in progress may be about to use this number.
                if self.frees && self.model.lock().doing.allocate > 0 {
                    return Ok(());
                }
                self.model.lock().doing.by_number += 1;
                let recreated = store.get_or_create(page).await;
                self.model.lock().doing.by_number -= 1;
                match recreated {
                    Ok(guard) => {
                        self.model.lock().exists(page);
                        guard
                    }
                    Err(error) => return self.judge("recreate", Some(page), &error),
                }
            }
            Err(error) => return self.judge("get_mut", Some(page), &error),
        };
        self.expect(page, &guard)?;
        let version = self.model.lock().write(&mut guard);
        // A latched page in the way of eviction and write-back.
        if hold {
            tokio::time::sleep(Duration::from_micros(self.rng.random_range(1..=self.plan.hdd_us))).await;
        }
        // Nothing is awaited in between, so no task reads the version before the model allows it.
        drop(guard);
        self.model.lock().published(page, version);
        Ok(())
    }

    /// Gives the page a new version without reading the current one.
    pub(super) async fn recreate_page(&mut self, page: PageId) -> Outcome {
        let Some(_held) = self.have(page, true) else { return Ok(()) };
        let store = Arc::clone(&self.store);
        match store.get_or_create(page).await {
            Ok(guard) => self.publish(guard),
            Err(error) => return self.judge("recreate", Some(page), &error),
        }
        Ok(())
    }

    /// Checks that an allocated page is blank, and no other's.
    pub(super) fn is_new(&self, guard: &PageMut<'_>) -> Outcome {
        let page = guard.id();
        match version_in(guard, page)? {
            0 if self.frees && self.model.lock().page(page).is_some_and(|p| p.is_in_use()) => {
                Err(format!("page {page} was allocated, but is in use"))
            }
            0 => Ok(()),
            version => Err(format!("page {page} was allocated, and reads as version {version}")),
        }
    }

    /// Gives the page of `guard` a new version.
    pub(crate) fn publish(&self, mut guard: PageMut<'_>) {
        let page = guard.id();
        let version = self.model.lock().write(&mut guard);
        drop(guard);
        self.model.lock().published(page, version);
    }

    /// Allocates a page, unless there are enough.
    pub(super) async fn allocate_some(&mut self) -> Outcome {
        let full = self.model.lock().pages() >= self.plan.pages as usize;
        if full { self.write(false).await } else { self.allocated().await.map(drop) }
    }

    /// Allocates a page, or creates a space if there is none. Returns false if the store failed and was
    /// allowed to.
    pub(crate) async fn allocated(&mut self) -> Result<bool, String> {
        let Some(space) = self.any_space() else {
            self.create_space().await?;
            return Ok(!self.model.lock().live().is_empty());
        };
        // The call beside this one may be reusing the number that the store would hand out here: the
        // model could not tell whose page it is.
        if self.frees && self.model.lock().doing.by_number > 0 {
            return Ok(true);
        }
        let store = Arc::clone(&self.store);
        self.model.lock().doing.allocate += 1;
        let allocated = store.allocate(SpaceId(space)).await;
        self.model.lock().doing.allocate -= 1;
        match allocated {
            Ok(guard) => {
                self.is_new(&guard)?;
                self.publish(guard);
                Ok(true)
            }
            Err(error) => self.judge("allocate", None, &error).map(|()| false),
        }
    }

    pub(crate) async fn create_space(&mut self) -> Outcome {
        let name = self.model.lock().space_name();
        match self.store.spaces().create(&name).await {
            Ok(id) => {
                self.model.lock().created(id, name);
                Ok(())
            }
            Err(error) => self.judge("create_space", None, &error),
        }
    }

    pub(crate) async fn drop_space(&mut self) -> Outcome {
        let live = self.model.lock().live();
        // One space stays, because the tasks need pages to work on.
        if live.len() < 2 || self.rng.random_bool(0.3) {
            return self.create_space().await;
        }
        let space = live[self.rng.random_range(0..live.len())];
        {
            let mut model = self.model.lock();
            model.dropping(space);
            model.doing.drop_space += 1;
        }
        let done = self.store.spaces().drop(SpaceId(space)).await;
        self.model.lock().doing.drop_space -= 1;
        self.drop_ended(space, Some(done)).await
    }

    /// Checks the result of a drop, or that it was cancelled (`None`). A drop that did not succeed has left
    /// the space unchanged, or removed it. In the latter case a second call frees its disk space.
    pub(super) async fn drop_ended(&mut self, space: u32, done: Option<Result<(), Error>>) -> Outcome {
        match &done {
            Some(Ok(())) => {
                self.model.lock().dropped(space);
                return Ok(());
            }
            Some(Err(error)) => self.judge("drop_space", None, error)?,
            None => {}
        }
        if self.store.spaces().list().iter().any(|s| s.id.0 == space) {
            // The failed save of the manifest may have taken effect; on a device, that of a cancelled drop
            // goes on.
            self.model.lock().not_dropped(space, done.is_some() || self.plan.on_hdd > 0);
            return Ok(());
        }
        // Half of the drops are left to the next open: the space is marked in the manifest (I19).
        if self.rng.random_bool(0.5) {
            return Ok(());
        }
        match self.store.spaces().drop(SpaceId(space)).await {
            Ok(()) => {
                self.model.lock().dropped(space);
                Ok(())
            }
            Err(error) => self.judge("drop_space once more", None, &error),
        }
    }

    pub(crate) async fn sync(&mut self) -> Outcome {
        // Taken before the call, which owes nothing that is written while it runs (I24).
        let promise = {
            let mut model = self.model.lock();
            model.doing.sync += 1;
            model.promise(u32::MAX)
        };
        let done = tokio::time::timeout(LONG, self.store.sync()).await;
        self.model.lock().doing.sync -= 1;
        match done {
            Ok(done) => self.durable("sync", promise, done),
            Err(_) => Err(format!("sync hangs: {:?}", self.store.stats().ssd)),
        }
    }

    pub(super) async fn sync_space(&mut self) -> Outcome {
        let Some(space) = self.any_space() else { return Ok(()) };
        let promise = {
            let mut model = self.model.lock();
            model.doing.sync += 1;
            model.sync_of_space(SpaceId(space));
            model.promise(u32::MAX).of(SpaceId(space))
        };
        let done = tokio::time::timeout(LONG, self.store.spaces().sync(SpaceId(space))).await;
        self.model.lock().doing.sync -= 1;
        let done = done.map_err(|_| "a sync of a space hangs".to_owned())?;
        match done {
            // Another task drops it.
            Err(Error::NoSuchSpace { .. }) if !self.model.lock().live().contains(&space) => Ok(()),
            done => self.durable("sync of a space", promise, done),
        }
    }

    pub(crate) async fn flush_to(&mut self) -> Outcome {
        let (lsn, promise) = {
            let mut model = self.model.lock();
            model.doing.flush_to += 1;
            let newest = model.last_version;
            // Close to the newest version: for most older ones the call would have nothing to do.
            let lsn = newest - self.rng.random_range(0..=newest.min(60));
            (lsn, model.promise(lsn))
        };
        let done = self.store.flush_to(Lsn(u64::from(lsn))).await;
        self.model.lock().doing.flush_to -= 1;
        self.durable("flush_to", promise, done)
    }

    /// Checks the result of a call that makes pages durable.
    pub(crate) fn durable(&self, what: &str, promise: Promise, done: Result<(), Error>) -> Outcome {
        match done {
            Ok(()) => self.model.lock().keep(promise),
            Err(error) => self.judge(what, None, &error)?,
        }
        Ok(())
    }

    pub(crate) async fn discard(&mut self) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        self.discard_page(page).await
    }

    pub(super) async fn discard_page(&mut self, page: PageId) -> Outcome {
        let Some(held) = self.have(page, true) else { return Ok(()) };
        if held.was_free {
            // An allocation might use the number meanwhile, and lose what it writes.
            return Ok(());
        }
        let begin = |model: &mut Model| {
            model.discarded(page);
            model.doing.discard += 1;
        };
        begin(&mut self.model.lock());
        let done = self.store.discard(page).await;
        let mut model = self.model.lock();
        // At its end, too: a `sync` that began meanwhile must not vouch for the page.
        model.discarded(page);
        model.doing.discard -= 1;
        drop(model);
        done.or_else(|error| self.judge("discard", Some(page), &error))
    }

    pub(crate) async fn scan(&mut self) -> Outcome {
        let live = self.model.lock().live();
        let Some(space) = live.first().copied() else { return Ok(()) };
        let from = self.rng.random_range(0..=self.plan.pages);
        let to = from + self.rng.random_range(1..40);
        let store = Arc::clone(&self.store);
        let mut scan = store.scan(SpaceId(space), from..to);
        while let Some(next) = scan.next().await {
            match next {
                Ok(guard) => {
                    let page = guard.id();
                    // The contents of a page in exclusive use are undecided until the call that has it
                    // returns.
                    let reserved = self.model.lock().page(page).is_none_or(|p| p.reserved);
                    if !reserved {
                        self.expect(page, &guard)?;
                    }
                }
                Err(Error::NoSuchPage { .. }) => {}
                Err(error) => self.judge("scan", page_of(&error), &error)?,
            }
        }
        Ok(())
    }

    /// A space that exists, if there is one.
    pub(super) fn any_space(&mut self) -> Option<u32> {
        let live = self.model.lock().live();
        live.get(self.rng.random_range(0..live.len().max(1))).copied()
    }

    pub(crate) async fn prefetch(&mut self) -> Outcome {
        let pages: Vec<PageId> = (0..5).filter_map(|_| self.pick()).collect();
        self.store.prefetch(&pages);
        Ok(())
    }

    pub(crate) async fn pause(&mut self) -> Outcome {
        let pause = Duration::from_micros(self.rng.random_range(1..=4 * self.plan.hdd_us));
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// The page that `error` is about, if it names one.
fn page_of(error: &Error) -> Option<PageId> {
    match error {
        Error::Pool(pagetier::errors::PoolError::Tier(
            pagetier::errors::TierError::Corrupt { page, .. }
            | pagetier::errors::TierError::Device { page, .. },
        )) => Some(*page),
        _ => None,
    }
}
