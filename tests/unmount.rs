//! A file system can be unmounted as soon as the store on it is closed.

use crate::mounted::{KINDS, SmallDisk, run, skip};
use pagetier::{PageSize, PageStore, device::Backend};
use std::process::Command;

#[tokio::test]
async fn a_file_system_is_unmounted_right_after_a_close() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let disk = match SmallDisk::mount(folder.path(), kind) {
            Ok(disk) => disk,
            Err(why) => return skip(&why),
        };
        let directory = disk.mount.join("store");
        for round in 0..8 {
            let io = if round % 2 == 0 { Backend::Auto } else { Backend::Threads };
            let builder = PageStore::builder().directory(&directory).page_size(PageSize::MIN).io(io);
            let store = builder.pool_bytes(1 << 20).ssd_bytes(2 << 20).open().await.unwrap();
            let space = match store.spaces().find("t") {
                Some(space) => space,
                None => store.spaces().create("t").await.unwrap(),
            };
            for _ in 0..100 {
                store.allocate(space).await.unwrap()[0] = 1;
            }
            store.close().await.unwrap();
            // Not even a turn of the runtime later.
            let unmounted = run(Command::new("umount").arg(&disk.mount));
            assert_eq!(unmounted, Ok(()), "{kind}, round {round}, {io:?}");
            let image = folder.path().join("disk.img");
            run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&disk.mount)).unwrap();
        }
    }
}
