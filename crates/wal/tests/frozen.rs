//! Later versions must read the logs of every frozen version of the format, with their stores.
//!
//! `tests/fixtures/v1` and `v2` hold a log as these versions wrote it, and `v3` two stores: `archived`
//! with its log, the archive of that, a backup of both and a hot set, and `on_device` on two volumes, of
//! which one has the log. To write the fixtures of a further version, set `PAGETIER_WRITE_FIXTURES` to a
//! new folder beside them and run `cargo test -p pagetier-wal --test all -- --ignored
//! frozen::writes_the_fixtures`. Existing fixtures are never overwritten.

#[path = "../../../tests/packed.rs"]
mod packed;

use packed::{pack, unpack};
use pagetier::backup::{BackupOptions, Backups};
use pagetier::device::{Backend, OpenOptions, SharedDevice, open_file};
use pagetier::errors::Causes;
use pagetier::{Builder, Error, PageId, PageMut, PageSize, PageStore, SpaceId, options::OnHdd};
use pagetier_wal::{
    Keep, LoggedStore, MiniTx, RecoverError, UnfitLog, Until, Wal, WalError, WalOptions, recover,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Segments of 64 KiB.
fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(64 << 10)
}

/// The operations of the commit without an `Applied`.
const COMMIT: &[u8] = b"not applied";

async fn store(dir: &Path, wal: Option<&Wal>) -> (Arc<PageStore>, SpaceId) {
    let builder =
        PageStore::builder().directory(dir).page_size(PageSize::MIN).ssd_bytes(0).pool_bytes(4 << 20);
    let builder = match wal {
        Some(wal) => builder.log_gate(wal.gate()),
        None => builder,
    };
    let store = Arc::new(builder.open().await.unwrap());
    if let Some(wal) = wal {
        recover(&store, wal).await.unwrap();
    }
    let space = match store.spaces().find("t") {
        Some(space) => space,
        None => store.spaces().create("t").await.unwrap(),
    };
    (store, space)
}

/// A record of every kind but the removal of a space, with every operation, in two segments; the second one
/// has a torn tail.
async fn write(log: &Path, pages: &Path) {
    let wal = Wal::open(log, options()).unwrap();
    let (store, space) = store(pages, Some(&wal)).await;
    let mut change = MiniTx::new(Some(&wal));
    for no in 0..3 {
        let page = change.add(store.overwrite(PageId::new(space, no)).await.unwrap());
        change.zero(page);
        change.write(page, 100, &[no as u8 + 1; 50]);
    }
    change.shift(0, 100, 120, 50);
    change.commit().unwrap();
    let applied = wal.append_commit(&[7; 66_000]).unwrap();
    wal.append_applied(applied);
    wal.flush(wal.end()).await.unwrap();
    let mut change = MiniTx::on(Some(&wal), store.get_mut(PageId::new(space, 1)).await.unwrap());
    change.write(0, 0, b"last");
    change.free(PageId::new(space, 2));
    change.commit().unwrap();
    wal.append_commit(COMMIT).unwrap();
    wal.flush(wal.end()).await.unwrap();
    let (last, end) = (wal.segment_starts().pop().unwrap(), wal.end().0);
    drop((store, wal));
    let path = log.join(format!("{last:016x}.log"));
    // Behind the file's header, what precedes the records, and the records.
    let records_end = (32 + 28 + end - last) as usize;
    let torn = [&std::fs::read(&path).unwrap()[..records_end], &[40, 0, 0, 0, 1, 2, 3]].concat();
    std::fs::write(path, torn).unwrap();
}

#[tokio::test]
#[ignore = "writes the fixtures of a new version"]
async fn writes_the_fixtures() {
    let to = std::env::var("PAGETIER_WRITE_FIXTURES").expect("PAGETIER_WRITE_FIXTURES: a new folder");
    let (to, dir) = (fixture(&to), tempfile::tempdir().unwrap());
    fs::create_dir(&to).expect("fixtures that exist stay as they are");
    for (place, name) in STORES {
        let at = dir.path().join(name);
        place.write(&at).await;
        fs::write(to.join(format!("{name}.packed")), pack(&at)).unwrap();
    }
}

fn fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version)
}

/// With the torn tail, which [`pagetier_wal::copy_log`] leaves out.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if file.path().extension().is_some_and(|kind| kind == "log") {
            std::fs::write(to.join(file.file_name()), std::fs::read(file.path()).unwrap()).unwrap();
        }
    }
}

/// The pages are new, as those of a log that is redone from its first record on.
async fn check(log: &Path, pages: &Path) {
    let wal = Wal::open(log, options()).unwrap();
    assert!(wal.is_whole() && wal.segment_starts().len() == 2);
    let (store, space) = store(pages, None).await;
    let recovered = recover(&store, &wal).await.unwrap();
    assert_eq!((recovered.records, recovered.freed), (2, 1));
    let commits: Vec<_> = recovered.commits.into_iter().collect();
    assert_eq!(commits, [(wal.end(), COMMIT.to_vec())]);
    let page = async |no| store.get(PageId::new(space, no)).await;
    let moved = page(0).await.unwrap();
    assert!(moved[..100] == [0; 100] && moved[100..170] == [1; 70] && moved[170..] == [0; 4096 - 32 - 170]);
    let changed = page(1).await.unwrap();
    assert!(changed[..4] == *b"last" && changed[100..150] == [2; 50]);
    assert!(matches!(page(2).await, Err(Error::NoSuchPage { .. })));
    drop((moved, changed));
    // It continues.
    wal.append_applied(commits[0].0);
    wal.flush(wal.end()).await.unwrap();
    let end = wal.end();
    drop((store, wal));
    assert_eq!(Wal::open(log, options()).unwrap().end(), end);
}

#[tokio::test]
async fn logs_of_every_version_are_read() {
    for version in ["v1", "v2"] {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture(version), &dir.path().join("log"));
        check(&dir.path().join("log"), &dir.path().join("pages")).await;
    }
}

#[tokio::test]
async fn the_log_of_this_version_is_as_the_document_says() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    write(&log, &dir.path().join("pages")).await;
    let first = std::fs::read(log.join("0000000000000040.log")).unwrap();
    let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().unwrap());
    assert_eq!((&first[..8], word(16)), (&b"PTLOG\0\0\x02"[..], 64));
    // The generation of the store's first open, and that there was none before.
    assert_eq!((&first[32..40], word(40) >> 32, word(48)), (&b"PTGEN\0\0\x01"[..], 1, 0));
    let length = u64::from(u32::from_le_bytes(first[60..64].try_into().unwrap()));
    assert_eq!((word(68), first[76], first[77]), (64 + length, 1 | 0x80, 3), "LSN, kind, pages");
    std::fs::remove_dir_all(dir.path().join("pages")).unwrap();
    check(&log, &dir.path().join("pages")).await;
}

#[tokio::test]
async fn a_whole_log_without_the_spaces_of_its_records_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    write(&log, &dir.path().join("pages")).await;
    let wal = Wal::open(&log, options()).unwrap();
    let builder = PageStore::builder().directory(dir.path().join("blank")).ssd_bytes(0).pool_bytes(4 << 20);
    let refused = LoggedStore::on(builder, wal).await;
    assert!(matches!(refused, Err(RecoverError::Unfit(UnfitLog::NoPages))), "{refused:?}");
    assert!(!dir.path().join("blank").exists());
}

/// Where a store has its log.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// In files, with an archive; the manifest is a file, too.
    Files,
    /// On a device, with an archive; the manifest is on the HDD.
    Devices,
}

/// The pages of space `t`, of which page 3 is free. Another one has a gap of an extent.
const PAGES: u32 = 8;
const FREE: u32 = 3;

/// What page `no` has: what was backed up, what is archived, and what only the log has.
fn value_of(no: u32, at: Moment) -> u8 {
    match at {
        Moment::Log if no < 2 => 3,
        Moment::Log | Moment::Archive if no < 5 => 2,
        _ => 1,
    }
}

#[derive(Clone, Copy)]
enum Moment {
    Backup,
    Archive,
    Log,
}

impl Place {
    fn builder(self, dir: &Path) -> Builder {
        let builder = PageStore::builder().page_size(PageSize::MIN).pool_bytes(4 << 20).io(Backend::Threads);
        let builder = builder.directory(dir.join("pages")).ring_pages(8).low_room(0);
        match self {
            Self::Files => builder.ssd_bytes(64 * 4096),
            Self::Devices => builder
                .manifest(OnHdd { bytes_max: 256 << 10, ..OnHdd::default() })
                .hdd(dir.join("homes"))
                .ssd_bytes(0),
        }
    }

    fn device(dir: &Path) -> SharedDevice {
        let options = OpenOptions { backend: Backend::Threads, ..OpenOptions::default() };
        open_file(&dir.join("log"), &options).unwrap().device
    }

    async fn wal(self, dir: &Path) -> Result<Wal, WalError> {
        let options = WalOptions::new().capacity_bytes(256 << 10).keep(Keep::ForSsdLoss);
        let wal = match self {
            Self::Files => Wal::open_when_free(&dir.join("log"), options).await?,
            Self::Devices => Wal::on_device(Self::device(dir), options).await?,
        };
        wal.archive_to(&dir.join("archive")).map(|()| wal)
    }

    async fn open(self, dir: &Path) -> LoggedStore {
        LoggedStore::on(self.builder(dir), self.wal(dir).await.unwrap()).await.unwrap()
    }

    async fn write(self, dir: &Path) {
        fs::create_dir_all(dir.join("archive")).unwrap();
        if self == Self::Devices {
            fs::File::create(dir.join("log")).unwrap().set_len(2 << 20).unwrap();
        }
        let db = self.open(dir).await;
        let (space, holed) =
            (db.spaces().create("t").await.unwrap(), db.spaces().create("holed").await.unwrap());
        for _ in 0..130 {
            drop(db.allocate(holed).await.unwrap());
        }
        db.free((holed, 64..128)).await.unwrap();
        assert!(db.spaces().shrink(holed).await.unwrap() > 0);
        db.spaces().reserve(space, 65).await.unwrap();
        put(&db, 0..PAGES, 1).await;
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        change.free(PageId::new(space, FREE));
        db.commit(change).await.unwrap();
        db.sync().await.unwrap();
        db.backup(&dir.join("chain"), BackupOptions::new()).await.unwrap();
        put(&db, 0..5, 2).await;
        db.wal().archive_now().await.unwrap();
        put(&db, 0..2, 3).await;
        db.hot_set().export(dir.join("hot")).await.unwrap();
        crash(db).await;
    }
}

/// Changes those of the pages that are not free.
async fn put(db: &LoggedStore, pages: std::ops::Range<u32>, value: u8) {
    let space = db.spaces().find("t").unwrap();
    for no in pages.filter(|no| *no != FREE || value == 1) {
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
        change.write(page, 0, &[value]);
        db.commit(change).await.unwrap();
    }
}

async fn expect(db: &LoggedStore, at: Moment) {
    let space = |name| db.spaces().find(name).unwrap();
    for no in 0..PAGES {
        match db.get(PageId::new(space("t"), no)).await {
            Ok(page) => assert!(no != FREE && page[0] == value_of(no, at), "page {no} has {}", page[0]),
            Err(error) => assert!(no == FREE, "page {no}: {error}"),
        }
    }
    assert_eq!(db.spaces().pages(space("holed")).unwrap(), 130);
    for no in 0..130 {
        let exists = db.get(PageId::new(space("holed"), no)).await.is_ok();
        assert_eq!(exists, !(64..128).contains(&no), "page {no} in the space with a hole");
    }
}

async fn crash(db: LoggedStore) {
    let left = db.store().wait_closed();
    drop(db);
    left.await;
}

const STORES: [(Place, &str); 2] = [(Place::Files, "archived"), (Place::Devices, "on_device")];

fn unpacked(name: &str) -> tempfile::TempDir {
    let dir = pagetier_testing::scratch();
    unpack(&fs::read(fixture("v3").join(format!("{name}.packed"))).unwrap(), dir.path());
    dir
}

/// Opened, read, written and opened again: the store with its log, its backup, and both up to the moment that
/// the archive reaches.
#[tokio::test]
async fn stores_with_logs_of_every_version_open_change_and_are_restored() {
    for (place, name) in STORES {
        let dir = unpacked(name);
        let (chain, archive) = (dir.path().join("chain"), dir.path().join("archive"));
        let restored = async |to: &str, until: Option<Until>, at| {
            let to = dir.path().join(to);
            let (files, log) = (Place::Files.builder(&to), to.join("log"));
            match until {
                None => LoggedStore::restore(files, &log, &chain, 1).await.unwrap(),
                Some(until) => {
                    let end = LoggedStore::restore_until(files, &log, (&chain, 1), &archive, until).await;
                    assert!(end.unwrap().0 > 0);
                }
            }
            fs::create_dir(to.join("archive")).unwrap();
            for _ in 0..2 {
                let db = Place::Files.open(&to).await;
                expect(&db, at).await;
                db.shutdown().await.unwrap();
            }
        };
        assert!(Backups::at(&chain).verify(|_| ()).await.unwrap().iter().all(|file| file.fault.is_none()));
        restored("backup", None, Moment::Backup).await;
        restored("archived", Some(Until::End), Moment::Archive).await;
        let db = place.open(dir.path()).await;
        expect(&db, Moment::Log).await;
        let hot = db.hot_set().import(dir.path().join("hot")).await.unwrap();
        assert!(hot.listed > 60 && hot.loaded == hot.wanted, "{hot:?}");
        put(&db, 0..PAGES, 4).await;
        db.wal().archive_now().await.unwrap();
        db.backup(&chain, BackupOptions::new()).await.unwrap();
        crash(db).await;
        let db = place.open(dir.path()).await;
        let space = db.spaces().find("t").unwrap();
        assert!(
            db.get(PageId::new(space, 0)).await.unwrap()[0] == 4
                && db.wal().archived().unwrap().failure.is_none()
        );
        db.checkpoint().await.unwrap();
        db.shutdown().await.unwrap();
        place.open(dir.path()).await.shutdown().await.unwrap();
    }
}

/// Marks a segment, or a device with a log, as of the version after the present one.
fn mark_log(bytes: &mut [u8]) {
    if bytes.starts_with(b"PTLOGDEV") {
        for header in bytes[..8192].chunks_mut(4096) {
            header[16] = 4;
            let sum = pagetier_page::crc32c(&header[16..48]).to_le_bytes();
            header[8..12].copy_from_slice(&sum);
        }
    } else {
        bytes[7] = 4;
    }
}

/// The first segment of a log in files, or the device that has it.
fn first_of(log: PathBuf) -> PathBuf {
    if log.is_file() { log } else { log.join("0000000000000040.log") }
}

/// After a downgrade a log, its archive and its copy in a backup are refused with both versions named, and
/// nothing changes.
#[tokio::test]
async fn a_log_of_a_later_version_is_refused_by_its_number_and_stays_as_it_is() {
    for (place, name) in STORES {
        let dir = unpacked(name);
        let (chain, archive) = (dir.path().join("chain"), dir.path().join("archive"));
        for part in ["log", "archive", "chain/log-000001"] {
            let path = first_of(dir.path().join(part));
            let (before, mut bytes) = (fs::read(&path).unwrap(), fs::read(&path).unwrap());
            mark_log(&mut bytes);
            fs::write(&path, bytes).unwrap();
            let marked = pack(dir.path());
            let to = dir.path().join("restored");
            let refused = match part {
                "log" => Causes(&place.wal(dir.path()).await.unwrap_err()).to_string(),
                "archive" => Causes(&LoggedStore::restorable(&chain, 1, &archive).unwrap_err()).to_string(),
                _ => {
                    let restored = LoggedStore::restore(place.builder(&to), &to.join("log"), &chain, 1).await;
                    Causes(&restored.unwrap_err()).to_string()
                }
            };
            let says = |words: &[&str]| words.iter().any(|words| refused.contains(words));
            assert!(says(&["version 4", "format 4"]) && says(&["1 to 3"]), "{name}, {part}: {refused}");
            assert!(!to.join("pages").exists() && pack(dir.path()) == marked, "{name}, {part}: {refused}");
            fs::write(&path, before).unwrap();
        }
        let db = place.open(dir.path()).await;
        expect(&db, Moment::Log).await;
        db.shutdown().await.unwrap();
    }
}
