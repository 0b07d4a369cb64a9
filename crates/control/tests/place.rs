//! The socket's file: who may use it, what may be in its place, and when it goes.

use crate::world::World;
use pagetier_control::{Client, ListenError, Request, SOCKET, listen};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_its_owners_alone_and_goes_with_the_store() {
    let world = World::new().await;
    let path = world.dir().join(SOCKET);
    assert!(Client::connect(world.dir()).await.unwrap().is_none());
    let control = world.listen().await;
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(world.client().await.pid(), std::process::id());
    // A second listener would take the first one's clients.
    let second = listen(&world.store, world.dir()).await;
    assert!(matches!(second, Err(ListenError::InUse { pid, .. }) if pid == std::process::id()), "{second:?}");
    world.done(Request::Stat {}).await;
    control.end().await;
    assert!(!path.exists() && Client::connect(world.dir()).await.unwrap().is_none());
    let control = world.listen().await;
    drop(control);
    assert!(!path.exists());
    assert!(Client::connect(world.dir().join("none")).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_file_stays_and_a_dead_process_socket_is_replaced() {
    let world = World::new().await;
    let path = world.dir().join(SOCKET);
    fs::write(&path, "letters").unwrap();
    let refused = listen(&world.store, world.dir()).await.unwrap_err();
    assert!(matches!(refused, ListenError::Foreign { .. }), "{refused:?}");
    assert!(refused.to_string().contains("control"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"letters");
    fs::remove_file(&path).unwrap();
    // A link to a socket that a process has left elsewhere: neither is touched.
    let elsewhere = world.dir().join("elsewhere");
    drop(UnixListener::bind(&elsewhere).unwrap());
    symlink(&elsewhere, &path).unwrap();
    assert!(matches!(listen(&world.store, world.dir()).await, Err(ListenError::Foreign { .. })));
    assert!(elsewhere.exists());
    fs::remove_file(&path).unwrap();
    // Left as a killed process leaves it: the file is there, and nothing listens.
    drop(UnixListener::bind(&path).unwrap());
    assert!(Client::connect(world.dir()).await.unwrap().is_none());
    let control = world.listen().await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    world.done(Request::Stat {}).await;
    // What another process has put there since is not removed.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "letters").unwrap();
    drop(control);
    assert_eq!(fs::read(&path).unwrap(), b"letters");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_path_and_a_renamed_directory_do_not_matter() {
    let world = World::new().await;
    let mut deep = world.dir().to_owned();
    for _ in 0..4 {
        deep.push("a".repeat(100));
    }
    fs::create_dir_all(&deep).unwrap();
    let control = listen(&world.store, &deep).await.unwrap();
    let moved = world.dir().join("moved");
    fs::rename(&deep, &moved).unwrap();
    let mut client = Client::connect(&moved).await.unwrap().unwrap();
    assert!(client.ask(&Request::Stat {}, |_| ()).await.unwrap().complete);
    control.end().await;
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
    // Not a directory, and none at all.
    fs::write(world.dir().join("file"), "").unwrap();
    for wrong in ["file", "none"] {
        let refused = listen(&world.store, world.dir().join(wrong)).await;
        assert!(matches!(refused, Err(ListenError::Io { .. })), "{refused:?}");
    }
}

/// The store outlives neither its owner nor a request: the socket holds it weakly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_does_not_keep_the_store_open() {
    let World { dir, store, .. } = World::new().await;
    let control = listen(&store, dir.path()).await.unwrap();
    let mut client = Client::connect(dir.path()).await.unwrap().unwrap();
    assert!(client.ask(&Request::Stat {}, |_| ()).await.unwrap().complete);
    let closed = store.wait_closed();
    drop(store);
    closed.await;
    let why = client.ask(&Request::Stat {}, |_| ()).await.unwrap_err();
    assert!(why.to_string().contains("closed"), "{why}");
    drop(control);
}
