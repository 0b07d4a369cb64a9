//! Compile-time check: every public future can be awaited in a spawned task.

use pagetier::log::LogMark;
use pagetier::{
    DrainOptions, Loss, Lsn, PageId, PageSize, PageStore, SpaceId, SsdMode, SsdPolicy,
    backup::{BackupOptions, Backups},
    calibrate,
    device::SharedDevice,
    scrub::Scrub,
};
use std::sync::Arc;
use std::time::Duration;

fn is_send<T: Send>(_: T) {}

#[allow(dead_code, reason = "it compiles, which is all that it is for")]
fn every_public_future_is_send(
    store: &'static PageStore,
    shared: &'static Arc<PageStore>,
    own: PageStore,
    scrub: Scrub,
    device: &'static SharedDevice,
) {
    let (space, page) = (SpaceId(1), PageId::new(SpaceId(1), 0));
    is_send(PageStore::builder().open());
    is_send(PageStore::builder().open_read_only());
    is_send(PageStore::builder().inspect());
    is_send(PageStore::builder().restore("chain", None, |_| ()));
    is_send(PageStore::builder().restore_with_log("chain", None, None, |_| ()));
    let backups: &'static Backups = Box::leak(Box::new(Backups::at("chain")));
    is_send(backups.list());
    is_send(backups.verify(|_| ()));
    is_send(backups.purge(1, |_| ()));
    is_send(backups.pages(&[page], None));
    is_send(backups.extract("t", None, None, "file", |_| ()));
    is_send(calibrate(device, 0, device, 0, PageSize::DEFAULT, Duration::ZERO));
    is_send(store.spaces().create("t"));
    is_send(store.spaces().drop(space));
    is_send(store.allocate(space));
    is_send(store.get(page));
    is_send(store.get_many(&[page]));
    is_send(store.get_mut(page));
    is_send(shared.scan(space, 0..1).into_owned(shared).into_stream());
    is_send(store.scan(space, 0..1).into_stream());
    is_send(store.overwrite(page));
    is_send(store.get_or_create(page));
    is_send(store.discard(page));
    is_send(store.free(page));
    is_send(store.free(&[page]));
    is_send(store.free_noting(space, &[], |_| ()));
    is_send(store.free((space, 0..1)));
    is_send(store.spaces().shrink(space));
    is_send(store.spaces().reserve(space, 1));
    is_send(store.spaces().sync(space));
    is_send(store.sync());
    is_send(store.flush());
    is_send(store.flush_to(Lsn(1)));
    is_send(store.redo_from(Lsn(1), Loss::Ssd));
    let mark = LogMark { id: 1, generation: 1, end: Lsn(1), from: Lsn(1), restored: false };
    is_send(store.record_log(mark));
    is_send(store.spaces().create_as(space, "u"));
    is_send(store.what_if().stop());
    is_send(store.backup("chain", BackupOptions::new()));
    is_send(store.hot_set().export("hot"));
    is_send(store.hot_set().import("hot"));
    is_send(store.hot_set().keep(Duration::ZERO));
    is_send(store.export_stats("stats", Duration::ZERO));
    is_send(store.resize_pool(0));
    is_send(store.ssd().replace("ssd", 256 << 20));
    is_send(store.policies().set_ssd(SsdPolicy::default()));
    is_send(store.ssd().acknowledge_loss());
    is_send(store.shutdown());
    is_send(store.wait_closed());
    is_send(async move {
        let mut scan = store.scan(space, 0..1);
        let _ = scan.next().await;
    });
    is_send(store.trace().stop());
    is_send(store.ssd().set_mode(SsdMode::Off));
    is_send(store.ssd().drain(DrainOptions::new()));
    is_send(store.ssd().readmit());
    is_send(store.ssd().abandon());
    is_send(async move { store.ssd().events().next().await });
    is_send(scrub.finished());
    is_send(own.close());
}

#[tokio::test]
async fn a_store_opens_and_closes_in_a_spawned_task() {
    let directory = pagetier_testing::scratch();
    let path = directory.path().to_owned();
    let task = tokio::spawn(async move {
        let store = PageStore::builder().directory(path).ssd_bytes(4 << 20).open().await?;
        Ok::<_, pagetier::OpenError>(store.close().await.is_ok())
    });
    assert!(task.await.unwrap().unwrap());
}
