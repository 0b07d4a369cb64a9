//! The buffer that travels with an operation and comes back with its result.
//!
//! A device keeps the buffer until the kernel is done with it, even after the task stopped waiting: memory
//! that is being read into is never freed or handed out twice. A *leased* buffer extends that guarantee to
//! memory with another owner: its owner token marks the memory as in use, and is dropped or handed back only
//! once the kernel is done.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

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
    /// Borrowed memory; dropping the buffer drops its owner's token.
    Leased(Box<dyn Any + Send>),
    /// Empty: nothing to free.
    Empty,
}

// SAFETY: the buffer has exclusive access to its memory (its own allocation, or leased under that contract),
// and the token is `Send`.
unsafe impl Send for IoBuf {}
// SAFETY: `&IoBuf` gives only read access to the bytes, and no access to the token, which may not be `Sync`.
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

    /// A buffer in memory owned elsewhere. `owner` stands for the right to use that memory. It is dropped
    /// with the buffer, possibly long after the operation's future was dropped, and on any thread, including
    /// a device's own.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` initialised bytes, by any thread. No other code reads or
    /// writes them until `owner` is dropped or [`IoBuf::into_owner`] returns it.
    #[must_use]
    pub unsafe fn lease(ptr: NonNull<u8>, len: usize, owner: Box<dyn Any + Send>) -> Self {
        Self { ptr, len, kind: Kind::Leased(owner) }
    }

    /// Ends a lease and returns the owner token; `None` for an owned buffer, which is freed.
    #[must_use]
    pub fn into_owner(mut self) -> Option<Box<dyn Any + Send>> {
        // `Empty` stays behind, so that the drop of `self` neither frees the memory nor drops the token.
        match std::mem::replace(&mut self.kind, Kind::Empty) {
            Kind::Leased(owner) => Some(owner),
            owned => {
                self.kind = owned;
                None
            }
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
        if let Kind::Owned(layout) = self.kind {
            // SAFETY: allocated in `zeroed` with this layout, and freed only here.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Owned(_) => "owned",
            Kind::Leased(_) => "leased",
            Kind::Empty => "empty",
        };
        f.debug_struct("IoBuf").field("kind", &kind).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn owned_is_aligned_and_zero() {
        for len in [0, 1, 512, 4096, 16384, 65536] {
            let mut buf = IoBuf::zeroed(len);
            assert_eq!(buf.ptr().as_ptr() as usize % BUF_ALIGN, 0);
            assert_eq!((buf.len(), buf.is_empty()), (len, len == 0));
            assert!(buf.as_slice().iter().all(|&b| b == 0));
            buf.as_mut_slice().fill(7);
            assert!(buf.as_slice().iter().all(|&b| b == 7));
            assert!(buf.into_owner().is_none());
        }
    }

    #[test]
    fn lease_keeps_its_owner_until_dropped_or_handed_back() {
        let token = Arc::new(());
        let mut memory = IoBuf::zeroed(8192);
        // SAFETY: `memory` outlives the lease and is not touched during it.
        let lease = unsafe { IoBuf::lease(memory.ptr(), 4096, Box::new(Arc::clone(&token))) };
        assert_eq!(Arc::strong_count(&token), 2);
        let owner = lease.into_owner().expect("leased");
        assert_eq!(Arc::strong_count(&token), 2);
        assert!(owner.downcast_ref::<Arc<()>>().is_some());
        drop(owner);
        assert_eq!(Arc::strong_count(&token), 1);
        // SAFETY: as above.
        let mut lease = unsafe { IoBuf::lease(memory.ptr(), 4096, Box::new(Arc::clone(&token))) };
        lease.as_mut_slice()[0] = 9;
        drop(lease);
        assert_eq!(Arc::strong_count(&token), 1);
        assert_eq!(memory.as_mut_slice()[0], 9);
    }
}
