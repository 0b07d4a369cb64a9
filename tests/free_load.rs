//! Pages freed and reused under load, with failing saves of the manifest, power cuts and changing hints: in
//! each life every page is in a state that the contract allows.

use crate::fixture::{Fixture, PAGES, fill, version_of, zoned};
use pagetier::{Error, PageId, PageStore, SpaceHints, SpaceId, SsdPolicy};
use pagetier_devio::IoOp;
use pagetier_rivals::SSD_POLICIES;
use pagetier_testing::{Fault, FaultEffect};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SPACE: SpaceId = SpaceId(1);

/// A second space, which grows into the extents that the first gives back.
const OTHER: SpaceId = SpaceId(2);

/// The states of a page, in order: a version, or absent.
type History = Vec<Option<u32>>;

/// The states that the contract allows: for each page, those from the last durable one on.
#[derive(Clone, Debug, Default)]
struct Model {
    pages: BTreeMap<PageId, (usize, History)>,
    next: u32,
}

impl Model {
    fn put(&mut self, page: PageId, state: Option<u32>) {
        self.pages.entry(page).or_insert_with(|| (0, vec![None])).1.push(state);
    }

    fn now(&self, page: PageId) -> Option<u32> {
        self.pages.get(&page).and_then(|(_, history)| history.last().copied().flatten())
    }

    /// The lengths of the histories, for [`Model::durable`].
    fn moment(&self) -> BTreeMap<PageId, usize> {
        self.pages.iter().map(|(page, (_, history))| (*page, history.len() - 1)).collect()
    }

    /// Notes that the states at that moment, or later ones, are durable.
    fn durable(&mut self, moment: &BTreeMap<PageId, usize>) {
        for (page, at) in moment {
            if let Some((durable, _)) = self.pages.get_mut(page) {
                *durable = (*durable).max(*at);
            }
        }
    }

    fn version(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Checks a recovered store, and adopts its states as the durable ones.
    async fn check(&mut self, store: &PageStore, what: &str) -> Result<(), String> {
        for (page, (durable, history)) in &mut self.pages {
            let allowed = &history[*durable..];
            let found = match store.get(*page).await {
                Ok(page) if page.iter().all(|byte| *byte == 0) => Some(0),
                Ok(found) => Some(version_of(&found, mark(*page))),
                Err(Error::NoSuchPage { .. }) => None,
                Err(error) => return Err(format!("{what}: page {page}: {error}")),
            };
            if !allowed.contains(&found) {
                return Err(format!("{what}: page {page} is {found:?}, not one of {allowed:?}"));
            }
            (*durable, *history) = (0, vec![found]);
        }
        store.validate()
    }
}

/// The number in a page's contents that identifies the page.
fn mark(page: PageId) -> u32 {
    page.space.0 << 16 | page.no
}

/// Changes, frees and allocates pages until `stop` is set.
async fn work(store: Arc<PageStore>, model: Arc<Mutex<Model>>, stop: Arc<AtomicBool>, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        let space = if rng.random_bool(0.6) { SPACE } else { OTHER };
        let page = PageId::new(space, rng.random_range(0..PAGES));
        let now = model.lock().unwrap().now(page);
        match (rng.random_range(0..20), now) {
            (0..8, Some(_)) => {
                let mut guard = store.get_mut(page).await.unwrap();
                let mut model = model.lock().unwrap();
                let version = model.version();
                fill(&mut guard, mark(page), version);
                model.put(page, Some(version));
            }
            (8..11, _) => {
                let count = [1, 1, 3, 20, 150][rng.random_range(0..5)];
                free(&store, &model, space, page.no..(page.no + count).min(PAGES)).await;
            }
            (11, _) => drop(store.spaces().shrink(space).await),
            (12..19, _) => {
                let info = store.spaces().list().into_iter().find(|info| info.id == space).unwrap();
                // By number, or where the store allocates.
                let made = if now.is_none() && rng.random_bool(0.5) {
                    store.overwrite(page).await
                } else if info.free > 0 || info.pages < PAGES {
                    store.allocate(space).await
                } else {
                    continue;
                };
                let Ok(mut guard) = made else { continue };
                let page = guard.id();
                let mut model = model.lock().unwrap();
                assert_eq!(model.now(page), None, "page {page} was in use");
                model.put(page, Some(0));
                if rng.random_bool(0.8) {
                    let version = model.version();
                    fill(&mut guard, mark(page), version);
                    model.put(page, Some(version));
                }
            }
            _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await,
        }
    }
}

async fn free(store: &PageStore, model: &Mutex<Model>, space: SpaceId, range: std::ops::Range<u32>) {
    let pages: Vec<PageId> = range.clone().map(|no| PageId::new(space, no)).collect();
    let (before, moment) = {
        let mut model = model.lock().unwrap();
        let before: Vec<(PageId, Option<u32>)> = pages.iter().map(|page| (*page, model.now(*page))).collect();
        pages.iter().for_each(|page| model.put(*page, None));
        let mut moment = model.moment();
        moment.retain(|page, _| pages.contains(page));
        (before, moment)
    };
    let freed = store.free((space, range)).await;
    let mut model = model.lock().unwrap();
    match freed {
        Ok(_) => model.durable(&moment),
        // The free may have taken effect on disk, but not in memory.
        Err(_) => before.into_iter().for_each(|(page, state)| model.put(page, state)),
    }
}

async fn syncs(store: Arc<PageStore>, model: Arc<Mutex<Model>>, stop: Arc<AtomicBool>, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..120))).await;
        let moment = model.lock().unwrap().moment();
        if store.sync().await.is_ok() {
            model.lock().unwrap().durable(&moment);
        }
    }
}

/// Changes the hints of both spaces until `stop` is set.
async fn hint(store: Arc<PageStore>, stop: Arc<AtomicBool>, seed: u64) {
    for step in seed.. {
        tokio::time::sleep(Duration::from_millis(7 + seed % 20)).await;
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let hints = SpaceHints::new().never_to_ssd(step % 2 == 0);
        store.spaces().set_hints(if step % 3 == 0 { OTHER } else { SPACE }, hints).unwrap();
    }
}

/// Three lives of a store under load, each ended by a power cut or a close.
async fn lives(seed: u64, builder: impl Fn(&Fixture) -> pagetier::Builder) -> Result<(), String> {
    lives_with(seed, false, builder).await
}

/// With `hints`, the hints of the spaces change as well.
async fn lives_with(
    seed: u64,
    hints: bool,
    builder: impl Fn(&Fixture) -> pagetier::Builder,
) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut fixture = Fixture::new();
    let store = builder(&fixture).open().await.unwrap();
    let mut model = Model { next: 1, ..Model::default() };
    for (name, space) in [("a", SPACE), ("b", OTHER)] {
        assert_eq!(store.spaces().create(name).await.unwrap(), space);
    }
    for no in 0..PAGES {
        let mut page = store.allocate(SPACE).await.unwrap();
        let id = PageId::new(SPACE, no);
        fill(&mut page, mark(id), 1);
        model.pages.insert(id, (0, vec![Some(1)]));
    }
    store.close().await.unwrap();
    for life in 0..3 {
        let store =
            Arc::new(builder(&fixture).open().await.map_err(|error| format!("life {life}: {error}"))?);
        model.check(&store, &format!("life {life}")).await?;
        let (shared, stop) = (Arc::new(Mutex::new(model)), Arc::new(AtomicBool::new(false)));
        if rng.random_bool(0.4) {
            let skip = rng.random_range(0..12);
            fixture.manifest.fail_saves(skip, [1, 2, 5][rng.random_range(0..3)], rng.random_bool(0.5));
        }
        if rng.random_bool(0.3) {
            let slow = Fault::new(FaultEffect::Slow(Duration::from_millis(60))).on(IoOp::Write).times(40);
            fixture.hdd.inject(slow.from_op(fixture.hdd.ops() + rng.random_range(0..400)));
        }
        let task = || (Arc::clone(&store), Arc::clone(&shared), Arc::clone(&stop));
        let ((a, b, c), (d, e, f)) = (task(), task());
        let worker = tokio::spawn(work(a, b, c, rng.random()));
        let syncer = tokio::spawn(syncs(d, e, f, rng.random()));
        let hinter = hints.then(|| tokio::spawn(hint(Arc::clone(&store), Arc::clone(&stop), seed)));
        tokio::time::sleep(Duration::from_micros(rng.random_range(200_000..1_500_000))).await;
        let closes = rng.random_bool(0.25);
        let crashed =
            (!closes).then(|| (shared.lock().unwrap().clone(), fixture.after_power_cut(rng.random())));
        stop.store(true, Ordering::Relaxed);
        worker.await.map_err(|error| format!("seed {seed}, life {life}: {error}"))?;
        syncer.await.map_err(|error| error.to_string())?;
        if let Some(hinter) = hinter {
            hinter.await.map_err(|error| error.to_string())?;
        }
        if let Some(crashed) = crashed {
            (model, fixture) = crashed;
            continue;
        }
        fixture.manifest.fail_saves(0, 0, false);
        let moment = shared.lock().unwrap().moment();
        store.shutdown().await.map_err(|error| format!("life {life}: {error}"))?;
        model = shared.lock().unwrap().clone();
        model.durable(&moment);
    }
    let store = builder(&fixture).open().await.map_err(|error| error.to_string())?;
    model.check(&store, "in the end").await
}

#[tokio::test(start_paused = true)]
async fn pages_freed_and_used_again_under_load_survive_power_cuts_and_failing_saves() {
    for seed in 0..40 {
        pagetier_rivals::register();
        let policies = ["cac", "lru2", "mv-fifo", "tac", "doublewrite"];
        let policy = || policies[seed as usize % policies.len()].parse::<SsdPolicy>().unwrap();
        let lived = lives(seed, |fixture| fixture.builder().ssd_policy(zoned(policy()))).await;
        assert_eq!(lived, Ok(()), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn so_do_pages_of_spaces_whose_hints_change() {
    for seed in 100..130 {
        let policy = SSD_POLICIES[seed as usize % SSD_POLICIES.len()];
        let lived = lives_with(seed, true, |fixture| fixture.builder().ssd_policy(zoned(policy))).await;
        assert_eq!(lived, Ok(()), "seed {seed}, {policy}");
    }
}
