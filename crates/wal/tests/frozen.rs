//! Later versions must read the logs of every frozen version of the format.
//!
//! `tests/fixtures/v1` holds a log as version 1 wrote it. To write the fixture of a further version, set
//! `PAGETIER_WRITE_FIXTURES` to a new folder beside it and run `cargo test -p pagetier-wal --test all --
//! --ignored frozen::writes_the_fixture`. An existing fixture is never overwritten.

use pagetier::{Error, PageId, PageSize, PageStore, SpaceId};
use pagetier_wal::{LoggedStore, MiniTx, RecoverError, UnfitLog, Wal, WalError, WalOptions, recover};
use std::path::Path;
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
#[ignore = "writes the fixture of a new version"]
async fn writes_the_fixture() {
    let to = std::env::var("PAGETIER_WRITE_FIXTURES").expect("PAGETIER_WRITE_FIXTURES: a new folder");
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("log"), &dir.path().join("pages")).await;
    copy(&dir.path().join("log"), Path::new(&to));
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
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version);
        copy(&fixture, &dir.path().join("log"));
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
async fn a_log_of_another_version_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), options()).unwrap();
    wal.flush(wal.append_commit(b"any").unwrap()).await.unwrap();
    drop(wal);
    let path = dir.path().join("0000000000000040.log");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[7] = 9;
    std::fs::write(&path, bytes).unwrap();
    let WalError::Io { source, .. } = Wal::open(dir.path(), options()).unwrap_err() else {
        panic!("another error")
    };
    assert_eq!(source.to_string(), "its format has version 9, and this program reads versions 1 to 3");
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
