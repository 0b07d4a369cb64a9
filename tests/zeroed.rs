//! Homes that turn to zeroes: what was written is known to have been written, so a home of zeroes is
//! corruption, not absence. Pages that were never written stay absent.

use crate::fixture::{self, Fixture, PAGE};
use crate::restoration::Destination;
use pagetier::backup::BackupOptions;
use pagetier::errors::{PoolError, TierError};
use pagetier::scrub::ScrubOptions;
use pagetier::{Builder, DrainOptions, Error, MemoryManifest, PageId, PageSize, PageStore, SpaceId};
use pagetier_devio::{Device, DeviceStats, IoClass};
use std::sync::Arc;

/// Pages of the first space, whose homes begin at [`FIRST`]; of these, every third was never written.
const PAGES: u32 = 100;
const FIRST: u64 = 1 << 20;
/// A page whose home is its only copy.
const LOST: u32 = 50;
const NEVER: u32 = 52;

const ALL_PAGE_BYTES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    Closed,
    Crashed,
    /// The store is open, and does not have the page in memory.
    Running,
}

const MOMENTS: [Moment; 3] = [Moment::Closed, Moment::Crashed, Moment::Running];

/// What becomes of the home.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Zeroes,
    /// The rest of the page is zeroes anyway.
    ZeroSector,
    Ones,
}

impl Fault {
    fn bytes(self, page_bytes: u64) -> Vec<u8> {
        match self {
            Self::Zeroes => vec![0; page_bytes as usize],
            Self::ZeroSector => vec![0; 512],
            Self::Ones => vec![0xff; page_bytes as usize],
        }
    }
}

fn builder(fixture: &Fixture, page_bytes: u64) -> Builder {
    let size = PageSize::new(page_bytes).unwrap();
    let builder = fixture.builder().page_size(size).ssd_bytes(0);
    builder.pool_bytes(pagetier::pool_bytes_for(64, 0, size))
}

fn home(no: u32, page_bytes: u64) -> u64 {
    FIRST + u64::from(no) * page_bytes
}

/// A page with contents in its first sector alone, or none if it is never to be written.
async fn put(store: &PageStore, space: SpaceId, no: u32, fits: bool) {
    let mut page = store.allocate(space).await.unwrap();
    page[..8].copy_from_slice(&u64::from(no).to_le_bytes());
    drop(page);
    if !fits {
        store.discard(PageId::new(space, no)).await.unwrap();
    }
}

/// Writes so many other pages that neither memory nor the ring has one of the others.
async fn displace(store: &PageStore) {
    let other = store.spaces().create("other").await.unwrap();
    for no in 0..3 * PAGES {
        put(store, other, no, true).await;
    }
    store.sync().await.unwrap();
}

/// A store on whose HDD, at the `moment`, the home of page `LOST` has suffered the fault.
async fn spoiled(page_bytes: u64, moment: Moment, fault: Fault) -> (Fixture, PageStore, SpaceId) {
    let fixture = Fixture::new();
    let store = builder(&fixture, page_bytes).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..PAGES {
        put(&store, space, no, no % 3 != 1).await;
    }
    store.sync().await.unwrap();
    displace(&store).await;
    let fixture = match moment {
        Moment::Running => {
            fixture.hdd.implant(home(LOST, page_bytes), &fault.bytes(page_bytes));
            return (fixture, store, space);
        }
        Moment::Closed => {
            store.close().await.unwrap();
            fixture.after_power_cut(1)
        }
        Moment::Crashed => {
            drop(store);
            fixture.after_power_cut(1)
        }
    };
    fixture.hdd.implant(home(LOST, page_bytes), &fault.bytes(page_bytes));
    let store = builder(&fixture, page_bytes).open().await.unwrap();
    (fixture, store, space)
}

fn is_corrupt(error: &Error, page: PageId) -> bool {
    matches!(error, Error::Pool(PoolError::Tier(TierError::Corrupt { page: found, .. })) if *found == page)
}

fn is_absent<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NoSuchPage { .. }))
}

/// The pages of `space` that a scan returns and those of its errors.
async fn scanned(store: &PageStore, space: SpaceId) -> (u32, u32) {
    let (mut pages, mut errors) = (0, 0);
    let mut scan = store.scan(space, 0..u32::MAX);
    while let Some(next) = scan.next().await {
        *if next.is_ok() { &mut pages } else { &mut errors } += 1;
    }
    (pages, errors)
}

async fn found_by_scrub(store: &PageStore, heal: bool) -> Vec<(PageId, bool)> {
    let options = ScrubOptions::default().pages_per_second(None).slots(false).heal(heal);
    let report = store.scrub(options).finished().await;
    assert!(report.complete);
    report.findings.iter().map(|finding| (finding.page, finding.healed)).collect()
}

/// Checks that every reader takes `page` for corrupt.
async fn expect_corrupt(store: &PageStore, page: PageId, what: &str) {
    assert!(store.exists(page), "{what}");
    for error in [
        store.get(page).await.map(drop).unwrap_err(),
        store.get_mut(page).await.map(drop).unwrap_err(),
        store.get_or_create(page).await.map(drop).unwrap_err(),
    ] {
        assert!(is_corrupt(&error, page), "{what}: {error}");
    }
    let many = store.get_many(&[page]).await.map(drop).unwrap_err();
    assert!(is_corrupt(&many, page), "{what}: {many}");
    assert_eq!(scanned(store, page.space).await.1, 1, "{what}");
    assert_eq!(found_by_scrub(store, true).await, [(page, false)], "{what}");
    let dir = pagetier_testing::scratch();
    assert!(store.backup(dir.path(), BackupOptions::new()).await.is_err(), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_home_turns_to_zeroes_is_corrupt() {
    for page_bytes in ALL_PAGE_BYTES {
        for moment in MOMENTS {
            for fault in [Fault::Zeroes, Fault::ZeroSector, Fault::Ones] {
                // Every moment and fault with the smallest pages; the others take longer.
                if page_bytes > PAGE && (moment, fault) != (Moment::Crashed, Fault::ZeroSector) {
                    continue;
                }
                let what = format!("{page_bytes} bytes, {moment:?}, {fault:?}");
                let (_fixture, store, space) = spoiled(page_bytes, moment, fault).await;
                let lost = PageId::new(space, LOST);
                expect_corrupt(&store, lost, &what).await;
                let written = (0..PAGES).filter(|no| no % 3 != 1).count() as u32;
                assert_eq!(scanned(&store, space).await, (written - 1, 1), "{what}");
                let never = PageId::new(space, NEVER);
                assert!(is_absent(&store.get(never).await), "{what}");
                assert!(store.get_or_create(never).await.unwrap().iter().all(|byte| *byte == 0));
                // What the embedder writes instead takes its place.
                store.overwrite(lost).await.unwrap()[0] = 9;
                store.sync().await.unwrap();
                assert_eq!(found_by_scrub(&store, false).await, [], "{what}");
                assert_eq!(store.get(lost).await.unwrap()[0], 9, "{what}");
                store.close().await.unwrap();
            }
        }
    }
}

/// An incremental backup reads the page, too; and a page in memory heals its home.
#[tokio::test(start_paused = true)]
async fn an_incremental_backup_finds_it_and_memory_heals_it() {
    let (fixture, store, space) = spoiled(PAGE, Moment::Running, Fault::Ones).await;
    let lost = PageId::new(space, LOST);
    store.overwrite(lost).await.unwrap()[0] = 7;
    store.sync().await.unwrap();
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), BackupOptions::new()).await.unwrap();
    // The ring's image does not count after a close.
    store.close().await.unwrap();
    let store = builder(&fixture, PAGE).open().await.unwrap();
    assert_eq!(store.get(lost).await.unwrap()[0], 7);
    fixture.hdd.implant(home(LOST, PAGE), &Fault::Zeroes.bytes(PAGE));
    assert!(store.backup(dir.path(), BackupOptions::new()).await.is_err());
    assert_eq!(store.get(lost).await.unwrap()[0], 7, "in memory");
    assert_eq!(found_by_scrub(&store, true).await, [(lost, true)]);
    store.sync().await.unwrap();
    assert_eq!(found_by_scrub(&store, false).await, []);
    assert!(store.backup(dir.path(), BackupOptions::new()).await.is_ok());
}

/// The copy on the SSD is newer than the home, or equal to it: a scrub rewrites the home from it.
#[tokio::test(start_paused = true)]
async fn a_copy_on_the_ssd_heals_it() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let space = fixture::grown(&store).await;
    store.sync().await.unwrap();
    assert!(store.ssd().drain(DrainOptions::new()).await.stopped_by.is_none());
    for no in 0..20 {
        fixture::write(&store, space, no, 2).await.unwrap();
    }
    store.close().await.unwrap();
    let store = fixture.open().await;
    let on_ssd: Vec<u32> =
        (0..20).filter(|no| !fixture.slots_of(PageId::new(space, *no)).is_empty()).collect();
    assert!(!on_ssd.is_empty());
    for no in &on_ssd {
        fixture.hdd.implant(home(*no, PAGE), &Fault::Zeroes.bytes(PAGE));
    }
    let found = found_by_scrub(&store, true).await;
    // The SSD's next victims may have gone home before the scrub came to them.
    let written_back = store.stats().ssd.counts.written_back as usize;
    assert!(found.iter().all(|(page, healed)| on_ssd.contains(&page.no) && *healed), "{found:?}");
    assert!(!found.is_empty() && found.len() + written_back >= on_ssd.len(), "{found:?}, {written_back}");
    assert_eq!(found_by_scrub(&store, false).await, []);
    for no in on_ssd {
        assert_eq!(fixture::read(&store, space, no).await.unwrap(), 2);
    }
}

/// A space all of whose pages were written.
async fn all_written() -> (Fixture, PageStore, SpaceId) {
    let fixture = Fixture::new();
    let store = builder(&fixture, PAGE).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..PAGES {
        put(&store, space, no, true).await;
    }
    store.sync().await.unwrap();
    (fixture, store, space)
}

/// After a crash the page count is found by looking at the homes: the last page counts as long as its home is
/// not as a growth formatted it.
#[tokio::test(start_paused = true)]
async fn a_zeroed_last_page_ends_its_space() {
    let (fixture, store, space) = all_written().await;
    displace(&store).await;
    drop(store);
    // The manifest was last saved when the other space grew. It counts these pages, so the count is set back.
    let mut fixture = fixture.after_power_cut(1);
    fixture.manifest = edited(&fixture.manifest, |fields| {
        fields["spaces"].as_array_mut().unwrap()[0]["pages"] = 3.into();
    });
    fixture.hdd.implant(home(PAGES - 1, PAGE), &Fault::Zeroes.bytes(PAGE));
    let store = builder(&fixture, PAGE).open().await.unwrap();
    assert_eq!(store.spaces().pages(space).unwrap(), PAGES);
    expect_corrupt(&store, PageId::new(space, PAGES - 1), "the last page").await;
}

#[tokio::test(start_paused = true)]
async fn pages_never_written_stay_absent_wherever_they_lie() {
    for moment in MOMENTS {
        let fixture = Fixture::new();
        let store = builder(&fixture, PAGE).open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        store.spaces().reserve(space, 100).await.unwrap();
        // A gap within the reserved disk space, and one beyond it.
        let written = [90, 150];
        for no in written {
            store.overwrite(PageId::new(space, no)).await.unwrap()[0] = 1;
        }
        store.sync().await.unwrap();
        displace(&store).await;
        let store = match moment {
            Moment::Running => store,
            Moment::Closed => {
                store.close().await.unwrap();
                builder(&fixture, PAGE).open().await.unwrap()
            }
            Moment::Crashed => {
                drop(store);
                builder(&fixture.after_power_cut(1), PAGE).open().await.unwrap()
            }
        };
        assert_eq!(scanned(&store, space).await, (2, 0), "{moment:?}");
        assert_eq!(found_by_scrub(&store, false).await, [], "{moment:?}");
        for no in (0..151).filter(|no| !written.contains(no)) {
            assert!(is_absent(&store.get(PageId::new(space, no)).await), "{moment:?}, page {no}");
        }
        assert!(store.get_or_create(PageId::new(space, 77)).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn freed_pages_may_turn_to_zeroes_and_their_next_life_may_not() {
    for crash in [false, true] {
        let (fixture, store, space) = all_written().await;
        store.free((space, 40..60)).await.unwrap();
        displace(&store).await;
        let zeroes = |no| fixture.hdd.implant(home(no, PAGE), &Fault::Zeroes.bytes(PAGE));
        (40..60).for_each(zeroes);
        assert_eq!(scanned(&store, space).await, (80, 0));
        assert_eq!(found_by_scrub(&store, false).await, []);
        // 40 to 59 live again.
        for no in 40..60 {
            assert_eq!(store.allocate(space).await.unwrap().id().no, no);
        }
        store.sync().await.unwrap();
        for no in 0..PAGES {
            store.free((SpaceId(space.0 + 1), no..no + 1)).await.unwrap();
            put(&store, SpaceId(space.0 + 1), no, true).await;
        }
        store.sync().await.unwrap();
        let images = if crash {
            drop(store);
            fixture.after_power_cut(1)
        } else {
            store.close().await.unwrap();
            fixture.after_power_cut(2)
        };
        images.hdd.implant(home(LOST, PAGE), &Fault::Zeroes.bytes(PAGE));
        let store = builder(&images, PAGE).open().await.unwrap();
        expect_corrupt(&store, PageId::new(space, LOST), "reused").await;
    }
}

/// Extents that one space gives back are another's, and are formatted for it.
#[tokio::test(start_paused = true)]
async fn room_that_changes_hands_is_formatted_again() {
    let fixture = Fixture::new();
    let store = builder(&fixture, PAGE).open().await.unwrap();
    let [one, two] = ["one", "two"].map(|name| store.spaces().create(name));
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    for no in 0..256 {
        put(&store, one, no, true).await;
    }
    store.sync().await.unwrap();
    store.free((one, 64..192)).await.unwrap();
    store.spaces().shrink(one).await.unwrap();
    // The hole is filled by the second space, then, once that is gone, by the first again.
    for no in 0..128 {
        put(&store, two, no, no % 2 == 0).await;
    }
    store.sync().await.unwrap();
    assert_eq!(scanned(&store, two).await, (64, 0));
    store.spaces().drop(two).await.unwrap();
    for no in 64..192 {
        assert_eq!(store.allocate(one).await.unwrap().id().no, no);
        if no % 2 == 0 {
            store.discard(PageId::new(one, no)).await.unwrap();
        }
    }
    store.sync().await.unwrap();
    displace(&store).await;
    drop(store);
    let fixture = fixture.after_power_cut(1);
    let at = fixture.home_of(PageId::new(one, 101)).unwrap();
    fixture.hdd.implant(at, &Fault::Zeroes.bytes(PAGE));
    let store = builder(&fixture, PAGE).open().await.unwrap();
    assert_eq!(scanned(&store, one).await, (256 - 64 - 1, 1));
    expect_corrupt(&store, PageId::new(one, 101), "in the former hole").await;
}

#[tokio::test(start_paused = true)]
async fn a_restored_store_knows_what_was_written_to_it() {
    let (_fixture, store, space) = spoiled(PAGE, Moment::Running, Fault::Ones).await;
    let lost = PageId::new(space, LOST);
    drop(store.overwrite(lost).await.unwrap());
    store.sync().await.unwrap();
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), BackupOptions::new()).await.unwrap();
    let to = Destination::new();
    to.restore(dir.path(), None).await.unwrap();
    to.hdd_write(home(LOST, PAGE), &Fault::Zeroes.bytes(PAGE)).await;
    let store = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
    expect_corrupt(&store, lost, "restored").await;
    assert!(is_absent(&store.get(PageId::new(space, NEVER)).await));
}

/// In room that a version before formatting gave to a space, zeroes say nothing. Room that the space gets
/// later is formatted.
#[tokio::test(start_paused = true)]
async fn a_store_of_a_version_before_formatting_opens_and_formats_what_it_gets() {
    for close in [false, true] {
        let fixture = Fixture::new();
        let store = builder(&fixture, PAGE).open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        for no in 0..PAGES {
            put(&store, space, no, no % 3 != 1).await;
        }
        store.sync().await.unwrap();
        if close {
            store.close().await.unwrap();
        }
        let mut old = fixture.after_power_cut(1);
        old.manifest = edited(&old.manifest, |fields| fields["format"] = 4.into());
        // As that version left them.
        let never = |no: &u32| no % 3 == 1;
        let zero = |no| old.hdd.implant(home(no, PAGE), &Fault::Zeroes.bytes(PAGE));
        (0..PAGES).filter(never).chain(PAGES..128).for_each(zero);
        let store = builder(&old, PAGE).open().await.unwrap();
        assert_eq!(store.spaces().pages(space).unwrap(), PAGES);
        assert_eq!(scanned(&store, space).await.1, 0);
        assert_eq!(found_by_scrub(&store, false).await, []);
        for no in PAGES..200 {
            put(&store, space, no, true).await;
        }
        store.sync().await.unwrap();
        displace(&store).await;
        drop(store);
        let old = old.after_power_cut(2);
        old.hdd.implant(home(LOST, PAGE), &Fault::Zeroes.bytes(PAGE));
        old.hdd.implant(home(190, PAGE), &Fault::Zeroes.bytes(PAGE));
        let store = builder(&old, PAGE).open().await.unwrap();
        assert!(is_absent(&store.get(PageId::new(space, LOST)).await), "unknown in such room");
        expect_corrupt(&store, PageId::new(space, 190), "room of this version").await;
    }
}

/// The price: each page's disk space is written once more, a MiB at a time, and each growth flushes the HDD.
#[tokio::test(start_paused = true)]
async fn formatting_writes_the_room_of_a_growth_once() {
    for page_bytes in ALL_PAGE_BYTES {
        let fixture = Fixture::new();
        let store = builder(&fixture, page_bytes).open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        let before = fixture.hdd.stats();
        store.spaces().reserve(space, 1024).await.unwrap();
        let written =
            |io: &DeviceStats| (io.class(IoClass::Meta).write.ops, io.class(IoClass::Meta).write.bytes);
        let io = fixture.hdd.stats().since(&before);
        assert_eq!(written(&io), (page_bytes >> 10, page_bytes << 10));
        assert_eq!(io.flush.ops, 2, "the HDD's size, and the homes");
        let before = fixture.hdd.stats();
        for no in 0..1024 {
            put(&store, space, no, true).await;
        }
        store.sync().await.unwrap();
        assert_eq!(written(&fixture.hdd.stats().since(&before)), (0, 0));
        // A space without a reservation grows by 64 pages at first.
        let space = store.spaces().create("u").await.unwrap();
        let before = fixture.hdd.stats();
        for no in 0..1024 {
            put(&store, space, no, true).await;
        }
        let io = fixture.hdd.stats().since(&before);
        assert_eq!(written(&io), (16 * (page_bytes >> 14).max(1), page_bytes << 10));
    }
}

/// The manifest with other contents.
fn edited(manifest: &MemoryManifest, edit: impl FnOnce(&mut serde_json::Value)) -> Arc<MemoryManifest> {
    let bytes = manifest.compacted().to_bytes().unwrap();
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
    let mut fields: serde_json::Value = serde_json::from_slice(line).unwrap();
    edit(&mut fields);
    let json = serde_json::to_vec(&fields).unwrap();
    let sum = crc32c::crc32c(&json);
    let bytes = [&json[..], format!("\ncrc32c {sum:08x}\n").as_bytes()].concat();
    Arc::new(MemoryManifest::from_bytes(bytes))
}
