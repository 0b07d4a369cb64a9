//! The contract of [`Device`].

use pagetier_devio::{Device, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp, SharedDevice};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

const PAGE: usize = 16 << 10;

/// The minimum size of a device to check, in bytes.
pub const SIZE_MIN: u64 = 4 << 20;

/// Whether a device can grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// [`Device::grow`] makes room.
    Grows,
    /// The size is fixed.
    Fixed,
}

/// Checks `device` against the contract of [`Device`] with some hundred operations. Overwrites its first
/// [`SIZE_MIN`] bytes, and grows it if it can. Nothing else may use the device meanwhile. Runs inside a tokio
/// runtime with timers.
///
/// ```
/// use pagetier_devio::{MemoryDevice, SharedDevice};
/// use pagetier_testing::conformance::{Growth, check_device};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let device: SharedDevice = Arc::new(MemoryDevice::new("mine", 8 << 20));
/// check_device(&device, Growth::Grows).await;
/// # });
/// ```
///
/// # Panics
/// On a violation, with a description of it.
pub async fn check_device(device: &SharedDevice, growth: Growth) {
    assert!(device.size() >= SIZE_MIN, "{}: a device of at least {SIZE_MIN} bytes is needed", device.name());
    assert!(device.alignment().is_power_of_two(), "the alignment is {}", device.alignment());
    assert!(device.alignment() <= pagetier_devio::BUF_ALIGN, "the alignment is {}", device.alignment());
    reads_return_what_was_written(&**device).await;
    vectored_operations_keep_their_order(&**device).await;
    empty_operations_succeed(&**device).await;
    ranges_beyond_the_end_are_refused(&**device).await;
    misaligned_operations_are_refused(&**device).await;
    flush_and_discard(&**device).await;
    many_operations_at_once(device).await;
    statistics_count_by_class(&**device).await;
    dropped_operations_continue(&**device).await;
    growing_makes_room(&**device, growth).await;
}

async fn write(device: &dyn Device, offset: u64, bufs: IoBufs) {
    device.write(offset, bufs, IoClass::Clean).await.result.expect("a write");
}

async fn write_bytes(device: &dyn Device, offset: u64, bytes: &[u8]) {
    write(device, offset, [IoBuf::copy_of(bytes)].into_iter().collect()).await;
}

async fn read(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
    let completion = device.read(offset, bufs_of(&[len]), IoClass::Demand).await;
    completion.result.expect("a read");
    completion.bufs[0].as_slice().to_vec()
}

fn bufs_of(lens: &[usize]) -> IoBufs {
    lens.iter().map(|len| IoBuf::zeroed(*len)).collect()
}

/// Bytes that depend on position and seed.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed.wrapping_add(1)).collect()
}

async fn reads_return_what_was_written(device: &dyn Device) {
    let places = [3_u64, 0, 63, 17];
    for (i, at) in places.into_iter().enumerate() {
        write_bytes(device, at * PAGE as u64, &pattern(i as u8, PAGE)).await;
    }
    for (i, at) in places.into_iter().enumerate() {
        let got = read(device, at * PAGE as u64, PAGE).await;
        assert!(got == pattern(i as u8, PAGE), "page {at} reads as something other than was written");
    }
    write(device, 0, bufs_of(&[PAGE])).await;
    assert!(read(device, 0, PAGE).await == vec![0; PAGE], "zeros were written, but not read");
}

async fn vectored_operations_keep_their_order(device: &dyn Device) {
    let unit = device.alignment();
    let lens = [unit, 4 * unit, 2 * unit];
    let whole = pattern(5, 7 * unit);
    let mut bufs = bufs_of(&lens);
    let mut at = 0;
    for buf in &mut bufs {
        let len = buf.len();
        buf.as_mut_slice().copy_from_slice(&whole[at..at + len]);
        at += len;
    }
    let completion = device.write(unit as u64, bufs, IoClass::WriteBack).await;
    completion.result.expect("a vectored write");
    assert_eq!(completion.bufs.iter().map(IoBuf::len).collect::<Vec<_>>(), lens, "the buffers that return");
    let completion = device.read(unit as u64, bufs_of(&[2 * unit, 5 * unit]), IoClass::Prefetch).await;
    completion.result.expect("a vectored read");
    let got: Vec<u8> = completion.bufs.iter().flat_map(|b| b.as_slice()).copied().collect();
    assert!(got == whole, "a vectored read returns the bytes in another order");
    // More buffers than fit in one system call.
    let many = vec![unit; 1_100];
    let completion = device.write(0, bufs_of(&many), IoClass::WriteBack).await;
    completion.result.expect("a write of 1,100 buffers");
    let completion = device.read(0, bufs_of(&many), IoClass::Recovery).await;
    completion.result.expect("a read of 1,100 buffers");
    assert_eq!(completion.bufs.len(), 1_100);
    let zero = completion.bufs.iter().all(|b| b.as_slice().iter().all(|&x| x == 0));
    assert!(zero, "1,100 buffers of zeros were written, but not read");
}

async fn empty_operations_succeed(device: &dyn Device) {
    let completion = device.read(0, IoBufs::new(), IoClass::Demand).await;
    completion.result.expect("a read without buffers");
    let completion = device.write(0, bufs_of(&[0]), IoClass::Demand).await;
    completion.result.expect("a write of an empty buffer");
    assert_eq!(completion.bufs.len(), 1, "the buffers that return");
}

async fn ranges_beyond_the_end_are_refused(device: &dyn Device) {
    let (size, unit) = (device.size(), device.alignment());
    let before = device.stats();
    let beyond = [(size, IoOp::Read), (size - unit as u64, IoOp::Write), (u64::MAX - 4095, IoOp::Read)];
    for (offset, op) in beyond {
        let bufs = bufs_of(&[unit, unit]);
        let completion = match op {
            IoOp::Read => device.read(offset, bufs, IoClass::Demand).await,
            _ => device.write(offset, bufs, IoClass::Demand).await,
        };
        let error = completion.result.expect_err("an operation beyond the end");
        assert_eq!((error.op, error.offset, error.len), (op, offset, 2 * unit as u64), "what an error names");
        assert!(matches!(error.kind, DeviceErrorKind::UnexpectedEof { size: s } if s == size), "{error}");
        assert_eq!(completion.bufs.len(), 2, "the buffers that return with an error");
    }
    assert_eq!(device.size(), size, "a refused write changes the size");
    assert_eq!(device.stats().since(&before).errors.eof, 3, "errors counted");
}

async fn misaligned_operations_are_refused(device: &dyn Device) {
    let unit = device.alignment();
    let before = device.stats();
    let one = bufs_of(&[unit]);
    let error = device.read(unit as u64 + 1, one, IoClass::Demand).await.result.expect_err("odd offset");
    assert!(matches!(error.kind, DeviceErrorKind::Misaligned { required } if required == unit), "{error}");
    let text = error.to_string();
    assert!(text.contains(device.name()) && text.contains(&(unit + 1).to_string()), "{text}");
    let odd = bufs_of(&[unit - 1]);
    let error = device.write(0, odd, IoClass::Clean).await.result.expect_err("an odd length");
    assert!(matches!(error.kind, DeviceErrorKind::Misaligned { .. }), "{error}");
    let mut memory = IoBuf::zeroed(2 * unit);
    let at = memory.ptr();
    // SAFETY: within `memory`, which is not touched while the lease lasts.
    let inside = unsafe { at.add(8) };
    // SAFETY: as above.
    let lease = unsafe { IoBuf::lease(inside, unit, Arc::new(|_| ()), 0) };
    let completion = device.read(0, [lease].into_iter().collect(), IoClass::Demand).await;
    let error = completion.result.expect_err("an odd address");
    assert!(matches!(error.kind, DeviceErrorKind::Misaligned { .. }), "{error}");
    drop(completion.bufs);
    memory.as_mut_slice().fill(1);
    let stats = device.stats().since(&before);
    assert_eq!((stats.errors.misaligned, stats.totals().read.ops), (3, 0), "errors and reads counted");
}

async fn flush_and_discard(device: &dyn Device) {
    let before = device.stats();
    write_bytes(device, 0, &pattern(9, PAGE)).await;
    device.flush(IoClass::Meta).await.expect("a flush");
    assert!(read(device, 0, PAGE).await == pattern(9, PAGE), "a flush changes what is read");
    device.discard(0, PAGE as u64).await.expect("a discard");
    assert_eq!(read(device, 0, PAGE).await.len(), PAGE);
    write_bytes(device, 0, &pattern(8, PAGE)).await;
    device.flush(IoClass::Ring).await.expect("a flush");
    assert!(read(device, 0, PAGE).await == pattern(8, PAGE), "a write after a discard is not read");
    assert!(device.discard(device.size(), PAGE as u64).await.is_err(), "a discard beyond the end succeeds");
    let stats = device.stats().since(&before);
    assert_eq!((stats.flush.ops, stats.discard.ops), (2, 1), "flushes and discards counted");
}

async fn many_operations_at_once(device: &SharedDevice) {
    let before = device.stats();
    let one = |i: u64| {
        let device = Arc::clone(device);
        async move {
            let mine = pattern(i as u8, 4096);
            let offset = i * 4096;
            let class = IoClass::ALL[i as usize % IoClass::ALL.len()];
            let bufs = [IoBuf::copy_of(&mine)].into_iter().collect();
            device.write(offset, bufs, class).await.result.expect("one of many writes");
            let completion = device.read(offset, bufs_of(&[4096]), class).await;
            completion.result.expect("one of many reads");
            assert!(completion.bufs[0].as_slice() == mine, "one of many reads returns other bytes");
        }
    };
    let tasks: Vec<_> = (0..300).map(|i| tokio::spawn(one(i))).collect();
    for task in tasks {
        if let Err(error) = task.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    let totals = device.stats().since(&before).totals();
    assert_eq!((totals.read.ops, totals.write.ops), (300, 300), "operations counted");
}

async fn statistics_count_by_class(device: &dyn Device) {
    let before = device.stats();
    write(device, 0, bufs_of(&[PAGE, PAGE])).await;
    read(device, 0, PAGE).await;
    device.read(0, bufs_of(&[PAGE]), IoClass::Prefetch).await.result.expect("a read");
    device.flush(IoClass::Clean).await.expect("a flush");
    let stats = device.stats().since(&before);
    let clean = &stats.class(IoClass::Clean).write;
    assert_eq!((clean.ops, clean.bytes), (1, 2 * PAGE as u64), "writes of a cleaner");
    assert_eq!(stats.class(IoClass::Demand).read.ops, 1, "reads on demand");
    assert_eq!(stats.class(IoClass::Prefetch).read.bytes, PAGE as u64, "bytes read ahead");
    assert_eq!(stats.class(IoClass::Ring).read.ops + stats.class(IoClass::Ring).write.ops, 0);
    assert_eq!(stats.totals_without(&[IoClass::Prefetch]).read.ops, 1);
    assert_eq!(stats.totals().read.latency.count(), 2, "latencies kept");
    assert_eq!((stats.flush.ops, stats.errors.total()), (1, 0));
    assert_eq!(stats.busy_ns(), stats.totals().busy_ns() + stats.flush.busy_ns, "busy time adds up");
}

/// Differs between the two operations on one page.
fn fill_of(i: usize) -> u8 {
    (i % 251) as u8 + 1
}

/// Drops half of the futures before they are polled. Each operation must release its buffer when it has
/// ended, not earlier, and each write must land whole.
async fn dropped_operations_continue(device: &dyn Device) {
    write(device, 0, bufs_of(&[200 * 4096])).await;
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dropped);
    let give_back = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    // Freed only if the check completes: a device that fails it may still write into the arena.
    let mut arena = ManuallyDrop::new(IoBuf::zeroed(256 * 4096));
    let base = arena.ptr();
    for i in 0..256_usize {
        // SAFETY: within the arena.
        let at = unsafe { base.add(i * 4096) };
        // SAFETY: disjoint parts of the arena, which is not touched before all were given back.
        let mut lease = unsafe { IoBuf::lease(at, 4096, Arc::clone(&give_back) as _, 0) };
        lease.as_mut_slice().fill(fill_of(i));
        let (offset, bufs) = ((i % 200) as u64 * 4096, [lease].into_iter().collect());
        let mut future = if i % 3 == 0 {
            device.read(offset, bufs, IoClass::Demand)
        } else {
            device.write(offset, bufs, IoClass::Clean)
        };
        if i % 2 == 0 {
            let _ = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(future);
    }
    while dropped.load(Ordering::SeqCst) < 256 || device.occupancy().in_flight() > 0 {
        device.flush(IoClass::Meta).await.expect("a flush");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 256, "a buffer was given up twice");
    arena.as_mut_slice().fill(0xEE);
    for page in 0..200_usize {
        let got = read(device, page as u64 * 4096, 4096).await;
        assert!(got.iter().all(|b| *b == got[0]), "a mix of two writes on page {page}");
        let mut writers = [page, page + 200].into_iter().filter(|i| *i < 256 && i % 3 != 0).peekable();
        let unwritten = writers.peek().is_none() && got[0] == 0;
        assert!(writers.any(|i| got[0] == fill_of(i)) || unwritten, "{} on page {page}", got[0]);
    }
    drop(ManuallyDrop::into_inner(arena));
}

async fn growing_makes_room(device: &dyn Device, growth: Growth) {
    let size = device.size();
    device.grow(size / 2).expect("large enough already");
    assert_eq!(device.size(), size, "growing to less than the size changes it");
    let larger = size + (1 << 20);
    if growth == Growth::Fixed {
        let error = device.grow(larger).expect_err("growing a device of fixed size");
        assert!(matches!(error.kind, DeviceErrorKind::NoSpace), "{error}");
        assert_eq!((error.op, device.size()), (IoOp::Grow, size));
        return;
    }
    device.grow(larger).expect("growth");
    assert_eq!(device.size(), larger, "the size after growth");
    assert!(read(device, size, PAGE).await == vec![0; PAGE], "new bytes do not read as zeros");
    write_bytes(device, larger - PAGE as u64, &pattern(1, PAGE)).await;
    assert!(read(device, larger - PAGE as u64, PAGE).await == pattern(1, PAGE), "the last page");
    device.cut(2 * larger).expect("nothing to give back");
    assert_eq!(device.size(), larger, "cutting to more than the size changes it");
    device.cut(size).expect("giving back");
    assert!([size, larger].contains(&device.size()), "the size after a cut");
    let kept = device.size() == larger;
    device.grow(larger).expect("growth after a cut");
    assert_eq!(device.size(), larger, "the size after a cut and a growth");
    let last = read(device, larger - PAGE as u64, PAGE).await;
    assert!(kept || last == vec![0; PAGE], "what was cut off came back");
}
