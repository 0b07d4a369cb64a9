//! The hot set that a store keeps on its HDD by itself: a task lists the hot pages in a space of their own
//! from time to time, and warms memory and SSD from the list once, when it begins.
//!
//! The list lies in ordinary pages, so it needs no format of its own, no place that is reserved, and no rule
//! of recovery: `list` says what one page has. Its space is kept off the SSD, with which it would be
//! lost. The design follows from these cases:
//!
//! - A crash or a failure half-way leaves a list that is in part of the time before. Entries are hints.
//! - A crash, or a close, while the store still warms up. A list of what is warm by then would forget the
//!   rest, so the list stays as it is until the warming has ended.
//! - The SSD fails, and is replaced while the store is open: the list stays as it is until an SSD is active
//!   again and was warmed up from it. (An open without an SSD lists what is in memory.)
//! - The pages of the list cannot be written, because the disk is full or their place on it is bad. They are
//!   discarded: while they are dirty, each `sync` would fail with them. So are those of a round that a close
//!   or another call cuts short: no later round would find them.
//! - A page of the list is torn. A backup or a scrub would fail because of it for as long as the warming
//!   takes, so the warming writes over it at once.
//! - The log. No record describes these pages, so they have no LSN: they wait for no log, and no position of
//!   redo goes back for them ([`PageMut::unlogged`](pagetier_bufpool::PageMut::unlogged)).
//! - A `sync` beside it writes the list's dirty pages, too: few at a time.

use super::list::{self, Part, Was, entries_in};
use crate::error::Error;
use crate::store::hot_state::{Current, HotSetStats, List};
use crate::store::page_store::PageStore;
use crate::store::shared::Shared;
use crate::volume::space_hints::SpaceHints;
use crate::volume::table::Claimed;
use pagetier_bufpool::{Cursor, PoolError, TierError};
use pagetier_devio::{Causes, task};
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::pool::Retention;
use pagetier_ssdcache::{Homes, Slots, SsdState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// The name of the list's space.
const SPACE: &str = "pagetier-hot-set";
/// The most entries of a list: 64 MiB of them.
const LISTED_MAX: usize = 8 << 20;
/// The most pages of the list that are dirty, or in memory, at a time.
const BATCH: usize = 32;
/// Slots that are looked at while the tier's state is locked, and one in how many of such groups makes up the
/// sample of a large SSD.
const LOOK: u32 = 1024;
const SAMPLE: usize = 16;
/// Pages that are read between two looks at whether the store still exists.
const STEP: usize = 256;
/// Once so many pages of each of so many steps in a row were read and none got a copy, the SSD's policy wants
/// none. One step may have met a moment at which no slot could be written.
const IN_VAIN: u64 = 32;
const STEPS_IN_VAIN: u32 = 8;
/// The shortest time between two lists.
const EVERY_MIN: Duration = Duration::from_millis(10);
/// After failures the next attempt comes later each time, but not later than this.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long a close waits for its list.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The part without entries.
const EMPTY: Part<'_> = Part { was: Was::InMemory, pages: &[] };

/// The hot pages of a moment.
struct Hot {
    in_memory: Vec<PageId>,
    on_ssd: Vec<PageId>,
}

impl Hot {
    /// The parts of the list, for pages with `entries` entries each.
    fn parts(&self, entries: usize) -> impl Iterator<Item = Part<'_>> {
        let lists = [(Was::InMemory, &self.in_memory), (Was::OnSsd, &self.on_ssd)];
        lists
            .into_iter()
            .flat_map(move |(was, pages)| pages.chunks(entries.max(1)).map(move |pages| Part { was, pages }))
    }
}

impl PageStore {
    /// See [`HotSet::keep`](crate::HotSet::keep).
    pub(crate) async fn begin_keeping(&self, every: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        shared.refuse_read_only()?;
        shared.ending.here()?;
        let space = self.hot_space().await?;
        let hints = SpaceHints::new().retention(Retention::ScanOnly).never_to_ssd(true);
        self.spaces().set_hints(space, hints)?;
        let list = Arc::new(List::new(space, shared.tier.subscribe()));
        let (ends, mut ended) = watch::channel(false);
        let replaced = shared.hot.current.lock().replace(Current { list: Arc::clone(&list), ends });
        // The task waits for most of its life, and a strong reference would keep a dropped store alive.
        let (begun, weak) = (shared.ending.shutdown_begun(), Arc::downgrade(shared));
        task::spawn(&shared.runtime, async move {
            // Wait for the earlier task: each of two would discard the other's pages.
            if let Some(replaced) = replaced {
                replaced.ends.send_replace(true);
                replaced.ends.closed().await;
            }
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {}
                () = begun => {}
                _ = keep(weak, list, every.max(EVERY_MIN)) => {}
            }
            // Closes the channel once the work has ended: see `Current::ends`.
            drop(ended);
        });
        Ok(())
    }

    /// The space of the list, which is created if there is none.
    async fn hot_space(&self) -> Result<SpaceId, Error> {
        loop {
            let Some(space) = self.spaces().find(SPACE) else {
                match self.spaces().create(SPACE).await {
                    // Another call was faster.
                    Err(Error::SpaceExists { .. }) => continue,
                    created => return created,
                }
            };
            for no in 0..self.shared.volume.pages(space).unwrap_or(0) {
                match self.get(PageId::new(space, no)).await {
                    Ok(page) if list::read(&page).is_some() => break,
                    // An embedder's own space of that name.
                    Ok(_) => return Err(Error::SpaceExists { name: SPACE.to_owned() }),
                    // A crash may have left pages that were never written; a lost ring, torn ones. The next
                    // page decides. Of a list, all pages may be so.
                    Err(
                        Error::NoSuchPage { .. } | Error::Pool(PoolError::Tier(TierError::Corrupt { .. })),
                    ) => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(space);
        }
    }
}

/// The store, unless it is gone, or another process's: that may hold its locks for ever.
fn here(store: &Weak<Shared>) -> Option<Arc<Shared>> {
    store.upgrade().filter(|shared| shared.ending.is_here())
}

/// Warms up from the list, then replaces it from time to time. `None`: the store, or the list, is gone.
async fn keep(store: Weak<Shared>, list: Arc<List>, every: Duration) -> Option<()> {
    // What the call before has left.
    here(&store)?.discard_list(&list).await;
    warm(&store, &list, Some(Vec::new())).await?;
    // The first one at once: a close makes no room for a list.
    let (mut pause, mut failures) = (Duration::ZERO, 0);
    loop {
        tokio::time::sleep(pause).await;
        let shared = here(&store)?;
        if !list.is_used() {
            pause = every;
            if shared.tier.ssd_state() == SsdState::Active {
                drop(shared);
                // Memory is warm.
                warm(&store, &list, None).await?;
            }
            continue;
        }
        let written = shared.list_hot(&list, When::InUse).await;
        match &written {
            Ok(()) => {}
            // Its engine has dropped the space.
            Err(Error::NoSuchSpace { .. }) => return None,
            Err(error) if failures > 0 => tracing::debug!(%error, "could not update the hot-set list"),
            // Warn once per failure, not once per interval.
            Err(error) => {
                tracing::warn!(
                    error = %Causes(error),
                    "could not update the hot-set list; the previous list remains in use"
                );
            }
        }
        failures = if written.is_ok() { 0 } else { failures + 1 };
        if failures > 0 {
            shared.discard_list(&list).await;
        }
        // Each attempt at a bad place makes a `sync` fail that comes at that moment.
        pause = every.saturating_mul(1 << failures.min(20)).min(PAUSE_MAX).max(every);
    }
}

/// Reads the pages of the list into memory, unless `hot` is `None`, and then, as long as the SSD has free
/// slots, onto it. `None`: the store is gone.
async fn warm(store: &Weak<Shared>, list: &List, hot: Option<Vec<PageId>>) -> Option<()> {
    let pages = {
        let shared = here(store)?;
        shared.hot.warming.store(true, Ordering::Relaxed);
        shared.volume.pages(list.space).unwrap_or(0)
    };
    let warmed = warm_from(store, Cursor::new(list.space, 0..pages), hot).await?;
    let shared = here(store)?;
    list.note_used();
    shared.hot.warming.store(false, Ordering::Relaxed);
    if warmed {
        let HotSetStats { to_memory, to_ssd, .. } = shared.hot.stats();
        tracing::info!(to_memory, to_ssd, "the store has warmed up from its hot set");
    }
    Some(())
}

/// The steps of [`warm`]. Returns whether the list named any pages.
async fn warm_from(store: &Weak<Shared>, mut cursor: Cursor, mut hot: Option<Vec<PageId>>) -> Option<bool> {
    // Pages that were in memory come first on the list.
    let (mut fills, mut in_vain) = (true, 0);
    let mut passed_on = 0;
    while fills {
        let shared = here(store)?;
        let found = match cursor.next(&shared.pool).await {
            None => break,
            Some(Ok(page)) => list::read(&page),
            // A damaged page costs its entries.
            Some(Err(PoolError::Tier(TierError::Corrupt { page, .. }))) => {
                shared.empty_part(page).await;
                None
            }
            Some(Err(_)) => None,
        };
        let Some((was, mut pages)) = found else { continue };
        if was == Was::InMemory {
            if let Some(hot) = hot.as_mut().filter(|hot| hot.len() < LISTED_MAX) {
                hot.append(&mut pages);
            }
            continue;
        }
        drop(shared);
        if let Some(hot) = hot.take() {
            warm_memory(store, hot).await?;
        }
        // The list has them in order of their numbers, which is nearly that of the disk.
        for some in pages.chunks(STEP) {
            let shared = here(store)?;
            let exist = some.iter().copied().filter(|page| shared.volume.exists(*page)).collect::<Vec<_>>();
            let passed = shared.pool.pass_below(&exist).await;
            shared.hot.to_ssd.fetch_add(passed.kept, Ordering::Relaxed);
            passed_on += passed.read;
            if passed.kept > 0 {
                in_vain = 0;
            } else if passed.read >= IN_VAIN {
                in_vain += 1;
            }
            // A policy may take none of them, and one that appends takes any number, each in another's place.
            if passed.is_full || in_vain >= STEPS_IN_VAIN || passed_on >= u64::from(shared.tier.slots()) {
                fills = false;
                break;
            }
        }
    }
    let named = hot.as_ref().is_none_or(|hot| !hot.is_empty());
    if let Some(hot) = hot {
        warm_memory(store, hot).await?;
    }
    Some(named)
}

/// Reads the hottest of `pages` into memory, in disk order.
async fn warm_memory(store: &Weak<Shared>, pages: Vec<PageId>) -> Option<()> {
    if pages.is_empty() {
        return Some(());
    }
    let pages = {
        let shared = here(store)?;
        tracing::info!(listed = pages.len(), "the store warms up from its hot set");
        shared.in_disk_order(&pages)
    };
    for some in pages.chunks(STEP) {
        let shared = here(store)?;
        let loaded = shared.pool.warm(some).await;
        shared.hot.to_memory.fetch_add(loaded, Ordering::Relaxed);
    }
    Some(())
}

/// When a list is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    InUse,
    /// By the close, when no operation is in progress: the space does not grow.
    AtEnd,
}

impl Shared {
    /// Lists the hot pages for the last time, before everything else is written for the last time.
    pub(crate) async fn list_hot_at_end(self: &Arc<Self>) {
        let Some(Current { list, ends }) = self.hot.current.lock().take() else { return };
        // Its task ends as the shutdown begins.
        ends.closed().await;
        // The close must not wait for long: a slow device delays it by what has to be written.
        match tokio::time::timeout(CLOSING_MAX, self.list_hot(&list, When::AtEnd)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "could not update the hot-set list at the close"),
            Err(_) => tracing::debug!("close did not wait for the hot-set list"),
        }
        // Discard even after a success, which may mean that there was nothing to list: the task's last round
        // was cut short, and the close must not fail because of the pages that it has left.
        self.discard_list(&list).await;
    }

    /// Discards what is not on the HDD yet of the list, so that nothing else fails because of it.
    async fn discard_list(&self, list: &List) {
        // Forget first: if this is dropped half-way, the next round writes all pages.
        list.forget_all();
        let _ = self.pool.discard_unwritten(list.space).await;
    }

    /// Writes an empty part over a damaged page.
    async fn empty_part(self: &Arc<Self>, page: PageId) {
        let emptied = async {
            self.put_part(page, EMPTY, When::InUse).await?;
            Ok::<_, Error>(self.pool.flush_space(page.space).await?)
        };
        if let Err(error) = emptied.await {
            tracing::debug!(%error, %page, "a damaged hot page could not be repaired");
            let _ = self.pool.discard_unwritten(page.space).await;
        }
    }

    /// Replaces the list. After a failure, and if this is dropped, [`Shared::discard_list`] must follow.
    async fn list_hot(self: &Arc<Self>, list: &List, when: When) -> Result<(), Error> {
        let fails = self.tier.slots() > 0 && self.tier.ssd_state() != SsdState::Active;
        if !list.is_used() || fails {
            return Ok(());
        }
        let in_memory = self.pool.hottest(LISTED_MAX).into_iter().filter(|page| page.space != list.space);
        let in_memory: Vec<PageId> = in_memory.collect();
        let on_ssd = self.hot_on_ssd(LISTED_MAX - in_memory.len()).await;
        let hot = Hot { in_memory, on_ssd };
        self.write_list(&hot, list, when).await?;
        let listed = (hot.in_memory.len() + hot.on_ssd.len()) as u64;
        self.hot.listed.store(listed, Ordering::Relaxed);
        self.hot.lists.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the pages of the list that differ from the one before.
    async fn write_list(self: &Arc<Self>, hot: &Hot, list: &List, when: When) -> Result<(), Error> {
        let mut dirty = 0;
        // Overwrite the rest of a longer list, too, which may be torn in the first open after a loss.
        let end = self.volume.pages(list.space).ok_or(Error::NoSuchSpace { space: list.space })?;
        let parts = hot.parts(entries_in(self.page_size().payload_bytes()));
        let parts = parts.map(Some).chain(std::iter::repeat(None)).zip(0..u32::MAX);
        for (part, no) in parts.take_while(|(part, no)| part.is_some() || *no < end) {
            let part = part.unwrap_or(EMPTY);
            if list.digest(no) == Some(part.digest()) {
                continue;
            }
            let page = PageId::new(list.space, no);
            if self.put_part(page, part, when).await? {
                list.note(no, part.digest());
                dirty += 1;
            }
            if dirty >= self.batch() {
                self.pool.flush_space(list.space).await?;
                dirty = 0;
            }
        }
        Ok(self.pool.flush_space(list.space).await?)
    }

    /// Writes a part to its page, in memory. Returns false if the page cannot be used at present.
    async fn put_part(self: &Arc<Self>, page: PageId, part: Part<'_>, when: When) -> Result<bool, Error> {
        loop {
            // Per page: a shutdown waits for one, not for the list. It holds the lock itself at the end.
            let operation = if when == When::InUse { Some(self.ending.enter()?) } else { None };
            if let Some(cause) = self.tier.refusing() {
                return Err(Error::Refusing { cause });
            }
            match self.volume.claim(page).ok_or(Error::NoSuchSpace { space: page.space })? {
                Claimed::Yes(_arrives) => {
                    let mut guard = self.pool.create(page).await?;
                    part.put(guard.unlogged());
                    return Ok(true);
                }
                Claimed::NoRoom if when == When::InUse => {}
                // Its engine has freed the page, or the close has no more room for the list.
                Claimed::NoRoom | Claimed::Leaving | Claimed::PendingFree => return Ok(false),
            }
            drop(operation);
            self.grow_space(page.space, page.no).await?;
        }
    }

    /// At most `max` pages with copies on the SSD, in order. Of more, those that the policy values most, as
    /// far as it can tell.
    async fn hot_on_ssd(&self, max: usize) -> Vec<PageId> {
        let slots = self.tier.slots();
        let groups = || (0..slots).step_by(LOOK as usize).map(|from| from..from.saturating_add(LOOK));
        let worth = |slots: &Slots, page| slots.policy().benefit(page).unwrap_or_default();
        let (all, mut least) = (self.tier.ask(Slots::pages), f64::NEG_INFINITY);
        if all > max {
            let mut sample = Vec::new();
            for group in groups().step_by(SAMPLE) {
                self.tier.ask(|slots| sample.extend(slots.copies_in(group).map(|page| worth(slots, page))));
                tokio::task::yield_now().await;
            }
            sample.sort_unstable_by(|a, b| b.total_cmp(a));
            let share = max as f64 / all as f64;
            least = sample.get((sample.len() as f64 * share) as usize).copied().unwrap_or(least);
        }
        let mut pages = Vec::new();
        for group in groups() {
            self.tier.ask(|slots| {
                let valued = slots.copies_in(group).filter(|page| worth(slots, *page) >= least);
                pages.extend(valued.take(max - pages.len()));
            });
            // A large SSD has many slots: other tasks get their turn.
            tokio::task::yield_now().await;
        }
        pages.sort_unstable();
        pages
    }

    /// As many of `pages`, the first ones, as memory has room for, in disk order.
    pub(super) fn in_disk_order(&self, pages: &[PageId]) -> Vec<PageId> {
        let frames = self.frames();
        let mut wanted: Vec<(u64, PageId)> = pages
            .iter()
            .filter_map(|page| Some((self.volume.offset(*page)?, *page)))
            // An eighth stays free for the requests that come meanwhile.
            .take(frames - frames / 8)
            .collect();
        // The list is in order of heat, which would move the arm at each page.
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, page)| page).collect()
    }

    /// How many pages of the list may be dirty at a time.
    fn batch(&self) -> usize {
        (self.frames() / 8).clamp(1, BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::MemoryDevice;
    use pagetier_page::PageSize;

    #[tokio::test]
    async fn of_a_large_ssd_a_part_is_listed() {
        let device = |name| Arc::new(MemoryDevice::new(name, 0));
        let builder = PageStore::builder().in_memory(Arc::default()).page_size(PageSize::MIN);
        let builder = builder.hdd(device("hdd")).ssd(device("ssd")).ssd_policy("cac");
        let store = builder.ssd_bytes(16 << 20).pool_bytes(2 << 20).open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        for _ in 0..3_000 {
            drop(store.allocate(space).await.unwrap());
        }
        store.sync().await.unwrap();
        let all = store.shared.tier.ask(Slots::pages);
        assert!(all > 2_000, "{all} pages are on the SSD");
        for max in [0, 1, 500, all, usize::MAX] {
            let listed = store.shared.hot_on_ssd(max).await;
            // The limit is an estimate, where not all are listed.
            assert!(listed.len() <= max && listed.len() >= max.min(all) / 8, "{} of {max}", listed.len());
            assert!(max < all || listed.len() == all);
            assert!(listed.is_sorted());
            assert!(listed.iter().all(|page| page.space == space));
        }
    }
}
