//! A store on a runtime without I/O reports no panic. Counts all that reach the program's hook, including
//! caught ones. The query for the reactor, the only one, is not reported, and in a program built with `panic
//! = "abort"` not made (`crates/devio/src/kernel/uring/reap.rs`).

use pagetier::{PageId, PageStore, device::Backend};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Opens a store, uses it, closes it, and opens it again.
async fn used(directory: &Path, io: Backend) {
    let open =
        || PageStore::builder().directory(directory).pool_bytes(1 << 20).ssd_bytes(2 << 20).io(io).open();
    let store = open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..200 {
        store.allocate(space).await.unwrap()[0] = no as u8;
    }
    store.close().await.unwrap();
    let store = open().await.unwrap();
    for no in 0..200 {
        assert_eq!(store.get(PageId::new(space, no)).await.unwrap()[0], no as u8);
    }
}

#[test]
fn opening_on_a_runtime_without_io_reports_no_panic() {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let raised = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| raised.lock().unwrap().push(info.to_string())));
    for (io, flavor) in [(Backend::Auto, 1), (Backend::Auto, 2), (Backend::Threads, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let mut builder = match flavor {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.enable_time().build().unwrap();
        let done = runtime.block_on(async move {
            let work = async move { used(directory.path(), io).await };
            tokio::spawn(work).await
        });
        let raised = std::mem::take(&mut *panics.lock().unwrap());
        assert!(done.is_ok() && raised.is_empty(), "{raised:?}");
    }
}
