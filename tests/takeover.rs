//! An owner whose volume another one has taken over: it serves nothing, and says so.

use crate::fixture::{Fixture, PAGE, POOL_BYTES, RING_PAGES, SSD_PAGES, grown, read, write};
use pagetier::{
    Builder, DrainOptions, Error, OpenError, PageId, PageSize, PageStore, SpaceId, SsdEvent, SsdMode,
    options::OnHdd,
};
use pagetier_devio::SharedDevice;
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower, SimSeat};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pages that are in memory after this.
async fn in_memory(store: &PageStore, space: SpaceId) -> Vec<PageId> {
    let pages: Vec<PageId> = (0..4).map(|no| PageId::new(space, no)).collect();
    for page in &pages {
        drop(store.get(*page).await.unwrap());
    }
    assert!(pages.iter().all(|page| store.try_get(*page).is_some()));
    pages
}

/// Checks that the store serves none of `pages` in any way, and reports that.
async fn serves_nothing(store: &PageStore, pages: &[PageId]) {
    let first = pages[0];
    for page in pages {
        assert!(store.try_get(*page).is_none() && store.try_get_mut(*page).is_none());
    }
    assert!(matches!(store.get(first).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.get_mut(first).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.get_many(pages).await.map(drop), Err(Error::Fenced)));
    assert!(matches!(store.allocate(first.space).await.map(drop), Err(Error::Fenced)));
    let mut scan = store.scan(first.space, 0..4);
    let found = scan.next().await.expect("an error").map(drop);
    assert!(matches!(found, Err(Error::Fenced)), "{found:?}");
    assert!(scan.next().await.is_none(), "a caller that skips errors comes to an end");
    assert!(store.sync().await.is_err());
    assert!(store.stats().ssd.refusing.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_fenced_serves_no_page_and_raises_the_alarm() {
    let (fixture, store, space) = Fixture::synced(1).await;
    let pages = in_memory(&store, space).await;
    let mut events = store.ssd().events();
    fixture.hdd.inject(Fault::new(FaultEffect::Fenced).times(1));
    write(&store, space, 0, 2).await.unwrap();
    // Changes go to the SSD: the next operation of the HDD learns of it.
    let drained = store.ssd().drain(DrainOptions::new()).await;
    assert!(drained.left > 0, "{drained:?}");
    serves_nothing(&store, &pages).await;
    while let Some(event) = events.next().await {
        if let SsdEvent::Refusing { by_ssd, .. } = event {
            assert!(!by_ssd, "no exchange of the SSD ends it");
            break;
        }
    }
    store.close().await.unwrap_err();
    // The next one to open the volume is its owner.
    let store = fixture.open().await;
    assert_eq!(read(&store, space, 0).await.unwrap(), 1);
}

/// A store on a machine's way to its volume, with an SSD of its own.
fn on(seat: &Arc<SimSeat>, name: &str) -> Builder {
    let ssd = SimDevice::new(name, 0, 7, &SimPower::new()).with_latency(Duration::from_micros(400));
    PageStore::builder()
        .manifest(on_hdd().lease(LEASE))
        .hdd(Arc::clone(seat) as SharedDevice)
        .ssd(Arc::new(ssd) as SharedDevice)
        .page_size(PageSize::MIN)
        .ssd_bytes(SSD_PAGES * PAGE)
        .ring_pages(RING_PAGES)
        .pool_bytes(POOL_BYTES)
        .accept_ssd_loss(true)
}

const LEASE: Duration = Duration::from_secs(3);

fn on_hdd() -> OnHdd {
    OnHdd { bytes_max: 256 << 10, ..OnHdd::default() }
}

struct Machines {
    volume: Arc<SimDevice>,
    store: PageStore,
    space: SpaceId,
    pages: Vec<PageId>,
}

/// A volume whose owner has pages in memory.
async fn owned() -> Machines {
    let volume = SimDevice::new("hdd", 0, 1, &SimPower::new()).with_latency(Duration::from_millis(1));
    let volume = Arc::new(volume);
    let store = on(&Arc::new(SimSeat::new(&volume)), "first").open().await.unwrap();
    let space = grown(&store).await;
    store.ssd().drain(DrainOptions::new()).await;
    store.sync().await.unwrap();
    let pages = in_memory(&store, space).await;
    Machines { volume, store, space, pages }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_nothing_keeps_out_serves_for_the_length_of_its_lease_at_most() {
    let Machines { volume, store: former, space, pages } = owned().await;
    write(&former, space, 1, 5).await.unwrap();
    let mut events = former.ssd().events();
    let taker = on(&Arc::new(SimSeat::new(&volume)), "second").open().await.unwrap();
    let taken = Instant::now();
    write(&taker, space, 0, 7).await.unwrap();
    taker.sync().await.unwrap();
    // The former owner asks its volume for nothing of its own accord.
    while former.try_get(pages[0]).is_some() {
        assert!(taken.elapsed() < LEASE, "it serves outdated pages");
        sleep(Duration::from_millis(50)).await;
    }
    serves_nothing(&former, &pages).await;
    while !matches!(events.next().await, Some(SsdEvent::Refusing { by_ssd: false, .. })) {}
    former.close().await.unwrap_err();
    for (no, version) in [(0, 7), (1, 1)] {
        assert_eq!(read(&taker, space, no).await.unwrap(), version);
    }
    taker.ssd().drain(DrainOptions::new()).await;
    taker.close().await.unwrap();
    let store = on(&Arc::new(SimSeat::new(&volume)), "third").open().await.unwrap();
    assert_eq!(read(&store, space, 0).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_stopped_serves_nothing_before_its_volume_confirms_it() {
    let Machines { store, space, pages, .. } = owned().await;
    for stopped in [LEASE, 20 * LEASE] {
        write(&store, space, 2, 3).await.unwrap();
        assert!(store.is_owner());
        tokio::time::advance(stopped).await;
        assert!(store.try_get(pages[0]).is_none() && !store.is_owner());
        assert!(matches!(store.get(pages[0]).await.map(drop), Err(Error::Fenced)));
        sleep(LEASE).await;
        assert!(store.is_owner());
        assert_eq!(read(&store, space, 2).await.unwrap(), 3);
        store.sync().await.unwrap();
    }
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_does_not_answer_suspends_its_owner_and_ends_nothing() {
    let Machines { volume, store, space, pages } = owned().await;
    let mut events = store.ssd().events();
    let time = 4 * LEASE;
    volume.inject(Fault::new(FaultEffect::Blocked { time, fails: false }).times(1));
    write(&store, space, 0, 4).await.unwrap();
    let blocked = Instant::now();
    while !matches!(events.next().await, Some(SsdEvent::OwnerUnconfirmed { unconfirmed: true })) {}
    assert!(blocked.elapsed() <= LEASE && store.stats().ssd.refusing.is_some());
    assert!(matches!(store.get(pages[0]).await.map(drop), Err(Error::Fenced)));
    while !matches!(events.next().await, Some(SsdEvent::OwnerUnconfirmed { unconfirmed: false })) {}
    assert!(blocked.elapsed() >= time && store.stats().ssd.refusing.is_none());
    assert_eq!(read(&store, space, 0).await.unwrap(), 4);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_closes_or_is_dropped_while_its_volume_does_not_answer() {
    for closes in [true, false] {
        let Machines { volume, store, space, .. } = owned().await;
        store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
        let time = 4 * LEASE;
        volume.inject(Fault::new(FaultEffect::Blocked { time, fails: false }).times(1));
        write(&store, space, 0, 4).await.unwrap();
        sleep(2 * LEASE).await;
        let left = store.wait_closed();
        if closes {
            store.close().await.unwrap();
        } else {
            drop(store);
        }
        left.await;
        let store = on(&Arc::new(SimSeat::new(&volume)), "second").open().await.unwrap();
        let found = read(&store, space, 0).await.unwrap();
        assert!(found == 4 || found == 1 && !closes, "{found}");
    }
}

/// What another machine with a blank SSD finds of a volume whose power is cut while pages go home.
async fn after_a_cut(seed: u64, ssd_pages: u64) -> (PageStore, SpaceId, u32) {
    let volume = SimDevice::new("hdd", 0, seed, &SimPower::new()).with_latency(Duration::from_millis(1));
    let volume = Arc::new(volume);
    let builder =
        |volume: &Arc<SimDevice>| on(&Arc::new(SimSeat::new(volume)), "ssd").ssd_bytes(ssd_pages * PAGE);
    let store = builder(&volume).open().await.unwrap();
    let space = grown(&store).await;
    store.ssd().drain(DrainOptions::new()).await;
    store.sync().await.unwrap();
    let mut version = 1;
    let cut = Instant::now() + Duration::from_millis(100 + 37 * seed);
    while Instant::now() < cut {
        version += 1;
        for no in 0..12 {
            write(&store, space, (no * 7 + version) % 60, version).await.unwrap();
        }
        tokio::select! {
            _ = store.ssd().drain(DrainOptions::new()) => {}
            () = tokio::time::sleep_until(cut) => {}
        }
    }
    let after = Arc::new(volume.after_power_cut(seed, &SimPower::new()));
    drop(store);
    (builder(&after).open().await.unwrap(), space, version)
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_tears_pages_is_taken_over_whole_with_an_ssd_or_without() {
    let mut repaired = 0;
    for seed in 0..50 {
        for ssd_pages in [SSD_PAGES, 0] {
            let (store, space, version) = after_a_cut(seed, ssd_pages).await;
            for no in 0..60 {
                let found = read(&store, space, no).await.unwrap();
                assert!((1..=version).contains(&found), "seed {seed}: page {no} has {found}");
            }
            repaired += store.recovery().repaired;
            write(&store, space, 0, version + 1).await.unwrap();
            store.close().await.unwrap();
        }
    }
    assert!(repaired > 0, "nothing was torn");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_writes_pages_whole_uses_no_ring() {
    let volume = SimDevice::new("hdd", 0, 1, &SimPower::new()).with_atomic_writes(PAGE as usize);
    let seat = Arc::new(SimSeat::new(&Arc::new(volume)));
    let directory = pagetier_testing::scratch();
    let builder = || {
        let builder = PageStore::builder().directory(directory.path()).manifest(on_hdd()).ssd_bytes(0);
        let hdd = Arc::clone(&seat) as SharedDevice;
        builder.hdd(hdd).page_size(PageSize::MIN).pool_bytes(POOL_BYTES)
    };
    let store = builder().open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let found = builder().inspect().await.unwrap();
    assert_eq!(found.ssd.as_ref().map(|ring| ring.ring_images), Ok(0));
    assert!(!found.not_promised.contains(&pagetier::inspect::Caveat::NoRing), "{found}");
    let files: Vec<_> = directory.path().read_dir().unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(files, ["lock"], "nothing that another machine would miss");
    let store = builder().open().await.unwrap();
    assert_eq!(read(&store, space, 0).await.unwrap(), 1);
    drop(store);
    let ring: SharedDevice = Arc::new(SimDevice::new("ring", 0, 2, &SimPower::new()));
    let refused = builder().ring_device(ring).open().await;
    assert!(matches!(refused, Err(OpenError::BadOption { option: "ring_device", .. })), "{refused:?}");
}

#[tokio::test]
async fn a_lease_that_is_too_short_is_refused() {
    let directory = pagetier_testing::scratch();
    let manifest = on_hdd().lease(Duration::from_millis(99));
    let refused = PageStore::builder().directory(directory.path()).manifest(manifest).open().await;
    assert!(matches!(refused, Err(OpenError::BadOption { option: "manifest", .. })), "{refused:?}");
}
