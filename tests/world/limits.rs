//! Resource limits of the process, and sizes beyond what any machine has.

use crate::child::{self, Ended, builder, case, check, fill, nothing_is_lost, one_thread, skip};
use pagetier::errors::PoolSizeError::TooLarge;
use pagetier::{
    Error, OpenError, PageId, PageSize, PageStore,
    device::{Backend, DeviceErrorKind},
    errors::{Advice, PoolError},
    frames_for, pool_bytes_for, ssd_bytes_for,
};
use pagetier_devio::files::{Access, Directory, RealDir};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

const CHILD: &str = "limits::in_a_process_of_its_own";

fn limit(resource: Resource, to: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(to), maximum }).unwrap();
}

fn run(case: &str, directory: &Path) -> Ended {
    let ended = child::run(CHILD, case, directory);
    assert!(ended.ok, "{case}: {ended:?}");
    ended
}

/// Not a test by itself: what the tests below run, by case.
#[test]
fn in_a_process_of_its_own() {
    let Some((case, directory)) = case() else { return };
    let directory = directory.as_path();
    match case.as_str() {
        "few files" => few_files(directory),
        "small files" => small_files(directory),
        "large store" => large_store(directory),
        "growth" => growth(directory),
        "room" => room(directory),
        "no locked memory" => no_locked_memory(directory),
        "no threads" => no_threads(directory),
        "little memory" => little_memory(directory),
        "descriptors" => descriptors(directory),
        other => panic!("no case {other}"),
    }
}

/// Opens a store, which must succeed or name the limit by `word`. Returns whether it opened.
fn opens_or_names(directory: &Path, io: Backend, word: &str) -> bool {
    one_thread().block_on(async {
        match builder(directory, io).open().await {
            Ok(store) => {
                let done = fill(&store, 1).await;
                if let Err(error) = &done {
                    assert!(error.to_string().contains(word), "{error}");
                }
                done.is_ok() && store.close().await.is_ok()
            }
            Err(error) => {
                let text = chain(&error);
                assert!(text.contains(word), "{text}");
                false
            }
        }
    })
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// RLIMIT_NOFILE: at each number of descriptors the store opens, or says that there are too few.
fn few_files(directory: &Path) {
    let mut opened = 0;
    for files in (8..64).step_by(3) {
        let directory = directory.join(files.to_string());
        std::fs::create_dir(&directory).unwrap();
        // The runtime needs some of its own: it is made before the limit.
        let runtime = one_thread();
        limit(Resource::Nofile, files);
        let outcome = runtime.block_on(async {
            let store = builder(&directory, Backend::Auto).open().await.map_err(|error| chain(&error))?;
            let filled = fill(&store, 1).await.map_err(|error| chain(&error));
            filled.map(|_| store.close())?.await.map_err(|error| chain(&error))
        });
        limit(Resource::Nofile, 512);
        match outcome {
            Ok(()) => {
                opened += 1;
                nothing_is_lost(&directory, 1);
            }
            Err(text) => assert!(text.to_lowercase().contains("too many open files"), "{files}: {text}"),
        }
    }
    assert!(opened > 0);
}

#[test]
fn too_few_descriptors_are_named() {
    let folder = tempfile::tempdir().unwrap();
    run("few files", folder.path());
}

/// RLIMIT_FSIZE below what a new store needs. The signal that the kernel would send ends the process.
fn small_files(directory: &Path) {
    for kib in [0, 8, 64, 256, 1024] {
        limit(Resource::Fsize, kib << 10);
        for (no, io) in [Backend::Auto, Backend::Threads].into_iter().enumerate() {
            let directory = directory.join(format!("{kib}-{no}"));
            assert!(!opens_or_names(&directory, io, "limit of file sizes"), "{kib} KiB suffice");
        }
    }
}

/// RLIMIT_FSIZE below the size of an existing store, whose writes would be beyond it.
fn large_store(directory: &Path) {
    limit(Resource::Fsize, 1 << 20);
    assert!(!opens_or_names(directory, Backend::Auto, "limit of file sizes"));
}

/// RLIMIT_FSIZE reached by growth.
fn growth(directory: &Path) {
    one_thread().block_on(async {
        let store = builder(directory, Backend::Auto).open().await.unwrap();
        let space = fill(&store, 1).await.unwrap();
        limit(Resource::Fsize, 4 << 20);
        let error = loop {
            match store.allocate(space).await {
                Ok(mut page) => page[0] = 1,
                Err(error) => break error,
            }
        };
        let Error::Device(of_device) = &error else { panic!("{error}") };
        assert!(matches!(of_device.kind, DeviceErrorKind::FileSizeLimit { max_bytes: 4194304 }), "{error}");
        assert_eq!(error.advice(), Advice::FixConfiguration);
        // Everything else works on, and growth does once the limit is raised.
        fill(&store, 2).await.unwrap();
        check(&store, 2).await;
        limit(Resource::Fsize, 64 << 20);
        store.allocate(space).await.unwrap()[0] = 1;
        store.close().await.unwrap();
    });
}

/// RLIMIT_FSIZE below the disk space that a log sets aside.
fn room(directory: &Path) {
    limit(Resource::Fsize, 1 << 20);
    let dir = RealDir::open(directory).unwrap();
    let file = dir.open(Path::new("segment"), Access::Create).unwrap();
    let error = file.allocate((1 << 20) + 1).unwrap_err();
    assert!(error.to_string().contains("limit of file sizes"), "{error}");
}

#[test]
fn the_limit_of_file_sizes_is_named_and_no_signal_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    run("room", folder.path());
    run("small files", folder.path());
    let existing = folder.path().join("existing");
    one_thread().block_on(async {
        let store = builder(&existing, Backend::Auto).open().await.unwrap();
        fill(&store, 1).await.unwrap();
        store.close().await.unwrap();
    });
    run("large store", &existing);
    nothing_is_lost(&existing, 1);
    run("growth", &existing);
    nothing_is_lost(&existing, 2);
}

/// RLIMIT_MEMLOCK: the store locks no memory.
fn no_locked_memory(directory: &Path) {
    for (no, bytes) in [0, 4096, 64 << 10].into_iter().enumerate() {
        limit(Resource::Memlock, bytes);
        let directory = directory.join(no.to_string());
        assert!(opens_or_names(&directory, Backend::Auto, ""));
        nothing_is_lost(&directory, 1);
    }
}

#[test]
fn no_locked_memory_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    run("no locked memory", folder.path());
}

/// RLIMIT_NPROC, which binds all users but root: no further thread.
fn no_threads(directory: &Path) {
    // A store that is open when threads become scarce.
    let runtime = one_thread();
    let before = directory.join("before");
    let store = runtime.block_on(async {
        let store = builder(&before, Backend::Threads).open().await.unwrap();
        fill(&store, 1).await.unwrap();
        store
    });
    limit(Resource::Nproc, 1);
    if std::thread::Builder::new().spawn(|| ()).is_ok() {
        println!("not bound");
        return;
    }
    runtime.block_on(async {
        // It has threads already, and goes on with these.
        fill(&store, 2).await.unwrap();
        store.close().await.unwrap();
        for (no, io) in [Backend::Threads, Backend::Auto].into_iter().enumerate() {
            match builder(&directory.join(no.to_string()), io).open().await {
                Ok(store) => assert!(io == Backend::Auto && store.close().await.is_ok()),
                Err(error) => {
                    let text = chain(&error);
                    assert!(text.contains("limit of threads") && !text.contains("gone"), "{text}");
                }
            }
        }
    });
    let blocking = pagetier::blocking::PageStore::open(builder(&directory.join("blocking"), Backend::Auto));
    assert!(matches!(blocking, Err(OpenError::Runtime { .. })));
}

/// The user without rights.
const NOBODY: u32 = 65_534;

#[test]
fn a_lack_of_threads_is_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let row = "RLIMIT_NPROC";
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("stores");
    std::fs::create_dir(&directory).unwrap();
    for path in [folder.path(), &directory] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = child::command(CHILD, "no threads", &directory);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn() {
        Ok(started) => {
            let ended = child::wait(started);
            assert!(ended.ok, "{ended:?}");
            if ended.text.contains("not bound") {
                skip(row, "it does not bind this user");
            }
        }
        Err(error) => skip(row, &format!("no process of another user: {error}")),
    }
}

/// RLIMIT_AS.
fn little_memory(directory: &Path) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_ascii_whitespace().next().unwrap().parse().unwrap();
    limit(Resource::As, pages * rustix::param::page_size() as u64 + (256 << 20));
    one_thread().block_on(async {
        let open = |bytes| builder(&directory.join("a"), Backend::Auto).pool_bytes(bytes).open();
        let refused = open(1 << 30).await.unwrap_err();
        assert!(matches!(refused, OpenError::Pool(PoolError::Memory(_))), "{refused}");
        let store = open(4 << 20).await.unwrap();
        fill(&store, 1).await.unwrap();
        let refused = store.resize_pool(1 << 30).await.unwrap_err();
        assert!(matches!(refused, Error::Pool(PoolError::Memory(_))), "{refused}");
        check(&store, 1).await;
        store.close().await.unwrap();
    });
}

#[test]
fn a_lack_of_memory_is_named() {
    let folder = tempfile::tempdir().unwrap();
    run("little memory", folder.path());
}

#[test]
fn sizes_beyond_every_machine_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    one_thread().block_on(async {
        for bytes in [u64::MAX, 1 << 62, 1 << 50] {
            let open = builder(folder.path(), Backend::Auto).pool_bytes(bytes).open();
            let refused = open.await.unwrap_err();
            assert!(
                matches!(refused, OpenError::PoolSize(TooLarge { bytes: b, .. }) if b == bytes),
                "{refused}"
            );
            assert_eq!(refused.advice(), Advice::FixConfiguration);
        }
        let store = builder(folder.path(), Backend::Auto).open().await.unwrap();
        for bytes in [u64::MAX, 1 << 50] {
            let refused = store.resize_pool(bytes).await.unwrap_err();
            assert!(matches!(refused, Error::PoolSize(TooLarge { .. })), "{refused}");
        }
        store.close().await.unwrap();
    });
    for size in [PageSize::MIN, PageSize::DEFAULT, PageSize::MAX] {
        for pages in [u64::MAX, 1 << 60, 1 << 40] {
            assert_eq!(ssd_bytes_for(pages, size), u64::MAX, "{pages}");
        }
        assert_eq!(pool_bytes_for(u64::MAX, u64::MAX, size), u64::MAX);
        assert!(frames_for(u64::MAX, 0, size) > 1 << 30);
        assert!(ssd_bytes_for(1 << 30, size) < (1 << 30) * (size.bytes() as u64) * 11 / 10);
    }
}

#[test]
fn a_store_takes_no_more_memory_than_its_budget() {
    one_thread().block_on(async {
        for (pool_kib, ssd_kib) in
            [(512, 0), (1 << 10, 2 << 10), (3_000, 9_000), (8 << 10, 40 << 10), (20_000, 99_000)]
        {
            let folder = tempfile::tempdir().unwrap();
            let (pool_bytes, ssd_bytes) = (pool_kib << 10, ssd_kib << 10);
            let opened =
                builder(folder.path(), Backend::Auto).pool_bytes(pool_bytes).ssd_bytes(ssd_bytes).open();
            let store: PageStore = opened.await.unwrap();
            let space = store.spaces().create("t").await.unwrap();
            for _ in 0..(pool_kib + ssd_kib) / 4 + 100 {
                store.allocate(space).await.unwrap()[0] = 1;
            }
            store.sync().await.unwrap();
            for no in 0..2_000.min(pool_kib as u32 / 4) {
                drop(store.get(PageId::new(space, no)).await.unwrap());
            }
            let stats = store.stats();
            let used = stats.memory_bytes();
            let (memory, ssd) = (stats.pool_memory, stats.ssd.memory_bytes);
            assert!(
                used <= pool_bytes,
                "{used} of {pool_bytes} with an SSD of {ssd_bytes}: {memory:?} {ssd}"
            );
            assert!(used * 10 > pool_bytes * 7, "{used} of {pool_bytes}");
            store.close().await.unwrap();
        }
    });
}

/// The targets of this process's descriptors.
fn open_files() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let mut targets: Vec<String> = targets.map(|target| target.to_string_lossy().into_owned()).collect();
    targets.retain(|target| !target.starts_with("/proc/"));
    targets.sort();
    targets
}

/// When `close` returns, every descriptor is closed, before the runtime does anything else.
fn descriptors(directory: &Path) {
    for io in [Backend::Auto, Backend::Threads] {
        one_thread().block_on(async {
            let before = open_files();
            for version in 1..6 {
                let store = builder(directory, io).open().await.unwrap();
                fill(&store, version).await.unwrap();
                assert!(open_files().len() > before.len() + 2);
                store.close().await.unwrap();
                assert_eq!(open_files(), before);
            }
        });
        let before = open_files_without_runtime();
        let store = pagetier::blocking::PageStore::open(builder(directory, io)).unwrap();
        store.close().unwrap();
        // The store's are closed by now.
        let of_runtime = |file: &String| file.contains("[eventpoll]") || file.contains("[eventfd]");
        let mut files = open_files();
        files.retain(|file| !of_runtime(file));
        assert_eq!(files, before);
        assert_eq!(open_files_without_runtime(), before);
    }
}

/// Waits for a runtime's end: its own threads may hold its descriptors for some time after that.
fn open_files_without_runtime() -> Vec<String> {
    loop {
        let files = open_files();
        if !files.iter().any(|file| file.contains("[eventpoll]")) {
            break files;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_close_returns_when_every_descriptor_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    run("descriptors", folder.path());
}
