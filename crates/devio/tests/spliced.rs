//! A window of a device, alone and in front of another.

use pagetier_devio::conformance::{self, Growth};
use pagetier_devio::{MemoryDevice, SharedDevice, Spliced, Window};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_window_conforms_alone_and_the_rest_beside_it() {
    let hdd: SharedDevice = Arc::new(MemoryDevice::new("hdd", 32 * MIB));
    let window = |range| Window { device: Arc::clone(&hdd), at: 8 * MIB, range };
    let alone: SharedDevice = Arc::new(Spliced::new(None, window(0..16 * MIB)));
    conformance::check(&alone, Growth::Fixed).await;
    let own: SharedDevice = Arc::new(MemoryDevice::new("ssd", 8 * MIB));
    let beside: SharedDevice = Arc::new(Spliced::new(Some(own), window(64 * MIB..65 * MIB)));
    conformance::check(&beside, Growth::Grows).await;
}
