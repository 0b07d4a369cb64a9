//! A device with a range of another in place of its own: an SSD whose doublewrite ring is on the HDD.
//!
//! A flush leaves the other device alone while nothing was written there through the window: it may be slow,
//! or not answer at all, and most flushes are of the own device's writes alone. Writes of class
//! [`IoClass::Meta`] in the window do not count: they need not be durable.

use crate::device::IoBufs;
use crate::duties::check::{Spot, refused, total_len};
use crate::{
    Claim, DataSearch, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoClass, IoFuture,
    IoOp, Occupancy, RecentCosts, SharedDevice,
};
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of a device under addresses of its own.
#[derive(Clone, Debug)]
pub struct Window {
    /// The device.
    pub device: SharedDevice,
    /// Where the window begins on it, in bytes.
    pub at: u64,
    /// The addresses under which it appears.
    pub range: Range<u64>,
}

/// A window in front of a device, or alone. No operation may reach from the one into the other.
///
/// An error names the device on which it occurred.
#[derive(Debug)]
pub struct Spliced {
    own: Option<SharedDevice>,
    window: Window,
    changes: Arc<Changes>,
}

/// The changes in a window.
#[derive(Debug)]
struct Changes {
    begun: AtomicU64,
    /// The number that have ended.
    ended: AtomicU64,
    /// The number of them that a flush has covered; [`UNKNOWN`] at first.
    covered: AtomicU64,
}

/// What an earlier user of the device has changed is not known.
const UNKNOWN: u64 = u64::MAX;

impl Changes {
    /// Notes that a flush has covered the first `ended` changes.
    fn cover(&self, ended: u64) {
        let newer = |covered| (covered == UNKNOWN || covered < ended).then_some(ended);
        let _ = self.covered.fetch_update(Ordering::AcqRel, Ordering::Acquire, newer);
    }
}

impl Spliced {
    /// The addresses of `window` lead there, all others to `own`; without it there are no others.
    #[must_use]
    pub fn new(own: Option<SharedDevice>, window: Window) -> Self {
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let changes = Changes { begun, ended, covered: AtomicU64::new(UNKNOWN) };
        Self { own, window, changes: Arc::new(changes) }
    }

    /// The device that stands for the whole in reports.
    fn outer(&self) -> &SharedDevice {
        self.own.as_ref().unwrap_or(&self.window.device)
    }

    /// Where the `len` bytes at `offset` are.
    fn place(&self, op: IoOp, offset: u64, len: u64) -> Result<(&SharedDevice, u64), DeviceError> {
        let Window { device, at, range } = &self.window;
        let end = offset.saturating_add(len);
        if offset >= range.start && end <= range.end {
            return Ok((device, at + (offset - range.start)));
        }
        if let Some(own) = self.own.as_ref().filter(|_| end <= range.start || offset >= range.end) {
            return Ok((own, offset));
        }
        let kind = DeviceErrorKind::UnexpectedEof { size: range.end };
        Err(Spot { op, offset, len }.error(&Arc::from(self.name()), kind))
    }

    fn transfer(
        &self,
        op: IoOp,
        offset: u64,
        bufs: IoBufs,
        start: impl FnOnce(&SharedDevice, u64, IoBufs) -> IoFuture,
    ) -> IoFuture {
        match self.place(op, offset, total_len(&bufs)) {
            Ok((device, at)) => start(device, at, bufs),
            Err(error) => refused(bufs, error),
        }
    }
}

impl Device for Spliced {
    delegate! { self => self.outer();
        fn occupancy() -> &Occupancy;
        fn backend() -> &'static str;
        fn name() -> &str;
    }

    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Read, offset, bufs, |device, at, bufs| device.read(at, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let in_window = self.window.range.contains(&offset);
        let is_counted = self.own.is_none() || (in_window && class != IoClass::Meta);
        if is_counted {
            self.changes.begun.fetch_add(1, Ordering::AcqRel);
        }
        let write =
            self.transfer(IoOp::Write, offset, bufs, |device, at, bufs| device.write(at, bufs, class));
        if !is_counted {
            return write;
        }
        let changes = Arc::clone(&self.changes);
        Box::pin(async move {
            let done = write.await;
            // Counted before its caller can rely on a flush that begins from here on.
            changes.ended.fetch_add(1, Ordering::AcqRel);
            done
        })
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        // Both begin now, not where the result is awaited: a caller may need to know that none begins later.
        let changes = Arc::clone(&self.changes);
        let ended = changes.ended.load(Ordering::Acquire);
        let is_due = self.own.is_none() || changes.covered.load(Ordering::Acquire) != ended;
        let window = is_due.then(|| self.window.device.flush(class));
        let own = self.own.as_ref().map(|own| own.flush(class));
        Box::pin(async move {
            let window = match window {
                Some(window) => window.await.inspect(|()| changes.cover(ended)),
                None => Ok(()),
            };
            let own = match own {
                Some(own) => own.await,
                None => Ok(()),
            };
            // The window's first: its device has other contents, which are lost with it.
            window.and(own)
        })
    }

    fn settled(&self) -> Option<u64> {
        let Some(own) = &self.own else { return self.window.device.settled() };
        let begun = self.changes.begun.load(Ordering::Acquire);
        // Neither count decreases, so the sum stays only if both do.
        let rest = self.changes.ended.load(Ordering::Acquire) == begun;
        own.settled().filter(|_| rest).map(|own| own + begun)
    }

    fn size(&self) -> u64 {
        let Window { device, at, range } = &self.window;
        match &self.own {
            Some(own) => own.size(),
            None => range.start + device.size().saturating_sub(*at).min(range.end - range.start),
        }
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let Window { device, at, range } = &self.window;
        let end = at + bytes.clamp(range.start, range.end) - range.start;
        if device.size() < end {
            device.grow(end)?;
        }
        self.own.as_ref().map_or(Ok(()), |own| own.grow(bytes))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        match self.place(IoOp::Discard, offset, len) {
            // A discard in the window is not counted: nothing relies on it.
            Ok((device, at)) => device.discard(at, len),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn data_search(&self) -> Option<DataSearch> {
        self.own.as_ref().and_then(|own| own.data_search())
    }

    fn alignment(&self) -> usize {
        self.outer().alignment().max(self.window.device.alignment())
    }

    /// Of its own device: operations in the window count for the window's.
    fn stats(&self) -> DeviceStats {
        self.own.as_ref().map(|own| own.stats()).unwrap_or_default()
    }

    fn track_costs(&self, points: usize) {
        self.own.iter().for_each(|own| own.track_costs(points));
    }

    fn recent_costs(&self) -> Option<RecentCosts> {
        self.own.as_ref().and_then(|own| own.recent_costs())
    }

    fn claim(&self) -> Option<Claim> {
        self.window.device.claim()
    }
}
