//! Passes the requests for a sample of the pages to a thread that analyses them while the pool runs.
//!
//! When off, it costs a lookup one relaxed load; when on, an additional hash, and for sampled pages a short
//! lock.

use crate::feed::sample_channel::Tap;
use pagetier_page::{PageId, Sampling, TraceRecord};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of requests passed at once.
const CHUNK_ITEMS: usize = 1024;

/// Receives samples. Arguments: the requests, the number of all requests up to the last of them, and the
/// number of sampled requests lost so far.
pub type SampleSink = Box<dyn FnMut(&[TraceRecord], u64, u64) + Send>;

/// Passes on the requests for a sample of the pages while sampling is in progress.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The sampling threshold; 0: off.
    threshold: AtomicU64,
    tap: Tap<TraceRecord, ()>,
}

impl Sampler {
    /// Reports a request; `requests` counts all of them.
    #[inline]
    pub(crate) fn note(&self, page: PageId, write: bool, sequential: bool, requests: impl FnOnce() -> u64) {
        let threshold = self.threshold.load(Ordering::Relaxed);
        if threshold != 0 && Sampling::with_threshold(threshold).takes(page) {
            self.tap.put(TraceRecord { page, write, sequential }, requests);
        }
    }

    /// Passes the requests for a sample of the pages to `sink`, on a dedicated thread, until
    /// [`Sampler::stop`] or the pool's end. Returns false, without effect, when sampling is already in
    /// progress.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(&self, sampling: Sampling, mut sink: SampleSink) -> io::Result<bool> {
        let started = self.tap.start("pagetier-ghosts", CHUNK_ITEMS, move |chunks| {
            while let Ok(chunk) = chunks.recv() {
                sink(&chunk.items, chunk.stamp, chunk.lost);
            }
        })?;
        if started {
            self.threshold.store(sampling.threshold(), Ordering::Relaxed);
        }
        Ok(started)
    }

    /// Stops the sampling; `requests` counts all requests of the pool. Blocks until the sink has seen
    /// everything; no effect without sampling.
    pub fn stop(&self, requests: u64) {
        self.threshold.store(0, Ordering::Relaxed);
        if let Some(channel) = self.tap.take() {
            channel.stop(requests);
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // The last report has been taken; the thread ends when it has processed the pending chunks.
        drop(self.tap.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn the_sink_sees_the_sample_in_order_and_nothing_else() {
        let (sampler, sampling) = (Sampler::default(), Sampling::new(0.1));
        let seen = Arc::new(Mutex::new((Vec::new(), 0)));
        let sink = Arc::clone(&seen);
        let note = |no: u32| {
            sampler.note(PageId::new(SpaceId(1), no), no.is_multiple_of(2), false, || u64::from(no) + 1);
        };
        note(1);
        let started = sampler.start(
            sampling,
            Box::new(move |records, requests, lost| {
                assert_eq!(lost, 0);
                sink.lock().0.extend(records.iter().map(|record| record.page.no));
                sink.lock().1 = requests;
            }),
        );
        assert!(started.unwrap());
        assert!(!sampler.start(sampling, Box::new(|_, _, _| ())).unwrap(), "one at a time");
        (0..50_000).for_each(note);
        sampler.stop(50_000);
        note(1);
        let expected: Vec<u32> =
            (0..50_000).filter(|&no| sampling.takes(PageId::new(SpaceId(1), no))).collect();
        assert!(expected.len() > 4 * CHUNK_ITEMS && expected.len() < 6_000);
        assert_eq!(*seen.lock(), (expected, 50_000));
    }
}
