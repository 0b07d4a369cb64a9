//! Sampling of a reference stream by page.
//!
//! Spatial sampling is due to Waldspurger, Park, Garthwaite and Ahmad (*Efficient MRC Construction with
//! SHARDS*, FAST 2015). A page is in the sample if the hash of its id is below a threshold, so every
//! reference to a sampled page is seen, and none to any other.

use crate::PageId;

/// A deterministic sample of the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampling {
    threshold: u64,
}

impl Sampling {
    /// Every page.
    pub const ALL: Self = Self { threshold: u64::MAX };

    /// A sample of a share `rate` of the pages. Rates above 1 count as 1; a rate too small to select any page
    /// is raised to the smallest that does.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        // The conversion saturates at both ends.
        Self { threshold: ((rate * 2.0_f64.powi(64)) as u64).max(1) }
    }

    /// The sampling with this threshold, which must be above 0: see [`Sampling::threshold`].
    #[must_use]
    pub const fn with_threshold(threshold: u64) -> Self {
        Self { threshold }
    }

    /// The threshold, a number above 0.
    #[must_use]
    pub const fn threshold(self) -> u64 {
        self.threshold
    }

    /// The share of pages in the sample.
    #[must_use]
    pub fn rate(self) -> f64 {
        if self == Self::ALL { 1.0 } else { self.threshold as f64 / 2.0_f64.powi(64) }
    }

    /// Whether `page` is in the sample.
    #[inline]
    #[must_use]
    pub const fn takes(self, page: PageId) -> bool {
        hash(page) <= self.threshold
    }
}

/// The 64-bit mixing function of Steele, Lea and Flood (SplitMix): decorrelates neighbouring pages.
#[inline]
const fn hash(page: PageId) -> u64 {
    let mut x = ((page.space.0 as u64) << 32 | page.no as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    #[test]
    fn as_many_pages_as_the_rate_says_and_always_the_same() {
        for rate in [0.5, 0.05, 0.01] {
            let sampling = Sampling::new(rate);
            assert!((sampling.rate() - rate).abs() < 1e-12);
            let pages = || (0..4).flat_map(|s| (0..50_000).map(move |no| PageId::new(SpaceId(s), no)));
            let taken = pages().filter(|page| sampling.takes(*page)).count() as f64;
            let (mean, off) = (rate * 200_000.0, (200_000.0 * rate * (1.0 - rate)).sqrt());
            assert!((taken - mean).abs() < 4.0 * off, "{taken} of {mean}");
            let fewer = Sampling::new(rate / 2.0);
            assert!(
                pages().all(|page| !fewer.takes(page) || sampling.takes(page)),
                "a smaller sample is part of a larger"
            );
        }
    }

    #[test]
    fn all_and_almost_none() {
        let page = PageId::new(SpaceId(1), 7);
        assert!(
            Sampling::ALL.takes(page) && Sampling::new(1.0).takes(page) && Sampling::new(7.0).takes(page)
        );
        assert_eq!(Sampling::new(1.0), Sampling::ALL);
        assert!(Sampling::new(0.0).threshold() > 0 && !Sampling::new(0.0).takes(page));
    }
}
