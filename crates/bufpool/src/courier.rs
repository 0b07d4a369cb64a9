//! Items on their way from look-ups to a thread of their own, in chunks: bounded, and lossy rather than slow.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Chunks that may wait for the thread.
const CHUNKS_MAX: usize = 32;

/// What was carried, and what was lost because the thread did not keep up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recorded {
    /// Requests in the trace.
    pub records: u64,
    /// Requests that are missing in it, because the writer did not keep up.
    pub lost: u64,
}

/// Items that were put one after the other.
#[derive(Debug)]
pub(crate) struct Chunk<T> {
    pub(crate) items: Vec<T>,
    /// What the chunk was stamped with when it was handed over.
    pub(crate) stamp: u64,
    /// Items lost so far.
    pub(crate) lost: u64,
}

/// Carries items to a thread, which returns `R` when they have ended.
#[derive(Debug)]
pub(crate) struct Courier<T, R> {
    items: Vec<T>,
    chunk_items: usize,
    chunks: SyncSender<Chunk<T>>,
    thread: JoinHandle<R>,
    recorded: Recorded,
}

impl<T: Send + 'static, R: Send + 'static> Courier<T, R> {
    /// Starts a thread of this name that takes chunks of so many items.
    pub(crate) fn start(
        name: &str,
        chunk_items: usize,
        take: impl FnOnce(Receiver<Chunk<T>>) -> R + Send + 'static,
    ) -> io::Result<Self> {
        let (chunks, from) = sync_channel(CHUNKS_MAX);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || take(from))?;
        let items = Vec::with_capacity(chunk_items);
        Ok(Self { items, chunk_items, chunks, thread, recorded: Recorded::default() })
    }

    /// One more item; the chunk that it may complete is stamped with `stamp`.
    pub(crate) fn put(&mut self, item: T, stamp: impl FnOnce() -> u64) {
        self.items.push(item);
        self.recorded.records += 1;
        if self.items.len() >= self.chunk_items {
            self.hand_over(stamp());
        }
    }

    /// Hands over what there is, without waiting.
    pub(crate) fn hand_over(&mut self, stamp: u64) {
        let items = std::mem::replace(&mut self.items, Vec::with_capacity(self.chunk_items));
        let (records, lost) = (items.len() as u64, self.recorded.lost);
        if self.chunks.try_send(Chunk { items, stamp, lost }).is_err() {
            self.lose(records);
        }
    }

    /// So far.
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded
    }

    /// Hands over the rest and waits for the thread to be done with everything; `None` when it panicked.
    pub(crate) fn stop(mut self, stamp: u64) -> (Recorded, Option<R>) {
        let (records, lost) = (self.items.len() as u64, self.recorded.lost);
        // May wait for the thread, which is waited for anyway; fails when it has ended.
        if self.chunks.send(Chunk { items: std::mem::take(&mut self.items), stamp, lost }).is_err() {
            self.lose(records);
        }
        drop(self.chunks);
        (self.recorded, self.thread.join().ok())
    }

    fn lose(&mut self, records: u64) {
        self.recorded.records -= records;
        self.recorded.lost += records;
    }
}
