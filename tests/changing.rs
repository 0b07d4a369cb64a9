//! The SSD and the policies of a store in use are replaced.

use crate::fixture::{Fixture, PAGE, PAGES, expect_all, grown, read, version_of, write, write_all, zoned};
use pagetier::{
    Costs, Error, OpenError, PageId, PageSize, PageStore, SpaceId, SsdMode, SsdPolicy, errors::Advice,
    scrub::ScrubOptions,
};
use pagetier_devio::{Device, IoOp, SharedDevice};
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub(crate) fn blank_ssd(name: &str, seed: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(name, 0, seed, &SimPower::new()).with_latency(Duration::from_micros(400)))
}

/// The versions of all pages, as written and as synced.
pub(crate) struct Known {
    pub(crate) written: Vec<AtomicU32>,
    pub(crate) synced: Vec<AtomicU32>,
}

impl Known {
    /// A copy of the versions at this moment.
    pub(crate) fn copy(&self) -> Self {
        let of = |all: &[AtomicU32]| all.iter().map(|v| v.load(Ordering::Relaxed).into()).collect();
        Self { written: of(&self.written), synced: of(&self.synced) }
    }
}

/// A task that writes and syncs until it is told to end.
pub(crate) struct Load {
    pub(crate) known: Arc<Known>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    pub(crate) fn on(store: &Arc<PageStore>, space: SpaceId) -> Self {
        let (known, stop) = (known(), Arc::new(AtomicBool::new(false)));
        let task = tokio::spawn(load(Arc::clone(store), space, Arc::clone(&known), Arc::clone(&stop)));
        Self { known, stop, task }
    }

    /// Returns once the task has ended, of itself.
    pub(crate) async fn end(self) -> Arc<Known> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.known
    }
}

/// Writes and syncs until stopped.
async fn load(store: Arc<PageStore>, space: SpaceId, known: Arc<Known>, stop: Arc<AtomicBool>) {
    let mut at = 1_u32;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..20 {
            at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let no = (at >> 8) % PAGES;
            let version = known.written[no as usize].fetch_add(1, Ordering::Relaxed) + 1;
            if write(&store, space, no, version).await.is_err() {
                return;
            }
            if let Ok(page) = store.get(PageId::new(space, (at >> 12) % PAGES)).await {
                version_of(&page, page.id().no);
            }
        }
        let written: Vec<u32> = known.written.iter().map(|v| v.load(Ordering::Relaxed)).collect();
        if store.sync().await.is_ok() {
            for (synced, version) in known.synced.iter().zip(written) {
                synced.store(version, Ordering::Relaxed);
            }
        }
    }
}

pub(crate) async fn check(store: &PageStore, space: SpaceId, known: &Known, what: &str) {
    for no in 0..PAGES {
        let version = read(store, space, no).await.unwrap_or_else(|e| panic!("{what}: page {no}: {e}"));
        let (least, most) = (
            known.synced[no as usize].load(Ordering::Relaxed),
            known.written[no as usize].load(Ordering::Relaxed),
        );
        assert!((least..=most).contains(&version), "{what}: page {no}: {version}, not {least} to {most}");
    }
}

pub(crate) fn known() -> Arc<Known> {
    let all = || (0..PAGES).map(|_| AtomicU32::new(1)).collect();
    Arc::new(Known { written: all(), synced: all() })
}

#[tokio::test(start_paused = true)]
async fn a_replaced_ssd_is_used_and_the_old_one_is_not_touched_again() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    let slots = store.stats().ssd.slots;
    for (round, pages) in [(0, 400), (1, 120)] {
        let new = blank_ssd("new", 5 + round);
        store.ssd().replace(Arc::clone(&new) as SharedDevice, pages * PAGE).await.unwrap();
        assert_eq!(store.stats().ssd.mode, SsdMode::WriteBack);
        assert_eq!(store.stats().ssd.slots > slots, round == 0);
        let written = fixture.ssd.stats().totals().write.ops;
        write_all(&store, space, 3 + round as u32).await;
        store.sync().await.unwrap();
        assert_eq!(fixture.ssd.stats().totals().write.ops, written);
        assert!(store.stats().ssd.pages > 0);
        // Switching the SSD off and on again uses the new one.
        store.ssd().set_mode(SsdMode::Off).await.unwrap();
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
        assert_eq!(store.stats().ssd.slots > slots, round == 0);
        expect_all(&store, space, 3 + round as u32).await;
        store.validate().unwrap();
    }
    store.close().await.unwrap();
    assert!(matches!(fixture.try_open().await, Err(OpenError::SsdMissing { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_cannot_be_made_leaves_the_ssd_in_use() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    let attach = |result: Result<(), Error>| match result {
        Err(Error::Attach(error)) => error,
        other => panic!("{other:?}"),
    };
    // The replacement would format devices in use.
    for used in [&fixture.ssd, &fixture.hdd] {
        let device = Arc::clone(used) as SharedDevice;
        let refused = attach(store.ssd().replace(device, 200 * PAGE).await);
        assert!(matches!(*refused, OpenError::DeviceInUse { .. }), "{refused:?}");
    }
    let small = store.ssd().replace(blank_ssd("small", 1), 3 * PAGE).await;
    assert!(matches!(*attach(small), OpenError::SsdTooSmall(_)));
    let data = blank_ssd("data", 2);
    data.grow(1 << 20).unwrap();
    data.implant(0, &[7; 4096]);
    let foreign = store.ssd().replace(data, 200 * PAGE).await;
    assert!(matches!(*attach(foreign), OpenError::Foreign { .. }));
    let broken = blank_ssd("broken", 3);
    broken.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    assert!(store.ssd().replace(broken, 200 * PAGE).await.is_err());
    // A drain cannot complete.
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.dirty_pages > 0);
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    let stuck = store.ssd().replace(blank_ssd("new", 4), 200 * PAGE).await;
    assert!(stuck.is_err(), "{stuck:?}");
    fixture.hdd.clear_faults();
    assert_eq!(store.stats().ssd.mode, SsdMode::WriteBack);
    write_all(&store, space, 4).await;
    store.sync().await.unwrap();
    expect_all(&store, space, 4).await;
    drop(store);
    let store = fixture.after_power_cut(4).open().await;
    expect_all(&store, space, 4).await;
}

#[tokio::test]
async fn on_files_the_ssd_in_use_is_refused_under_any_name() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("store");
    let builder = || PageStore::builder().directory(&path).page_size(PageSize::MIN).pool_bytes(1 << 20);
    let store = builder().ssd_bytes(2 << 20).open().await.unwrap();
    let space = grown(&store).await;
    std::fs::hard_link(path.join("ssd.cache"), dir.path().join("linked")).unwrap();
    std::os::unix::fs::symlink(path.join("hdd.vol"), dir.path().join("named")).unwrap();
    for name in ["linked", "named", "store/ssd.cache", "store/../store/hdd.vol"] {
        let refused = store.ssd().replace(dir.path().join(name), 4 << 20).await;
        let Err(Error::Attach(error)) = refused else { panic!("{name}: {refused:?}") };
        assert!(matches!(*error, OpenError::DeviceInUse { .. }), "{name}: {error}");
    }
    let larger = dir.path().join("larger");
    store.ssd().replace(&larger, 4 << 20).await.unwrap();
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    std::fs::remove_file(path.join("ssd.cache")).unwrap();
    let store = builder().ssd(&larger).open().await.unwrap();
    expect_all(&store, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn the_pools_policy_is_switched_under_load_between_any_two() {
    let (_fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    let load = Load::on(&store, space);
    for &from in POOL_POLICIES {
        for &to in POOL_POLICIES {
            store.policies().set_pool(from).unwrap();
            store.validate().unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
            store.policies().set_pool(to).unwrap();
            assert_eq!(store.policies().pool(), to);
            store.validate().unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    // Both policies have one family of errors.
    for unknown in [store.policies().set_pool("no such"), store.policies().set_ssd("no such").await] {
        assert!(matches!(&unknown, Err(Error::UnknownPolicy(_))), "{unknown:?}");
        assert_eq!(unknown.unwrap_err().advice(), Advice::FixConfiguration);
    }
    let known = load.end().await;
    store.validate().unwrap();
    check(&store, space, &known, "after all switches").await;
}

#[tokio::test(start_paused = true)]
async fn pages_keep_their_order_of_eviction_over_a_switch() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_policy("lru").read_ahead(false).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    for no in 0..PAGES {
        read(&store, space, no * 7 % PAGES).await.unwrap();
    }
    let before = store.hot_set().pages(usize::MAX);
    for to in ["gd2l", "lru"] {
        store.policies().set_pool(to).unwrap();
        let after = store.hot_set().pages(usize::MAX);
        assert_eq!(after.len(), before.len());
        if to == "lru" {
            // GD2L evicts pages on the SSD before others.
            continue;
        }
        let on = |ssd: bool| {
            let home = if ssd { pagetier::Location::Ssd } else { pagetier::Location::Hdd };
            move |store: &PageStore, page: &PageId| store.location(*page) == home
        };
        for ssd in [true, false] {
            let of = |pages: &[PageId]| -> Vec<PageId> {
                pages.iter().filter(|page| on(ssd)(&store, page)).copied().collect()
            };
            assert_eq!(of(&after), of(&before));
        }
    }
}

/// A store with this SSD policy, under load.
pub(crate) async fn loaded(fixture: &Fixture, policy: SsdPolicy) -> (Arc<PageStore>, SpaceId, Load) {
    let store = Arc::new(fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap());
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let load = Load::on(&store, space);
    tokio::time::sleep(Duration::from_millis(100)).await;
    (store, space, load)
}

#[tokio::test(start_paused = true)]
async fn the_ssds_policy_is_switched_under_load_between_any_two_and_the_ssd_stays_warm() {
    for &from in SSD_POLICIES {
        let fixture = Fixture::new();
        let (store, space, load) = loaded(&fixture, from).await;
        for &to in SSD_POLICIES {
            store.policies().set_ssd(from).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            store.policies().set_ssd(to).await.unwrap();
            assert_eq!(store.policies().ssd(), to);
            store.validate().unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            store.validate().unwrap();
        }
        let known = load.end().await;
        store.sync().await.unwrap();
        // Without load, a switch changes nothing that is on the SSD.
        let before = store.stats().ssd;
        for &to in SSD_POLICIES {
            store.policies().set_ssd(to).await.unwrap();
            let after = store.stats().ssd;
            assert_eq!(after.pages, before.pages, "{from}, then {to}");
            assert!(after.dirty_pages <= before.dirty_pages, "{from}, then {to}");
        }
        assert!(before.pages > 0 && store.stats().ssd.state() == pagetier::stats::SsdState::Active);
        check(&store, space, &known, &from.to_string()).await;
        store.validate().unwrap();
    }
}

/// The schedule: a page was discarded before it was ever written, a read of it finds nothing, and meanwhile
/// the policy is switched. The new policy must not count the page as one in memory: it never leaves.
#[tokio::test(start_paused = true)]
async fn a_page_whose_load_fails_during_a_switch_of_the_ssds_policy_is_not_kept_in_its_records() {
    let (fixture, store, space) = Fixture::with_space().await;
    let store = Arc::new(store);
    let page = store.allocate(space).await.unwrap().id();
    store.discard(page).await.unwrap();
    let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(60))).on(IoOp::Read).times(1);
    fixture.hdd.inject(slow);
    let reader = Arc::clone(&store);
    let read = tokio::spawn(async move { reader.get(page).await.map(|page| page.id()) });
    tokio::time::sleep(Duration::from_millis(1)).await;
    store.policies().set_ssd("cac").await.unwrap();
    assert!(!read.is_finished() && store.why(page).unwrap().memory.is_some(), "it is being loaded");
    assert!(matches!(read.await.unwrap(), Err(Error::NoSuchPage { .. })));
    let why = store.why(page).unwrap();
    assert_eq!((why.memory, why.counts), (None, None));
    store.validate().unwrap();
}

/// The power fails during a switch under load, or soon after it. Whatever policy the store opens with, it has
/// every synced version.
#[tokio::test(start_paused = true)]
async fn a_power_cut_at_any_moment_of_a_switch_of_the_ssds_policy_loses_nothing_synced() {
    let all = SSD_POLICIES;
    for seed in 0..all.len() * all.len() {
        let (from, to) = (all[seed % all.len()], all[seed / all.len()]);
        let what = format!("{from} to {to}");
        let fixture = Fixture::new();
        let (store, space, load) = loaded(&fixture, from).await;
        let switching = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.policies().set_ssd(to).await }
        });
        // A switch takes some milliseconds: half of the cuts come after it.
        tokio::time::sleep(Duration::from_micros(seed as u64 * 7_193 % 30_000)).await;
        let (later, at_cut) = (fixture.after_power_cut(seed as u64), load.known.copy());
        switching.abort();
        let _ended = (load.end().await, switching.await);
        drop(store);
        let opened =
            later.builder().ssd_policy(zoned(if seed % 2 == 0 { from } else { to })).open().await.unwrap();
        check(&opened, space, &at_cut, &what).await;
        let report = opened.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
        assert!(report.findings.is_empty(), "{what}: {report:?}");
        opened.validate().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_of_the_ssds_policy_that_cannot_be_made_keeps_the_one_in_use() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned("lru2")).open().await.unwrap();
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    let unknown = store.policies().set_ssd("no such").await;
    assert!(matches!(unknown, Err(Error::UnknownPolicy(_))), "{unknown:?}");
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush));
    assert!(store.policies().set_ssd("mv-fifo").await.is_err());
    assert_eq!(store.policies().ssd().to_string(), "lru2:zone=30");
    expect_all(&store, space, 2).await;
    store.shutdown().await.unwrap_err();
    assert!(matches!(store.policies().set_ssd("cac").await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_switched_ssd_policy_outlives_an_exchange_of_the_ssd() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned("lru2")).open().await.unwrap();
    let space = grown(&store).await;
    // A policy set while there is no SSD applies to the one attached next.
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.policies().set_ssd("tac").await.unwrap();
    store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    for no in 0..PAGES {
        read(&store, space, no).await.unwrap();
    }
    assert!(store.stats().ssd.counts.admitted_on_read > 0, "only TAC admits pages as they are read");
    let new = blank_ssd("new", 5) as SharedDevice;
    store.ssd().replace(new, 200 * PAGE).await.unwrap();
    assert_eq!(store.policies().ssd().to_string(), "tac");
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    assert_eq!(store.stats().ssd.dirty_pages, 0, "TAC writes through");
    expect_all(&store, space, 2).await;
}

/// What stays in memory is neither read nor evicted: the policy of a new SSD would never learn of it, and
/// reject it once the SSD is full.
#[tokio::test(start_paused = true)]
async fn the_policy_of_a_new_ssd_knows_the_pages_in_memory() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned("cac")).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let tracked = || {
        let pages = (0..PAGES).map(|no| store.why(PageId::new(space, no)).unwrap());
        let pages = pages.map(|why| (why.memory.is_some(), why.counts.is_some()));
        pages.fold((0, 0), |(memory, both), (held, known)| {
            (memory + u32::from(held), both + u32::from(held && known))
        })
    };
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    let (memory, known) = tracked();
    assert!(memory > 10 && known == 0, "{known} of {memory}");
    store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
    assert_eq!(tracked(), (memory, memory));
    store.ssd().replace(blank_ssd("new", 5) as SharedDevice, 200 * PAGE).await.unwrap();
    // The pool has made room for larger tables.
    let (memory, known) = tracked();
    assert!(memory > 10 && known == memory, "{known} of {memory}");
    store.validate().unwrap();
}

/// The schedule: the format of a new SSD takes seconds, and meanwhile the costs are measured again.
#[tokio::test(start_paused = true)]
async fn the_policy_of_a_new_ssd_has_the_costs_that_were_set_while_it_was_formatted() {
    let fixture = Fixture::new();
    let store = Arc::new(fixture.builder().ssd_policy(zoned("cac")).open().await.unwrap());
    let space = grown(&store).await;
    let new = blank_ssd("new", 5);
    new.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(10))).on(IoOp::Write).times(1));
    let replacing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ssd().replace(new as SharedDevice, 200 * PAGE).await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!replacing.is_finished());
    let costs = Costs { hdd_read_ms: 50.0, ..store.policies().costs() };
    store.policies().set_costs(costs).unwrap();
    replacing.await.unwrap().unwrap();
    for no in 0..PAGES {
        read(&store, space, no).await.unwrap();
    }
    let benefits = || (0..PAGES).map(|no| store.why(PageId::new(space, no)).unwrap().benefit_ms);
    let before: Vec<_> = benefits().collect();
    assert!(before.iter().flatten().any(|benefit| *benefit > 0.0));
    store.policies().set_costs(costs).unwrap();
    assert!(benefits().eq(before), "they are as by the costs set last");
}
