//! An engine that is killed while its disk is full, on real file systems: it recovers and reads without a
//! free byte, and goes on once there is room.
//!
//! Needs root and loop devices; without them the test reports so on standard error and does nothing.

use crate::mounted::{SmallDisk, skip};
use pagetier_kv::{Kv, Options};
use std::path::Path;

fn options(directory: &Path) -> Options {
    Options::new(directory).page_bytes(4096).pool_bytes(4 << 20).ssd_bytes(8 << 20).log_bytes(2 << 20)
}

#[tokio::test]
async fn a_killed_engine_recovers_on_a_full_disk() {
    for kind in ["ext4", "xfs"] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        match SmallDisk::mount(folder.path(), kind) {
            Ok(disk) => recover_without_room(&disk).await,
            Err(why) => skip(&why),
        }
    }
}

async fn recover_without_room(disk: &SmallDisk) {
    let options = options(&disk.mount.join("kv"));
    let kv = Kv::open(&options).await.unwrap();
    for no in 0..2_000_u32 {
        kv.put_unsynced(&no.to_be_bytes(), &[1; 100]).await.unwrap();
    }
    kv.sync().await.unwrap();
    disk.fill_up();
    // Without a close, as after a kill: the log's tail has to be recovered.
    drop(kv);
    let kv = Kv::open(&options).await.unwrap();
    for no in 0..2_000_u32 {
        assert_eq!(kv.get(&no.to_be_bytes()).await.unwrap().as_deref(), Some(&[1; 100][..]), "{no}");
    }
    disk.make_room();
    kv.put(b"more", b"room").await.unwrap();
    assert!(kv.check(|_, _| ()).await.unwrap().is_sound());
    kv.shutdown().await.unwrap();
}
