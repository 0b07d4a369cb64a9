//! Zipf-distributed references to the pages of one space, with the hot pages scattered over it; optionally
//! with a moving hot set, and with scans.

use pagetier_ghost::{Reference, Source};
use pagetier_policy::{PageId, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// References per batch.
const BATCH: u32 = 64;

/// Draws ranks with probabilities proportional to (rank + 1)^-skew.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// Cumulative probabilities by rank.
    cumulative: Vec<f64>,
}

impl Ranks {
    /// `n` ranks, at least one.
    pub(crate) fn new(n: u32, skew: f64) -> Self {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=n.max(1))
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|c| *c /= sum);
        Self { cumulative }
    }

    pub(crate) fn draw(&self, rng: &mut SmallRng) -> u32 {
        let at = rng.random::<f64>();
        // Rounding may leave the last sum just below 1, and `at` above it.
        self.cumulative.partition_point(|&c| c < at).min(self.cumulative.len() - 1) as u32
    }
}

/// Independent references: the page of rank r has a probability proportional to r^-skew.
#[derive(Debug)]
pub struct Zipf {
    ranks: Ranks,
    /// The page of each rank.
    page_of: Vec<u32>,
    write_share: f64,
    /// Pages that change rank per reference, and the accumulated fraction.
    churn: f64,
    churn_due: f64,
    /// The share of references made by a scan, and the scan's next page.
    scan_share: f64,
    scan_at: u32,
    rng: SmallRng,
}

impl Zipf {
    /// References to `pages` pages (at least one), with this share of writes.
    #[must_use]
    pub fn new(pages: u32, skew: f64, write_share: f64, seed: u64) -> Self {
        let pages = pages.max(1);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut page_of: Vec<u32> = (0..pages).collect();
        // Without this shuffle the hot pages would be neighbours, and a policy that writes in clusters
        // would look better than it is.
        for at in (1..page_of.len()).rev() {
            page_of.swap(at, rng.random_range(0..=at));
        }
        Self {
            ranks: Ranks::new(pages, skew),
            page_of,
            write_share,
            churn: 0.0,
            churn_due: 0.0,
            scan_share: 0.0,
            scan_at: 0,
            rng,
        }
    }

    /// Adds a moving hot set: during as many references as there are pages, this share of the pages exchange
    /// ranks with random others. A hot page turns cold at once, and a cold one hot.
    #[must_use]
    pub fn churning(self, share: f64) -> Self {
        Self { churn: share, ..self }
    }

    /// Adds an endless scan over all pages in order, which makes this share of the references, all reads. The
    /// scan does not declare itself: its references count as random.
    #[must_use]
    pub fn scanned(self, share: f64) -> Self {
        Self { scan_share: share, ..self }
    }

    fn exchange_ranks(&mut self) {
        // Each exchange moves two pages.
        self.churn_due += self.churn * f64::from(BATCH) / 2.0;
        while self.churn_due >= 1.0 {
            // The fraction is carried over, because a small churn makes less than one exchange in a
            // batch.
            self.churn_due -= 1.0;
            let (a, b) = (self.random_rank(), self.random_rank());
            self.page_of.swap(a, b);
        }
    }

    fn random_rank(&mut self) -> usize {
        self.rng.random_range(0..self.page_of.len())
    }

    fn scanned_page(&mut self) -> u32 {
        let page = self.scan_at;
        self.scan_at = (page + 1) % self.page_of.len() as u32;
        page
    }
}

impl Source for Zipf {
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool {
        self.exchange_ranks();
        for _ in 0..BATCH {
            // Without a scan nothing is drawn here, so a seed gives the same references with and without
            // this feature.
            if self.scan_share > 0.0 && self.rng.random_bool(self.scan_share) {
                out.push(Reference::read(PageId::new(SpaceId(1), self.scanned_page())));
                continue;
            }
            let rank = self.ranks.draw(&mut self.rng);
            let page = PageId::new(SpaceId(1), self.page_of[rank as usize]);
            let write = self.rng.random_bool(self.write_share);
            out.push(if write { Reference::write(page) } else { Reference::read(page) });
        }
        true
    }
}
