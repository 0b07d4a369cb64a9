//! The overlay, which never writes to its base.

use pagetier_devio::{
    Device, DeviceErrorKind, IoBuf, IoBufs, IoClass, MemoryDevice, OverlayDevice, SharedDevice,
};
use pagetier_testing::conformance::{Growth, check_device};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

async fn put(device: &dyn Device, at: u64, len: usize, byte: u8) {
    let mut buf = IoBuf::zeroed(len);
    buf.as_mut_slice().fill(byte);
    device.write(at, IoBufs::from_iter([buf]), IoClass::Clean).await.result.unwrap();
}

async fn get(device: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let done = device.read(at, IoBufs::from_iter([IoBuf::zeroed(len)]), IoClass::Demand).await;
    done.result.unwrap();
    done.bufs[0].as_slice().to_vec()
}

#[test]
fn an_overlay_conforms_and_leaves_its_base_alone() {
    runtime().block_on(async {
        let base = Arc::new(MemoryDevice::new("base", 8 * MIB + 512));
        put(&*base, 0, 8 << 20, 7).await;
        let before = base.snapshot();
        let overlay = OverlayDevice::new(Arc::clone(&base) as SharedDevice, 64 * MIB);
        assert_eq!(get(&overlay, 4096, 8192).await, vec![7; 8192]);
        let device: SharedDevice = Arc::new(overlay.clone());
        check_device(&device, Growth::Grows).await;
        assert!(base.snapshot() == before, "the base was written to");
        assert_eq!(base.stats().totals().write.ops, 1);
        assert!(overlay.written_bytes() >= 4 * MIB);
    });
}

#[test]
fn an_overlay_reads_across_the_end_of_its_base_and_holds_its_bound() {
    runtime().block_on(async {
        let base = Arc::new(MemoryDevice::new("base", 12 << 10));
        put(&*base, 0, 12 << 10, 5).await;
        let overlay = OverlayDevice::new(base as SharedDevice, 8192);
        overlay.grow(MIB).unwrap();
        put(&overlay, 4096, 4096, 9).await;
        let read = get(&overlay, 0, 32 << 10).await;
        let expected = [vec![5; 4096], vec![9; 4096], vec![5; 4096], vec![0; 20 << 10]].concat();
        assert!(read == expected);
        put(&overlay, 16 << 10, 4096, 1).await;
        let refused = overlay.write(20 << 10, IoBufs::from_iter([IoBuf::zeroed(4096)]), IoClass::Clean).await;
        assert!(matches!(refused.result.unwrap_err().kind, DeviceErrorKind::NoSpace));
        // Blocks that were written may be written again.
        put(&overlay, 4096, 4096, 2).await;
        assert_eq!(get(&overlay, 4096, 4096).await, vec![2; 4096]);
    });
}
