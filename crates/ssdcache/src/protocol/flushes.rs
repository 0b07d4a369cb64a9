//! Flush numbers. A completed write is durable once a flush that *began* afterwards has completed, so a
//! waiter needs only that flush's number. The numbers of the two devices are different types.

use std::fmt::Debug;

/// The number of a flush of one device; 1 is the first.
pub trait FlushNumber: Copy + Ord + Debug + Send + Sync + 'static {
    /// The flush with this number.
    fn nth(number: u64) -> Self;

    /// The number, for arithmetic that is the same for both devices.
    fn get(self) -> u64;
}

/// A flush of the SSD, or of the ring's file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SsdFlush(pub u64);

impl SsdFlush {
    /// No flush: before the first.
    pub const NONE: Self = Self(0);
}

/// A flush of the HDD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HddFlush(pub u64);

impl FlushNumber for SsdFlush {
    fn nth(number: u64) -> Self {
        Self(number)
    }

    fn get(self) -> u64 {
        self.0
    }
}

impl FlushNumber for HddFlush {
    fn nth(number: u64) -> Self {
        Self(number)
    }

    fn get(self) -> u64 {
        self.0
    }
}
