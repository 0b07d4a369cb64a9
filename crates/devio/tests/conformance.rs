//! One suite over every device: all implementations of the trait behave alike.

#[path = "common/mod.rs"]
mod common;

use common::{Subject, arena, bufs_of, every_subject, pattern, run};
use pagetier_devio::{Device, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

const PAGE: usize = 16 << 10;

async fn write(device: &dyn Device, offset: u64, bufs: IoBufs) {
    device.write(offset, bufs, IoClass::Clean).await.result.expect("written");
}

async fn read(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
    let completion = device.read(offset, bufs_of(&[len]), IoClass::Demand).await;
    completion.result.expect("read");
    completion.bufs[0].as_slice().to_vec()
}

/// Runs a test over every subject, each in a suitable runtime.
fn over_all(test: impl AsyncFn(&Subject)) {
    for subject in every_subject() {
        eprintln!("- {}", subject.name);
        run(&subject, test(&subject));
    }
}

#[test]
fn what_was_written_is_read_back() {
    over_all(async |subject| {
        let device = &*subject.device;
        assert_eq!(device.backend(), subject.backend);
        assert!(device.size() >= 64 * PAGE as u64);
        assert!(device.alignment().is_power_of_two());
        for (i, at) in [3_u64, 0, 63, 17].into_iter().enumerate() {
            write(device, at * PAGE as u64, [IoBuf::copy_of(&pattern(i as u8, PAGE))].into_iter().collect())
                .await;
        }
        for (i, at) in [3_u64, 0, 63, 17].into_iter().enumerate() {
            assert_eq!(read(device, at * PAGE as u64, PAGE).await, pattern(i as u8, PAGE));
        }
        write(device, 0, bufs_of(&[PAGE])).await;
        assert_eq!(read(device, 0, PAGE).await, vec![0; PAGE]);
    });
}

#[test]
fn vectored_operations_keep_their_order() {
    over_all(async |subject| {
        let device = &*subject.device;
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
        completion.result.expect("written");
        assert_eq!(completion.bufs.iter().map(IoBuf::len).collect::<Vec<_>>(), lens);
        let completion = device.read(unit as u64, bufs_of(&[2 * unit, 5 * unit]), IoClass::Prefetch).await;
        completion.result.expect("read");
        let got: Vec<u8> = completion.bufs.iter().flat_map(|b| b.as_slice()).copied().collect();
        assert!(got == whole, "{}", subject.name);
        // More buffers than fit in one system call.
        let many = vec![unit; 1_100];
        let completion = device.write(0, bufs_of(&many), IoClass::WriteBack).await;
        completion.result.expect("written");
        let completion = device.read(0, bufs_of(&many), IoClass::Recovery).await;
        completion.result.expect("read");
        assert_eq!(completion.bufs.len(), 1_100);
        assert!(completion.bufs.iter().all(|b| b.as_slice().iter().all(|&x| x == 0)));
    });
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    over_all(async |subject| {
        let device = &*subject.device;
        let size = device.size();
        let unit = device.alignment();
        for (offset, op) in
            [(size, IoOp::Read), (size - unit as u64, IoOp::Write), (u64::MAX - 4095, IoOp::Read)]
        {
            let completion = match op {
                IoOp::Read => device.read(offset, bufs_of(&[unit, unit]), IoClass::Demand).await,
                _ => device.write(offset, bufs_of(&[unit, unit]), IoClass::Demand).await,
            };
            let error = completion.result.expect_err("beyond the end");
            assert_eq!((error.op, error.offset, error.len), (op, offset, 2 * unit as u64));
            assert!(
                matches!(error.kind, DeviceErrorKind::UnexpectedEof { size: s } if s == size),
                "{}: {error}",
                subject.name
            );
            assert_eq!(completion.bufs.len(), 2);
        }
        assert_eq!(device.size(), size);
        assert_eq!(device.stats().errors.eof, 3);
    });
}

#[test]
fn misaligned_operations_are_refused_by_name() {
    over_all(async |subject| {
        let device = &*subject.device;
        let unit = device.alignment();
        let one = bufs_of(&[unit]);
        let error = device.read(unit as u64 + 1, one, IoClass::Demand).await.result.expect_err("offset");
        assert!(matches!(error.kind, DeviceErrorKind::Misaligned { required } if required == unit));
        let text = error.to_string();
        assert!(text.contains(device.name()) && text.contains(&(unit + 1).to_string()), "{text}");
        let odd = bufs_of(&[unit - 1]);
        let error = device.write(0, odd, IoClass::Clean).await.result.expect_err("length");
        assert!(matches!(error.kind, DeviceErrorKind::Misaligned { .. }));
        let mut memory = IoBuf::zeroed(2 * unit);
        let at = memory.ptr();
        // SAFETY: within `memory`, which is not touched while the lease lasts.
        let inside = unsafe { at.add(8) };
        // SAFETY: as above.
        let lease = unsafe { IoBuf::lease(inside, unit, Box::new(())) };
        let completion = device.read(0, [lease].into_iter().collect(), IoClass::Demand).await;
        assert!(matches!(completion.result.expect_err("address").kind, DeviceErrorKind::Misaligned { .. }));
        drop(completion.bufs);
        memory.as_mut_slice().fill(1);
        assert_eq!(device.stats().errors.misaligned, 3);
        assert_eq!(device.stats().totals().read.ops, 0);
    });
}

#[test]
fn growing_makes_room_that_reads_as_zeros() {
    over_all(async |subject| {
        let device = &*subject.device;
        let size = device.size();
        device.grow(size / 2).expect("large enough already");
        assert_eq!(device.size(), size);
        if subject.fixed_size {
            let error = device.grow(size + (1 << 20)).expect_err("a block device does not grow");
            assert!(matches!(error.kind, DeviceErrorKind::NoSpace));
            assert_eq!(error.op, IoOp::Grow);
            return;
        }
        device.grow(size + (1 << 20)).expect("grown");
        assert_eq!(device.size(), size + (1 << 20));
        assert_eq!(read(device, size, PAGE).await, vec![0; PAGE]);
        write(
            device,
            size + (1 << 20) - PAGE as u64,
            [IoBuf::copy_of(&pattern(1, PAGE))].into_iter().collect(),
        )
        .await;
        assert_eq!(read(device, size + (1 << 20) - PAGE as u64, PAGE).await, pattern(1, PAGE));
    });
}

#[test]
fn flush_and_discard() {
    over_all(async |subject| {
        let device = &*subject.device;
        write(device, 0, [IoBuf::copy_of(&pattern(9, PAGE))].into_iter().collect()).await;
        device.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(read(device, 0, PAGE).await, pattern(9, PAGE));
        device.discard(0, PAGE as u64).await.expect("a hint");
        assert_eq!(read(device, 0, PAGE).await.len(), PAGE);
        write(device, 0, [IoBuf::copy_of(&pattern(8, PAGE))].into_iter().collect()).await;
        device.flush(IoClass::Ring).await.expect("flushed");
        assert_eq!(read(device, 0, PAGE).await, pattern(8, PAGE));
        assert!(device.discard(device.size(), PAGE as u64).await.is_err());
        assert_eq!(device.stats().flush.ops, 2);
        assert_eq!(device.stats().discard.ops, 1);
    });
}

#[test]
fn many_operations_at_once() {
    over_all(async |subject| {
        let device = &subject.device;
        // More than the queue depth, on the same pages, each from its own task.
        let tasks: Vec<_> = (0..300_u64)
            .map(|i| {
                let device = Arc::clone(device);
                tokio::spawn(async move {
                    let mine = pattern(i as u8, 4096);
                    let offset = i * 4096;
                    let class = IoClass::ALL[i as usize % IoClass::ALL.len()];
                    let bufs = [IoBuf::copy_of(&mine)].into_iter().collect();
                    device.write(offset, bufs, class).await.result.expect("written");
                    let completion = device.read(offset, bufs_of(&[4096]), class).await;
                    completion.result.expect("read");
                    assert!(completion.bufs[0].as_slice() == mine);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        let totals = device.stats().totals();
        assert_eq!((totals.read.ops, totals.write.ops), (300, 300));
    });
}

#[test]
fn statistics_count_by_class() {
    over_all(async |subject| {
        let device = &*subject.device;
        let before = device.stats();
        write(device, 0, bufs_of(&[PAGE, PAGE])).await;
        read(device, 0, PAGE).await;
        device.read(0, bufs_of(&[PAGE]), IoClass::Prefetch).await.result.expect("read");
        device.flush(IoClass::Clean).await.expect("flushed");
        let stats = device.stats().since(&before);
        assert_eq!(stats.class(IoClass::Clean).write.ops, 1);
        assert_eq!(stats.class(IoClass::Clean).write.bytes, 2 * PAGE as u64);
        assert_eq!(stats.class(IoClass::Demand).read.ops, 1);
        assert_eq!(stats.class(IoClass::Prefetch).read.bytes, PAGE as u64);
        assert_eq!(stats.class(IoClass::Ring).read.ops + stats.class(IoClass::Ring).write.ops, 0);
        assert_eq!(stats.totals_without(&[IoClass::Prefetch]).read.ops, 1);
        assert_eq!(stats.totals().read.latency.count(), 2);
        assert_eq!((stats.flush.ops, stats.errors.total()), (1, 0));
        let busy_ns = stats.totals().busy_ns() + stats.flush.busy_ns;
        assert_eq!(stats.busy_ns(), busy_ns);
        // Memory and simulated devices take no time; the others do.
        assert_eq!(busy_ns > 0, !matches!(subject.backend, "memory" | "sim"), "{}", subject.name);
    });
}

/// Counts how often it is dropped.
struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Differs between the two operations on one page.
fn fill_of(i: usize) -> u8 {
    (i % 251) as u8 + 1
}

#[test]
fn dropped_futures_lose_nothing() {
    over_all(async |subject| {
        let device = &*subject.device;
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut arena = arena(256 * 4096);
        let base = arena.ptr();
        for i in 0..256_usize {
            // SAFETY: within the arena.
            let at = unsafe { base.add(i * 4096) };
            let owner = Box::new(Token(Arc::clone(&dropped)));
            // SAFETY: disjoint parts of the arena, which is not touched before every owner was dropped.
            let mut lease = unsafe { IoBuf::lease(at, 4096, owner) };
            lease.as_mut_slice().fill(fill_of(i));
            let offset = (i % 200) as u64 * 4096;
            let bufs = [lease].into_iter().collect();
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
        // A flush does not wait for these operations, so wait until each has released its buffer.
        while dropped.load(Ordering::SeqCst) < 256 {
            device.flush(IoClass::Meta).await.expect("flushed");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 256);
        arena.as_mut_slice().fill(0xEE);
        for page in 0..200_usize {
            let got = read(device, page as u64 * 4096, 4096).await;
            assert!(got.iter().all(|b| *b == got[0]), "{}: a mix on page {page}", subject.name);
            let allowed = [page, page + 200].iter().any(|i| *i < 256 && i % 3 != 0 && got[0] == fill_of(*i));
            let only_reads = (page % 3 == 0) && (page + 200 >= 256 || (page + 200) % 3 == 0);
            assert!(allowed || (only_reads && got[0] == 0), "{}: {} on page {page}", subject.name, got[0]);
        }
        drop(ManuallyDrop::into_inner(arena));
    });
}

#[test]
fn outstanding_operations_end_before_the_device_does() {
    for subject in every_subject() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dropped);
        let mut arena = arena(64 * 4096);
        let base = arena.ptr();
        let Subject { device, keep, paused, .. } = subject;
        common::runtime(paused).block_on(async move {
            for i in 0..64_usize {
                // SAFETY: within the arena.
                let at = unsafe { base.add(i * 4096) };
                let owner = Box::new(Token(Arc::clone(&counted)));
                // SAFETY: disjoint parts of the arena, which is not touched before every owner was dropped.
                let lease = unsafe { IoBuf::lease(at, 4096, owner) };
                drop(device.read(i as u64 * 4096, [lease].into_iter().collect(), IoClass::Recovery));
            }
            drop(device);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        });
        assert_eq!(dropped.load(Ordering::SeqCst), 64);
        arena.as_mut_slice().fill(0xEE);
        drop(ManuallyDrop::into_inner(arena));
        drop(keep);
    }
}

#[test]
fn empty_operations_succeed() {
    over_all(async |subject| {
        let completion = subject.device.read(0, IoBufs::new(), IoClass::Demand).await;
        completion.result.expect("nothing to do");
        let completion = subject.device.write(0, bufs_of(&[0]), IoClass::Demand).await;
        completion.result.expect("nothing to do");
        assert_eq!(completion.bufs.len(), 1);
    });
}
