//! Spaces that are created, grown and dropped while the HDD has no room, the manifest cannot be written, or
//! the call is cancelled: what `sync` promised survives a crash, and no room is lost.

use crate::fixture::{self, Fixture, PAGE, fill, grown, polled, version_of};
use pagetier::{DrainOptions, Error, OpenError, PageId, PageSize, PageStore, SpaceId};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

/// The cause of a failed growth.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Hdd,
    Manifest,
    /// The save takes effect but reports a failure.
    ManifestReplaced,
}

const TROUBLES: [Trouble; 3] = [Trouble::Hdd, Trouble::Manifest, Trouble::ManifestReplaced];

impl Trouble {
    fn begin(self, fixture: &Fixture) {
        match self {
            Self::Hdd => fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Grow)),
            Self::Manifest => fixture.manifest.fail_saves(0, u64::MAX, false),
            Self::ManifestReplaced => fixture.manifest.fail_saves(0, u64::MAX, true),
        }
    }

    fn end(fixture: &Fixture) {
        fixture.hdd.clear_faults();
        fixture.manifest.fail_saves(0, 0, false);
    }
}

/// Appends a page at version 1; returns its number.
pub(crate) async fn append(store: &PageStore, space: SpaceId) -> Result<u32, Error> {
    let mut page = store.allocate(space).await?;
    let no = page.id().no;
    fill(&mut page, no, 1);
    Ok(no)
}

async fn expect(store: &PageStore, space: SpaceId, pages: &[u32]) {
    for no in pages {
        let page = store.get(PageId::new(space, *no)).await;
        assert_eq!(version_of(&page.unwrap_or_else(|e| panic!("page {no}: {e}")), *no), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_allocated_around_a_growth_that_failed_are_there_after_a_crash() {
    for trouble in TROUBLES {
        for seed in 0..8 {
            let (fixture, store, space) = Fixture::with_space().await;
            let mut synced = vec![append(&store, space).await.unwrap()];
            trouble.begin(&fixture);
            let mut failures = 0;
            // Reserved disk space is used up first; after that every attempt fails.
            while failures < 20 {
                match append(&store, space).await {
                    Ok(no) => synced.push(no),
                    Err(Error::Device(_) | Error::Manifest { .. }) => failures += 1,
                    Err(other) => panic!("{trouble:?}: {other}"),
                }
                assert!(synced.len() < 2000, "{trouble:?}: it never failed");
            }
            assert_eq!(store.spaces().pages(space).unwrap() as usize, synced.len());
            store.sync().await.unwrap();
            let crashed = fixture.after_power_cut(seed);
            let after = crashed.open().await;
            expect(&after, space, &synced).await;
            // Once there is room again, both stores continue.
            Trouble::end(&fixture);
            for _ in 0..200 {
                synced.push(append(&store, space).await.unwrap());
            }
            store.sync().await.unwrap();
            append(&after, space).await.unwrap();
            expect(&fixture.after_power_cut(seed + 50).open().await, space, &synced).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_extent_of_a_failed_growth_never_belongs_to_two_spaces() {
    for trouble in TROUBLES {
        let fixture = Fixture::new();
        let store = fixture.open().await;
        let spaces = [store.spaces().create("a").await.unwrap(), store.spaces().create("b").await.unwrap()];
        let mut pages = [Vec::new(), Vec::new()];
        for turn in 0..12 {
            for (space, pages) in spaces.iter().zip(&mut pages) {
                trouble.begin(&fixture);
                while let Ok(no) = append(&store, *space).await {
                    pages.push(no);
                }
                if turn % 3 != 0 {
                    Trouble::end(&fixture);
                }
                if let Ok(no) = append(&store, *space).await {
                    pages.push(no);
                }
            }
        }
        Trouble::end(&fixture);
        store.sync().await.unwrap();
        let after = fixture.after_power_cut(3).open().await;
        for (space, pages) in spaces.iter().zip(&pages) {
            assert!(pages.len() > 64);
            expect(&store, *space, pages).await;
            expect(&after, *space, pages).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_whose_flush_failed_does_not_count_as_done() {
    for seed in 0..8 {
        let (fixture, store, space) = Fixture::with_space().await;
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        assert!(append(&store, space).await.is_err());
        // Later flushes succeed, but the failed one may have lost the new size.
        assert!(append(&store, space).await.is_err());
        assert_eq!(store.spaces().pages(space).unwrap(), 0);
        drop(store);
        let store = fixture.after_power_cut(seed).open().await;
        let no = append(&store, space).await.unwrap();
        store.sync().await.unwrap();
        expect(&store, space, &[no]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_dropped_at_any_await_leaves_nothing_half_taken() {
    let mut awaits = 0;
    for polls in 0..30 {
        let (fixture, store, space) = Fixture::with_space().await;
        let over = polled(polls, append(&store, space)).await.is_some();
        awaits += u64::from(!over);
        let mut synced = Vec::new();
        for _ in 0..100 {
            synced.push(append(&store, space).await.unwrap());
        }
        store.sync().await.unwrap();
        expect(&fixture.after_power_cut(polls).open().await, space, &synced).await;
    }
    assert!(awaits >= 2, "it was never interrupted");
}

/// A new space in the disk space of one that was dropped, of which failed or interrupted home writes are
/// left.
async fn over_torn_homes() -> (Fixture, PageStore, SpaceId) {
    let (fixture, store, space) = Fixture::grown().await;
    store.close().await.unwrap();
    let store = fixture.open().await;
    let end = fixture.hdd.size();
    store.spaces().drop(space).await.unwrap();
    fixture.hdd.rot(1 << 20..end, 7);
    let other = store.spaces().create("u").await.unwrap();
    (fixture, store, other)
}

#[tokio::test(start_paused = true)]
async fn a_page_never_written_does_not_exist_even_if_its_home_was_torn() {
    let (fixture, store, other) = over_torn_homes().await;
    let mut written = Vec::new();
    for no in 0..fixture::PAGES {
        assert_eq!(append(&store, other).await.unwrap(), no);
        if no % 2 == 0 { store.discard(PageId::new(other, no)).await.unwrap() } else { written.push(no) }
    }
    store.sync().await.unwrap();
    for store in [store, fixture.after_power_cut(1).open().await] {
        expect(&store, other, &written).await;
        for no in (0..fixture::PAGES).step_by(2) {
            let page = store.get(PageId::new(other, no)).await;
            assert!(matches!(page, Err(Error::NoSuchPage { .. })), "page {no}: {page:?}");
        }
    }
}

/// Fails the flush that should make the homes of a growth durable: the next open can read them as
/// formatted, and a power cut loses that. Returns the unwritten pages that can be read after that.
async fn formatted_again(cut: u64) -> Vec<u32> {
    let (fixture, store, other) = over_torn_homes().await;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    assert!(append(&store, other).await.is_err());
    assert!(append(&store, other).await.is_err(), "a failed flush is final");
    drop(store);
    fixture.hdd.clear_faults();
    let store = fixture.open().await;
    let mut written = Vec::new();
    for no in 0..150 {
        assert_eq!(append(&store, other).await.unwrap(), no);
        if no % 2 == 0 { store.discard(PageId::new(other, no)).await.unwrap() } else { written.push(no) }
    }
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(cut).open().await;
    expect(&store, other, &written).await;
    let mut damaged = Vec::new();
    for no in (0..store.spaces().pages(other).unwrap()).filter(|no| !written.contains(no)) {
        match store.get(PageId::new(other, no)).await {
            Err(Error::NoSuchPage { .. }) => {}
            _ => damaged.push(no),
        }
    }
    damaged
}

#[tokio::test(start_paused = true)]
async fn room_whose_format_a_failed_flush_lost_is_formatted_again() {
    for seed in 0..4 {
        assert!(formatted_again(seed).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_dropped_while_it_blanks_its_room_overwrites_no_page() {
    let mut awaits = 0;
    for polls in 0..30 {
        let (fixture, store, space) = Fixture::grown().await;
        store.close().await.unwrap();
        let store = fixture.open().await;
        store.spaces().drop(space).await.unwrap();
        let other = store.spaces().create("u").await.unwrap();
        // The first write outlasts everything that follows.
        let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(60)));
        fixture.hdd.inject(slow.on(IoOp::Write).from_op(fixture.hdd.ops()).times(1));
        awaits += u64::from(polled(polls, append(&store, other)).await.is_none());
        let mut synced = Vec::new();
        for _ in 0..60 {
            synced.push(append(&store, other).await.unwrap());
        }
        store.close().await.unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        expect(&fixture.after_power_cut(polls).open().await, other, &synced).await;
    }
    assert!(awaits >= 2, "it was never interrupted");
}

#[tokio::test(start_paused = true)]
async fn a_space_that_could_not_be_recorded_does_not_exist_and_its_name_is_free() {
    for replaced in [false, true] {
        let fixture = Fixture::new();
        let store = fixture.open().await;
        fixture.manifest.fail_saves(0, 1, replaced);
        assert!(matches!(store.spaces().create("t").await, Err(Error::Manifest { .. })));
        assert_eq!(store.spaces().find("t"), None);
        let space = store.spaces().create("t").await.unwrap();
        let no = append(&store, space).await.unwrap();
        store.sync().await.unwrap();
        expect(&fixture.after_power_cut(1).open().await, space, &[no]).await;
        fixture.manifest.fail_saves(0, 1, replaced);
        assert!(store.spaces().create("u").await.is_err());
        let after = fixture.after_power_cut(2).open().await;
        expect(&after, space, &[no]).await;
        assert_eq!(after.spaces().find("u").is_some(), replaced, "after a crash the disk decides");
    }
}

/// The number of pages that fit in the rest of an HDD that cannot grow.
async fn room(fixture: &Fixture, store: &PageStore) -> usize {
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Grow));
    let space = store.spaces().create("rest").await.unwrap();
    let mut pages = 0;
    while append(store, space).await.is_ok() {
        pages += 1;
    }
    pages
}

#[tokio::test(start_paused = true)]
async fn a_drop_cancelled_or_crashed_anywhere_leaks_no_room() {
    // The result of a drop that completes.
    let whole = {
        let (fixture, store, space) = Fixture::grown().await;
        store.spaces().drop(space).await.unwrap();
        room(&fixture, &store).await
    };
    assert!(whole >= 300);
    let (mut cut_short, mut moment) = (0, 0);
    loop {
        let (fixture, store, space) = Fixture::synced(1).await;
        // A batch of its pages is on its way home.
        let drained = tokio::time::timeout(Duration::from_millis(1), store.ssd().drain(DrainOptions::new()));
        assert!(drained.await.is_err());
        let wait = Duration::from_micros(200 * moment);
        let over = tokio::time::timeout(wait, store.spaces().drop(space)).await.is_ok();
        cut_short += u32::from(!over);
        // A removal that was recorded goes on; a second call waits for it, or finds the space gone.
        let again = fixture.after_power_cut(moment + 1);
        match store.spaces().drop(space).await {
            Ok(()) => {}
            Err(Error::NoSuchSpace { .. }) => {}
            Err(other) => panic!("after moment {moment}: {other}"),
        }
        assert_eq!(store.stats().ssd.dirty_pages, 0, "after moment {moment}");
        assert_eq!(room(&fixture, &store).await, whole, "after moment {moment}");
        // So does the next open.
        let store = again.open().await;
        if store.spaces().find("t").is_some() {
            fixture::expect_all(&store, space, 1).await;
            store.spaces().drop(space).await.unwrap();
        }
        assert!(matches!(store.get(PageId::new(space, 0)).await, Err(Error::NoSuchPage { .. })));
        assert_eq!(room(&again, &store).await, whole, "after a crash at moment {moment}");
        if over {
            break;
        }
        moment += 1;
    }
    assert!(cut_short >= 4, "only {cut_short} moments");
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_could_not_be_recorded_loses_nothing_synced_later() {
    for (skip, replaced) in [(0, false), (0, true), (1, false), (1, true)] {
        let (fixture, store, space) = Fixture::synced(1).await;
        fixture.manifest.fail_saves(skip, 2, replaced);
        assert!(matches!(store.spaces().drop(space).await, Err(Error::Manifest { .. })));
        if skip == 1 {
            assert_eq!(store.spaces().find("t"), None, "it is marked as dropped");
            let _ = store.spaces().drop(space).await;
            store.spaces().drop(space).await.unwrap();
            assert!(fixture.after_power_cut(1).open().await.spaces().list().is_empty());
            continue;
        }
        // The space exists, and later writes to it are not lost with it.
        fixture::write_all(&store, space, 2).await;
        let refused = store.sync().await;
        assert!(matches!(refused, Err(Error::Manifest { .. })), "no promise yet: {refused:?}");
        store.sync().await.unwrap();
        fixture::expect_all(&fixture.after_power_cut(2).open().await, space, 2).await;
    }
}

/// The second save of a drop finds the disk full, or fails after it took effect: the extents belong to no
/// space until a save succeeds, in this run and after a crash.
#[tokio::test(start_paused = true)]
async fn room_of_a_drop_whose_end_was_not_recorded_is_given_to_no_other_space() {
    for (replaced, saves) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let fixture = Fixture::new();
        let store = fixture.open().await;
        let dropped = grown(&store).await;
        let kept = store.spaces().create("u").await.unwrap();
        let mut pages = vec![append(&store, kept).await.unwrap()];
        store.sync().await.unwrap();
        fixture.manifest.fail_saves(1, saves, replaced);
        assert!(matches!(store.spaces().drop(dropped).await, Err(Error::Manifest { .. })));
        assert!(matches!(store.get(PageId::new(dropped, 0)).await, Err(Error::NoSuchPage { .. })));
        // Other spaces get other extents, or do not grow.
        while pages.len() < 200 {
            match append(&store, kept).await {
                Ok(no) => pages.push(no),
                Err(Error::Manifest { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(3);
        if saves == 3 {
            store.spaces().drop(dropped).await.unwrap();
        }
        for (fixture, store) in [(&crashed, crashed.open().await), (&fixture, store)] {
            expect(&store, kept, &pages).await;
            assert_eq!(store.spaces().list().len(), 1);
            let other = store.spaces().create("v").await.unwrap();
            let mut others = Vec::new();
            for _ in 0..250 {
                others.push(append(&store, other).await.unwrap());
            }
            store.sync().await.unwrap();
            let after = fixture.after_power_cut(5).open().await;
            for store in [store, after] {
                expect(&store, kept, &pages).await;
                expect(&store, other, &others).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_on_a_full_disk_opens_is_read_and_freed() {
    let power = SimPower::new();
    let mut fixture = Fixture::new();
    let most = (1 << 20) + 5 * 64 * PAGE;
    let hdd = SimDevice::new("hdd", 0, 1, &power).with_latency(Duration::from_millis(4)).with_size_max(most);
    fixture.hdd = Arc::new(hdd);
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    let mut pages = Vec::new();
    while let Ok(no) = append(&store, space).await {
        pages.push(no);
    }
    assert_eq!(pages.len(), 5 * 64);
    for _ in 0..20 {
        assert!(matches!(append(&store, space).await, Err(Error::Device(_))));
    }
    store.sync().await.unwrap();
    expect(&store, space, &pages).await;
    fixture::write(&store, space, 7, 1).await.unwrap();
    store.sync().await.unwrap();
    for crash in [true, false] {
        let later = fixture.after_power_cut(4);
        if !crash {
            let store = later.open().await;
            expect(&store, space, &pages).await;
            store.close().await.unwrap();
        }
        let size = later.hdd.size();
        let store = later.open().await;
        assert_eq!(later.hdd.size(), size, "opening grows nothing");
        expect(&store, space, &pages).await;
        store.spaces().drop(space).await.unwrap();
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..5 * 64 {
            assert_eq!(append(&store, other).await.unwrap(), no);
        }
        store.close().await.unwrap();
        expect(&later.open().await, other, &pages).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_truncated_hdd_is_distinguished_from_one_that_did_not_grow() {
    for seed in 0..20 {
        let (fixture, store, space) = Fixture::with_space().await;
        let no = append(&store, space).await.unwrap();
        store.sync().await.unwrap();
        // The growth fails after the HDD has grown, and no flush follows.
        fixture.manifest.fail_saves(0, u64::MAX, false);
        while append(&store, space).await.is_ok() {}
        drop(store);
        let later = fixture.after_power_cut(seed);
        match later.try_open().await {
            Ok(store) => expect(&store, space, &[no]).await,
            Err(OpenError::TooShort { .. }) => panic!("seed {seed}: a growth undone is no truncation"),
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
}

/// Free disk space is what the file systems report; the options' threshold raises the alarm.
#[tokio::test]
async fn low_room_is_reported_by_location() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder = || PageStore::builder().directory(dir.path()).page_size(PageSize::MIN).ssd_bytes(2 << 20);
    let free = rustix::fs::statvfs(dir.path()).unwrap();
    let free = free.f_bavail * free.f_frsize;
    let store = builder().low_room(free / 2).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    drop(store.allocate(space).await.unwrap());
    let room = store.stats().room;
    assert!(room.low.is_empty(), "{room:?}");
    assert!(room.unallocated_bytes > 0);
    for bytes in [room.hdd_free_bytes, room.directory_free_bytes, room.ssd_free_bytes] {
        assert!(bytes.is_some_and(|bytes| bytes > free / 2), "{room:?}");
    }
    let before = room.unallocated_bytes;
    drop(store.allocate(space).await.unwrap());
    assert_eq!(store.stats().room.unallocated_bytes, before - 4096);
    store.close().await.unwrap();
    // A threshold far above the free disk space acts like file systems that are almost full.
    let store = builder().low_room(u64::MAX).open().await.unwrap();
    let room = store.stats().room;
    assert_eq!(room.low, ["pages", "directory"], "{room:?}");
    assert!(store.stats().to_string().contains("LOW: pages, directory"));
    store.close().await.unwrap();
    let store = builder().low_room(0).open().await.unwrap();
    assert!(store.stats().room.low.is_empty());
}

/// The record that cuts a space's end off fails, and has taken effect: a page created there meanwhile needs
/// the manifest to be saved again before a `sync` promises anything.
#[tokio::test(start_paused = true)]
async fn a_page_in_room_whose_return_is_in_doubt_is_there_once_it_is_synced() {
    for replaced in [false, true] {
        let (fixture, store, space) = Fixture::with_space().await;
        assert_eq!(append(&store, space).await.unwrap(), 0);
        store.spaces().reserve(space, 500).await.unwrap();
        store.spaces().reserve(space, 0).await.unwrap();
        fixture.manifest.fail_saves(0, 1, replaced);
        assert!(matches!(store.spaces().shrink(space).await, Err(Error::Manifest { .. })));
        let saves = fixture.manifest.saves();
        fill(&mut store.overwrite(PageId::new(space, 400)).await.unwrap(), 400, 1);
        assert_eq!(fixture.manifest.saves(), saves, "there is room");
        store.sync().await.unwrap();
        drop(store);
        expect(&fixture.after_power_cut(1).open().await, space, &[0, 400]).await;
    }
}
