//! Opening a device: refusals and their remedies, and the behaviour of real files beyond the common suite.

use crate::common::{bufs_of, folder, runtime};
use pagetier_devio::{Backend, DeviceErrorKind, DirectIo, IoClass, OpenOptions, Opened, open_file};
use pagetier_testing::fail_call;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const BACKENDS: [Backend; 2] = [Backend::Uring, Backend::Threads];

fn refused(path: &Path, options: &OpenOptions) -> String {
    let error = open_file(path, options).expect_err("refused");
    assert!(matches!(error.kind, DeviceErrorKind::Unusable(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

fn create(path: &Path, backend: Backend) -> Opened {
    open_file(path, &OpenOptions { create: true, backend, ..OpenOptions::default() }).expect("opened")
}

#[test]
fn bad_paths_are_named_with_a_remedy() {
    let folder = folder();
    let missing = folder.path().join("missing");
    assert!(refused(&missing, &OpenOptions::default()).contains("does not exist"));
    let options = OpenOptions { create: true, ..OpenOptions::default() };
    assert!(refused(&missing.join("deeper"), &options).contains("folder does not exist"));
    assert!(!missing.exists(), "nothing was created");
    assert!(refused(folder.path(), &OpenOptions::default()).contains("directory"));
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(refused(folder.path(), &read_only).contains("directory"));
    assert!(refused(Path::new("/dev/null"), &read_only).contains("neither a regular file"));
}

#[test]
fn files_are_private_and_survive_a_second_opening() {
    let folder = folder();
    let path = folder.path().join("device");
    create(&path, Backend::Auto).device.grow(1 << 20).expect("grown");
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = open_file(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).expect("opened");
    assert_eq!(again.device.size(), 1 << 20);
    runtime(false).block_on(async {
        let completion = again.device.write(0, bufs_of(&[4096]), IoClass::Clean).await;
        assert!(matches!(completion.result.expect_err("read-only").kind, DeviceErrorKind::Io(_)));
    });
}

#[test]
fn without_direct_io_where_there_is_none() {
    let tmpfs = Path::new("/dev/shm");
    let Ok(folder) = tempfile::TempDir::new_in(tmpfs) else {
        pagetier_testing::skipped("tmpfs", "a file system without O_DIRECT is not tried");
        return;
    };
    let path = folder.path().join("device");
    std::fs::write(&path, vec![3; 8192]).expect("written");
    let options = OpenOptions { direct: DirectIo::Required, ..OpenOptions::default() };
    assert!(refused(&path, &options).contains("O_DIRECT"));
    let opened = open_file(&path, &OpenOptions::default()).expect("opened");
    assert!(!opened.direct);
    runtime(false).block_on(async {
        let completion = opened.device.read(4096, bufs_of(&[4096]), IoClass::Demand).await;
        completion.result.expect("read");
        assert!(completion.bufs[0].as_slice().iter().all(|b| *b == 3));
    });
}

#[test]
fn a_file_that_shrank_is_an_end_of_file() {
    for backend in BACKENDS {
        let folder = folder();
        let path = folder.path().join("device");
        let opened = create(&path, backend);
        opened.device.grow(1 << 20).expect("grown");
        std::fs::File::options().write(true).open(&path).expect("there").set_len(64 << 10).expect("cut");
        runtime(false).block_on(async {
            // The first half exists: a short transfer, then the end.
            let completion = opened.device.read(32 << 10, bufs_of(&[64 << 10]), IoClass::Demand).await;
            let error = completion.result.expect_err("beyond the end");
            assert!(matches!(error.kind, DeviceErrorKind::UnexpectedEof { .. }), "{error}");
            assert_eq!(opened.device.stats().retries.short, 1, "{backend:?}");
        });
    }
}

#[test]
fn opening_and_closing_at_once() {
    let folder = folder();
    let path = folder.path().join("device");
    for backend in BACKENDS {
        for _ in 0..200 {
            let device = create(&path, backend).device;
            device.grow(1 << 20).expect("grown");
            drop(device.flush(IoClass::Meta));
        }
    }
}

#[test]
fn random_drops_among_real_reads() {
    for backend in BACKENDS {
        let folder = folder();
        let options =
            OpenOptions { create: true, backend, queue_depth: 8, threads: 4, ..OpenOptions::default() };
        let device = open_file(&folder.path().join("device"), &options).expect("opened").device;
        device.grow(4 << 20).expect("grown");
        runtime(false).block_on(async {
            for page in 0..256_u64 {
                let bufs = [pagetier_devio::IoBuf::copy_of(&[page as u8; 16384])].into_iter().collect();
                device.write(page * 16384, bufs, IoClass::Clean).await.result.expect("written");
            }
            let mut rng = SmallRng::seed_from_u64(11);
            for _ in 0..600 {
                let page = rng.random_range(0..256_u64);
                let read = device.read(page * 16384, bufs_of(&[8192, 4096, 4096]), IoClass::Demand);
                let patience = Duration::from_micros(rng.random_range(0..400));
                if rng.random_bool(0.5) {
                    drop(read);
                } else if let Ok(completion) = tokio::time::timeout(patience, read).await {
                    completion.result.expect("read");
                    assert!(completion.bufs.iter().all(|b| b.as_slice().iter().all(|x| *x == page as u8)));
                }
                // This must not be the memory that the dropped read writes to.
                let fresh = vec![0xAA_u8; 16384];
                assert!(std::hint::black_box(&fresh).iter().all(|b| *b == 0xAA));
            }
        });
    }
}

#[test]
fn threads_take_over_where_io_uring_is_forbidden() {
    for (errno, remedy) in
        [(libc::EPERM, "seccomp"), (libc::ENOSYS, "Linux 5.11"), (libc::ENOMEM, "ulimit -l")]
    {
        let tried = std::thread::spawn(move || {
            // As container runtimes do.
            fail_call(libc::SYS_io_uring_setup, errno);
            let folder = folder();
            let path = folder.path().join("device");
            let opened = create(&path, Backend::Auto);
            assert_eq!((opened.backend, opened.device.backend()), (Backend::Threads, "threads"));
            let why = opened.fallback.expect("a reason");
            assert!(why.contains("io_uring cannot be set up") && why.contains(remedy), "{why}");
            opened.device.grow(1 << 20).expect("grown");
            runtime(false).block_on(async {
                let completion = opened.device.read(0, bufs_of(&[4096]), IoClass::Demand).await;
                completion.result.expect("read");
            });
            let options = OpenOptions { backend: Backend::Uring, ..OpenOptions::default() };
            assert!(refused(&path, &options).contains(remedy));
        });
        tried.join().expect("no panic");
    }
}

/// On a system that keeps no page whole, or some: the bytes of a page are all there, or its write has failed.
#[test]
fn a_page_that_must_be_whole_is_written_or_refused() {
    for backend in BACKENDS {
        let folder = folder();
        let device = create(&folder.path().join("device"), backend).device;
        device.grow(1 << 20).expect("grown");
        runtime(false).block_on(async {
            let offered = device.writes_whole(4096);
            device.keep_whole(4096);
            let written = device.write(8192, bufs_of(&[4096; 2]), IoClass::Clean).await.result;
            let refused = written.as_ref().is_err_and(|e| matches!(e.kind, DeviceErrorKind::NotWhole(_)));
            assert!(written.is_ok() || (refused && !offered), "{written:?}");
            device.keep_whole(0);
            let written = device.write(8192, bufs_of(&[4096; 2]), IoClass::Clean).await.result;
            written.expect("written as any other");
        });
    }
}
