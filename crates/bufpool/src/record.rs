//! Recording page requests: every look-up as a record of a page trace (`.ptr`), in the order in which they came in.
//!
//! Off, it costs a look-up one relaxed load. On, a short lock and twelve bytes; a thread of its own writes them out. A writer that does
//! not keep up loses whole stretches of records, which are counted, rather than slowing the store down.

use pagetier_page::{PageId, TRACE_RECORD_BYTES, TraceRecord};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes handed to the writer at once.
const CHUNK_BYTES: usize = (1 << 20) / TRACE_RECORD_BYTES * TRACE_RECORD_BYTES;

/// Chunks that may wait for the writer.
const CHUNKS_MAX: usize = 32;

/// What a recording came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recorded {
    /// Requests in the trace.
    pub records: u64,
    /// Requests that are missing in it, because the writer did not keep up.
    pub lost: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    sink: Mutex<Option<Sink>>,
}

#[derive(Debug)]
struct Sink {
    chunk: Vec<u8>,
    chunks: SyncSender<Vec<u8>>,
    writer: JoinHandle<io::Result<()>>,
    recorded: Recorded,
}

impl Recorder {
    #[inline]
    pub(crate) fn note(&self, page: PageId, write: bool, sequential: bool) {
        if self.on.load(Ordering::Relaxed) {
            self.put(TraceRecord { page, write, sequential });
        }
    }

    #[cold]
    fn put(&self, record: TraceRecord) {
        if let Some(sink) = &mut *self.sink.lock() {
            sink.chunk.extend_from_slice(&record.encode());
            sink.recorded.records += 1;
            if sink.chunk.len() >= CHUNK_BYTES {
                sink.hand_over();
            }
        }
    }

    /// False when a recording is under way already.
    pub(crate) fn start(&self, out: Box<dyn Write + Send>) -> io::Result<bool> {
        let mut sink = self.sink.lock();
        if sink.is_some() {
            return Ok(false);
        }
        let (chunks, from) = sync_channel(CHUNKS_MAX);
        let writer =
            std::thread::Builder::new().name("pagetier-trace".into()).spawn(move || write(out, &from))?;
        let chunk = Vec::with_capacity(CHUNK_BYTES);
        *sink = Some(Sink { chunk, chunks, writer, recorded: Recorded::default() });
        self.on.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// So far; nothing when no recording is under way.
    pub(crate) fn recorded(&self) -> Option<Recorded> {
        self.sink.lock().as_ref().map(|sink| sink.recorded)
    }

    /// Ends the recording: blocks until everything is written.
    pub(crate) fn stop(&self) -> io::Result<Recorded> {
        let mut sink = self.sink.lock();
        self.on.store(false, Ordering::Relaxed);
        let taken = sink.take();
        drop(sink);
        let Some(Sink { chunk, chunks, writer, mut recorded }) = taken else {
            return Ok(Recorded::default());
        };
        let records = (chunk.len() / TRACE_RECORD_BYTES) as u64;
        // May wait for the writer, which is waited for anyway; fails when the writer has.
        if chunks.send(chunk).is_err() {
            recorded.records -= records;
            recorded.lost += records;
        }
        drop(chunks);
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the trace's writer panicked")))?;
        Ok(recorded)
    }
}

impl Drop for Recorder {
    /// A recording that nobody stopped is written out all the same.
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the trace of page requests is not whole");
        }
    }
}

impl Sink {
    fn hand_over(&mut self) {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let records = (chunk.len() / TRACE_RECORD_BYTES) as u64;
        if self.chunks.try_send(chunk).is_err() {
            self.recorded.records -= records;
            self.recorded.lost += records;
        }
    }
}

fn write(mut out: Box<dyn Write + Send>, chunks: &Receiver<Vec<u8>>) -> io::Result<()> {
    while let Ok(chunk) = chunks.recv() {
        out.write_all(&chunk)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;
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
        let requests = 3 * (CHUNK_BYTES / TRACE_RECORD_BYTES) as u32 + 5;
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
