//! The checks that every device makes before it starts an operation, and the construction of its errors.

use crate::count::class::{Counter, IoClass};
use crate::device::IoBufs;
use crate::{Completion, DeviceError, DeviceErrorKind, IoOp};
use std::sync::Arc;

/// The total length of an operation's buffers.
pub fn total_len(bufs: &IoBufs) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// An operation as errors describe it.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// The kind of operation.
    pub op: IoOp,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Spot {
    /// The error of this operation on `device`.
    #[must_use]
    pub fn error(self, device: &Arc<str>, kind: DeviceErrorKind) -> DeviceError {
        DeviceError { device: Arc::clone(device), op: self.op, offset: self.offset, len: self.len, kind }
    }

    /// The counter of this operation.
    #[must_use]
    pub const fn counter(self, class: IoClass) -> Counter {
        match self.op {
            IoOp::Write => Counter::Write(class),
            IoOp::Flush => Counter::Flush,
            IoOp::Discard => Counter::Discard,
            IoOp::Read | IoOp::Grow | IoOp::Open => Counter::Read(class),
        }
    }
}

/// Checks that offset, addresses and lengths are multiples of `alignment`, and that the range lies within
/// `size`.
pub fn check(offset: u64, bufs: &IoBufs, alignment: usize, size: u64) -> Result<(), DeviceErrorKind> {
    let mask = alignment - 1;
    let aligned = offset & mask as u64 == 0
        && bufs.iter().all(|buf| (buf.ptr().as_ptr() as usize | buf.len()) & mask == 0);
    if !aligned {
        return Err(DeviceErrorKind::Misaligned { required: alignment });
    }
    check_range(offset, total_len(bufs), size)
}

/// Checks that the range lies within `size`.
pub fn check_range(offset: u64, len: u64, size: u64) -> Result<(), DeviceErrorKind> {
    // Checked: an offset from a damaged map may be anything.
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceErrorKind::UnexpectedEof { size }),
    }
}

/// The future of an operation that was refused before it started.
pub fn refused(bufs: IoBufs, error: DeviceError) -> crate::IoFuture {
    Box::pin(std::future::ready(Completion { bufs, result: Err(error) }))
}
