//! The order of a page's versions: every physical write of a page image carries a fresh, larger stamp.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of a page image: the epoch of the store's open in the high bits, a counter in the low 40.
/// The top two bits are zero, so that on-disk tables can keep flags there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stamp(u64);

const SEQ_BITS: u32 = 40;
const EPOCH_BITS: u32 = 22;

impl Stamp {
    /// Precedes every write.
    pub const ZERO: Self = Self(0);
    /// The bits that a stamp can use; the two above are free for flags.
    pub const MASK: u64 = (1 << (SEQ_BITS + EPOCH_BITS)) - 1;

    /// The number of epochs: every open's number is smaller.
    pub const EPOCHS: u32 = 1 << EPOCH_BITS;

    /// The first stamp of the open number `epoch`.
    #[must_use]
    pub const fn first_of(epoch: u32) -> Self {
        Self(((epoch as u64) << SEQ_BITS) & Self::MASK)
    }

    /// Converts from bits; drops flags above [`Stamp::MASK`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & Self::MASK)
    }

    /// The stamp's bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The number of the open that wrote it.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> SEQ_BITS) as u32
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.0 & ((1 << SEQ_BITS) - 1))
    }
}

/// Issues the stamps of one open, each larger than the previous one.
#[derive(Debug)]
pub struct StampSource(AtomicU64);

impl StampSource {
    /// Creates the source for opening `epoch`.
    #[must_use]
    pub fn new(epoch: u32) -> Self {
        Self(AtomicU64::new(Stamp::first_of(epoch).0))
    }

    /// Issues a stamp. An open has 2^40 of them, enough for twelve days at a million page writes per
    /// second. Beyond that the counter carries into the epoch, which still sorts above all earlier stamps.
    pub fn fresh(&self) -> Stamp {
        Stamp((self.0.fetch_add(1, Ordering::Relaxed) + 1) & Stamp::MASK)
    }

    /// The largest stamp issued so far.
    #[must_use]
    pub fn last(&self) -> Stamp {
        Stamp(self.0.load(Ordering::Relaxed) & Stamp::MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_increase_and_epochs_sort_above_all_earlier_ones() {
        let old = StampSource::new(1);
        let new = StampSource::new(2);
        let a = old.fresh();
        let b = old.fresh();
        assert!(Stamp::first_of(1) < a && a < b && b < new.fresh());
        assert_eq!(old.last(), b);
        assert_eq!(b.epoch(), 1);
    }
}
