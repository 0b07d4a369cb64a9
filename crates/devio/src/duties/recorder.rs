//! A device's counters.

use crate::DeviceErrorKind;
use crate::count::class::{Counter, IoClass};
use crate::count::histogram::{BUCKETS, TimeHistogram, bucket_of};
use crate::count::recent::{Recent, RecentCosts};
use crate::count::stats::{ClassStats, DeviceStats, DirStats, ErrorCounts, RetryCounts};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why an attempt was repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryReason {
    /// The kernel asked for it.
    Again,
    /// A signal.
    Interrupted,
    /// The kernel gave it up.
    Cancelled,
    /// A part of the bytes was moved.
    Short,
}

/// The counts of one direction.
struct DirCounters(Mutex<DirStats>);

impl DirCounters {
    fn new() -> Self {
        let empty = || TimeHistogram { counts: vec![0; BUCKETS] };
        Self(Mutex::new(DirStats { service: empty(), latency: empty(), ..DirStats::default() }))
    }

    fn record(&self, bytes: u64, busy_ns: u64, latency_ns: u64) {
        // A lock is two locked instructions; to add to each number by itself would be six.
        let mut stats = self.0.lock();
        stats.ops += 1;
        stats.bytes += bytes;
        stats.busy_ns += busy_ns;
        stats.latency_ns += latency_ns;
        stats.service.counts[bucket_of(busy_ns)] += 1;
        stats.latency.counts[bucket_of(latency_ns)] += 1;
    }

    fn snapshot(&self) -> DirStats {
        let stats = self.0.lock();
        if stats.ops == 0 { DirStats::default() } else { stats.clone() }
    }
}

/// A device's counters.
#[derive(Default)]
pub struct Recorder {
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
    /// The counters of a new device that serves `servers` operations at once.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        Self {
            dirs: (0..IoClass::ALL.len() * 2 + 2).map(|_| DirCounters::new()).collect(),
            servers,
            ..Self::default()
        }
    }

    /// See [`Device::track_costs`](crate::Device::track_costs).
    pub fn track_costs(&self, points: usize) {
        self.recent.get_or_init(|| Recent::new(points));
    }

    /// See [`Device::recent_costs`](crate::Device::recent_costs).
    #[must_use]
    pub fn recent_costs(&self) -> Option<RecentCosts> {
        self.recent.get().map(Recent::costs)
    }

    /// Records the start of an operation at `now_ns`.
    pub(crate) fn begin(&self, now_ns: u64) {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            // The device was idle up to now: that time is not charged. `max`, because an operation that
            // ended meanwhile may have charged beyond this start.
            self.charged_to_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Records the end, at `now_ns`, of an operation that [`Recorder::begin`] announced. Returns the busy
    /// time to charge to it.
    pub(crate) fn end(&self, now_ns: u64) -> u64 {
        // Each nanosecond is charged once, to the operation whose end moves the mark over it; one that
        // ends "before" the mark, seen from another thread, is charged nothing.
        let before = self.charged_to_ns.fetch_max(now_ns, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        now_ns.saturating_sub(before)
    }

    /// Counts a successful operation.
    pub fn done(&self, counter: Counter, bytes: u64, busy_ns: u64, latency_ns: u64) {
        let at = match counter {
            Counter::Read(class) => class as usize * 2,
            Counter::Write(class) => class as usize * 2 + 1,
            Counter::Flush => IoClass::ALL.len() * 2,
            Counter::Discard => IoClass::ALL.len() * 2 + 1,
        };
        self.dirs[at].record(bytes, busy_ns, latency_ns);
        // Only successes: the time of an error says nothing about what a page costs.
        if let Some(recent) = self.recent.get() {
            recent.note(counter, bytes, busy_ns);
        }
    }

    /// Counts a failed operation.
    pub fn failed(&self, kind: &DeviceErrorKind) {
        let at = match kind {
            DeviceErrorKind::Io(_) | DeviceErrorKind::NoThread(_) => 0,
            DeviceErrorKind::NoSpace | DeviceErrorKind::FileSizeLimit { .. } => 1,
            DeviceErrorKind::Gone
            | DeviceErrorKind::Fenced
            | DeviceErrorKind::Closed
            | DeviceErrorKind::Forked { .. } => 2,
            DeviceErrorKind::UnexpectedEof { .. } => 3,
            DeviceErrorKind::Misaligned { .. } => 4,
            DeviceErrorKind::NotWhole(_) | DeviceErrorKind::Unusable(_) => 5,
        };
        self.errors[at].fetch_add(1, Relaxed);
    }

    /// Counts a repeated attempt.
    pub fn retried(&self, reason: RetryReason) {
        self.retries[reason as usize].fetch_add(1, Relaxed);
    }

    /// See [`Device::stats`](crate::Device::stats).
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
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
    use std::time::Duration;

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
        recorder.done(Counter::Read(IoClass::Demand), 100, 1_000, 3_000);
        let earlier = recorder.stats();
        for i in 0..100 {
            recorder.done(Counter::Read(IoClass::Demand), 10, 1_000, 1_000 * (i + 1));
            recorder.done(Counter::Write(IoClass::Ring), 10, 2_000, 2_000);
        }
        recorder.done(Counter::Flush, 0, 500, 500);
        recorder.failed(&DeviceErrorKind::Gone);
        recorder.retried(RetryReason::Short);
        let stats = recorder.stats().since(&earlier);
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
