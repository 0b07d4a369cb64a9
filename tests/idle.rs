//! An open store without requests takes no CPU time. Runs alone in its process, because it measures the
//! process's clock.

use pagetier::PageStore;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The allowance for the test's own waiting and occasional page faults.
const CPU_MAX: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(2);

/// User and system time of all threads of this process.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

async fn stays_idle(what: &str) {
    let before = cpu_time();
    tokio::time::sleep(IDLE).await;
    let taken = cpu_time() - before;
    assert!(taken < CPU_MAX, "{what}: {taken:?} of CPU time in {IDLE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_store_takes_no_cpu_time() {
    // Use the file system of the build, which unlike many a /tmp supports direct I/O.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let builder = || PageStore::builder().directory(folder.path()).pool_bytes(4 << 20).ssd_bytes(16 << 20);
    let store = builder().open().await.expect("opened");
    println!("served by {}", store.io_backend());
    stays_idle("new").await;

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
    // Wait for the background work that follows a burst.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stays_idle("after work").await;

    // Dirty pages stay in memory until there is a reason to write them.
    for id in pages.iter().rev().take(8) {
        store.get_mut(*id).await.expect("read")[4] = 1;
    }
    stays_idle("with dirty pages").await;
    store.close().await.expect("closed");
}
