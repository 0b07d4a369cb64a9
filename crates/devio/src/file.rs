//! An opened file or block device: the state that both real backends share, and the operations that need no
//! queue.

use crate::check::{Spot, check, check_range, total_len};
use crate::device::IoBufs;
use crate::recorder::Recorder;
use crate::transfer::{Step, Transfer, kind_of};
use crate::{Completion, DeviceError, DeviceErrorKind, IoClass, IoOp, Occupancy};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) fd: OwnedFd,
    pub(crate) name: Arc<str>,
    pub(crate) alignment: usize,
    pub(crate) block_device: bool,
    size: AtomicU64,
    pub(crate) recorder: Recorder,
    pub(crate) occupancy: Occupancy,
    epoch: Instant,
}

impl RawFile {
    pub(crate) fn new(fd: OwnedFd, name: Arc<str>, alignment: usize, block_device: bool, size: u64) -> Self {
        Self {
            fd,
            name,
            alignment,
            block_device,
            size: AtomicU64::new(size),
            recorder: Recorder::new(1),
            occupancy: Occupancy::default(),
            epoch: Instant::now(),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Nanoseconds since the file was opened.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Prepares a read or write to be issued; returns its completion instead if it is refused.
    pub(crate) fn prepare(
        &self,
        op: IoOp,
        offset: u64,
        bufs: IoBufs,
        class: IoClass,
    ) -> Result<Transfer, Completion> {
        let spot = Spot { op, offset, len: total_len(&bufs) };
        match check(offset, &bufs, self.alignment, self.size()) {
            Ok(()) if spot.len == 0 => Err(Completion { bufs, result: Ok(()) }),
            Ok(()) => Ok(self.begin(spot, class, bufs)),
            Err(kind) => {
                self.recorder.failed(&kind);
                Err(Completion { bufs, result: Err(spot.error(&self.name, kind)) })
            }
        }
    }

    /// Prepares a flush.
    pub(crate) fn prepare_flush(&self, class: IoClass) -> Transfer {
        self.begin(Spot { op: IoOp::Flush, offset: 0, len: 0 }, class, IoBufs::new())
    }

    /// Prepares a discard to be issued.
    pub(crate) fn prepare_discard(&self, offset: u64, len: u64) -> Result<Transfer, DeviceError> {
        let spot = Spot { op: IoOp::Discard, offset, len };
        let aligned = (offset | len) & (self.alignment as u64 - 1) == 0;
        let fits = check_range(offset, len, self.size());
        match if aligned { fits } else { Err(DeviceErrorKind::Misaligned { required: self.alignment }) } {
            Ok(()) => Ok(self.begin(spot, IoClass::Meta, IoBufs::new())),
            Err(kind) => {
                self.recorder.failed(&kind);
                Err(spot.error(&self.name, kind))
            }
        }
    }

    fn begin(&self, spot: Spot, class: IoClass, bufs: IoBufs) -> Transfer {
        let now_ns = self.now_ns();
        self.recorder.begin(now_ns);
        Transfer::new(spot, class, bufs, now_ns, self.occupancy.enter())
    }

    /// Digests the kernel's answer for `transfer`; `Some` with the result when the transfer has ended.
    pub(crate) fn answer(
        &self,
        transfer: &mut Transfer,
        answer: Result<u64, i32>,
    ) -> Option<Result<(), DeviceErrorKind>> {
        match transfer.advance(answer, self.alignment, self.size()) {
            Step::Again(reason) => {
                self.recorder.retried(reason);
                None
            }
            Step::Done(result) => Some(result),
        }
    }

    /// Counts a transfer that has ended, and builds its completion.
    pub(crate) fn finish(&self, transfer: Transfer, result: Result<(), DeviceErrorKind>) -> Completion {
        let now_ns = self.now_ns();
        let busy_ns = self.recorder.end(now_ns);
        let latency_ns = now_ns.saturating_sub(transfer.began_ns);
        let slot = transfer.slot();
        let result = match result {
            Ok(()) => {
                self.recorder.done(slot, transfer.spot.len, busy_ns, latency_ns);
                Ok(())
            }
            Err(kind) => {
                self.recorder.failed(&kind);
                Err(transfer.spot.error(&self.name, kind))
            }
        };
        Completion { bufs: transfer.bufs, result }
    }

    /// Completes an abandoned read that was never issued; it is not counted.
    pub(crate) fn abandon(&self, transfer: Transfer) -> Completion {
        self.recorder.end(self.now_ns());
        Completion { bufs: transfer.bufs, result: Ok(()) }
    }

    /// See [`crate::Device::grow`]. Reserves the space where the file system can.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let size = self.size();
        if bytes <= size {
            return Ok(());
        }
        let result = if self.block_device { Err(DeviceErrorKind::NoSpace) } else { self.extend(size, bytes) };
        match result {
            Ok(()) => {
                self.size.fetch_max(bytes, Ordering::AcqRel);
                Ok(())
            }
            Err(kind) => {
                self.recorder.failed(&kind);
                let spot = Spot { op: IoOp::Grow, offset: size, len: bytes - size };
                Err(spot.error(&self.name, kind))
            }
        }
    }

    fn extend(&self, from: u64, to: u64) -> Result<(), DeviceErrorKind> {
        loop {
            match fallocate(&self.fd, FallocateFlags::empty(), from, to - from) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return ftruncate(&self.fd, to).map_err(|errno| kind_of(errno.raw_os_error()));
                }
                Err(errno) => return Err(kind_of(errno.raw_os_error())),
            }
        }
    }
}
