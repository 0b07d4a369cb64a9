//! The buffer that travels with an operation and comes back with its result.
//!
//! A device keeps the buffer until the kernel is done with it, even after the task stopped waiting: memory
//! that is being read into is never freed or handed out twice. A *leased* buffer extends that guarantee to
//! memory with another owner, which gets it back only once the kernel is done.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The address alignment of owned buffers, in bytes: enough for direct I/O on every common device.
pub const BUF_ALIGN: usize = 4096;

/// An aligned buffer with exclusive access.
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    kind: Kind,
}

enum Kind {
    /// Allocated by [`IoBuf::zeroed`] with this layout; freed on drop.
    Owned(Layout),
    /// Borrowed memory; dropping the buffer gives it back.
    Leased(Arc<dyn Fn(u32) + Send + Sync>, u32),
    /// Empty: nothing to free.
    Empty,
}

// SAFETY: the buffer has exclusive access to its memory (its own allocation, or leased under that contract),
// and what gives it back is `Send`.
unsafe impl Send for IoBuf {}
// SAFETY: `&IoBuf` gives only read access to the bytes.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of `len` zero bytes, aligned to [`BUF_ALIGN`]. Aborts when memory is exhausted, as any
    /// allocation does.
    ///
    /// # Panics
    /// When `len` exceeds the largest possible allocation (`isize::MAX`).
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::<Aligned>::dangling().cast(), len, kind: Kind::Empty };
        }
        let layout = match Layout::from_size_align(len, BUF_ALIGN) {
            Ok(layout) => layout,
            Err(error) => panic!("a buffer of {len} bytes: {error}"),
        };
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, len, kind: Kind::Owned(layout) }
    }

    /// An owned buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.as_mut_slice().copy_from_slice(bytes);
        buf
    }

    /// A buffer in memory owned elsewhere, which its owner knows as `number`. The buffer's drop passes that
    /// to `give_back`, possibly long after the operation's future was dropped, and on any thread, including
    /// a device's own.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` initialised bytes, by any thread. No other code reads or
    /// writes them until `give_back` is called or [`IoBuf::keep`] returns.
    #[must_use]
    pub unsafe fn lease(
        ptr: NonNull<u8>,
        len: usize,
        give_back: Arc<dyn Fn(u32) + Send + Sync>,
        number: u32,
    ) -> Self {
        Self { ptr, len, kind: Kind::Leased(give_back, number) }
    }

    /// Ends a lease without giving the memory back: for its owner alone. An owned buffer is freed.
    pub fn keep(mut self) {
        if matches!(self.kind, Kind::Leased(..)) {
            self.kind = Kind::Empty;
        }
    }

    /// The contents. Of a buffer that a read failed to fill, they are unspecified.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: valid and initialised for `len` bytes, and not written while borrowed: writing requires
        // `&mut self` or `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The contents, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialised for `len` bytes, with exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte: a multiple of [`BUF_ALIGN`], unless the memory is leased.
    #[must_use]
    pub const fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
}

/// Gives empty buffers an aligned address.
#[repr(align(4096))]
struct Aligned;

impl Drop for IoBuf {
    fn drop(&mut self) {
        match &self.kind {
            // SAFETY: allocated in `zeroed` with this layout, and freed only here.
            Kind::Owned(layout) => unsafe { dealloc(self.ptr.as_ptr(), *layout) },
            Kind::Leased(give_back, number) => give_back(*number),
            Kind::Empty => {}
        }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Owned(_) => "owned",
            Kind::Leased(..) => "leased",
            Kind::Empty => "empty",
        };
        f.debug_struct("IoBuf").field("kind", &kind).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn owned_is_aligned_and_zero() {
        for len in [0, 1, 512, 4096, 16384, 65536] {
            let mut buf = IoBuf::zeroed(len);
            assert_eq!(buf.ptr().as_ptr() as usize % BUF_ALIGN, 0);
            assert_eq!((buf.len(), buf.is_empty()), (len, len == 0));
            assert!(buf.as_slice().iter().all(|&b| b == 0));
            buf.as_mut_slice().fill(7);
            assert!(buf.as_slice().iter().all(|&b| b == 7));
            buf.keep();
        }
    }

    #[test]
    fn a_lease_is_given_back_when_it_is_dropped_unless_it_is_kept() {
        let given_back = Arc::new(AtomicU32::new(0));
        let noted = Arc::clone(&given_back);
        let give_back = Arc::new(move |number| noted.store(number, Ordering::Relaxed));
        let mut memory = IoBuf::zeroed(8192);
        // SAFETY: `memory` outlives the lease and is not touched during it.
        let lease = unsafe { IoBuf::lease(memory.ptr(), 4096, Arc::clone(&give_back) as _, 7) };
        lease.keep();
        assert_eq!((given_back.load(Ordering::Relaxed), Arc::strong_count(&give_back)), (0, 1));
        // SAFETY: as above.
        let mut lease = unsafe { IoBuf::lease(memory.ptr(), 4096, Arc::clone(&give_back) as _, 7) };
        lease.as_mut_slice()[0] = 9;
        drop(lease);
        assert_eq!((given_back.load(Ordering::Relaxed), Arc::strong_count(&give_back)), (7, 1));
        assert_eq!(memory.as_mut_slice()[0], 9);
    }
}
