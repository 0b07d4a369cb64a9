//! Later versions must read the stores, backups and hot sets of every frozen version of the formats.
//!
//! `tests/fixtures/v1` holds directories as version 1 wrote them, packed by [`pack`]; those of the present
//! formats have a log, too, and are in `crates/wal/tests/fixtures/v3`. `tests/fixtures/manifest-8` has stores
//! of which a space was shrunk. To write the fixtures of a further version, set `PAGETIER_WRITE_FIXTURES` to
//! a new folder beside it and run `cargo test --test all -- --ignored frozen::writes_the_fixtures`. Existing
//! fixtures are never overwritten.

use crate::fixture::PAGE;
use crate::packed::{pack, unpack};
use pagetier::backup::{BackupOptions, Backups};
use pagetier::errors::{Advice, Causes};
use pagetier::options::OnHdd;
use pagetier::{Builder, Lsn, PageId, PageSize, PageStore, SpaceId};
use std::path::{Path, PathBuf};

const PAGES: u32 = 48;
const DROPPED: &str = "dropped";
const SPACES: [&str; 2] = ["first", "second"];

fn fixtures(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(version)
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// For each fixture: its name, its SSD policy (one that writes in a zone, one in a circle), and whether the
/// store was closed.
const STORES: [(&str, &str, bool); 4] = [
    ("crashed-zone", "cac", false),
    ("closed-zone", "cac", true),
    ("crashed-circular", "mv-fifo", false),
    ("closed-circular", "mv-fifo", true),
];

fn builder(dir: &Path, policy: &str) -> Builder {
    pagetier_rivals::register();
    PageStore::builder()
        .directory(dir)
        .page_size(PageSize::MIN)
        .pool_bytes(40 * PAGE)
        .ssd_bytes(64 * PAGE)
        .ring_pages(8)
        .pool_policy("gd2l")
        .ssd_policy(policy)
}

/// The last version of page `no`: every third page has three.
fn version_of(no: u32) -> u32 {
    if no.is_multiple_of(3) { 3 } else { 1 + no % 2 }
}

fn lsn_of(space: SpaceId, no: u32, version: u32) -> Lsn {
    Lsn(u64::from(space.0) << 32 | u64::from(version) << 16 | u64::from(no))
}

async fn write(store: &PageStore, space: SpaceId, no: u32, version: u32) {
    let mut page = store.get_mut(PageId::new(space, no)).await.unwrap();
    page[..4].copy_from_slice(&no.to_le_bytes());
    page[4..8].copy_from_slice(&version.to_le_bytes());
    page.set_lsn(lsn_of(space, no, version));
}

async fn expect(store: &PageStore, what: &str) {
    for name in SPACES {
        let space = store.spaces().find(name).unwrap_or_else(|| panic!("{what}: no space {name}"));
        assert_eq!(store.spaces().pages(space).unwrap(), PAGES, "{what}: {name}");
        for no in 0..PAGES {
            let version = version_of(no);
            let page = store.get(PageId::new(space, no)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut expected = [0; 8];
            expected[..4].copy_from_slice(&no.to_le_bytes());
            expected[4..].copy_from_slice(&version.to_le_bytes());
            assert_eq!(page[..8], expected, "{what}: {name}:{no}");
            assert!(page[8..].iter().all(|byte| *byte == 0), "{what}: {name}:{no}");
            assert_eq!(page.lsn(), lsn_of(space, no, version), "{what}: {name}:{no}");
        }
    }
    assert!(store.spaces().find(DROPPED).is_none(), "{what}");
}

/// Fills a store, and writes a chain of two backups to `backups`. All versions are durable at the end.
async fn fill(store: &PageStore, backups: &Path) {
    let dropped = store.spaces().create(DROPPED).await.unwrap();
    for _ in 0..PAGES {
        drop(store.allocate(dropped).await.unwrap());
    }
    let mut spaces = Vec::new();
    for name in SPACES {
        let space = store.spaces().create(name).await.unwrap();
        for _ in 0..PAGES {
            drop(store.allocate(space).await.unwrap());
        }
        spaces.push(space);
    }
    store.spaces().drop(dropped).await.unwrap();
    for version in 1..=3 {
        for no in (0..PAGES).filter(|no| version_of(*no) >= version) {
            for space in &spaces {
                write(store, *space, no, version).await;
            }
        }
        store.sync().await.unwrap();
        if version > 1 {
            store.backup(backups, BackupOptions::new()).await.unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "writes fixtures of a new version of the formats"]
async fn writes_the_fixtures() {
    let version = std::env::var("PAGETIER_WRITE_FIXTURES").expect("PAGETIER_WRITE_FIXTURES names the folder");
    let to = fixtures(&version);
    std::fs::create_dir(&to).expect("fixtures that exist stay as they are");
    let dir = scratch();
    for (name, policy, close) in STORES {
        let (at, backups) = (dir.path().join(name), dir.path().join(format!("{name}.backups")));
        let store = builder(&at, policy).open().await.unwrap();
        fill(&store, &backups).await;
        if close {
            store.close().await.unwrap();
        } else {
            let left = store.wait_closed();
            drop(store);
            left.await;
        }
        std::fs::write(to.join(format!("{name}.packed")), pack(&at)).unwrap();
        if name == "closed-zone" {
            std::fs::write(to.join("backups.packed"), pack(&backups)).unwrap();
        }
    }
}

#[tokio::test]
async fn stores_of_every_frozen_version_open_with_all_their_pages() {
    for version in ["v1"] {
        for (name, policy, _) in STORES {
            let (dir, what) = (scratch(), format!("{version}/{name}"));
            let packed = std::fs::read(fixtures(version).join(format!("{name}.packed"))).unwrap();
            let at = dir.path().join("store");
            unpack(&packed, &at);
            let reader = builder(&at, policy).open_read_only().await.unwrap();
            expect(&reader, &what).await;
            reader.close().await.unwrap();
            // A second open reads what the first one left.
            for _ in 0..2 {
                let store =
                    builder(&at, policy).create(pagetier::options::Create::Never).open().await.unwrap();
                expect(&store, &what).await;
                let scrubbed = store
                    .scrub(pagetier::scrub::ScrubOptions::default().pages_per_second(None))
                    .finished()
                    .await;
                assert!(scrubbed.complete && scrubbed.findings.is_empty(), "{what}: {scrubbed:?}");
                let (hot, space) = (dir.path().join("hot"), store.spaces().find(SPACES[0]).unwrap());
                std::fs::write(&hot, format!("pagetier hot set 1\n{0} 3\n{0} 7\n", space.0)).unwrap();
                assert_eq!(store.hot_set().import(&hot).await.unwrap().loaded, 2, "{what}");
                store.close().await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn backups_of_every_frozen_version_restore() {
    for version in ["v1"] {
        let dir = scratch();
        let packed = std::fs::read(fixtures(version).join("backups.packed")).unwrap();
        let (from, at) = (dir.path().join("backups"), dir.path().join("store"));
        unpack(&packed, &from);
        let report = builder(&at, "cac").restore(&from, None, |_| ()).await.unwrap();
        assert_eq!(report.files, 2, "{version}: {report:?}");
        let store = builder(&at, "cac").create(pagetier::options::Create::Never).open().await.unwrap();
        expect(&store, version).await;
        store.close().await.unwrap();
    }
}

/// The format of a version that does not exist yet.
const LATER: u32 = 99;

/// Marks blocks whose CRC32C, in bytes 8 to 11, covers those from 12 to `end`. Blank ones stay.
fn mark_blocks(bytes: &mut [u8], end: usize) {
    for block in bytes.chunks_mut(4096).filter(|block| block[0] != 0) {
        block[12..16].copy_from_slice(&LATER.to_le_bytes());
        let sum = crc32c::crc32c(&block[12..end]);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Where the areas of a manifest begin in its file.
const AREAS_AT: usize = 64 << 10;

/// The contents of both areas of a manifest that has them.
fn contents(areas: &mut [u8]) -> impl Iterator<Item = (String, &mut [u8])> {
    areas.chunks_mut(areas.len() / 2).filter(|area| area[0] == b'{').map(|area| {
        let end = area.iter().position(|byte| *byte == b'\n').unwrap();
        (String::from_utf8(area[..end].to_vec()).unwrap(), area)
    })
}

/// Marks the contents of both areas of a manifest, whose tails are empty after a close.
fn mark_contents(areas: &mut [u8], written: u32, later: u32) {
    for (line, area) in contents(areas) {
        let line = line.replacen(&format!("\"format\":{written},"), &format!("\"format\":{later},"), 1);
        let sealed = format!("{line}\ncrc32c {:08x}\n", crc32c::crc32c(line.as_bytes()));
        area[..sealed.len()].copy_from_slice(sealed.as_bytes());
    }
}

/// The format of a manifest that was closed: that of its newest area.
fn format_of(dir: &Path) -> u64 {
    let mut file = std::fs::read(dir.join("manifest.json")).unwrap();
    let parsed = contents(&mut file[AREAS_AT..]).map(|(line, _)| serde_json::from_str(&line).unwrap());
    let newest = parsed.max_by_key(|contents: &serde_json::Value| contents["generation"].as_u64());
    newest.unwrap()["format"].as_u64().unwrap()
}

/// Each part of a store that has a format of its own: what refusals call it, its file, and how to mark it as
/// a later version's.
type Part = (&'static str, &'static str, fn(&mut [u8]));
const PARTS: [Part; 4] = [
    ("hdd.vol", "hdd.vol", |file| mark_blocks(&mut file[..2 * 4096], 4096)),
    ("ssd.cache", "ssd.cache", |file| mark_blocks(&mut file[..2 * 4096], 4096)),
    ("the manifest's areas", "manifest.json", |file| mark_blocks(&mut file[4096..5 * 4096], 512)),
    ("the manifest", "manifest.json", |file| mark_contents(&mut file[AREAS_AT..], 5, LATER)),
];

/// The files of a directory, but for the lock.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths.filter(|path| !path.ends_with("lock")).collect();
    all.sort();
    all.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// After a downgrade, every way to open the store names both versions, and leaves every byte as it was.
#[tokio::test]
async fn what_a_later_version_wrote_is_refused_by_its_number_and_stays_as_it_is() {
    let dir = scratch();
    let at = dir.path().join("store");
    unpack(&std::fs::read(fixtures("v1").join("closed-zone.packed")).unwrap(), &at);
    // As this version leaves it.
    builder(&at, "cac").open().await.unwrap().close().await.unwrap();
    for (named, file, mark) in PARTS {
        let before = std::fs::read(at.join(file)).unwrap();
        let mut bytes = before.clone();
        mark(&mut bytes);
        std::fs::write(at.join(file), bytes).unwrap();
        let marked = files(&at);
        for (how, opened) in [
            ("open", builder(&at, "cac").open().await),
            ("accept the loss", builder(&at, "cac").accept_ssd_loss(true).open().await),
            ("read", builder(&at, "cac").open_read_only().await),
        ] {
            let error = opened.expect_err(how);
            let said = error.to_string();
            let ok = said.contains(&format!("{named}: it has format 99, this version reads "));
            assert!(ok && error.advice() == Advice::FixConfiguration, "{how}, {named}: {said}");
            assert!(files(&at) == marked, "{how}, {named}: a file changed");
        }
        std::fs::write(at.join(file), before).unwrap();
    }
    // The areas on an HDD whose directory is another one.
    let on_hdd = |at: &str| builder(&dir.path().join(at), "cac").hdd(dir.path().join("volume"));
    on_hdd("one").manifest(OnHdd::default()).open().await.unwrap().close().await.unwrap();
    let mut bytes = std::fs::read(dir.path().join("volume")).unwrap();
    mark_blocks(&mut bytes[64 << 10..][..4 * 4096], 512);
    std::fs::write(dir.path().join("volume"), bytes).unwrap();
    let said = on_hdd("other").open().await.unwrap_err().to_string();
    assert!(said.contains("the manifest's areas: it has format 99"), "{said}");
    let store = builder(&at, "cac").open().await.unwrap();
    expect(&store, "marked and restored").await;
    let hot = dir.path().join("hot");
    std::fs::write(&hot, "pagetier hot set 99\n1 1\n").unwrap();
    let refused = Causes(&store.hot_set().import(&hot).await.unwrap_err()).to_string();
    assert!(refused.contains("hot set 99") && refused.contains("hot set 1"), "{refused}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_backup_of_a_later_version_is_refused_by_its_number_and_stays_as_it_is() {
    let dir = scratch();
    let (from, at) = (dir.path().join("backups"), dir.path().join("store"));
    unpack(&std::fs::read(fixtures("v1").join("backups.packed")).unwrap(), &from);
    let newest = from.join("000002.backup");
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes[8..12].copy_from_slice(&LATER.to_le_bytes());
    std::fs::write(&newest, bytes).unwrap();
    let (marked, backups) = (files(&from), Backups::at(&from));
    for refused in [
        builder(&at, "cac").restore(&from, None, |_| ()).await.unwrap_err(),
        backups.list().await.unwrap().pop().unwrap().fault.unwrap(),
        backups.verify(|_| ()).await.unwrap().pop().unwrap().fault.unwrap(),
        backups.purge(1, |_| ()).await.unwrap_err(),
    ] {
        let said = Causes(&refused).to_string();
        assert!(said.contains("000002.backup: it has format 99, this version reads 1"), "{said}");
        assert!(files(&from) == marked && !at.exists(), "{said}");
    }
    // A backup of before is whole.
    assert_eq!(builder(&at, "cac").restore(&from, Some(1), |_| ()).await.unwrap().files, 1);
}

/// A space that was shrunk, then got another page beyond its end: of its first pages every tenth has
/// contents, and so has this one.
const SHRUNK: &str = "manifest-8";
const KEPT: u32 = 70;
const REUSED: u32 = 75;
/// The pages that it had before.
const HAD: u32 = 200;

async fn shrink(store: &PageStore) {
    let space = store.spaces().create("shrunk").await.unwrap();
    for _ in 0..HAD {
        drop(store.allocate(space).await.unwrap());
    }
    for no in (0..HAD).step_by(10) {
        write(store, space, no, 1).await;
    }
    store.sync().await.unwrap();
    store.free((space, KEPT..u32::MAX)).await.unwrap();
    store.spaces().shrink(space).await.unwrap();
    store.overwrite(PageId::new(space, REUSED)).await.unwrap();
    write(store, space, REUSED, 2).await;
    store.sync().await.unwrap();
}

/// Checks a store that [`shrink`] has filled, and that may have got blank pages beyond the end since.
async fn expect_shrunk(store: &PageStore, pages: u32, blank: &[u32], what: &str) {
    let space = store.spaces().find("shrunk").unwrap();
    assert_eq!(store.spaces().pages(space).unwrap(), pages, "{what}");
    for no in 0..HAD {
        let expected = match no {
            REUSED => Some([no, 2]),
            0..KEPT if no.is_multiple_of(10) => Some([no, 1]),
            _ if no < KEPT || blank.contains(&no) => Some([0, 0]),
            _ => None,
        };
        let found = match store.get(PageId::new(space, no)).await {
            Ok(page) => Some([0, 4].map(|at| u32::from_le_bytes(page[at..at + 4].try_into().unwrap()))),
            Err(pagetier::Error::NoSuchPage { .. }) => None,
            Err(error) => panic!("{what}: {error}"),
        };
        assert_eq!(found, expected, "{what}: page {no}");
    }
    assert_eq!(store.validate(), Ok(()), "{what}");
}

#[tokio::test]
#[ignore = "writes fixtures of a new version of the formats"]
async fn writes_the_fixtures_of_a_space_that_was_shrunk() {
    std::fs::create_dir(fixtures(SHRUNK)).expect("fixtures that exist stay as they are");
    // The manifest says where the SSD was: not in the folder of a build.
    let dir = pagetier_testing::scratch();
    for name in ["closed", "crashed"] {
        let at = dir.path().join(name);
        let store = builder(&at, "cac").open().await.unwrap();
        shrink(&store).await;
        if name == "closed" {
            store.close().await.unwrap();
        } else {
            let left = store.wait_closed();
            drop(store);
            left.await;
        }
        std::fs::write(fixtures(SHRUNK).join(format!("{name}.packed")), pack(&at)).unwrap();
    }
}

/// The manifest has the newest format only while a space has free pages beyond its end.
#[tokio::test]
async fn stores_with_a_space_that_was_shrunk_open_and_grow_again() {
    for name in ["closed", "crashed"] {
        let dir = scratch();
        let at = dir.path().join("store");
        unpack(&std::fs::read(fixtures(SHRUNK).join(format!("{name}.packed"))).unwrap(), &at);
        let reader = builder(&at, "cac").open_read_only().await.unwrap();
        expect_shrunk(&reader, REUSED + 1, &[], name).await;
        reader.close().await.unwrap();
        for _ in 0..2 {
            let store = builder(&at, "cac").open().await.unwrap();
            expect_shrunk(&store, REUSED + 1, &[], name).await;
            store.close().await.unwrap();
            assert_eq!(format_of(&at), 8, "{name}");
        }
        // Of the version after this one it is refused, by both numbers.
        let before = std::fs::read(at.join("manifest.json")).unwrap();
        let mut bytes = before.clone();
        mark_contents(&mut bytes[AREAS_AT..], 8, 9);
        std::fs::write(at.join("manifest.json"), bytes).unwrap();
        let marked = files(&at);
        for opened in [builder(&at, "cac").open().await, builder(&at, "cac").open_read_only().await] {
            let said = opened.expect_err(name).to_string();
            let expected = "the manifest: it has format 9, this version reads 2 to 6 and 8";
            assert!(said.contains(expected) && files(&at) == marked, "{name}: {said}");
        }
        std::fs::write(at.join("manifest.json"), before).unwrap();
        // One number has a home that its space kept; the other, the last that is listed, has none.
        let numbers = [100, HAD.next_multiple_of(64) - 1];
        for (nth, no) in numbers.into_iter().enumerate() {
            let store = builder(&at, "cac").open().await.unwrap();
            let space = store.spaces().find("shrunk").unwrap();
            assert!(store.overwrite(PageId::new(space, no)).await.unwrap().iter().all(|byte| *byte == 0));
            store.sync().await.unwrap();
            expect_shrunk(&store, no + 1, &numbers[..=nth], name).await;
            store.close().await.unwrap();
            assert_eq!(format_of(&at), if no == 100 { 8 } else { 5 }, "{name}");
        }
    }
}
