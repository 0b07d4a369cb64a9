//! Memory that grows in place. Address space is reserved once and becomes memory from its start on. Its
//! contents therefore never move, and are found without a lock, an indirection or a check.
//!
//! Reserved address space takes no memory and counts towards no limit except that on address space.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::io::{ErrorKind, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asks the CPU to fetch the cache line at `at`, and continues without waiting. Any address will do.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing and fails for no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    // Without a stable intrinsic, elsewhere the CPU is left to itself.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Reserved address space.
#[derive(Debug)]
pub(crate) struct Space {
    base: NonNull<u8>,
    reserved: usize,
    /// Bytes from the base on that are memory; the rest cannot be accessed.
    bytes: AtomicUsize,
}

// SAFETY: the space is plain memory; the types that hand out references to it govern their access.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// Reserves `bytes`, which the kernel may back with huge pages.
    pub(crate) fn reserve(bytes: usize) -> Result<Self> {
        let reserved = bytes.max(1);
        // The kernel charges no memory for an inaccessible mapping. It charges for `grow`, which therefore
        // fails when the system lacks the memory.
        let flags = MapFlags::PRIVATE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps no existing one.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
        // SAFETY: the range is the mapping just created; advice does not change its contents, and merely
        // fails without huge pages.
        let _ = unsafe { rustix::mm::madvise(base, reserved, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { base, reserved, bytes: AtomicUsize::new(0) })
    }

    /// Makes the memory read as zeroes in a forked process. Otherwise a fork would copy the page tables of
    /// all of it and make both processes copy what either writes, and a read in flight could end in the wrong
    /// copy.
    pub(crate) fn wipe_on_fork(&self) {
        // SAFETY: the range is this mapping; the advice changes nothing in this process, and merely fails on
        // a kernel without it.
        let _ =
            unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.reserved, Advice::LinuxWipeOnFork) };
    }

    /// Turns the first `bytes` into memory; new memory is zero.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        if bytes > self.reserved {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range lies in this mapping; memory that was accessible stays so.
        unsafe { rustix::mm::mprotect(self.base.as_ptr().cast(), bytes, access) }?;
        self.bytes.fetch_max(bytes, Ordering::Release);
        Ok(())
    }

    /// The number of bytes that are memory.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// The address of byte `at`.
    #[inline]
    pub(crate) fn at(&self, at: usize) -> NonNull<u8> {
        assert!(at < self.bytes(), "byte {at} is beyond the memory");
        // SAFETY: `at` is inside the mapping.
        unsafe { self.base.add(at) }
    }

    /// The address of the first byte.
    #[inline]
    pub(crate) fn start(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Gives `bytes` from `at` on back to the system. They stay accessible, and read as zero once released.
    ///
    /// # Safety
    /// Nothing refers to these bytes.
    pub(crate) unsafe fn give_back(&self, at: usize, bytes: usize) {
        assert!(at + bytes <= self.bytes(), "byte {at} is beyond the memory");
        // The kernel takes back whole kernel pages only, which may be larger than the range: release those
        // that lie inside it.
        let unit = rustix::param::page_size();
        let (first, end) = (at.next_multiple_of(unit), (at + bytes) / unit * unit);
        if first >= end {
            return;
        }
        let (from, bytes) = (self.at(first).as_ptr().cast(), end - first);
        // SAFETY: the range is inside the mapping, and the caller guarantees that nothing refers to it. A
        // failure leaves the contents unchanged.
        let _ = unsafe { rustix::mm::madvise(from, bytes, Advice::LinuxDontNeed) };
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the space owns the mapping; references to its contents borrow the space or keep it alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

#[cfg(not(loom))]
pub(crate) use real::Growable;

#[cfg(loom)]
pub(crate) use modelled::Growable;

#[cfg(not(loom))]
mod real {
    use super::Space;
    use parking_lot::Mutex;
    use std::io::Result;
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An array that grows in place, up to a maximum, while others read it.
    #[derive(Debug)]
    pub(crate) struct Growable<T> {
        space: Space,
        len: AtomicUsize,
        new: fn() -> T,
        growing: Mutex<()>,
        elements: PhantomData<T>,
    }

    impl<T> Growable<T> {
        /// An empty array that can grow to `max` elements; `new` makes each.
        pub(crate) fn new(max: usize, new: fn() -> T) -> Result<Self> {
            const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= 4096) };
            let space = Space::reserve(max * size_of::<T>())?;
            Ok(Self { space, len: AtomicUsize::new(0), new, growing: Mutex::new(()), elements: PhantomData })
        }

        /// Appends elements until there are `len`.
        pub(crate) fn grow(&self, len: usize) -> Result<()> {
            let _growing = self.growing.lock();
            let has = self.len.load(Ordering::Relaxed);
            if len <= has {
                return Ok(());
            }
            // Memory first, the length last: a reader that sees the new length (`Acquire`) sees
            // initialised elements.
            self.space.grow(len * size_of::<T>())?;
            for at in has..len {
                let element = self.space.at(at * size_of::<T>()).cast::<T>();
                // SAFETY: the element lies within the memory and is aligned, since the mapping is
                // page-aligned. No reference to it exists before `len` covers it; the lock excludes other
                // writers.
                unsafe { element.write((self.new)()) };
            }
            self.len.store(len, Ordering::Release);
            Ok(())
        }
    }

    impl<T> std::ops::Deref for Growable<T> {
        type Target = [T];

        #[inline]
        fn deref(&self) -> &[T] {
            let len = self.len.load(Ordering::Acquire);
            // SAFETY: the first `len` elements are initialised, and do not move while `self` lives.
            unsafe { std::slice::from_raw_parts(self.space.base.as_ptr().cast(), len) }
        }
    }
}

/// The same for the model checker, whose atomics need to be dropped: all elements exist from the start.
#[cfg(loom)]
mod modelled {
    use std::io::{ErrorKind, Result};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug)]
    pub(crate) struct Growable<T> {
        all: Box<[T]>,
        len: AtomicUsize,
    }

    impl<T> Growable<T> {
        pub(crate) fn new(max: usize, new: fn() -> T) -> Result<Self> {
            Ok(Self { all: (0..max).map(|_| new()).collect(), len: AtomicUsize::new(0) })
        }

        pub(crate) fn grow(&self, len: usize) -> Result<()> {
            if len > self.all.len() {
                return Err(ErrorKind::OutOfMemory.into());
            }
            self.len.fetch_max(len, Ordering::AcqRel);
            Ok(())
        }
    }

    impl<T> std::ops::Deref for Growable<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.all[..self.len.load(Ordering::Acquire)]
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The bytes of `space` that are resident.
    fn resident_bytes(space: &Space) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", space.base.as_ptr() as usize);
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = lines.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn an_array_grows_in_place_and_not_beyond_its_maximum() {
        let array = Growable::new(100_000, || 7_u64).unwrap();
        assert!(array.is_empty());
        array.grow(10).unwrap();
        let first = &array[0];
        array.grow(100_000).unwrap();
        assert_eq!((*first, array.len(), array[99_999]), (7, 100_000, 7));
        assert!(std::ptr::eq(first, &raw const array[0]));
        array.grow(5).unwrap();
        assert_eq!(array.len(), 100_000);
        assert!(array.grow(10_000_000).is_err());
    }

    #[test]
    fn memory_that_is_given_back_leaves_the_process_and_is_zero_when_it_is_used_again() {
        let mib = 1 << 20;
        let space = Space::reserve(64 * mib).unwrap();
        space.grow(16 * mib).unwrap();
        assert!(resident_bytes(&space) < mib, "reserved memory is not used memory");
        for at in (0..16 * mib).step_by(4096) {
            // SAFETY: the byte is in the memory, and nothing else refers to it.
            unsafe { space.at(at).write(1) };
        }
        assert_eq!(resident_bytes(&space), 16 * mib);
        // SAFETY: nothing refers to these bytes.
        unsafe { space.give_back(4 * mib, 10 * mib) };
        assert_eq!(resident_bytes(&space), 6 * mib);
        for (at, byte) in [(4 * mib, 0), (14 * mib, 1)] {
            // SAFETY: the byte is in the memory, and nothing else refers to it.
            assert_eq!(unsafe { space.at(at).read() }, byte);
        }
        assert!(space.grow(65 * mib).is_err());
    }
}
