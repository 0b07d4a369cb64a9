//! Opening without writing: a store that crashed recovers in memory, and its files stay as they are.

use crate::fixture::{Fixture, PAGE, PAGES, expect_all, fill, grown, synced, write, write_all};
use pagetier::{Builder, DrainOptions, OpenError, PageSize, PageStore, SpaceId, scrub::ScrubOptions};
use pagetier_devio::Device;
use std::path::Path;

fn builder(dir: &Path) -> Builder {
    PageStore::builder()
        .directory(dir)
        .page_size(PageSize::MIN)
        .ssd_bytes(crate::fixture::SSD_PAGES * PAGE)
        .ring_pages(8)
        .pool_bytes(60 * PAGE)
}

/// Names and contents of all files.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_store_that_crashed_is_read_without_a_write_to_its_files() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("store");
    let store = builder(&path).open().await.unwrap();
    let space = synced(&store, 2).await;
    for no in 0..40 {
        write(&store, space, no, 3).await.unwrap();
    }
    // Dropping it is a crash: recovery has work to do.
    let left = store.wait_closed();
    drop(store);
    left.await;
    let before = contents(&path);
    for _ in 0..2 {
        let reader = builder(&path).open_read_only().await.unwrap();
        let other = builder(&path).open_read_only().await.unwrap();
        assert!(reader.recovery().zone_slots > 0, "{:?}", reader.recovery());
        for no in 0..PAGES {
            let version = crate::fixture::read(&reader, space, no).await.unwrap();
            assert!(version == 2 || (no < 40 && version == 3), "page {no}: {version}");
        }
        // Redo happens in memory.
        write_all(&reader, space, 7).await;
        reader.sync().await.unwrap();
        expect_all(&reader, space, 7).await;
        assert_eq!(crate::fixture::read(&other, space, 50).await.unwrap(), 2, "the other open sees its own");
        let scrubbed = other.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
        assert!(scrubbed.complete && scrubbed.findings.is_empty(), "{scrubbed:?}");
        reader.close().await.unwrap();
        drop(other);
        assert!(contents(&path) == before, "a file changed");
    }
    // A reader that was shut down locks out no writer, even if it still exists.
    let reader = builder(&path).open_read_only().await.unwrap();
    reader.shutdown().await.unwrap();
    let store = builder(&path).open().await.unwrap();
    drop(reader);
    assert_eq!(crate::fixture::read(&store, space, 50).await.unwrap(), 2);
    // A store open for writing refuses readers.
    assert!(matches!(builder(&path).open_read_only().await, Err(OpenError::AlreadyOpen { .. })));
    store.close().await.unwrap();
    let none = builder(&dir.path().join("nothing")).open_read_only().await;
    assert!(matches!(none, Err(OpenError::NotFound { .. })), "{none:?}");
    assert!(!dir.path().join("nothing").exists());
}

#[tokio::test(start_paused = true)]
async fn it_reads_what_a_recovery_after_the_same_power_cut_reads() {
    for seed in 0..12 {
        let (fixture, store, space) = Fixture::grown().await;
        for version in 2..5 {
            write_all(&store, space, version).await;
            if version < 4 {
                store.sync().await.unwrap();
            }
        }
        let (cut, same) = (fixture.after_power_cut(seed), fixture.after_power_cut(seed));
        drop(store);
        let images = |f: &Fixture| (f.hdd.snapshot(), f.ssd.snapshot(), f.manifest.to_bytes());
        let before = images(&cut);
        let reader = cut.builder().open_read_only().await.unwrap();
        let recovered = same.open().await;
        for no in 0..PAGES {
            let (here, there) = (version(&reader, space, no).await, version(&recovered, space, no).await);
            assert_eq!(here, there, "seed {seed}: page {no}");
        }
        drop(reader);
        assert!(images(&cut) == before, "seed {seed}: a device or the manifest was written to");
        assert_eq!(cut.hdd.stats().totals().write.ops + cut.ssd.stats().totals().write.ops, 0);
        // A store opened for writing finds it unchanged.
        let store = cut.open().await;
        for no in 0..PAGES {
            assert!(version(&store, space, no).await.is_some_and(|version| version >= 3));
        }
    }
}

async fn version(store: &PageStore, space: SpaceId, no: u32) -> Option<u32> {
    crate::fixture::read(store, space, no).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_store_without_an_ssd_and_one_closed_in_order_are_read_too() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = grown(&store).await;
    let cut = fixture.after_power_cut(1);
    store.close().await.unwrap();
    let closed = fixture.builder().open_read_only().await.unwrap();
    expect_all(&closed, space, 1).await;
    // Pages allocated in it stay in memory as well.
    fill(&mut closed.allocate(space).await.unwrap(), PAGES, 5);
    closed.sync().await.unwrap();
    drop(closed);
    let again = fixture.builder().open_read_only().await.unwrap();
    assert_eq!(again.spaces().pages(space).unwrap(), PAGES);
    drop(cut.builder().open_read_only().await.unwrap());
}

#[tokio::test]
async fn one_file_is_not_read_as_both_devices() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("store");
    builder(&path).open().await.unwrap().close().await.unwrap();
    let refused = builder(&path).ssd(path.join("hdd.vol")).open_read_only().await;
    assert!(matches!(refused, Err(OpenError::SameDevice { .. })), "{refused:?}");
}

/// `ssd_bytes(0)` names no SSD: what stands in its place is not looked at, and the error says "not given".
#[tokio::test]
async fn an_ssd_that_is_given_up_is_not_touched() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("store");
    let store = builder(&path).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let drained = store.ssd().drain(DrainOptions::new()).await;
    assert!(drained.stopped_by.is_none(), "{drained:?}");
    store.close().await.unwrap();
    for stands in [None, Some("nothing"), Some("a directory")] {
        if stands.is_some() {
            let _ = std::fs::remove_file(path.join("ssd.cache"));
        }
        if stands == Some("a directory") {
            std::fs::create_dir(path.join("ssd.cache")).unwrap();
        }
        let refused = builder(&path).ssd_bytes(0).open_read_only().await.unwrap_err();
        assert!(refused.to_string().contains("is not given"), "{stands:?}: {refused}");
        let reader = builder(&path).ssd_bytes(0).accept_ssd_loss(true).open_read_only().await.unwrap();
        expect_all(&reader, space, 1).await;
        reader.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_inspection_tells_what_stands_there_and_changes_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("store");
    let store = builder(&path).open().await.unwrap();
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    let before = contents(&path);
    let all = builder(&path).inspect().await.unwrap();
    assert!(all.manifest.clean && all.manifest.spaces[0].pages == PAGES, "{all}");
    let (hdd, ssd) = (all.hdd.as_ref().unwrap(), all.ssd.as_ref().unwrap());
    assert!(hdd.ours && hdd.bytes >= hdd.needed_bytes && hdd.superblocks.len() == 2, "{all}");
    assert!(ssd.ours && ssd.slots > 0 && ssd.maps.len() == 2 && ssd.journal.is_some(), "{all}");
    let text = all.to_string();
    assert!(text.contains("closed cleanly") && text.contains("\"t\": 300 pages"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 200));
    serde_json::to_string(&all).unwrap();
    assert!(contents(&path) == before);
    // An SSD that was cut off, and the SSD of another store.
    let other = dir.path().join("other");
    builder(&other).open().await.unwrap().close().await.unwrap();
    for (from, ours, says) in [(&path, true, "shorter"), (&other, false, "sound")] {
        let whole = std::fs::read(from.join("ssd.cache")).unwrap();
        let len = if ours { whole.len() - PAGE as usize } else { whole.len() };
        std::fs::write(path.join("ssd.cache"), &whole[..len]).unwrap();
        let all = builder(&path).inspect().await.unwrap();
        let ssd = all.ssd.as_ref().unwrap();
        assert!(ssd.ours == ours && ssd.superblock.to_string().contains(says), "{all}");
        assert_eq!(ssd.superblock.to_string().contains("shorter"), ours, "{all}");
        assert_eq!(ssd.maps.is_empty(), ours, "structures that lie beyond the end are not read: {all}");
    }
    // `inspect` reports damage and foreign devices instead of failing.
    std::fs::write(path.join("ssd.cache"), vec![7; 1 << 20]).unwrap();
    std::fs::remove_file(path.join("hdd.vol")).unwrap();
    let all = builder(&path).inspect().await.unwrap();
    assert!(all.hdd.is_err());
    assert!(
        all.ssd.as_ref().is_ok_and(|ssd| ssd.superblock.to_string().contains("damaged") && !ssd.ours),
        "{all}"
    );
}
