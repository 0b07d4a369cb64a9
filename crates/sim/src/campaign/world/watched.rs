//! The devices that a store under observation gets: they report each operation to the [`Probe`], and check
//! the rules of opens.

use super::builder::AREAS;
use super::crash::SUPERBLOCKS;
use super::disks::SharedDisks;
use super::peek;
use super::probe::{Lease, Part, Probe, Which};
use crate::campaign::report::coverage::State;
use pagetier_devio::{
    Claim, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoBufs, IoClass, IoFuture,
    Occupancy, SharedDevice,
};
use pagetier_page::Header;
use pagetier_testing::{FlushFailure, SimDevice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Probe {
    /// The devices for the store. Each open gets new ones.
    pub(crate) fn devices(self: &Arc<Self>, lease: &Arc<Lease>) -> SharedDisks {
        let device = |which| {
            let (probe, lease) = (Arc::clone(self), Arc::clone(lease));
            Arc::new(Watched { probe, which, lease }) as SharedDevice
        };
        SharedDisks { hdd: device(Which::Hdd), ssd: device(Which::Ssd), ring: device(Which::Ring) }
    }

    /// Devices for an opener that must not get as far as using them.
    pub(crate) fn forbidden(self: &Arc<Self>) -> SharedDisks {
        self.devices(&Arc::new(Lease { forbidden: true, ..Lease::default() }))
    }
}

/// A device of the observed store.
#[derive(Debug)]
struct Watched {
    probe: Arc<Probe>,
    which: Which,
    lease: Arc<Lease>,
}

impl Watched {
    fn inner(&self) -> &Arc<SimDevice> {
        match self.which {
            Which::Hdd => &self.probe.hdd,
            Which::Ssd => &self.probe.ssd,
            Which::Ring => &self.probe.ring,
        }
    }

    /// Checks the rules of opens: a dropped store starts no operation; no store starts one before its
    /// predecessor's have ended; none writes a change that its log does not hold durably.
    fn check(&self, what: &str, offset: u64, bufs: &IoBufs) {
        let name = self.name();
        // The locks refuse a second opener before it looks at a device, so even a read is one too many.
        if self.lease.forbidden {
            self.probe
                .violate(format!("{name}: {what} at {offset} of a second opener while the store is open"));
        }
        // A save of the manifest that began before the drop goes on to its end, and holds the devices.
        let saves =
            self.probe.on_hdd && self.which == Which::Hdd && (what == "flush" || AREAS.contains(&offset));
        if self.lease.released.load(Ordering::Relaxed) && self.probe.watches_drops && !saves {
            self.probe.violate(format!("{name}: {what} at {offset} begins after the store was dropped"));
        }
        // The end of the last operation releases the locks (I18), so the next store finds none in flight.
        let first = !self.lease.begun[self.which as usize].swap(true, Ordering::Relaxed);
        let own = usize::from(saves);
        if first && self.probe.watches_drops && self.inner().occupancy().in_flight() > own {
            self.probe.violate(format!(
                "{name}: {what} at {offset} of an open begins while operations of the previous store are in flight"
            ));
        }
        // Checked where the write begins: from then on the device may keep any part of it.
        let Some(log) = self.probe.log.as_ref().filter(|_| what == "write") else { return };
        let (durable, page_bytes) = (log.durable(), self.probe.page_size().bytes());
        for image in bufs.iter().flat_map(|buf| buf.as_slice().chunks_exact(page_bytes)) {
            let Header { page, lsn, .. } = Header::peek(image);
            // The store may rewrite unchanged what another store left.
            if lsn.0 > durable && peek::is_own(peek::seed_of(&self.probe.manifest), image) {
                let what =
                    format!("page {page} is written with LSN {}, the log is durable up to {durable}", lsn.0);
                self.probe.violate(format!("{name}: {what}"));
            }
        }
    }

    fn watch(&self, part: Part, write: bool, start: impl FnOnce() -> IoFuture) -> IoFuture {
        let flying = self.probe.begin(part, write);
        let fut = start();
        self.probe.boundary(part);
        Box::pin(async move {
            let done = fut.await;
            flying.end();
            done
        })
    }
}

impl Device for Watched {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.check("read", offset, &bufs);
        let part = self.probe.part(self.which, false, offset, class);
        self.watch(part, false, || self.inner().read(offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.check("write", offset, &bufs);
        let part = self.probe.part(self.which, true, offset, class);
        let written = self.watch(part, true, || self.inner().write(offset, bufs, class));
        let probe = Arc::clone(&self.probe);
        Box::pin(async move {
            let done = written.await;
            match &done.result {
                Err(error) if matches!(error.kind, DeviceErrorKind::NotWhole(_)) => {
                    probe.mark(State::RefusedWhole);
                }
                Err(_) if SUPERBLOCKS.contains(&offset) => probe.mark(State::SuperblockFailed),
                _ => {}
            }
            done
        })
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        self.check("flush", 0, &IoBufs::new());
        let state = Some(if self.which == Which::Hdd { State::HddFlush } else { State::SsdFlush });
        // Flushes decide what a crash leaves, and are few.
        let part = Part { state, weight: 3.0 };
        let flying = self.probe.begin(part, true);
        let fut = self.inner().flush(class);
        self.probe.boundary(part);
        let (probe, ssd) = (Arc::clone(&self.probe), self.which != Which::Hdd);
        Box::pin(async move {
            let done = fut.await;
            if done.is_err() {
                probe.mark(match probe.flush_failures[usize::from(ssd)] {
                    FlushFailure::Cached => State::FlushFailedCached,
                    FlushFailure::Reverted => State::FlushFailedReverted,
                    _ => State::FlushFailedNever,
                });
            }
            flying.end();
            done
        })
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        // Growth is no boundary: it ends at once, and a crash may take it back until the next flush.
        let grown = self.inner().grow(bytes);
        if grown.is_err() {
            self.probe.mark(State::GrowthFailed);
        }
        grown
    }

    fn backend(&self) -> &'static str {
        "sim"
    }

    pagetier_devio::delegate! { self => self.inner();
        fn size() -> u64;
        fn cut(bytes: u64) -> Result<(), DeviceError>;
        fn discard(offset: u64, len: u64) -> DoneFuture;
        fn occupancy() -> &Occupancy;
        fn claim() -> Option<Claim>;
        fn alignment() -> usize;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
        fn stats() -> DeviceStats;
        fn name() -> &str;
    }
}
