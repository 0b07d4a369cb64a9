//! The bytes of a simulated device: what reads see, what is durable, and the writes in between.

use crate::image::Image;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// What is written whole or not at all, in bytes.
pub(super) const SECTOR: usize = 512;

/// More writes than this do not stay volatile: the oldest reaches the medium.
const WRITES_MAX: usize = 16 << 10;

/// A write that is not durable yet.
#[derive(Clone, Debug)]
struct Write {
    number: u64,
    offset: u64,
    bytes: Arc<[u8]>,
    /// It has completed: reads see it, and a flush makes it durable.
    completed: bool,
    /// A flush that should have made it durable has failed: a later one does not help it any more.
    doubtful: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cache {
    view: Image,
    durable: Image,
    /// In order of issue.
    writes: Vec<Write>,
}

impl Cache {
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        self.view.read(offset, out);
    }

    /// A write begins. From now on a power cut may leave any of its sectors.
    pub(super) fn begin_write(&mut self, number: u64, offset: u64, bytes: Vec<u8>) {
        self.writes.push(Write { number, offset, bytes: bytes.into(), completed: false, doubtful: false });
    }

    /// It has completed.
    pub(super) fn complete_write(&mut self, number: u64) {
        let Some(at) = self.writes.iter().rposition(|w| w.number == number) else { return };
        let write = &mut self.writes[at];
        write.completed = true;
        self.view.write(write.offset, &write.bytes);
        if self.writes.len() > WRITES_MAX
            && let Some(oldest) = self.writes.iter().position(|w| w.completed)
        {
            let write = self.writes.remove(oldest);
            // In doubt means that it may be lost: then this is how.
            if !write.doubtful {
                self.settle(&write);
            }
        }
    }

    /// It has failed: some of its sectors land, as if each were a write of its own.
    pub(super) fn fail_write(&mut self, number: u64, rng: &mut SmallRng) {
        let Some(at) = self.writes.iter().rposition(|w| w.number == number) else { return };
        let write = self.writes.remove(at);
        for (offset, sector) in torn(&write, rng) {
            self.view.write(offset, sector);
            let bytes = sector.into();
            self.writes.push(Write { number, offset, bytes, completed: true, doubtful: false });
        }
    }

    /// The writes that a flush beginning now is to make durable.
    pub(super) fn completed(&self) -> Vec<u64> {
        self.writes.iter().filter(|w| w.completed).map(|w| w.number).collect()
    }

    /// A flush of these (as [`Cache::completed`] gave them) has succeeded.
    pub(super) fn flushed(&mut self, numbers: &[u64]) {
        let wanted = sorted(numbers);
        let is_flushed = |w: &Write| w.completed && !w.doubtful && wanted.binary_search(&w.number).is_ok();
        let (flushed, rest) = std::mem::take(&mut self.writes).into_iter().partition(is_flushed);
        self.writes = rest;
        let flushed: Vec<Write> = flushed;
        for write in &flushed {
            self.settle(write);
        }
    }

    /// A write reaches the medium. Older ones in doubt cannot come up through it any more.
    fn settle(&mut self, write: &Write) {
        self.durable.write(write.offset, &write.bytes);
        let covered = write.offset..write.offset + write.bytes.len() as u64;
        self.writes.retain(|w| !(w.doubtful && w.number < write.number && covered.contains(&w.offset)));
    }

    /// It has failed. What is in doubt is so sector by sector.
    pub(super) fn flush_failed(&mut self, numbers: &[u64]) {
        let wanted = sorted(numbers);
        for write in std::mem::take(&mut self.writes) {
            if write.doubtful || wanted.binary_search(&write.number).is_err() {
                self.writes.push(write);
                continue;
            }
            self.writes.extend(write.bytes.chunks(SECTOR).enumerate().map(|(i, sector)| Write {
                number: write.number,
                offset: write.offset + (i * SECTOR) as u64,
                bytes: sector.into(),
                completed: true,
                doubtful: true,
            }));
        }
    }

    pub(super) fn discard(&mut self, offset: u64, len: u64) {
        // Undone by a power cut or not: either way it holds nothing of value.
        self.view.discard(offset, len);
    }

    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        for image in [&self.view, &self.durable] {
            let mut byte = [0];
            image.read(offset, &mut byte);
            image.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
        for write in &mut self.writes {
            let at = offset.checked_sub(write.offset);
            if let Some(byte) = at.and_then(|at| Arc::make_mut(&mut write.bytes).get_mut(at as usize)) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    pub(super) const fn unflushed(&self) -> usize {
        self.writes.len()
    }

    /// The medium after a power cut: of the writes that are not durable each is there, or not, or some of its sectors, in any order. How
    /// likely is drawn too, so that all or none are common.
    pub(super) fn after_power_cut(&self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let keep = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
        let tear = [0.0, 0.3, 1.0][rng.random_range(0..3)];
        let durable = self.durable.fork();
        let mut order: Vec<&Write> = self.writes.iter().collect();
        if rng.random_bool(0.5) {
            order.shuffle(&mut rng);
        }
        for write in order {
            let kept = rng.random_bool(keep);
            if rng.random_bool(tear) {
                for (offset, sector) in torn(write, &mut rng) {
                    durable.write(offset, sector);
                }
            } else if kept {
                durable.write(write.offset, &write.bytes);
            }
        }
        Self { view: durable.fork(), durable, writes: Vec::new() }
    }

    /// The medium after a power cut that left exactly the volatile writes for which `landed` (told their places in order of issue) says so.
    pub(super) fn after_landing(&self, landed: &dyn Fn(usize) -> bool) -> Self {
        let durable = self.durable.fork();
        for (_, write) in self.writes.iter().enumerate().filter(|(at, _)| landed(*at)) {
            durable.write(write.offset, &write.bytes);
        }
        Self { view: durable.fork(), durable, writes: Vec::new() }
    }

    /// The same moment once more: cheap, what does not change is shared.
    pub(super) fn fork(&self) -> Self {
        Self { view: self.view.fork(), durable: self.durable.fork(), writes: self.writes.clone() }
    }

    /// The contents after the process died with the power on: every completed write.
    pub(super) fn after_kill(&self) -> Self {
        Self { view: self.view.fork(), durable: self.view.fork(), writes: Vec::new() }
    }
}

fn sorted(numbers: &[u64]) -> Vec<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Some sectors of a write: from the front, from the back, or here and there.
fn torn<'a>(write: &'a Write, rng: &mut SmallRng) -> Vec<(u64, &'a [u8])> {
    let sectors = write.bytes.len().div_ceil(SECTOR);
    let split = rng.random_range(0..=sectors);
    let shape = rng.random_range(0..3);
    let mut out = Vec::new();
    for (i, sector) in write.bytes.chunks(SECTOR).enumerate() {
        let lands = match shape {
            0 => i < split,
            1 => i >= split,
            _ => rng.random_bool(0.5),
        };
        if lands {
            out.push((write.offset + (i * SECTOR) as u64, sector));
        }
    }
    out
}
