//! A device with two users, each of which flushes it: a store, and the manifest at the head of its HDD.
//!
//! A flush covers what both have written, but its failure is reported to one of them, and the next flush may
//! succeed without having written what the failed one lost. So the users share what they must know:
//!
//! - Flushes run one at a time: of two that overlap, the system may report a failure to the wrong one.
//! - After a failed flush, whose-ever, all flushes of the first user fail: it must be opened again.
//! - The second user may go on with what it writes from then on. It learns of a failure between its writes
//!   and its flush, and counts such writes as lost.

use crate::{
    Claim, DataSearch, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoBufs, IoClass,
    IoFuture, IoOp, Occupancy, RecentCosts, SharedDevice,
};
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::Arc;

/// The second user's view of a device: see the module.
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
    /// Shares `device` between two users; the first one's view is a device.
    #[must_use]
    pub fn of(device: SharedDevice) -> (SharedDevice, Arc<Self>) {
        let (turn, failed) = (tokio::sync::Mutex::default(), Mutex::default());
        let joint = Arc::new(Self { inner: device, turn, failed });
        (Arc::new(First(Arc::clone(&joint))), joint)
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

/// The first user's view.
#[derive(Debug)]
struct First(Arc<Joint>);

impl Device for First {
    delegate! { self => self.0.inner;
        fn read(offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;
        fn write(offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;
        fn settled() -> Option<u64>;
        fn size() -> u64;
        fn grow(bytes: u64) -> Result<(), DeviceError>;
        fn cut(bytes: u64) -> Result<(), DeviceError>;
        fn discard(offset: u64, len: u64) -> DoneFuture;
        fn data_search() -> Option<DataSearch>;
        fn register(regions: &[(NonNull<u8>, usize)]) -> bool;
        fn occupancy() -> &Occupancy;
        fn alignment() -> usize;
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
        fn claim() -> Option<Claim>;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
        fn backend() -> &'static str;
        fn name() -> &str;
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        let joint = Arc::clone(&self.0);
        // From here on, not from its turn on: a dropped store's flush may begin after the drop, and the next
        // opener must wait for it.
        let in_flight = joint.inner.occupancy().enter();
        // Any failure is one too many.
        Box::pin(async move {
            let flushed = joint.flush(Failures(0), class).await;
            drop(in_flight);
            flushed
        })
    }
}
