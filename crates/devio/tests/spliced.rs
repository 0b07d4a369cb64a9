//! A device with a window of another in place of a range of its own.

use pagetier_devio::{Device, IoBuf, IoBufs, IoClass, IoOp, MemoryDevice, SharedDevice, Spliced, Window};
use pagetier_testing::conformance::{Growth, check_device};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A window alone has no statistics of its own: the tests below say what it does.
#[tokio::test]
async fn a_device_conforms_with_a_window_in_it() {
    let hdd: SharedDevice = Arc::new(MemoryDevice::new("hdd", 32 * MIB));
    let own: SharedDevice = Arc::new(MemoryDevice::new("ssd", 8 * MIB));
    let window = Window { device: hdd, at: 8 * MIB, range: 64 * MIB..65 * MIB };
    let device: SharedDevice = Arc::new(Spliced::new(Some(own), window));
    check_device(&device, Growth::Grows).await;
}

const BLOCK: u64 = 4096;

fn sim(name: &str, bytes: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(name, bytes, 1, &SimPower::new()))
}

/// The blocks 2 and 3 of an SSD of 8, in the blocks 5 and 6 of an HDD.
fn spliced() -> (Arc<SimDevice>, Arc<SimDevice>, Spliced) {
    let (ssd, hdd) = (sim("ssd", 8 * BLOCK), sim("hdd", 16 * BLOCK));
    let device = Arc::clone(&hdd) as SharedDevice;
    let window = Window { device, at: 5 * BLOCK, range: 2 * BLOCK..4 * BLOCK };
    let spliced = Spliced::new(Some(Arc::clone(&ssd) as SharedDevice), window);
    (ssd, hdd, spliced)
}

fn block(byte: u8) -> IoBufs {
    let mut block = IoBuf::zeroed(BLOCK as usize);
    block.as_mut_slice().fill(byte);
    IoBufs::from_iter([block])
}

#[tokio::test(start_paused = true)]
async fn the_window_leads_to_the_other_device_and_all_else_to_its_own() {
    let (ssd, hdd, spliced) = spliced();
    for at in 0..8 {
        let done = spliced.write(at * BLOCK, block(at as u8 + 1), IoClass::Meta).await;
        done.result.expect("written");
        let done = spliced.read(at * BLOCK, block(0), IoClass::Meta).await;
        assert_eq!(done.bufs[0].as_slice()[7], at as u8 + 1);
    }
    let first_bytes = |device: &SimDevice| -> Vec<u8> {
        device.snapshot().chunks(BLOCK as usize).map(|block| block[0]).collect()
    };
    assert_eq!(first_bytes(&ssd), [1, 2, 0, 0, 5, 6, 7, 8]);
    assert_eq!(first_bytes(&hdd)[4..8], [0, 3, 4, 0]);
    for at in [1, 3] {
        let both = IoBufs::from_iter([IoBuf::zeroed(2 * BLOCK as usize)]);
        assert!(spliced.write(at * BLOCK, both, IoClass::Meta).await.result.is_err(), "over its edge");
    }
}

#[tokio::test(start_paused = true)]
async fn alone_it_ends_where_the_window_does() {
    let hdd = sim("hdd", 6 * BLOCK);
    let device = Arc::clone(&hdd) as SharedDevice;
    let alone = Spliced::new(None, Window { device, at: 5 * BLOCK, range: 0..2 * BLOCK });
    assert_eq!(alone.size(), BLOCK, "the HDD is shorter");
    alone.grow(2 * BLOCK).expect("grown");
    assert_eq!((alone.size(), hdd.size()), (2 * BLOCK, 7 * BLOCK));
    alone.write(BLOCK, block(9), IoClass::Meta).await.result.expect("written");
    assert_eq!(hdd.snapshot()[6 * BLOCK as usize], 9);
    assert!(alone.read(2 * BLOCK, block(0), IoClass::Meta).await.result.is_err());
    assert!(alone.data_search().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_flush_covers_both_and_its_error_names_the_device() {
    let (ssd, hdd, spliced) = spliced();
    spliced.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!((ssd.stats().flush.ops, hdd.stats().flush.ops), (1, 1));
    // Only what was written in the window needs another flush of the HDD.
    spliced.write(0, block(1), IoClass::Meta).await.result.expect("written");
    spliced.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!((ssd.stats().flush.ops, hdd.stats().flush.ops), (2, 1));
    spliced.write(2 * BLOCK, block(1), IoClass::Ring).await.result.expect("written");
    spliced.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!((ssd.stats().flush.ops, hdd.stats().flush.ops), (3, 2));
    spliced.write(2 * BLOCK, block(1), IoClass::Meta).await.result.expect("written");
    spliced.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!((ssd.stats().flush.ops, hdd.stats().flush.ops), (4, 2));
    for device in [&ssd, &hdd] {
        spliced.write(2 * BLOCK, block(1), IoClass::Ring).await.result.expect("written");
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        let error = spliced.flush(IoClass::Meta).await.expect_err("it fails");
        assert_eq!(&*error.device, device.name());
    }
}
