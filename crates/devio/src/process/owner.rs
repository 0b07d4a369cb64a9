//! Which process opened something.
//!
//! A forked process has a copy of its parent's devices and locks, but not the threads that serve them, and it
//! shares their rings and files. So it must touch none of them. A page of memory that the kernel zeroes in
//! every forked process tells the two apart at the price of one load; `getpid` would be a system call, and a
//! fork without the C library calls no handlers.

use crate::DeviceErrorKind;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of this process, 0 in a forked process until that opens something. `None` where the kernel
/// cannot zero memory at a fork (before Linux 4.14).
static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// The largest number that this process and its ancestors have used. A fork copies it, so that no number is
/// used twice in one line of processes.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process that opened something.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    mark: Option<&'static AtomicU64>,
    number: u64,
    pid: u32,
}

impl Default for Owner {
    fn default() -> Self {
        Self::here()
    }
}

impl Owner {
    /// The process that calls this.
    #[must_use]
    pub fn here() -> Self {
        let mark = *MARK.get_or_init(wiped_by_a_fork);
        Self { mark, number: mark.map_or(0, number_of_this_process), pid: std::process::id() }
    }

    /// Whether this is the process; false in one that was forked from it.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        match self.mark {
            // `Relaxed`: within one process the number does not change, and a fork begins with a single
            // thread.
            Some(mark) => mark.load(Ordering::Relaxed) == self.number,
            None => std::process::id() == self.pid,
        }
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What an operation of a forked process fails with.
    pub(crate) fn refusal(&self) -> DeviceErrorKind {
        DeviceErrorKind::Forked { opened_by: self.pid }
    }
}

fn number_of_this_process(mark: &AtomicU64) -> u64 {
    match mark.load(Ordering::Relaxed) {
        0 => {
            // Zeroed by a fork, or not used yet: take the next number of this line of processes.
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may be faster: its number is as good.
            mark.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|it| it, |_| number)
        }
        number => number,
    }
}

/// A word that reads as zero in every process forked from this one.
fn wiped_by_a_fork() -> Option<&'static AtomicU64> {
    let bytes = rustix::param::page_size();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps no existing one.
    let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.ok()?;
    // SAFETY: the range is the mapping just created, to which nothing refers yet.
    if unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(page, bytes) };
        return None;
    }
    // SAFETY: the page is aligned, zeroed and never unmapped, and all access to it is through this reference.
    Some(unsafe { AtomicU64::from_ptr(page.cast()) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_number_whichever_thread_asks() {
        let here = Owner::here();
        let numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Owner::here().number)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(numbers, [here.number; 4]);
        assert!(here.is_here() && here.pid() == std::process::id());
        let elsewhere = Owner { number: here.number + 1, pid: here.pid + 1, ..here };
        assert!(!elsewhere.is_here() && !Owner { mark: None, ..elsewhere }.is_here());
    }

    #[test]
    fn a_forked_process_gets_a_number_of_its_own() {
        // The fork zeroes the mark and keeps the count.
        let mark = AtomicU64::new(0);
        let parent = number_of_this_process(&mark);
        mark.store(0, Ordering::Relaxed);
        let child = number_of_this_process(&mark);
        assert!(child > parent && number_of_this_process(&mark) == child);
    }
}
