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

/// The counts of one direction before the first operation.
fn none() -> DirStats {
    let empty = || TimeHistogram { counts: vec![0; BUCKETS] };
    DirStats { service: empty(), latency: empty(), ..DirStats::default() }
}

fn record(stats: &mut DirStats, bytes: u64, busy_ns: u64, latency_ns: u64) {
    stats.ops += 1;
    stats.bytes += bytes;
    stats.busy_ns += busy_ns;
    stats.latency_ns += latency_ns;
    stats.service.counts[bucket_of(busy_ns)] += 1;
    stats.latency.counts[bucket_of(latency_ns)] += 1;
}

/// What the start and the end of every operation change. One lock each time is two locked instructions; to
/// add to each number by itself would be ten.
#[derive(Default)]
struct Counts {
    in_flight: u64,
    /// The start of the current busy interval: the start after idling, or the last completion.
    charged_to_ns: u64,
    /// Reads and writes of each class, then flushes, then discards.
    dirs: Vec<DirStats>,
}

impl Counts {
    /// Ends an operation at `now_ns`; returns the busy time to charge to it. Each nanosecond is charged once,
    /// to the operation whose end moves the mark over it; one that ends "before" the mark, seen from another
    /// thread, is charged nothing.
    fn end(&mut self, now_ns: u64) -> u64 {
        self.in_flight -= 1;
        let busy_ns = now_ns.saturating_sub(self.charged_to_ns);
        self.charged_to_ns = self.charged_to_ns.max(now_ns);
        busy_ns
    }
}

/// The place of a counter in [`Counts::dirs`].
fn place_of(counter: Counter) -> usize {
    match counter {
        Counter::Read(class) => class as usize * 2,
        Counter::Write(class) => class as usize * 2 + 1,
        Counter::Flush => IoClass::ALL.len() * 2,
        Counter::Discard => IoClass::ALL.len() * 2 + 1,
    }
}

/// A device's counters.
#[derive(Default)]
pub struct Recorder {
    counts: Mutex<Counts>,
    errors: [AtomicU64; 6],
    retries: [AtomicU64; 4],
    servers: u32,
    recent: OnceLock<Recent>,
}

impl Recorder {
    /// The counters of a new device that serves `servers` operations at once.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        let dirs = (0..IoClass::ALL.len() * 2 + 2).map(|_| none()).collect();
        Self { counts: Mutex::new(Counts { dirs, ..Counts::default() }), servers, ..Self::default() }
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
        let mut counts = self.counts.lock();
        if counts.in_flight == 0 {
            // The device was idle up to now: that time is not charged. `max`, because an operation that
            // ended meanwhile may have charged beyond this start.
            counts.charged_to_ns = counts.charged_to_ns.max(now_ns);
        }
        counts.in_flight += 1;
    }

    /// Records the end, at `now_ns`, of an operation that [`Recorder::begin`] announced and that is not
    /// counted.
    pub(crate) fn end(&self, now_ns: u64) {
        self.counts.lock().end(now_ns);
    }

    /// The same for a successful operation, which is counted. `latency_ns` is `None` if it ended inside its
    /// call, and has taken no time.
    pub(crate) fn end_done(&self, now_ns: u64, counter: Counter, bytes: u64, latency_ns: Option<u64>) {
        let mut counts = self.counts.lock();
        let busy_ns = counts.end(now_ns);
        let (busy_ns, latency_ns) = latency_ns.map_or((0, 0), |latency_ns| (busy_ns, latency_ns));
        record(&mut counts.dirs[place_of(counter)], bytes, busy_ns, latency_ns);
        drop(counts);
        self.note_recent(counter, bytes, busy_ns);
    }

    /// Counts a successful operation.
    pub fn done(&self, counter: Counter, bytes: u64, busy_ns: u64, latency_ns: u64) {
        record(&mut self.counts.lock().dirs[place_of(counter)], bytes, busy_ns, latency_ns);
        self.note_recent(counter, bytes, busy_ns);
    }

    fn note_recent(&self, counter: Counter, bytes: u64, busy_ns: u64) {
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
        let counts = self.counts.lock();
        let snapshot = |at: usize| {
            let stats = &counts.dirs[at];
            if stats.ops == 0 { DirStats::default() } else { stats.clone() }
        };
        let classes =
            std::array::from_fn(|i| ClassStats { read: snapshot(i * 2), write: snapshot(i * 2 + 1) });
        let [io, no_space, gone, eof, misaligned, other] =
            std::array::from_fn(|i| self.errors[i].load(Relaxed));
        let [again, interrupted, cancelled, short] = std::array::from_fn(|i| self.retries[i].load(Relaxed));
        DeviceStats {
            classes,
            flush: snapshot(place_of(Counter::Flush)),
            discard: snapshot(place_of(Counter::Discard)),
            errors: ErrorCounts { io, no_space, gone, eof, misaligned, other },
            retries: RetryCounts { again, interrupted, cancelled, short },
            servers: self.servers,
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("in_flight", &self.counts.lock().in_flight).finish_non_exhaustive()
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
        let end = |now_ns| recorder.counts.lock().end(now_ns);
        assert_eq!((end(5_000), end(6_000)), (4_000, 1_000));
        recorder.begin(10_000);
        assert_eq!(end(11_000), 1_000);
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
