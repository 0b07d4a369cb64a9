//! Measures the cost of a page read and a page write on each device, as in section 6.2 of the 2013 paper, but
//! in seconds instead of hours.
//!
//! There are two phases: reads alone yield the read cost; then reads and writes are mixed, and the reads'
//! share is subtracted from the total. Service times come from the devices' own statistics (on real devices
//! the time with an operation in flight, one at a time here).

use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::PageSize;
use pagetier_policy::Costs;
use std::time::Duration;
use tokio::time::Instant;

/// The maximum number of operations in a phase.
const OPS_MAX: u64 = 2000;
/// The minimum number of operations in a phase, however slow the device.
const OPS_MIN: u64 = 8;
/// The size of the writes that fill a device before the measurement, and their maximum and minimum number.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNKS_MAX: u64 = 64;
const CHUNKS_MIN: u64 = 2;

/// Measures both devices for about `budget` each: a third to write the pages used, a third for each phase. A
/// slow device may take longer, since two writes of 1 MiB and 16 of pages are the minimum. **Overwrites**
/// with zeroes the ranges from `hdd_from` and `ssd_from` bytes on: for devices that hold nothing yet.
/// [`CostSource::CalibratedMs`](crate::options::CostSource::CalibratedMs) runs it when a store is created.
///
/// The figures describe random access within the devices' current size, one request at a time; a disk that
/// later uses its whole capacity seeks farther. Takes its time from tokio, and so works in virtual time.
/// Cancelling it leaves nothing but zeroes behind.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pagetier::{PageSize, calibrate, device::{MemoryDevice, SharedDevice}};
/// use std::{sync::Arc, time::Duration};
///
/// // In place of two block devices.
/// let [hdd, ssd] = ["hdd", "ssd"].map(|name| Arc::new(MemoryDevice::new(name, 8 << 20)) as SharedDevice);
/// let budget = Duration::from_millis(10);
/// let costs = calibrate(&hdd, 0, &ssd, 0, PageSize::default(), budget).await?;
/// println!("reading a page: {} ms from the HDD, {} ms from the SSD", costs.hdd_read_ms, costs.ssd_read_ms);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A device failed.
pub async fn calibrate(
    hdd: &SharedDevice,
    hdd_from: u64,
    ssd: &SharedDevice,
    ssd_from: u64,
    page_size: PageSize,
    budget: Duration,
) -> Result<Costs, DeviceError> {
    let (hdd_read_ms, hdd_write_ms) = measure(hdd, hdd_from, page_size, budget).await?;
    let (ssd_read_ms, ssd_write_ms) = measure(ssd, ssd_from, page_size, budget).await?;
    Ok(Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms })
}

async fn measure(
    device: &SharedDevice,
    from: u64,
    page_size: PageSize,
    budget: Duration,
) -> Result<(f64, f64), DeviceError> {
    let page = page_size.bytes();
    let mut place = fill(device, from, page, budget / 3).await?;
    let (read_ms, reads) = phase(device, &mut place, page, budget / 3, false).await?;
    let read_ms = read_ms / reads.max(1) as f64;
    let (mixed_ms, operations) = phase(device, &mut place, page, budget / 3, true).await?;
    let writes = (operations / 2).max(1) as f64;
    let write_ms = (mixed_ms - (operations as f64 - writes) * read_ms) / writes;
    // Noise can leave the writes a negative share; a cost must be positive.
    Ok((read_ms.max(1e-3), write_ms.max(read_ms / 10.0).max(1e-3)))
}

/// Writes pages across the device for `budget`: reads of never-written parts of a file do not reach the disk.
async fn fill(
    device: &SharedDevice,
    from: u64,
    page: usize,
    budget: Duration,
) -> Result<Places, DeviceError> {
    let pages = (device.size().saturating_sub(from) / page as u64).max(1);
    let chunk_pages = (CHUNK_BYTES / page).max(1).min(usize::try_from(pages).unwrap_or(usize::MAX));
    let chunk_bytes = chunk_pages * page;
    let total = pages / chunk_pages as u64;
    // Golden-section steps spread the chunks, however few there is time for.
    let step = coprime_near(total * 618 / 1000, total);
    let mut chunks = Vec::new();
    let began = Instant::now();
    while (chunks.len() as u64) < total.min(CHUNKS_MAX)
        && ((chunks.len() as u64) < CHUNKS_MIN || began.elapsed() < budget)
    {
        let at = from + chunks.len() as u64 * step % total * chunk_bytes as u64;
        write(device, at, chunk_bytes).await?;
        chunks.push(at);
    }
    device.flush(IoClass::Recovery).await?;
    Ok(Places { chunks, chunk_pages: chunk_pages as u64, page: page as u64, state: 0x9e37_79b9_7f4a_7c15 })
}

/// The first number from `near` on that is coprime to `total`.
fn coprime_near(near: u64, total: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (near.max(1)..).find(|step| gcd(*step, total) == 1).unwrap_or(1)
}

/// Runs one phase; returns the busy time in milliseconds and the number of operations.
async fn phase(
    device: &SharedDevice,
    place: &mut Places,
    page: usize,
    budget: Duration,
    mixed: bool,
) -> Result<(f64, u64), DeviceError> {
    let before = device.stats();
    let began = Instant::now();
    let mut operations = 0;
    while operations < OPS_MIN || (operations < OPS_MAX && began.elapsed() < budget) {
        let at = place.next();
        if mixed && operations % 2 == 1 {
            write(device, at, page).await?;
        } else {
            device.read(at, IoBufs::from_iter([IoBuf::zeroed(page)]), IoClass::Recovery).await.result?;
        }
        operations += 1;
    }
    // By the device's own counters: time in the runtime's queue is not the device's.
    let busy = device.stats().since(&before).totals_of(&[IoClass::Recovery]);
    Ok(((busy.read.busy_ns + busy.write.busy_ns) as f64 / 1e6, operations))
}

async fn write(device: &SharedDevice, at: u64, page: usize) -> Result<(), DeviceError> {
    device.write(at, IoBufs::from_iter([IoBuf::zeroed(page)]), IoClass::Recovery).await.result
}

/// Pseudo-random positions of written pages, the same in every run.
struct Places {
    chunks: Vec<u64>,
    chunk_pages: u64,
    page: u64,
    state: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = self.state >> 33;
        let chunk = self.chunks[random as usize % self.chunks.len()];
        chunk + random / self.chunks.len() as u64 % self.chunk_pages * self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::MemoryDevice;
    use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
    use std::sync::Arc;

    fn emulated(bytes: u64) -> SharedDevice {
        let memory = Arc::new(MemoryDevice::new("scratch", bytes));
        Arc::new(EmulatedDevice::new(memory, DeviceModel::paper_hdd(), EmulatedClock::Tokio))
    }

    #[tokio::test(start_paused = true)]
    async fn only_pages_that_were_written_are_used_and_they_lie_apart() {
        let (page, from) = (16 << 10, 1 << 20);
        for bytes in [(1 << 20) + (16 << 10), 3 << 20, 100 << 20, 1 << 30] {
            let device = emulated(bytes);
            let mut place = fill(&device, from, page, Duration::from_secs(8)).await.unwrap();
            let written = device.stats().totals().write.bytes;
            assert_eq!(written, place.chunks.len() as u64 * place.chunk_pages * page as u64, "{bytes}");
            let mut sorted = place.chunks.clone();
            sorted.sort_unstable();
            let gap = sorted.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0);
            assert!(gap <= ((bytes - from) / place.chunks.len() as u64) * 3, "{bytes}: {sorted:?}");
            assert!(sorted.windows(2).all(|two| two[1] - two[0] >= place.chunk_pages * page as u64));
            let mut used = std::collections::BTreeSet::new();
            for _ in 0..2_000 {
                let at = place.next();
                let chunk = sorted[sorted.partition_point(|chunk| *chunk <= at) - 1];
                assert!(at + page as u64 <= chunk + place.chunk_pages * page as u64, "{bytes}: {at}");
                assert!(at + page as u64 <= bytes && (at - from).is_multiple_of(page as u64));
                used.insert(at);
            }
            let there = place.chunks.len() as u64 * place.chunk_pages;
            assert!(used.len() as u64 * 2 > there.min(2_000), "{bytes}: {} of {there}", used.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_about_its_budget() {
        let (hdd, ssd) = (emulated(256 << 20), emulated(256 << 20));
        let began = Instant::now();
        let budget = Duration::from_secs(6);
        let costs = calibrate(&hdd, 0, &ssd, 0, PageSize::MIN, budget).await.unwrap();
        let taken = began.elapsed();
        assert!(taken > budget && taken < budget * 5 / 2, "{taken:?}");
        assert!(
            (costs.hdd_read_ms - 7.2).abs() < 0.4 && (costs.hdd_write_ms - 4.96).abs() < 0.4,
            "{costs:?}"
        );
    }
}
