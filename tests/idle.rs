//! Nothing wakes in an open store without requests. Runs alone in its process, because it observes all
//! threads of the process.

use pagetier::PageStore;
use std::time::Duration;

/// How often the threads may go to sleep meanwhile, for the test's own waiting among others: a task that
/// looks every 50 ms does it more often.
const SLEEPS_MAX: u64 = 20;
const IDLE: Duration = Duration::from_secs(1);

/// The number of times that a thread of this process has gone to sleep. Other load on the machine does not
/// add to it.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    // A thread may end meanwhile.
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let count = |status: String| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
    };
    statuses.filter_map(count).sum()
}

/// Work that was begun goes on for as long as the machine takes; then the store rests.
async fn comes_to_rest(what: &str) {
    let mut last = 0;
    for _ in 0..30 {
        let before = sleeps();
        tokio::time::sleep(IDLE).await;
        last = sleeps().saturating_sub(before);
        if last <= SLEEPS_MAX {
            return;
        }
    }
    panic!("{what}: its threads wake {last} times in {IDLE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_wakes_in_an_idle_store() {
    // Use the file system of the build, which unlike many a /tmp supports direct I/O.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let builder = || PageStore::builder().directory(folder.path()).pool_bytes(4 << 20).ssd_bytes(16 << 20);
    let store = builder().open().await.expect("opened");
    println!("served by {}", store.stats().io_backend);
    comes_to_rest("new").await;

    // More pages than the pool holds, so that every task of the store has worked.
    let space = store.spaces().create("pages").await.expect("created");
    let mut pages = Vec::new();
    for no in 0..1024_u32 {
        let mut page = store.allocate(space).await.expect("allocated");
        page[..4].copy_from_slice(&no.to_le_bytes());
        pages.push(page.id());
    }
    store.sync().await.expect("synced");
    for id in &pages {
        drop(store.get(*id).await.expect("read"));
    }
    store.sync().await.expect("synced");
    comes_to_rest("after work").await;

    // Dirty pages stay in memory until there is a reason to write them.
    for id in pages.iter().rev().take(8) {
        store.get_mut(*id).await.expect("read")[4] = 1;
    }
    comes_to_rest("with dirty pages").await;
    store.close().await.expect("closed");
}
