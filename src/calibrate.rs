//! What a page read and a page write cost on each device, measured as in section 6.2 of the 2013 paper, in seconds not hours.
//!
//! Two phases: reads alone give the read cost; then reads and writes mixed, from whose total the reads' share is taken away. Service times are the
//! devices' own statistics (on real devices the time with an operation in flight, one at a time here).

use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::PageSize;
use pagetier_policy::Costs;
use std::time::Duration;
use tokio::time::Instant;

/// Operations of one phase, at most.
const OPS_MAX: u64 = 2000;
/// Operations of one phase, at least, however slow the device.
const OPS_MIN: u64 = 8;

/// Measures both devices, each for about `budget`. **Overwrites** with zeroes what lies from `hdd_from` and `ssd_from` bytes on: for
/// devices that hold nothing yet. [`crate::Builder::calibrate`] does it when a store is created.
///
/// The figures describe random access within what the devices hold now; a disk whose whole width is used later seeks farther. Takes its time
/// from tokio, so that it works in virtual time too.
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
    let pages = (device.size().saturating_sub(from) / page as u64).max(1);
    let mut place = Places { from, pages, page: page as u64, state: 0x9e37_79b9_7f4a_7c15 };
    // Unwritten parts of a file are read without the disk.
    for at in 0..pages.min(OPS_MAX) {
        let at = from + at * (pages / pages.min(OPS_MAX)) * page as u64;
        write(device, at, page).await?;
    }
    device.flush(IoClass::Recovery).await?;
    let (read_ms, reads) = phase(device, &mut place, page, budget / 2, false).await?;
    let read_ms = read_ms / reads.max(1) as f64;
    let (mixed_ms, operations) = phase(device, &mut place, page, budget / 2, true).await?;
    let writes = (operations / 2).max(1) as f64;
    let write_ms = (mixed_ms - (operations as f64 - writes) * read_ms) / writes;
    // Noise can leave less than nothing for the writes; a cost must be positive.
    Ok((read_ms.max(1e-3), write_ms.max(read_ms / 10.0).max(1e-3)))
}

/// The busy time in milliseconds, and the operations, of one phase.
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
    let busy = device.stats().since(&before).totals_of(&[IoClass::Recovery]);
    Ok(((busy.read.busy_ns + busy.write.busy_ns) as f64 / 1e6, operations))
}

async fn write(device: &SharedDevice, at: u64, page: usize) -> Result<(), DeviceError> {
    device.write(at, IoBufs::from_iter([IoBuf::zeroed(page)]), IoClass::Recovery).await.result
}

/// Pseudo-random page positions, the same in every run.
struct Places {
    from: u64,
    pages: u64,
    page: u64,
    state: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.from + (self.state >> 33) % self.pages * self.page
    }
}
