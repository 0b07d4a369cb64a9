//! The limit in CPU time: random reads by io_uring with nothing around them.

use super::limit::{Figures, Load, Times, cpu_us};
use io_uring::{IoUring, opcode, squeue, types};
use pagetier_devio::IoBuf;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// One thread with a registered file: each call submits what replaces the reads that have ended, and waits
/// for one. With `registered` the buffers are registered, too.
pub(crate) fn by_loop(load: Load, path: &Path, times: Times, registered: bool) -> io::Result<Figures> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    // Leaked: after a failure the kernel may still write to them.
    let bufs = Vec::leak((0..load.depth).map(|_| IoBuf::zeroed(load.block)).collect());
    let mut ring = IoUring::new(load.depth.next_power_of_two())?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    if registered {
        let iovec = |buf: &IoBuf| libc::iovec { iov_base: buf.ptr().as_ptr().cast(), iov_len: load.block };
        let list: Vec<libc::iovec> = bufs.iter().map(iovec).collect();
        // SAFETY: the buffers are never freed.
        unsafe { ring.submitter().register_buffers(&list)? };
    }
    let mut rng = SmallRng::seed_from_u64(3);
    let mut entry = |slot: usize| -> squeue::Entry {
        let at = load.from + rng.random_range(0..load.bytes / load.block as u64) * load.block as u64;
        let (buf, len, file) = (bufs[slot].ptr().as_ptr(), load.block as u32, types::Fixed(0));
        let built = match registered {
            true => opcode::ReadFixed::new(file, buf, len, slot as u16).offset(at).build(),
            false => opcode::Read::new(file, buf, len).offset(at).build(),
        };
        built.user_data(slot as u64)
    };
    let mut ready: Vec<usize> = (0..load.depth as usize).collect();
    let mut began = vec![Instant::now(); ready.len()];
    let from = Instant::now() + times.ramp;
    let until = from + times.measured;
    let (mut ops, mut latency_us, mut cpu) = (0_u64, 0.0, None);
    let mut in_flight = 0;
    loop {
        let now = Instant::now();
        if now >= from {
            cpu.get_or_insert_with(cpu_us);
        }
        let is_over = now >= until;
        if is_over && in_flight == 0 {
            break;
        }
        for slot in ready.drain(..).filter(|_| !is_over) {
            began[slot] = now;
            // SAFETY: the buffers are never freed, and nothing else uses them.
            unsafe { ring.submission().push(&entry(slot)) }.expect("as many entries as buffers");
            in_flight += 1;
        }
        ring.submit_and_wait(1)?;
        let now = Instant::now();
        for done in ring.completion() {
            assert_eq!(done.result(), load.block as i32, "a read failed");
            let slot = done.user_data() as usize;
            if cpu.is_some() {
                (ops, latency_us) = (ops + 1, latency_us + (now - began[slot]).as_secs_f64() * 1e6);
            }
            in_flight -= 1;
            ready.push(slot);
        }
    }
    let (ops, took) = (ops.max(1) as f64, from.elapsed().as_secs_f64());
    let cpu_us = (cpu_us() - cpu.unwrap_or(f64::NAN)) / ops;
    Ok(Figures { iops: ops / took, latency_mean_us: latency_us / ops, cpu_us })
}
