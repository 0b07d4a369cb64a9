//! What do a page read and a page write cost on each device? `cargo bench --bench calibrate`.
//!
//! Measures both devices as a new store does with `CostSource::CalibratedMs` (section 6.2 of the 2013 paper):
//! one random operation at a time, reads alone and then reads and writes mixed. The last line has the costs
//! in the form that `tpcc_lite --costs` takes. There is no limit; the paper's disk and SSD stand beside them.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices. Without them it measures files under `target/`.

mod common;

use common::report::Report;
use common::target::{Pair, Target};
use common::{Length, Workers, runtime};
use pagetier::device::SharedDevice;
use pagetier::{Costs, PageSize, calibrate};
use std::time::Duration;

/// The size of a file to measure.
const FILE_BYTES: u64 = 1 << 30;
const SHORT_BYTES: u64 = 32 << 20;

fn main() {
    let pair = Pair::selected();
    let mut report = Report::new("calibrate", &pair.name(), &[&pair.hdd.about, &pair.ssd.about]);
    let budget = Duration::from_millis(Length::selected().pick(150, 3000, 12_000));
    let measured = runtime(Workers::One).block_on(async {
        let (hdd, ssd) = (device(&pair.hdd), device(&pair.ssd));
        calibrate(&hdd, 0, &ssd, 0, PageSize::DEFAULT, budget).await.expect("both devices work")
    });
    let paper = Costs::PAPER;
    report.head(&["milliseconds per page of 16 KiB", "measured", "the 2013 paper's"]);
    for (what, cost) in [
        ("SSD read", (|c| c.ssd_read_ms) as fn(&Costs) -> f64),
        ("HDD read", |c| c.hdd_read_ms),
        ("SSD write", |c| c.ssd_write_ms),
        ("HDD write", |c| c.hdd_write_ms),
    ] {
        report.line(format_args!("| {what} | {:.4} | {:.2} |", cost(&measured), cost(&paper)));
    }
    let Costs { ssd_read_ms, hdd_read_ms, ssd_write_ms, hdd_write_ms } = measured;
    report.line(format_args!(
        "\n--costs {ssd_read_ms:.4},{hdd_read_ms:.4},{ssd_write_ms:.4},{hdd_write_ms:.4}"
    ));
    report.finish();
}

/// The device to measure; a file first gets a size.
fn device(target: &Target) -> SharedDevice {
    let device = target.device();
    if device.size() == 0 {
        let bytes = Length::selected().pick(SHORT_BYTES, FILE_BYTES, FILE_BYTES);
        device.grow(bytes).expect("room for the file");
    }
    device
}
