//! Free space for growth: how much the store has, and an alarm when it is low.

use super::shared::Shared;
use crate::ownership::held_dir::At;
use rustix::fs::{FileType, StatFs};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::Ordering;

/// The free space that a store has for growth, in bytes. See [`Stats::room`](crate::stats::Stats::room).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Headroom {
    /// Space for new pages before the HDD has to grow. Freed pages count as taken until
    /// [`Spaces::shrink`](crate::Spaces::shrink) gives their extents to other spaces.
    pub unallocated_bytes: u64,
    /// Free space in the file system of the HDD's file; `None` if the HDD is not a file.
    pub hdd_free_bytes: Option<u64>,
    /// Free space in the file system of the store's directory, which holds the manifest; `None` without a
    /// directory.
    pub directory_free_bytes: Option<u64>,
    /// Free space in the file system of the SSD's (or the ring's) file; `None` if it is not a file.
    pub ssd_free_bytes: Option<u64>,
    /// Names what is below [`Builder::low_room`](crate::Builder::low_room): `pages` (space for new pages, on
    /// the HDD and in its file system), `directory`, `ssd` (unless all blocks of its file are allocated).
    pub low: Vec<String>,
}

impl Headroom {
    /// Lists what has less than `low_bytes`. `hdd_may_grow`: `None` if that is unknown. `ssd_may_grow`:
    /// blocks of the SSD's file are yet to be allocated.
    fn judged(mut self, low_bytes: u64, hdd_may_grow: Option<bool>, ssd_may_grow: bool) -> Self {
        let pages = self.unallocated_bytes.saturating_add(self.hdd_free_bytes.unwrap_or(0));
        let all = [
            // A device of the embedder may grow without limit: it raises no alarm.
            ("pages", hdd_may_grow.map(|_| pages)),
            ("directory", self.directory_free_bytes),
            ("ssd", self.ssd_free_bytes.filter(|_| ssd_may_grow)),
        ];
        let low = all.into_iter().filter(|(_, bytes)| bytes.is_some_and(|bytes| bytes < low_bytes));
        self.low = low.map(|(what, _)| what.to_owned()).collect();
        self
    }
}

impl Shared {
    /// The free space at this moment. Queries the file systems, which takes microseconds.
    pub(crate) fn room(&self) -> Headroom {
        let config = &self.config;
        let pages = self.volume.placed_pages();
        let taken = pages * self.page_size().bytes() as u64 + self.volume.extents_at();
        let hdd = config.at(&config.hdd_place(), "hdd.vol");
        let hdd_may_grow = hdd.as_ref().and_then(may_grow);
        let ssd = self.devices.in_use.lock().ssd.0.clone();
        let cache = if self.tier.slots() > 0 { (ssd, "ssd.cache") } else { (config.ring_place(), "ring") };
        let on_hdd = self.tier.slots() == 0 && self.devices.hdd_ring.get().is_some();
        let cache_file =
            config.at(&cache.0, cache.1).filter(|_| !on_hdd).filter(|at| may_grow(at) == Some(true));
        let ssd_may_grow = cache_file.as_ref().is_some_and(is_sparse);
        Headroom {
            unallocated_bytes: self.hdd.size().saturating_sub(taken),
            hdd_free_bytes: hdd
                .filter(|_| hdd_may_grow == Some(true))
                .and_then(|at| free_bytes(at.file_system())),
            directory_free_bytes: config.held.as_ref().and_then(|held| free_bytes(held.file_system())),
            ssd_free_bytes: cache_file.and_then(|at| free_bytes(at.file_system())),
            low: Vec::new(),
        }
        .judged(config.options.low_room, hdd_may_grow, ssd_may_grow)
    }

    /// Logs when free space becomes low, and when that ends.
    pub(crate) fn watch_room(&self) {
        let room = self.room();
        let is_low = !room.low.is_empty();
        // Log each change, not each growth.
        if self.room_alarm.swap(is_low, Ordering::Relaxed) == is_low {
            return;
        }
        if is_low {
            tracing::warn!(?room, "free space is low: {}", room.low.join(", "));
        } else {
            tracing::info!(?room, "free space is sufficient again");
        }
    }
}

/// Whether what is there can grow: a file can, a block device cannot. `None` if it is neither.
fn may_grow(at: &At) -> Option<bool> {
    match FileType::from_raw_mode(at.stat().ok()?.st_mode) {
        FileType::RegularFile => Some(true),
        FileType::BlockDevice => Some(false),
        _ => None,
    }
}

/// Whether blocks of the file are yet to be allocated.
fn is_sparse(at: &At) -> bool {
    at.stat().is_ok_and(|file| file.st_blocks * 512 < file.st_size)
}

/// The bytes that an unprivileged process can still write to the file system.
fn free_bytes(system: io::Result<StatFs>) -> Option<u64> {
    let system = system.ok()?;
    // POSIX counts in fragments; some file systems leave the field 0.
    let block = if system.f_frsize > 0 { system.f_frsize } else { system.f_bsize };
    Some(system.f_bavail.saturating_mul(u64::try_from(block).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_less_than_the_threshold_is_low() {
        let low = |unallocated, hdd: Option<u64>, directory, ssd| {
            let room = Headroom {
                unallocated_bytes: unallocated,
                hdd_free_bytes: hdd,
                directory_free_bytes: directory,
                ssd_free_bytes: ssd,
                low: Vec::new(),
            };
            room.judged(100, hdd.map(|_| true), true).low
        };
        assert!(low(0, Some(100), Some(100), None).is_empty());
        assert!(low(60, Some(40), Some(100), Some(100)).is_empty());
        assert_eq!(low(59, Some(40), Some(99), Some(99)), ["pages", "directory", "ssd"]);
        assert!(low(0, None, None, None).is_empty(), "devices may grow");
        let full = Headroom { unallocated_bytes: 99, ..Headroom::default() };
        assert_eq!(full.judged(100, Some(false), false).low, ["pages"], "a block device does not grow");
        let whole = Headroom { ssd_free_bytes: Some(0), ..Headroom::default() };
        assert!(whole.judged(100, None, false).low.is_empty(), "the SSD's file has its room");
    }
}
