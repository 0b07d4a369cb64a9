//! Random reads of 16 KiB through a device, for comparison with fio at the same time:
//!
//! ```text
//! cargo run --release -p pagetier-devio --example rawread -- FILE [DEPTH [SECONDS [uring|threads [current|multi]]]]
//! fio --name=r --filename=FILE --ioengine=io_uring --direct=1 --bs=16k --rw=randread --iodepth=DEPTH --runtime=SECONDS --time_based
//! ```
//!
//! Each of DEPTH tasks reads one page at a time. Prints operations per second, mean and 99th percentile of
//! the latency that the tasks saw, and the CPU time per read.
//!
//! Measured on a virtual machine with 2 cores (Linux 6.18, ext4 on virtio, busy with other work): medians of
//! 7 (depth 1) and 5 (depth 32) interleaved rounds of a second, with latency and operations as ratios to fio
//! in the same round:
//!
//! | depth | fio | uring, current-thread runtime | uring, 2 workers | threads, current-thread runtime |
//! | --- | --- | --- | --- | --- |
//! | 1 | 114 us | 1.12 | 1.45 | 1.12 |
//! | 32 | 32,300 IOPS | 0.97 | 0.90 | 0.89 |

use pagetier_devio::{Backend, DirectIo, IoBuf, IoClass, OpenOptions, SharedDevice, open_file};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: usize = 16 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |text| text.parse());
    let path = args.first().ok_or("usage: rawread FILE [DEPTH [SECONDS [uring|threads [current|multi]]]]")?;
    let (depth, seconds) = (number(1, 32)?, number(2, 5)?);
    let backend = match args.get(3).map(String::as_str) {
        None | Some("uring") => Backend::Uring,
        Some("threads") => Backend::Threads,
        Some(other) => return Err(format!("no such backend: {other}").into()),
    };
    let options = OpenOptions {
        direct: DirectIo::Required,
        backend,
        read_only: true,
        threads: depth as u32,
        ..OpenOptions::default()
    };
    let opened = open_file(Path::new(path), &options)?;
    let runtime = match args.get(4).map(String::as_str) {
        None | Some("current") => tokio::runtime::Builder::new_current_thread().build()?,
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?,
    };
    runtime.block_on(measure(opened.device, depth, Duration::from_secs(seconds)))
}

async fn measure(device: SharedDevice, depth: u64, time: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let cpu_before = cpu_time();
    let began = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|task| tokio::spawn(read_pages(SharedDevice::clone(&device), task, began + time)))
        .collect();
    let mut latencies_ns = Vec::new();
    for task in tasks {
        latencies_ns.extend(task.await??);
    }
    let elapsed = began.elapsed();
    let cpu = cpu_time().saturating_sub(cpu_before);
    latencies_ns.sort_unstable();
    let count = latencies_ns.len().max(1);
    println!(
        "{} depth {depth}: {:.0} IOPS, mean {:.1} us, p99 {:.1} us, cpu {:.1} us per read",
        device.backend(),
        count as f64 / elapsed.as_secs_f64(),
        latencies_ns.iter().sum::<u64>() as f64 / count as f64 / 1e3,
        latencies_ns.get(count * 99 / 100).copied().unwrap_or(0) as f64 / 1e3,
        cpu.as_secs_f64() * 1e6 / count as f64,
    );
    Ok(())
}

async fn read_pages(
    device: SharedDevice,
    seed: u64,
    until: Instant,
) -> Result<Vec<u64>, pagetier_devio::DeviceError> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let pages = device.size() / PAGE as u64;
    let mut bufs = smallvec::smallvec![IoBuf::zeroed(PAGE)];
    let mut latencies_ns = Vec::new();
    loop {
        let began = Instant::now();
        if began >= until {
            return Ok(latencies_ns);
        }
        let offset = rng.random_range(0..pages) * PAGE as u64;
        let completion = device.read(offset, bufs, IoClass::Demand).await;
        completion.result?;
        bufs = completion.bufs;
        latencies_ns.push(began.elapsed().as_nanos() as u64);
    }
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
