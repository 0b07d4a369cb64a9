//! Pages far beyond the end of their space: a wrong number takes no disk space, and a growth that fails or is
//! cut short gives its disk space back.

use crate::fixture::{Fixture, PAGE, fill, polled, read};
use crate::growth::append;
use crate::reserve::small;
use pagetier::{
    Builder, Error, PageId, PageStore, SpaceId, backup::BackupOptions, device::DeviceErrorKind,
    errors::Advice,
};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

/// Pages of an extent.
const EXTENT: u32 = 64;

/// Numbers as a bug or a bad record makes them.
const WRONG: [u32; 4] = [4_000_000_000, u32::MAX - 1, 1 << 31, 100_000];

fn any_gap(fixture: &Fixture) -> Builder {
    fixture.builder().page_gap_max(u32::MAX)
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Device(device) if matches!(device.kind, DeviceErrorKind::NoSpace))
}

/// The number of pages that a new space gets until the HDD is full.
async fn rest(store: &PageStore) -> usize {
    let space = store.spaces().create("rest").await.unwrap();
    let mut pages = 0;
    loop {
        match append(store, space).await {
            Ok(_) => pages += 1,
            Err(error) if is_full(&error) => break,
            Err(other) => panic!("{other}"),
        }
    }
    store.spaces().drop(space).await.unwrap();
    pages
}

#[tokio::test(start_paused = true)]
async fn a_number_beyond_the_gap_is_refused_and_takes_nothing() {
    let (fixture, store, space) = Fixture::with_space().await;
    append(&store, space).await.unwrap();
    let (size, saves) = (fixture.hdd.size(), fixture.manifest.saves());
    for no in WRONG {
        let page = PageId::new(space, no);
        for refused in [
            store.overwrite(page).await.map(drop),
            store.overwrite(page).await.map(drop),
            store.get_or_create(page).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            let expected = u64::from(no - EXTENT);
            let is_gap = matches!(error, Error::PageGap { page: at, gap, gap_max: 65_536 } if (at, gap) == (page, expected));
            assert!(is_gap, "{error}");
            assert_eq!((error.advice(), error.page()), (Advice::FixConfiguration, Some(page)));
        }
    }
    assert!(matches!(store.overwrite(PageId::new(space, u32::MAX)).await, Err(Error::SpaceFull { .. })));
    assert!(matches!(
        store.overwrite(PageId::new(SpaceId(9), 4_000_000_000)).await,
        Err(Error::NoSuchSpace { .. })
    ));
    assert_eq!((fixture.hdd.size(), fixture.manifest.saves()), (size, saves), "something was taken");
    assert_eq!(store.spaces().pages(space).unwrap(), 1);
    // The largest gap that is allowed, and with a gap of 0 the next page.
    store.overwrite(PageId::new(space, EXTENT + 65_536)).await.unwrap();
    store.close().await.unwrap();
    let store = fixture.builder().page_gap_max(0).open().await.unwrap();
    let end = (EXTENT + 65_536).next_multiple_of(EXTENT) + EXTENT;
    assert!(matches!(store.overwrite(PageId::new(space, end + 1)).await, Err(Error::PageGap { gap: 1, .. })));
    store.overwrite(PageId::new(space, end)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_page_for_which_there_is_no_room_takes_none_from_others() {
    let fixture = small(12);
    let store = Arc::new(any_gap(&fixture).open().await.unwrap());
    let space = store.spaces().create("t").await.unwrap();
    let other = store.spaces().create("u").await.unwrap();
    append(&store, space).await.unwrap();
    append(&store, other).await.unwrap();
    let (size, saves) = (fixture.hdd.size(), fixture.manifest.saves());
    for no in WRONG.into_iter().chain([11 * EXTENT]) {
        let refused = store.overwrite(PageId::new(space, no)).await.unwrap_err();
        assert!(is_full(&refused), "{no}: {refused}");
    }
    assert_eq!((fixture.hdd.size(), fixture.manifest.saves()), (size, saves), "something was taken");
    // Beside others, who get all the disk space that there is.
    let wrong: Vec<_> = (0..8)
        .map(|turn: usize| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for no in WRONG.into_iter().cycle().skip(turn).take(20) {
                    let refused = store.overwrite(PageId::new(space, no)).await.unwrap_err();
                    assert!(is_full(&refused), "{no}: {refused}");
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            })
        })
        .collect();
    assert_eq!(rest(&store).await, 10 * EXTENT as usize);
    for task in wrong {
        task.await.unwrap();
    }
    assert_eq!(rest(&store).await, 10 * EXTENT as usize);
    // What fits is created, and then the space has the rest.
    store.overwrite(PageId::new(space, 11 * EXTENT - 1)).await.unwrap();
    assert_eq!(rest(&store).await, 0);
    assert_eq!(read(&store, other, 0).await.unwrap(), 1);
    assert_eq!(store.validate(), Ok(()));
}

/// A store with `space` of one page, and free runs of one extent each between those of others: a growth of
/// `space` takes several records.
async fn fragmented(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = any_gap(fixture).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    append(&store, space).await.unwrap();
    let mut gone = Vec::new();
    for turn in 0..4 {
        for name in ["stays", "goes"] {
            let space = store.spaces().create(&format!("{name} {turn}")).await.unwrap();
            append(&store, space).await.unwrap();
            if name == "goes" {
                gone.push(space);
            }
        }
    }
    for space in gone {
        store.spaces().drop(space).await.unwrap();
    }
    store.sync().await.unwrap();
    (store, space)
}

/// A page of the sixth extent: the space needs four free extents and a new one.
const FAR: u32 = 5 * EXTENT + 3;

#[tokio::test(start_paused = true)]
async fn a_growth_that_fails_at_any_step_gives_everything_back() {
    let whole = {
        let fixture = small(16);
        let (store, _) = fragmented(&fixture).await;
        rest(&store).await
    };
    assert_eq!(whole, 11 * EXTENT as usize);
    let mut failures = 0;
    for step in 0..40 {
        for replaced in [false, true] {
            let fixture = small(16);
            let (store, space) = fragmented(&fixture).await;
            let size = fixture.hdd.size();
            if step < 20 {
                fixture.manifest.fail_saves(step, 1, replaced);
            } else {
                // A write of zeroes fails.
                let eio = Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1);
                fixture.hdd.inject(eio.from_op(fixture.hdd.ops() + step - 20));
            }
            let created = store.overwrite(PageId::new(space, FAR)).await.map(drop);
            fixture.hdd.clear_faults();
            fixture.manifest.fail_saves(0, 0, false);
            if created.is_ok() {
                assert_eq!(rest(&store).await, whole - 5 * EXTENT as usize);
                continue;
            }
            failures += 1;
            assert_eq!(fixture.hdd.size(), size, "step {step}: the HDD's room");
            assert_eq!(store.spaces().pages(space).unwrap(), 1);
            // A crash leaves no less.
            let crashed = fixture.after_power_cut(step);
            assert_eq!(rest(&store).await, whole, "step {step}, replaced: {replaced}");
            let store = any_gap(&crashed).open().await.unwrap();
            store.spaces().shrink(space).await.unwrap();
            let again = Fault::new(FaultEffect::NoSpace).on(IoOp::Grow);
            crashed.hdd.inject(again);
            assert!(rest(&store).await >= 4 * EXTENT as usize, "step {step}, after a crash");
            assert_eq!(read(&store, space, 0).await.unwrap(), 1);
        }
    }
    assert!(failures >= 8, "only {failures}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_of_a_growth_leaks_no_room_for_good() {
    let mut cuts = 0;
    for step in 0..1000 {
        let cut_after = Duration::from_micros(700 * step);
        let mut fixture = Fixture::new();
        fixture.hdd =
            Arc::new(SimDevice::new("hdd", 0, 1, &SimPower::new()).with_latency(Duration::from_millis(4)));
        let (store, space) = fragmented(&fixture).await;
        let creating = tokio::time::timeout(cut_after, async {
            fill(&mut store.overwrite(PageId::new(space, FAR)).await.unwrap(), FAR, 4);
            store.sync().await.unwrap();
        });
        let created = creating.await.is_ok();
        cuts += u32::from(!created);
        let crashed = fixture.after_power_cut(step);
        let store = any_gap(&crashed).open().await.unwrap();
        assert_eq!(read(&store, space, 0).await.unwrap(), 1);
        match read(&store, space, FAR).await {
            Ok(version) => assert_eq!(version, 4),
            Err(error) => assert!(!created && matches!(error, Error::NoSuchPage { .. }), "{error}"),
        }
        // Whatever the crash left, the space can give it back.
        store.free((space, 1..u32::MAX)).await.unwrap();
        store.spaces().shrink(space).await.unwrap();
        crashed.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Grow));
        assert!(rest(&store).await >= 4 * EXTENT as usize - 1, "after {cut_after:?}");
        assert_eq!(store.validate(), Ok(()));
        if created {
            break;
        }
    }
    assert!(cuts >= 8, "only {cuts}");
}

#[tokio::test(start_paused = true)]
async fn a_growth_whose_caller_is_dropped_gives_its_room_back_when_the_space_shrinks() {
    for polls in 0..4 {
        let fixture = small(16);
        let (store, space) = fragmented(&fixture).await;
        let whole = rest(&store).await;
        let _ = polled(polls, store.overwrite(PageId::new(space, FAR))).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        store.free((space, 1..u32::MAX)).await.unwrap();
        store.spaces().shrink(space).await.unwrap();
        // The last extent stays if the page was created in it.
        let left = whole - rest(&store).await;
        assert!([0, EXTENT as usize].contains(&left), "{polls} polls: {left}");
    }
}

/// Shrinks a space whose disk space ends beyond its last page, and lets it and another one grow again.
async fn tail_given_back() -> Result<(), Error> {
    let (fixture, store, space) = Fixture::with_space().await;
    for _ in 0..3 * EXTENT {
        append(&store, space).await?;
    }
    // Its caller is dropped: the space has the disk space, and no page there.
    let _ = polled(1, store.overwrite(PageId::new(space, 20 * EXTENT))).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.sync().await?;
    assert_eq!(store.spaces().pages(space).unwrap(), 3 * EXTENT);
    assert_eq!(store.spaces().shrink(space).await?, 18 * u64::from(EXTENT) * PAGE);
    assert_eq!(store.spaces().shrink(space).await?, 0);
    let size = fixture.hdd.size();
    let other = store.spaces().create("u").await.unwrap();
    for no in 0..9 * EXTENT {
        fill(&mut store.overwrite(PageId::new(space, 3 * EXTENT + no)).await?, no, 1);
        fill(&mut store.overwrite(PageId::new(other, no)).await?, no, 2);
    }
    assert_eq!(fixture.hdd.size(), size, "the room was there");
    store.sync().await?;
    let left = store.wait_closed();
    drop(store);
    left.await;
    let crashed = fixture.after_power_cut(3);
    let store = match crashed.try_open().await {
        Ok(store) => store,
        Err(error) => return Err(Error::Attach(Arc::new(error))),
    };
    for no in 0..9 * EXTENT {
        let page = store.get(PageId::new(space, 3 * EXTENT + no)).await?;
        assert_eq!(crate::fixture::version_of(&page, no), 1);
        assert_eq!(read(&store, other, no).await?, 2);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn extents_beyond_the_last_page_go_to_others() {
    tail_given_back().await.unwrap();
}

/// A tail whose return could not be recorded: the disk may have given it away, or not.
#[tokio::test(start_paused = true)]
async fn pages_in_a_tail_whose_return_failed_survive_a_crash() {
    for replaced in [false, true] {
        for seed in 0..4 {
            let (fixture, store, space) = Fixture::with_space().await;
            append(&store, space).await.unwrap();
            let _ = polled(1, store.overwrite(PageId::new(space, 9 * EXTENT))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            fixture.manifest.fail_saves(0, 1, replaced);
            assert!(matches!(store.spaces().shrink(space).await, Err(Error::Manifest { .. })));
            for no in 1..9 * EXTENT {
                assert_eq!(append(&store, space).await.unwrap(), no);
            }
            store.sync().await.unwrap();
            let store = fixture.after_power_cut(seed).open().await;
            for no in 0..9 * EXTENT {
                assert_eq!(read(&store, space, no).await.unwrap(), 1);
            }
        }
    }
}

/// Disk space is durable before its pages exist: redo creates the pages that existed in any order, with any
/// gap.
#[tokio::test(start_paused = true)]
async fn redo_after_a_crash_creates_pages_in_any_order() {
    for seed in 0..4 {
        let fixture = Fixture::new();
        let builder = || fixture.builder().page_gap_max(0);
        let store = builder().open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        for no in 0..700 {
            fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 1);
            if no == 50 {
                store.sync().await.unwrap();
            }
        }
        let crashed = fixture.after_power_cut(seed);
        let store = crashed.builder().page_gap_max(0).open().await.unwrap();
        for no in (0..700).rev() {
            fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 2);
        }
        store.sync().await.unwrap();
        for no in 0..700 {
            assert_eq!(read(&store, space, no).await.unwrap(), 2);
        }
    }
}

/// A number below the space's end is in use until it is freed, even if its page was never written.
#[tokio::test(start_paused = true)]
async fn numbers_that_a_gap_skipped_can_be_freed_and_their_room_given_back() {
    let (fixture, store, space) = Fixture::with_space().await;
    append(&store, space).await.unwrap();
    fill(&mut store.overwrite(PageId::new(space, 640)).await.unwrap(), 640, 1);
    store.sync().await.unwrap();
    assert_eq!(append(&store, space).await.unwrap(), 641, "a skipped number is not free");
    let skipped = PageId::new(space, 9);
    assert!(matches!(store.get(skipped).await, Err(Error::NoSuchPage { .. })));
    store.free(skipped).await.unwrap();
    assert_eq!(store.free(&[skipped, PageId::new(space, 642)]).await.unwrap(), 0);
    assert_eq!(append(&store, space).await.unwrap(), 9, "now it is free");
    assert_eq!(store.free((space, 10..640)).await.unwrap(), 630);
    assert_eq!(store.spaces().shrink(space).await.unwrap(), 9 * u64::from(EXTENT) * PAGE);
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(2).open().await;
    for no in [0, 9, 640, 641] {
        assert_eq!(read(&store, space, no).await.unwrap(), 1);
    }
    assert_eq!(store.spaces().list()[0].free, 630);
}

/// Redo makes pages anew that were freed, and whose space was shrunk: at once, after a crash, and in a store
/// that a backup restores, their numbers are near, and each takes the disk space of its own extent alone.
#[tokio::test]
async fn free_numbers_beyond_the_end_of_a_space_are_near() {
    let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
    let store = any_gap(&fixture).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    let far = PageId::new(space, 20 * EXTENT + 7);
    append(&store, space).await.unwrap();
    fill(&mut store.overwrite(far).await.unwrap(), far.no, 1);
    store.free((space, 1..u32::MAX)).await.unwrap();
    // The second one has nothing left to give back, nor to cut off.
    store.spaces().shrink(space).await.unwrap();
    assert_eq!(store.spaces().shrink(space).await.unwrap(), 0);
    let folder = pagetier_testing::scratch();
    let chain = folder.path().join("chain");
    store.backup(&chain, BackupOptions::new()).await.unwrap();
    let restored = || PageStore::builder().directory(folder.path().join("restored")).ssd_bytes(0);
    restored().pool_bytes(3 << 20).restore(&chain, None, |_| ()).await.unwrap();
    let crashed = fixture.after_power_cut(1);
    let builders: [&dyn Fn() -> Builder; 3] =
        [&|| fixture.builder(), &|| crashed.builder(), &|| restored().pool_bytes(3 << 20)];
    let mut running = Some(store);
    for builder in builders {
        let store = match running.take() {
            Some(store) => store,
            None => builder().page_gap_max(0).open().await.unwrap(),
        };
        assert_eq!(store.spaces().pages(space).unwrap(), 1);
        assert!(store.overwrite(far).await.unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(store.spaces().pages(space).unwrap(), far.no + 1);
        assert_eq!(read(&store, space, 0).await.unwrap(), 1);
        assert_eq!(store.validate(), Ok(()));
        store.close().await.unwrap();
        let space = builder().inspect().await.unwrap().manifest.spaces.remove(0);
        assert_eq!((space.pages, space.room), (far.no + 1, 2 * u64::from(EXTENT)));
    }
}
