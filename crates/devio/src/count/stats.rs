//! Device statistics: operations, bytes, times and errors, by class and direction.
//!
//! A snapshot is not taken at a single instant, but every counter is exact.
//!
//! **Busy time** of a real device is the time during which at least one operation was in flight. The interval
//! between two completions is charged to the operation that ends it, so the classes' busy times add up to the
//! device's. An emulated device charges the service time of its model instead. **Latency** runs from the call
//! to the completion, and includes the wait in the device's queue.

use crate::count::class::IoClass;
use crate::count::histogram::TimeHistogram;
use std::time::Duration;

/// Statistics of one direction (reads or writes) of one class, or of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DirStats {
    /// Operations that succeeded.
    pub ops: u64,
    /// The bytes that they moved.
    pub bytes: u64,
    /// The busy time charged, in nanoseconds (see the module).
    pub busy_ns: u64,
    /// Sum of latencies, in nanoseconds.
    pub latency_ns: u64,
    /// Busy time charged per operation.
    pub service: TimeHistogram,
    /// Latency per operation.
    pub latency: TimeHistogram,
}

impl DirStats {
    /// The mean busy time charged per operation, in nanoseconds; 0 without operations.
    #[must_use]
    pub fn mean_service_ns(&self) -> u64 {
        self.busy_ns.checked_div(self.ops).unwrap_or(0)
    }

    /// The mean latency, in nanoseconds; 0 without operations.
    #[must_use]
    pub fn mean_latency_ns(&self) -> u64 {
        self.latency_ns.checked_div(self.ops).unwrap_or(0)
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            ops: self.ops.saturating_sub(earlier.ops),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            latency_ns: self.latency_ns.saturating_sub(earlier.latency_ns),
            service: self.service.since(&earlier.service),
            latency: self.latency.since(&earlier.latency),
        }
    }

    fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.busy_ns += other.busy_ns;
        self.latency_ns += other.latency_ns;
        self.service.merge(&other.service);
        self.latency.merge(&other.latency);
    }
}

/// Reads and writes of one class, or of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// What was read.
    pub read: DirStats,
    /// What was written.
    pub write: DirStats,
}

impl ClassStats {
    /// The busy time of reads and writes, in nanoseconds.
    #[must_use]
    pub const fn busy_ns(&self) -> u64 {
        self.read.busy_ns + self.write.busy_ns
    }
}

/// Operations that failed for good, by error kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ErrorCounts {
    /// [`DeviceErrorKind::Io`](crate::DeviceErrorKind::Io) and
    /// [`DeviceErrorKind::NoThread`](crate::DeviceErrorKind::NoThread).
    pub io: u64,
    /// [`DeviceErrorKind::NoSpace`](crate::DeviceErrorKind::NoSpace) and
    /// [`DeviceErrorKind::FileSizeLimit`](crate::DeviceErrorKind::FileSizeLimit).
    pub no_space: u64,
    /// [`DeviceErrorKind::Gone`](crate::DeviceErrorKind::Gone).
    pub gone: u64,
    /// [`DeviceErrorKind::UnexpectedEof`](crate::DeviceErrorKind::UnexpectedEof).
    pub eof: u64,
    /// [`DeviceErrorKind::Misaligned`](crate::DeviceErrorKind::Misaligned).
    pub misaligned: u64,
    /// Failures of any other kind.
    pub other: u64,
}

impl ErrorCounts {
    /// The number of all failures.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.io + self.no_space + self.gone + self.eof + self.misaligned + self.other
    }
}

/// Repeated attempts, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RetryCounts {
    /// The kernel was temporarily out of resources (EAGAIN, EBUSY).
    pub again: u64,
    /// A signal interrupted the call (EINTR).
    pub interrupted: u64,
    /// The submitting thread ended (ECANCELED).
    pub cancelled: u64,
    /// A part of the bytes was transferred; the rest followed.
    pub short: u64,
}

impl RetryCounts {
    /// The number of all repeated attempts.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.again + self.interrupted + self.cancelled + self.short
    }
}

/// A device's statistics at one moment, or between two.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceStats {
    /// By class, in the order of [`IoClass::ALL`]; see [`DeviceStats::class`].
    pub classes: [ClassStats; IoClass::ALL.len()],
    /// Flushes; their bytes are 0.
    pub flush: DirStats,
    /// Discards; their bytes are those discarded. Not part of the totals.
    pub discard: DirStats,
    /// Operations that failed for good.
    pub errors: ErrorCounts,
    /// Attempts that were repeated, whatever the operation's end.
    pub retries: RetryCounts,
    /// The number of operations that the device serves at once, for [`DeviceStats::utilisation`]: 1, or the
    /// channels of an emulated flash device. 0 counts as 1.
    pub servers: u32,
}

impl DeviceStats {
    /// The statistics of one class.
    #[must_use]
    pub fn class(&self, class: IoClass) -> &ClassStats {
        &self.classes[class as usize]
    }

    /// The difference from `earlier`, a snapshot of the same device.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // Saturating, so that snapshots in the wrong order, or of two devices, give zeros instead of a
        // panic.
        let (e, r) = (&earlier.errors, &earlier.retries);
        Self {
            classes: std::array::from_fn(|i| ClassStats {
                read: self.classes[i].read.since(&earlier.classes[i].read),
                write: self.classes[i].write.since(&earlier.classes[i].write),
            }),
            flush: self.flush.since(&earlier.flush),
            discard: self.discard.since(&earlier.discard),
            errors: ErrorCounts {
                io: self.errors.io.saturating_sub(e.io),
                no_space: self.errors.no_space.saturating_sub(e.no_space),
                gone: self.errors.gone.saturating_sub(e.gone),
                eof: self.errors.eof.saturating_sub(e.eof),
                misaligned: self.errors.misaligned.saturating_sub(e.misaligned),
                other: self.errors.other.saturating_sub(e.other),
            },
            retries: RetryCounts {
                again: self.retries.again.saturating_sub(r.again),
                interrupted: self.retries.interrupted.saturating_sub(r.interrupted),
                cancelled: self.retries.cancelled.saturating_sub(r.cancelled),
                short: self.retries.short.saturating_sub(r.short),
            },
            servers: self.servers,
        }
    }

    /// The sum of all classes.
    #[must_use]
    pub fn totals(&self) -> ClassStats {
        self.totals_without(&[])
    }

    /// The sum of the given classes.
    #[must_use]
    pub fn totals_of(&self, classes: &[IoClass]) -> ClassStats {
        self.sum(|class| classes.contains(&class))
    }

    /// The sum of all classes but the given ones.
    #[must_use]
    pub fn totals_without(&self, classes: &[IoClass]) -> ClassStats {
        self.sum(|class| !classes.contains(&class))
    }

    fn sum(&self, wanted: impl Fn(IoClass) -> bool) -> ClassStats {
        let mut out = ClassStats::default();
        for class in IoClass::ALL.into_iter().filter(|c| wanted(*c)) {
            out.read.add(&self.class(class).read);
            out.write.add(&self.class(class).write);
        }
        out
    }

    /// The busy time of reads, writes and flushes, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.classes.iter().map(ClassStats::busy_ns).sum::<u64>() + self.flush.busy_ns
    }

    /// The share of `elapsed` times servers during which the device was busy: 0 to 1, or slightly more when
    /// an operation straddles the snapshot.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn utilisation(&self, elapsed: Duration) -> f64 {
        if elapsed.is_zero() {
            return 0.0;
        }
        self.busy_ns() as f64 / (elapsed.as_nanos() as f64 * f64::from(self.servers.max(1)))
    }
}
