//! Zipf-distributed references to the pages of one space, hot pages scattered over it.

use pagetier_ghost::{Reference, Source};
use pagetier_policy::{PageId, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Independent references: the page of rank r with a probability that goes with r^-skew.
#[derive(Debug)]
pub struct Zipf {
    /// Cumulative probabilities by rank.
    cumulative: Vec<f64>,
    /// The page of each rank.
    page_of: Vec<u32>,
    write_share: f64,
    rng: SmallRng,
}

impl Zipf {
    /// Over `pages` pages (at least one), with this share of writes.
    #[must_use]
    pub fn new(pages: u32, skew: f64, write_share: f64, seed: u64) -> Self {
        let pages = pages.max(1);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=pages)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|c| *c /= sum);
        let mut page_of: Vec<u32> = (0..pages).collect();
        for at in (1..page_of.len()).rev() {
            page_of.swap(at, rng.random_range(0..=at));
        }
        Self { cumulative, page_of, write_share, rng }
    }
}

impl Source for Zipf {
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool {
        for _ in 0..64 {
            let at = self.rng.random::<f64>();
            let rank = self.cumulative.partition_point(|&c| c < at).min(self.page_of.len() - 1);
            let page = PageId::new(SpaceId(1), self.page_of[rank]);
            let write = self.rng.random_bool(self.write_share);
            out.push(if write { Reference::write(page) } else { Reference::read(page) });
        }
        true
    }
}
