//! The manifest in two areas: at the head of the HDD, before its first extent, so that another machine can
//! open the store with the volume alone; or in a file of the store's directory.
//!
//! | offset on the HDD | offset in the file | what |
//! | --- | --- | --- |
//! | 0 | 0 | the superblock, two copies; in the file a block that earlier versions refuse |
//! | 64 KiB | 4 KiB | headers: two copies for each area, each in a block of its own |
//! | 1 MiB | 64 KiB | the first area, then the second: each as long as the headers say, then the extents |
//!
//! An area holds the contents and a tail of records ([`tail`]). A header states the number of the save that
//! wrote its area. The area of the highest save is the manifest.
//!
//! A save writes the area that is not the manifest, in three steps, each flushed before the next:
//!
//! 1. The headers of that area are blanked. Those of an earlier save that failed may be on the disk and have
//!    a higher number than the manifest's: without this step, a crash in step 2 would leave them in front of
//!    half-written contents.
//! 2. The contents are written.
//! 3. Both headers are written. A crash in between leaves one: it says the same.
//!
//! The first save on an HDD writes headers without contents before anything else: a crash then leaves a
//! device that is known to be about to get a store, not one with unknown data. A file is made whole, with the
//! first save in it ([`file`](super::file)), and made anew when a manifest has outgrown its areas. If a full
//! disk has no room for that, the save fails unless the present areas have room for it, and nothing is lost.
//!
//! The contents are thus durable before a header names them, so contents that do not match their checksum are
//! damage, never a torn save: the open is refused, and does not fall back to an older manifest.
//!
//! What a new process reads may not be durable: its predecessor may have been killed between a write and its
//! flush, or after a flush that failed. So before its first save touches the other area, which may be the
//! only durable one, the manifest is written again in place, where each sector keeps its contents.
//!
//! The store flushes the same HDD, and a failure of either's flush may have lost writes of both:
//! [`Joint`](pagetier_devio::Joint).

use super::changes::{SLACK_BYTES, Slack};
use super::file::{CUT, ManifestFile, preamble};
use super::medium::Medium;
use super::superblock::AREA_UNIT;
use super::tail::{self, End, Placed};
use crate::error::OpenError;
use crate::ownership::held_dir::HeldDir;
use pagetier_devio::{Failures, SharedDevice};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

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
        let sum = pagetier_page::crc32c(&b[12..tail::SECTOR]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// `None`: the block holds no header. One of another version is an error, not damage.
    fn decode(b: &[u8]) -> Result<Option<Self>> {
        let Some((found, header)) = Self::parse(b) else { return Ok(None) };
        if found != FORMAT {
            let (device, reads) = ("the manifest's areas".into(), FORMAT.to_string());
            return Err(Error::new(ErrorKind::Unsupported, OpenError::Format { device, found, reads }));
        }
        // The end of the areas is computed from it.
        let fits = header.size <= header.area_bytes && header.area_bytes < 1 << 48;
        Ok(Some(header).filter(|_| fits))
    }

    /// The format of the header in a block, and what it says in this version's.
    fn parse(b: &[u8]) -> Option<(u32, Self)> {
        let word = |at: usize| b.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
        let is_sound = b.get(..8)? == MAGIC && word(8)? == pagetier_page::crc32c(b.get(12..tail::SECTOR)?);
        let header = Self { save: long(16)?, area_bytes: long(24)?, size: long(32)? };
        is_sound.then_some((word(12)?, header))
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
    unverified: Option<u32>,
    /// The highest save that a header may bear.
    save: u64,
    /// `None`: the next save must replace the manifest.
    tail: Option<Appendable>,
}

/// The manifest in areas. See the module.
#[derive(Debug)]
pub(crate) struct Areas {
    medium: Medium,
    state: Mutex<State>,
}

impl Areas {
    /// The areas on a medium, of `area_bytes` each unless it has some.
    pub(crate) fn new(medium: Medium, area_bytes: u64) -> Self {
        let state = State { area_bytes, current: None, unverified: None, save: 0, tail: None };
        Self { medium, state: Mutex::new(state) }
    }

    /// The areas of the file in the store's directory, which has the size that it needs.
    pub(crate) fn in_directory(directory: Arc<HeldDir>) -> Self {
        Self::new(Medium::File(ManifestFile::new(directory)), 0)
    }

    pub(crate) fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Where the second area ends, in bytes, and on the HDD the first extent begins.
    pub(crate) fn end(&self) -> u64 {
        self.medium.areas_at() + 2 * self.state.lock().area_bytes
    }

    /// Reads the manifest; `None` when there is none.
    pub(crate) async fn load(&self) -> Result<Option<Vec<u8>>> {
        if let Medium::File(file) = &self.medium {
            file.open()?;
        }
        let found = headers(&self.medium).await?;
        let newest = found.into_iter().flatten().max_by_key(|(_, header)| header.save);
        if let Some((_, Header { save, area_bytes, .. })) = newest {
            let current = newest.filter(|(_, header)| header.size > 0);
            let unverified = current.is_some().then_some(0);
            *self.state.lock() = State { area_bytes, current, unverified, save, tail: None };
        }
        // Perhaps only of the area that is not the manifest, but a save on a full disk needs its space (I36).
        if newest.is_some() && matches!(self.medium, Medium::File(_)) && self.medium.size()? < self.end() {
            return Err(Error::new(ErrorKind::InvalidData, CUT));
        }
        let bytes = self.read().await?;
        if let Some(bytes) = &bytes {
            self.state.lock().unverified = Some(pagetier_page::crc32c(bytes));
        }
        Ok(bytes)
    }

    /// Reads the manifest in force; `None` when there is none.
    pub(crate) async fn read(&self) -> Result<Option<Vec<u8>>> {
        let State { area_bytes, current, .. } = self.state.lock().clone();
        let Some((area, header)) = current else { return self.read_text() };
        let mut bytes = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            bytes = self.medium.read(self.area_at(area, area_bytes), header.size as usize).await?;
            if tail::parse(&bytes).is_ok() {
                break;
            }
        }
        Ok(Some(bytes))
    }

    /// Reads a file of an earlier version, which has no areas.
    fn read_text(&self) -> Result<Option<Vec<u8>>> {
        let Medium::File(file) = &self.medium else { return Ok(None) };
        let bytes = file.read_whole()?;
        if bytes.as_ref().is_some_and(|bytes| preamble().starts_with(&bytes[..bytes.len().min(tail::BLOCK)]))
        {
            return Err(Error::new(ErrorKind::InvalidData, "the headers of its areas are missing"));
        }
        Ok(bytes)
    }

    fn area_at(&self, area: u64, area_bytes: u64) -> u64 {
        self.medium.areas_at() + area * area_bytes
    }

    /// Replaces the manifest by the one that `json` encodes. Durable when it returns `Ok`; after an error
    /// either version may be found later.
    pub(crate) async fn replace(&self, json: &[u8], slack: Slack) -> Result<()> {
        let is_there = self.medium.is_ready().await?;
        let State { area_bytes, current, .. } = self.state.lock().clone();
        let mut contents = tail::sealed(json, 0);
        let (len, end) = (contents.len(), End::after(&contents).map_err(Error::other)?);
        // The next save must find room as well (I36).
        let fits = len + slack.left() <= area_bytes as usize;
        let has_areas = is_there && current.is_some();
        if let Medium::File(file) = &self.medium {
            let asks_for_more = slack == Slack::Keep && wanted(len) > area_bytes as usize;
            if !has_areas || !fits || asks_for_more {
                // The present areas may be large enough, and only be used up sooner.
                if self.renew(file, &contents, end, has_areas && fits)? {
                    return Ok(());
                }
            }
        } else if !fits {
            return Err(Error::new(ErrorKind::StorageFull, too_large(area_bytes)));
        }
        let size = wanted(len).min(area_bytes as usize);
        contents.resize(size, b'\n');
        let save = self.next_save();
        let seen = self.medium.failures();
        self.make_durable(seen).await?;
        // The manifest stays whole until the last step.
        let area = current.map_or(0, |(area, _)| 1 - area);
        let header = Header { save, area_bytes, size: size as u64 };
        self.medium.grow(self.end())?;
        if current.is_none() {
            // Other data may have been allowed there, which would pass for damaged headers.
            self.write(self.medium.headers_at(0), &[0; 4 * tail::BLOCK], seen).await?;
            let begun = Header { save: 0, area_bytes, size: 0 };
            self.write(self.medium.headers_at(1), &begun.encode().repeat(2), seen).await?;
        }
        self.write(self.medium.headers_at(area), &[0; 2 * tail::BLOCK], seen).await?;
        self.medium.write(self.area_at(area, area_bytes), &contents).await?;
        self.medium.flush(seen).await?;
        self.write(self.medium.headers_at(area), &header.encode().repeat(2), seen).await?;
        let state = &mut *self.state.lock();
        (state.current, state.tail) = (Some((area, header)), Some(Appendable::after(end, size, len)));
        Ok(())
    }

    /// The number of a save that begins. Counted although it may fail: its headers may be found later, and
    /// the next ones must be newer. No record may follow before it has succeeded (I41).
    fn next_save(&self) -> u64 {
        let state = &mut *self.state.lock();
        (state.save, state.tail) = (state.save + 1, None);
        state.save
    }

    /// Makes the manifest durable that the open found.
    async fn make_durable(&self, seen: Option<Failures>) -> Result<()> {
        let State { area_bytes, current, unverified, .. } = self.state.lock().clone();
        if let (Some((area, header)), Some(sum)) = (current, unverified) {
            let bytes = self.read().await?.unwrap_or_default();
            // Nothing but what was opened may be written over it.
            if pagetier_page::crc32c(&bytes) != sum {
                let why = "the manifest on disk changed since it was opened; refusing to overwrite it";
                return Err(Error::new(ErrorKind::InvalidData, why));
            }
            self.write(self.area_at(area, area_bytes), &bytes, seen).await?;
            self.write(self.medium.headers_at(area), &header.encode().repeat(2), seen).await?;
            self.state.lock().unverified = None;
        }
        Ok(())
    }

    /// Saves in a new file, whose areas have room for more than these contents. Returns false if the file
    /// cannot be made and need not be: the present one is as it was.
    fn renew(&self, file: &ManifestFile, contents: &[u8], end: End, may_fail: bool) -> Result<bool> {
        let (len, size) = (contents.len(), wanted(contents.len()));
        let area_bytes = size as u64;
        let header = Header { save: self.next_save(), area_bytes, size: area_bytes };
        let mut bytes = preamble();
        bytes.extend(header.encode().repeat(2));
        // No block of zeroes, which a copy may turn into a hole: a save could find no room on a full disk.
        bytes.extend(Header { save: 0, area_bytes, size: 0 }.encode().repeat(2));
        bytes.resize(self.medium.areas_at() as usize, b'\n');
        bytes.extend(contents);
        bytes.resize(self.medium.areas_at() as usize + 2 * size, b'\n');
        match file.put(&bytes) {
            Err(_) if may_fail => return Ok(false),
            put => put?,
        }
        // From here on the new file is the manifest, whatever fails: the present areas are its.
        {
            let state = &mut *self.state.lock();
            (state.area_bytes, state.current, state.unverified) = (area_bytes, Some((0, header)), None);
        }
        if !file.is_ready()? {
            return Err(ErrorKind::NotFound.into());
        }
        self.state.lock().tail = Some(Appendable::after(end, size, len));
        Ok(true)
    }

    /// Appends the record that `json` encodes, given its number. Returns true once it is durable; false,
    /// without effect, when the manifest must be replaced instead. After an error a reader may or may not
    /// find the record, and the next save must replace the manifest.
    pub(crate) async fn append(
        &self,
        json: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>,
        slack: Slack,
    ) -> Result<bool> {
        let is_there = self.medium.is_ready().await?;
        // Taken: nothing may follow the record until it is durable (I41).
        let tail = self.state.lock().tail.take();
        let State { area_bytes, current, .. } = self.state.lock().clone();
        let (Some((area, _)), Some(tail), true) = (current, tail, is_there) else { return Ok(false) };
        let Some((record, next)) = tail.with(json, slack, area_bytes as usize)? else { return Ok(false) };
        let seen = self.medium.failures();
        // Two copies in different blocks: one corrupt block loses no record.
        for offset in record.offsets {
            let block = (offset / tail::BLOCK * tail::BLOCK) as u64;
            self.medium.write(self.area_at(area, area_bytes) + block, &next.block).await?;
        }
        self.medium.flush(seen).await?;
        self.state.lock().tail = Some(next);
        Ok(true)
    }

    /// Writes `bytes`, durably. Fails if a flush has failed since `seen`.
    async fn write(&self, at: u64, bytes: &[u8], seen: Option<Failures>) -> Result<()> {
        self.medium.write(at, bytes).await?;
        self.medium.flush(seen).await
    }
}

/// The size of an area for `len` bytes of contents, a tail, and the slack.
fn wanted(len: usize) -> usize {
    (len + SLACK_BYTES + tail::room(len)).next_multiple_of(AREA_UNIT as usize)
}

impl Appendable {
    /// The blank tail after contents of at most `len` bytes.
    fn after(end: End, has: usize, len: usize) -> Self {
        Self { end, block: Vec::new(), has, rewritten: len }
    }

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
    Ok(headers(&Medium::to_read(device)).await?.iter().any(Option::is_some))
}

/// The sound headers on `medium`, with their area. An area of whose header no copy is sound or blank is
/// damage, if there are headers at all: it may have had the newest manifest.
async fn headers(medium: &Medium) -> Result<[Option<(u64, Header)>; 4]> {
    let (mut found, size) = ([None; 4], medium.size()?);
    // A blank file is shorter.
    if size < medium.headers_at(2) {
        return Ok(found);
    }
    let (mut intact, mut marked, mut unreadable) = ([false; 2], false, None);
    for (nth, found) in found.iter_mut().enumerate() {
        let at = medium.headers_at(0) + (nth * tail::BLOCK) as u64;
        // Read several times: a header that only the transfer corrupted must not hide the newest manifest
        // (I32).
        for _ in 0..ATTEMPTS_MAX {
            let block = match medium.read(at, tail::BLOCK).await {
                Ok(block) => block,
                Err(error) => {
                    // The other copy says the same.
                    unreadable = Some(error);
                    continue;
                }
            };
            *found = Header::decode(&block)?.map(|header| (nth as u64 / 2, header));
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
    Err(unreadable.unwrap_or_else(damaged))
}

fn too_large(area_bytes: u64) -> String {
    format!(
        "the manifest takes at most {area_bytes} bytes on the HDD; a backup can be restored to another HDD \
         with a larger `bytes_max`"
    )
}

#[cfg(test)]
mod tests {
    use super::super::superblock::HEAD_BYTES;
    use super::*;
    use pagetier_devio::IoOp;
    use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};

    const AREA_BYTES: u64 = 64 << 10;

    fn areas(device: &Arc<SimDevice>) -> Areas {
        Areas::new(Medium::to_read(&(Arc::clone(device) as SharedDevice)), AREA_BYTES)
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
        assert_eq!(Header::decode(&header.encode()).unwrap(), Some(header));
        let first = Header { save: 1, area_bytes: AREA_BYTES, size: 0 };
        assert_eq!(Header::decode(&first.encode()).unwrap(), Some(first));
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
}
