//! Paths: what happens to the name of a store's directory while the store is open, and names that are unusual
//! or wrong. A store writes only to the directory that it opened, and takes no existing file for a blank one.

use crate::mounted::{SmallDisk, skip};
use pagetier::options::Place;
use pagetier::{Builder, Error, OpenError, PageId, PageStore, SsdMode};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

/// Held by tests that change the working directory, and by those with relative paths.
static WORKING_DIRECTORY: Mutex<()> = Mutex::const_new(());

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn builder(directory: &Path) -> Builder {
    PageStore::builder().directory(directory).pool_bytes(2 << 20).ssd_bytes(4 << 20)
}

async fn open(directory: &Path) -> PageStore {
    builder(directory).open().await.unwrap()
}

/// Uses everything that saves the manifest or opens a file of the directory.
async fn work(store: &PageStore, mark: u8) {
    let space = store.spaces().find("t");
    let space = match space {
        Some(space) => space,
        None => store.spaces().create("t").await.unwrap(),
    };
    for _ in 0..100 {
        store.allocate(space).await.unwrap()[..1].copy_from_slice(&[mark]);
    }
    store.sync().await.unwrap();
    store.free(PageId::new(space, 99)).await.unwrap();
    // The ring's file is created, then the SSD's again.
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.ssd().readmit().await.unwrap();
    let other = store.spaces().create("other").await.unwrap();
    store.allocate(other).await.unwrap();
    store.spaces().drop(other).await.unwrap();
    assert!(store.stats().room.directory_free_bytes.is_some());
}

async fn check(directory: &Path, mark: u8) {
    let store = open(directory).await;
    let space = store.spaces().find("t").unwrap();
    for no in 0..99 {
        assert_eq!(store.get(PageId::new(space, no)).await.unwrap()[0], mark, "page {no}");
    }
    assert_eq!(store.spaces().list().len(), 1);
    store.close().await.unwrap();
}

/// A way to make the path of a store's directory lead to another one.
struct Way {
    /// The path that the store is opened with; relative to `folder`, in which the process works.
    path: &'static str,
    /// Returns where the store's directory is from then on.
    change: fn(&Path) -> Result<PathBuf, String>,
    undo: fn(&Path),
}

fn mount_over(folder: &Path) -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting needs root".into());
    }
    let done = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(folder.join("here"))
        .status()
        .map_err(|e| e.to_string())?;
    if done.success() { Ok(folder.join("here")) } else { Err("mount failed".into()) }
}

const WAYS: [(&str, Way); 4] = [
    (
        "the working directory changes",
        Way {
            path: "here",
            change: |folder| {
                fs::create_dir(folder.join("elsewhere")).unwrap();
                std::env::set_current_dir(folder.join("elsewhere")).unwrap();
                Ok(folder.join("here"))
            },
            undo: |folder| std::env::set_current_dir(folder).unwrap(),
        },
    ),
    (
        "the directory is renamed",
        Way {
            path: "here",
            change: |folder| {
                fs::rename(folder.join("here"), folder.join("moved")).unwrap();
                Ok(folder.join("moved"))
            },
            undo: |_| (),
        },
    ),
    (
        "a symbolic link is switched",
        Way {
            path: "link",
            change: |folder| {
                fs::create_dir(folder.join("other")).unwrap();
                fs::remove_file(folder.join("link")).unwrap();
                symlink("other", folder.join("link")).unwrap();
                Ok(folder.join("here"))
            },
            undo: |_| (),
        },
    ),
    (
        "a volume is mounted over it",
        Way {
            path: "here",
            change: mount_over,
            undo: |folder| {
                // Files that were closed may stay open for a moment.
                let unmounted =
                    || std::process::Command::new("umount").arg(folder.join("here")).status().unwrap();
                let mut turns =
                    (0..50).map(|_| std::thread::park_timeout(std::time::Duration::from_millis(100)));
                assert!(turns.any(|()| unmounted().success()), "a closed store keeps the volume busy");
            },
        },
    ),
];

async fn moved(way: &Way) {
    let outer = folder();
    let at = outer.path().canonicalize().unwrap();
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(&at).unwrap();
    fs::create_dir("here").unwrap();
    symlink("here", "link").unwrap();
    let store = open(Path::new(way.path)).await;
    let ours = match (way.change)(&at) {
        Ok(ours) => ours,
        Err(why) => {
            std::env::set_current_dir(before).unwrap();
            skip(&why);
            return;
        }
    };
    // Another store is at the path now, and both are used.
    let other = open(Path::new(way.path)).await;
    work(&other, 2).await;
    work(&store, 1).await;
    store.close().await.unwrap();
    other.close().await.unwrap();
    check(Path::new(way.path), 2).await;
    (way.undo)(&at);
    check(&ours, 1).await;
    std::env::set_current_dir(before).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_directory_stays_the_stores() {
    let _alone = WORKING_DIRECTORY.lock().await;
    for (name, way) in &WAYS {
        println!("{name}");
        moved(way).await;
    }
}

#[tokio::test]
async fn a_manifest_of_another_store_is_not_written_over() {
    let outer = folder();
    let [ours, theirs] = ["ours", "theirs"].map(|name| outer.path().join(name));
    let (store, other) = (open(&ours).await, open(&theirs).await);
    store.spaces().create("t").await.unwrap();
    other.close().await.unwrap();
    let bytes = fs::read(theirs.join("manifest.json")).unwrap();
    fs::rename(ours.join("manifest.json"), ours.join("kept")).unwrap();
    fs::rename(theirs.join("manifest.json"), ours.join("manifest.json")).unwrap();
    for _ in 0..2 {
        let refused = store.spaces().create("u").await;
        assert!(matches!(refused, Err(Error::ForeignManifest { .. })), "{refused:?}");
    }
    assert_eq!(fs::read(ours.join("manifest.json")).unwrap(), bytes);
    // With its own manifest back, the store continues.
    fs::rename(ours.join("manifest.json"), theirs.join("manifest.json")).unwrap();
    fs::rename(ours.join("kept"), ours.join("manifest.json")).unwrap();
    store.spaces().create("u").await.unwrap();
    store.close().await.unwrap();
    assert_eq!(open(&ours).await.spaces().list().len(), 2);
    open(&theirs).await.close().await.unwrap();
}

#[tokio::test]
async fn unusual_names_of_directories_and_devices_work() {
    let _alone = WORKING_DIRECTORY.lock().await;
    let outer = folder();
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(outer.path()).unwrap();
    let bytes = |name: &[u8]| PathBuf::from(OsString::from_vec(name.to_vec()));
    let long: PathBuf = (0..14).map(|_| "d".repeat(250)).collect();
    let names = [
        bytes(b"slash/"),
        bytes(b"./dot/./../dot//"),
        bytes(b"not \xff utf-8"),
        bytes(b"line\nbreak"),
        bytes(&[b'n'; 255]),
        outer.path().join("absolute/"),
        long,
    ];
    for name in &names {
        let _ = fs::create_dir("dot");
        for turn in 0..2 {
            let store = open(name).await;
            if turn == 0 {
                work(&store, 7).await;
            }
            store.close().await.unwrap();
        }
        check(name, 7).await;
        let devices = || {
            let devices = name.with_file_name("devices");
            let builder = builder(&name.join("named")).hdd(devices.join("h\u{e4}")).ssd(devices.join("ssd"));
            (devices, builder)
        };
        let (place, named) = devices();
        fs::create_dir_all(&place).unwrap();
        named.open().await.unwrap().close().await.unwrap();
        assert!(place.join("h\u{e4}").exists(), "{place:?}");
        devices().1.open_read_only().await.unwrap().close().await.unwrap();
        devices().1.inspect().await.unwrap().hdd.unwrap();
        fs::remove_dir_all(&place).unwrap();
    }
    std::env::set_current_dir(before).unwrap();
}

/// Every file below `folder`, with its contents.
fn contents(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_folder = path.is_dir();
            found.push((path.clone(), (!is_folder).then(|| fs::read(&path).unwrap())));
            if is_folder {
                open.push(path);
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn one_device_for_both_tiers_is_refused_by_name() {
    let outer = folder();
    let at = |name: &str| outer.path().join(name);
    fs::write(at("disk"), []).unwrap();
    fs::hard_link(at("disk"), at("hard")).unwrap();
    symlink(at("disk"), at("soft")).unwrap();
    let before = contents(outer.path());
    let names = [("disk", "disk"), ("disk", "hard"), ("soft", "disk"), ("hard", "soft"), ("new", "new")];
    for (hdd, ssd) in names {
        let refused = builder(&at("s")).hdd(at(hdd)).ssd(at(ssd)).open().await;
        let Err(OpenError::SameDevice { option: "ssd", other: "hdd", .. }) = refused else {
            panic!("{hdd}, {ssd}: {refused:?}")
        };
        assert_eq!(contents(outer.path()), before, "{hdd}, {ssd}");
    }
    // The SSD's default file as the HDD, and the other way round.
    let store = open(&at("s")).await;
    store.close().await.unwrap();
    for refused in [
        builder(&at("s")).hdd(at("s/ssd.cache")).open().await,
        builder(&at("s")).ssd(at("s/hdd.vol")).open().await,
        builder(&at("s")).ssd(at("s/hdd.vol")).open_read_only().await,
    ] {
        assert!(matches!(refused, Err(OpenError::SameDevice { .. })), "{refused:?}");
    }
    let store = open(&at("s")).await;
    // The SSD in use stays so when another one was refused.
    fs::write(at("data"), [7; 8192]).unwrap();
    for other in ["s/hdd.vol", "s/ssd.cache", "data", "s/ssd.cache"] {
        let refused = store.ssd().replace(at(other), 4 << 20).await;
        assert!(matches!(refused, Err(Error::Attach(_))), "{other}: {refused:?}");
    }
    store.close().await.unwrap();
    open(&at("s")).await.close().await.unwrap();
}

/// A loop device, and a second special file for it.
struct TwoNames {
    device: PathBuf,
    other: PathBuf,
}

impl TwoNames {
    fn on(folder: &Path) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("a block device needs root".into());
        }
        let image = folder.join("image");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let done = std::process::Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
        let device = String::from_utf8(done.map_err(|e| e.to_string())?.stdout).unwrap().trim().to_owned();
        let found = fs::metadata(&device).map_err(|e| e.to_string())?;
        let names = Self { device: device.into(), other: folder.join("other") };
        let number = [rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())];
        let mut mknod = std::process::Command::new("mknod");
        let made = mknod.arg(&names.other).arg("b").args(number.map(|n| n.to_string())).status();
        if made.is_ok_and(|done| done.success()) { Ok(names) } else { Err("mknod failed".into()) }
    }
}

impl Drop for TwoNames {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

#[tokio::test]
async fn two_names_of_one_block_device_are_refused_by_name() {
    let outer = folder();
    let names = match TwoNames::on(outer.path()) {
        Ok(names) => names,
        Err(why) => return skip(&why),
    };
    let at = |name: &str| outer.path().join(name);
    for ssd in [&names.device, &names.other] {
        let refused = builder(&at("s")).hdd(&names.device).ssd(ssd).open().await;
        assert!(matches!(refused, Err(OpenError::SameDevice { .. })), "{refused:?}");
    }
    assert!(!at("s").exists());
    builder(&at("s")).hdd(&names.other).open().await.unwrap().close().await.unwrap();
}

/// A file with data that a check of its first whole blocks, or of its edges, does not see.
fn files_with_data(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for bytes in [1, 100, 511, 512, 513, 4095, 4096, 5000] {
        let path = folder.join(format!("{bytes}"));
        fs::write(&path, vec![0xab; bytes]).unwrap();
        files.push(path);
    }
    for (name, at, len) in
        [("last byte", 4094, 4095), ("middle", 20 << 20, 40_u64 << 20), ("end", 9999, 10_000)]
    {
        let mut file = File::create(folder.join(name)).unwrap();
        file.set_len(len).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[1]).unwrap();
        files.push(folder.join(name));
    }
    files
}

#[tokio::test]
async fn a_file_with_data_is_never_taken_for_a_blank_one() {
    let outer = folder();
    let at = |name: &str| outer.path().join(name);
    fs::create_dir(at("files")).unwrap();
    let files = files_with_data(&at("files"));
    let before = contents(&at("files"));
    let is_foreign = |error: &OpenError| matches!(error, OpenError::Foreign { .. });
    let store = open(&at("open")).await;
    for file in &files {
        for refused in [
            builder(&at("s")).hdd(file).open().await,
            builder(&at("s")).ssd(file).open().await,
            builder(&at("s")).hdd(file).ssd_bytes(0).open().await,
        ] {
            assert!(refused.as_ref().is_err_and(is_foreign), "{file:?}: {refused:?}");
            assert!(!at("s").exists(), "{file:?}: it left something");
        }
        let refused = store.ssd().replace(file, 4 << 20).await;
        assert!(matches!(&refused, Err(Error::Attach(e)) if is_foreign(e)), "{file:?}: {refused:?}");
        assert_eq!(contents(&at("files")), before, "{file:?}");
    }
    store.close().await.unwrap();
    // As the SSD of a store without one.
    let off = builder(&at("off")).ssd_bytes(0).open().await.unwrap();
    off.close().await.unwrap();
    for file in &files {
        let store = builder(&at("off")).ssd(file).ssd_bytes(4 << 20).open().await.unwrap();
        let refused = store.ssd().readmit().await;
        assert!(matches!(&refused, Err(Error::Attach(e)) if is_foreign(e)), "{file:?}: {refused:?}");
        store.close().await.unwrap();
    }
    assert_eq!(contents(&at("files")), before);
    // `force` overwrites; files without data need none.
    builder(&at("forced"))
        .hdd(&files[0])
        .create(pagetier::options::Create::Overwriting)
        .open()
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    fs::write(at("empty"), []).unwrap();
    File::create(at("hole")).unwrap().set_len(1 << 30).unwrap();
    let blank = builder(&at("blank")).hdd(at("hole")).ssd(at("empty")).open().await;
    blank.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_refused_opening_leaves_nothing_behind() {
    let outer = folder();
    let at = |name: &str| outer.path().join(name);
    fs::write(at("foreign"), b"data").unwrap();
    let before = contents(outer.path());
    for refused in [
        builder(&at("a/b/c")).hdd(at("foreign")).open().await,
        builder(&at("a/b/c")).ssd(at("foreign")).open().await,
        builder(&at("a/b/c")).pool_bytes(1000).open().await,
        builder(&at("a/b/c")).ssd_bytes(1000).open().await,
        builder(&at("a/b/c")).hdd(at("folder/")).open().await,
        builder(&at("a/b/c")).hdd(outer.path()).open().await,
        builder(&at("a/b/c")).create(pagetier::options::Create::Never).open().await,
        builder(&at("a/b/c")).open_read_only().await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(contents(outer.path()), before, "{error}");
    }
    // A store whose SSD is missing is refused, and no empty one appears in its place.
    let store = open(&at("s")).await;
    store.close().await.unwrap();
    fs::rename(at("s/ssd.cache"), at("ssd")).unwrap();
    let before = contents(outer.path());
    let refused = builder(&at("s")).open().await;
    assert!(matches!(refused, Err(OpenError::SsdMissing { .. })), "{refused:?}");
    let after = contents(outer.path());
    assert_eq!(after.len(), before.len(), "{refused:?}");
    fs::rename(at("ssd"), at("s/ssd.cache")).unwrap();
    // An SSD that is not put into use.
    let store = builder(&at("s")).open().await.unwrap();
    let refused = store.ssd().replace(at("small"), 10_000).await;
    assert!(refused.is_err() && !at("small").exists());
    store.close().await.unwrap();
    open(&at("s")).await.close().await.unwrap();
}

/// The options of a process that crashed after a replacement still name the SSD before.
#[tokio::test]
async fn an_open_without_a_replaced_ssd_says_where_the_new_one_is() {
    let _alone = WORKING_DIRECTORY.lock().await;
    let outer = folder();
    let at = |name: &str| outer.path().join(name);
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(outer.path()).unwrap();
    let store = open(Path::new("s")).await;
    work(&store, 1).await;
    store.ssd().replace("new", 4 << 20).await.unwrap();
    drop(store);
    let new = format!("(it was last used at {})", at("new").display());
    let never = || builder(&at("s")).create(pagetier::options::Create::Never);
    // With the SSD before in its place, then without it.
    for _ in 0..2 {
        for refused in [
            never().open().await,
            builder(&at("s")).open().await,
            builder(&at("s")).open_read_only().await,
            never().ssd(at("none")).open().await,
            builder(&at("s")).ssd_bytes(0).open().await,
        ] {
            let error = refused.unwrap_err();
            let ok = matches!(error, OpenError::SsdMissing { .. }) && error.to_string().contains(&new);
            assert!(ok, "{error}");
        }
        let _ = fs::remove_file(at("s/ssd.cache"));
    }
    // Moved again, by hand: what counts is the last open.
    fs::rename(at("new"), at("moved")).unwrap();
    builder(&at("s")).ssd("moved").open().await.unwrap().close().await.unwrap();
    let error = never().open().await.unwrap_err().to_string();
    assert!(error.contains(&format!("last used at {}", at("moved").display())), "{error}");
    // The default place is one like others: free, then in use.
    let store = builder(&at("s")).ssd(at("moved")).open().await.unwrap();
    store.ssd().replace(Place::Default, 4 << 20).await.unwrap();
    let refused = store.ssd().replace(Place::Default, 4 << 20).await.unwrap_err();
    let said = pagetier::errors::Causes(&refused).to_string();
    assert!(said.contains(&at("s/ssd.cache").display().to_string()), "{said}");
    store.close().await.unwrap();
    check(&at("s"), 1).await;
    // It was last used where it is missing.
    fs::remove_file(at("s/ssd.cache")).unwrap();
    let error = builder(Path::new("s")).open().await.unwrap_err().to_string();
    std::env::set_current_dir(before).unwrap();
    assert!(error.contains("is missing") && !error.contains("last used"), "{error}");
}

#[tokio::test]
async fn a_missing_manifest_is_named() {
    let outer = folder();
    let directory = outer.path().join("s");
    open(&directory).await.close().await.unwrap();
    let kept = outer.path().join("kept");
    fs::rename(directory.join("manifest.json"), &kept).unwrap();
    let before = contents(&directory);
    for refused in [
        builder(&directory).open().await.map(drop),
        builder(&directory).create(pagetier::options::Create::Never).open().await.map(drop),
        builder(&directory).open_read_only().await.map(drop),
        builder(&directory).inspect().await.map(drop),
    ] {
        let Err(OpenError::ManifestMissing { path }) = refused else { panic!("{refused:?}") };
        assert_eq!(path, directory);
        assert_eq!(contents(&directory), before);
    }
    fs::rename(&kept, directory.join("manifest.json")).unwrap();
    open(&directory).await.close().await.unwrap();
}

/// The HDD is elsewhere: the directory's other files show that there was a manifest.
#[tokio::test]
async fn a_missing_manifest_of_a_store_whose_hdd_is_elsewhere_is_named() {
    let outer = folder();
    let (directory, home) = (outer.path().join("s"), outer.path().join("home"));
    builder(&directory).hdd(&home).open().await.unwrap().close().await.unwrap();
    fs::remove_file(directory.join("manifest.json")).unwrap();
    let before = contents(&directory);
    let refused = builder(&directory).hdd(&home).open().await.map(drop);
    assert!(
        matches!(&refused, Err(OpenError::ManifestMissing { path }) if *path == directory),
        "{refused:?}"
    );
    assert_eq!(contents(&directory), before);
}

#[tokio::test]
async fn a_directory_given_as_a_file_and_a_file_given_as_a_directory_are_named() {
    let outer = folder();
    let at = |name: &str| outer.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("file"), b"x").unwrap();
    for hdd in ["folder", "folder/", "none/", "file/"] {
        let error = builder(&at("s")).hdd(at(hdd)).open().await.unwrap_err().to_string();
        assert!(error.contains("directory"), "{hdd}: {error}");
    }
    for directory in ["file", "file/", "file/below"] {
        let refused = builder(&at(directory)).open().await;
        let named = matches!(refused, Err(OpenError::NotADirectory { .. } | OpenError::Directory { .. }));
        assert!(named, "{directory}: {refused:?}");
    }
    assert!(!at("none").exists());
}

/// Soon after `close`, the volume can be unmounted.
#[tokio::test]
async fn a_closed_store_holds_no_directory() {
    let folder = folder();
    match SmallDisk::with_sectors(folder.path(), "ext4", 512, "defaults") {
        Ok(disk) => {
            let store = open(&disk.mount.join("s")).await;
            store.spaces().create("t").await.unwrap();
            store.close().await.unwrap();
            for _ in 0..500 {
                if !holds_a_file_of(&disk.mount) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            panic!("a descriptor is open");
        }
        Err(why) => skip(&why),
    }
}

fn holds_a_file_of(mount: &Path) -> bool {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter_map(|link| fs::read_link(link.path()).ok()).any(|path| path.starts_with(mount))
}
