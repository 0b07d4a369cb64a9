//! A process with an open log forks: what the forked process does leaves the log alone.

use pagetier_wal::{FileMedia, Media, Wal, WalError, WalOptions};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(1 << 20)
}

/// Runs `act` in a forked process; returns whether it ended well.
fn forked(act: impl FnOnce()) -> bool {
    // SAFETY: the forked process calls only what this test is about, and ends without returning from here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // SAFETY: ends the process at once: the program's own destructors are not this test's subject.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    unsafe { libc::waitpid(pid, &raw mut status, 0) == pid && status == 0 }
}

/// The outcome of a future that must be ready at once: a forked process has nothing that would drive it.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, WalError>, parent: u32) {
    assert!(matches!(result, Err(WalError::Forked { opened_by }) if opened_by == parent), "{result:?}");
}

#[test]
fn a_forked_process_leaves_the_log_to_its_parent() {
    let (dir, parent) = (tempfile::tempdir().unwrap(), std::process::id());
    let (log, segments) = (dir.path().join("log"), dir.path().join("segments"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let commit = |wal: &Wal, body: &[u8]| {
        let lsn = wal.append_commit(body).unwrap();
        runtime.block_on(wal.flush(lsn)).unwrap();
        lsn
    };
    let wal = Wal::open(&log, options()).unwrap();
    let first = commit(&wal, &[1; 50]);
    let mut media = FileMedia::open(&segments).unwrap();
    media.create(64, b"before").unwrap();
    let ended_well = forked(|| {
        let lsn = wal.append_commit(b"child").unwrap();
        refused(at_once(wal.flush(lsn)), parent);
        refused(at_once(wal.truncate(lsn, lsn)), parent);
        refused(at_once(wal.copy_to(&dir.path().join("copy"))), parent);
        refused(wal.segment(first.0), parent);
        for result in [
            media.append(b", child"),
            media.create(70, b"child"),
            media.resume(64, b"child"),
            media.remove(64),
            media.reserve(1 << 20),
            media.create_reserved(70, b"child"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&format!("process {parent} opened it")), "{error}");
        }
        // Its copies end, and the locks stay.
        let (media, wal) = (&raw const media, &raw const wal);
        // SAFETY: both are valid, and this process does not use them again: it ends without dropping them.
        drop(unsafe { (media.read(), wal.read()) });
        assert!(matches!(Wal::open(&log, options()), Err(WalError::InUse { .. })));
    });
    assert!(ended_well, "it was not refused");
    media.append(b", parent").unwrap();
    assert_eq!(media.read(64).unwrap(), b"before, parent");
    let last = commit(&wal, &[2; 50]);
    assert!(matches!(Wal::open(&log, options()), Err(WalError::InUse { .. })));
    drop(wal);
    let wal = Wal::open(&log, options()).unwrap();
    assert_eq!((wal.end(), wal.oldest_unfinished()), (last, None));
}
