//! The ring itself: the few unsafe calls, each with the rule that makes it sound.
//!
//! Three rules make it sound. *Pushing* happens only under the lock on the device's operations; [`Pusher`]
//! represents that lock. *Reaping* is done by one holder at a time; [`Reaper`], of which there is one,
//! represents that right. Everything that an entry points to, buffers and segment lists, stays in the
//! operation table until its completion was reaped.

use crate::IoBuf;
use crate::IoOp;
use crate::duties::check::Spot;
use crate::kernel::file::RawFile;
use crate::kernel::transfer::Transfer;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

#[cfg(test)]
pub(crate) use refused::Refused;

/// The registered index of the file.
const FILE: types::Fixed = types::Fixed(0);

/// Marks the completion of the wake-up poll; operations carry their slot.
pub(crate) const WAKE: u64 = u64::MAX;

/// See the module.
pub(crate) struct Ring {
    uring: IoUring,
    /// Readable when the reaper must end its wait.
    wake: OwnedFd,
    #[cfg(test)]
    pub(crate) refused: Refused,
}

/// The list of segments that an entry points to: of several on the heap, where they stay when the operation
/// moves. No entry points to a list of one.
#[derive(Debug, Default)]
pub(crate) struct Segments(SmallVec<[libc::iovec; 1]>);

// SAFETY: the pointers refer to the operation's own buffers, which are `Send`.
unsafe impl Send for Segments {}

/// The right to push; kept inside the lock on the operations.
pub(crate) struct Pusher(());

/// The right to reap. Only its holder reaps; it may pass from a reactor to a thread.
pub(crate) struct Reaper(());

impl Pusher {
    /// The device makes exactly one, and keeps it inside the lock on its operations.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Reaper {
    /// The device makes exactly one.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Ring {
    /// A ring for `depth` operations on `file`, or the reason why there is none.
    pub(crate) fn new(depth: u32, file: &RawFile) -> io::Result<Self> {
        // One extra entry for the wake-up poll. The completion queue has twice as many entries, so it cannot
        // overflow.
        let uring =
            IoUring::builder().dontfork().setup_submit_all().build((depth + 1).next_power_of_two())?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
        ];
        // Check the opcodes before the first operation. One that the kernel lacks would otherwise fail each
        // operation with EINVAL, which looks like a bad request.
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A registered file saves the kernel a lookup and two atomic operations per entry.
        uring.submitter().register_files(&[file.fd.as_raw_fd()])?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            uring,
            wake,
            #[cfg(test)]
            refused: Refused::default(),
        })
    }

    /// Queues the rest of a transfer under `slot`. Returns the number of entries that the kernel has not
    /// taken yet, this one included; `None`: the queue is full.
    ///
    /// # Safety
    /// Until the completion of `slot` was reaped, the buffers of `transfer` and `segments` are neither moved
    /// in memory nor freed, nor read (for reads), nor written. (The structures that own them may move.)
    pub(crate) unsafe fn push(
        &self,
        _: &mut Pusher,
        slot: u64,
        transfer: &mut Transfer,
        segments: &mut Segments,
    ) -> Option<usize> {
        let entry = self.entry(transfer, segments).user_data(slot);
        // SAFETY: the `Pusher` proves that no other thread has a view of the submission queue.
        let mut queue = unsafe { self.uring.submission_shared() };
        // SAFETY: the caller guarantees that everything the entry points to stays valid.
        unsafe { queue.push(&entry) }.ok()?;
        Some(queue.len())
    }

    /// The number of queued entries that the kernel has not taken yet: the last ones that were pushed.
    pub(crate) fn untaken(&self, _: &mut Pusher) -> usize {
        // SAFETY: the `Pusher` proves that no other thread has a view of the submission queue.
        unsafe { self.uring.submission_shared() }.len()
    }

    fn entry(&self, transfer: &mut Transfer, segments: &mut Segments) -> squeue::Entry {
        let (spot, at) = (transfer.spot, transfer.position());
        let write = match spot.op {
            IoOp::Flush => return opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            IoOp::Discard => return discard_entry(spot),
            op => op == IoOp::Write,
        };
        // A retry builds the list anew, from where the last attempt ended.
        segments.0.clear();
        transfer.rest(|buf: &mut IoBuf, from, to| {
            let iov_base = buf.ptr().as_ptr().wrapping_add(from).cast();
            segments.0.push(libc::iovec { iov_base, iov_len: to - from });
        });
        // One buffer needs no list.
        if let [one] = segments.0[..] {
            let (base, bytes) = (one.iov_base.cast(), one.iov_len as u32);
            if !write {
                return opcode::Read::new(FILE, base, bytes).offset(at).build();
            }
            let flags = if transfer.whole { libc::RWF_ATOMIC } else { 0 };
            return opcode::Write::new(FILE, base, bytes).offset(at).rw_flags(flags).build();
        }
        // A list in place would move with the operation; one of a single segment was returned above.
        debug_assert!(segments.0.is_empty() || segments.0.spilled());
        let (list, count) = (segments.0.as_ptr(), segments.0.len() as u32);
        if write {
            opcode::Writev::new(FILE, list, count).offset(at).build()
        } else {
            opcode::Readv::new(FILE, list, count).offset(at).build()
        }
    }

    /// Submits what is queued, including entries of other threads.
    pub(crate) fn submit(&self) -> io::Result<usize> {
        #[cfg(test)]
        self.refused.check()?;
        self.uring.submitter().submit()
    }

    /// Submits what is queued and blocks until there is a completion.
    pub(crate) fn wait(&self, _: &Reaper) -> io::Result<usize> {
        #[cfg(test)]
        self.refused.check()?;
        self.uring.submitter().submit_and_wait(1)
    }

    /// Moves the available completions to `out`: slot and result.
    pub(crate) fn reap(&self, _: &mut Reaper, out: &mut Vec<(u64, i32)>) {
        // SAFETY: the `Reaper` proves that no other view of the completion queue exists.
        let queue = unsafe { self.uring.completion_shared() };
        out.extend(queue.map(|entry| (entry.user_data(), entry.result())));
    }

    /// Resets [`Ring::wake`]. The caller must check for the reason afterwards, or it may miss one.
    pub(crate) fn awake(&self) {
        let mut value = [0; 8];
        // The value does not matter: reading resets it.
        let _ = rustix::io::read(&self.wake, &mut value);
    }

    /// Queues the poll that lets [`Ring::wake`] end a wait; it ends at once if `wake` was called before.
    pub(crate) fn arm(&self, _: &mut Pusher) -> Option<usize> {
        let fd = types::Fd(self.wake.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE);
        // SAFETY: the `Pusher` proves that no other thread has a view of the submission queue.
        let mut queue = unsafe { self.uring.submission_shared() };
        // SAFETY: the entry points to nothing; the descriptor lives as long as the ring.
        unsafe { queue.push(&entry) }.ok()?;
        Some(queue.len())
    }

    /// Makes every completion from now on signal the descriptor of [`Ring::wake`], and returns a copy of that
    /// descriptor for a reactor.
    pub(crate) fn announce(&self) -> io::Result<OwnedFd> {
        // A copy for the reactor, which closes what it is given; the ring needs its own to the end.
        let copy = self.wake.try_clone()?;
        self.uring.submitter().register_eventfd(self.wake.as_raw_fd())?;
        Ok(copy)
    }

    /// Reverts [`Ring::announce`]: a thread that blocks in [`Ring::wait`] would be woken twice per
    /// completion, and again by its own wake-up. The thread's first wait ends at once, because the task may
    /// have consumed a wake-up as an announcement.
    pub(crate) fn stop_announcing(&self) {
        self.wake();
        if let Err(error) = self.uring.submitter().unregister_eventfd() {
            tracing::debug!(%error, "io_uring did not announce its completions");
        }
    }

    /// Ends the reaper's wait.
    pub(crate) fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            // Only a full counter can be the reason, and then the reaper is awake anyway.
            tracing::debug!(%error, "the thread that reaps io_uring's completions was awake already");
        }
    }
}

impl Drop for Ring {
    /// The kernel ends a closed ring some time later, and until then keeps the file open, which keeps its
    /// file system mounted. So the file is given up first.
    fn drop(&mut self) {
        if let Err(error) = self.uring.submitter().unregister_files() {
            tracing::debug!(%error, "the kernel releases the ring's file later");
        }
    }
}

fn discard_entry(spot: Spot) -> squeue::Entry {
    opcode::Fallocate::new(FILE, spot.len)
        .offset(spot.offset)
        .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
        .build()
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("entries", &self.uring.params().sq_entries()).finish_non_exhaustive()
    }
}

/// The calls that the kernel is said to refuse.
#[cfg(test)]
mod refused {
    use std::io;
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

    #[derive(Debug, Default)]
    pub(crate) struct Refused {
        errno: AtomicI32,
        calls: AtomicU64,
    }

    impl Refused {
        /// The next `calls` calls are refused with `errno`.
        pub(crate) fn set(&self, errno: i32, calls: u64) {
            self.errno.store(errno, SeqCst);
            self.calls.store(calls, SeqCst);
        }

        pub(crate) fn calls(&self) -> u64 {
            self.calls.load(SeqCst)
        }

        pub(super) fn check(&self) -> io::Result<()> {
            match self.calls.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => Err(io::Error::from_raw_os_error(self.errno.load(SeqCst))),
                Err(_) => Ok(()),
            }
        }
    }
}
