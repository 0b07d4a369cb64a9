//! The manifest on the volume: two areas at the head of the HDD, before its first extent, so that another
//! machine can open the store with the volume alone.
//!
//! | bytes from | what |
//! | --- | --- |
//! | 0 | the superblock, two copies |
//! | 64 KiB | headers: two copies for each area, each in a block of its own |
//! | 1 MiB | the first area, then the second: each as long as the headers say, then the extents |
//!
//! An area holds what `manifest.json` holds: the contents and a tail of records ([`tail`]). A header states
//! the number of the save that wrote its area. The area of the highest save is the manifest.
//!
//! A save writes the area that is not the manifest, in three steps, each flushed before the next:
//!
//! 1. The headers of that area are blanked. Those of an earlier save that failed may be on the disk and have
//!    a higher number than the manifest's: without this step, a crash in step 2 would leave them in front of
//!    half-written contents.
//! 2. The contents are written.
//! 3. Both headers are written. A crash in between leaves one: it says the same.
//!
//! The first save writes headers without contents before anything else: a crash then leaves a device that is
//! known to be about to get a store, not one with unknown data.
//!
//! The contents are thus durable before a header names them, so contents that do not match their checksum are
//! damage, never a torn save: the opening is refused, and does not fall back to an older manifest.
//!
//! What a new process reads may not be durable: its predecessor may have been killed between a write and its
//! flush, or after a flush that failed. So before its first save touches the other area, which may be the
//! only durable one, the manifest is written again in place, where each sector keeps its contents.
//!
//! The store flushes the same device, and a failure of either's flush may have lost writes of both:
//! [`Joint`].
//!
//! Saves run one after another, in the order in which they begin, each in a task of its own and to its end,
//! also when the store is dropped meanwhile: a save keeps its locks (I41).

use super::contents::with_size;
use super::slack::{SLACK_BYTES, Slack};
use super::superblock::{AREA_UNIT, HEAD_BYTES};
use super::tail::{self, End, Placed};
use futures_util::FutureExt;
use pagetier_bufpool::FENCED;
use pagetier_devio::task::{Boxed, spawn};
use pagetier_devio::{
    Claim, DeviceError, DeviceErrorKind, Failures, IoBuf, IoBufs, IoClass, Joint, SharedDevice,
};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

const HEADERS_AT: u64 = 64 << 10;
const MAGIC: [u8; 8] = *b"PGTIERMF";
const FORMAT: u32 = 1;
/// How often an area is read before it counts as damaged: a transfer may corrupt what is sound (I32).
const ATTEMPTS_MAX: usize = 4;

/// What a header says of its area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    /// The number of the save that wrote the area, from 1.
    save: u64,
    /// The size of each area, in bytes.
    area_bytes: u64,
    /// The size of the contents with their tail, in bytes; 0: a first save has begun.
    size: u64,
}

impl Header {
    fn encode(self) -> Vec<u8> {
        let mut b = vec![0; tail::BLOCK];
        b[..8].copy_from_slice(&MAGIC);
        b[12..16].copy_from_slice(&FORMAT.to_le_bytes());
        for (nth, number) in [self.save, self.area_bytes, self.size].into_iter().enumerate() {
            b[16 + 8 * nth..24 + 8 * nth].copy_from_slice(&number.to_le_bytes());
        }
        // One sector: a header is written whole or not at all.
        let sum = crc32c::crc32c(&b[12..tail::SECTOR]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// `None`: the block holds no header.
    fn decode(b: &[u8]) -> Option<Self> {
        let word = |at: usize| b.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
        let is_sound = b.get(..8)? == MAGIC && word(8)? == crc32c::crc32c(b.get(12..tail::SECTOR)?);
        let header = Self { save: long(16)?, area_bytes: long(24)?, size: long(32)? };
        (is_sound && word(12)? == FORMAT && header.size <= header.area_bytes).then_some(header)
    }
}

/// Where in the manifest's area records can be appended.
#[derive(Clone, Debug)]
struct Appendable {
    end: End,
    /// The records in the last block of the tail: a device takes whole blocks.
    block: Vec<u8>,
    /// The size of the contents with their tail, in bytes.
    has: usize,
    /// The maximum size of the contents, in bytes, when they are rewritten with all records applied.
    rewritten: usize,
}

#[derive(Clone, Debug)]
struct State {
    area_bytes: u64,
    /// The area that is the manifest, and its header; `None`: there is no manifest yet.
    current: Option<(u64, Header)>,
    /// The checksum of what was read of it, until it is certainly durable.
    unproved: Option<u32>,
    /// The highest save that a header may bear.
    save: u64,
    /// `None`: the next save must replace the manifest.
    tail: Option<Appendable>,
}

/// The manifest on a volume. See the module.
#[derive(Debug)]
pub(crate) struct Areas {
    joint: Arc<Joint>,
    /// The store's claim to the volume.
    claim: Claim,
    runtime: Handle,
    state: Mutex<State>,
    /// Ends with the last save that began.
    last: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Areas {
    /// The areas on the device of `joint`, of `area_bytes` each unless it has some.
    pub(crate) fn new(joint: Arc<Joint>, claim: Claim, area_bytes: u64, runtime: Handle) -> Self {
        let state = State { area_bytes, current: None, unproved: None, save: 0, tail: None };
        Self { joint, claim, runtime, state: Mutex::new(state), last: Mutex::default() }
    }

    pub(crate) fn device(&self) -> &SharedDevice {
        self.joint.device()
    }

    /// Where the first extent begins, in bytes.
    pub(crate) fn end(&self) -> u64 {
        HEAD_BYTES + 2 * self.state.lock().area_bytes
    }

    /// Runs `save` in a task of its own, once the saves that began before it have ended.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        save: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Boxed<'static, Result<T>> {
        let (ended, this) = oneshot::channel();
        let (done, result) = oneshot::channel();
        let before = self.last.lock().replace(this);
        spawn(&self.runtime, async move {
            // An error: the runtime ends, and a write of the save before this one may be in flight.
            if let Some(before) = before
                && before.await.is_err()
            {
                return;
            }
            let saved = AssertUnwindSafe(save).catch_unwind().await;
            let _ = ended.send(());
            let _ = done.send(saved.unwrap_or_else(|_| Err(Error::other("a save panicked"))));
        });
        Box::pin(async { result.await.unwrap_or_else(|_| Err(Error::other("a save did not end"))) })
    }

    /// Reads the manifest; `None` when there is none.
    pub(crate) async fn load(&self) -> Result<Option<Vec<u8>>> {
        let found = headers(self.device()).await?;
        let newest = found.into_iter().flatten().max_by_key(|(_, header)| header.save);
        if let Some((_, Header { save, area_bytes, .. })) = newest {
            let current = newest.filter(|(_, header)| header.size > 0);
            let unproved = current.is_some().then_some(0);
            *self.state.lock() = State { area_bytes, current, unproved, save, tail: None };
        }
        let bytes = self.read().await?;
        if let Some(bytes) = &bytes {
            self.state.lock().unproved = Some(crc32c::crc32c(bytes));
        }
        Ok(bytes)
    }

    /// Reads the manifest in force; `None` when there is none.
    pub(crate) async fn read(&self) -> Result<Option<Vec<u8>>> {
        let State { area_bytes, current, .. } = self.state.lock().clone();
        let Some((area, header)) = current else { return Ok(None) };
        let mut bytes = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            let read = read(self.device(), HEAD_BYTES + area * area_bytes, header.size as usize).await;
            bytes = read.map_err(failed)?;
            if tail::parse(&bytes).is_ok() {
                break;
            }
        }
        Ok(Some(bytes))
    }

    /// Replaces the manifest by the one that `json` encodes. Durable when it returns `Ok`; after an error
    /// either version may be found later.
    pub(crate) async fn replace(&self, json: &[u8], slack: Slack) -> Result<()> {
        self.check_owner().await?;
        let State { area_bytes, current, unproved, save, .. } = self.state.lock().clone();
        let area_size = area_bytes as usize;
        let len = tail::sealed(&with_size(json, usize::MAX), 0).len();
        // The next save must find room as well (I26).
        if len + slack.left() > area_size {
            return Err(Error::new(ErrorKind::StorageFull, too_large(area_bytes)));
        }
        let size = (len + SLACK_BYTES + tail::room(len)).next_multiple_of(AREA_UNIT as usize).min(area_size);
        let mut contents = tail::sealed(&with_size(json, size), 0);
        let end = End::after(&contents).map_err(Error::other)?;
        contents.resize(size, b'\n');
        // Counted although the save may fail: its headers may be found later, and the next ones must be
        // newer. No record may follow before it has succeeded (I27).
        let save = save + 1;
        (self.state.lock().save, self.state.lock().tail) = (save, None);
        let seen = self.joint.failures();
        if let (Some((area, header)), Some(sum)) = (current, unproved) {
            let bytes = self.read().await?.unwrap_or_default();
            // Nothing but what was opened may be written over it.
            if crc32c::crc32c(&bytes) != sum {
                let why = "the manifest on disk changed since it was opened; refusing to overwrite it";
                return Err(Error::new(ErrorKind::InvalidData, why));
            }
            self.write(HEAD_BYTES + area * area_bytes, &bytes, seen).await.map_err(failed)?;
            self.write(headers_at(area), &header.encode().repeat(2), seen).await.map_err(failed)?;
            self.state.lock().unproved = None;
        }
        // The manifest stays whole until the last step.
        let area = current.map_or(0, |(area, _)| 1 - area);
        let header = Header { save, area_bytes, size: size as u64 };
        let written = async {
            self.device().grow(HEAD_BYTES + 2 * area_bytes)?;
            if current.is_none() {
                // Other data may have been allowed there, which would pass for damaged headers.
                self.write(HEADERS_AT, &[0; 4 * tail::BLOCK], seen).await?;
                let begun = Header { save: 0, area_bytes, size: 0 };
                self.write(headers_at(1), &begun.encode().repeat(2), seen).await?;
            }
            self.write(headers_at(area), &[0; 2 * tail::BLOCK], seen).await?;
            unflushed(self.device(), HEAD_BYTES + area * area_bytes, &contents).await?;
            self.joint.flush(seen, IoClass::Meta).await?;
            self.write(headers_at(area), &header.encode().repeat(2), seen).await
        };
        written.await.map_err(failed)?;
        let tail = Appendable { end, block: Vec::new(), has: size, rewritten: len };
        let state = &mut *self.state.lock();
        (state.current, state.tail) = (Some((area, header)), Some(tail));
        Ok(())
    }

    /// Appends the record that `json` encodes, given its number. Returns true once it is durable; false,
    /// without effect, when the manifest must be replaced instead. After an error a reader may or may not
    /// find the record, and the next save must replace the manifest.
    pub(crate) async fn append(
        &self,
        json: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>,
        slack: Slack,
    ) -> Result<bool> {
        self.check_owner().await?;
        // Taken: nothing may follow the record until it is durable (I27).
        let tail = self.state.lock().tail.take();
        let State { area_bytes, current, .. } = self.state.lock().clone();
        let (Some((area, _)), Some(tail)) = (current, tail) else { return Ok(false) };
        let Some((record, next)) = tail.with(json, slack, area_bytes as usize)? else { return Ok(false) };
        let seen = self.joint.failures();
        // Two copies in different blocks: one corrupt block loses no record.
        for offset in record.offsets {
            let at = HEAD_BYTES + area * area_bytes + (offset / tail::BLOCK * tail::BLOCK) as u64;
            unflushed(self.device(), at, &next.block).await.map_err(failed)?;
        }
        self.joint.flush(seen, IoClass::Meta).await.map_err(failed)?;
        self.state.lock().tail = Some(next);
        Ok(true)
    }

    /// Refuses to write over what another owner may have written.
    async fn check_owner(&self) -> Result<()> {
        self.claim.confirmed().await;
        if self.claim.holds() { Ok(()) } else { Err(Error::other(FENCED)) }
    }

    /// Writes `bytes`, durably. Fails if a flush has failed since `seen`.
    async fn write(&self, at: u64, bytes: &[u8], seen: Failures) -> std::result::Result<(), DeviceError> {
        unflushed(self.device(), at, bytes).await?;
        self.joint.flush(seen, IoClass::Meta).await
    }
}

/// Where the headers of an area are.
fn headers_at(area: u64) -> u64 {
    HEADERS_AT + area * 2 * tail::BLOCK as u64
}

impl Appendable {
    /// Places the record that `json` encodes, given its number. Returns it, and what follows it; `None` when
    /// there is no room.
    fn with(
        self,
        json: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>,
        slack: Slack,
        area_size: usize,
    ) -> Result<Option<(Placed, Self)>> {
        let Self { end, mut block, has, rewritten } = self;
        let json = json(end.records)?;
        let Some(record) = end.place(&json) else { return Ok(None) };
        // An upper bound: applied to the contents, the record takes at most its own length more.
        let rewritten = rewritten + json.len();
        if record.end.file_end() > has || rewritten + slack.left() > area_size {
            return Ok(None);
        }
        let within = record.offsets[0] % tail::BLOCK;
        // The records before it in its block are written again, as they are.
        block.truncate(within);
        block.extend_from_slice(&record.bytes);
        block.resize(tail::BLOCK, b'\n');
        let next = Self { end: record.end, block, has, rewritten };
        Ok(Some((record, next)))
    }
}

/// Whether `device` has a manifest, or a first save has begun there.
pub(crate) async fn is_on(device: &SharedDevice) -> Result<bool> {
    Ok(headers(device).await?.iter().any(Option::is_some))
}

/// The sound headers at the head of `device`, with their area. An area of whose header no copy is sound or
/// blank is damage, if there are headers at all: it may have had the newest manifest.
async fn headers(device: &SharedDevice) -> Result<[Option<(u64, Header)>; 4]> {
    let mut found = [None; 4];
    // A blank file is shorter.
    if device.size() < HEADERS_AT + (found.len() * tail::BLOCK) as u64 {
        return Ok(found);
    }
    let (mut intact, mut marked, mut unreadable) = ([false; 2], false, None);
    for (nth, found) in found.iter_mut().enumerate() {
        let at = HEADERS_AT + (nth * tail::BLOCK) as u64;
        // Read several times: a header that only the transfer corrupted must not hide the newest manifest
        // (I32).
        for _ in 0..ATTEMPTS_MAX {
            let block = match read(device, at, tail::BLOCK).await {
                Ok(block) => block,
                Err(error) => {
                    // The other copy says the same.
                    unreadable = Some(error);
                    continue;
                }
            };
            *found = Header::decode(&block).map(|header| (nth as u64 / 2, header));
            intact[nth / 2] |= found.is_some() || pagetier_page::is_blank(&block);
            marked |= block.starts_with(&MAGIC);
            if found.is_some() {
                break;
            }
        }
    }
    if intact == [true; 2] || !marked && unreadable.is_none() {
        return Ok(found);
    }
    let damaged = || Error::new(ErrorKind::InvalidData, "the header of one of its areas is damaged");
    Err(unreadable.map_or_else(damaged, failed))
}

async fn read(device: &SharedDevice, at: u64, len: usize) -> std::result::Result<Vec<u8>, DeviceError> {
    let done = device.read(at, IoBufs::from_iter([IoBuf::zeroed(len)]), IoClass::Recovery).await;
    done.result?;
    Ok(done.bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect())
}

async fn unflushed(device: &SharedDevice, at: u64, bytes: &[u8]) -> std::result::Result<(), DeviceError> {
    device.write(at, IoBufs::from_iter([IoBuf::copy_of(bytes)]), IoClass::Meta).await.result
}

fn too_large(area_bytes: u64) -> String {
    format!(
        "the manifest takes at most {area_bytes} bytes on the HDD; a backup can be restored to another HDD \
         with a larger `bytes_max`"
    )
}

fn failed(error: DeviceError) -> Error {
    let kind = match error.kind {
        DeviceErrorKind::NoSpace => ErrorKind::StorageFull,
        _ => ErrorKind::Other,
    };
    Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::IoOp;
    use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};

    const AREA_BYTES: u64 = 64 << 10;

    fn areas(device: &Arc<SimDevice>) -> Areas {
        let (_, joint) = Joint::of(Arc::clone(device) as SharedDevice);
        Areas::new(joint, Claim::default(), AREA_BYTES, Handle::current())
    }

    /// The manifest of save `no`: some sectors, each with its digit.
    async fn save(areas: &Areas, no: u8) -> Result<()> {
        let json = format!("{{\"save\": \"{}\"}}", no.to_string().repeat(9_000));
        areas.replace(json.as_bytes(), Slack::Keep).await
    }

    /// Whether the device has a whole manifest, of save 2 or a later one.
    async fn is_whole(device: SimDevice) -> bool {
        let Ok(Some(bytes)) = areas(&Arc::new(device)).load().await else { return false };
        let digit =
            bytes.windows(10).find(|window| window[0] > b'1' && window.iter().all(|b| *b == window[0]));
        tail::parse(&bytes).is_ok() && digit.is_some()
    }

    /// Of two saves, and a third whose headers' flush fails; a process that is killed then, or goes on, saves
    /// once more, and the power is cut: whether every outcome has a manifest.
    async fn survives(model: FlushFailure, kill: bool) -> bool {
        let mut cases = 0;
        for (seed, cut) in (0..6).flat_map(|seed| (1..16).map(move |cut| (seed, cut))) {
            let power = SimPower::new();
            let device = Arc::new(SimDevice::new("hdd", 0, seed, &power).with_flush_failure(model));
            let first = areas(&device);
            save(&first, 1).await.unwrap();
            let before = device.ops();
            save(&first, 2).await.unwrap();
            let ops = device.ops() - before;
            let headers_fail = Fault::new(FaultEffect::Eio).on(IoOp::Flush);
            // A flush follows each write; that of the headers is the last.
            device.inject(headers_fail.from_op(device.ops() + ops).times(1));
            assert!(save(&first, 3).await.is_err());
            let (power, device, next) = if kill {
                let power = SimPower::new();
                let device = Arc::new(device.after_kill(seed, &power));
                let next = areas(&device);
                next.load().await.unwrap();
                (power, device, next)
            } else {
                (power, device, first)
            };
            power.cut_at(power.ops() + cut);
            let _ = save(&next, 4).await;
            cases += u32::from(power.is_cut());
            if !is_whole(device.after_power_cut(seed, &SimPower::new())).await {
                return false;
            }
        }
        assert!(cases > 20, "{cases} cases");
        true
    }

    #[test]
    fn a_header_reads_back_with_numbers_of_any_size() {
        let header = Header { save: (1 << 40) + 1, area_bytes: (1 << 41) + 2, size: (1 << 40) + 3 };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let first = Header { save: 1, area_bytes: AREA_BYTES, size: 0 };
        assert_eq!(Header::decode(&first.encode()), Some(first));
    }

    /// A transfer may corrupt what is sound (I32). Most of an area is padding, so not each seed matters.
    #[tokio::test]
    async fn contents_that_a_transfer_corrupted_are_read_again() {
        for seed in 0..64 {
            let device = Arc::new(SimDevice::new("hdd", 0, seed, &SimPower::new()));
            save(&areas(&device), 1).await.unwrap();
            let contents = HEAD_BYTES..HEAD_BYTES + 2 * AREA_BYTES;
            device.inject(Fault::new(FaultEffect::BitFlip).on(IoOp::Read).within(contents).times(1));
            let bytes = areas(&device).load().await.unwrap().unwrap();
            assert!(tail::parse(&bytes).is_ok(), "seed {seed}");
        }
    }

    #[tokio::test]
    async fn headers_of_a_failed_save_do_not_name_half_written_contents() {
        assert!(survives(FlushFailure::Cached, false).await);
    }

    #[tokio::test]
    async fn an_area_that_was_found_may_not_be_durable() {
        assert!(survives(FlushFailure::NeverDurable, true).await);
    }

    /// What was opened is written again before the first save. Whatever reads otherwise by then, as after
    /// another opener's save or a wrong transfer, is not: it would be made durable over what was opened.
    #[tokio::test]
    async fn a_manifest_that_reads_otherwise_than_at_the_opening_is_not_written_again() {
        let device = Arc::new(SimDevice::new("hdd", 0, 1, &SimPower::new()));
        let first = areas(&device);
        save(&first, 1).await.unwrap();
        let opened = areas(&device);
        let known = opened.load().await.unwrap();
        // Sound, and in the same place: of three saves, the third writes the area of the first.
        for no in 2..=3 {
            save(&first, no).await.unwrap();
        }
        let before = device.snapshot();
        assert_ne!(areas(&device).load().await.unwrap(), known);
        let refused = save(&opened, 4).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert!(before == device.snapshot());
    }

    #[tokio::test(start_paused = true)]
    async fn saves_that_begin_at_once_run_one_after_the_other() {
        let device = SimDevice::new("hdd", 0, 1, &SimPower::new());
        let device = Arc::new(device.with_latency(std::time::Duration::from_millis(5)));
        let areas = Arc::new(areas(&device));
        let running = Arc::new(Mutex::new((0, Vec::new())));
        let saves = (1..=4).map(|no| {
            let (on, running) = (Arc::clone(&areas), Arc::clone(&running));
            areas.begin(async move {
                assert_eq!(std::mem::replace(&mut running.lock().0, no), 0, "two saves at once");
                save(&on, no).await?;
                let mut ended = running.lock();
                ended.0 = 0;
                ended.1.push(no);
                Ok(())
            })
        });
        // The callers of all but the last are gone; their saves run even so, in order.
        let last = saves.collect::<Vec<_>>().pop().unwrap();
        last.await.unwrap();
        assert_eq!(running.lock().1, [1, 2, 3, 4]);
    }
}
