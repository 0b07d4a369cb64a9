//! The statistics through the `metrics` facade (feature `metrics`): a recorder of the embedder's choice
//! receives them once per interval.

use super::summary::{StatsSummary, class_name};
use crate::store::headroom::Headroom;
use crate::store::shared::Shared;
use crate::store::stats::Stats;
use metrics::{counter, describe_counter, describe_gauge, gauge};
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
/// dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct MetricsExport(JoinHandle<()>);

impl Drop for MetricsExport {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn start(shared: &Arc<Shared>, name: &str, every: Duration) -> MetricsExport {
    describe();
    publish(name, shared);
    let (weak, name) = (Arc::downgrade(shared), name.to_owned());
    MetricsExport(tokio::spawn(publish_periodically(weak, name, every.max(INTERVAL_MIN))))
}

async fn publish_periodically(shared: Weak<Shared>, name: String, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(shared) = shared.upgrade() else { return };
        publish(&name, &shared);
    }
}

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
    describe_counter!("pagetier_device_busy_ms_total", "Time with an operation in flight, in milliseconds");
    describe_counter!("pagetier_device_errors_total", "Operations that failed for good");
    describe_counter!("pagetier_device_retries_total", "Repeated attempts");
    describe_gauge!("pagetier_unallocated_bytes", "Room for new pages before the HDD has to grow");
    describe_gauge!("pagetier_free_bytes", "Free room in the file systems of the store's files");
    describe_gauge!("pagetier_low_room", "The number of kinds of room that are below the threshold");
    describe_counter!("pagetier_device_latency_us_bucket", "Operations that took at most `le` microseconds");
    describe_counter!("pagetier_device_latency_us_count", "Operations");
    describe_counter!("pagetier_device_latency_us_sum", "The sum of their latencies, in microseconds");
}

fn publish(store: &str, shared: &Shared) {
    let stats = Stats::of(shared);
    let mut counters = Counters { store, published: &mut shared.published.lock() };
    publish_stats(&mut counters, &stats.summary());
    publish_device(&mut counters, "hdd", &stats.hdd_device);
    publish_device(&mut counters, "ssd", &stats.ssd_device);
    // Listed in the manifest until the engine acknowledges the loss, so it outlives an open.
    let lost = shared.loss.lock().as_ref().map_or(0, |loss| loss.pages());
    gauge!("pagetier_lost_pages", "store" => store.to_owned()).set(lost as f64);
}

/// The counters of one store, by what they have been incremented by so far.
struct Counters<'a> {
    store: &'a str,
    published: &'a mut FxHashMap<String, u64>,
}

impl Counters<'_> {
    /// Publishes `count`. As a difference: an SSD that is exchanged and a store that is opened again begin to
    /// count anew, and the recorder's counter must go on.
    fn set(&mut self, name: &'static str, labels: &[(&'static str, &str)], count: u64) {
        let more = self.more(format!("{} {name} {labels:?}", self.store), count);
        let store = [("store", self.store)];
        let labels: Vec<(&str, String)> =
            store.iter().chain(labels).map(|(key, value)| (*key, (*value).to_owned())).collect();
        counter!(name, &labels).increment(more);
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
    counters.set("pagetier_device_busy_ms_total", &of_device, d.busy_ns() / 1_000_000);
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
    counters.set("pagetier_device_latency_us_sum", &labels, d.latency_ns / 1000);
    counters.set("pagetier_device_latency_us_count", &labels, d.latency.count());
    for (le, count) in buckets(d.latency.iter()) {
        let [device, class, direction] = labels;
        let labels = [device, class, direction, ("le", le.as_str())];
        counters.set("pagetier_device_latency_us_bucket", &labels, count);
    }
}

/// The smallest and the largest end of a bucket, in powers of two of nanoseconds: 8 us and 17 s. Ends between
/// them are powers of two, and half-way to the next.
const BUCKET_ENDS: (u32, u32) = (13, 34);

/// A Prometheus histogram: for each end of a bucket, in microseconds, how many values it or a smaller one
/// has.
///
/// As counters, not as histograms of the facade. Those take each value once more, of which there are hundreds
/// of thousands a second, and it is the recorder's configuration whether buckets or quantiles come out: the
/// quantiles of one process over its whole life, which cannot be added up or taken over the last minutes.
fn buckets(values: impl Iterator<Item = (u64, u64)>) -> Vec<(String, u64)> {
    let (first, last) = BUCKET_ENDS;
    let ends = (first..=last).flat_map(|bits| [1_u64 << bits, 3 << (bits - 1)]);
    let mut values = values.peekable();
    let mut seen = 0;
    let mut all = Vec::new();
    for end in ends {
        // Every end is one of the store's own finer buckets, too, so that none is split.
        while let Some((_, count)) = values.next_if(|(floor, _)| *floor < end) {
            seen += count;
        }
        all.push(((end as f64 / 1000.0).to_string(), seen));
    }
    let longer: u64 = values.map(|(_, count)| count).sum();
    all.push(("+Inf".to_owned(), seen + longer));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_when_what_they_count_begins_anew() {
        let mut counters = Counters { store: "s", published: &mut FxHashMap::default() };
        let mut more = |series: &str, count| counters.more(series.to_owned(), count);
        assert_eq!([5, 5, 8, 2, 9].map(|count| more("a", count)), [5, 0, 3, 2, 7]);
        assert_eq!(more("b", 4), 4);
    }

    #[test]
    fn buckets_count_the_values_up_to_their_ends() {
        assert!(buckets([].into_iter()).iter().all(|(_, count)| *count == 0));
        // Values from 1,000 ns, 8,192 ns, 11,264 ns and 2^38 ns on, as the store's own buckets hold them.
        let all = buckets([(1000, 1), (8192, 10), (11_264, 100), (1 << 38, 1000)].into_iter());
        let ends: Vec<&str> = all.iter().map(|(end, _)| end.as_str()).collect();
        assert_eq!(ends[..4], ["8.192", "12.288", "16.384", "24.576"]);
        assert_eq!((ends.len(), ends[43], ends[44]), (45, "25769803.776", "+Inf"));
        let counts: Vec<u64> = all.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts[0], counts[1], counts[2], counts[43], counts[44]), (1, 111, 111, 111, 1111));
    }
}
