//! Devices made of others: the overlay that never writes to its base, and the striped set.

use pagetier_devio::conformance::{self, Growth};
use pagetier_devio::{
    Device, DeviceErrorKind, Fault, FaultEffect, IoBuf, IoBufs, IoClass, IoOp, MemoryDevice, OverlayDevice,
    SharedDevice, SimDevice, SimPower, StripeError, StripeOptions, StripedDevice,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(paused).build().unwrap()
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
    runtime(false).block_on(async {
        let base = Arc::new(MemoryDevice::new("base", 8 * MIB + 512));
        put(&*base, 0, 8 << 20, 7).await;
        let before = base.snapshot();
        let overlay = OverlayDevice::new(Arc::clone(&base) as SharedDevice, 64 * MIB);
        assert_eq!(get(&overlay, 4096, 8192).await, vec![7; 8192]);
        let device: SharedDevice = Arc::new(overlay.clone());
        conformance::check(&device, Growth::Grows).await;
        assert!(base.snapshot() == before, "the base was written to");
        assert_eq!(base.stats().totals().write.ops, 1);
        assert!(overlay.written_bytes() >= 4 * MIB);
    });
}

#[test]
fn an_overlay_reads_across_the_end_of_its_base_and_holds_its_bound() {
    runtime(false).block_on(async {
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

fn members(count: usize, size: u64) -> Vec<Arc<MemoryDevice>> {
    (0..count).map(|n| Arc::new(MemoryDevice::new(&format!("m{n}"), size))).collect()
}

fn shared(members: &[Arc<MemoryDevice>]) -> Vec<SharedDevice> {
    members.iter().map(|m| Arc::clone(m) as SharedDevice).collect()
}

fn chunks(chunk_bytes: u64) -> StripeOptions {
    StripeOptions { chunk_bytes, ..StripeOptions::default() }
}

#[test]
fn a_striped_set_conforms() {
    runtime(false).block_on(async {
        for (count, chunk) in [(2, 64 << 10), (3, 128 << 10), (5, 64 << 10)] {
            let members = members(count, 4 * MIB);
            let set = StripedDevice::open(shared(&members), chunks(chunk)).await.unwrap();
            let device: SharedDevice = Arc::new(set);
            conformance::check(&device, Growth::Grows).await;
            let written: Vec<u64> = members.iter().map(|m| m.stats().totals().write.bytes).collect();
            assert!(written.iter().all(|bytes| *bytes > 1 << 18), "{written:?}");
        }
    });
}

#[test]
fn buffers_that_cross_chunks_arrive_in_order() {
    runtime(false).block_on(async {
        let members = members(3, 2 * MIB);
        let set = StripedDevice::open(shared(&members), chunks(64 << 10)).await.unwrap();
        // Every kind of crossing: from within a chunk, over several, and buffers of several sizes.
        let lens = [4096_usize, 128 << 10, 60 << 10, 300 << 10, 4096];
        let total: usize = lens.iter().sum();
        let bytes: Vec<u8> = (0..total).map(|at| (at / 512 % 251) as u8).collect();
        let mut at = 0;
        let bufs: IoBufs = lens
            .iter()
            .map(|len| {
                at += len;
                IoBuf::copy_of(&bytes[at - len..at])
            })
            .collect();
        let done = set.write(36 << 10, bufs, IoClass::Clean).await;
        done.result.unwrap();
        // The buffers come back as they were passed.
        assert_eq!(done.bufs.iter().map(IoBuf::len).collect::<Vec<_>>(), lens);
        let back: Vec<u8> = done.bufs.iter().flat_map(|b| b.as_slice().to_vec()).collect();
        assert!(back == bytes);
        assert!(get(&set, 36 << 10, total).await == bytes);
        let bufs: IoBufs = [200 << 10, total - (200 << 10)].map(IoBuf::zeroed).into_iter().collect();
        let done = set.read(36 << 10, bufs, IoClass::Demand).await;
        let read: Vec<u8> = done.bufs.iter().flat_map(|b| b.as_slice().to_vec()).collect();
        assert!(read == bytes);
    });
}

#[test]
fn members_are_found_in_any_order_and_others_are_refused() {
    runtime(false).block_on(async {
        let all = members(3, 2 * MIB);
        let set = StripedDevice::open(shared(&all), StripeOptions::default()).await.unwrap();
        for at in 0..8 {
            put(&set, at * (64 << 10), 64 << 10, at as u8 + 1).await;
        }
        drop(set);
        let shuffled = vec![Arc::clone(&all[2]), Arc::clone(&all[0]), Arc::clone(&all[1])];
        let set = StripedDevice::open(shared(&shuffled), chunks(64 << 10)).await.unwrap();
        for at in 0..8 {
            assert_eq!(get(&set, at * (64 << 10), 4096).await, vec![at as u8 + 1; 4096]);
        }
        let open = |devices: Vec<Arc<MemoryDevice>>| async move {
            StripedDevice::open(shared(&devices), StripeOptions::default()).await.unwrap_err()
        };
        // One missing, one twice, one blank, one of another set, one with other data.
        let two = vec![Arc::clone(&all[0]), Arc::clone(&all[1])];
        assert!(matches!(open(two).await, StripeError::Mixed(why) if why.contains("3 members")));
        let twice = vec![Arc::clone(&all[0]), Arc::clone(&all[1]), Arc::clone(&all[1])];
        assert!(matches!(open(twice).await, StripeError::Mixed(_)));
        let with = |other: Arc<MemoryDevice>| vec![Arc::clone(&all[0]), Arc::clone(&all[1]), other];
        let blank = Arc::new(MemoryDevice::new("blank", 2 * MIB));
        assert!(matches!(open(with(blank)).await, StripeError::Mixed(_)));
        let others = members(3, 2 * MIB);
        StripedDevice::open(shared(&others), StripeOptions::default()).await.unwrap();
        assert!(matches!(open(with(Arc::clone(&others[2]))).await, StripeError::Mixed(_)));
        let data = Arc::new(MemoryDevice::new("data", 2 * MIB));
        put(&*data, 0, 4096, 1).await;
        assert!(matches!(open(with(data)).await, StripeError::Foreign { .. }));
        let none = StripeOptions { create: false, ..StripeOptions::default() };
        let blank = shared(&members(2, MIB));
        assert!(matches!(StripedDevice::open(blank, none).await, Err(StripeError::Mixed(_))));
    });
}

#[test]
fn a_failing_member_fails_the_operation_and_is_named() {
    runtime(true).block_on(async {
        let power = SimPower::new();
        let sims: Vec<_> =
            (0..2).map(|n| Arc::new(SimDevice::new(&format!("s{n}"), 2 * MIB, n, &power))).collect();
        let devices = sims.iter().map(|s| Arc::clone(s) as SharedDevice).collect();
        let set = StripedDevice::open(devices, chunks(64 << 10)).await.unwrap();
        sims[1].inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
        let bufs = IoBufs::from_iter([IoBuf::zeroed(128 << 10)]);
        let failed = set.write(0, bufs, IoClass::Clean).await;
        assert_eq!(failed.bufs[0].len(), 128 << 10);
        assert!(failed.result.unwrap_err().to_string().contains("s1"));
        sims[0].inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        assert!(set.flush(IoClass::Meta).await.is_err());
        set.flush(IoClass::Meta).await.unwrap();
    });
}
