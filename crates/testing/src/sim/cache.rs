//! The contents of a simulated device: the view of reads, the durable bytes, and the volatile writes. A
//! discard is a volatile write of zeros, so a power cut may leave any of it, and any order of it and writes.

use super::FlushFailure;
use pagetier_devio::parts::Image;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;

/// The unit of atomic writes in bytes, unless the device has a larger one.
pub(super) const SECTOR: usize = 512;

/// The maximum number of volatile writes: beyond it the oldest reaches the medium.
const WRITES_MAX: usize = 16 << 10;

/// What a volatile write puts on the medium.
#[derive(Clone, Debug)]
enum Content {
    Bytes(Arc<[u8]>),
    /// A discard of so many bytes.
    Hole(u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Hole(len) => *len,
        }
    }

    /// The part in `range`, which lies within it.
    fn part(&self, range: Range<u64>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes[range.start as usize..range.end as usize].into()),
            Self::Hole(_) => Self::Hole(range.end - range.start),
        }
    }

    /// The same content as bytes that can be changed.
    fn to_mut(&mut self) -> &mut [u8] {
        if let Self::Hole(len) = self {
            *self = Self::Bytes(vec![0; *len as usize].into());
        }
        match self {
            Self::Bytes(bytes) => Arc::make_mut(bytes),
            Self::Hole(_) => unreachable!("replaced above"),
        }
    }
}

/// A write or discard that is not durable.
#[derive(Clone, Debug)]
struct VolatileWrite {
    id: u64,
    offset: u64,
    content: Content,
    /// The write has completed: reads see it, and a flush makes it durable.
    completed: bool,
    /// A flush that covered it has failed: reads see it, but no later flush makes it durable.
    doomed: bool,
    /// The bytes of each part that a crash does not tear.
    unit: usize,
}

impl VolatileWrite {
    fn end(&self) -> u64 {
        self.offset + self.content.len()
    }

    /// Puts the part in `range`, which is relative to the write, into `image`.
    fn land(&self, image: &Image, range: Range<u64>) {
        let at = self.offset + range.start;
        match &self.content {
            Content::Bytes(bytes) => image.write(at, &bytes[range.start as usize..range.end as usize]),
            Content::Hole(_) => image.discard(at, range.end - range.start),
        }
    }

    fn land_whole(&self, image: &Image) {
        self.land(image, 0..self.content.len());
    }

    /// The parts that are written atomically.
    fn sectors(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (len, unit) = (self.content.len(), self.unit);
        (0..len).step_by(unit).map(move |from| from..len.min(from + unit as u64))
    }

    /// The part in `range` as a completed write.
    fn part(&self, range: Range<u64>, doomed: bool) -> Self {
        let offset = self.offset + range.start;
        let Self { id, unit, .. } = *self;
        Self { id, offset, content: self.content.part(range), completed: true, doomed, unit }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cache {
    view: Image,
    durable: Image,
    /// Completed writes in order of completion, then those in flight in order of issue.
    writes: Vec<VolatileWrite>,
    next_id: u64,
    /// The largest unit of atomic writes that the device offers, in bytes; 0: a sector.
    unit: usize,
    /// The unit that its user wants to be whole; 0: none.
    kept: usize,
    /// The unit that it offers once a crash has passed, unless it offers a smaller one then; 0: always the
    /// same.
    fickle: usize,
}

impl Cache {
    pub(super) fn set_unit(&mut self, unit: usize) {
        self.unit = unit;
    }

    pub(super) fn set_fickle(&mut self) {
        self.fickle = self.unit;
    }

    /// What a fickle device offers after a crash: it may have been copied to another one meanwhile.
    fn offer_anew(&mut self, seed: u64) {
        if self.fickle > 0 {
            let mut rng = SmallRng::seed_from_u64(seed ^ 0x0f1c_41e0);
            self.unit = [self.fickle, self.fickle, SECTOR, self.fickle / 2][rng.random_range(0..4)];
        }
    }

    /// The largest unit of atomic writes that the device offers.
    pub(super) fn offered(&self) -> usize {
        self.unit.max(SECTOR)
    }

    pub(super) fn keep_whole(&mut self, bytes: usize) {
        self.kept = bytes;
    }

    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        self.view.read(offset, out);
    }

    /// Begins a write and returns its id. From here on a power cut may leave any of its sectors; of pages
    /// that are to be `whole`, and that the device keeps so, any page.
    pub(super) fn begin_write(&mut self, offset: u64, bytes: Vec<u8>, whole: bool) -> u64 {
        let unit = if whole { self.kept.min(self.unit).max(SECTOR) } else { SECTOR };
        self.begin(offset, Content::Bytes(bytes.into()), unit)
    }

    /// Begins a discard, which becomes durable as a write does.
    pub(super) fn begin_discard(&mut self, offset: u64, len: u64) -> u64 {
        self.begin(offset, Content::Hole(len), SECTOR)
    }

    fn begin(&mut self, offset: u64, content: Content, unit: usize) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.writes.push(VolatileWrite { id, offset, content, completed: false, doomed: false, unit });
        id
    }

    /// Completes a write.
    pub(super) fn complete_write(&mut self, id: u64) {
        let Some(at) = self.writes.iter().rposition(|w| w.id == id) else { return };
        let write = self.writes.remove(at);
        self.completed_now(VolatileWrite { completed: true, ..write });
        // A device's cache is bounded as well, and this bounds a test that never flushes.
        if self.writes.len() > WRITES_MAX
            && let Some(oldest) = self.writes.iter().position(|w| w.completed)
        {
            let write = self.writes.remove(oldest);
            if !write.doomed {
                self.settle(&write);
            }
        }
    }

    /// Adds a write as the latest completed one.
    fn completed_now(&mut self, write: VolatileWrite) {
        write.land_whole(&self.view);
        // In order of completion, since that is the order in which reads have seen them; those in flight
        // stay behind.
        let at = self.writes.iter().rposition(|w| w.completed).map_or(0, |last| last + 1);
        self.writes.insert(at, write);
    }

    /// Fails a write: some of its sectors land, each as a separate write.
    pub(super) fn fail_write(&mut self, id: u64, rng: &mut SmallRng) {
        let Some(at) = self.writes.iter().rposition(|w| w.id == id) else { return };
        let write = self.writes.remove(at);
        self.land_torn(&write, rng);
    }

    fn land_torn(&mut self, write: &VolatileWrite, rng: &mut SmallRng) {
        // As completed writes of their own: a failed write leaves sectors that are readable, and that a
        // crash may keep or lose one by one.
        for sector in torn(write, rng) {
            self.completed_now(write.part(sector, false));
        }
    }

    /// The ids of the writes that a flush starting at this moment makes durable.
    pub(super) fn completed(&self) -> Vec<u64> {
        self.writes.iter().filter(|w| w.completed).map(|w| w.id).collect()
    }

    /// Completes a flush of the writes `ids`, as [`Cache::completed`] returned them.
    pub(super) fn flushed(&mut self, ids: &[u64]) {
        let wanted = sorted(ids);
        // A doomed write stays: the kernel has marked its pages clean, so no later flush writes them.
        let is_flushed = |w: &VolatileWrite| w.completed && !w.doomed && wanted.binary_search(&w.id).is_ok();
        for write in std::mem::take(&mut self.writes) {
            if is_flushed(&write) {
                self.settle(&write);
            } else {
                self.writes.push(write);
            }
        }
    }

    /// Puts a write on the medium, and forgets doomed writes that it covers: they completed earlier and
    /// cannot become visible again.
    fn settle(&mut self, write: &VolatileWrite) {
        write.land_whole(&self.durable);
        let covered = write.offset..write.end();
        self.writes.retain(|w| !(w.doomed && covered.contains(&w.offset)));
    }

    /// Fails a flush of the writes `ids`.
    pub(super) fn flush_failed(&mut self, ids: &[u64], model: FlushFailure, rng: &mut SmallRng) {
        if model == FlushFailure::Cached {
            return;
        }
        let wanted = sorted(ids);
        // Some sectors may have reached the medium before the flush failed.
        let landed = [0.0, 0.0, 0.2, 0.8][rng.random_range(0..4)];
        let mut reverted = Vec::new();
        for write in std::mem::take(&mut self.writes) {
            if write.doomed || wanted.binary_search(&write.id).is_err() {
                self.writes.push(write);
                continue;
            }
            for sector in write.sectors() {
                let part = write.part(sector, true);
                if landed > 0.0 && rng.random_bool(landed) {
                    self.settle(&part);
                } else if model == FlushFailure::NeverDurable {
                    self.writes.push(part);
                } else {
                    reverted.push(part);
                }
            }
        }
        self.revert(&reverted);
    }

    /// Makes reads see what preceded these parts.
    fn revert(&self, parts: &[VolatileWrite]) {
        for part in parts {
            let mut bytes = vec![0; part.content.len() as usize];
            self.durable.read(part.offset, &mut bytes);
            self.view.write(part.offset, &bytes);
        }
        if !parts.is_empty() {
            // What completed later, or was not part of the flush, is still to be seen over it.
            self.writes.iter().filter(|w| w.completed).for_each(|w| w.land_whole(&self.view));
        }
    }

    /// Changes bytes in place: on the medium, in the cache, and in writes in flight.
    pub(super) fn change(&mut self, offset: u64, len: usize, mut change: impl FnMut(usize, u8) -> u8) {
        for image in [&self.view, &self.durable] {
            let mut bytes = vec![0; len];
            image.read(offset, &mut bytes);
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = change(at, *byte);
            }
            image.write(offset, &bytes);
        }
        let end = offset + len as u64;
        for write in &mut self.writes {
            let from = write.offset.max(offset);
            let to = end.min(write.end());
            if from < to {
                let start = write.offset;
                let bytes = write.content.to_mut();
                for at in from..to {
                    let byte = &mut bytes[(at - start) as usize];
                    *byte = change((at - offset) as usize, *byte);
                }
            }
        }
    }

    pub(super) const fn unflushed(&self) -> usize {
        self.writes.len()
    }

    /// The medium after a power cut. Each volatile write is present, absent, or partly present by sector,
    /// independently of order. The probability is drawn too, so that all or none are common outcomes. Doomed
    /// writes are usually absent, and rarely present in part.
    pub(super) fn after_power_cut(&self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Drawn per crash, not per write: with a fixed half, a crash that loses all or nothing would never
        // come up, and those are the usual ones.
        let keep = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
        let tear = [0.0, 0.3, 1.0][rng.random_range(0..3)];
        let durable = self.durable.fork();
        let mut order: Vec<&VolatileWrite> = self.writes.iter().collect();
        // Any order: a device may write its cache back as it likes, and where writes overlap, the last to
        // land wins.
        if rng.random_bool(0.5) {
            order.shuffle(&mut rng);
        }
        let doomed = [0.0, 0.0, 0.0, 0.5][rng.random_range(0..4)];
        for write in order {
            let kept = rng.random_bool(if write.doomed { doomed } else { keep });
            if rng.random_bool(tear) && !write.doomed {
                for sector in torn(write, &mut rng) {
                    write.land(&durable, sector);
                }
            } else if kept {
                write.land_whole(&durable);
            }
        }
        let mut after = self.settled(durable);
        after.offer_anew(seed);
        after
    }

    /// The medium after a power cut that left exactly those volatile writes, doomed ones excepted, for whose
    /// index in the list `landed` returns true.
    pub(super) fn after_landing(&self, landed: &dyn Fn(usize) -> bool) -> Self {
        let durable = self.durable.fork();
        for (_, write) in self.writes.iter().enumerate().filter(|(at, w)| landed(*at) && !w.doomed) {
            write.land_whole(&durable);
        }
        self.settled(durable)
    }

    fn settled(&self, durable: Image) -> Self {
        let Self { next_id, unit, kept, fickle, .. } = *self;
        Self { view: durable.fork(), durable, writes: Vec::new(), next_id, unit, kept, fickle }
    }

    /// An independent copy of this moment; cheap, since unchanged parts are shared.
    pub(super) fn fork(&self) -> Self {
        let Self { next_id, unit, kept, fickle, .. } = *self;
        let (view, durable) = (self.view.fork(), self.durable.fork());
        Self { view, durable, writes: self.writes.clone(), next_id, unit, kept, fickle }
    }

    /// The contents after the process died with the power on: every completed write, with its volatility.
    /// Each write in flight completes, fails, or lands in part.
    pub(super) fn after_kill(&self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut after = self.fork();
        let (completed, under_way) = after.writes.into_iter().partition(|w| w.completed);
        after.writes = completed;
        let mut under_way: Vec<VolatileWrite> = under_way;
        // The kernel finishes what it was given, in an order of its own.
        under_way.shuffle(&mut rng);
        for write in under_way {
            match rng.random_range(0..3) {
                0 => after.completed_now(VolatileWrite { completed: true, ..write }),
                1 => after.land_torn(&write, &mut rng),
                _ => {}
            }
        }
        after.offer_anew(seed);
        after
    }

    /// Drops all contents from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        for image in [&self.view, &self.durable] {
            image.discard(size, u64::MAX - size);
        }
        for write in &mut self.writes {
            let kept = size.saturating_sub(write.offset);
            if kept < write.content.len() {
                write.content = write.content.part(0..kept);
            }
        }
        self.writes.retain(|w| w.content.len() > 0);
    }
}

fn sorted(numbers: &[u64]) -> Vec<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted
}

/// A selection of a write's sectors: from the front, from the back, or scattered.
fn torn(write: &VolatileWrite, rng: &mut SmallRng) -> Vec<Range<u64>> {
    let sectors = write.content.len().div_ceil(write.unit as u64) as usize;
    let split = rng.random_range(0..=sectors);
    let shape = rng.random_range(0..3);
    let mut lands = |i| match shape {
        0 => i < split,
        1 => i >= split,
        _ => rng.random_bool(0.5),
    };
    write.sectors().enumerate().filter_map(|(i, sector)| lands(i).then_some(sector)).collect()
}
