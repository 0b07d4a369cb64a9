//! Records page requests: every lookup becomes a record of a page trace (`.ptr`), in the order of arrival.
//!
//! When off, it costs a lookup one relaxed load. When on, it costs a short lock and twelve bytes, which a
//! dedicated thread writes out. A writer that falls behind loses runs of records, which are counted, instead
//! of slowing the store down.

use crate::feed::sample_channel::{Chunk, Tap, TraceSummary};
use pagetier_page::{PageId, TRACE_RECORD_BYTES, TraceRecord};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

/// The number of records passed to the writer at once: about a megabyte.
const CHUNK_RECORDS: usize = (1 << 20) / TRACE_RECORD_BYTES;

type Bytes = [u8; TRACE_RECORD_BYTES];

/// Records page requests while a recording is in progress.
#[derive(Debug, Default)]
pub struct Recorder {
    on: AtomicBool,
    tap: Tap<Bytes, io::Result<()>>,
}

impl Recorder {
    #[inline]
    pub(crate) fn note(&self, page: PageId, write: bool, sequential: bool) {
        if self.on.load(Ordering::Relaxed) {
            self.tap.put(TraceRecord { page, write, sequential }.encode(), || 0);
        }
    }

    /// Starts recording every page request as a page trace to `out`, until [`Recorder::stop`]. Returns false,
    /// without effect, when a recording is already in progress.
    ///
    /// # Errors
    /// The system cannot start a thread for the writer.
    pub fn start(&self, out: Box<dyn Write + Send>) -> io::Result<bool> {
        let started = self.tap.start("pagetier-trace", CHUNK_RECORDS, move |chunks| write(out, &chunks))?;
        if started {
            self.on.store(true, Ordering::Relaxed);
        }
        Ok(started)
    }

    /// The state of the recording in progress.
    pub fn recorded(&self) -> Option<TraceSummary> {
        self.tap.recorded()
    }

    /// Stops the recording. Blocks until its writer has written everything; no effect without a recording.
    ///
    /// # Errors
    /// The writer failed: the trace ends early.
    pub fn stop(&self) -> io::Result<TraceSummary> {
        self.on.store(false, Ordering::Relaxed);
        let Some(channel) = self.tap.take() else { return Ok(TraceSummary::default()) };
        let (recorded, written) = channel.stop(0);
        written.unwrap_or_else(|| Err(io::Error::other("the trace's writer panicked")))?;
        Ok(recorded)
    }
}

impl Drop for Recorder {
    /// A recording that was not stopped is still written out.
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the trace of page requests is incomplete");
        }
    }
}

fn write(mut out: Box<dyn Write + Send>, chunks: &Receiver<Chunk<Bytes>>) -> io::Result<()> {
    while let Ok(chunk) = chunks.recv() {
        out.write_all(chunk.items.as_flattened())?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn note(recorder: &Recorder, no: u32) {
        recorder.note(PageId::new(SpaceId(7), no), no % 2 == 1, no.is_multiple_of(3));
    }

    #[test]
    fn every_request_while_it_is_on_comes_out_in_order() {
        let (recorder, out) = (Recorder::default(), Shared::default());
        note(&recorder, 9);
        assert!(recorder.start(Box::new(out.clone())).unwrap());
        assert!(!recorder.start(Box::new(Shared::default())).unwrap(), "one recording at a time");
        let requests = 3 * CHUNK_RECORDS as u32 + 5;
        (0..requests).for_each(|no| note(&recorder, no));
        assert_eq!(recorder.recorded().map(|so_far| so_far.records), Some(u64::from(requests)));
        let recorded = recorder.stop().unwrap();
        note(&recorder, 9);
        assert_eq!((recorded.records, recorded.lost), (u64::from(requests), 0));
        let bytes = out.0.lock();
        assert_eq!(bytes.len(), requests as usize * TRACE_RECORD_BYTES);
        for (no, record) in (0..requests).zip(bytes.chunks_exact(TRACE_RECORD_BYTES)) {
            let page = PageId::new(SpaceId(7), no);
            let expected = TraceRecord { page, write: no % 2 == 1, sequential: no.is_multiple_of(3) };
            assert_eq!(record, expected.encode());
        }
    }

    #[test]
    fn a_recorder_that_is_dropped_leaves_a_whole_trace() {
        let (recorder, out) = (Recorder::default(), Shared::default());
        recorder.start(Box::new(out.clone())).unwrap();
        (0..3).for_each(|no| note(&recorder, no));
        drop(recorder);
        assert_eq!(out.0.lock().len(), 3 * TRACE_RECORD_BYTES);
    }
}
