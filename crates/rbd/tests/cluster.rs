//! The device on a real cluster: `crates/rbd/run-tests` starts one. Without `CEPH_CONF` the tests report so
//! and do nothing.
//!
//! A process is its own client here: the tests start this program again where another owner is needed.

use pagetier::{PageId, PageStore};
use pagetier_devio::{Device, DeviceErrorKind, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_rbd::{Cluster, ConnectOptions, ImageName, ImageOptions, RbdDevice, RbdError};
use pagetier_testing::conformance::{Growth, check_device};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 64 << 20;

/// A connection, or `None` after a report where there is no cluster.
async fn cluster() -> Option<Cluster> {
    if std::env::var_os("CEPH_CONF").is_none() {
        pagetier_testing::skipped("Ceph cluster", "run crates/rbd/run-tests");
        return None;
    }
    Some(Cluster::connect(ConnectOptions::default()).await.expect("a cluster"))
}

/// A new image of this name.
async fn image(cluster: &Cluster, name: &str) -> ImageName {
    let name: ImageName = format!("rbd/{name}-{}", std::process::id()).parse().unwrap();
    cluster.create(name.clone(), BYTES).await.unwrap();
    name
}

async fn open(cluster: &Cluster, name: &ImageName) -> Result<RbdDevice, RbdError> {
    cluster.open(name.clone(), ImageOptions::default()).await
}

fn page(byte: u8) -> IoBufs {
    [IoBuf::copy_of(&[byte; 16 << 10])].into_iter().collect()
}

async fn first_byte(device: &dyn Device) -> u8 {
    let completion = device.read(0, page(0), IoClass::Demand).await;
    completion.result.expect("a read");
    completion.bufs[0].as_slice()[0]
}

fn this_year() -> String {
    let date = Command::new("date").args(["-u", "+%Y-"]).output().unwrap().stdout;
    String::from_utf8(date).unwrap().trim().to_owned()
}

/// Another process that opens the image and writes it, twice: at once, and when it is told to go on.
struct Owner {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Owner {
    fn start(name: &ImageName) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["an_owner_of_its_own", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("PAGETIER_RBD_OWNS", name.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        let mut owner = Self { process, says };
        owner.wait_for("owns");
        owner
    }

    fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it ended before it said {word:?}");
        }
        line
    }

    /// Sends the process a signal, by its name.
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn go_on(&mut self) {
        self.process.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The body of [`Owner`].
#[tokio::test]
#[ignore = "runs as another process of these tests"]
async fn an_owner_of_its_own() {
    let Ok(name) = std::env::var("PAGETIER_RBD_OWNS") else { return };
    let cluster = Cluster::connect(ConnectOptions::default()).await.unwrap();
    let device = open(&cluster, &name.parse().unwrap()).await.unwrap();
    device.write(0, page(1), IoClass::Clean).await.result.unwrap();
    println!("owns");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let written = device.write(0, page(2), IoClass::Clean).await.result;
    let flushed = device.flush(IoClass::Clean).await;
    println!("ended {:?} {:?}", written.map_err(|e| e.kind), flushed.map_err(|e| e.kind));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "conforms").await;
    let device: SharedDevice = Arc::new(open(&cluster, &name).await.unwrap());
    check_device(&device, Growth::Grows).await;
    let grown = device.size();
    drop(device);
    cluster.closed().await;
    let options = ImageOptions::default().bytes_max(grown);
    let device = cluster.open(name, options).await.unwrap();
    assert_eq!(device.size(), grown, "growth is the image's");
    let refused = device.grow(grown + 1).unwrap_err();
    assert!(matches!(refused.kind, DeviceErrorKind::NoSpace), "{refused}");
}

#[tokio::test]
async fn dropped_operations_land_and_the_image_closes_after_them() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "dropped").await;
    let device = open(&cluster, &name).await.unwrap();
    for _ in 0..100 {
        drop(device.write(0, page(7), IoClass::Clean));
    }
    drop(device);
    // Waits until this process has closed it.
    let device = open(&cluster, &name).await.unwrap();
    assert_eq!(first_byte(&device).await, 7);
}

#[tokio::test]
async fn what_cannot_be_opened_is_named() {
    let Some(cluster) = cluster().await else { return };
    let missing = open(&cluster, &"rbd/missing".parse().unwrap()).await.unwrap_err();
    assert!(matches!(&missing, RbdError::NotFound(name) if name == "rbd:rbd/missing"), "{missing}");
    let pool = open(&cluster, &"nopool/x".parse().unwrap()).await.unwrap_err();
    assert!(matches!(&pool, RbdError::Pool { pool, .. } if pool == "nopool"), "{pool}");
    let wrong = ConnectOptions::default().configuration("/nonexistent/ceph.conf");
    let wrong = Cluster::connect(wrong).await.unwrap_err();
    assert!(matches!(wrong, RbdError::Configuration(_)), "{wrong}");
    let setting = ConnectOptions::default().setting("rbd_cash", "false");
    let setting = Cluster::connect(setting).await.unwrap_err();
    assert!(matches!(setting, RbdError::Configuration(_)), "{setting}");
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_it() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "second").await;
    let owner = Owner::start(&name);
    let refused = open(&cluster, &name).await.unwrap_err();
    let RbdError::AlreadyOpen { owner: said, .. } = &refused else { panic!("{refused}") };
    assert!(said.contains(&format!("process {} on ", owner.process.id())), "{refused}");
    // The same process is no exception.
    drop(owner);
    let other = image(&cluster, "second-here").await;
    let device = open(&cluster, &other).await.unwrap();
    let again = Cluster::connect(ConnectOptions::default()).await.unwrap();
    let refused = open(&again, &other).await.unwrap_err();
    assert!(matches!(refused, RbdError::AlreadyOpen { .. }), "{refused}");
    drop(device);
    cluster.closed().await;
    open(&again, &other).await.expect("given back");
}

#[tokio::test]
async fn an_owner_that_is_stopped_and_resumes_is_fenced_and_none_of_its_writes_lands() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "fenced").await;
    let mut owner = Owner::start(&name);
    owner.signal("-STOP");
    let device = cluster.open(name, ImageOptions::default().take_over(true)).await.unwrap();
    assert_eq!(first_byte(&device).await, 1, "what the owner wrote before");
    owner.go_on();
    owner.signal("-CONT");
    let ended = owner.wait_for("ended");
    let banned = Command::new("ceph").args(["osd", "blocklist", "ls"]).output().unwrap().stdout;
    let next_year = String::from_utf8(banned).unwrap();
    assert!(
        next_year.lines().any(|line| !line.contains(&this_year())),
        "no ban outlasts the hour: {next_year}"
    );
    assert_eq!(ended.trim(), "ended Err(Fenced) Err(Fenced)");
    assert_eq!(first_byte(&device).await, 1, "a fenced owner's write landed");
    device.write(0, page(3), IoClass::Clean).await.result.unwrap();
    assert_eq!(first_byte(&device).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_has_its_homes_on_an_image() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "store").await;
    let folder = tempfile::tempdir().unwrap();
    let open = async |take_over| {
        let homes = cluster.open(name.clone(), ImageOptions::default().take_over(take_over)).await.unwrap();
        let builder = PageStore::builder().directory(folder.path().join("store")).hdd(Arc::new(homes));
        builder.ssd(folder.path().join("ssd")).ssd_bytes(8 << 20).pool_bytes(4 << 20).open().await.unwrap()
    };
    let store = open(false).await;
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..2_000_u32 {
        store.allocate(space).await.unwrap()[..4].copy_from_slice(&no.to_le_bytes());
    }
    store.sync().await.unwrap();
    for no in 0..500_u32 {
        store.get_mut(PageId::new(space, no)).await.unwrap()[4..8].copy_from_slice(b"next");
    }
    store.sync().await.unwrap();
    // Without a close.
    drop(store);
    let store = open(false).await;
    for no in 0..2_000_u32 {
        let page = store.get(PageId::new(space, no)).await.unwrap();
        assert_eq!(page[..4], no.to_le_bytes());
        assert_eq!(&page[4..8] == b"next", no < 500, "page {no}");
    }
    assert!(store.stats().hdd_device.totals_without(&[]).write.ops > 0);
    store.close().await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), cluster.closed()).await.expect("closed");
}

fn rbd(args: &[&str]) {
    let ran = Command::new("rbd").args(args).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// The name of an image, or of its snapshot, as Ceph's tools take it.
fn ceph_name(name: &ImageName) -> String {
    name.to_string()["rbd:".len()..].to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_read_while_its_image_is_in_use() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "read").await;
    let reading =
        async |name: &ImageName| cluster.open(name.clone(), ImageOptions::default().read_only(true)).await;
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let on = |dir: &tempfile::TempDir| {
        PageStore::builder()
            .directory(dir.path())
            .manifest(pagetier::options::OnHdd::default())
            .pool_bytes(4 << 20)
    };
    let homes = open(&cluster, &name).await.unwrap();
    let store = on(&dir).hdd(Arc::new(homes)).ssd_bytes(0).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..100_u32 {
        store.allocate(space).await.unwrap()[..4].copy_from_slice(&no.to_le_bytes());
    }
    store.sync().await.unwrap();
    let snapshot: ImageName = format!("{name}@now").parse().unwrap();
    rbd(&["snap", "create", "--no-progress", &ceph_name(&snapshot)]);
    store.get_mut(PageId::new(space, 7)).await.unwrap()[..4].fill(0xFF);
    store.sync().await.unwrap();
    let in_use = reading(&name).await.unwrap_err();
    assert!(matches!(in_use, RbdError::InUse { .. }), "{in_use}");
    let as_owner = open(&cluster, &snapshot).await.unwrap_err();
    assert!(matches!(as_owner, RbdError::Snapshot(_)), "{as_owner}");
    let old = reading(&snapshot).await.unwrap();
    assert!(old.write(0, page(1), IoClass::Clean).await.result.is_err());
    let old = on(&elsewhere).hdd(Arc::new(old)).open_read_only().await.unwrap();
    for no in 0..100_u32 {
        assert_eq!(old.get(PageId::new(space, no)).await.unwrap()[..4], no.to_le_bytes());
    }
    old.close().await.unwrap();
    store.close().await.unwrap();
    cluster.closed().await;
    let now = reading(&name).await.unwrap();
    let now = on(&elsewhere).hdd(Arc::new(now)).open_read_only().await.unwrap();
    assert_eq!(now.get(PageId::new(space, 7)).await.unwrap()[..4], [0xFF; 4]);
    // Who only reads keeps no owner out.
    drop(open(&cluster, &name).await.unwrap());
}

#[tokio::test]
async fn an_opening_that_was_dropped_gives_its_lock_back_before_closed_returns() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "dropped-opening").await;
    let other = Cluster::connect(ConnectOptions::default()).await.unwrap();
    for _ in 0..5 {
        let opening = tokio::time::timeout(Duration::from_millis(1), open(&cluster, &name));
        drop(opening.await);
        cluster.closed().await;
        drop(open(&other, &name).await.expect("given back"));
        other.closed().await;
    }
}

#[tokio::test]
async fn an_image_that_was_shrunk_says_so() {
    let Some(cluster) = cluster().await else { return };
    let name = image(&cluster, "shrunk").await;
    let device = open(&cluster, &name).await.unwrap();
    rbd(&["resize", "--no-progress", "--allow-shrink", "--size", "8M", &ceph_name(&name)]);
    let completion = device.read(BYTES / 2, page(0), IoClass::Demand).await;
    let error = completion.result.expect_err("beyond the end").to_string();
    assert!(error.contains("become shorter"), "{error}");
}
