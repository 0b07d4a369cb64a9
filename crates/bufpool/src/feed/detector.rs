//! Detects sequential access.

use pagetier_page::{PageId, SpaceId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of consecutive misses, each on the page after the previous one, that counts as sequential
/// access: half an extent, as cautious as InnoDB (56 of 64 by default). With 4, TPC-C's deliveries, which
/// visit the neighbouring pages of ten districts in order, made useless read-ahead a third of all HDD reads.
const LINEAR_AFTER: u32 = 32;

/// The maximum number of spaces watched at once; beyond it the detector starts over.
const LINES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The page whose miss would continue the run.
    next: u32,
    length: u32,
}

/// Detects sequential access per space, from misses alone: hits cost nothing.
#[derive(Debug)]
pub(crate) struct Detector {
    window: AtomicU32,
    lines: Mutex<FxHashMap<SpaceId, Line>>,
}

impl Detector {
    pub(crate) fn new(window: usize) -> Self {
        Self { window: AtomicU32::new(window as u32), lines: Mutex::new(FxHashMap::default()) }
    }

    /// Sets the number of pages to read ahead at a time.
    pub(crate) fn set_window(&self, window: usize) {
        self.window.store(window as u32, Ordering::Relaxed);
    }

    /// Records a demand miss. Returns the first page and the number of pages to read ahead if it continues a
    /// run.
    pub(crate) fn missed(&self, page: PageId) -> Option<(PageId, u32)> {
        let window = self.window.load(Ordering::Relaxed);
        if window == 0 {
            return None;
        }
        let mut lines = self.lines.lock();
        if lines.len() >= LINES_MAX {
            lines.clear();
        }
        let line = lines.entry(page.space).or_insert(Line { next: page.no, length: 0 });
        line.length = if line.next == page.no { line.length + 1 } else { 1 };
        line.next = page.no.saturating_add(1);
        if line.length < LINEAR_AFTER {
            return None;
        }
        // Pages read ahead will not miss: the run continues after them.
        let from = PageId::new(page.space, line.next);
        line.next = line.next.saturating_add(window);
        Some((from, window))
    }
}
