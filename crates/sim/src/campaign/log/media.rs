//! The log's medium: on a simulated device or files that complete at once, so that its calls need no thread.

use super::disk::prefix_bytes;
use super::watch::Watch;
use pagetier_wal::Media;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A medium whose calls run inline, and which tells the model where each write of the log begins.
#[derive(Debug)]
pub(super) struct Inline {
    media: Box<dyn Media>,
    watch: Arc<Watch>,
    /// Where the open segment ends.
    at: u64,
}

impl Inline {
    pub(super) fn new(media: Box<dyn Media>, watch: &Arc<Watch>) -> Self {
        Self { media, watch: Arc::clone(watch), at: 0 }
    }

    fn wrote(&mut self, start: u64, bytes: &[u8], done: io::Result<()>) -> io::Result<()> {
        let records = bytes.len() - prefix_bytes(bytes);
        // Even if it failed: some of it may be on the medium.
        self.watch.model.lock().batches.insert(start);
        if done.is_ok() {
            self.at = start + records as u64;
        }
        done
    }
}

impl Media for Inline {
    fn id(&self) -> u64 {
        self.media.id()
    }

    fn own(&mut self) -> io::Result<()> {
        self.media.own()
    }

    fn list(&mut self) -> io::Result<Vec<u64>> {
        self.media.list()
    }

    fn read(&mut self, start: u64) -> io::Result<Vec<u8>> {
        self.media.read(start)
    }

    fn peek(&mut self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        self.media.peek(start, most)
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let done = self.media.create(start, bytes);
        self.wrote(start, bytes, done)
    }

    fn begin(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let done = self.media.begin(start, bytes);
        self.wrote(start, bytes, done)
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        // No batch begins: these records were written before.
        let done = self.media.resume(start, bytes);
        if done.is_ok() {
            self.at = start + (bytes.len() - prefix_bytes(bytes)) as u64;
        }
        done
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let done = self.media.append(bytes);
        self.wrote(self.at, bytes, done)
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        self.media.remove(start)
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.media.reserve(bytes)
    }

    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let done = self.media.create_reserved(start, bytes);
        self.wrote(start, bytes, done)
    }

    fn segments_max(&self) -> usize {
        self.media.segments_max()
    }

    fn segment_bytes_max(&self) -> u64 {
        self.media.segment_bytes_max()
    }

    fn path(&self, start: u64) -> PathBuf {
        self.media.path(start)
    }

    fn format(&mut self, at_least: u32) -> u32 {
        self.media.format(at_least)
    }

    fn blocks(&self) -> bool {
        // A call on a thread of its own would race the paused clock, which goes on whenever no task is
        // ready.
        false
    }
}
