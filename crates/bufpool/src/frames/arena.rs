//! The frames' memory: aligned, with huge pages where the kernel has them.

use crate::frames::memory::{Space, prefetch};
use std::ops::Range;
use std::ptr::NonNull;

/// Memory for pages of `page_bytes`, 4 KiB aligned.
#[derive(Debug)]
pub(crate) struct Arena {
    space: Space,
    page_bytes: usize,
    /// For each frame a cell that represents its bytes: two unordered accesses fail the model.
    #[cfg(loom)]
    watched: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: the cells stand for the frames' bytes, to which the latches govern all access: the model checks it.
#[cfg(loom)]
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena without memory that can grow to `max` frames.
    pub(crate) fn new(max: usize, page_bytes: usize) -> std::io::Result<Self> {
        let bytes = max.checked_mul(page_bytes).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let space = Space::reserve(bytes)?;
        space.wipe_on_fork();
        Ok(Self {
            space,
            page_bytes,
            #[cfg(loom)]
            watched: (0..max).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        })
    }

    /// Provides memory for `frames` frames.
    pub(crate) fn grow(&self, frames: usize) -> std::io::Result<()> {
        self.space.grow(frames * self.page_bytes)
    }

    /// Gives the memory of `frames` back to the system until they are used again.
    ///
    /// # Safety
    /// No other task can reach these frames.
    pub(crate) unsafe fn give_back(&self, frames: Range<usize>) {
        #[cfg(loom)]
        frames.clone().for_each(|frame| self.watched[frame].with_mut(|_| ()));
        // SAFETY: every reference to a frame's bytes belongs to a task that can reach the frame.
        unsafe { self.space.give_back(frames.start * self.page_bytes, frames.len() * self.page_bytes) };
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The address of frame `index`, for a caller that will write to it.
    #[inline]
    pub(crate) fn frame_mut(&self, index: usize) -> NonNull<u8> {
        #[cfg(loom)]
        self.watched[index].with_mut(|_| ());
        self.frame(index)
    }

    /// The address of frame `index`.
    #[inline]
    fn frame(&self, index: usize) -> NonNull<u8> {
        self.space.at(index * self.page_bytes)
    }

    /// As [`prefetch`], the beginning of frame `index`.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        prefetch(self.space.start().wrapping_add(index.wrapping_mul(self.page_bytes)));
    }

    /// The bytes of frame `index`.
    ///
    /// # Safety
    /// The caller holds the frame's latch (shared suffices), or no other task can reach the frame, for `'a`.
    #[inline]
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
    #[inline]
    pub(crate) unsafe fn bytes_mut<'a>(&self, index: usize) -> &'a mut [u8] {
        // SAFETY: in bounds; the caller guarantees that no other task reads or writes.
        unsafe { std::slice::from_raw_parts_mut(self.frame_mut(index).as_ptr(), self.page_bytes) }
    }
}
