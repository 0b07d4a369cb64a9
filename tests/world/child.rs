//! Runs parts of tests in processes of their own, which are this program with another environment; and the
//! store that they all use.

use pagetier::{Error, PageId, PageSize, PageStore, SpaceId, device::Backend};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CASE: &str = "PAGETIER_WORLD_CASE";
const DIRECTORY: &str = "PAGETIER_WORLD_DIRECTORY";

/// How long a process may take.
const CHILD_MAX: Duration = Duration::from_secs(120);

/// The pages that [`fill`] writes.
pub(crate) const PAGES: u32 = 120;

/// What a process did.
#[derive(Debug)]
pub(crate) struct Ended {
    /// It returned without a panic.
    pub(crate) ok: bool,
    /// What it printed, on both streams.
    pub(crate) text: String,
}

/// The command for the test `test` of this program with `case`.
pub(crate) fn command(test: &str, case: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CASE, case).env(DIRECTORY, directory).stdin(Stdio::null());
    command
}

/// Runs the test `test` of this program with `case`, to its end.
pub(crate) fn run(test: &str, case: &str, directory: &Path) -> Ended {
    wait(start(command(test, case, directory)))
}

pub(crate) fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn wait(mut child: Child) -> Ended {
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = drain(child.stdout.take().map(|out| Box::new(out) as _));
    let err = drain(child.stderr.take().map(|err| Box::new(err) as _));
    let until = Instant::now() + CHILD_MAX;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > until => {
                child.kill().unwrap();
                let _ = child.wait();
                panic!("a process hangs: {}", out.join().unwrap());
            }
            None => pause(Duration::from_millis(10)),
        }
    };
    let text = out.join().unwrap() + &err.join().unwrap();
    Ended { ok: status.success(), text }
}

/// The case and directory of this process; `None` in the process of the tests.
pub(crate) fn case() -> Option<(String, PathBuf)> {
    Some((std::env::var(CASE).ok()?, std::env::var_os(DIRECTORY)?.into()))
}

pub(crate) fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn builder(directory: &Path, io: Backend) -> pagetier::Builder {
    PageStore::builder()
        .directory(directory)
        .page_size(PageSize::MIN)
        .pool_bytes(1 << 20)
        .ssd_bytes(2 << 20)
        .io(io)
}

fn word(no: u32, version: u8) -> [u8; 8] {
    (u64::from(no) << 8 | u64::from(version)).to_le_bytes()
}

/// Writes version `version` of every page, and syncs.
pub(crate) async fn fill(store: &PageStore, version: u8) -> Result<SpaceId, Error> {
    let space = match store.spaces().find("t") {
        Some(space) => space,
        None => store.spaces().create("t").await?,
    };
    for no in 0..PAGES {
        let mut page = store.get_or_create(PageId::new(space, no)).await?;
        page[..8].copy_from_slice(&word(no, version));
    }
    store.sync().await?;
    Ok(space)
}

/// Asserts that every page has version `version` or the next one.
pub(crate) async fn check(store: &PageStore, version: u8) {
    let space = store.spaces().find("t").unwrap();
    for no in 0..PAGES {
        let page = store.get(PageId::new(space, no)).await.unwrap();
        let found: [u8; 8] = page[..8].try_into().unwrap();
        assert!(found == word(no, version) || found == word(no, version + 1), "page {no}: {found:?}");
    }
}

/// Opens the store in `directory`, asserts what [`check`] does, and closes it.
pub(crate) fn nothing_is_lost(directory: &Path, version: u8) {
    one_thread().block_on(async {
        let store = builder(directory, Backend::Auto).open().await.unwrap();
        check(&store, version).await;
        store.close().await.unwrap();
    });
}

/// Waits, where no runtime runs.
#[expect(clippy::disallowed_methods, reason = "no task of a runtime waits here")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Says that a row is skipped.
pub(crate) fn skip(row: &str, why: &str) {
    pagetier_testing::skipped("right to limit processes", &format!("{row}: {why}"));
}
