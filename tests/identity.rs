//! Devices with stale contents: older copies, truncated files, an older manifest. Devices that a cancelled or
//! crashed open or close leaves must never be taken for these.

use crate::fixture::{
    self, Fixture, PAGE, PAGES, RING_PAGES, SSD_PAGES, expect_all, grown, polled, write_all,
};
use pagetier::{OpenError, PageId, PageSize, PageStore, SpaceId, options::Create};
use pagetier_devio::{IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_testing::{SimDevice, SimPower};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store in a directory, with files that can be copied and restored.
struct Files(tempfile::TempDir);

const HDD: &str = "hdd.vol";
const SSD: &str = "ssd.cache";
const MANIFEST: &str = "manifest.json";

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("store").join(name)
    }

    async fn open(&self) -> Result<PageStore, OpenError> {
        self.with(|builder| builder).await
    }

    async fn with(
        &self,
        options: impl FnOnce(pagetier::Builder) -> pagetier::Builder,
    ) -> Result<PageStore, OpenError> {
        let builder = PageStore::builder()
            .directory(self.path(""))
            .page_size(PageSize::MIN)
            .pool_bytes(60 * PAGE)
            .ssd_bytes(SSD_PAGES * PAGE)
            .ring_pages(RING_PAGES);
        options(builder).open().await
    }

    /// Copies all files in their current state.
    fn copy(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in [HDD, SSD, MANIFEST] {
            std::fs::copy(self.path(name), copy.path().join(name)).unwrap();
        }
        copy
    }

    fn put_back(&self, copy: &Path, names: &[&str]) {
        for name in names {
            std::fs::copy(copy.join(name), self.path(name)).unwrap();
        }
    }
}

/// A store with versions 1 and 2, closed; with copies from after the first close and from the middle of the
/// second open.
async fn closed_twice() -> (Files, SpaceId, [tempfile::TempDir; 2]) {
    let files = Files::new();
    let store = files.open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let first = files.copy();
    let store = files.open().await.unwrap();
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    let hot = files.copy();
    write_all(&store, space, 3).await;
    let other = store.spaces().create("other").await.unwrap();
    for _ in 0..PAGES {
        store.allocate(other).await.unwrap();
    }
    store.close().await.unwrap();
    (files, space, [first, hot])
}

#[tokio::test]
async fn after_a_close_an_older_copy_of_any_part_is_refused_by_name() {
    let (files, space, copies) = closed_twice().await;
    let current = files.copy();
    for (at, copy) in copies.iter().enumerate() {
        for (name, tier) in [(HDD, "HDD"), (SSD, "SSD")] {
            files.put_back(copy.path(), &[name]);
            match files.open().await {
                Err(OpenError::StaleDevice { device, tier: found, .. }) => {
                    assert_eq!(found, tier);
                    assert!(device.ends_with(name), "{device}");
                }
                other => panic!("copy {at} of {name}: {other:?}"),
            }
            files.put_back(current.path(), &[HDD, SSD, MANIFEST]);
        }
        files.put_back(copy.path(), &[MANIFEST]);
        let refused = files.open().await;
        assert!(matches!(refused, Err(OpenError::StaleManifest { .. })), "copy {at}: {refused:?}");
        assert!(matches!(
            files.with(|b| b.accept_ssd_loss(true)).await,
            Err(OpenError::StaleManifest { .. })
        ));
        files.put_back(current.path(), &[HDD, SSD, MANIFEST]);
    }
    // Restoring all parts together is restoring a backup.
    let store = files.open().await.unwrap();
    expect_all(&store, space, 3).await;
    store.close().await.unwrap();
    files.put_back(copies[0].path(), &[HDD, SSD, MANIFEST]);
    expect_all(&files.open().await.unwrap(), space, 1).await;
}

/// After a close, as after a crash. A file that an earlier build wrote for the policy is left alone.
#[tokio::test]
async fn an_opening_tells_the_policy_each_page_on_the_ssd() {
    let files = Files::new();
    let open = || files.with(|builder| builder.ssd_policy("cac"));
    let store = open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let left = files.path("ssd-policy");
    assert!(!left.exists());
    std::fs::write(&left, "PGTIERPL").unwrap();
    for _ in 0..2 {
        let store = open().await.unwrap();
        let known = (0..PAGES).filter(|&no| store.policies().counts(PageId::new(space, no)).is_some());
        let (known, pages) = (known.count() as u64, store.stats().ssd.pages);
        assert!(known == pages && pages > 0, "{known} of {pages}");
        expect_all(&store, space, 1).await;
        store.close().await.unwrap();
    }
    assert_eq!(std::fs::read(left).unwrap(), b"PGTIERPL");
}

#[tokio::test]
async fn a_manifest_that_lacks_the_last_record_is_refused() {
    let files = Files::new();
    let store = files.open().await.unwrap();
    // Each change appends a record to the manifest.
    let mut copies = Vec::new();
    for name in ["a", "b", "c"] {
        let space = store.spaces().create(name).await.unwrap();
        for _ in 0..100 {
            store.allocate(space).await.unwrap();
        }
        store.sync().await.unwrap();
        copies.push(files.copy());
        store.free(PageId::new(space, 7)).await.unwrap();
    }
    store.close().await.unwrap();
    for (at, copy) in copies.iter().enumerate() {
        files.put_back(copy.path(), &[MANIFEST]);
        let refused = files.open().await.map(drop);
        assert!(matches!(refused, Err(OpenError::StaleManifest { .. })), "copy {at}: {refused:?}");
    }
}

#[tokio::test]
async fn a_truncated_file_is_refused_by_name() {
    let (files, space, _) = closed_twice().await;
    let current = files.copy();
    for (name, tier) in [(HDD, "HDD"), (SSD, "SSD")] {
        let bytes = files.path(name).metadata().unwrap().len();
        for part in [3, 2] {
            let file = std::fs::OpenOptions::new().write(true).open(files.path(name)).unwrap();
            file.set_len((bytes / part).max(1 << 19) / PAGE * PAGE).unwrap();
            match files.open().await {
                Err(OpenError::TooShort { tier: found, bytes, needed, .. }) => {
                    assert_eq!(found, tier);
                    assert!(bytes < needed);
                }
                other => panic!("{name}: {other:?}"),
            }
            files.put_back(current.path(), &[name]);
        }
        std::fs::OpenOptions::new().write(true).open(files.path(name)).unwrap().set_len(0).unwrap();
        let refused = files.open().await;
        let missing = matches!(refused, Err(OpenError::HddMissing { .. } | OpenError::SsdMissing { .. }));
        assert!(missing, "{name}: {refused:?}");
        files.put_back(current.path(), &[name]);
    }
    expect_all(&files.open().await.unwrap(), space, 3).await;
}

#[tokio::test]
async fn an_older_ssd_can_be_given_up_and_the_loss_is_reported() {
    let (files, space, [first, _]) = closed_twice().await;
    files.put_back(first.path(), &[SSD]);
    let store = files.with(|b| b.accept_ssd_loss(true)).await.unwrap();
    let loss = store.ssd().loss().unwrap();
    assert!(loss.exact && loss.pages() > 0, "{loss:?}");
    for no in 0..PAGES {
        let lost = loss.contains(pagetier::PageId::new(space, no));
        let found = fixture::read(&store, space, no).await;
        assert!(lost || matches!(found, Ok(3)), "page {no}: {found:?}");
    }
}

#[tokio::test]
async fn a_ring_that_is_older_is_refused_too() {
    let files = Files::new();
    let open = || files.with(|b| b.ssd_bytes(0));
    let store = open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let old = std::fs::read(files.path("ring")).unwrap();
    let store = open().await.unwrap();
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    let new = std::fs::read(files.path("ring")).unwrap();
    std::fs::write(files.path("ring"), old).unwrap();
    assert!(matches!(open().await, Err(OpenError::StaleDevice { tier: "ring", .. })));
    std::fs::write(files.path("ring"), new).unwrap();
    expect_all(&open().await.unwrap(), space, 2).await;
}

#[tokio::test]
async fn one_rotten_copy_of_a_superblock_does_no_harm() {
    let (files, space, _) = closed_twice().await;
    for name in [HDD, SSD] {
        for copy in [0, 1] {
            let mut bytes = std::fs::read(files.path(name)).unwrap();
            bytes[copy * 4096 + 100] ^= 1;
            std::fs::write(files.path(name), &bytes).unwrap();
            // The next open rewrites both copies.
            let store = files.open().await.unwrap();
            expect_all(&store, space, 3).await;
            store.close().await.unwrap();
        }
    }
}

/// Crashes an open, and a close, after every number of polls; then the next open as well.
#[tokio::test(start_paused = true)]
async fn no_crash_of_an_opening_or_a_close_looks_like_an_older_copy() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    let (mut openings, mut closes) = (0, 0);
    let mut polls = 1;
    loop {
        let again = fixture.after_power_cut(polls);
        let store = polled(polls, again.try_open()).await;
        let over = store.is_some();
        drop(store);
        openings += u32::from(!over);
        // Repeat, so that the epochs of manifest and devices diverge.
        let mut again = again.after_power_cut(polls + 1);
        for more in 1..4 {
            drop(polled(polls / 2 + more, again.try_open()).await);
            again = again.after_power_cut(polls + more);
        }
        let store = again.open().await;
        expect_all(&store, space, 2).await;
        let close_over = polled(polls, store.close()).await.is_some();
        closes += u32::from(!close_over);
        let again = again.after_power_cut(polls + 2);
        expect_all(&again.open().await, space, 2).await;
        if over && close_over {
            break;
        }
        polls += 1 + polls / 8;
    }
    assert!(openings > 10 && closes > 10, "{openings} opens and {closes} closes were interrupted");
}

#[tokio::test(start_paused = true)]
async fn failed_saves_in_an_opening_or_a_close_do_no_harm() {
    for replaced in [false, true] {
        for skip in 0..4 {
            let (fixture, store, space) = Fixture::grown().await;
            store.close().await.unwrap();
            fixture.manifest.fail_saves(skip, 1, replaced);
            match fixture.try_open().await {
                Ok(store) => drop((store.sync().await, store.close().await)),
                Err(OpenError::Directory { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            fixture.manifest.fail_saves(0, 0, false);
            let store = fixture.open().await;
            expect_all(&store, space, 1).await;
            store.close().await.unwrap();
            expect_all(&fixture.open().await, space, 1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_opening_dropped_at_any_await_leaves_devices_that_the_next_accepts() {
    let (mut cut_short, mut polls) = (0, 0);
    loop {
        for seed in 0..3 {
            let fixture = Fixture::new();
            let store = polled(polls, fixture.try_open()).await;
            let over = store.is_some();
            cut_short += u32::from(!over);
            drop(store);
            let again = fixture.after_power_cut(polls * 3 + seed);
            // Also with another size, and without an SSD.
            let bytes = [SSD_PAGES, SSD_PAGES * 2, 0][seed as usize] * PAGE;
            let (store, bytes) = match again.builder().ssd_bytes(bytes).open().await {
                // The open got far enough to record the store's SSD.
                Err(OpenError::SsdMissing { .. }) if bytes == 0 && polls > 20 => {
                    (again.open().await, SSD_PAGES * PAGE)
                }
                opened => (opened.unwrap_or_else(|e| panic!("after {polls} polls: {e}")), bytes),
            };
            let space = grown(&store).await;
            store.close().await.unwrap();
            expect_all(&again.builder().ssd_bytes(bytes).open().await.unwrap(), space, 1).await;
            if over && seed == 2 {
                assert!(cut_short > 20, "only {cut_short} opens were interrupted");
                return;
            }
        }
        polls += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn two_first_openings_dropped_at_any_await_leave_devices_that_the_next_accepts() {
    for (first, second) in (0..45).step_by(4).flat_map(|first| (0..45).map(move |second| (first, second))) {
        let fixture = Fixture::new();
        drop(polled(first, fixture.try_open()).await);
        drop(polled(second, fixture.try_open()).await);
        for again in [fixture.after_power_cut(second), fixture] {
            let opened = again.try_open().await;
            opened.unwrap_or_else(|e| panic!("after {first} and {second} polls: {e}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_with_create_off() {
    let fixture = Fixture::new();
    let refused = fixture.builder().create(Create::Never).open().await;
    assert!(matches!(refused, Err(OpenError::NotFound { .. })), "{refused:?}");
    assert_eq!((fixture.hdd.ops(), fixture.manifest.saves()), (0, 0));
    // An unfinished first open leaves no store.
    drop(polled(4, fixture.try_open()).await);
    assert!(fixture.manifest.saves() > 0);
    let refused = fixture.builder().create(Create::Never).open().await;
    assert!(matches!(refused, Err(OpenError::NotFound { .. })), "{refused:?}");
    fixture.open().await.close().await.unwrap();
    fixture.builder().create(Create::Never).open().await.unwrap();
    // On files, where an open failed for lack of pool memory.
    let files = Files::new();
    assert!(files.with(|b| b.pool_bytes(1)).await.is_err());
    assert!(matches!(files.with(|b| b.create(Create::Never)).await, Err(OpenError::NotFound { .. })));
    assert!(!files.path(MANIFEST).exists());
}

#[tokio::test(start_paused = true)]
async fn anothers_devices_are_left_alone_by_a_first_opening() {
    let (fixture, store, space) = Fixture::grown().await;
    store.close().await.unwrap();
    let mut other = Fixture::new();
    other.ssd = Arc::clone(&fixture.ssd);
    assert!(matches!(other.try_open().await, Err(OpenError::OtherStore { .. })));
    assert_eq!(other.manifest.saves(), 0);
    other.ssd = Arc::new(SimDevice::new("new", 0, 7, &SimPower::new()));
    other.hdd = Arc::clone(&fixture.hdd);
    assert!(matches!(other.try_open().await, Err(OpenError::OtherStore { .. })));
    expect_all(&fixture.open().await, space, 1).await;
}

#[tokio::test(start_paused = true)]
async fn data_that_shows_further_in_is_noticed_on_either_device() {
    for ssd in [false, true] {
        let fixture = Fixture::new();
        let used: SharedDevice = if ssd { fixture.ssd.clone() } else { fixture.hdd.clone() };
        used.grow(1 << 20).unwrap();
        let mut label = IoBuf::zeroed(4096);
        label.as_mut_slice()[64] = b'_';
        used.write(64 << 10, IoBufs::from_iter([label]), IoClass::Meta).await.result.unwrap();
        assert!(matches!(fixture.try_open().await, Err(OpenError::Foreign { .. })), "ssd: {ssd}");
        fixture.builder().create(Create::Overwriting).open().await.unwrap();
    }
}

/// The label that earlier versions wrote to the start of each member of a striped set.
fn striped_label() -> IoBuf {
    let mut label = IoBuf::zeroed(4096);
    label.as_mut_slice()[..8].copy_from_slice(b"PGTIERST");
    label
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_striped_set_is_refused_by_name() {
    for ssd in [false, true] {
        let (fixture, store, space) = Fixture::grown().await;
        store.close().await.unwrap();
        let device: SharedDevice = if ssd { fixture.ssd.clone() } else { fixture.hdd.clone() };
        let start = device.read(0, IoBufs::from_iter([IoBuf::zeroed(8192)]), IoClass::Meta).await;
        start.result.unwrap();
        let bufs = IoBufs::from_iter([striped_label(), IoBuf::zeroed(4096)]);
        device.write(0, bufs, IoClass::Meta).await.result.unwrap();
        for accept in [false, true] {
            let refused = fixture.builder().accept_ssd_loss(accept).open().await;
            assert!(matches!(refused, Err(OpenError::Striped { .. })), "ssd: {ssd}: {refused:?}");
        }
        device.write(0, start.bufs, IoClass::Meta).await.result.unwrap();
        expect_all(&fixture.open().await, space, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_blank_hdd_is_refused_even_with_force() {
    let mut fixture = Fixture::new();
    let store = fixture.open().await;
    let space = grown(&store).await;
    store.close().await.unwrap();
    let hdd =
        std::mem::replace(&mut fixture.hdd, Arc::new(SimDevice::new("new", 1 << 20, 7, &SimPower::new())));
    for create in [Create::OnBlank, Create::Overwriting] {
        let refused = fixture.builder().create(create).open().await;
        assert!(matches!(refused, Err(OpenError::HddMissing { .. })), "{refused:?}");
    }
    fixture.hdd = hdd;
    expect_all(&fixture.open().await, space, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_generation_of_a_failed_save_that_took_effect_is_not_reused() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let generation = || {
        let bytes = fixture.manifest.to_bytes().unwrap();
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
        serde_json::from_slice::<serde_json::Value>(line).unwrap()["generation"].as_u64().unwrap()
    };
    fixture.manifest.fail_saves(0, 1, true);
    store.spaces().create("a").await.unwrap_err();
    let failed = generation();
    store.spaces().create("b").await.unwrap();
    // The failed one appended a record, which the line does not show.
    assert!(generation() > failed + 1, "an older copy could not be distinguished from the manifest");
}

#[tokio::test]
async fn devices_live_where_the_builder_says() {
    let files = Files::new();
    let [hdd, ssd] = ["disk", "flash"].map(|name| files.0.path().join(name));
    files.with(|b| b.hdd(&hdd).ssd(&ssd)).await.unwrap().close().await.unwrap();
    assert!(hdd.exists() && ssd.exists());
    assert!(!files.path(HDD).exists() && !files.path(SSD).exists());
}
