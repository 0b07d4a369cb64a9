//! The frames' memory: one aligned mapping, with huge pages where the kernel has them.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

/// Memory for `frames` pages of `page_bytes`, 4 KiB aligned.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
    /// For each frame a cell that represents its bytes: two unordered accesses fail the model.
    #[cfg(loom)]
    watched: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: the arena is plain memory; the latches govern all access to its parts.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(frames: usize, page_bytes: usize) -> std::io::Result<Self> {
        let bytes = frames * page_bytes;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps nothing that
        // exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        // SAFETY: the range is the mapping just created; advice does not change its contents, and merely
        // fails without huge pages.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            bytes,
            page_bytes,
            #[cfg(loom)]
            watched: (0..frames).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        })
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The address of frame `index`, for a caller that will write to it.
    pub(crate) fn frame_mut(&self, index: usize) -> NonNull<u8> {
        #[cfg(loom)]
        self.watched[index].with_mut(|_| ());
        self.frame(index)
    }

    /// The address of frame `index`.
    fn frame(&self, index: usize) -> NonNull<u8> {
        let at = index * self.page_bytes;
        assert!(at < self.bytes, "frame {index} is beyond the arena");
        // SAFETY: `at` is inside the mapping.
        unsafe { self.base.add(at) }
    }

    /// The bytes of frame `index`.
    ///
    /// # Safety
    /// The caller holds the frame's latch (shared suffices), or no other task can reach the frame, for `'a`.
    pub(crate) unsafe fn bytes<'a>(&self, index: usize) -> &'a [u8] {
        #[cfg(loom)]
        self.watched[index].with(|_| ());
        // SAFETY: in bounds and initialised by the kernel; the caller guarantees that no writer exists.
        unsafe { std::slice::from_raw_parts(self.frame(index).as_ptr(), self.page_bytes) }
    }

    /// The bytes of frame `index`, mutable.
    ///
    /// # Safety
    /// The caller holds the frame's latch exclusively, or no other task can reach the frame, for `'a`.
    pub(crate) unsafe fn bytes_mut<'a>(&self, index: usize) -> &'a mut [u8] {
        // SAFETY: in bounds; the caller guarantees that no other task reads or writes.
        unsafe { std::slice::from_raw_parts_mut(self.frame_mut(index).as_ptr(), self.page_bytes) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this arena owns the mapping; leases and guards keep the arena alive through their `Arc` or
        // borrow.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
