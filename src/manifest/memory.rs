//! A manifest in memory, for stores on emulated or simulated devices.

use super::tail;
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};

/// A manifest in memory: pass it to the next open to find the spaces again.
#[derive(Debug, Default)]
pub struct MemoryManifest(Mutex<Cell>);

#[derive(Debug, Default)]
struct Cell {
    bytes: Option<Vec<u8>>,
    saves: u64,
    failing: Option<Failing>,
    written_bytes: u64,
}

/// Which saves fail, by number, and whether they take effect nevertheless.
#[derive(Clone, Copy, Debug)]
struct Failing {
    from: u64,
    count: u64,
    replaced: bool,
}

impl MemoryManifest {
    /// An independent copy, for a fork of the devices. Its saves do not fail.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(Mutex::new(Cell { bytes: self.bytes(), ..Cell::default() }))
    }

    /// Restores the contents that [`MemoryManifest::to_bytes`] returned.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(Mutex::new(Cell { bytes: Some(bytes), ..Cell::default() }))
    }

    /// The contents in the format of `manifest.json`; `None` before a store was created with it.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        self.bytes()
    }

    /// Test-only: the number of bytes written by all saves.
    #[doc(hidden)]
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.0.lock().written_bytes
    }

    /// Test-only: the number of attempted saves.
    #[doc(hidden)]
    #[must_use]
    pub fn saves(&self) -> u64 {
        self.0.lock().saves
    }

    /// Test-only: after `skip` more saves, `count` saves fail for lack of space. With `replaced` the manifest
    /// is replaced nevertheless, as by a rename whose fsync failed. A second call replaces the first.
    #[doc(hidden)]
    pub fn fail_saves(&self, skip: u64, count: u64, replaced: bool) {
        let mut cell = self.0.lock();
        cell.failing = Some(Failing { from: cell.saves.saturating_add(skip), count, replaced });
    }

    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.0.lock().bytes.clone()
    }

    /// # Errors
    /// As [`MemoryManifest::fail_saves`] requests.
    pub(crate) fn put(&self, bytes: Vec<u8>) -> Result<()> {
        let mut cell = self.0.lock();
        cell.written_bytes += bytes.len() as u64;
        let failing = cell.next_save();
        if failing.is_none_or(|failing| failing.replaced) {
            cell.bytes = Some(bytes);
        }
        failing.map_or(Ok(()), |_| Err(Error::from(ErrorKind::StorageFull)))
    }

    /// Appends the record that `json` encodes, given its number. Returns false when the tail has no room for
    /// it.
    ///
    /// # Errors
    /// As [`MemoryManifest::fail_saves`] requests. A save that does not take effect leaves part of the
    /// record.
    pub(crate) fn append(&self, json: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>) -> Result<bool> {
        let mut cell = self.0.lock();
        let bytes = cell.bytes.clone().unwrap_or_default();
        let file = tail::parse(&bytes).map_err(Error::other)?;
        let Some(record) = file.end.place(&json(file.end.records)?) else { return Ok(false) };
        let contents = file.contents.len();
        let end = record.end.file_end();
        if end > file.end.start() + tail::room(contents) {
            return Ok(false);
        }
        let mut after = bytes;
        after.resize(after.len().max(end), b'\n');
        let failing = cell.next_save();
        for offset in record.offsets {
            // A failed save that does not take effect leaves all but the record's last sector.
            let torn = failing.is_some_and(|failing| !failing.replaced);
            let landed = record.bytes.len() - if torn { tail::SECTOR } else { 0 };
            after[offset..offset + landed].copy_from_slice(&record.bytes[..landed]);
            cell.written_bytes += landed as u64;
        }
        cell.bytes = Some(after);
        failing.map_or(Ok(true), |_| Err(Error::from(ErrorKind::StorageFull)))
    }
}

impl Cell {
    /// Counts a save. Returns how it fails, if it does.
    fn next_save(&mut self) -> Option<Failing> {
        let number = self.saves;
        self.saves += 1;
        self.failing.filter(|f| number.checked_sub(f.from).is_some_and(|after| after < f.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the tail in a file, whose space an embedder of a [`MemoryManifest`] counts on: fewer records would
    /// mean more rewrites.
    #[test]
    fn the_tail_takes_records_to_its_last_sector() {
        let manifest = MemoryManifest::default();
        manifest.put(tail::sealed(b"{}", 0)).unwrap();
        let records = (0..).take_while(|_| manifest.append(|n| serde_json::to_vec(&n)).unwrap()).count();
        // Each record takes a sector, twice.
        assert_eq!(records, tail::room(0) / 2 / tail::SECTOR);
    }
}
