//! Saves of the manifest that fail.

use pagetier::MemoryManifest;
use rand::Rng;
use rand::rngs::SmallRng;

/// Saves of the manifest that fail: which ones, and whether they take effect nevertheless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saves {
    /// The number of saves that succeed first.
    pub(crate) skip: u64,
    pub(crate) count: u64,
    pub(crate) replaced: bool,
}

impl Saves {
    pub(crate) fn fail(self, manifest: &MemoryManifest) {
        manifest.fail_saves(self.skip, self.count, self.replaced);
    }

    pub(crate) fn some(skip_max: u64, rng: &mut SmallRng) -> Self {
        let count = [1, 1, 2, 4][rng.random_range(0..4)];
        // Half of the failed saves take effect all the same, as a rename does whose fsync fails.
        Self { skip: rng.random_range(0..=skip_max), count, replaced: rng.random_bool(0.5) }
    }
}
