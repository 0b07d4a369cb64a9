//! Device statistics: operations, bytes, times and errors, by class and direction.
//!
//! Recording takes a handful of relaxed atomic additions. A snapshot is not taken at a single instant, but
//! every counter is exact.
//!
//! **Busy time** of a real device is the time during which at least one operation was in flight. The interval
//! between two completions is charged to the operation that ends it, so the classes' busy times add up to the
//! device's. An emulated device charges the service time of its model instead. **Latency** runs from the call
//! to the completion, and includes the wait in the device's queue.

use crate::recent::{Recent, RecentCosts};
use crate::{DeviceErrorKind, IoClass};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sub-buckets per power of two: the resolution is one eighth.
const SUB_BITS: u32 = 3;
/// Values below 2^7 ns share the first bucket.
const MIN_BITS: u32 = 7;
/// Values from 2^39 ns (nine minutes) on share the last bucket.
const MAX_BITS: u32 = 39;
const BUCKETS: usize = ((MAX_BITS - MIN_BITS) << SUB_BITS) as usize;

fn bucket_of(ns: u64) -> usize {
    let ns = ns.clamp(1 << MIN_BITS, (1 << MAX_BITS) - 1);
    let bits = ns.ilog2();
    let sub = (ns >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((bits - MIN_BITS) << SUB_BITS) as usize) + sub as usize
}

/// The smallest value of a bucket, in nanoseconds.
const fn floor_of(bucket: usize) -> u64 {
    let bits = MIN_BITS + (bucket >> SUB_BITS) as u32;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    (1 << bits) + (sub << (bits - SUB_BITS))
}

/// A distribution of times, in buckets an eighth of a power of two wide.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TimeHistogram {
    /// Empty until the first value is recorded.
    counts: Vec<u64>,
}

impl TimeHistogram {
    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that a share `quantile` (0 to 1) of the values does not exceed, in nanoseconds; rounded up by
    /// at most an eighth; 0 without values.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = ((self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return floor_of(bucket + 1);
            }
        }
        0
    }

    /// The non-empty buckets: smallest value in nanoseconds, and count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(b, n)| (floor_of(b), *n))
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
            return;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        for (mine, theirs) in out.counts.iter_mut().zip(&earlier.counts) {
            *mine = mine.saturating_sub(*theirs);
        }
        out
    }
}

/// Statistics of one direction (reads or writes) of one class, or of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
pub struct ClassStats {
    /// Reads.
    pub read: DirStats,
    /// Writes.
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
pub struct ErrorCounts {
    /// [`DeviceErrorKind::Io`].
    pub io: u64,
    /// [`DeviceErrorKind::NoSpace`].
    pub no_space: u64,
    /// [`DeviceErrorKind::Gone`].
    pub gone: u64,
    /// [`DeviceErrorKind::UnexpectedEof`].
    pub eof: u64,
    /// [`DeviceErrorKind::Misaligned`].
    pub misaligned: u64,
    /// Anything else.
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
pub struct DeviceStats {
    /// By class, in the order of [`IoClass::ALL`]; see [`DeviceStats::class`].
    pub classes: [ClassStats; IoClass::ALL.len()],
    /// Flushes; their bytes are 0.
    pub flush: DirStats,
    /// Discards; their bytes are those discarded. Not part of the totals.
    pub discard: DirStats,
    /// Failures.
    pub errors: ErrorCounts,
    /// Repeated attempts.
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

/// Why an attempt was repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetryReason {
    Again,
    Interrupted,
    Cancelled,
    Short,
}

/// The counter of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Read(IoClass),
    Write(IoClass),
    Flush,
    Discard,
}

struct DirCounters {
    bytes: AtomicU64,
    ops: AtomicU64,
    busy_ns: AtomicU64,
    latency_ns: AtomicU64,
    service: Box<[AtomicU64]>,
    latency: Box<[AtomicU64]>,
}

impl DirCounters {
    fn new() -> Self {
        let zeros = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self {
            bytes: AtomicU64::new(0),
            ops: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            latency_ns: AtomicU64::new(0),
            service: zeros(),
            latency: zeros(),
        }
    }

    fn record(&self, bytes: u64, busy_ns: u64, latency_ns: u64) {
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.busy_ns.fetch_add(busy_ns, Relaxed);
        self.latency_ns.fetch_add(latency_ns, Relaxed);
        self.service[bucket_of(busy_ns)].fetch_add(1, Relaxed);
        self.latency[bucket_of(latency_ns)].fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> DirStats {
        let ops = self.ops.load(Relaxed);
        let load = |counts: &[AtomicU64]| TimeHistogram {
            counts: if ops == 0 { Vec::new() } else { counts.iter().map(|n| n.load(Relaxed)).collect() },
        };
        DirStats {
            ops,
            bytes: self.bytes.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            latency_ns: self.latency_ns.load(Relaxed),
            service: load(&self.service),
            latency: load(&self.latency),
        }
    }
}

/// A device's counters.
pub(crate) struct Recorder {
    /// Reads and writes of each class, then flushes, then discards.
    dirs: Vec<DirCounters>,
    errors: [AtomicU64; 6],
    retries: [AtomicU64; 4],
    servers: u32,
    in_flight: AtomicU64,
    /// The start of the current busy interval: the start after idling, or the last completion.
    charged_to_ns: AtomicU64,
    recent: OnceLock<Recent>,
}

impl Recorder {
    pub(crate) fn new(servers: u32) -> Self {
        Self {
            dirs: (0..IoClass::ALL.len() * 2 + 2).map(|_| DirCounters::new()).collect(),
            errors: Default::default(),
            retries: Default::default(),
            servers,
            in_flight: AtomicU64::new(0),
            charged_to_ns: AtomicU64::new(0),
            recent: OnceLock::new(),
        }
    }

    /// See [`crate::Device::track_costs`].
    pub(crate) fn track_costs(&self, points: usize) {
        self.recent.get_or_init(|| Recent::new(points));
    }

    pub(crate) fn recent_costs(&self) -> Option<RecentCosts> {
        self.recent.get().map(Recent::costs)
    }

    /// Records the start of an operation at `now_ns`.
    pub(crate) fn begin(&self, now_ns: u64) {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            self.charged_to_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Records the end, at `now_ns`, of an operation that [`Recorder::begin`] announced. Returns the busy
    /// time to charge to it.
    pub(crate) fn end(&self, now_ns: u64) -> u64 {
        let before = self.charged_to_ns.fetch_max(now_ns, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        now_ns.saturating_sub(before)
    }

    /// Counts a successful operation.
    pub(crate) fn done(&self, slot: Slot, bytes: u64, busy_ns: u64, latency_ns: u64) {
        let at = match slot {
            Slot::Read(class) => class as usize * 2,
            Slot::Write(class) => class as usize * 2 + 1,
            Slot::Flush => IoClass::ALL.len() * 2,
            Slot::Discard => IoClass::ALL.len() * 2 + 1,
        };
        self.dirs[at].record(bytes, busy_ns, latency_ns);
        if let Some(recent) = self.recent.get() {
            recent.note(slot, bytes, busy_ns);
        }
    }

    pub(crate) fn failed(&self, kind: &DeviceErrorKind) {
        let at = match kind {
            DeviceErrorKind::Io(_) => 0,
            DeviceErrorKind::NoSpace => 1,
            DeviceErrorKind::Gone | DeviceErrorKind::Closed => 2,
            DeviceErrorKind::UnexpectedEof { .. } => 3,
            DeviceErrorKind::Misaligned { .. } => 4,
            DeviceErrorKind::Unusable(_) => 5,
        };
        self.errors[at].fetch_add(1, Relaxed);
    }

    pub(crate) fn retried(&self, reason: RetryReason) {
        self.retries[reason as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> DeviceStats {
        let classes = std::array::from_fn(|i| ClassStats {
            read: self.dirs[i * 2].snapshot(),
            write: self.dirs[i * 2 + 1].snapshot(),
        });
        let [io, no_space, gone, eof, misaligned, other] =
            std::array::from_fn(|i| self.errors[i].load(Relaxed));
        let [again, interrupted, cancelled, short] = std::array::from_fn(|i| self.retries[i].load(Relaxed));
        DeviceStats {
            classes,
            flush: self.dirs[IoClass::ALL.len() * 2].snapshot(),
            discard: self.dirs[IoClass::ALL.len() * 2 + 1].snapshot(),
            errors: ErrorCounts { io, no_space, gone, eof, misaligned, other },
            retries: RetryCounts { again, interrupted, cancelled, short },
            servers: self.servers,
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_monotonic_and_tight() {
        let mut last = 0;
        for bucket in 0..BUCKETS {
            let floor = floor_of(bucket);
            assert!(floor > last);
            assert_eq!(bucket_of(floor), bucket);
            assert_eq!(bucket_of(floor_of(bucket + 1) - 1), bucket);
            last = floor;
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn busy_time_is_the_union_of_operations() {
        let recorder = Recorder::new(1);
        recorder.begin(1_000);
        recorder.begin(2_000);
        let first = recorder.end(5_000);
        let second = recorder.end(6_000);
        assert_eq!((first, second), (4_000, 1_000));
        recorder.begin(10_000);
        assert_eq!(recorder.end(11_000), 1_000);
    }

    #[test]
    fn totals_since_and_quantiles() {
        let recorder = Recorder::new(2);
        recorder.done(Slot::Read(IoClass::Demand), 100, 1_000, 3_000);
        let earlier = recorder.snapshot();
        for i in 0..100 {
            recorder.done(Slot::Read(IoClass::Demand), 10, 1_000, 1_000 * (i + 1));
            recorder.done(Slot::Write(IoClass::Ring), 10, 2_000, 2_000);
        }
        recorder.done(Slot::Flush, 0, 500, 500);
        recorder.failed(&DeviceErrorKind::Gone);
        recorder.retried(RetryReason::Short);
        let stats = recorder.snapshot().since(&earlier);
        assert_eq!((stats.totals().read.ops, stats.totals().write.bytes), (100, 1_000));
        assert_eq!(stats.totals_without(&[IoClass::Ring]).write.ops, 0);
        assert_eq!(stats.totals_of(&[IoClass::Ring]).busy_ns(), 200_000);
        assert_eq!(stats.busy_ns(), 300_500);
        assert!((stats.utilisation(Duration::from_nanos(601_000)) - 0.25).abs() < 1e-9);
        assert_eq!((stats.errors.gone, stats.errors.total(), stats.retries.short), (1, 1, 1));
        let p50 = stats.class(IoClass::Demand).read.latency.quantile_ns(0.5);
        assert!((50_000..=57_000).contains(&p50), "{p50}");
        assert_eq!(stats.class(IoClass::Demand).read.latency.count(), 100);
        assert_eq!(stats.class(IoClass::Demand).read.mean_service_ns(), 1_000);
    }
}
