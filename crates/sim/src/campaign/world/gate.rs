//! The embedder's log: durable up to a position that lags behind the changes in pages.

use pagetier::log::GateFuture;
use pagetier::{LogGate, Lsn};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A log that takes time, and fails on request.
#[derive(Debug)]
pub(crate) struct Log {
    latency_us_max: u64,
    durable: AtomicU64,
    failures: AtomicU64,
    rng: Mutex<SmallRng>,
}

impl Log {
    /// A log that is durable up to `durable`; extending that takes up to `latency_us_max` microseconds.
    pub(crate) fn new(latency_us_max: u64, durable: u64, seed: u64) -> Arc<Self> {
        let (durable, failures) = (AtomicU64::new(durable), AtomicU64::new(0));
        Arc::new(Self { latency_us_max, durable, failures, rng: Mutex::new(SmallRng::seed_from_u64(seed)) })
    }

    /// The position up to which it is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// Makes the next `n` requests beyond the durable position fail.
    pub(crate) fn fail(&self, n: u64) {
        self.failures.store(n, Ordering::Relaxed);
    }

    async fn advance(&self, lsn: u64) -> Result<(), pagetier::log::GateError> {
        let pause = self.rng.lock().random_range(1..=self.latency_us_max);
        tokio::time::sleep(Duration::from_micros(pause)).await;
        // A request fails only after its wait, as on a full disk: meanwhile nothing may have relied on
        // it.
        let failing = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if failing.is_ok() {
            return Err(Arc::new(std::io::Error::other("the log's disk is full")));
        }
        // Requests overlap, and a later one may end first: the position never goes back.
        self.durable.fetch_max(lsn, Ordering::Relaxed);
        Ok(())
    }
}

impl LogGate for Log {
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        if lsn.0 <= self.durable() {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.advance(lsn.0))
    }
}
