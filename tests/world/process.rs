//! What happens to a process: forks, signals, refused system calls.

use crate::child::{self, builder, case, check, fill, nothing_is_lost, one_thread, skip};
use pagetier::log::GateFuture;
use pagetier::{Error, LogGate, Loss, Lsn, PageId, PageStore, SpaceId, device::Backend};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const CHILD: &str = "process::in_a_process_of_its_own";

const BACKENDS: [Backend; 2] = [Backend::Auto, Backend::Threads];

/// Not a test by itself: what the tests below run, by case.
#[test]
fn in_a_process_of_its_own() {
    let Some((case, directory)) = case() else { return };
    let directory = directory.as_path();
    match case.split_once(' ').unwrap_or((case.as_str(), "")) {
        ("fork", kind) => forks(directory, kind),
        ("blocking-fork", "") => blocking_forks(directory),
        ("control-fork", "") => control_forks(directory),
        ("daemon", "") => becomes_a_daemon(directory),
        ("alarms", "") => alarms(directory),
        ("works", "") => works_for_ever(directory),
        ("refused-setup", errno) => refused_setup(directory, errno.parse().unwrap()),
        ("refused-later", errno) => refused_later(directory, errno.parse().unwrap()),
        ("refused-fallocate", errno) => refused_fallocate(directory, errno.parse().unwrap()),
        ("refused-sync", errno) => refused_sync(directory, errno.parse().unwrap()),
        other => panic!("no case {other:?}"),
    }
}

fn passes(case: &str, directory: &Path) {
    let ended = child::run(CHILD, case, directory);
    assert!(ended.ok, "{case}: {ended:?}");
}

/// Forks; `act` runs in the forked process, which must return from it within 20 s. The parent gets its id.
fn fork(act: impl FnOnce()) -> Pid {
    // SAFETY: the forked process calls only what this test is about, and ends without returning from here.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: an alarm has no preconditions; it ends a forked process that hangs.
            unsafe { libc::alarm(20) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            // SAFETY: ends the process at once: the program's own destructors are not this test's subject.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        pid => Pid::from_raw(pid).expect("a fork"),
    }
}

fn ended_well(pid: Pid) {
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!((status.exit_status(), status.terminating_signal()), (Some(0), None));
}

/// The outcome of a future that must be ready at once: a forked process has nothing that would drive it.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

/// Every call that returns a result fails with [`Error::Forked`], at once.
fn is_refused(store: &PageStore, space: SpaceId, parent: u32) {
    let page = PageId::new(space, 3);
    let refused = |error: Error| {
        assert!(matches!(error, Error::Forked { opened_by } if opened_by == parent), "{error}")
    };
    refused(at_once(store.get(page)).unwrap_err());
    refused(at_once(store.get_mut(page)).unwrap_err());
    refused(at_once(store.allocate(space)).unwrap_err());
    refused(at_once(store.overwrite(page)).unwrap_err());
    refused(at_once(store.get_or_create(page)).unwrap_err());
    refused(at_once(store.free(page)).unwrap_err());
    refused(at_once(store.discard(page)).unwrap_err());
    refused(at_once(store.sync()).unwrap_err());
    refused(at_once(store.flush()).unwrap_err());
    refused(at_once(store.flush_to(Lsn(1))).unwrap_err());
    for loss in [Loss::Crash, Loss::Ssd] {
        refused(at_once(store.redo_from(Lsn(1), loss)).unwrap_err());
    }
    refused(at_once(store.shutdown()).unwrap_err());
    refused(at_once(store.spaces().create("new")).map(drop).unwrap_err());
    refused(at_once(store.spaces().drop(space)).map(drop).unwrap_err());
    refused(at_once(store.ssd().readmit()).map(drop).unwrap_err());
    refused(at_once(store.resize_pool(2 << 20)).map(drop).unwrap_err());
    refused(at_once(store.scan(space, 0..9).next()).unwrap().map(drop).unwrap_err());
    assert!(store.try_get(page).is_none());
    store.prefetch(&[page]);
}

/// A log that is durable as it is.
struct Durable;

impl LogGate for Durable {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Runs `act` while other threads ask the store for its recovery position: one of them nearly always has the
/// lock that this takes.
fn while_asked<T>(store: &PageStore, act: impl FnOnce() -> T) -> T {
    let (begun, over) = (std::sync::Barrier::new(5), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                begun.wait();
                while !over.load(Ordering::Relaxed) {
                    let _ = store.min_recovery_lsn();
                }
            });
        }
        begun.wait();
        child::pause(Duration::from_millis(5));
        let done = act();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// A program with an open store forks: what the forked process does leaves the store alone.
fn forks(directory: &Path, kind: &str) {
    for (no, io) in BACKENDS.into_iter().enumerate() {
        for workers in [1, 2] {
            let directory = directory.join(format!("{no}-{workers}"));
            let runtime = match workers {
                1 => one_thread(),
                _ => tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap(),
            };
            let gate: Arc<dyn LogGate> = Arc::new(Durable);
            let store = runtime.block_on(async {
                let builder = builder(&directory, io).log_gate(Arc::clone(&gate));
                let store = Arc::new(builder.open().await.unwrap());
                fill(&store, 1).await.unwrap();
                store
            });
            let (space, parent) = (store.spaces().find("t").unwrap(), std::process::id());
            let runtime = std::mem::ManuallyDrop::new(runtime);
            let drops = || {
                let held = Arc::strong_count(&gate);
                drop(copy(&store));
                assert_eq!(
                    Arc::strong_count(&gate),
                    held,
                    "the log is the parent's: its destructor may write"
                );
            };
            for version in 2..5 {
                // With I/O in flight, or as the last handle.
                let busy = (kind == "calls").then(|| {
                    let store = Arc::clone(&store);
                    runtime.spawn(async move { fill(&store, version).await.map(drop) })
                });
                let forked = match kind {
                    "drops" => fork(|| {
                        drops();
                        take(&runtime).shutdown_background();
                    }),
                    "calls" => while_asked(&store, || fork(|| is_refused(&store, space, parent))),
                    "ends" => fork(|| {
                        is_refused(&store, space, parent);
                        drops();
                        take(&runtime).shutdown_background();
                    }),
                    other => panic!("no kind {other}"),
                };
                ended_well(forked);
                runtime.block_on(async {
                    if let Some(busy) = busy {
                        busy.await.unwrap().unwrap();
                    }
                    fill(&store, version).await.unwrap();
                    check(&store, version).await;
                    assert!(builder(&directory, io).open().await.is_err(), "its locks are gone");
                });
            }
            runtime.block_on(async {
                let store = Arc::into_inner(store).unwrap();
                store.close().await.unwrap();
            });
            drop(std::mem::ManuallyDrop::into_inner(runtime));
            nothing_is_lost(&directory, 4);
        }
    }
}

/// The last handle of a forked process's copy of `store`.
fn copy(store: &Arc<PageStore>) -> Arc<PageStore> {
    // SAFETY: the forked process ends before it uses or drops `store` itself.
    unsafe { std::ptr::read(store) }
}

/// The forked process's copy of `runtime`.
fn take(runtime: &tokio::runtime::Runtime) -> tokio::runtime::Runtime {
    // SAFETY: as in `copy`.
    unsafe { std::ptr::read(runtime) }
}

#[test]
fn a_forked_process_that_drops_its_copy_leaves_the_store_alone() {
    let folder = tempfile::tempdir().unwrap();
    passes("fork drops", folder.path());
}

#[test]
fn every_call_of_a_forked_process_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    passes("fork calls", folder.path());
}

#[test]
fn a_forked_process_that_runs_its_destructors_ends_and_leaves_the_store_alone() {
    let folder = tempfile::tempdir().unwrap();
    passes("fork ends", folder.path());
}

fn blocking_forks(directory: &Path) {
    for (no, io) in BACKENDS.into_iter().enumerate() {
        let directory = directory.join(no.to_string());
        let mut store = Some(pagetier::blocking::PageStore::open(builder(&directory, io)).unwrap());
        let open = store.as_ref().unwrap();
        open.block_on(async { fill(open, 1).await.unwrap() });
        let space = open.spaces().find("t").unwrap();
        let forked = fork(|| {
            let copy = store.take().unwrap();
            assert!(matches!(copy.get(PageId::new(space, 1)), Err(Error::Forked { .. })));
            assert!(matches!(copy.sync(), Err(Error::Forked { .. })));
            assert!(matches!(copy.close(), Err(Error::Forked { .. })));
        });
        ended_well(forked);
        let store = store.unwrap();
        store.block_on(async { fill(&store, 2).await.unwrap() });
        store.close().unwrap();
        nothing_is_lost(&directory, 2);
    }
}

#[test]
fn a_forked_process_leaves_a_blocking_store_alone() {
    let folder = tempfile::tempdir().unwrap();
    passes("blocking-fork", folder.path());
}

/// A control socket in a process that forks: the parent goes on to serve. When it is dead, the forked
/// process, which has the socket's descriptor, does not count as one that serves.
fn control_forks(directory: &Path) {
    let (sockets, stat) = (directory.join("sockets"), pagetier_control::Request::Stat {});
    std::fs::create_dir(&sockets).unwrap();
    let serving = |name: &str| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let builder = builder(&directory.join(name), Backend::Threads);
        let store = Arc::new(runtime.block_on(builder.open()).unwrap());
        let control = runtime.block_on(pagetier_control::listen(&store, &sockets)).unwrap();
        (runtime, store, Some(control))
    };
    // It ends without any destructor, as by SIGKILL, and leaves a process that has its descriptors.
    let killed = fork(|| {
        let kept = serving("killed");
        fork(|| {
            // Not for ever, if the test has failed.
            for _ in 0..15_000 {
                if directory.join("over").exists() {
                    break;
                }
                child::pause(Duration::from_millis(20));
            }
        });
        std::mem::forget(kept);
    });
    ended_well(killed);
    assert!(sockets.join("control").exists());
    let (runtime, store, mut control) = serving("alive");
    let forked = fork(|| drop(control.take()));
    ended_well(forked);
    runtime.block_on(async {
        let mut client = pagetier_control::Client::connect(&sockets).await.unwrap().unwrap();
        assert_eq!(client.pid(), std::process::id());
        assert!(client.ask(&stat, |_| ()).await.unwrap().complete);
        control.take().unwrap().end().await;
        assert!(!sockets.join("control").exists());
        store.shutdown().await.unwrap();
    });
    std::fs::write(directory.join("over"), "").unwrap();
}

#[test]
fn a_control_socket_is_served_by_the_process_that_has_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    passes("control-fork", folder.path());
}

/// A program that becomes a daemon after it has opened its store: the parent is gone, and the daemon can open
/// the store once it has dropped its copy.
fn becomes_a_daemon(directory: &Path) {
    for (no, io) in BACKENDS.into_iter().enumerate() {
        let directory = directory.join(no.to_string());
        let ended = fork(|| {
            let runtime = std::mem::ManuallyDrop::new(one_thread());
            let store = runtime.block_on(async {
                let store = Arc::new(builder(&directory, io).open().await.unwrap());
                fill(&store, 1).await.unwrap();
                store
            });
            let (space, parent) = (store.spaces().find("t").unwrap(), std::process::id());
            let daemon = fork(|| {
                is_refused(&store, space, parent);
                drop(copy(&store));
                std::mem::forget(take(&runtime));
                // As long as the parent runs, the store is its.
                while rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent) {
                    child::pause(Duration::from_millis(5));
                }
                nothing_is_lost(&directory, 1);
                std::fs::write(directory.join("done"), []).unwrap();
            });
            // The parent ends at once, without destructors; the daemon goes on.
            std::mem::forget(store);
            let _ = daemon;
        });
        ended_well(ended);
        let done = directory.join("done");
        for _ in 0..600 {
            if done.exists() {
                break;
            }
            child::pause(Duration::from_millis(50));
        }
        assert!(done.exists(), "the daemon did not open the store");
        std::fs::remove_file(done).unwrap();
        nothing_is_lost(&directory, 1);
    }
}

#[test]
fn a_daemon_opens_the_store_of_its_parent_once_it_has_dropped_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    passes("daemon", folder.path());
}

/// Every system call that can be interrupted is.
fn alarms(directory: &Path) {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all zeroes are a valid value; the handler does nothing, and no flag makes calls restart.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the action is valid, and the old one is not asked for.
    assert_eq!(unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) }, 0);
    let every = libc::timeval { tv_sec: 0, tv_usec: 300 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the timer is valid, and the old one is not asked for.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }, 0);
    for io in BACKENDS {
        one_thread().block_on(async {
            for version in 1..4 {
                let store = builder(directory, io).open().await.unwrap();
                fill(&store, version).await.unwrap();
                check(&store, version).await;
                store.close().await.unwrap();
            }
        });
    }
}

#[test]
fn interrupted_system_calls_are_repeated() {
    let folder = tempfile::tempdir().unwrap();
    passes("alarms", folder.path());
    nothing_is_lost(folder.path(), 3);
}

fn works_for_ever(directory: &Path) {
    // A shell starts what runs in the background with some signals ignored, and its children inherit that.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    one_thread().block_on(async {
        let store = builder(directory, Backend::Auto).open().await.unwrap();
        for version in (1..=200).cycle() {
            fill(&store, version).await.unwrap();
            println!("synced {version}");
        }
    });
}

#[test]
fn a_stopped_process_goes_on_and_a_terminated_one_loses_nothing() {
    for (round, ends) in [Signal::TERM, Signal::INT, Signal::HUP].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = child::command(CHILD, "works", folder.path());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&process);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut synced = || {
            let version =
                lines.find_map(|line| line.strip_prefix("synced ").map(|v| v.parse::<u8>().unwrap()));
            version.expect("it works on")
        };
        for _ in 0..5 {
            let _ = synced();
            kill_process(pid, Signal::STOP).unwrap();
            child::pause(Duration::from_millis(20));
            kill_process(pid, Signal::CONT).unwrap();
        }
        for _ in 0..round {
            let _ = synced();
        }
        kill_process(pid, ends).unwrap();
        let last = std::iter::from_fn(|| lines.next())
            .filter_map(|line| line.strip_prefix("synced ").map(|version| version.parse::<u8>().unwrap()));
        let last = last.last();
        process.wait().unwrap();
        if let Some(version) = last {
            nothing_is_lost(folder.path(), version);
        } else {
            one_thread().block_on(async {
                let store = builder(folder.path(), Backend::Auto).open().await.unwrap();
                store.close().await.unwrap();
            });
        }
    }
}

/// Makes every thread of this process fail with `errno` in the system calls `calls`.
fn refuse(calls: &[libc::c_long], errno: i32) -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(libc::sock_filter { code: equal as u16, jt: 0, jf: 1, k: *call as u32 });
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call has no memory arguments.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return false;
    }
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the filter is valid for the time of the call.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) };
    if done != 0 {
        println!("no filter");
    }
    done == 0
}

/// io_uring cannot be set up: threads serve the devices.
fn refused_setup(directory: &Path, errno: i32) {
    if !refuse(&[libc::SYS_io_uring_setup], errno) {
        return;
    }
    one_thread().block_on(async {
        let store = builder(directory, Backend::Auto).open().await.unwrap();
        assert_eq!(store.stats().io_backend, "threads");
        fill(&store, 1).await.unwrap();
        store.close().await.unwrap();
        let refused = builder(directory, Backend::Uring).open().await.unwrap_err();
        assert!(refused.to_string().contains("seccomp"), "{refused}");
    });
}

/// The program installs a filter when its store is open: threads take over from the ring.
fn refused_later(directory: &Path, errno: i32) {
    for workers in [1, 2] {
        let runtime = match workers {
            1 => one_thread(),
            _ => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
        };
        runtime.block_on(async {
            let store = Arc::new(builder(directory, Backend::Auto).open().await.unwrap());
            fill(&store, 1).await.unwrap();
            let busy = tokio::spawn({
                let store = Arc::clone(&store);
                async move { fill(&store, 1).await.map(drop) }
            });
            tokio::task::yield_now().await;
            if workers == 2 || refuse(&[libc::SYS_io_uring_enter], errno) {
                busy.await.unwrap().unwrap();
                fill(&store, 2).await.unwrap();
                check(&store, 2).await;
                assert!(workers == 1 || store.stats().io_backend == "threads");
            }
            Arc::into_inner(store).unwrap().close().await.unwrap();
        });
    }
}

/// A file system that cannot reserve disk space: files grow all the same.
fn refused_fallocate(directory: &Path, errno: i32) {
    if !refuse(&[libc::SYS_fallocate], errno) {
        return;
    }
    for (no, io) in BACKENDS.into_iter().enumerate() {
        one_thread().block_on(async {
            let store = builder(&directory.join(no.to_string()), io).open().await.unwrap();
            fill(&store, 1).await.unwrap();
            check(&store, 1).await;
            store.close().await.unwrap();
        });
    }
}

/// Flushes fail: `sync` says so, and what was synced before is there.
fn refused_sync(directory: &Path, errno: i32) {
    one_thread().block_on(async {
        let store = builder(directory, Backend::Threads).open().await.unwrap();
        fill(&store, 1).await.unwrap();
        if refuse(&[libc::SYS_fdatasync, libc::SYS_fsync], errno) {
            let refused = fill(&store, 2).await.unwrap_err();
            assert!(refused.to_string().contains("os error"), "{refused}");
            assert!(store.close().await.is_err());
        }
    });
}

#[test]
fn refused_system_calls_are_replaced_or_named() {
    for (case, errnos, version) in [
        ("refused-setup", [libc::EPERM, libc::ENOSYS], Some(1)),
        ("refused-later", [libc::EPERM, libc::ENOSYS], Some(2)),
        ("refused-fallocate", [libc::EOPNOTSUPP, libc::ENOSYS], None),
        ("refused-sync", [libc::EIO, libc::ENOSPC], Some(1)),
    ] {
        for errno in errnos {
            let folder = tempfile::tempdir().unwrap();
            let case = format!("{case} {errno}");
            let ended = child::run(CHILD, &case, folder.path());
            assert!(ended.ok, "{case}: {ended:?}");
            if ended.text.contains("no filter") {
                skip(&case, "the kernel has no filters of system calls");
            } else if let Some(version) = version {
                nothing_is_lost(folder.path(), version);
            }
        }
    }
}
