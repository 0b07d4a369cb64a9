//! A channel from lookups to a dedicated thread: passes items in chunks, is bounded, and drops items instead
//! of blocking.

use parking_lot::Mutex;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The maximum number of chunks waiting for the thread.
const CHUNKS_MAX: usize = 32;

/// How many requests were recorded, and how many were lost because the thread fell behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Requests that were passed on.
    pub records: u64,
    /// Requests lost because the thread fell behind.
    pub lost: u64,
}

/// Consecutive items, as the thread gets them.
#[derive(Debug)]
pub(crate) struct Chunk<T> {
    pub(crate) items: Vec<T>,
    /// The sender's stamp from when the chunk was sent.
    pub(crate) stamp: u64,
    /// Items lost so far.
    pub(crate) lost: u64,
}

/// Passes items to a thread, which returns `R` at their end.
#[derive(Debug)]
pub(crate) struct SampleChannel<T, R> {
    items: Vec<T>,
    chunk_items: usize,
    chunks: SyncSender<Chunk<T>>,
    thread: JoinHandle<R>,
    recorded: TraceSummary,
}

impl<T: Send + 'static, R: Send + 'static> SampleChannel<T, R> {
    /// Starts a thread called `name`, which receives chunks of `chunk_items` items.
    fn start(
        name: &str,
        chunk_items: usize,
        take: impl FnOnce(Receiver<Chunk<T>>) -> R + Send + 'static,
    ) -> io::Result<Self> {
        let (chunks, from) = sync_channel(CHUNKS_MAX);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || take(from))?;
        let items = Vec::with_capacity(chunk_items);
        Ok(Self { items, chunk_items, chunks, thread, recorded: TraceSummary::default() })
    }

    /// Adds an item; if that completes a chunk, sends it with `stamp`.
    fn put(&mut self, item: T, stamp: impl FnOnce() -> u64) {
        self.items.push(item);
        self.recorded.records += 1;
        if self.items.len() >= self.chunk_items {
            self.hand_over(stamp());
        }
    }

    /// Sends the pending items without waiting.
    fn hand_over(&mut self, stamp: u64) {
        let items = std::mem::replace(&mut self.items, Vec::with_capacity(self.chunk_items));
        let (records, lost) = (items.len() as u64, self.recorded.lost);
        if self.chunks.try_send(Chunk { items, stamp, lost }).is_err() {
            self.lose(records);
        }
    }

    /// Sends the rest and waits for the thread to finish; `None` when it panicked.
    pub(crate) fn stop(mut self, stamp: u64) -> (TraceSummary, Option<R>) {
        let (records, lost) = (self.items.len() as u64, self.recorded.lost);
        // Blocking is fine, since the thread is joined anyway; fails when it has ended.
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

/// Holds the channel while it is in use.
#[derive(Debug)]
pub(crate) struct Tap<T, R>(Mutex<Option<SampleChannel<T, R>>>);

impl<T, R> Default for Tap<T, R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Send + 'static, R: Send + 'static> Tap<T, R> {
    /// As [`SampleChannel::start`]. Returns false when a channel is already in use.
    pub(crate) fn start(
        &self,
        name: &str,
        chunk_items: usize,
        take: impl FnOnce(Receiver<Chunk<T>>) -> R + Send + 'static,
    ) -> io::Result<bool> {
        let mut channel = self.0.lock();
        if channel.is_some() {
            return Ok(false);
        }
        *channel = Some(SampleChannel::start(name, chunk_items, take)?);
        Ok(true)
    }

    /// Passes an item on if a channel is in use: as [`SampleChannel::put`].
    #[cold]
    pub(crate) fn put(&self, item: T, stamp: impl FnOnce() -> u64) {
        if let Some(channel) = &mut *self.0.lock() {
            channel.put(item, stamp);
        }
    }

    /// The counts so far; `None` without a channel.
    pub(crate) fn recorded(&self) -> Option<TraceSummary> {
        self.0.lock().as_ref().map(|channel| channel.recorded)
    }

    /// Takes the channel out of use.
    pub(crate) fn take(&self) -> Option<SampleChannel<T, R>> {
        self.0.lock().take()
    }
}
