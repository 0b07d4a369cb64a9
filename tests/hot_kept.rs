//! The hot set that a store keeps on its HDD: it outlives the SSD, costs nothing but warmth when it is lost,
//! and stands in no other work's way.

use crate::fixture::{Fixture, PAGES, expect_all, grown, hints_of, read, write, write_all};
use pagetier::stats::HotSetStats;
use pagetier::{
    Error, Location, Loss, Lsn, PageId, PageStore, SpaceHints, SpaceId, SsdMode, stats::SsdState,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, SimPower};
use std::sync::Arc;
use std::time::Duration;

const SPACE: &str = "pagetier-hot-set";
const OFTEN: Duration = Duration::from_millis(50);

/// Waits until `so`, in virtual time.
async fn until(store: &PageStore, so: impl Fn(&HotSetStats) -> bool) -> HotSetStats {
    for _ in 0..20_000 {
        let stats = store.stats().hot_set;
        if so(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?}", store.stats().hot_set);
}

/// Waits for another list.
async fn listed(store: &PageStore) -> HotSetStats {
    let before = store.stats().hot_set.lists;
    // The next one may be under way already, with what was hot before.
    until(store, |stats| stats.lists >= before + 2).await
}

/// Waits until the store has warmed up.
async fn warmed(store: &PageStore) -> HotSetStats {
    until(store, |stats| stats.to_memory > 0 && !stats.warming).await
}

/// The pages of `space` that need no read of the HDD.
fn hot(store: &PageStore, space: SpaceId) -> Vec<u32> {
    let is_hot = |page| store.try_get(page).is_some() || store.location(page) == Location::Ssd;
    (0..PAGES).filter(|no| is_hot(PageId::new(space, *no))).collect()
}

/// How many of `pages` need a read of the HDD.
async fn cold(store: &PageStore, space: SpaceId, pages: &[u32]) -> u64 {
    let before = store.stats().pool.loads_hdd;
    for no in pages {
        read(store, space, *no).await.unwrap();
    }
    store.stats().pool.loads_hdd - before
}

/// A store with a listed hot set, whose SSD is expendable.
async fn used(fixture: &Fixture) -> (PageStore, SpaceId, Vec<u32>) {
    let store = fixture.open().await;
    let space = grown(&store).await;
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    store.hot_set().keep(OFTEN).await.unwrap();
    for _ in 0..3 {
        for no in (0..PAGES).filter(|no| no % 3 == 1) {
            read(&store, space, no).await.unwrap();
        }
    }
    store.sync().await.unwrap();
    assert_eq!(store.ssd().drain(pagetier::DrainOptions::new()).await.left, 0);
    listed(&store).await;
    let hot = hot(&store, space);
    assert!(hot.len() > 150, "{} pages are hot", hot.len());
    (store, space, hot)
}

/// Opens what is left of the store after the loss of its SSD.
async fn bereft(fixture: &Fixture) -> PageStore {
    let store = fixture.builder().accept_ssd_loss(true).open().await.unwrap();
    store.ssd().acknowledge_loss().await.unwrap();
    store
}

fn is_warm(cold: u64, hot: &[u32]) {
    // The SSD keeps some slots empty, and an eighth of memory is for others.
    assert!(cold * 4 <= hot.len() as u64, "{cold} of {} hot pages were cold", hot.len());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_ssd_warms_up_from_its_hdd() {
    let fixture = Fixture::new();
    let (store, space, hot) = used(&fixture).await;
    let fixture = fixture.after_power_cut(1).with_blank_ssd();
    drop(store);
    let store = bereft(&fixture).await;
    assert_eq!(store.stats().ssd.pages, 0);
    assert_eq!(store.stats().hot_set, HotSetStats::default());
    store.hot_set().keep(OFTEN).await.unwrap();
    let stats = warmed(&store).await;
    assert!(stats.to_memory > 20 && stats.to_ssd > 80, "{stats:?}");
    assert!(store.stats().to_string().contains("\nhot set "), "{}", store.stats());
    is_warm(cold(&store, space, &hot).await, &hot);
    expect_all(&store, space, 1).await;
    store.validate().unwrap();
    // Its list is on the HDD alone.
    let list = store.spaces().find(SPACE).unwrap();
    assert!(store.spaces().pages(list).unwrap() >= 2);
    assert!(fixture.slots_of(PageId::new(list, 0)).is_empty(), "the ring is the only place on the SSD");
    assert_eq!(store.location(PageId::new(list, 0)), Location::Hdd);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_not_used_up_is_there_for_the_next_opening() {
    for closes in [true, false] {
        let fixture = Fixture::new();
        let (store, space, hot) = used(&fixture).await;
        store.close().await.unwrap();
        let fixture = fixture.after_power_cut(1).with_blank_ssd();
        let store = bereft(&fixture).await;
        store.hot_set().keep(OFTEN).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(store.stats().hot_set.warming, "{:?}", store.stats().hot_set);
        let fixture = if closes {
            store.close().await.unwrap();
            fixture
        } else {
            let cut = fixture.after_power_cut(2);
            drop(store);
            cut
        };
        let store = fixture.open().await;
        store.hot_set().keep(OFTEN).await.unwrap();
        warmed(&store).await;
        is_warm(cold(&store, space, &hot).await, &hot);
        expect_all(&store, space, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_lists_the_hot_pages_for_the_last_time() {
    let (fixture, store, space) = Fixture::grown().await;
    store.hot_set().keep(Duration::from_secs(3600)).await.unwrap();
    tokio::time::sleep(OFTEN).await;
    store.close().await.unwrap();
    let store = fixture.open().await;
    store.hot_set().keep(Duration::from_secs(3600)).await.unwrap();
    warmed(&store).await;
    let frames = store.frames() as u32;
    for no in [0, 0, 0].iter().flat_map(|from| *from..frames / 2) {
        read(&store, space, no).await.unwrap();
    }
    let hot: Vec<u32> = (0..PAGES).filter(|no| store.try_get(PageId::new(space, *no)).is_some()).collect();
    store.close().await.unwrap();
    let store = fixture.open().await;
    store.hot_set().keep(OFTEN).await.unwrap();
    warmed(&store).await;
    let here = hot.iter().filter(|no| store.try_get(PageId::new(space, **no)).is_some()).count();
    assert!(here * 10 >= hot.len() * 8, "{here} of {}", hot.len());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_part_of_the_list_costs_its_entries_alone() {
    let fixture = Fixture::new();
    let (store, space, _) = used(&fixture).await;
    let list = store.spaces().find(SPACE).unwrap();
    store.close().await.unwrap();
    let damaged = |no| fixture.home_of(PageId::new(list, no)).unwrap();
    let homes = [damaged(0), damaged(1)];
    for (at, bad) in homes.iter().enumerate() {
        let fixture = fixture.after_power_cut(7).with_blank_ssd();
        fixture.hdd.flip_bit(bad + 100, 3);
        let store = bereft(&fixture).await;
        assert!(store.get(PageId::new(list, at as u32)).await.is_err());
        store.hot_set().keep(OFTEN).await.unwrap();
        // A backup must not fail because of it for as long as the warming takes.
        while store.get(PageId::new(list, at as u32)).await.is_err() {
            assert_eq!(store.stats().hot_set.lists, 0);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let stats = until(&store, |stats| stats.lists > 0).await;
        // The first page has what was in memory.
        assert_eq!((stats.to_memory == 0, stats.to_ssd == 0), (at == 0, at == 1), "{stats:?}");
        for no in 0..store.spaces().pages(list).unwrap() {
            drop(store.get(PageId::new(list, no)).await.unwrap());
        }
        expect_all(&store, space, 1).await;
        store.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_shrinks_leaves_no_old_entries() {
    let fixture = Fixture::new();
    let (store, space, _) = used(&fixture).await;
    let list = store.spaces().find(SPACE).unwrap();
    let pages = store.spaces().pages(list).unwrap();
    assert!(pages >= 2);
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    let fewer = listed(&store).await.listed;
    assert!(fewer <= store.frames(), "only what is in memory: {fewer}");
    assert_eq!(store.spaces().pages(list).unwrap(), pages);
    store.close().await.unwrap();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    store.hot_set().keep(OFTEN).await.unwrap();
    let stats = warmed(&store).await;
    assert_eq!(stats.to_ssd, 0);
    expect_all(&store, space, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_list_is_in_nobodys_way() {
    let fixture = Fixture::new();
    // Not asked for: there is no such space.
    let store = fixture.open().await;
    grown(&store).await;
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert_eq!(store.spaces().list().len(), 1);
    // An embedder's own space of the name keeps its contents.
    let own = store.spaces().create(SPACE).await.unwrap();
    store.allocate(own).await.unwrap()[0] = 7;
    assert!(matches!(store.hot_set().keep(OFTEN).await, Err(Error::SpaceExists { name }) if name == SPACE));
    tokio::time::sleep(10 * OFTEN).await;
    assert_eq!(store.get(PageId::new(own, 0)).await.unwrap()[0], 7);
    assert_eq!(hints_of(&store, own), SpaceHints::default());
    // Even if its first page is torn, or cannot be read at present.
    store.allocate(own).await.unwrap()[0] = 8;
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.close().await.unwrap();
    let first = fixture.home_of(PageId::new(own, 0)).unwrap();
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(first..first + 1));
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    assert!(matches!(store.hot_set().keep(OFTEN).await, Err(Error::Pool(_))));
    fixture.hdd.clear_faults();
    fixture.hdd.flip_bit(first + 100, 3);
    assert!(store.get(PageId::new(own, 0)).await.is_err());
    assert!(matches!(store.hot_set().keep(OFTEN).await, Err(Error::SpaceExists { .. })));
    assert_eq!(store.get(PageId::new(own, 1)).await.unwrap()[0], 8);
    store.spaces().drop(own).await.unwrap();
    store.close().await.unwrap();
    let store = fixture.open().await;
    // Dropping the store's ends the lists, until they are asked for again.
    store.hot_set().keep(OFTEN).await.unwrap();
    listed(&store).await;
    store.spaces().drop(store.spaces().find(SPACE).unwrap()).await.unwrap();
    let lists = store.stats().hot_set.lists;
    tokio::time::sleep(10 * OFTEN).await;
    assert!(store.stats().hot_set.lists <= lists + 1 && store.spaces().find(SPACE).is_none());
    store.hot_set().keep(OFTEN).await.unwrap();
    listed(&store).await;
    // The pages of the list take few frames.
    let list = store.spaces().find(SPACE).unwrap();
    let pages = (0..store.spaces().pages(list).unwrap()).map(|no| PageId::new(list, no));
    let held = pages.filter(|page| store.why(*page).unwrap().memory.is_some()).count();
    assert!(held as u64 <= store.frames() / 8, "{held}");
    store.close().await.unwrap();
    let store = fixture.builder().open_read_only().await.unwrap();
    assert!(matches!(store.hot_set().keep(OFTEN).await, Err(Error::ReadOnly)));
}

#[tokio::test(start_paused = true)]
async fn an_idle_store_writes_no_list_twice() {
    let fixture = Fixture::new();
    let (store, ..) = used(&fixture).await;
    listed(&store).await;
    let ops = || [fixture.hdd.ops(), fixture.ssd.ops()];
    // What the tier does in the background, such as a checkpoint of its map, has ended.
    let mut before = [0; 2];
    while std::mem::replace(&mut before, ops()) != before {
        tokio::time::sleep(10 * OFTEN).await;
    }
    listed(&store).await;
    assert_eq!(ops(), before);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_log_has_to_be_kept_for_the_list() {
    let (fixture, store, space) = Fixture::synced(1).await;
    // Its pages were changed without an LSN.
    assert_eq!(store.ssd().drain(pagetier::DrainOptions::new()).await.left, 0);
    store.hot_set().keep(Duration::from_millis(10)).await.unwrap();
    let end = Lsn(1 << 40);
    for version in 2..6 {
        write_all(&store, space, version).await;
        let oldest = Lsn(u64::from(version) * 1000);
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            // Never 0, the position of pages without one.
            assert!(store.min_recovery_lsn().is_none_or(|from| from >= oldest));
            assert!(store.stats().ssd.oldest_lsn.is_none_or(|from| from >= Lsn(2000)));
        }
        store.sync().await.unwrap();
        assert_eq!(store.min_recovery_lsn(), None);
        store.ssd().drain(pagetier::DrainOptions::new()).await;
        assert_eq!(store.redo_from(end, Loss::Ssd).await.unwrap(), end);
    }
    // Nor does a checkpoint of the map pass on such a position.
    let cut = fixture.after_power_cut(3);
    drop(store);
    let store = cut.open().await;
    assert!(
        store.stats().ssd.oldest_lsn.is_none_or(|from| from >= Lsn(2000)),
        "{:?}",
        store.stats().ssd.oldest_lsn
    );
    expect_all(&store, space, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_written_stops_nothing() {
    let fixture = Fixture::new();
    let (store, space, hot) = used(&fixture).await;
    let list = store.spaces().find(SPACE).unwrap();
    let home = fixture.home_of(PageId::new(list, 0)).unwrap();
    let place = home..home + 64 * 4096;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(place));
    let lists = store.stats().hot_set.lists;
    for round in 0..20 {
        for no in (0..PAGES).filter(|no| no % 5 == round % 5) {
            write(&store, space, no, 2).await.unwrap();
        }
        tokio::time::sleep(3 * OFTEN).await;
        // A list that is being written at this moment may fail with it.
        if store.sync().await.is_err() {
            tokio::time::sleep(OFTEN / 2).await;
            store.sync().await.unwrap();
        }
    }
    assert!(store.stats().hot_set.lists <= lists + 1, "{:?}", store.stats().hot_set);
    assert_eq!(store.stats().ssd.refusing, None);
    fixture.hdd.clear_faults();
    listed(&store).await;
    for no in hot {
        read(&store, space, no).await.unwrap();
    }
    store.close().await.unwrap();
    let store = fixture.open().await;
    expect_all(&store, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_cut_short_makes_nothing_fail() {
    for closes in [false, true] {
        let fixture = Fixture::new();
        let (store, space, _) = used(&fixture).await;
        let home = fixture.home_of(PageId::new(store.spaces().find(SPACE).unwrap(), 0)).unwrap();
        let (time, fails) = (Duration::from_secs(5), true);
        let slow = Fault::new(FaultEffect::Blocked { time, fails }).on(IoOp::Write);
        // The next round has something to write, and waits for it.
        for no in (0..PAGES).filter(|no| no % 3 == 2) {
            read(&store, space, no).await.unwrap();
        }
        fixture.hdd.inject(slow.within(home..home + 64 * 4096));
        let lists = store.stats().hot_set.lists;
        tokio::time::sleep(4 * OFTEN).await;
        assert!(store.stats().hot_set.lists <= lists + 1, "a round is under way");
        if !closes {
            store.hot_set().keep(Duration::from_secs(3600)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            store.sync().await.unwrap();
        }
        store.close().await.unwrap();
        fixture.hdd.clear_faults();
        let store = fixture.open().await;
        expect_all(&store, space, 1).await;
        store.hot_set().keep(OFTEN).await.unwrap();
        listed(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_stays_until_another_ssd_has_come_for_the_one_that_failed() {
    let fixture = Fixture::new();
    let (store, space, _) = used(&fixture).await;
    let on_ssd = store.stats().ssd.pages;
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    for no in 0..PAGES {
        let _ = write(&store, space, no, 2).await;
    }
    let _ = store.sync().await;
    tokio::time::sleep(4 * OFTEN).await;
    assert_ne!(store.stats().ssd.state(), SsdState::Active);
    store.ssd().abandon().await.unwrap();
    let lists = store.stats().hot_set.lists;
    tokio::time::sleep(10 * OFTEN).await;
    let stats = store.stats().hot_set;
    assert!(stats.lists <= lists && stats.to_ssd == 0, "{stats:?}");
    fixture.ssd.clear_faults();
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    let stats = until(&store, |stats| stats.to_ssd > 80 && !stats.warming).await;
    assert_eq!(stats.lists, lists);
    assert!(store.stats().ssd.pages * 2 >= on_ssd, "{} of {on_ssd}", store.stats().ssd.pages);
    listed(&store).await;
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn on_a_full_disk_there_is_no_list_until_there_is_room() {
    let (fixture, store, space) = Fixture::synced(1).await;
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Grow));
    // Uses up what the file has grown ahead.
    let full = store.spaces().create("full").await.unwrap();
    while store.allocate(full).await.is_ok() {}
    store.hot_set().keep(OFTEN).await.unwrap();
    tokio::time::sleep(10 * OFTEN).await;
    assert_eq!(store.stats().hot_set.lists, 0);
    write(&store, space, 0, 2).await.unwrap();
    store.sync().await.unwrap();
    fixture.hdd.clear_faults();
    listed(&store).await;
    assert_eq!(read(&store, space, 0).await.unwrap(), 2);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_neither_the_warming_nor_a_slow_list() {
    let fixture = Fixture::new();
    let (store, space, _) = used(&fixture).await;
    let cut = fixture.after_power_cut(4).with_blank_ssd();
    drop(store);
    let store = bereft(&cut).await;
    store.hot_set().keep(OFTEN).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let begun = tokio::time::Instant::now();
    store.close().await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    // A store that is dropped meanwhile leaves at once.
    let store = cut.open().await;
    store.hot_set().keep(OFTEN).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let left = store.wait_closed();
    drop(store);
    tokio::time::timeout(Duration::from_secs(1), left).await.unwrap();
    let store = cut.open().await;
    expect_all(&store, space, 1).await;
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_manifest_is_on_the_hdd_warms_up_on_another_machine() {
    let power = SimPower::new();
    let fixture = Fixture::on_hdd(&power);
    let (store, space, hot) = used(&fixture).await;
    let moved = fixture.after_power_cut(5).with_blank_ssd();
    drop(store);
    let store = bereft(&moved).await;
    // Two calls at once: the later one holds.
    let store = Arc::new(store);
    let (one, two) = tokio::join!(store.hot_set().keep(OFTEN), store.hot_set().keep(OFTEN));
    one.and(two).unwrap();
    warmed(&store).await;
    is_warm(cold(&store, space, &hot).await, &hot);
    store.shutdown().await.unwrap();
    assert!(matches!(store.hot_set().keep(OFTEN).await, Err(Error::Closed)));
}
