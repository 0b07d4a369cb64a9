//! Device timing: pure arithmetic on nanoseconds, positions and a little state.

use pagetier_devio::IoOp;
use std::collections::BTreeMap;

const MS: f64 = 1e6;
const SECOND: f64 = 1e9;

/// The time of one rotation at 7200 rpm, in nanoseconds.
const TURN_NS: u64 = 8_333_333;
/// The seek time between adjacent tracks.
const SEEK_MIN_NS: f64 = 0.6 * MS;
/// The full-stroke seek time; the square-root curve gives a mean of 8.5 ms over random pairs.
const SEEK_MAX_NS: f64 = 15.4 * MS;
/// Transfer rates of the outermost and the innermost track, in bytes per second.
const OUTER_RATE: f64 = 210e6;
const INNER_RATE: f64 = 100e6;
/// The time of the electronics and the bus per operation, and the bus rate into the cache in bytes per
/// second.
const OVERHEAD_NS: u64 = 50_000;
const BUS_RATE: f64 = 500e6;
/// The capacity of the write cache, in bytes; a write to a full cache waits for the platters.
const WRITE_CACHE_BYTES: u64 = 32 << 20;

/// A timing model. Service times are per operation; queueing is the device's task.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    kind: Kind,
    page_bytes: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    Fixed { read_ns: u64, write_ns: u64 },
    Disk { capacity: u64, write_cache: bool },
    Flash(Flash),
}

#[derive(Clone, Debug)]
struct Flash {
    channels: u32,
    read_ns: u64,
    write_ns: u64,
    flush_ns: u64,
    read_rate: f64,
    write_rate: f64,
}

impl DeviceModel {
    /// The HDD of the 2013 paper (section 6.2): 7.2 ms to read a page, 4.96 ms to write one, at any position,
    /// one at a time. Every page of a longer transfer is charged, as in the paper; part of a page counts as
    /// one. Flushes are free.
    #[must_use]
    pub const fn paper_hdd() -> Self {
        Self { kind: Kind::Fixed { read_ns: 7_200_000, write_ns: 4_960_000 }, page_bytes: 16 << 10 }
    }

    /// The SSD of the 2013 paper: 0.11 ms to read a page, 0.27 ms to write one; otherwise like
    /// [`DeviceModel::paper_hdd`].
    #[must_use]
    pub const fn paper_ssd() -> Self {
        Self { kind: Kind::Fixed { read_ns: 110_000, write_ns: 270_000 }, page_bytes: 16 << 10 }
    }

    /// A 7200 rpm disk of `capacity` bytes: one actuator with a square-root seek curve (0.6 ms to 15.4 ms,
    /// mean 8.5 ms), rotation, and a transfer rate that falls from 210 MB/s at the start to 100 MB/s at the
    /// end. A read that continues where the last operation ended costs only its transfer. Among the waiting
    /// operations of a class, the disk serves the one that it reaches soonest. The write cache is off: see
    /// [`DeviceModel::with_write_cache`].
    #[must_use]
    pub const fn disk_7200rpm(capacity: u64) -> Self {
        Self { kind: Kind::Disk { capacity, write_cache: false }, page_bytes: 16 << 10 }
    }

    /// An NVMe flash device: 16 operations in parallel, 80 µs per read and 20 µs per write plus the transfer
    /// over a shared bus, at 3.2 GB/s for reads and 1.6 GB/s for writes; 100 µs per flush.
    #[must_use]
    pub const fn nvme() -> Self {
        let flash = Flash {
            channels: 16,
            read_ns: 80_000,
            write_ns: 20_000,
            flush_ns: 100_000,
            read_rate: 3.2e9,
            write_rate: 1.6e9,
        };
        Self { kind: Kind::Flash(flash), page_bytes: 16 << 10 }
    }

    /// A volume of a cluster that replicates over a network: 64 operations in parallel, 1.2 ms per read and
    /// 3 ms per write, which waits for all replicas, plus the transfer at 1 GB/s. A flush waits for nothing:
    /// what was acknowledged is durable.
    #[must_use]
    pub const fn replicated_volume() -> Self {
        let volume = Flash {
            channels: 64,
            read_ns: 1_200_000,
            write_ns: 3_000_000,
            flush_ns: 50_000,
            read_rate: 1e9,
            write_rate: 1e9,
        };
        Self { kind: Kind::Flash(volume), page_bytes: 16 << 10 }
    }

    /// The page size in bytes by which the paper's models charge. Default: 16 KiB, the paper's.
    #[must_use]
    pub const fn with_page_bytes(mut self, bytes: u32) -> Self {
        self.page_bytes = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// A [`DeviceModel::disk_7200rpm`] with its write cache on or off; no effect on other models. With it, a
    /// write takes only the bus time. The cached writes reach the platters in order of position: while the
    /// disk is idle, when the cache (32 MiB) is full, and on a flush, which waits for all of them.
    #[must_use]
    pub const fn with_write_cache(mut self, on: bool) -> Self {
        if let Kind::Disk { ref mut write_cache, .. } = self.kind {
            *write_cache = on;
        }
        self
    }

    /// The number of operations served at once.
    pub const fn servers(&self) -> u32 {
        match &self.kind {
            Kind::Flash(flash) => flash.channels,
            Kind::Fixed { .. } | Kind::Disk { .. } => 1,
        }
    }
}

/// The kind of operation to time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Read,
    Write,
    Flush,
}

impl Task {
    pub(super) const fn of(op: IoOp) -> Self {
        match op {
            IoOp::Write => Self::Write,
            IoOp::Flush => Self::Flush,
            IoOp::Read | IoOp::Discard | IoOp::Grow | IoOp::Open => Self::Read,
        }
    }
}

/// The state of a running model.
#[derive(Debug)]
pub(super) struct Timing {
    model: DeviceModel,
    /// The head's position (disk): the end of the last transfer.
    head: u64,
    /// When the last service ended (disk).
    idle_since_ns: u64,
    /// Writes in the cache (disk): length by position.
    cached: BTreeMap<u64, u64>,
    cached_bytes: u64,
    /// When the shared bus is free again (flash).
    bus_free_ns: u64,
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn transfer_ns(bytes: u64, rate: f64) -> u64 {
    (bytes as f64 * SECOND / rate) as u64
}

impl Timing {
    pub(super) const fn new(model: DeviceModel) -> Self {
        Self { model, head: 0, idle_since_ns: 0, cached: BTreeMap::new(), cached_bytes: 0, bus_free_ns: 0 }
    }

    /// Serves `task` from `at_ns` on and returns its duration.
    pub(super) fn serve(&mut self, task: Task, offset: u64, len: u64, at_ns: u64) -> u64 {
        match &self.model.kind {
            Kind::Fixed { read_ns, write_ns } => {
                let pages = len.div_ceil(u64::from(self.model.page_bytes));
                match task {
                    Task::Read => pages * read_ns,
                    Task::Write => pages * write_ns,
                    Task::Flush => 0,
                }
            }
            Kind::Flash(flash) => {
                let (fixed_ns, rate) = match task {
                    Task::Read => (flash.read_ns, flash.read_rate),
                    Task::Write => (flash.write_ns, flash.write_rate),
                    Task::Flush => return flash.flush_ns,
                };
                // Channels work in parallel, their data shares one bus: the bandwidth bounds many large
                // operations, the fixed time bounds few small ones.
                let begin_ns = self.bus_free_ns.max(at_ns);
                self.bus_free_ns = begin_ns + transfer_ns(len, rate);
                self.bus_free_ns - at_ns + fixed_ns
            }
            Kind::Disk { write_cache, .. } => {
                let cache = *write_cache;
                self.destage_while_idle(at_ns);
                let taken_ns = match task {
                    Task::Write if cache => self.cache_write(offset, len, at_ns),
                    Task::Flush => self.destage_to(0, at_ns),
                    Task::Read | Task::Write => OVERHEAD_NS + self.mechanics(task, offset, len, at_ns),
                };
                self.idle_since_ns = at_ns + taken_ns;
                taken_ns
            }
        }
    }

    /// The time to reach a waiting operation; `None` when the model is indifferent.
    pub(super) fn reach_ns(&self, task: Task, offset: u64, at_ns: u64) -> Option<u64> {
        match (&self.model.kind, task) {
            (Kind::Disk { write_cache: true, .. }, Task::Write) | (_, Task::Flush) => None,
            (Kind::Disk { .. }, _) => Some(self.positioning(task, offset, at_ns)),
            _ => None,
        }
    }

    const fn capacity(&self) -> u64 {
        match self.model.kind {
            Kind::Disk { capacity, .. } if capacity > 0 => capacity,
            _ => 1,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn rate_at(&self, offset: u64) -> f64 {
        let share = (offset as f64 / self.capacity() as f64).clamp(0.0, 1.0);
        OUTER_RATE + (INNER_RATE - OUTER_RATE) * share
    }

    /// The time of seek and rotation.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn positioning(&self, task: Task, offset: u64, at_ns: u64) -> u64 {
        // A read that continues comes from the read-ahead buffer, at any time. A write that continues has
        // missed its sector by the time that it comes, unless it follows at once.
        if offset == self.head && (task == Task::Read || at_ns == self.idle_since_ns) {
            return 0;
        }
        let track_bytes = self.rate_at(offset) * TURN_NS as f64 / SECOND;
        let distance = offset.abs_diff(self.head) as f64;
        // Within a track only the platter moves.
        let seek_ns = if distance < track_bytes {
            0.0
        } else {
            let share = (distance / self.capacity() as f64).clamp(0.0, 1.0);
            SEEK_MIN_NS + (SEEK_MAX_NS - SEEK_MIN_NS) * share.sqrt()
        };
        let arrived_ns = at_ns + seek_ns as u64;
        let angle_ns = ((offset as f64 % track_bytes) / track_bytes * TURN_NS as f64) as u64;
        // The platters turn on with the device's clock: the wait depends on when the head arrives.
        let wait_ns = (angle_ns + TURN_NS - arrived_ns % TURN_NS) % TURN_NS;
        seek_ns as u64 + wait_ns
    }

    /// The time of positioning and transfer; moves the head.
    fn mechanics(&mut self, task: Task, offset: u64, len: u64, at_ns: u64) -> u64 {
        let taken_ns = self.positioning(task, offset, at_ns) + transfer_ns(len, self.rate_at(offset));
        self.head = offset + len;
        taken_ns
    }

    fn cache_write(&mut self, offset: u64, len: u64, at_ns: u64) -> u64 {
        let mut taken_ns = OVERHEAD_NS + transfer_ns(len, BUS_RATE);
        if self.cached_bytes + len > WRITE_CACHE_BYTES {
            // Half of it at a time, so that the sorted sweep over the platters has a point.
            taken_ns += self.destage_to(WRITE_CACHE_BYTES / 2, at_ns + taken_ns);
        }
        // A page that is written again in the cache reaches the platters once.
        let before = self.cached.insert(offset, len).unwrap_or(0);
        self.cached_bytes = self.cached_bytes - before + len;
        taken_ns
    }

    /// The next cached write in ascending order of positions, with wrap-around.
    fn next_cached(&self) -> Option<(u64, u64)> {
        let after = self.cached.range(self.head..).next();
        after.or_else(|| self.cached.iter().next()).map(|(offset, len)| (*offset, *len))
    }

    fn destage_one(&mut self, offset: u64, len: u64, at_ns: u64) -> u64 {
        self.cached.remove(&offset);
        self.cached_bytes -= len;
        let taken_ns = self.mechanics(Task::Write, offset, len, at_ns);
        self.idle_since_ns = at_ns + taken_ns;
        taken_ns
    }

    fn destage_to(&mut self, bytes: u64, at_ns: u64) -> u64 {
        let mut taken_ns = 0;
        while self.cached_bytes > bytes {
            let Some((offset, len)) = self.next_cached() else { break };
            taken_ns += self.destage_one(offset, len, at_ns + taken_ns);
        }
        taken_ns
    }

    /// Destages the cached writes for which there was time between the last service and `at_ns`.
    fn destage_while_idle(&mut self, at_ns: u64) {
        while self.idle_since_ns < at_ns {
            let Some((offset, len)) = self.next_cached() else { return };
            self.destage_one(offset, len, self.idle_since_ns);
        }
        // The last destage may still be in progress: it is not interrupted, and the head is at its target.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const TB: u64 = 1 << 40;

    #[test]
    fn the_papers_times_are_by_page() {
        let mut hdd = Timing::new(DeviceModel::paper_hdd());
        assert_eq!(hdd.serve(Task::Read, 0, 16384, 5), 7_200_000);
        assert_eq!(hdd.serve(Task::Write, 0, 4 * 16384, 5), 4 * 4_960_000);
        assert_eq!(hdd.serve(Task::Write, 0, 4096, 5), 4_960_000);
        assert_eq!(hdd.serve(Task::Flush, 0, 0, 5), 0);
        let mut ssd = Timing::new(DeviceModel::paper_ssd().with_page_bytes(4096));
        assert_eq!(
            (ssd.serve(Task::Read, 0, 16384, 0), ssd.serve(Task::Write, 0, 4096, 0)),
            (440_000, 270_000)
        );
    }

    #[test]
    fn a_disk_seeks_turns_and_streams() {
        let mut disk = Timing::new(DeviceModel::disk_7200rpm(TB));
        let mut rng = SmallRng::seed_from_u64(1);
        let (mut now_ns, mut total_ns) = (0, 0);
        for _ in 0..2_000 {
            let taken_ns = disk.serve(Task::Read, rng.random_range(0..TB / 16384) * 16384, 16384, now_ns);
            now_ns += taken_ns;
            total_ns += taken_ns;
        }
        let mean_ns = total_ns / 2_000;
        assert!(
            (12_000_000..14_000_000).contains(&mean_ns),
            "seek 8.5 + half a turn 4.17 + transfer: {mean_ns}"
        );

        disk.serve(Task::Read, 0, 1 << 20, now_ns);
        let stream_ns = disk.serve(Task::Read, 1 << 20, 1 << 20, now_ns + 100_000_000);
        assert!((4_900_000..5_200_000).contains(&stream_ns), "1 MiB at 210 MB/s: {stream_ns}");
        let inner = disk.serve(Task::Read, TB - (2 << 20), 1 << 20, now_ns);
        assert!(inner > 10_000_000);
        let stream_ns = disk.serve(Task::Read, TB - (1 << 20), 1 << 20, now_ns);
        assert!((10_400_000..10_700_000).contains(&stream_ns), "1 MiB at 100 MB/s: {stream_ns}");
    }

    #[test]
    fn a_write_cache_defers_the_mechanics() {
        let mut rng = SmallRng::seed_from_u64(2);
        let places: Vec<u64> = (0..200).map(|_| rng.random_range(0..TB / 16384) * 16384).collect();
        let run = |cache: bool| {
            let mut disk = Timing::new(DeviceModel::disk_7200rpm(TB).with_write_cache(cache));
            let mut now_ns = 0;
            for place in &places {
                now_ns += disk.serve(Task::Write, *place, 16384, now_ns);
            }
            (now_ns, disk.serve(Task::Flush, 0, 0, now_ns), disk)
        };
        let (off_ns, off_flush_ns, _) = run(false);
        let (on_ns, on_flush_ns, disk) = run(true);
        assert_eq!(off_flush_ns, 0);
        assert!(on_ns * 20 < off_ns, "{on_ns} {off_ns}");
        assert!(on_flush_ns < off_ns && on_flush_ns > off_ns / 10, "sorted: {on_flush_ns} {off_ns}");
        assert_eq!((disk.cached_bytes, disk.cached.len()), (0, 0));
    }

    #[test]
    fn an_idle_disk_empties_its_cache() {
        let mut disk = Timing::new(DeviceModel::disk_7200rpm(TB).with_write_cache(true));
        disk.serve(Task::Write, TB / 2, 16384, 0);
        assert_eq!(disk.serve(Task::Flush, 0, 0, 10_000_000_000), 0);
        let mut now_ns = 0;
        for i in 0..4_096 {
            now_ns += disk.serve(Task::Write, (i * 7919 % 4096) * (TB / 4096), 16384, now_ns);
        }
        assert!(disk.cached_bytes <= WRITE_CACHE_BYTES);
    }

    #[test]
    fn flash_shares_its_bandwidth() {
        let mut flash = Timing::new(DeviceModel::nvme());
        assert_eq!(flash.serve(Task::Read, 0, 16384, 0), 80_000 + 5_120);
        assert_eq!(flash.serve(Task::Read, 0, 16384, 0), 80_000 + 2 * 5_120);
        assert_eq!(flash.serve(Task::Read, 0, 16384, 1_000_000), 80_000 + 5_120);
        assert_eq!(flash.serve(Task::Flush, 0, 0, 0), 100_000);
    }
}
