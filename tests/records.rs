//! Growth, new spaces and freed pages as records that are appended to the manifest.

use crate::fixture::{Fixture, fill, version_of};
use pagetier::{Error, MemoryManifest, OpenError, PageId, PageStore, SpaceId};
use pagetier_testing::newest_area;
use std::sync::Arc;

/// Appends a page at version 1; returns whether the space could grow.
async fn append(store: &PageStore, space: SpaceId) -> bool {
    let Ok(mut page) = store.allocate(space).await else { return false };
    let no = page.id().no;
    fill(&mut page, no, 1);
    true
}

#[tokio::test(start_paused = true)]
async fn a_growth_writes_as_little_with_many_extents_as_with_few() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let spaces = [store.spaces().create("a").await.unwrap(), store.spaces().create("b").await.unwrap()];
    let mut before = (fixture.manifest.written_bytes(), fixture.manifest.saves());
    let mut each = Vec::new();
    for step in 0..4 {
        // The spaces grow in turns, so that no two runs of extents are neighbours.
        for turn in 100 * step..100 * (step + 1) {
            let no = if turn < 64 { 64 * turn } else { 256 * (turn - 48) };
            for space in spaces {
                drop(store.overwrite(PageId::new(space, no)).await.unwrap());
            }
        }
        let now = (fixture.manifest.written_bytes(), fixture.manifest.saves());
        assert!(now.1 - before.1 >= 150, "growths are recorded");
        each.push((now.0 - before.0) / (now.1 - before.1));
        before = now;
    }
    // Two copies of a sector, and the record's share of the next replacement.
    assert!(each.iter().all(|bytes| *bytes < 2500), "{each:?} bytes per growth");
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(1).open().await;
    for space in spaces {
        assert!(store.spaces().pages(space).unwrap() > 256 * 351);
    }
}

/// Creates a store whose manifest's tail has records of new spaces, growth, frees and reuses.
async fn with_a_tail(fixture: &Fixture) -> SpaceId {
    let store = fixture.open().await;
    let space = store.spaces().create("a").await.unwrap();
    let other = store.spaces().create("b").await.unwrap();
    for _ in 0..200 {
        assert!(append(&store, space).await && append(&store, other).await);
    }
    store.sync().await.unwrap();
    store.free((space, 10..20)).await.unwrap();
    for _ in 0..4 {
        assert!(append(&store, space).await);
    }
    store.sync().await.unwrap();
    drop(store);
    space
}

async fn check(store: &PageStore, space: SpaceId) {
    for no in 0..200 {
        match store.get(PageId::new(space, no)).await {
            Ok(page) => assert!(version_of(&page, no) == 1 && !(14..20).contains(&no), "page {no}"),
            Err(error) => assert!((14..20).contains(&no), "page {no}: {error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rot_of_the_manifest_costs_no_record_or_is_an_error() {
    let fixture = Fixture::new();
    let space = with_a_tail(&fixture).await;
    let bytes = fixture.manifest.to_bytes().unwrap();
    assert!(bytes.len() >= 3 * 4096, "a tail");
    let (mut opened, mut refused) = (0, 0);
    for at in (0..bytes.len()).step_by(512) {
        let mut rotten = bytes.clone();
        rotten[at..at + 512].fill(0x5a);
        let mut crashed = fixture.after_power_cut(4);
        crashed.manifest = Arc::new(MemoryManifest::from_bytes(rotten));
        match crashed.try_open().await {
            Ok(store) => check(&store, space).await,
            Err(OpenError::BadManifest { .. }) => refused += 1,
            Err(other) => panic!("{at}: {other}"),
        }
        opened += 1;
    }
    assert!(refused >= 1 && opened > 2 * refused, "{opened} in all, {refused} refused");
}

/// A manifest of format 2 has no records, and one of format 3 not all of them.
#[tokio::test(start_paused = true)]
async fn a_manifest_of_a_previous_format_opens_and_is_written_in_the_present_one() {
    let fixture = Fixture::new();
    let space = with_a_tail(&fixture).await;
    fixture.open().await.close().await.unwrap();
    let format = |manifest: &MemoryManifest| {
        let bytes = manifest.to_bytes().unwrap();
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap().to_vec();
        let fields: serde_json::Value = serde_json::from_slice(&line).unwrap();
        (fields["format"].as_u64().unwrap(), fields)
    };
    let (now, fields) = format(&fixture.manifest);
    assert_eq!(now, 5);
    for previous in [2, 3, 4] {
        let mut fields = fields.clone();
        fields["format"] = previous.into();
        if previous == 2 {
            let spaces = fields["spaces"].as_array_mut().unwrap();
            spaces.iter_mut().for_each(|space| drop(space.as_object_mut().unwrap().remove("free")));
        }
        let json = serde_json::to_vec(&fields).unwrap();
        let sum = crc32c::crc32c(&json);
        let bytes = [&json[..], format!("\ncrc32c {sum:08x}\n").as_bytes()].concat();
        let mut old = fixture.after_power_cut(1);
        old.manifest = Arc::new(MemoryManifest::from_bytes(bytes));
        let store = old.open().await;
        assert_eq!(store.spaces().list()[0].free > 0, previous > 2);
        assert!(append(&store, space).await);
        store.close().await.unwrap();
        assert_eq!(format(&old.manifest).0, 5);
    }
}

/// A growth takes effect but reports a failure; then another space grows. Returns the result of the next
/// open.
async fn growth_in_doubt() -> Result<(), OpenError> {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let spaces = [store.spaces().create("a").await.unwrap(), store.spaces().create("b").await.unwrap()];
    // The HDD grows ahead: the growth of unknown outcome needs no more of it, so nothing of it is given back.
    let first = store.spaces().create("c").await.unwrap();
    assert!(append(&store, first).await);
    fixture.manifest.fail_saves(0, 1, true);
    assert!(!append(&store, spaces[0]).await);
    assert!(append(&store, spaces[1]).await);
    store.sync().await.unwrap();
    let store = fixture.after_power_cut(1).try_open().await?;
    assert_eq!(version_of(&store.get(PageId::new(spaces[1], 0)).await.unwrap(), 0), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_growth_after_one_in_doubt_replaces_the_manifest() {
    growth_in_doubt().await.unwrap();
}

/// The schedule: records are appended, the process is killed, and a copy of the directory, or its file
/// system, ends the manifest's file early. Wherever it ends, records that were acknowledged may be missing.
#[tokio::test]
async fn a_manifest_that_was_cut_does_not_open_without_its_records() {
    let folder = pagetier_testing::scratch();
    let builder = || {
        let builder = PageStore::builder().directory(folder.path()).pool_bytes(1 << 20).ssd_bytes(0);
        builder.page_size(pagetier::PageSize::MIN)
    };
    let store = builder().open().await.unwrap();
    let path = folder.path().join("manifest.json");
    let read = || std::fs::read(&path).unwrap();
    let before = read();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        store.spaces().create(name).await.unwrap();
    }
    let left = store.wait_closed();
    drop(store);
    left.await;
    let whole = read();
    let begin = newest_area(&whole).start;
    let (area, before) = (&whole[newest_area(&whole)], &before[newest_area(&before)]);
    let contents = area.iter().position(|byte| *byte == b'\n').unwrap() + 17;
    assert_eq!(area[..contents], before[..contents], "the spaces are records");
    for len in (0..whole.len()).step_by(512).chain([begin + contents]) {
        std::fs::write(&path, &whole[..len]).unwrap();
        match builder().open().await {
            Err(OpenError::BadManifest { .. }) => {}
            Err(other) => panic!("{len}: {other}"),
            Ok(store) => panic!("{len}: it opened with {} spaces", store.spaces().list().len()),
        }
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(builder().open().await.unwrap().spaces().list().len(), 10);
}

/// Neither a removal nor the search for a name takes time in proportion to the number of spaces: a removal is
/// two records.
#[tokio::test(start_paused = true)]
async fn a_removal_is_recorded_by_small_writes_however_many_spaces_there_are() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let name = |no: u32| format!("{no:060}");
    for no in 0..400 {
        store.spaces().create(&name(no)).await.unwrap();
    }
    let mut small = 0;
    for no in 100..120 {
        let before = fixture.manifest.written_bytes();
        store.spaces().drop(store.spaces().find(&name(no)).unwrap()).await.unwrap();
        small += u32::from(fixture.manifest.written_bytes() - before <= 4 * 512);
    }
    // Now and then the tail is full, and the manifest is replaced.
    assert!(small >= 18, "{small} of 20");
    for store in [fixture.after_power_cut(1).open().await, store] {
        for no in 0..400 {
            assert_eq!(store.spaces().find(&name(no)).is_some(), !(100..120).contains(&no), "{no}");
        }
        let again = store.spaces().create(&name(110)).await.unwrap();
        assert_eq!(store.spaces().find(&name(110)), Some(again));
        assert!(matches!(store.spaces().create(&name(110)).await, Err(Error::SpaceExists { .. })));
        store.close().await.unwrap();
    }
}
