//! Stores for the tests, and the tool as a process.

use pagetier::{Lsn, PageId, PageSize, PageStore, SpaceId, device::Backend};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) const PAGES: u32 = 300;
pub(crate) const PAGE: usize = 4096;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) async fn open(dir: &Path) -> PageStore {
    let builder = PageStore::builder().directory(dir).page_size(PageSize::MIN).io(Backend::Threads);
    builder.pool_bytes(1 << 20).ssd_bytes(3 << 20).open().await.unwrap()
}

pub(crate) async fn write(store: &PageStore, space: SpaceId, version: u32) {
    for no in 0..PAGES {
        let mut page = if no < store.spaces().pages(space).unwrap() {
            store.get_mut(PageId::new(space, no)).await.unwrap()
        } else {
            store.allocate(space).await.unwrap()
        };
        page[..4].copy_from_slice(&version.to_le_bytes());
        page.set_lsn(Lsn(u64::from(version)));
    }
    store.sync().await.unwrap();
}

/// Makes a store whose pages are in version 2, then closes it, or drops it as by a crash.
pub(crate) fn made(dir: &Path, close: bool) {
    runtime().block_on(async {
        let store = open(dir).await;
        let space = store.spaces().create("t").await.unwrap();
        write(&store, space, 1).await;
        write(&store, space, 2).await;
        if close {
            store.close().await.unwrap();
        }
    });
}

pub(crate) fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagetier")).args(args).output().unwrap()
}

/// Everything that a command printed.
pub(crate) fn said(out: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&out.stdout) + &text(&out.stderr)
}

/// Runs a command with `--json`; returns its exit code and its output.
pub(crate) fn json(args: &[&str]) -> (i32, Value) {
    printed(&run(&[args, &["--json"]].concat()))
}

/// The exit code and the one object that a command has printed.
pub(crate) fn printed(out: &Output) -> (i32, Value) {
    let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(out)));
    (out.status.code().unwrap(), value)
}

pub(crate) fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<_> = files.map(|f| (f.display().to_string(), std::fs::read(&f).unwrap())).collect();
    all.sort();
    all
}

/// Damages every image of a page of space 1 in a file of the store, from an offset on; returns their number.
pub(crate) fn damage(file: &Path, from: u64, page: u32) -> usize {
    overwrite(file, from, page, (2000, b"rotten"))
}

/// Writes bytes into every image of a page of space 1, at an offset in the page; returns their number.
pub(crate) fn overwrite(file: &Path, from: u64, page: u32, (offset, with): (u64, &[u8])) -> usize {
    let bytes = std::fs::read(file).unwrap();
    let mut images = 0;
    let out = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    for at in (from as usize..bytes.len().saturating_sub(PAGE - 1)).step_by(PAGE) {
        let word = |o: usize| u32::from_le_bytes(bytes[at + o..at + o + 4].try_into().unwrap());
        // A page image: format 2, the space, the number.
        if word(4) & 0xffff == 2 && word(8) == 1 && word(12) == page {
            out.write_all_at(with, at as u64 + offset).unwrap();
            images += 1;
        }
    }
    images
}

/// Opens the store and reads every page: its version, or why it cannot be read.
pub(crate) fn contents_of_pages(dir: &Path) -> Vec<(u32, Result<u32, String>)> {
    runtime().block_on(async {
        let store = PageStore::builder()
            .directory(dir)
            .create(pagetier::options::Create::Never)
            .pool_bytes(32 << 20)
            .open()
            .await
            .unwrap();
        let space = store.spaces().find("t").unwrap();
        let mut all = Vec::new();
        for no in 0..PAGES {
            let page = store.get(PageId::new(space, no)).await;
            let version = page.map(|page| u32::from_le_bytes(page[..4].try_into().unwrap()));
            all.push((no, version.map_err(|error| error.to_string())));
        }
        store.close().await.unwrap();
        all
    })
}

/// Copies a store that no process has open.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Checks that every page of a store is sound and in version 2.
pub(crate) fn has_all_pages(store: &Path, what: &str) {
    assert_eq!(json(&["verify", store.to_str().unwrap()]).0, 0, "{what}");
    for (no, read) in contents_of_pages(store) {
        assert_eq!(read, Ok(2), "{what}: page {no}");
    }
}
