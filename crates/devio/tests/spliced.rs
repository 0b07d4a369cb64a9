//! A device with a window of another in place of a range of its own.

use pagetier_devio::conformance::{self, Growth};
use pagetier_devio::{MemoryDevice, SharedDevice, Spliced, Window};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Of a window alone, which has no statistics of its own, the unit tests say what it does.
#[tokio::test]
async fn a_device_conforms_with_a_window_in_it() {
    let hdd: SharedDevice = Arc::new(MemoryDevice::new("hdd", 32 * MIB));
    let own: SharedDevice = Arc::new(MemoryDevice::new("ssd", 8 * MIB));
    let window = Window { device: hdd, at: 8 * MIB, range: 64 * MIB..65 * MIB };
    let device: SharedDevice = Arc::new(Spliced::new(Some(own), window));
    conformance::check(&device, Growth::Grows).await;
}
