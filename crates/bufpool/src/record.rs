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
        self.on.store(false, Ordering::Relaxed);
        let Some(mut sink) = self.sink.lock().take() else { return Ok(Recorded::default()) };
        sink.hand_over();
        let Sink { chunks, writer, recorded, .. } = sink;
        drop(chunks);
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the trace's writer panicked")))?;
        Ok(recorded)
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
