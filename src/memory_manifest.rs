//! A manifest in memory, for stores on emulated or simulated devices.

use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};

/// A manifest in memory: pass it to the next opening to find the spaces again.
#[derive(Debug, Default)]
pub struct MemoryManifest(Mutex<Cell>);

#[derive(Debug, Default)]
struct Cell {
    bytes: Option<Vec<u8>>,
    saves: u64,
    failing: Option<Failing>,
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
        let number = cell.saves;
        cell.saves += 1;
        match cell.failing.filter(|f| number.checked_sub(f.from).is_some_and(|after| after < f.count)) {
            Some(failing) => {
                if failing.replaced {
                    cell.bytes = Some(bytes);
                }
                Err(Error::from(ErrorKind::StorageFull))
            }
            None => {
                cell.bytes = Some(bytes);
                Ok(())
            }
        }
    }
}
