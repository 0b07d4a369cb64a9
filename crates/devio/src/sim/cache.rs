//! The contents of a simulated device: the view of reads, the durable bytes, and the volatile writes.

use super::FlushFailure;
use crate::image::Image;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The unit of atomic writes in bytes, unless the device has a larger one.
pub(super) const SECTOR: usize = 512;

/// The maximum number of volatile writes: beyond it the oldest reaches the medium.
const WRITES_MAX: usize = 16 << 10;

/// A write that is not durable.
#[derive(Clone, Debug)]
struct VolatileWrite {
    id: u64,
    offset: u64,
    bytes: Arc<[u8]>,
    /// The write has completed: reads see it, and a flush makes it durable.
    completed: bool,
    /// A flush that covered it has failed: reads see it, but no later flush makes it durable.
    doomed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cache {
    view: Image,
    durable: Image,
    /// Completed writes in order of completion, then those in flight in order of issue.
    writes: Vec<VolatileWrite>,
    next_id: u64,
    /// The unit of atomic writes in bytes; 0: a sector.
    unit: usize,
}

impl Cache {
    pub(super) fn set_unit(&mut self, unit: usize) {
        self.unit = unit;
    }

    fn unit(&self) -> usize {
        self.unit.max(SECTOR)
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        self.view.read(offset, out);
    }

    /// Begins a write and returns its id. From here on a power cut may leave any of its sectors.
    pub(super) fn begin_write(&mut self, offset: u64, bytes: Vec<u8>) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.writes.push(VolatileWrite { id, offset, bytes: bytes.into(), completed: false, doomed: false });
        id
    }

    /// Completes a write.
    pub(super) fn complete_write(&mut self, id: u64) {
        let Some(at) = self.writes.iter().rposition(|w| w.id == id) else { return };
        let write = self.writes.remove(at);
        self.completed_now(VolatileWrite { completed: true, ..write });
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
        self.view.write(write.offset, &write.bytes);
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
        for (offset, sector) in torn(write, self.unit(), rng) {
            let bytes = sector.into();
            self.completed_now(VolatileWrite { id: write.id, offset, bytes, completed: true, doomed: false });
        }
    }

    /// The ids of the writes that a flush starting at this moment makes durable.
    pub(super) fn completed(&self) -> Vec<u64> {
        self.writes.iter().filter(|w| w.completed).map(|w| w.id).collect()
    }

    /// Completes a flush of the writes `ids`, as [`Cache::completed`] returned them.
    pub(super) fn flushed(&mut self, ids: &[u64]) {
        let wanted = sorted(ids);
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
        self.durable.write(write.offset, &write.bytes);
        let covered = write.offset..write.offset + write.bytes.len() as u64;
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
        let (unit, mut reverted) = (self.unit(), Vec::new());
        for write in std::mem::take(&mut self.writes) {
            if write.doomed || wanted.binary_search(&write.id).is_err() {
                self.writes.push(write);
                continue;
            }
            for (i, sector) in write.bytes.chunks(unit).enumerate() {
                let offset = write.offset + (i * unit) as u64;
                let (id, bytes) = (write.id, sector.into());
                let part = VolatileWrite { id, offset, bytes, completed: true, doomed: true };
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
            let mut bytes = vec![0; part.bytes.len()];
            self.durable.read(part.offset, &mut bytes);
            self.view.write(part.offset, &bytes);
        }
        if !parts.is_empty() {
            for write in self.writes.iter().filter(|w| w.completed) {
                self.view.write(write.offset, &write.bytes);
            }
        }
    }

    pub(super) fn discard(&mut self, offset: u64, len: u64) {
        // A power cut may or may not undo this: the range holds nothing of value either way.
        self.view.discard(offset, len);
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
            let to = end.min(write.offset + write.bytes.len() as u64);
            if from < to {
                let bytes = Arc::make_mut(&mut write.bytes);
                for at in from..to {
                    let byte = &mut bytes[(at - write.offset) as usize];
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
        let keep = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
        let tear = [0.0, 0.3, 1.0][rng.random_range(0..3)];
        let durable = self.durable.fork();
        let mut order: Vec<&VolatileWrite> = self.writes.iter().collect();
        if rng.random_bool(0.5) {
            order.shuffle(&mut rng);
        }
        let doomed = [0.0, 0.0, 0.0, 0.5][rng.random_range(0..4)];
        for write in order {
            let kept = rng.random_bool(if write.doomed { doomed } else { keep });
            if rng.random_bool(tear) && !write.doomed {
                for (offset, sector) in torn(write, self.unit(), &mut rng) {
                    durable.write(offset, sector);
                }
            } else if kept {
                durable.write(write.offset, &write.bytes);
            }
        }
        self.settled(durable)
    }

    /// The medium after a power cut that left exactly those volatile writes, doomed ones excepted, for whose
    /// index in the list `landed` returns true.
    pub(super) fn after_landing(&self, landed: &dyn Fn(usize) -> bool) -> Self {
        let durable = self.durable.fork();
        for (_, write) in self.writes.iter().enumerate().filter(|(at, w)| landed(*at) && !w.doomed) {
            durable.write(write.offset, &write.bytes);
        }
        self.settled(durable)
    }

    fn settled(&self, durable: Image) -> Self {
        Self { view: durable.fork(), durable, writes: Vec::new(), next_id: self.next_id, unit: self.unit }
    }

    /// An independent copy of this moment; cheap, since unchanged parts are shared.
    pub(super) fn fork(&self) -> Self {
        let writes = self.writes.clone();
        Self {
            view: self.view.fork(),
            durable: self.durable.fork(),
            writes,
            next_id: self.next_id,
            unit: self.unit,
        }
    }

    /// The contents after the process died with the power on: every completed write, with its volatility.
    /// Each write in flight completes, fails, or lands in part.
    pub(super) fn after_kill(&self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut after = self.fork();
        let (completed, under_way) = after.writes.into_iter().partition(|w| w.completed);
        after.writes = completed;
        let mut under_way: Vec<VolatileWrite> = under_way;
        under_way.shuffle(&mut rng);
        for write in under_way {
            match rng.random_range(0..3) {
                0 => after.completed_now(VolatileWrite { completed: true, ..write }),
                1 => after.land_torn(&write, &mut rng),
                _ => {}
            }
        }
        after
    }

    /// Drops all contents from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        for image in [&self.view, &self.durable] {
            image.discard(size, u64::MAX - size);
        }
        for write in &mut self.writes {
            let kept = size.saturating_sub(write.offset).min(write.bytes.len() as u64) as usize;
            if kept < write.bytes.len() {
                write.bytes = write.bytes[..kept].into();
            }
        }
        self.writes.retain(|w| !w.bytes.is_empty());
    }
}

fn sorted(numbers: &[u64]) -> Vec<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted
}

/// A selection of a write's sectors: from the front, from the back, or scattered.
fn torn<'a>(write: &'a VolatileWrite, unit: usize, rng: &mut SmallRng) -> Vec<(u64, &'a [u8])> {
    let sectors = write.bytes.len().div_ceil(unit);
    let split = rng.random_range(0..=sectors);
    let shape = rng.random_range(0..3);
    let mut out = Vec::new();
    for (i, sector) in write.bytes.chunks(unit).enumerate() {
        let lands = match shape {
            0 => i < split,
            1 => i >= split,
            _ => rng.random_bool(0.5),
        };
        if lands {
            out.push((write.offset + (i * unit) as u64, sector));
        }
    }
    out
}
