//! The devices' own limits: fio, and the bare device layer without a store.

use super::Length;
use pagetier_devio::{IoBuf, IoBufs, IoClass, SharedDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The length of a measurement, after a ramp that is not counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ramp: Duration,
    pub(crate) measured: Duration,
}

impl Times {
    pub(crate) fn selected() -> Self {
        let (ramp, measured) = Length::selected().pick((50, 150), (200, 1500), (200, 1500));
        Self { ramp: Duration::from_millis(ramp), measured: Duration::from_millis(measured) }
    }

    /// Five times as long: for what a cleaner or a write cache smooths out.
    pub(crate) fn longer(self) -> Self {
        Self { ramp: self.ramp * 5, measured: self.measured * 5 }
    }
}

/// The results of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) iops: f64,
    pub(crate) latency_mean_us: f64,
    /// User and system time of this process per operation; NaN for another program's.
    pub(crate) cpu_us: f64,
}

/// The CPU time of this process so far, in microseconds.
pub(crate) fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// A task's operations since the ramp.
#[derive(Default, Debug)]
pub(crate) struct Share {
    ops: u64,
    latency: Duration,
}

/// When a measurement counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    from: Instant,
    until: Instant,
}

impl Share {
    /// Records an operation that started at `began` and has just ended; false when the time is up.
    pub(crate) fn note(&mut self, began: Instant, span: Span) -> bool {
        let ended = Instant::now();
        if ended >= span.until {
            return false;
        }
        if began >= span.from {
            self.ops += 1;
            self.latency += ended - began;
        }
        true
    }
}

/// Runs `depth` tasks, each of which performs one operation after another until the time is up.
pub(crate) async fn measure<Task>(times: Times, depth: u32, task: impl Fn(u32, Span) -> Task) -> Figures
where
    Task: Future<Output = Share> + Send + 'static,
{
    let from = Instant::now() + times.ramp;
    let span = Span { from, until: from + times.measured };
    let tasks: Vec<_> = (0..depth).map(|number| tokio::spawn(task(number, span))).collect();
    let cpu = tokio::spawn(async move {
        tokio::time::sleep_until(span.from.into()).await;
        let before = cpu_us();
        tokio::time::sleep_until(span.until.into()).await;
        cpu_us() - before
    });
    let mut sum = Share::default();
    for task in tasks {
        let share = task.await.expect("the operations succeed");
        sum.ops += share.ops;
        sum.latency += share.latency;
    }
    let ops = sum.ops.max(1) as f64;
    Figures {
        iops: sum.ops as f64 / times.measured.as_secs_f64(),
        latency_mean_us: sum.latency.as_secs_f64() * 1e6 / ops,
        cpu_us: cpu.await.expect("the clock runs") / ops,
    }
}

/// The operations of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    RandomRead,
    RandomWrite,
    SequentialRead,
}

/// What to measure: operations of `block` bytes within `bytes` bytes from `from` on, `depth` at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    pub(crate) block: usize,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
    pub(crate) depth: u32,
}

impl Load {
    /// The device's limit as measured by fio on a file or block device, or why there is none.
    pub(crate) fn by_fio(&self, path: &Path, times: Times) -> Result<Figures, String> {
        self.by_flushing_fio(path, times, 0)
    }

    /// The same with a flush after every `flush_every` writes; 0: without.
    pub(crate) fn by_flushing_fio(
        &self,
        path: &Path,
        times: Times,
        flush_every: u32,
    ) -> Result<Figures, String> {
        let (rw, direction) = match self.op {
            Op::RandomRead => ("randread", "read"),
            Op::RandomWrite => ("randwrite", "write"),
            Op::SequentialRead => ("read", "read"),
        };
        let mut fio = Command::new("fio");
        if self.op != Op::RandomWrite {
            fio.arg("--readonly");
        }
        fio.args([
            "--name=limit",
            "--output-format=json",
            "--ioengine=io_uring",
            "--direct=1",
            "--time_based",
        ])
        // Other places in each round, and each of the same data.
        .args(["--randrepeat=0", "--norandommap", "--allow_file_create=0"])
        .arg(format!("--rw={rw}"))
        .arg(format!("--bs={}", self.block))
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--offset={}", self.from))
        .arg(format!("--size={}", self.bytes))
        .arg(format!("--iodepth={}", self.depth))
        .arg(format!("--fdatasync={flush_every}"))
        .arg(format!("--runtime={}ms", times.measured.as_millis()))
        .arg(format!("--ramp_time={}ms", times.ramp.as_millis()));
        let out = fio.output().map_err(|error| format!("fio does not start: {error}"))?;
        if !out.status.success() {
            return Err(format!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim()));
        }
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
        let figures = &report["jobs"][0][direction];
        match (figures["iops"].as_f64(), figures["lat_ns"]["mean"].as_f64()) {
            (Some(iops), Some(ns)) => Ok(Figures { iops, latency_mean_us: ns / 1e3, cpu_us: f64::NAN }),
            _ => Err("fio's report has no operations".to_owned()),
        }
    }

    /// The limit of the bare device layer on the current runtime.
    pub(crate) async fn by_devio(self, device: &SharedDevice, times: Times) -> Figures {
        let (blocks, next) = (self.bytes / self.block as u64, Arc::new(AtomicU64::new(0)));
        measure(times, self.depth, |task, span| {
            let (device, next) = (SharedDevice::clone(device), Arc::clone(&next));
            let mut rng = SmallRng::seed_from_u64(u64::from(task));
            async move {
                let mut bufs = IoBufs::from_iter([IoBuf::zeroed(self.block)]);
                let mut share = Share::default();
                loop {
                    let began = Instant::now();
                    let block = match self.op {
                        Op::SequentialRead => next.fetch_add(1, Ordering::Relaxed) % blocks,
                        _ => rng.random_range(0..blocks),
                    };
                    let at = self.from + block * self.block as u64;
                    let done = match self.op {
                        Op::RandomWrite => device.write(at, bufs, IoClass::Clean).await,
                        _ => device.read(at, bufs, IoClass::Demand).await,
                    };
                    done.result.expect("the device works");
                    bufs = done.bufs;
                    if !share.note(began, span) {
                        return share;
                    }
                }
            }
        })
        .await
    }

    /// Writes the whole range, so that neither reads nor overwrites meet unwritten parts of a file.
    pub(crate) async fn fill(self, device: &SharedDevice) {
        const CHUNK: u64 = 1 << 20;
        let end = self.from + self.bytes;
        if device.size() < end {
            device.grow(end).expect("room for the limit's data");
        }
        for at in (self.from..end).step_by(CHUNK as usize) {
            let mut buf = IoBuf::zeroed((end - at).min(CHUNK) as usize);
            // Not zeros: some devices do not store those.
            buf.as_mut_slice().iter_mut().zip(0_u32..).for_each(|(byte, i)| *byte = (i * 7 % 251) as u8);
            device.write(at, IoBufs::from_iter([buf]), IoClass::Clean).await.result.expect("room");
        }
        device.flush(IoClass::Clean).await.expect("a flush");
    }
}
