//! A store with its manifest on the HDD: it opens on another machine, which has nothing but that HDD, and
//! every crash leaves one of the two newest manifests whole.

use crate::fixture::{Fixture, RING_PAGES, fill, read};
use pagetier::{
    Builder, Error, Lsn, OpenError, PageId, PageSize, PageStore, SpaceId, options::CostSource,
    options::Create, options::OnHdd,
};
use pagetier_devio::{Device, IoOp};
use pagetier_ssdcache::Layout;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The byte range of the headers.
const HEADERS: std::ops::Range<u64> = 64 << 10..80 << 10;
/// Where the areas begin, and the bytes of each.
const AREAS_AT: u64 = 1 << 20;
const AREA_BYTES: u64 = 256 << 10;

/// What a life has been told: a space by its name, with the pages that are in it. `None`: whether it is there
/// was not said.
type Told = BTreeMap<String, Option<(SpaceId, Vec<u32>)>>;

/// A life that changes the manifest in every way, until a call fails.
async fn life(fixture: &Fixture, told: &mut Told) -> Result<(), Error> {
    life_of(fixture.builder(), told).await
}

async fn life_of(builder: Builder, told: &mut Told) -> Result<(), Error> {
    let Ok(store) = builder.open().await else { return Ok(()) };
    for round in 0..3 {
        let name = format!("s{round}");
        told.insert(name.clone(), None);
        let space = store.spaces().create(&name).await?;
        told.insert(name.clone(), Some((space, Vec::new())));
        // Two extents.
        for no in [0, 1, 70] {
            fill(&mut store.overwrite(PageId::new(space, no)).await?, no, 1);
        }
        store.sync().await?;
        told.insert(name.clone(), Some((space, vec![0, 1, 70])));
        told.insert(name.clone(), Some((space, vec![0, 70])));
        store.free(PageId::new(space, 1)).await?;
        if round == 1 {
            told.insert("s0".to_owned(), None);
            store.spaces().drop(SpaceId(1)).await?;
            told.remove("s0");
        }
    }
    drop(store.close().await);
    Ok(())
}

async fn expect(store: &PageStore, told: &Told, what: &str) {
    let listed: Vec<_> = store.spaces().list().into_iter().map(|space| (space.name, space.id)).collect();
    for (name, id) in &listed {
        let known = told.get(name).unwrap_or_else(|| panic!("{what}: {name} was dropped"));
        assert!(known.as_ref().is_none_or(|(known, _)| known == id), "{what}");
    }
    for (name, space) in told {
        let Some((space, pages)) = space else { continue };
        assert!(listed.contains(&(name.clone(), *space)), "{what}: {name} is missing from {listed:?}");
        for no in pages {
            assert_eq!(read(store, *space, *no).await.unwrap(), 1, "{what}: page {no} of {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_at_any_operation_leaves_what_was_acknowledged() {
    let mut cuts = 0;
    for n in 1.. {
        let power = SimPower::new();
        power.cut_at(n);
        let (fixture, mut told) = (Fixture::on_hdd(&power), Told::new());
        let ended = life(&fixture, &mut told).await;
        if !power.is_cut() {
            ended.unwrap();
            break;
        }
        cuts += 1;
        for seed in 0..2 {
            let after = fixture.after_power_cut(n * 7 + seed);
            let what = format!("cut at {n}, seed {seed}");
            let store = after.try_open().await.unwrap_or_else(|error| panic!("{what}: {error}"));
            expect(&store, &told, &what).await;
            // It accepts changes, also once more.
            let (again, _) = (store.spaces().create("again").await.unwrap(), drop(store));
            let after = after.after_power_cut(n + seed);
            let store = after.open().await;
            assert_eq!(store.spaces().find("again"), Some(again), "{what}");
            expect(
                &store,
                &{
                    let mut t = told.clone();
                    t.insert("again".into(), None);
                    t
                },
                &what,
            )
            .await;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// The schedule: headers of a save that failed are on the disk, and the next save writes over their contents.
#[tokio::test(start_paused = true)]
async fn a_flush_that_fails_in_any_save_leaves_what_was_acknowledged() {
    let mut failed = 0;
    for (skip, model) in (0..60).flat_map(|skip| FlushFailure::ALL.map(|model| (3 * skip, model))) {
        let power = SimPower::new();
        let (mut fixture, mut told) = (Fixture::on_hdd(&power), Told::new());
        let hdd = SimDevice::new("hdd", 0, 1, &power).with_flush_failure(model);
        fixture.hdd = Arc::new(hdd.with_latency(Duration::from_micros(400)));
        fixture.open().await.close().await.unwrap();
        let from = fixture.hdd.ops() + skip;
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).from_op(from).times(1));
        failed += u64::from(life(&fixture, &mut told).await.is_err());
        fixture.hdd.clear_faults();
        for seed in 0..2 {
            let store = fixture.after_power_cut(skip + 100 * seed).open().await;
            expect(&store, &told, &format!("a flush from operation {skip} on, {model:?}")).await;
        }
    }
    assert!(failed > 30, "{failed}");
}

#[tokio::test(start_paused = true)]
async fn another_machine_opens_it_with_a_blank_ssd() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..40 {
        let mut page = store.overwrite(PageId::new(space, no)).await.unwrap();
        fill(&mut page, no, 1);
        page.set_lsn(Lsn(9));
    }
    store.sync().await.unwrap();
    store.ssd().drain(pagetier::DrainOptions::new()).await;
    // What an engine redoes after a loss of the SSD is the store's own record.
    let redo_from = store.redo_from(Lsn(10), pagetier::Loss::Ssd).await.unwrap();
    assert!(redo_from >= Lsn(9));
    drop(store);
    let elsewhere = fixture.after_power_cut(5).with_blank_ssd();
    assert!(matches!(elsewhere.try_open().await, Err(OpenError::SsdMissing { .. })));
    let store = elsewhere.builder().accept_ssd_loss(true).create(Create::Never).open().await.unwrap();
    assert_eq!(store.ssd().loss().and_then(|loss| loss.redo_from), Some(redo_from));
    for no in 0..40 {
        assert_eq!(read(&store, space, no).await.unwrap(), 1);
    }
    store.ssd().acknowledge_loss().await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_rotten_header_costs_nothing_and_rotten_contents_are_refused() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    store.close().await.unwrap();
    for block in HEADERS.step_by(4096) {
        let rotten = fixture.after_power_cut(1);
        rotten.hdd.rot(block..block + 4096, 7);
        assert_eq!(rotten.open().await.spaces().find("t"), Some(space), "{block}");
    }
    for area in 0..2 {
        let rotten = fixture.after_power_cut(1);
        let at = AREAS_AT + area * AREA_BYTES;
        rotten.hdd.rot(at..at + 512, 7);
        match rotten.try_open().await {
            // The area of the manifest before.
            Ok(store) => assert_eq!(store.spaces().find("t"), Some(space)),
            Err(error) => {
                assert!(matches!(error, OpenError::BadManifest { .. }), "{error}");
                let bytes = rotten.hdd.snapshot();
                assert!(rotten.try_open().await.is_err() && bytes == rotten.hdd.snapshot(), "it was written");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_wrong_place_of_the_manifest_is_named() {
    let names = |error: &OpenError| matches!(error, OpenError::BadOption { option: "manifest", .. });
    let (on, mut off) = (Fixture::on_hdd(&SimPower::new()), Fixture::new());
    on.open().await.close().await.unwrap();
    off.open().await.close().await.unwrap();
    let mut moved = on.after_power_cut(1);
    (moved.on_hdd, off.on_hdd) = (false, true);
    for fixture in [&moved, &off] {
        let before = fixture.hdd.snapshot();
        let error = fixture.try_open().await.unwrap_err();
        assert!(names(&error), "{error}");
        assert!(before == fixture.hdd.snapshot(), "it was written");
    }
    let both = on.builder().in_memory(Arc::clone(&on.manifest)).open().await.unwrap_err();
    assert!(names(&both), "{both}");
    for bytes in [0, 1, 100 << 10, 256 << 10 | 1, 2 << 30] {
        let of = OnHdd { bytes_max: bytes, ..OnHdd::default() };
        let error = on.builder().manifest(of).open().await.unwrap_err();
        assert!(names(&error) && error.to_string().contains("bytes_max"), "{error}");
    }
    // An existing store keeps its own.
    let of = OnHdd { bytes_max: 1 << 20, ..OnHdd::default() };
    on.builder().manifest(of).open().await.unwrap().close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_outgrows_its_area_refuses_the_change_alone() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let name = "x".repeat(200);
    let mut made = Vec::new();
    let refused = loop {
        match store.spaces().create(&format!("{name}{}", made.len())).await {
            Ok(space) => made.push(space),
            Err(error) => break error,
        }
        assert!(made.len() < 5000);
    };
    assert!(matches!(refused, Error::Manifest { .. }), "{refused}");
    assert!(made.len() > 500, "{}", made.len());
    // What names less still works.
    store.spaces().drop(made[0]).await.unwrap();
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert_eq!(store.spaces().list().len(), made.len() - 1);
    assert!(fixture.hdd.size() < 4 << 20);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_is_inspected_and_read_without_a_write() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    fill(&mut store.overwrite(PageId::new(space, 0)).await.unwrap(), 0, 1);
    store.sync().await.unwrap();
    drop(store);
    let crashed = fixture.after_power_cut(3);
    let before = crashed.hdd.snapshot();
    let inspection = crashed.builder().inspect().await.unwrap();
    assert!(inspection.manifest.spaces.iter().any(|space| space.name == "t"));
    let hdd = inspection.hdd.unwrap();
    let ring = Layout::ring_only(PageSize::MIN, RING_PAGES).end().next_multiple_of(64 << 10);
    assert_eq!(hdd.needed_bytes, AREAS_AT + 2 * AREA_BYTES + ring + 64 * 4096);
    let store = crashed.builder().open_read_only().await.unwrap();
    assert_eq!(read(&store, space, 0).await.unwrap(), 1);
    drop(store);
    assert!(before == crashed.hdd.snapshot(), "it was written");
}

/// A restoration begins a store anew, and must not take one that is there for its own.
#[tokio::test(start_paused = true)]
async fn a_restoration_leaves_a_store_on_the_hdd_alone() {
    let (folder, to) = (pagetier_testing::scratch(), pagetier_testing::scratch());
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    fill(&mut store.overwrite(PageId::new(space, 0)).await.unwrap(), 0, 1);
    store.backup(folder.path(), pagetier::backup::BackupOptions::new()).await.unwrap();
    fill(&mut store.get_mut(PageId::new(space, 0)).await.unwrap(), 0, 2);
    store.close().await.unwrap();
    let before = fixture.hdd.snapshot();
    let restored =
        fixture.builder().directory(to.path().join("new")).restore(folder.path(), None, |_| ()).await;
    assert!(restored.is_err());
    assert!(before == fixture.hdd.snapshot(), "the HDD was written");
    let store = fixture.open().await;
    assert_eq!(read(&store, space, 0).await.unwrap(), 2);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_copy_of_a_header_costs_nothing_and_two_are_refused() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    store.close().await.unwrap();
    for block in HEADERS.step_by(4096) {
        let bad = fixture.after_power_cut(1);
        bad.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(block..block + 4096));
        assert_eq!(bad.open().await.spaces().find("t"), Some(space), "{block}");
    }
    for area in HEADERS.step_by(8192) {
        let bad = fixture.after_power_cut(1);
        bad.hdd.rot(area..area + 8192, 5);
        let error = bad.try_open().await.unwrap_err();
        assert!(error.to_string().contains("unreadable manifest"), "{error}");
    }
}

/// Files with O_DIRECT, whose blocks have 4096 bytes; the second machine has another directory.
#[tokio::test]
async fn a_file_is_opened_from_another_directory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder = |machine: &str| {
        let builder = PageStore::builder().directory(folder.path().join(machine)).manifest(OnHdd::default());
        builder.hdd(folder.path().join("volume")).ssd_bytes(8 << 20).pool_bytes(4 << 20)
    };
    let store = builder("one").open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..200 {
        fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    store.ssd().drain(pagetier::DrainOptions::new()).await;
    store.close().await.unwrap();
    let store = builder("two").accept_ssd_loss(true).create(Create::Never).open().await.unwrap();
    for no in 0..200 {
        assert_eq!(read(&store, space, no).await.unwrap(), 1);
    }
    assert!(matches!(builder("three").open().await, Err(OpenError::AlreadyOpen { .. })));
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_device_smaller_than_its_areas_is_refused_unchanged() {
    let power = SimPower::new();
    let mut fixture = Fixture::on_hdd(&power);
    fixture.hdd = Arc::new(SimDevice::new("hdd", 1 << 20, 1, &power).with_size_max(1 << 20));
    let before = fixture.hdd.snapshot();
    assert!(fixture.try_open().await.is_err());
    assert!(before == fixture.hdd.snapshot(), "it was written");
}

/// Its ring is a part of the HDD, which is measured for both.
#[tokio::test(start_paused = true)]
async fn a_store_without_an_ssd_is_calibrated() {
    let fixture = Fixture::on_hdd(&SimPower::new());
    let builder = || fixture.builder().ssd_bytes(0);
    let store = builder().costs(CostSource::CalibratedMs(100)).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    fill(&mut store.overwrite(PageId::new(space, 0)).await.unwrap(), 0, 1);
    store.close().await.unwrap();
    assert_eq!(read(&builder().open().await.unwrap(), space, 0).await.unwrap(), 1);
}
