//! What other sizes of pool and SSD would cost, from a sample of the requests while the store works.

use crate::store::PageStore;
use pagetier_ghost::{GhostParams, Ghosts, Reference, Stream, Use, WhatIf};
use pagetier_page::{Sampling, TraceRecord};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Pages of the pool that a sample has by default: fewer say little, more cost more.
const SAMPLE_FRAMES: f64 = 256.0;

/// The least and the most of the pages that a sample has by default.
const SHARES: (f64, f64) = (0.001, 0.25);

/// What to look at; see [`PageStore::start_what_if`].
#[derive(Clone, Debug)]
#[must_use]
pub struct WhatIfOptions {
    share: Option<f64>,
    pool_factors: Vec<f64>,
    ssd_factors: Vec<f64>,
}

impl Default for WhatIfOptions {
    fn default() -> Self {
        Self { share: None, pool_factors: vec![1.0, 2.0], ssd_factors: vec![0.5, 1.0, 2.0] }
    }
}

impl WhatIfOptions {
    /// The pool as it is and twice as large, each with half the SSD, the SSD as it is, and twice as large:
    /// six ghosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// The share of pages to look at, above 0 and up to 1. The cost of looking goes with it, and with the
    /// number of sizes. Default: so many that 256 of them would fill the pool, between a thousandth and a
    /// quarter.
    pub fn share(mut self, share: f64) -> Self {
        self.share = Some(share);
        self
    }

    /// Sizes of the pool, as multiples of what it has. The present size is always among them.
    pub fn pool_factors(mut self, factors: &[f64]) -> Self {
        self.pool_factors = factors.to_vec();
        self
    }

    /// Sizes of the SSD, likewise.
    pub fn ssd_factors(mut self, factors: &[f64]) -> Self {
        self.ssd_factors = factors.to_vec();
        self
    }
}

/// Ghosts at work, shared with the thread that runs them.
pub(crate) type Ghostly = Mutex<Option<Arc<Mutex<Stream>>>>;

impl PageStore {
    /// Runs ghosts from now on: pools and SSDs of other sizes, without contents, under the store's policies
    /// and its costs as they are now, over those of the requests that concern a sample of the pages (SHARDS;
    /// see [`Sampling`](pagetier_page::Sampling)). A thread of their own runs them; when it does not keep up,
    /// requests of the sample are left out and counted rather than waited for. Memory: about 200 bytes for
    /// each page of the sample that a ghost would hold, for each ghost.
    ///
    /// Ghosts begin empty, and reports are of the later half of what they have seen: let it run until the
    /// store's working set has come by twice.
    ///
    /// # Errors
    /// They run already ([`io::ErrorKind::ResourceBusy`]); a share or a multiple that is none
    /// ([`io::ErrorKind::InvalidInput`]); the system gives no thread.
    pub fn start_what_if(&self, options: &WhatIfOptions) -> io::Result<()> {
        let mut ghostly = self.ghostly.lock();
        if ghostly.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let stats = self.stats();
        let page_count =
            |n: u64, what: &str| u32::try_from(n).map_err(|_| invalid(format!("{n} {what} are too many")));
        let (pool_pages, ssd_pages) =
            (page_count(stats.frames, "frames")?, page_count(stats.ssd.slots, "slots")?);
        let share =
            options.share.unwrap_or((SAMPLE_FRAMES / f64::from(pool_pages.max(1))).clamp(SHARES.0, SHARES.1));
        if !(share > 0.0 && share <= 1.0) {
            return Err(invalid(format!("{share} is no share of pages: above 0, up to 1")));
        }
        let (pool_policy, ssd_policy) =
            self.life.builder.policies().map_err(|why| invalid(why.to_string()))?;
        let sampling = Sampling::new(share);
        let ghosts = Ghosts::new(GhostParams {
            pool_policy,
            ssd_policy,
            costs: self.costs(),
            cluster_pages: self.life.builder.cluster_pages,
            page_bytes: self.page_size().bytes() as u64,
            sampling,
            pool_factors: options.pool_factors.clone(),
            ssd_factors: options.ssd_factors.clone(),
            ..GhostParams::new(pool_pages, ssd_pages)
        });
        let stream = Stream::new(ghosts.map_err(|why| invalid(why.to_string()))?, self.pool.requests());
        let stream = Arc::new(Mutex::new(stream));
        let fed = Arc::clone(&stream);
        let sink = move |records: &[TraceRecord], requests, lost| {
            fed.lock().put(records.iter().map(|record| reference(*record)), requests, lost);
        };
        if !self.pool.start_sampling(sampling, Box::new(sink))? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        *ghostly = Some(stream);
        Ok(())
    }

    /// What other sizes would have cost so far, up to some thousand requests of the sample ago; `None` when
    /// no ghosts run.
    #[must_use]
    pub fn what_if(&self) -> Option<WhatIf> {
        self.ghostly.lock().as_ref().map(|stream| stream.lock().report())
    }

    /// Lets the ghosts see what is left, ends them, and says what other sizes would have cost; `None` when
    /// none ran. Dropped, they end all the same.
    pub async fn stop_what_if(&self) -> Option<WhatIf> {
        let stream = self.ghostly.lock().take()?;
        let pool = self.pool.clone();
        // Fails when the runtime is shutting down: then the report is of what they have seen.
        let _ended = tokio::task::spawn_blocking(move || pool.stop_sampling()).await;
        let report = stream.lock().report();
        Some(report)
    }
}

fn reference(record: TraceRecord) -> Reference {
    let TraceRecord { page, write, sequential } = record;
    Reference { page, used: if write { Use::Write } else { Use::Read }, sequential }
}
