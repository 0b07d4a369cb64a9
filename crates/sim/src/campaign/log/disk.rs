//! What a log is on, simulated: a device, or files.

use super::terms::{SLOTS_AT, Terms};
use crate::campaign::draw::plan::Plan;
use pagetier_devio::files::{Access, Directory, create_durably};
use pagetier_devio::{Device, IoOp, SharedDevice};
use pagetier_testing::{Fault, FaultEffect, FileFault, SimDevice, SimFiles, SimMoment, SimPower};
use pagetier_wal::{DeviceMedia, FileMedia, Media};
use rand::Rng;
use rand::rngs::SmallRng;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The log's directory in its simulated file system.
const DIRECTORY: &str = "/log";

/// The bytes before those of a segment: the two copies of a slot's header, and the header of a file.
const SLOT_HEAD: usize = 8192;
const FILE_HEAD: usize = 32;

/// What a log is on; clones are the same one.
#[derive(Clone, Debug)]
pub(super) enum LogDisk {
    /// With the size of its slots.
    Device(Arc<SimDevice>, u64),
    Files(SimFiles),
}

/// A moment of it.
#[derive(Debug)]
pub(super) enum LogMoment {
    Device(SimMoment, u64),
    Files(SimFiles),
}

/// A segment as it can be read, with all that precedes its records.
pub(super) struct Segment {
    /// The position of its first record.
    pub(super) start: u64,
    /// The offset of the first of `bytes` on its device, or 0 in its file.
    at: u64,
    head: usize,
    bytes: Vec<u8>,
}

impl LogMoment {
    pub(super) fn after_power_cut(&self, seed: u64, power: &SimPower) -> LogDisk {
        match self {
            Self::Device(moment, slot) => {
                LogDisk::Device(Arc::new(moment.after_power_cut(seed, power)), *slot)
            }
            Self::Files(files) => LogDisk::with_space(files.after_power_cut(seed, power)),
        }
    }

    pub(super) fn after_kill(&self, seed: u64, power: &SimPower) -> LogDisk {
        match self {
            Self::Device(moment, slot) => LogDisk::Device(Arc::new(moment.after_kill(seed, power)), *slot),
            Self::Files(files) => LogDisk::with_space(files.after_kill(seed, power)),
        }
    }

    /// As it can be read at this moment.
    pub(super) fn fork(&self, seed: u64, power: &SimPower) -> LogDisk {
        match self {
            Self::Device(moment, slot) => LogDisk::Device(Arc::new(moment.fork(seed, power)), *slot),
            Self::Files(files) => LogDisk::Files(files.after_kill(seed, power)),
        }
    }
}

impl LogDisk {
    /// Without a log.
    pub(super) fn blank(plan: &Plan, seed: u64, power: &SimPower) -> Self {
        let terms = Terms::of(plan);
        if !terms.on_files {
            let device = SimDevice::new("log", terms.log_bytes(), seed, power);
            return Self::Device(Arc::new(device), terms.slot_bytes);
        }
        // The directory is made before the store's power counts the calls.
        let files = SimFiles::new(seed, &SimPower::new());
        let _ = create_durably(&*files.root(), Path::new(DIRECTORY));
        Self::Files(files.after_kill(seed, power))
    }

    /// Files that may have been copied while their disk was full: the next life begins with space on it.
    fn with_space(files: SimFiles) -> Self {
        files.set_free(None);
        Self::Files(files)
    }

    pub(super) fn moment(&self) -> LogMoment {
        match self {
            Self::Device(device, slot) => LogMoment::Device(device.moment(), *slot),
            // A call on files has ended when it returns, so a kill takes nothing from a copy.
            Self::Files(files) => LogMoment::Files(files.after_kill(0, &SimPower::new())),
        }
    }

    /// A copy, as it can be read.
    pub(super) fn fork(&self, power: &SimPower) -> Self {
        match self {
            Self::Device(device, slot) => Self::Device(Arc::new(device.fork(5, power)), *slot),
            Self::Files(files) => Self::Files(files.after_kill(5, power)),
        }
    }

    /// The log's medium; `seen` puts its device under observation.
    pub(super) fn media(
        &self,
        seen: impl FnOnce(&Arc<SimDevice>) -> SharedDevice,
    ) -> io::Result<Box<dyn Media>> {
        Ok(match self {
            Self::Device(device, slot) => Box::new(DeviceMedia::open(seen(device), slot / 4)?),
            Self::Files(files) => Box::new(FileMedia::on(files.root().directory(Path::new(DIRECTORY))?)?),
        })
    }

    /// All bytes that records can be in.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        match self {
            Self::Device(device, _) => device.snapshot(),
            Self::Files(_) => {
                let whole = |s: Segment| [&s.start.to_le_bytes()[..], &s.bytes].concat();
                self.segments().into_iter().flat_map(whole).collect()
            }
        }
    }

    /// The segments, the oldest first.
    pub(super) fn segments(&self) -> Vec<Segment> {
        let mut found = match self {
            Self::Device(device, slot) => slots(&device.snapshot(), *slot),
            Self::Files(files) => of_files(files).unwrap_or_default(),
        };
        found.sort_unstable_by_key(|segment| segment.start);
        found
    }

    /// Removes a segment.
    pub(super) fn remove(&self, segment: &Segment) {
        match self {
            // A slot without a header has no segment, whatever follows.
            Self::Device(device, _) => device.implant(segment.at, &[0; SLOT_HEAD]),
            Self::Files(files) => {
                let _ = in_directory(files, |dir| dir.remove(Path::new(&name_of(segment.start))));
            }
        }
    }

    /// Replaces bytes from an offset in the segment on.
    pub(super) fn implant(&self, segment: &Segment, at: usize, bytes: &[u8]) {
        match self {
            Self::Device(device, _) => device.implant(segment.at + at as u64, bytes),
            Self::Files(files) => {
                let _ = in_directory(files, |dir| {
                    let file = dir.open(Path::new(&name_of(segment.start)), Access::Write)?;
                    file.write_at(at as u64, bytes)
                });
            }
        }
    }

    /// Cuts off all that follows an offset in a segment's file.
    pub(super) fn cut(&self, segment: &Segment, at: usize) {
        if let Self::Files(files) = self {
            let _ = in_directory(files, |dir| {
                dir.open(Path::new(&name_of(segment.start)), Access::Write)?.set_len(at as u64)
            });
        }
    }

    /// A device that has lost some of its slots.
    pub(super) fn shortened(&self, rng: &mut SmallRng, power: &SimPower) -> Option<Self> {
        let Self::Device(device, slot) = self else { return None };
        let slots = (device.size() - SLOTS_AT) / slot;
        let left = SLOTS_AT + rng.random_range(0..slots) * slot;
        Some(Self::Device(Arc::new(device.truncated(left, 5, power)), *slot))
    }

    /// Lets calls of the log fail from one of the next on.
    pub(super) fn fail(&self, rng: &mut SmallRng) {
        match self {
            Self::Device(log, _) => {
                let effect = [FaultEffect::Eio, FaultEffect::NoSpace][rng.random_range(0..2)];
                let op = [IoOp::Write, IoOp::Write, IoOp::Flush][rng.random_range(0..3)];
                // Soon, so that one of the next few changes meets it.
                let from = log.ops() + rng.random_range(1..6);
                log.inject(Fault::new(effect).on(op).from_op(from).times(rng.random_range(1..4)));
            }
            Self::Files(files) => match rng.random_range(0..3) {
                0 => files.set_free(Some(rng.random_range(0..200_000))),
                1 => files.fail(rng.random_range(0..12), FileFault::Refused),
                _ => files.fail(rng.random_range(0..12), FileFault::Torn),
            },
        }
    }

    pub(super) fn clear_faults(&self) {
        match self {
            Self::Device(device, _) => device.clear_faults(),
            Self::Files(files) => {
                files.clear_faults();
                files.set_free(None);
            }
        }
    }
}

impl Segment {
    /// The offset of the byte at `position` in the segment, if it has it.
    pub(super) fn offset_of(&self, position: u64) -> Option<usize> {
        let records = self.bytes.get(self.head..)?;
        let at = self.head + prefix_bytes(records) + position.checked_sub(self.start)? as usize;
        (at < self.bytes.len()).then_some(at)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes that precede the records of a segment, which positions do not count.
pub(super) fn prefix_bytes(segment: &[u8]) -> usize {
    if segment.starts_with(b"PTGEN") { 28 } else { 0 }
}

fn slots(device: &[u8], slot_bytes: u64) -> Vec<Segment> {
    let slots = device.get(SLOTS_AT as usize..).unwrap_or_default().chunks_exact(slot_bytes as usize);
    let of = |(nth, slot): (usize, &[u8])| {
        let mut copies = slot[..SLOT_HEAD].chunks(SLOT_HEAD / 2);
        // Either copy may be torn.
        let header = copies.find(|copy| copy.starts_with(b"PTLOGSEG"))?;
        let start = u64::from_le_bytes(*header[24..].first_chunk()?);
        let at = SLOTS_AT + nth as u64 * slot_bytes;
        Some(Segment { start, at, head: SLOT_HEAD, bytes: slot.to_vec() })
    };
    slots.enumerate().filter_map(of).collect()
}

fn of_files(files: &SimFiles) -> io::Result<Vec<Segment>> {
    in_directory(files, |dir| {
        let mut found = Vec::new();
        for name in dir.names()? {
            // Spares and the reserve have other names: whatever is in them is no record of this log.
            let start = name.to_str().and_then(|name| name.strip_suffix(".log"));
            let Some(start) = start.and_then(|start| u64::from_str_radix(start, 16).ok()) else { continue };
            let bytes = dir.open(Path::new(&name), Access::Read)?.read_from(0)?;
            found.push(Segment { start, at: 0, head: FILE_HEAD, bytes });
        }
        Ok(found)
    })
}

fn in_directory<T>(files: &SimFiles, work: impl FnOnce(&dyn Directory) -> io::Result<T>) -> io::Result<T> {
    work(&*files.root().directory(Path::new(DIRECTORY))?)
}

fn name_of(start: u64) -> String {
    format!("{start:016x}.log")
}
