//! The statistics through the `metrics` facade (feature `metrics`): a recorder of the embedder's choice
//! receives them once per interval.

use super::summary::{StatsSummary, class_name};
use crate::store::headroom::Headroom;
use crate::store::shared::Shared;
use crate::store::stats::Stats;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use pagetier_devio::{DeviceStats, DirStats, IoClass};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The shortest interval between two publications.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Publishes a store's statistics to the installed [`metrics`] recorder until this, or the store, is
/// dropped. A publication in progress is completed.
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct MetricsExport(JoinHandle<()>);

/// The smallest and the largest end of a bucket, in powers of two of nanoseconds: 8 us and 17 s.
const BUCKET_ENDS: (usize, usize) = (13, 34);

impl MetricsExport {
    /// The ends of the buckets for `pagetier_device_latency_seconds`, in seconds: the powers of two of
    /// nanoseconds from 8 microseconds to 17 seconds, and half-way to the next. Give them to the recorder;
    /// with others an operation may be counted up to an eighth of its latency too low or too high.
    pub const LATENCY_BUCKETS: [f64; 2 * (BUCKET_ENDS.1 - BUCKET_ENDS.0 + 1)] = {
        let mut ends = [0.0; 2 * (BUCKET_ENDS.1 - BUCKET_ENDS.0 + 1)];
        let mut at = 0;
        while at < ends.len() {
            let power = 1_u64 << (BUCKET_ENDS.0 + at / 2);
            ends[at] = (power + power / 2 * (at as u64 % 2)) as f64 / 1e9;
            at += 1;
        }
        ends
    };
}

impl Drop for MetricsExport {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn start(shared: &Arc<Shared>, name: &str, every: Duration) -> MetricsExport {
    describe();
    publish(name, shared, true);
    let (weak, name) = (Arc::downgrade(shared), name.to_owned());
    MetricsExport(tokio::spawn(publish_periodically(weak, name, every.max(INTERVAL_MIN))))
}

async fn publish_periodically(shared: Weak<Shared>, name: String, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let (Some(shared), name) = (shared.upgrade(), name.clone()) else { return };
        // Keep the runtime's worker threads free: the recorder stores latencies one by one, and there may be
        // millions.
        let published = tokio::task::spawn_blocking(move || publish(&name, &shared, false));
        if let Err(error) = published.await {
            return tracing::error!(%error, "the export of the metrics has ended");
        }
    }
}

/// Describes the metrics without units: their names end with them, and an exporter may append them again.
fn describe() {
    describe_counter!("pagetier_pool_hits_total", "Lookups that found the page in memory");
    describe_counter!("pagetier_pool_misses_total", "Lookups that had to read the page");
    describe_counter!("pagetier_pool_events_total", "What happened in the pool, by event");
    describe_gauge!("pagetier_pool_frames", "Frames in the pool");
    describe_gauge!("pagetier_memory_bytes", "Memory by part");
    describe_gauge!("pagetier_ssd_slots", "Slots of the SSD cache, by state");
    describe_counter!("pagetier_ssd_events_total", "What happened in the SSD cache, by event");
    describe_gauge!("pagetier_ssd_degraded", "1: the SSD takes no new pages after a failure");
    describe_gauge!("pagetier_refusing_writes", "1: the store refuses writes");
    describe_gauge!("pagetier_lost_pages", "Pages listed as lost with an SSD, until acknowledged");
    describe_counter!("pagetier_device_operations_total", "Operations, by device, class and direction");
    describe_counter!("pagetier_device_bytes_total", "Bytes moved, by device, class and direction");
    describe_counter!("pagetier_device_busy_seconds_total", "Whole seconds with an operation in flight");
    describe_counter!("pagetier_device_errors_total", "Operations that failed for good");
    describe_counter!("pagetier_device_retries_total", "Repeated attempts");
    describe_gauge!("pagetier_unallocated_bytes", "Free space for new pages before the HDD has to grow");
    describe_gauge!("pagetier_free_bytes", "Free space in the file systems of the store's files");
    describe_gauge!("pagetier_low_room", "Free-space values that are below the threshold");
    describe_histogram!("pagetier_device_latency_seconds", "Latency of operations since the export began");
}

/// Publishes everything once; `begins` if it is the first time in this export.
fn publish(store: &str, shared: &Shared, begins: bool) {
    // Lock before reading the figures: older ones after newer ones would look like a restart.
    let published = &mut shared.published.lock();
    let stats = Stats::of(shared);
    let mut counters = Counters { store, begins, published };
    publish_stats(&mut counters, &stats.summary());
    publish_device(&mut counters, "hdd", &stats.hdd_device);
    publish_device(&mut counters, "ssd", &stats.ssd_device);
    // The manifest lists them until the engine acknowledges the loss, so the count outlives an open.
    let lost = shared.loss.lock().as_ref().map_or(0, |loss| loss.pages());
    gauge!("pagetier_lost_pages", "store" => store.to_owned()).set(lost as f64);
}

/// The counters of one store, by what they have been incremented by so far.
struct Counters<'a> {
    store: &'a str,
    begins: bool,
    published: &'a mut FxHashMap<String, u64>,
}

impl Counters<'_> {
    /// Publishes `count`. As a difference: an SSD that is exchanged and a store that is opened again begin to
    /// count anew, and the recorder's counter must go on.
    fn set(&mut self, name: &'static str, labels: &[(&'static str, &str)], count: u64) {
        let more = self.more(format!("{} {name} {labels:?}", self.store), count);
        counter!(name, &self.labels(labels)).increment(more);
    }

    /// Publishes the latencies that `d` has gained. The facade takes single values, but the store keeps only
    /// the number of those in each of its buckets, and their sum. So the values of a bucket count as equal,
    /// and all buckets are cut at the same share of their width: the one that makes the sum right.
    fn set_latencies(&mut self, name: &'static str, labels: &[(&'static str, &str)], d: &DirStats) {
        let series = format!("{} {name} {labels:?}", self.store);
        let sum = self.more(format!("{series} sum"), d.latency_ns);
        let more: Vec<(u64, u64)> = d
            .latency
            .iter()
            .map(|(floor, count)| (floor, self.more(format!("{series} {floor}"), count)))
            .collect();
        let histogram = histogram!(name, &self.labels(labels));
        // A recorder keeps each value until it is collected. Those of a store that has run for months before
        // this export began would not fit into memory.
        if !self.begins {
            for (seconds, count) in values(&more, sum) {
                histogram.record_many(seconds, count as usize);
            }
        }
    }

    fn labels(&self, labels: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        [("store", self.store)].iter().chain(labels).map(|(key, value)| (*key, (*value).to_owned())).collect()
    }

    fn more(&mut self, series: String, count: u64) -> u64 {
        let before = self.published.insert(series, count).unwrap_or(0);
        count.checked_sub(before).unwrap_or(count)
    }
}

fn publish_stats(counters: &mut Counters<'_>, s: &StatsSummary) {
    let (store, p) = (counters.store.to_owned(), &s.pool.counts);
    counters.set("pagetier_pool_hits_total", &[], p.hits);
    counters.set("pagetier_pool_misses_total", &[], p.misses);
    gauge!("pagetier_pool_frames", "store" => store.clone()).set(s.pool.frames as f64);
    for (event, count) in numbers(p, &["hits", "misses"]) {
        counters.set("pagetier_pool_events_total", &[("event", &event)], count);
    }
    for (part, bytes) in numbers(&s.memory, &["total"]) {
        gauge!("pagetier_memory_bytes", "store" => store.clone(), "part" => part).set(bytes as f64);
    }
    publish_room(&store, &s.room);
    publish_ssd(counters, s);
}

/// The fields of `of` but for `others`, by their names in the statistics that are exported as JSON.
fn numbers(of: &impl Serialize, others: &[&str]) -> Vec<(String, u64)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(of) else { return Vec::new() };
    let wanted = fields.into_iter().filter(|(name, _)| !others.contains(&name.as_str()));
    wanted.filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

fn publish_room(store: &str, room: &Headroom) {
    let store = store.to_owned();
    gauge!("pagetier_unallocated_bytes", "store" => store.clone()).set(room.unallocated_bytes as f64);
    let free = [
        ("hdd", room.hdd_free_bytes),
        ("directory", room.directory_free_bytes),
        ("ssd", room.ssd_free_bytes),
    ];
    for (what, bytes) in free {
        if let Some(bytes) = bytes {
            gauge!("pagetier_free_bytes", "store" => store.clone(), "of" => what).set(bytes as f64);
        }
    }
    gauge!("pagetier_low_room", "store" => store).set(room.low.len() as f64);
}

fn publish_ssd(counters: &mut Counters<'_>, s: &StatsSummary) {
    let (store, ssd) = (counters.store.to_owned(), &s.ssd.tier);
    let slots = [
        // The two counts are read one after the other, so the dirty ones may briefly exceed the pages.
        ("clean", ssd.pages.saturating_sub(ssd.dirty_pages)),
        ("dirty", ssd.dirty_pages),
        ("free", ssd.free.writable as u64),
        ("waiting", ssd.free.waiting as u64),
        ("retired", ssd.free.retired as u64),
    ];
    for (state, count) in slots {
        gauge!("pagetier_ssd_slots", "store" => store.clone(), "state" => state).set(count as f64);
    }
    for (event, count) in numbers(&ssd.counts, &[]) {
        counters.set("pagetier_ssd_events_total", &[("event", &event)], count);
    }
    let flag = |on: bool| f64::from(u8::from(on));
    gauge!("pagetier_ssd_degraded", "store" => store.clone()).set(flag(ssd.ssd_error.is_some()));
    gauge!("pagetier_refusing_writes", "store" => store).set(flag(ssd.refusing.is_some()));
}

fn publish_device(counters: &mut Counters<'_>, device: &'static str, d: &DeviceStats) {
    for class in IoClass::ALL {
        let stats = d.class(class);
        for (direction, dir) in [("read", &stats.read), ("write", &stats.write)] {
            publish_dir(counters, device, class_name(class), direction, dir);
        }
    }
    publish_dir(counters, device, "flush", "flush", &d.flush);
    let of_device = [("device", device)];
    // The facade counts in whole numbers, and Prometheus in base units. What is rounded off is published once
    // the second is full, so no rate is off by more than one second in its interval.
    counters.set("pagetier_device_busy_seconds_total", &of_device, d.busy_ns() / 1_000_000_000);
    counters.set("pagetier_device_errors_total", &of_device, d.errors.total());
    counters.set("pagetier_device_retries_total", &of_device, d.retries.total());
}

fn publish_dir(
    counters: &mut Counters<'_>,
    device: &'static str,
    class: &'static str,
    direction: &'static str,
    d: &DirStats,
) {
    // Classes that a store never uses would otherwise fill the recorder with empty series.
    if d.ops == 0 {
        return;
    }
    let labels = [("device", device), ("class", class), ("direction", direction)];
    counters.set("pagetier_device_operations_total", &labels, d.ops);
    counters.set("pagetier_device_bytes_total", &labels, d.bytes);
    counters.set_latencies("pagetier_device_latency_seconds", &labels, d);
}

/// For each of `buckets`, given as its smallest value in nanoseconds and its count: one value in seconds, and
/// that count. All values add up to `sum` nanoseconds if the bounds of the buckets allow it.
fn values(buckets: &[(u64, u64)], sum: u64) -> impl Iterator<Item = (f64, u64)> {
    // A bucket is an eighth of a power of two wide.
    let width = |floor: u64| (1_u64 << floor.max(8).ilog2() >> 3) as f64;
    let total =
        |of: &dyn Fn(u64) -> f64| buckets.iter().map(|(floor, n)| of(*floor) * *n as f64).sum::<f64>();
    let above = sum as f64 - total(&|floor| floor as f64);
    // The counts and the sum are read one after the other, and the first and the last bucket have no ends.
    // Above 0, since Prometheus counts what equals a bucket's lower end in the bucket below.
    let share = (above / total(&width).max(1.0)).clamp(1e-6, 1.0);
    buckets.iter().map(move |(floor, count)| ((*floor as f64 + share * width(*floor)) / 1e9, *count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_when_what_they_count_begins_anew() {
        let mut counters = Counters { store: "s", begins: false, published: &mut FxHashMap::default() };
        let mut more = |series: &str, count| counters.more(series.to_owned(), count);
        assert_eq!([5, 5, 8, 2, 9].map(|count| more("a", count)), [5, 0, 3, 2, 7]);
        assert_eq!(more("b", 4), 4);
    }

    #[test]
    fn values_stay_in_their_buckets_and_have_the_right_sum() {
        assert_eq!(values(&[], 0).count(), 0);
        // One of 1,000 ns, three between 8,192 and 9,216 ns.
        let buckets = [(960, 1), (8192, 3)];
        let all: Vec<(f64, u64)> = values(&buckets, 1000 + 3 * 9000).collect();
        let sum: f64 = all.iter().map(|(seconds, count)| seconds * *count as f64).sum();
        assert!((sum - 28e-6).abs() < 1e-12, "{all:?}");
        assert!((960e-9..=1024e-9).contains(&all[0].0) && all[0].1 == 1, "{all:?}");
        assert!((8192e-9..=9216e-9).contains(&all[1].0) && all[1].1 == 3, "{all:?}");
        // A sum that was read later, or earlier, than the counts.
        assert_eq!(
            values(&buckets, 1 << 40).map(|(seconds, _)| seconds).collect::<Vec<_>>(),
            [1024e-9, 9216e-9]
        );
        let least: Vec<f64> = values(&buckets, 0).map(|(seconds, _)| seconds).collect();
        assert!(least[0] > 960e-9 && least[1] > 8192e-9 && least[1] < 8193e-9, "{least:?}");
        for (floor, end) in [(1_u64 << 31, 9_u64 << 28), (1 << 32, 9 << 29), (15 << 35, 1 << 39)] {
            let (seconds, _) = values(&[(floor, 1)], u64::MAX).next().unwrap();
            assert_eq!(seconds, end as f64 / 1e9);
        }
    }

    #[test]
    fn the_ends_of_buckets_are_those_of_the_stores() {
        let ends = MetricsExport::LATENCY_BUCKETS;
        assert_eq!(ends[..4], [8192e-9, 12_288e-9, 16_384e-9, 24_576e-9]);
        assert_eq!((ends.len(), ends[43]), (44, 25.769_803_776));
        assert!(ends.is_sorted());
    }
}
