//! One simulated volume, as several machines have it.

use super::SimDevice;
use pagetier_devio::parts::Spot;
use pagetier_devio::{Claim, Device, DeviceError, DeviceErrorKind, DeviceStats, IoClass, IoOp, Occupancy};
use pagetier_devio::{DoneFuture, IoBufs, IoFuture};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A machine's way to a volume that others may have, too. While it is banned its operations are refused;
/// those in flight may land. Nothing else keeps two machines apart.
#[derive(Debug)]
pub struct SimSeat {
    volume: Arc<SimDevice>,
    occupancy: Occupancy,
    claim: Claim,
    banned: AtomicBool,
}

impl SimSeat {
    /// Another machine's way to `volume`.
    #[must_use]
    pub fn new(volume: &Arc<SimDevice>) -> Self {
        Self {
            volume: Arc::clone(volume),
            occupancy: Occupancy::default(),
            claim: Claim::in_tokio_time(),
            banned: AtomicBool::new(false),
        }
    }

    /// Refuses the machine's operations from now on, or no longer.
    pub fn ban(&self, banned: bool) {
        self.banned.store(banned, Ordering::Relaxed);
    }

    /// Why an operation is refused, if it is.
    fn refused(&self, op: IoOp, offset: u64) -> Option<DeviceError> {
        let banned = self.banned.load(Ordering::Relaxed);
        banned.then(|| {
            self.claim.end();
            Spot { op, offset, len: 0 }.error(&Arc::from(self.volume.name()), DeviceErrorKind::Fenced)
        })
    }

    fn transfer(
        &self,
        op: IoOp,
        offset: u64,
        bufs: IoBufs,
        start: impl FnOnce(&SimDevice, IoBufs) -> IoFuture,
    ) -> IoFuture {
        if let Some(error) = self.refused(op, offset) {
            return pagetier_devio::parts::refused(bufs, error);
        }
        let (started, in_flight) = (start(&self.volume, bufs), self.occupancy.enter());
        Box::pin(async move {
            let done = started.await;
            drop(in_flight);
            done
        })
    }

    fn start(&self, op: IoOp, offset: u64, start: impl FnOnce(&SimDevice) -> DoneFuture) -> DoneFuture {
        if let Some(error) = self.refused(op, offset) {
            return Box::pin(ready(Err(error)));
        }
        let (started, in_flight) = (start(&self.volume), self.occupancy.enter());
        Box::pin(async move {
            let done = started.await;
            drop(in_flight);
            done
        })
    }
}

impl Device for SimSeat {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Read, offset, bufs, |volume, bufs| volume.read(offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Write, offset, bufs, |volume, bufs| volume.write(offset, bufs, class))
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        self.start(IoOp::Flush, 0, |volume| volume.flush(class))
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.refused(IoOp::Grow, bytes).map_or_else(|| self.volume.grow(bytes), Err)
    }

    fn cut(&self, bytes: u64) -> Result<(), DeviceError> {
        self.refused(IoOp::Grow, bytes).map_or_else(|| self.volume.cut(bytes), Err)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        self.start(IoOp::Discard, offset, |volume| volume.discard(offset, len))
    }

    fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    fn claim(&self) -> Option<Claim> {
        Some(self.claim.clone())
    }

    pagetier_devio::delegate! { self => self.volume;
        fn size() -> u64;
        fn alignment() -> usize;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
        fn stats() -> DeviceStats;
        fn backend() -> &'static str;
        fn name() -> &str;
    }
}
