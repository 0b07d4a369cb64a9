//! The page size of a store: a power of two from 4 KiB to 64 KiB.

use std::fmt;

/// A valid page size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PageSize(u32);

/// Why a number is not a page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSizeError {
    /// The rejected size, in bytes.
    pub bytes: u64,
}

impl PageSize {
    /// The smallest: 4 KiB.
    pub const MIN: Self = Self(4 << 10);
    /// The default: 16 KiB, InnoDB's and the papers'.
    pub const DEFAULT: Self = Self(16 << 10);
    /// The largest: 64 KiB.
    pub const MAX: Self = Self(64 << 10);

    /// `bytes` as a page size.
    ///
    /// # Errors
    /// When `bytes` is not a power of two or lies outside 4-64 KiB.
    pub fn new(bytes: u64) -> Result<Self, PageSizeError> {
        if bytes.is_power_of_two() && (u64::from(Self::MIN.0)..=u64::from(Self::MAX.0)).contains(&bytes) {
            Ok(Self(bytes as u32))
        } else {
            Err(PageSizeError { bytes })
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }

    /// The page's size without its header, in bytes: the embedder's share, and the length of a guard's slice.
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        self.bytes() - crate::HEADER_BYTES
    }
}

impl Default for PageSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for PageSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page size {} is not a power of two from 4096 to 65536 bytes", self.bytes)
    }
}

impl std::error::Error for PageSizeError {}
