//! Options of an existing store: each takes effect or yields an error.

use crate::fixture::{Fixture, PAGE, POOL_BYTES, RING_PAGES, SSD_PAGES, fill, read};
use pagetier::{
    Builder, Costs, Error, OpenError, Options, PageId, PageSize, PageStore, SsdMode,
    device::{Backend, DirectIo, MemoryDevice, SharedDevice},
    errors::Advice,
    frames_for,
    options::CostSource,
    options::Create,
    options::OnHdd,
    pool_bytes_for,
    stats::SsdState,
};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

async fn refusal(builder: Builder) -> OpenError {
    builder.open().await.map(drop).expect_err("the option cannot take effect")
}

fn names(error: &OpenError, wanted: &str) -> bool {
    matches!(error, OpenError::BadOption { option, .. } if *option == wanted)
}

#[tokio::test(start_paused = true)]
async fn an_ssd_keeps_its_size_and_a_new_one_gets_the_size_named() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let slots = store.stats().ssd.slots;
    store.close().await.unwrap();
    // The first is no size at all.
    for pages in [3, SSD_PAGES - 1, SSD_PAGES + 1, 4 * SSD_PAGES] {
        let store = fixture.builder().ssd_bytes(pages * PAGE).open().await.unwrap();
        assert_eq!(store.stats().ssd.slots, slots, "{pages} pages");
        // Off and on it is the same SSD.
        store.ssd().set_mode(SsdMode::Off).await.unwrap();
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
        assert_eq!(store.stats().ssd.slots, slots, "{pages} pages, off and on");
        store.close().await.unwrap();
    }
    // Put into use again at a later open, it is a new one.
    let larger = || fixture.builder().ssd_bytes((SSD_PAGES + 20) * PAGE);
    let store = larger().open().await.unwrap();
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.close().await.unwrap();
    let store = larger().open().await.unwrap();
    store.ssd().readmit().await.unwrap();
    assert_eq!(store.stats().ssd.slots, slots + 20);
    store.close().await.unwrap();
    // As is a blank one after a loss.
    let mut fixture = fixture;
    fixture.ssd = Fixture::new().ssd;
    let lost = fixture.builder().ssd_bytes((SSD_PAGES + 40) * PAGE).accept_ssd_loss(true);
    assert_eq!(lost.open().await.unwrap().stats().ssd.slots, slots + 40);
}

#[tokio::test(start_paused = true)]
async fn another_size_of_the_ring_is_an_error() {
    let fixture = Fixture::new();
    fixture.open().await.close().await.unwrap();
    let error = refusal(fixture.builder().ring_pages(RING_PAGES + 1)).await;
    assert!(names(&error, "ring_pages"), "{error}");
    assert_eq!(error.advice(), Advice::FixConfiguration);
    let error = refusal(fixture.builder().costs(CostSource::CalibratedMs(10))).await;
    assert!(names(&error, "costs"), "{error}");
    fixture.open().await.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_ssd_of_the_options_waits_for_its_readmission() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..60 {
        fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 1);
    }
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert_eq!(store.stats().ssd.state(), SsdState::Off);
    store.ssd().readmit().await.unwrap();
    assert_eq!(store.stats().ssd.state(), SsdState::Active);
    for no in 0..60 {
        assert_eq!(read(&store, space, no).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn errors_say_who_can_act_and_name_the_path_once() {
    let directory = pagetier_testing::scratch();
    let path = directory.path().join("nothing here");
    let error = refusal(PageStore::builder().directory(&path).create(Create::Never)).await;
    assert!(matches!(error, OpenError::NotFound { .. }), "{error:?}");
    assert_eq!(error.advice(), Advice::FixConfiguration);
    assert_eq!(error.to_string().matches("nothing here").count(), 1, "{error}");

    let missing = directory.path().join("no folder").join("ssd");
    let error = refusal(PageStore::builder().directory(directory.path().join("s")).ssd(&missing)).await;
    assert_eq!(error.to_string().matches("no folder").count(), 1, "{error}");
    assert_eq!(error.advice(), Advice::FixConfiguration);

    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = refusal(PageStore::builder().directory(file.join("store"))).await;
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert!(source.is_some(), "{error:?}");
    assert_eq!(error.to_string().matches("store").count(), 2, "the path once, and a word: {error}");
}

#[tokio::test(start_paused = true)]
async fn the_messages_about_a_wrong_device_have_no_ids() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    fixture.open().await.close().await.unwrap();
    other.open().await.close().await.unwrap();
    let error = refusal(fixture.builder().ssd(other.ssd.clone())).await;
    let OpenError::OtherStore { found, expected, .. } = &error else { panic!("{error:?}") };
    assert!(!error.to_string().contains(found) && !error.to_string().contains(expected), "{error}");
    assert_eq!(error.advice(), Advice::FixDevice);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_frames_is_known_before_opening() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let size = store.page_size();
    // The fixture's ring is smaller than the default, so its SSD has a few slots more.
    let known = frames_for(POOL_BYTES, SSD_PAGES * PAGE, size);
    assert!(store.stats().frames.abs_diff(known) <= 1, "{} and {known}", store.stats().frames);
    let error: Error = store.get(PageId::new(pagetier::SpaceId(1), 0)).await.unwrap_err();
    assert_eq!((error.advice(), error.page()), (Advice::Bug, Some(PageId::new(pagetier::SpaceId(1), 0))));
}

#[tokio::test(start_paused = true)]
async fn the_memory_named_for_a_number_of_pages_holds_them_with_any_ring() {
    for size in [PageSize::MIN, PageSize::DEFAULT] {
        let bytes = |pages: u64| pages * size.bytes() as u64;
        for (ssd_pages, ring) in
            [0, 160, 1000, 9000].into_iter().flat_map(|ssd| [0, 8, 16, 100].map(|ring| (ssd, ring)))
        {
            for pages in [1, 16, 17, 300] {
                let pool_bytes = pool_bytes_for(pages, bytes(ssd_pages), size);
                let fixture = Fixture::new();
                let builder = fixture.builder().page_size(size).ring_pages(ring).pool_bytes(pool_bytes);
                let store = builder.ssd_bytes(bytes(ssd_pages)).open().await.unwrap();
                let frames = store.frames();
                let case = format!("{pages} pages, an SSD of {ssd_pages}, a ring of {ring}: {frames} frames");
                assert!((pages..=pages.max(16) + 25).contains(&frames), "{case}");
            }
        }
    }
}

#[test]
fn every_option_has_a_setter_and_reads_back() {
    let builder = PageStore::builder()
        .directory("/d")
        .manifest(OnHdd { bytes_max: 14, ..OnHdd::default() }.lease(Duration::from_micros(500_001)))
        .hdd("/h")
        .ssd("/s")
        .ssd_bytes(1)
        .ring_pages(2)
        .pool_bytes(3)
        .page_size(PageSize::MAX)
        .pool_policy("gd2l:frequency")
        .ssd_policy("cac:strict-zone")
        .costs(CostSource::Online { points: 9, start: Some(Costs::PAPER) })
        .io(Backend::Threads)
        .direct_io(DirectIo::Disabled)
        .create(Create::Overwriting)
        .redo_span_max(10)
        .low_room(12)
        .page_gap_max(13)
        .exhausted_after(Duration::from_micros(10_001))
        .read_ahead(false)
        .ssd_mode(SsdMode::ReadOnly)
        .accept_ssd_loss(true)
        .accept_log_loss(true);
    let options = builder.options();
    assert_eq!(options.exhausted_after_ms, 11, "a fraction of a millisecond counts as one");
    let text = serde_json::to_string(options).unwrap();
    assert_eq!(&serde_json::from_str::<Options>(&text).unwrap(), options);
    let set = serde_json::to_value(options).unwrap();
    let defaults = serde_json::to_value(Options::default()).unwrap();
    for (name, value) in set.as_object().unwrap() {
        assert_ne!(*value, defaults[name], "{name} was not set");
    }
    let texts = [("io", "threads"), ("ssd_mode", "read-only"), ("pool_policy", "gd2l:frequency")];
    for (name, value) in
        texts.into_iter().chain([("create", "overwriting"), ("ssd_policy", "cac:strict-zone")])
    {
        assert_eq!(set[name], value);
    }
    assert_eq!(set["manifest"]["hdd"]["lease_ms"], 501);
    assert_eq!(Builder::from_options(options.clone()).options(), options);
}

#[test]
fn options_left_out_have_their_defaults_and_unknown_ones_are_errors() {
    assert_eq!(serde_json::from_str::<Options>("{}").unwrap(), Options::default());
    let wrong = [
        r#"{"pool_byts": 1}"#,
        r#"{"pool_policy": "gd3l"}"#,
        r#"{"io": "uringg"}"#,
        r#"{"ssd_policy": "cac:zone=0"}"#,
        r#"{"manifest": {"hdd": {"bytes": 1}}}"#,
    ];
    for wrong in wrong {
        assert!(serde_json::from_str::<Options>(wrong).is_err(), "{wrong}");
    }
    let some = r#"{"manifest": {"hdd": {"bytes_max": "1MiB"}}, "costs": {"online": {"points": 9}}}"#;
    let some: Options = serde_json::from_str(some).unwrap();
    assert_eq!(some.manifest, OnHdd { bytes_max: 1 << 20, lease_ms: None }.into());
    assert_eq!(some.costs, CostSource::online(9));
}

#[tokio::test]
async fn a_store_opens_from_options_and_the_last_policy_named_counts() {
    let directory = pagetier_testing::scratch();
    let mut options = Options::default();
    options.directory = Some(directory.path().join("store"));
    (options.pool_bytes, options.ssd_bytes, options.page_bytes) = (4 << 20, Some(4 << 20), Some(8192));
    let builder = || Builder::from_options(options.clone());
    let error = refusal(builder().pool_policy("lru").pool_policy("gd3l")).await;
    assert!(matches!(error, OpenError::UnknownPolicy(_)), "{error}");
    let store = builder().pool_policy("gd3l").pool_policy("lru").open().await.unwrap();
    assert_eq!((store.page_size().bytes(), store.policies().pool().to_string().as_str()), (8192, "lru"));
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_outqueue_has_the_entries_that_the_option_asks_for() {
    let tables = async |entries: u32| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let builder = PageStore::builder().directory(dir.path()).ssd_bytes(8 << 20);
        let store = builder.ssd_policy(format!("cac:outqueue={entries}")).open().await.unwrap();
        let bytes = store.stats().ssd.memory_bytes;
        store.close().await.unwrap();
        bytes
    };
    let [few, many] = [tables(10).await, tables(20_010).await];
    assert!(many >= few + 20_000 * 32, "an entry has the page's statistics: {few}, {many}");
}

#[tokio::test]
async fn of_a_path_and_a_device_the_one_named_last_is_used() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name);
    let memory = |name| Arc::new(MemoryDevice::new(name, 0)) as SharedDevice;
    let builder = || PageStore::builder().ssd_bytes(4 << 20).pool_bytes(2 << 20);
    let paths = builder().directory(path("a")).hdd(memory("hdd")).ssd(memory("ssd"));
    paths.hdd(path("hdd")).ssd(path("ssd")).open().await.unwrap().close().await.unwrap();
    assert!(path("hdd").exists() && path("ssd").exists());
    let devices = builder().directory(path("b")).hdd(path("no hdd")).ssd(path("no ssd"));
    devices.hdd(memory("hdd")).ssd(memory("ssd")).open().await.unwrap().close().await.unwrap();
    assert!(!path("no hdd").exists() && !path("no ssd").exists());
}
