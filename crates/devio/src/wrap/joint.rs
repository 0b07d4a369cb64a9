//! A device with two users, each of which flushes it: a store, and the manifest at the head of its HDD.
//!
//! A flush covers what both have written, but its failure is reported to one of them, and the next flush may
//! succeed without having written what the failed one lost. So the users share what they must know:
//!
//! - Flushes run one at a time: of two that overlap, the system may report a failure to the wrong one.
//! - After a failed flush, whose-ever, all flushes of the first user fail: it must be opened again.
//! - The second user may go on with what it writes from then on. It learns of a failure between its writes
//!   and its flush, and counts such writes as lost.

use crate::{DeviceError, DeviceErrorKind, DoneFuture, IoClass, IoOp, SharedDevice};
use parking_lot::Mutex;
use std::sync::Arc;

/// A device with two users, as the second one sees it: see the module.
#[derive(Debug)]
pub struct Joint {
    inner: SharedDevice,
    turn: tokio::sync::Mutex<()>,
    failed: Mutex<Failed>,
}

/// The failed flushes of both users.
#[derive(Clone, Debug, Default)]
struct Failed {
    count: u64,
    last: Option<DeviceError>,
}

/// The number of failed flushes at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failures(u64);

impl Joint {
    /// Shares `device` between two users; the first one's view is
    /// [`Fence::guard_joint`](crate::Fence::guard_joint).
    #[must_use]
    pub fn of(device: SharedDevice) -> Arc<Self> {
        Arc::new(Self { inner: device, turn: tokio::sync::Mutex::default(), failed: Mutex::default() })
    }

    /// The device, for reads and writes.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.inner
    }

    /// The failures so far: ask before the first write that a flush is to cover.
    #[must_use]
    pub fn failures(&self) -> Failures {
        Failures(self.failed.lock().count)
    }

    /// Makes what was written since `seen` durable.
    ///
    /// # Errors
    /// The flush failed, or another has failed since `seen`.
    pub async fn flush(&self, seen: Failures, class: IoClass) -> Result<(), DeviceError> {
        let _turn = self.turn.lock().await;
        let Failed { count, last } = self.failed.lock().clone();
        if let Some(error) = last.filter(|_| count != seen.0) {
            return Err(error);
        }
        let unseen = Unseen(self);
        let flushed = self.inner.flush(class).await;
        std::mem::forget(unseen);
        if let Err(error) = &flushed {
            self.fail(error.clone());
        }
        flushed
    }

    /// A flush of the first user, to which any failure is one too many.
    pub(super) fn flush_first(self: Arc<Self>, class: IoClass) -> DoneFuture {
        // It is in flight from here on, not from its turn on: a dropped store's flush may begin after the
        // drop, and the next opener must wait for it.
        let in_flight = self.inner.occupancy().enter();
        Box::pin(async move {
            let flushed = self.flush(Failures(0), class).await;
            drop(in_flight);
            flushed
        })
    }

    fn fail(&self, error: DeviceError) {
        let mut failed = self.failed.lock();
        *failed = Failed { count: failed.count + 1, last: Some(error) };
    }
}

/// Dropped: a caller gave up a flush whose result nothing will see. It counts as failed.
struct Unseen<'a>(&'a Joint);

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        let kind = DeviceErrorKind::Io(Arc::new(std::io::Error::other("a flush was given up")));
        let device = Arc::from(self.0.inner.name());
        self.0.fail(DeviceError { device, op: IoOp::Flush, offset: 0, len: 0, kind });
    }
}
