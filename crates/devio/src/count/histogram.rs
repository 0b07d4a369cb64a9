//! A distribution of times, in buckets of an eighth of a power of two.

/// Sub-buckets per power of two: the resolution is one eighth.
const SUB_BITS: u32 = 3;
/// Values below 2^7 ns share the first bucket.
const MIN_BITS: u32 = 7;
/// Values from 2^39 ns (nine minutes) on share the last bucket.
const MAX_BITS: u32 = 39;
pub(crate) const BUCKETS: usize = ((MAX_BITS - MIN_BITS) << SUB_BITS) as usize;

pub(crate) fn bucket_of(ns: u64) -> usize {
    let ns = ns.clamp(1 << MIN_BITS, (1 << MAX_BITS) - 1);
    let bits = ns.ilog2();
    // The three bits after the leading one.
    let sub = (ns >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((bits - MIN_BITS) << SUB_BITS) as usize) + sub as usize
}

/// The smallest value of a bucket, in nanoseconds.
const fn floor_of(bucket: usize) -> u64 {
    let bits = MIN_BITS + (bucket >> SUB_BITS) as u32;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    (1 << bits) + (sub << (bits - SUB_BITS))
}

/// A distribution of times, in buckets an eighth of a power of two wide.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TimeHistogram {
    /// Empty until the first value is recorded.
    pub(crate) counts: Vec<u64>,
}

impl TimeHistogram {
    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that a share `quantile` (0 to 1) of the values does not exceed, in nanoseconds; rounded up by
    /// at most an eighth; 0 without values.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = ((self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // The upper end of the bucket: a latency is rather reported too long than too short.
                return floor_of(bucket + 1);
            }
        }
        0
    }

    /// The non-empty buckets: smallest value in nanoseconds, and count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(b, n)| (floor_of(b), *n))
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
            return;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        for (mine, theirs) in out.counts.iter_mut().zip(&earlier.counts) {
            *mine = mine.saturating_sub(*theirs);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_monotonic_and_tight() {
        let mut last = 0;
        for bucket in 0..BUCKETS {
            let floor = floor_of(bucket);
            assert!(floor > last);
            assert_eq!(bucket_of(floor), bucket);
            assert_eq!(bucket_of(floor_of(bucket + 1) - 1), bucket);
            last = floor;
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
