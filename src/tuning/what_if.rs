//! Estimates what other sizes of pool and SSD would cost, from a sample of the requests while the store runs.

use crate::store::handles::Estimates;
use pagetier_ghost::{GhostParams, Ghosts, Reference, Stream, Use, WhatIf};
use pagetier_page::{Sampling, TraceRecord};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Pages of the pool that the default sample covers: fewer are imprecise, more cost more.
const SAMPLE_FRAMES: f64 = 256.0;

/// Bounds on the default share of the pages that are sampled.
const SHARES: (f64, f64) = (0.001, 0.25);

/// Options of the estimate; see [`Estimates::start`].
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
    /// The current pool and one twice as large, each with half the SSD, the current SSD, and twice the SSD:
    /// six ghosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// The share of pages to sample, above 0 and up to 1. The cost is proportional to it, and to the number
    /// of sizes. Default: the share at which 256 sampled pages would fill the pool, between a thousandth and
    /// a quarter.
    pub fn share(mut self, share: f64) -> Self {
        self.share = Some(share);
        self
    }

    /// Sizes of the pool as multiples of its current size, which is always included.
    pub fn pool_factors(mut self, factors: &[f64]) -> Self {
        self.pool_factors = factors.to_vec();
        self
    }

    /// Sizes of the SSD as multiples of its current size.
    pub fn ssd_factors(mut self, factors: &[f64]) -> Self {
        self.ssd_factors = factors.to_vec();
        self
    }
}

impl Estimates<'_> {
    /// Starts ghosts: simulated pools and SSDs of other sizes, without contents, under the store's policies
    /// and its costs at this moment. They see the requests for a sample of the pages (SHARDS; see
    /// [`Sampling`](pagetier_page::Sampling)). A dedicated thread drives them; when it falls behind, requests
    /// of the sample are skipped and counted instead of delayed. Each ghost takes about 200 bytes of memory
    /// for each sampled page that it would hold.
    ///
    /// Ghosts start empty, and reports cover the later half of what they have seen: run them until the store
    /// has gone through its working set twice.
    ///
    /// # Errors
    /// Ghosts are running already ([`io::ErrorKind::ResourceBusy`]); a share or a multiple is out of range
    /// ([`io::ErrorKind::InvalidInput`]); the system cannot start a thread.
    pub fn start(self, options: &WhatIfOptions) -> io::Result<()> {
        // Hold the lock to the end: only one of two calls at once starts.
        let mut running = self.0.ghosts.lock();
        if running.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let stats = self.0.stats();
        let page_count =
            |n: u64, what: &str| u32::try_from(n).map_err(|_| invalid(format!("{n} {what} are too many")));
        let (pool_pages, ssd_pages) =
            (page_count(stats.frames, "frames")?, page_count(stats.ssd.slots, "slots")?);
        // By default 256 sampled pages fill the pool: fewer give noise, more cost time at each request.
        let share =
            options.share.unwrap_or((SAMPLE_FRAMES / f64::from(pool_pages.max(1))).clamp(SHARES.0, SHARES.1));
        if !(share > 0.0 && share <= 1.0) {
            return Err(invalid(format!(
                "{share} is not a share of pages: it must be above 0 and at most 1"
            )));
        }
        let sampling = Sampling::new(share);
        let ghosts = Ghosts::new(GhostParams {
            pool_policy: self.0.policies().pool(),
            ssd_policy: self.0.policies().ssd(),
            costs: self.0.shared.costs(),
            page_bytes: self.0.page_size().bytes() as u64,
            sampling,
            pool_factors: options.pool_factors.clone(),
            ssd_factors: options.ssd_factors.clone(),
            ..GhostParams::new(pool_pages, ssd_pages)
        });
        let stream = Stream::new(ghosts.map_err(|why| invalid(why.to_string()))?, self.0.pool.requests());
        let stream = Arc::new(Mutex::new(stream));
        // The sampler calls this in its own thread, so requests of the store do not wait for the simulation.
        let fed = Arc::clone(&stream);
        let sink = move |records: &[TraceRecord], requests, lost| {
            fed.lock().put(records.iter().map(|record| reference(*record)), requests, lost);
        };
        if !self.0.pool.sampler().start(sampling, Box::new(sink))? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        *running = Some(stream);
        Ok(())
    }

    /// What other sizes would have cost so far; it lags by up to some thousand requests of the sample. `None`
    /// when no ghosts run.
    #[must_use]
    pub fn report(self) -> Option<WhatIf> {
        self.0.ghosts.lock().as_ref().map(|stream| stream.lock().report())
    }

    /// Lets the ghosts process the remaining requests, stops them, and returns what other sizes would have
    /// cost; `None` when none ran. The ghosts stop even if the future is dropped.
    pub async fn stop(self) -> Option<WhatIf> {
        let stream = self.0.ghosts.lock().take()?;
        let pool = self.0.pool.clone();
        // Fails when the runtime is shutting down; the report then covers what the ghosts have seen.
        let _ended = tokio::task::spawn_blocking(move || pool.sampler().stop(pool.requests())).await;
        let report = stream.lock().report();
        Some(report)
    }
}

fn reference(record: TraceRecord) -> Reference {
    let TraceRecord { page, write, sequential } = record;
    Reference { page, used: if write { Use::Write } else { Use::Read }, sequential }
}
