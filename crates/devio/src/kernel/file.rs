//! An opened file or block device: the part that both real backends share.

use crate::device::IoBufs;
use crate::duties::check::{Spot, check, check_range, total_len};
use crate::duties::meter::Meter;
use crate::handover::ticket::Ticket;
use crate::kernel::transfer::{Step, Transfer, kind_of};
use crate::process::limits::check_file_bytes;
use crate::{
    Completion, DataSearch, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoBuf, IoClass,
    IoFuture, IoOp, Kept, Occupancy, Owner, RecentCosts,
};
use rustix::fs::{FallocateFlags, SeekFrom, StatVfs, fallocate, fstat, fstatvfs, ftruncate, seek};
use rustix::io::{Errno, pread};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::ready;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Issues the transfers of a file to the kernel.
pub(crate) trait Issuer: Send + Sync + Debug + 'static {
    /// See [`Device::backend`].
    fn backend(&self) -> &'static str;

    fn file(&self) -> &RawFile;

    /// Starts a transfer, which continues if the result is dropped.
    fn start(&self, transfer: Transfer) -> Ticket<Completion>;
}

/// The number of bytes that a search for data reads at a time.
const SEARCH_BYTES: usize = 1 << 20;
/// The alignment of these reads: the largest that direct I/O requires.
const SEARCH_STEP: u64 = 4096;

/// The pages of one write that are under way at once, each as a write of its own: enough for the disk to
/// sort, few enough that reads get through.
const PARTS_MAX: usize = 16;

/// A file as a device.
#[derive(Debug)]
pub(crate) struct FileDevice<I>(pub(crate) Arc<I>);

impl<I: Issuer> FileDevice<I> {
    fn transfer(&self, op: IoOp, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        match self.0.file().prepare(op, offset, bufs, class) {
            Ok(transfer) => Box::pin(self.0.start(transfer)),
            Err(completion) => Box::pin(ready(completion)),
        }
    }

    fn unbuffered(&self, transfer: Result<Transfer, DeviceError>) -> DoneFuture {
        match transfer {
            Ok(transfer) => {
                let ticket = self.0.start(transfer);
                Box::pin(async move { ticket.await.result })
            }
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

impl<I: Issuer> Device for FileDevice<I> {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Read, offset, bufs, class)
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        if bufs.len() < 2 || !self.0.file().keeps_whole(offset, &bufs, class) {
            return self.transfer(IoOp::Write, offset, bufs, class);
        }
        // The system keeps a page whole only if it comes alone, in one buffer. If the result is dropped,
        // parts that have not begun do not begin: as after an error, any of the write may be there.
        let (device, mut at) = (Self(Arc::clone(&self.0)), offset);
        let mut parts = bufs.into_iter().map(move |buf| {
            let from = at;
            at += buf.len() as u64;
            device.transfer(IoOp::Write, from, IoBufs::from_iter([buf]), class)
        });
        let mut begun: VecDeque<IoFuture> = parts.by_ref().take(PARTS_MAX).collect();
        Box::pin(async move {
            let mut all = Completion { bufs: IoBufs::new(), result: Ok(()) };
            while let Some(part) = begun.pop_front() {
                let Completion { bufs, result } = part.await;
                begun.extend(parts.next());
                all.bufs.extend(bufs);
                all.result = all.result.and(result);
            }
            all
        })
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        self.unbuffered(self.0.file().prepare_flush(class))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        self.unbuffered(self.0.file().prepare_discard(offset, len))
    }

    fn occupancy(&self) -> &Occupancy {
        &self.0.file().meter.occupancy
    }

    fn alignment(&self) -> usize {
        self.0.file().alignment
    }

    fn name(&self) -> &str {
        &self.0.file().meter.name
    }

    delegate! { self => self.0;
        fn backend() -> &'static str;
    }

    delegate! { self => self.0.file();
        fn size() -> u64;
        fn grow(bytes: u64) -> Result<(), DeviceError>;
        fn cut(bytes: u64) -> Result<(), DeviceError>;
        fn data_search() -> Option<DataSearch>;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
    }

    delegate! { self => self.0.file().meter.recorder;
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
    }
}

/// An opened file or block device, and the operations that need no issuer.
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) fd: OwnedFd,
    pub(crate) meter: Meter,
    alignment: usize,
    block_device: bool,
    size: AtomicU64,
    /// The smallest and the largest power of two that the system writes whole, if any.
    pub(crate) units: Option<(usize, usize)>,
    /// See [`Device::keep_whole`].
    whole: AtomicUsize,
    pub(crate) owner: Owner,
    /// See [`OpenOptions::kept`](crate::OpenOptions::kept). Dropped after the descriptor.
    pub(crate) kept: Option<Kept>,
}

impl RawFile {
    pub(crate) fn new(
        fd: OwnedFd,
        name: Arc<str>,
        alignment: usize,
        block_device: bool,
        size: u64,
        kept: Option<Kept>,
    ) -> Self {
        let (meter, size) = (Meter::new(name), AtomicU64::new(size));
        let (units, whole) = (None, AtomicUsize::new(0));
        Self { fd, meter, alignment, block_device, size, units, whole, owner: Owner::here(), kept }
    }

    /// Refuses a process that was forked from the one that opened the file, before any lock is taken: a
    /// thread that does not exist there may hold it.
    fn admit(&self, spot: Spot) -> Result<(), DeviceError> {
        if self.owner.is_here() { Ok(()) } else { Err(spot.error(&self.meter.name, self.owner.refusal())) }
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn writes_whole(&self, bytes: usize) -> bool {
        bytes.is_power_of_two() && self.units.is_some_and(|(min, max)| (min..=max).contains(&bytes))
    }

    fn keep_whole(&self, bytes: usize) {
        self.whole.store(bytes, Ordering::Release);
    }

    /// Whether a buffer of a write must be written whole.
    fn keeps_whole(&self, offset: u64, bufs: &IoBufs, class: IoClass) -> bool {
        let (whole, mut at) = (self.whole.load(Ordering::Acquire), offset);
        whole > 0
            && !matches!(class, IoClass::Meta | IoClass::Ring)
            && bufs.iter().any(|buf| {
                let aligned = at.is_multiple_of(whole as u64);
                at += buf.len() as u64;
                aligned && buf.len() == whole
            })
    }

    /// Prepares a read or write to be issued; returns its completion instead if it is refused.
    fn prepare(&self, op: IoOp, offset: u64, bufs: IoBufs, class: IoClass) -> Result<Transfer, Completion> {
        let spot = Spot { op, offset, len: total_len(&bufs) };
        if let Err(error) = self.admit(spot) {
            return Err(Completion { bufs, result: Err(error) });
        }
        match check(offset, &bufs, self.alignment, self.size()) {
            // The kernel would answer 0 bytes, which reads as the end of the file.
            Ok(()) if spot.len == 0 => Err(Completion { bufs, result: Ok(()) }),
            Ok(()) => {
                let whole = op == IoOp::Write && self.keeps_whole(offset, &bufs, class);
                let mut transfer = self.begin(spot, class, bufs);
                transfer.whole = whole;
                Ok(transfer)
            }
            Err(kind) => Err(Completion { bufs, result: Err(self.meter.fail(spot, kind)) }),
        }
    }

    /// Prepares a flush.
    fn prepare_flush(&self, class: IoClass) -> Result<Transfer, DeviceError> {
        let spot = Spot { op: IoOp::Flush, offset: 0, len: 0 };
        self.admit(spot)?;
        Ok(self.begin(spot, class, IoBufs::new()))
    }

    /// Prepares a discard to be issued.
    fn prepare_discard(&self, offset: u64, len: u64) -> Result<Transfer, DeviceError> {
        let spot = Spot { op: IoOp::Discard, offset, len };
        self.admit(spot)?;
        // The kernel would zero the parts of blocks at the edges by reading and writing them, beside
        // direct I/O to the same blocks.
        let aligned = (offset | len) & (self.alignment as u64 - 1) == 0;
        let fits = check_range(offset, len, self.size());
        match if aligned { fits } else { Err(DeviceErrorKind::Misaligned { required: self.alignment }) } {
            Ok(()) => Ok(self.begin(spot, IoClass::Meta, IoBufs::new())),
            Err(kind) => Err(self.meter.fail(spot, kind)),
        }
    }

    fn begin(&self, spot: Spot, class: IoClass, bufs: IoBufs) -> Transfer {
        let (began_ns, in_flight) = self.meter.begin();
        Transfer::new(spot, class, bufs, began_ns, in_flight)
    }

    /// Interprets the kernel's answer for `transfer`; `Some` with the result when the transfer has ended.
    pub(crate) fn answer(
        &self,
        transfer: &mut Transfer,
        answer: Result<u64, i32>,
    ) -> Option<Result<(), DeviceErrorKind>> {
        match transfer.advance(answer, self.alignment, self.size()) {
            Step::Again(reason) => {
                self.meter.recorder.retried(reason);
                None
            }
            Step::Done(result) => Some(result),
        }
    }

    /// Counts a transfer that has ended, and builds its completion.
    pub(crate) fn finish(&self, transfer: Transfer, result: Result<(), DeviceErrorKind>) -> Completion {
        let result = self.meter.end((transfer.spot, transfer.class), transfer.began_ns, result);
        Completion { bufs: transfer.bufs, result }
    }

    /// Completes an abandoned read that was never issued; it is not counted.
    pub(crate) fn abandon(&self, transfer: Transfer) -> Completion {
        self.meter.recorder.end(self.meter.now_ns());
        Completion { bufs: transfer.bufs, result: Ok(()) }
    }

    /// See [`Device::grow`](crate::Device::grow). Reserves the space where the file system can.
    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let size = self.size();
        if bytes <= size {
            return Ok(());
        }
        let spot = Spot { op: IoOp::Grow, offset: size, len: bytes - size };
        self.admit(spot)?;
        let result = if self.block_device { Err(DeviceErrorKind::NoSpace) } else { self.extend(size, bytes) };
        match result {
            Ok(()) => {
                // Last, and only after a success: an operation beyond the old size is let through once the
                // space is there. `max`: of two growths that overlap, the larger counts.
                self.size.fetch_max(bytes, Ordering::AcqRel);
                Ok(())
            }
            Err(kind) => Err(self.meter.fail(spot, kind)),
        }
    }

    /// See [`Device::cut`](crate::Device::cut).
    fn cut(&self, bytes: u64) -> Result<(), DeviceError> {
        let size = self.size();
        if self.block_device || bytes >= size {
            return Ok(());
        }
        let spot = Spot { op: IoOp::Grow, offset: bytes, len: size - bytes };
        self.admit(spot)?;
        // The caller promises that no operation on the rest is in flight, so file and size need not change
        // at one moment.
        match ftruncate(&self.fd, bytes) {
            Ok(()) => {
                self.size.store(bytes, Ordering::Release);
                Ok(())
            }
            Err(errno) => Err(self.meter.fail(spot, kind_of(errno.raw_os_error()))),
        }
    }

    /// See [`Device::data_search`].
    fn data_search(&self) -> Option<DataSearch> {
        if self.block_device {
            return None;
        }
        // Its own descriptor: the search may outlast the device.
        let fd = self.fd.try_clone();
        Some(Box::new(move || Ok(holds_data(&fd?)?)))
    }

    fn extend(&self, from: u64, to: u64) -> Result<(), DeviceErrorKind> {
        // The kernel would answer a growth beyond the limit with SIGXFSZ, which ends the process.
        check_file_bytes(to)?;
        // A reservation that cannot succeed would take all that is left, and for a moment fail every other
        // write to the file system.
        // A file system that does not know its size (some in user space) says 0 of everything.
        let lacks =
            |room: StatVfs| room.f_blocks > 0 && to - from > room.f_bfree.saturating_mul(room.f_frsize);
        if fstatvfs(&self.fd).is_ok_and(lacks) {
            return Err(DeviceErrorKind::NoSpace);
        }
        // The file may be longer than the device's size says, if an earlier failure could not be undone.
        let was = fstat(&self.fd).map_err(|errno| kind_of(errno.raw_os_error()))?.st_size as u64;
        loop {
            // Reserved, not only lengthened: a sparse file would find the disk full at a write-back, when
            // it is too late to refuse.
            match fallocate(&self.fd, FallocateFlags::empty(), from, to - from) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return ftruncate(&self.fd, to).map_err(|errno| kind_of(errno.raw_os_error()));
                }
                Err(errno) => {
                    // Some file systems, such as ext4, keep what they had reserved before they failed.
                    if let Err(error) = ftruncate(&self.fd, was) {
                        tracing::warn!(device = %self.meter.name, %error, "a growth of the file failed, and the space that it took could not be given back");
                    }
                    return Err(kind_of(errno.raw_os_error()));
                }
            }
        }
    }
}

/// Whether a byte of the file is not zero.
fn holds_data(fd: &OwnedFd) -> Result<bool, Errno> {
    let (mut buf, mut at) = (IoBuf::zeroed(SEARCH_BYTES), 0);
    loop {
        match seek(fd, SeekFrom::Data(at)) {
            // Direct I/O reads whole blocks.
            Ok(data) => at = at.max(data / SEARCH_STEP * SEARCH_STEP),
            Err(Errno::NXIO) => return Ok(false),
            // The file system does not tell holes from data: read everything.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
        let read = match pread(fd, buf.as_mut_slice(), at) {
            Err(Errno::INTR) => continue,
            read => read?,
        };
        if buf.as_slice()[..read].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        let whole = read as u64 / SEARCH_STEP * SEARCH_STEP;
        // Less than a block is left only at the end of the file.
        if whole == 0 {
            return Ok(false);
        }
        at += whole;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::handover::ticket::{Promise, ticket};
    use parking_lot::Mutex;
    use rustix::io::pwrite;
    use std::future::poll_fn;

    /// Carries out the newest write first, when it is told to; the one at `refused` fails. Notes the offset
    /// of each, its length, and whether it must be whole.
    #[derive(Debug)]
    struct Noted {
        file: RawFile,
        refused: u64,
        waiting: Mutex<Vec<Waiting>>,
        waiting_max: AtomicUsize,
        writes: Mutex<Vec<(u64, u64, bool)>>,
    }

    struct Waiting(Transfer, Promise<Completion>);

    impl Debug for Waiting {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.fmt(f)
        }
    }

    impl Issuer for Noted {
        fn backend(&self) -> &'static str {
            "noted"
        }

        fn file(&self) -> &RawFile {
            &self.file
        }

        fn start(&self, transfer: Transfer) -> Ticket<Completion> {
            let (promise, ticket) = ticket();
            let mut waiting = self.waiting.lock();
            waiting.push(Waiting(transfer, promise));
            self.waiting_max.fetch_max(waiting.len(), Ordering::Relaxed);
            ticket
        }
    }

    impl Noted {
        fn carry_out_one(&self) {
            let Waiting(transfer, promise) = self.waiting.lock().pop().expect("it waits, but for no write");
            let spot = transfer.spot;
            self.writes.lock().push((spot.offset, spot.len, transfer.whole));
            let result = if spot.offset == self.refused { Err(DeviceErrorKind::NoSpace) } else { Ok(()) };
            if result.is_ok() {
                let bytes: Vec<u8> = transfer.bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
                assert_eq!(pwrite(&self.file.fd, &bytes, spot.offset), Ok(bytes.len()));
            }
            promise.complete(self.file.finish(transfer, result));
        }
    }

    fn device(refused: u64) -> FileDevice<Noted> {
        let fd = tempfile::tempfile().unwrap().into();
        let mut file = RawFile::new(fd, "noted".into(), 512, false, 1 << 20, None);
        file.units = Some((4096, 16384));
        let waiting_max = AtomicUsize::new(0);
        FileDevice(Arc::new(Noted {
            file,
            refused,
            waiting: Mutex::default(),
            waiting_max,
            writes: Mutex::default(),
        }))
    }

    /// Writes buffers of these lengths, each filled with its number. Returns what reached the system, sorted.
    async fn issued(
        device: &FileDevice<Noted>,
        at: u64,
        lens: &[usize],
        class: IoClass,
    ) -> (Vec<(u64, u64, bool)>, Result<(), DeviceError>) {
        let filled = |(nth, len): (usize, &usize)| IoBuf::copy_of(&vec![nth as u8 + 1; *len]);
        let mut writing = device.write(at, lens.iter().enumerate().map(filled).collect(), class);
        let done = poll_fn(|cx| {
            let polled = writing.as_mut().poll(cx);
            if polled.is_pending() {
                device.0.carry_out_one();
                // It may have been another than the one that is waited for.
                cx.waker().wake_by_ref();
            }
            polled
        });
        let done = done.await;
        assert_eq!(done.bufs.iter().map(IoBuf::len).collect::<Vec<_>>(), lens, "the buffers that return");
        let mut writes = std::mem::take(&mut *device.0.writes.lock());
        writes.sort_unstable();
        (writes, done.result)
    }

    #[tokio::test]
    async fn each_page_of_a_merged_write_goes_alone_if_it_must_be_whole() {
        let device = device(u64::MAX);
        let offered = [2048, 4096, 12288, 16384, 32768].map(|bytes| device.writes_whole(bytes));
        assert_eq!(offered, [false, true, false, true, false]);
        device.keep_whole(4096);
        let pages = [(8192, 4096, true), (12288, 4096, true), (16384, 4096, true)];
        assert_eq!(issued(&device, 8192, &[4096; 3], IoClass::Clean).await.0, pages);
        // No page: what is formatted or recorded.
        for (at, len, class) in
            [(8192, 8192, IoClass::Clean), (512, 4096, IoClass::Clean), (0, 4096, IoClass::Meta)]
        {
            assert_eq!(issued(&device, at, &[len], class).await.0, [(at, len as u64, false)]);
        }
        device.keep_whole(0);
        assert_eq!(issued(&device, 8192, &[4096; 2], IoClass::Clean).await.0, [(8192, 8192, false)]);
    }

    #[tokio::test]
    async fn a_long_merged_write_has_few_parts_under_way_and_one_that_fails_keeps_no_other_back() {
        const PAGES: usize = 3 * PARTS_MAX + 1;
        let place = |nth: usize| 4096 * (nth as u64 + 2);
        for refused in [None, Some(0), Some(PARTS_MAX + 1), Some(PAGES - 1)] {
            let device = device(refused.map_or(u64::MAX, place));
            device.keep_whole(4096);
            let (writes, result) = issued(&device, place(0), &[4096; PAGES], IoClass::Clean).await;
            assert!(writes.into_iter().eq((0..PAGES).map(|nth| (place(nth), 4096, true))));
            assert_eq!(device.0.waiting_max.load(Ordering::Relaxed), PARTS_MAX);
            assert_eq!(result.map_err(|error| error.offset).err(), refused.map(place));
            for nth in 0..PAGES {
                let mut found = [0; 4096];
                pread(&device.0.file.fd, &mut found, place(nth)).unwrap();
                let written = if refused == Some(nth) { 0 } else { nth as u8 + 1 };
                assert_eq!(found, [written; 4096], "page {nth}, {refused:?} refused");
            }
        }
    }
}
