//! A simulated medium whose operations fail, tear and lose what was not synced.

use super::SMALL;
use crate::Media;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};
use std::path::PathBuf;
use std::sync::{Arc, Condvar};
use tokio::task::yield_now;

/// The unit that a power cut keeps or loses.
const SECTOR: usize = 512;

/// How an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Before it does anything.
    Refused,
    /// After a part of it, as after a short write.
    Torn,
    /// After all of it, in its sync: what can be read is not durable.
    Unsynced,
    /// The power is cut during it: nothing works afterwards.
    PowerCut,
}

pub(super) const WAYS: [Way; 4] = [Way::Refused, Way::Torn, Way::Unsynced, Way::PowerCut];

/// A segment as reads see it, and as it certainly is on the disk; `None`: it does not exist.
#[derive(Clone, Debug, Default)]
struct Segment {
    seen: Option<Vec<u8>>,
    durable: Option<Vec<u8>>,
    /// The two are different files: a power cut leaves one of them as a whole.
    replaced: bool,
}

#[derive(Debug)]
struct Disk {
    segments: BTreeMap<u64, Segment>,
    active: u64,
    rng: SmallRng,
    operations: u64,
    /// The operation that fails, and how.
    fault: Option<(u64, Way)>,
    off: bool,
    /// No segment may grow, and none may be created but in the reserve.
    full: bool,
    /// No space is left for a segment that the log can do without.
    crowded: bool,
    /// The space set aside, in bytes.
    reserve: Option<u64>,
}

#[derive(Debug, Default)]
struct Stall {
    stalls: bool,
    waiting: usize,
}

/// Calls wait here while it stalls.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<(std::sync::Mutex<Stall>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        state = changed.wait_while(state, |state| state.stalls).unwrap();
        state.waiting -= 1;
    }

    pub(super) fn set(&self, stalls: bool) {
        self.0.0.lock().unwrap().stalls = stalls;
        self.0.1.notify_all();
    }

    /// Lets the runtime's other tasks run until a call waits.
    pub(super) async fn is_reached(&self) {
        while self.0.0.lock().unwrap().waiting == 0 {
            yield_now().await;
        }
    }
}

/// The medium; clones are the same one. With a gate, its writes block their threads there.
#[derive(Clone, Debug)]
pub(super) struct SimMedia(Arc<Mutex<Disk>>, Option<Gate>);

impl SimMedia {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(BTreeMap::new(), seed)
    }

    fn with(segments: BTreeMap<u64, Segment>, seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        let (operations, fault, off, full, reserve) = (0, None, false, false, None);
        let disk = Disk { segments, active: 0, rng, operations, fault, off, full, crowded: false, reserve };
        Self(Arc::new(Mutex::new(disk)), None)
    }

    pub(super) fn behind(self, gate: &Gate) -> Self {
        Self(self.0, Some(gate.clone()))
    }

    fn pass(&self) {
        self.1.iter().for_each(Gate::pass);
    }

    /// Lets the `n`-th writing operation from now on fail, from 0.
    pub(super) fn fail(&self, n: u64, way: Way) {
        let mut disk = self.0.lock();
        disk.fault = Some((disk.operations + n, way));
    }

    /// Whether the fault has happened.
    pub(super) fn failed(&self) -> bool {
        let disk = self.0.lock();
        disk.fault.is_some_and(|(n, _)| disk.operations > n)
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().off
    }

    pub(super) fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    pub(super) fn set_crowded(&self) {
        self.0.lock().crowded = true;
    }

    pub(super) fn has_reserve(&self) -> bool {
        self.0.lock().reserve.is_some()
    }

    /// From now on no space is set aside.
    pub(super) fn take_reserve(&self) {
        self.0.lock().reserve = None;
    }

    /// Cuts the power: no operation has an effect from here on.
    pub(super) fn cut(&self) {
        self.0.lock().off = true;
    }

    /// The disk after a power cut at this moment: of what was not synced, any sectors survive.
    pub(super) fn after_power_cut(&self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut segments, full, reserve) = self.left();
        for segment in segments.values_mut() {
            let left = match (segment.durable.take(), segment.seen.take()) {
                (Some(old), Some(new)) if !segment.replaced => Some(mix(&old, &new, &mut rng)),
                (old, new) => {
                    if rng.random() {
                        old
                    } else {
                        new
                    }
                }
            };
            *segment = Segment { seen: left.clone(), durable: left, replaced: false };
        }
        Self::with(segments, seed).with_full(full, reserve)
    }

    /// The disk after the process was killed: all that could be read can still be read, and is as volatile.
    pub(super) fn after_kill(&self, seed: u64) -> Self {
        let (segments, full, reserve) = self.left();
        Self::with(segments, seed).with_full(full, reserve)
    }

    fn left(&self) -> (BTreeMap<u64, Segment>, bool, Option<u64>) {
        let disk = self.0.lock();
        (disk.segments.clone(), disk.full, disk.reserve)
    }

    fn with_full(self, full: bool, reserve: Option<u64>) -> Self {
        (self.0.lock().full, self.0.lock().reserve) = (full, reserve);
        self
    }
}

/// A file of any length between both, in which each sector is that of one or the other.
fn mix(old: &[u8], new: &[u8], rng: &mut SmallRng) -> Vec<u8> {
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    let mut mixed = vec![0; rng.random_range(least..=most)];
    for (no, sector) in mixed.chunks_mut(SECTOR).enumerate() {
        let from = if rng.random() { old } else { new };
        // Beyond the end of its source, a sector holds zeroes.
        let from = from.get(no * SECTOR..).unwrap_or_default();
        let bytes = sector.len().min(from.len());
        sector[..bytes].copy_from_slice(&from[..bytes]);
    }
    mixed
}

impl Disk {
    /// Performs a writing operation on a segment: `effect` of a part of it (from 0 to 1) on what reads see.
    /// `atomic`: the part is 0 or 1.
    fn write(&mut self, start: u64, atomic: bool, effect: impl FnOnce(&mut Segment, f64)) -> Result<()> {
        if self.off {
            return Err(ErrorKind::NotConnected.into());
        }
        let way = self.fault.filter(|(n, _)| *n == self.operations).map(|(_, way)| way);
        self.operations += 1;
        let part = match way {
            None | Some(Way::Unsynced) => 1.0,
            Some(Way::Refused) => 0.0,
            Some(_) if atomic => f64::from(u8::from(self.rng.random::<bool>())),
            Some(_) => self.rng.random_range(0.0..=1.0),
        };
        let segment = self.segments.entry(start).or_default();
        if part > 0.0 {
            effect(segment, part);
        }
        if way.is_none() {
            segment.durable = segment.seen.clone();
            segment.replaced = false;
            if atomic {
                // The sync of the directory covers what was removed earlier, too.
                self.segments.retain(|_, segment| segment.seen.is_some());
            }
        }
        self.off = way == Some(Way::PowerCut);
        match way {
            None => Ok(()),
            Some(Way::Refused) => Err(ErrorKind::StorageFull.into()),
            Some(_) => Err(ErrorKind::Other.into()),
        }
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let created = self.write(start, true, |segment, _| {
            segment.seen = Some(bytes.to_vec());
            segment.replaced = true;
        });
        if created.is_ok() {
            self.active = start;
        }
        created
    }

    /// Whether a segment may be that long.
    fn check_space(&self, start: u64, bytes: usize) -> Result<()> {
        let now = self.segments.get(&start).and_then(|segment| segment.seen.as_ref()).map_or(0, Vec::len);
        if self.full && bytes > now { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

fn part_of(bytes: &[u8], part: f64) -> &[u8] {
    &bytes[..(bytes.len() as f64 * part) as usize]
}

impl Media for SimMedia {
    fn id(&self) -> u64 {
        7
    }

    fn list(&mut self) -> Result<Vec<u64>> {
        let disk = self.0.lock();
        let seen = disk.segments.iter().filter(|(_, segment)| segment.seen.is_some());
        Ok(seen.map(|(start, _)| *start).collect())
    }

    fn read(&mut self, start: u64) -> Result<Vec<u8>> {
        let disk = self.0.lock();
        disk.segments.get(&start).and_then(|s| s.seen.clone()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        self.pass();
        let mut disk = self.0.lock();
        if disk.full {
            return Err(ErrorKind::StorageFull.into());
        }
        disk.create(start, bytes)
    }

    fn begin(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        if self.0.lock().crowded { Err(ErrorKind::StorageFull.into()) } else { self.create(start, bytes) }
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        let mut disk = self.0.lock();
        if disk.full && disk.reserve.is_none() {
            return Err(ErrorKind::StorageFull.into());
        }
        disk.reserve = Some(bytes);
        Ok(())
    }

    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let mut disk = self.0.lock();
        if disk.reserve.is_none_or(|room| room < bytes.len() as u64) {
            return Err(ErrorKind::StorageFull.into());
        }
        disk.reserve = None;
        disk.create(start, bytes)
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let mut disk = self.0.lock();
        disk.check_space(start, bytes.len())?;
        disk.active = start;
        disk.write(start, false, |segment, part| {
            let seen = segment.seen.get_or_insert_default();
            let written = part_of(bytes, part);
            seen[..written.len()].copy_from_slice(written);
            if part > 0.9 {
                seen.truncate(bytes.len());
            }
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.pass();
        let mut disk = self.0.lock();
        let start = disk.active;
        disk.check_space(start, usize::MAX)?;
        disk.write(start, false, |segment, part| {
            segment.seen.get_or_insert_default().extend_from_slice(part_of(bytes, part));
        })
    }

    fn remove(&mut self, start: u64) -> Result<()> {
        self.pass();
        let mut disk = self.0.lock();
        disk.write(start, true, |segment, _| {
            segment.seen = None;
            segment.replaced = true;
        })?;
        // Its space is kept, as that of a file is.
        disk.reserve.get_or_insert(SMALL.segment_bytes());
        Ok(())
    }

    fn path(&self, start: u64) -> PathBuf {
        format!("sim/{start:016x}").into()
    }

    fn blocks(&self) -> bool {
        self.1.is_some()
    }
}
