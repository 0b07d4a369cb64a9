//! Segments on a device, such as a volume that another machine can take over.
//!
//! The device has a header, then slots of one size. A slot has a header that names its segment, and the
//! segment's bytes, then zeroes, because old bytes could pass for records: a log writes some five times its
//! bytes. Headers have two copies, in blocks of their own.
//!
//! A slot's header is written once the slot's bytes are durable. A segment that is replaced gets another slot
//! and a higher turn; a crash in between leaves both, and the higher turn counts.

use crate::media::{Media, drawn_id};
use pagetier::device::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoFuture, SharedDevice};
use std::io::{self, Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"PTLOGDEV";
const SLOT_MAGIC: [u8; 8] = *b"PTLOGSEG";
const FORMAT: u64 = 3;
/// The format of a log without times.
const FORMAT_USUAL: u64 = 2;
/// The oldest format that this version reads: its header does not say how many slots there are.
const FORMAT_MIN: u64 = 1;
const BLOCK: usize = 4096;
/// Both copies of a header.
const HEADER_BYTES: usize = 2 * BLOCK;
/// Where the slots begin, in bytes.
const SLOTS_AT: u64 = 64 << 10;
/// The fewest slots with which a log can shorten itself, and replace a segment meanwhile; one is the reserve.
const SLOTS_MIN: u64 = 4;
/// The smallest slot of a new log.
const SLOT_BYTES_MIN: u64 = 256 << 10;
/// The headers that are read or written at once: a network volume takes a millisecond or more for each.
const HEADERS_AT_ONCE: usize = 64;
/// The bytes that one operation zeroes.
const ZEROED_AT_ONCE: usize = 1 << 20;

/// A slot's segment.
#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    /// Of two slots with the same segment, the one with the higher turn counts.
    turn: u64,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Active {
    slot: usize,
    /// The bytes so far.
    len: u64,
    /// Those in the last block: a device takes whole blocks.
    last: Vec<u8>,
}

/// Segments on a device. Its calls block, so the device must complete its operations by itself, not by the
/// runtime of the caller: one of librbd does, and files with [`Reap::Thread`](pagetier::device::Reap).
#[derive(Debug)]
pub struct DeviceMedia {
    device: SharedDevice,
    id: u64,
    format: u64,
    slot_bytes: u64,
    slots: Vec<Option<Slot>>,
    turn: u64,
    active: Option<Active>,
    /// Whether the log is in use: an open writes nothing before that.
    owned: bool,
    /// Whether a slot is kept as the reserve.
    reserves: bool,
    /// The free slot that is the reserve. The last one that was released, if any: all of it was written, so a
    /// volume that is thinly provisioned and full may still take it.
    reserve: Option<usize>,
}

impl DeviceMedia {
    /// Opens the log on `device`, or creates one there if the device is blank. `segment_bytes` is the size of
    /// a new log's segments, in bytes.
    ///
    /// # Errors
    /// The device holds other data, is too small, is in use ([`ErrorKind::ResourceBusy`]), or fails.
    pub fn open(device: SharedDevice, segment_bytes: u64) -> io::Result<Self> {
        if device.occupancy().occupy().is_err() {
            return Err(ErrorKind::ResourceBusy.into());
        }
        // From here on dropped, and vacated, like an open one.
        let (id, format, slot_bytes) = (0, FORMAT_USUAL, 0);
        let (slots, turn, active, owned, reserves, reserve) = (Vec::new(), 0, None, false, false, None);
        let mut media =
            Self { device, id, format, slot_bytes, slots, turn, active, owned, reserves, reserve };
        media.identify(segment_bytes)?;
        let all: Vec<usize> = (0..media.slots.len()).collect();
        for (slot, header) in media.headers(&all, |media, at| {
            let bufs = IoBufs::from_iter([IoBuf::zeroed(HEADER_BYTES)]);
            media.device.read(at, bufs, IoClass::Recovery)
        })? {
            let found = decode(&SLOT_MAGIC, &header).filter(|[id, ..]| *id == media.id);
            media.slots[slot] = found.map(|[_, start, turn, _]| Slot { start, turn });
            media.turn = media.turn.max(media.slots[slot].map_or(0, |slot| slot.turn));
        }
        Ok(media)
    }

    /// Reads the header, or decides on that of a new log.
    fn identify(&mut self, segment_bytes: u64) -> io::Result<()> {
        let size = self.device.size();
        if size < SLOTS_AT {
            return Err(too_small(size, segment_bytes));
        }
        let found = decode(&MAGIC, &self.read_at(0, HEADER_BYTES)?);
        let mut slots = 0;
        if let Some([format, id, slot_bytes, recorded]) = found {
            if !(FORMAT_MIN..=FORMAT).contains(&format) {
                let reads = format!("{FORMAT_MIN} to {FORMAT}");
                let why = format!("the log has format {format}, and this program reads formats {reads}");
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            (self.id, self.slot_bytes, slots) = (id, slot_bytes, recorded);
            self.format = format.max(FORMAT_USUAL);
        } else {
            self.refuse_data(size)?;
            // A segment ends once it has `segment_bytes`, and a batch may bring it as many again.
            self.slot_bytes = (4 * segment_bytes).max(SLOT_BYTES_MIN).next_multiple_of(BLOCK as u64);
            self.id = drawn_id();
        }
        if self.slot_bytes <= HEADER_BYTES as u64 || !self.slot_bytes.is_multiple_of(BLOCK as u64) {
            let why = format!("the log has slots of {} bytes", self.slot_bytes);
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        let count = (size - SLOTS_AT) / self.slot_bytes;
        if count < slots {
            // Segments behind the end would be missing without a word.
            let needed = SLOTS_AT + slots * self.slot_bytes;
            let why = format!("the device was cut to {size} bytes, and the log on it has {needed}");
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        if count < SLOTS_MIN {
            return Err(too_small(size, segment_bytes));
        }
        self.slots = vec![None; usize::try_from(count).unwrap_or(usize::MAX)];
        Ok(())
    }

    /// Refuses a file with a byte that is not zero, and another device that is not zero where labels of file
    /// systems, partitions and stores lie.
    fn refuse_data(&self, size: u64) -> io::Result<()> {
        if let Some(search) = self.device.data_search() {
            return if search()? { Err(foreign()) } else { Ok(()) };
        }
        let edge = (1 << 20).min(size / BLOCK as u64 * BLOCK as u64);
        for at in [0, (size - edge) / BLOCK as u64 * BLOCK as u64] {
            if self.read_at(at, edge as usize)?.iter().any(|byte| *byte != 0) {
                return Err(foreign());
            }
        }
        Ok(())
    }

    /// Reads or writes the headers of `slots` by `start`, which gets their offsets. Returns their bytes.
    fn headers(
        &self,
        slots: &[usize],
        start: impl Fn(&Self, u64) -> IoFuture,
    ) -> io::Result<Vec<(usize, Vec<u8>)>> {
        let mut headers = Vec::new();
        for slots in slots.chunks(HEADERS_AT_ONCE) {
            let started: Vec<_> = slots.iter().map(|slot| start(self, self.slot_at(*slot))).collect();
            // All have ended before an error is returned: none may land in what an open that follows does.
            let done: Vec<_> = started.into_iter().map(futures_executor::block_on).collect();
            for (slot, done) in slots.iter().zip(done) {
                done.result.map_err(failed)?;
                headers.push((*slot, joined(&done.bufs)));
            }
        }
        Ok(headers)
    }

    fn slot_at(&self, slot: usize) -> u64 {
        SLOTS_AT + slot as u64 * self.slot_bytes
    }

    /// Where the bytes of a slot's segment are.
    fn body_at(&self, slot: usize) -> u64 {
        self.slot_at(slot) + HEADER_BYTES as u64
    }

    fn body_bytes(&self) -> u64 {
        self.slot_bytes - HEADER_BYTES as u64
    }

    /// The slots with the segment; more than one after a call that failed.
    fn holders(&self, start: u64) -> Vec<usize> {
        let has = |slot: &usize| self.slots[*slot].is_some_and(|slot| slot.start == start);
        (0..self.slots.len()).filter(has).collect()
    }

    /// The slot with the segment that counts.
    fn find(&self, start: u64) -> io::Result<usize> {
        let newest = self.holders(start).into_iter().max_by_key(|slot| self.slots[*slot].map(|s| s.turn));
        newest.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Makes `bytes` the whole contents of `slot`, durably, and appends to it from here on.
    fn fill(&mut self, slot: usize, bytes: &[u8]) -> io::Result<()> {
        self.active = None;
        if bytes.len() as u64 > self.body_bytes() {
            return Err(ErrorKind::StorageFull.into());
        }
        let body_at = self.body_at(slot);
        let whole = bytes.len().next_multiple_of(BLOCK);
        let mut padded = bytes.to_vec();
        padded.resize(whole, 0);
        if whole > 0 {
            self.write_at(body_at, &padded)?;
        }
        let mut at = whole as u64;
        while at < self.body_bytes() {
            let zeroes = vec![0; ZEROED_AT_ONCE.min((self.body_bytes() - at) as usize)];
            self.write_at(body_at + at, &zeroes)?;
            at += zeroes.len() as u64;
        }
        self.flush()?;
        let last = bytes[bytes.len() / BLOCK * BLOCK..].to_vec();
        self.active = Some(Active { slot, len: bytes.len() as u64, last });
        Ok(())
    }

    /// Durably gives the slot's segment up.
    fn release(&mut self, slot: usize) -> io::Result<()> {
        self.write_at(self.slot_at(slot), &[0; HEADER_BYTES])?;
        self.flush()?;
        self.slots[slot] = None;
        self.reserve = Some(slot).filter(|_| self.reserves);
        Ok(())
    }

    /// Creates the segment in `slot`, and gives up the slots that it had.
    fn create_in(&mut self, slot: usize, start: u64, bytes: &[u8]) -> io::Result<()> {
        let before = self.holders(start);
        self.fill(slot, bytes)?;
        let active = self.active.take();
        self.turn += 1;
        // Taken although the write may fail: its block may be on the device, and names this segment, which
        // would come back once its other slot is free.
        self.slots[slot] = Some(Slot { start, turn: self.turn });
        self.write_at(self.slot_at(slot), &encode(&SLOT_MAGIC, [self.id, start, self.turn, 0]))?;
        self.flush()?;
        before.into_iter().filter(|before| *before != slot).try_for_each(|before| self.release(before))?;
        self.active = active;
        Ok(())
    }

    /// The slots without a segment.
    fn free(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.slots.len()).filter(|slot| self.slots[*slot].is_none())
    }

    fn read_at(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let bufs = IoBufs::from_iter([IoBuf::zeroed(len)]);
        let done = futures_executor::block_on(self.device.read(at, bufs, IoClass::Recovery));
        done.result.map_err(failed)?;
        Ok(joined(&done.bufs))
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let bufs = IoBufs::from_iter([IoBuf::copy_of(bytes)]);
        futures_executor::block_on(self.device.write(at, bufs, IoClass::Meta)).result.map_err(failed)
    }

    fn flush(&self) -> io::Result<()> {
        futures_executor::block_on(self.device.flush(IoClass::Meta)).map_err(failed)
    }
}

impl Media for DeviceMedia {
    fn id(&self) -> u64 {
        self.id
    }

    fn own(&mut self) -> io::Result<()> {
        if self.owned {
            return Ok(());
        }
        // Also where it is: what can be read may not be durable, and a log without it is not one.
        let header = [self.format, self.id, self.slot_bytes, self.slots.len() as u64];
        self.write_at(0, &encode(&MAGIC, header))?;
        // A removed segment, too, may be readable as such without being so durably: it would come back once
        // the segments after it are gone.
        let free: Vec<usize> = self.free().collect();
        self.headers(&free, |media, at| {
            let bufs = IoBufs::from_iter([IoBuf::zeroed(HEADER_BYTES)]);
            media.device.write(at, bufs, IoClass::Meta)
        })?;
        self.flush()?;
        // What a crash in `create` left. The one that counts may be readable without being durable, so it is
        // written again before the other is given up.
        for Slot { start, .. } in self.slots.clone().into_iter().flatten() {
            let holders = self.holders(start);
            if holders.len() > 1 {
                let newest = self.find(start)?;
                let bytes = self.read(start)?;
                self.resume(start, &bytes)?;
                holders.into_iter().filter(|slot| *slot != newest).try_for_each(|slot| self.release(slot))?;
            }
        }
        self.owned = true;
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<u64>> {
        let mut starts: Vec<u64> = self.slots.iter().flatten().map(|slot| slot.start).collect();
        // A crash in `create` may have left two with one segment.
        starts.sort_unstable();
        starts.dedup();
        Ok(starts)
    }

    fn read(&mut self, start: u64) -> io::Result<Vec<u8>> {
        self.read_at(self.body_at(self.find(start)?), self.body_bytes() as usize)
    }

    fn peek(&mut self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        let most = most.next_multiple_of(BLOCK).min(self.body_bytes() as usize);
        self.read_at(self.body_at(self.find(start)?), most)
    }

    fn create(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        // Calls that fail again and again must not take all slots. Nothing of what an earlier one left was
        // reported durable: a segment is created where the durable log ends.
        let holders = self.holders(start);
        let slot = self.free().chain(holders).find(|slot| Some(*slot) != self.reserve);
        self.create_in(slot.ok_or(ErrorKind::StorageFull)?, start, bytes)
    }

    fn reserve(&mut self, _bytes: u64) -> io::Result<()> {
        self.reserves = true;
        self.reserve = self.reserve.or_else(|| self.free().next_back());
        self.reserve.map(drop).ok_or_else(|| ErrorKind::StorageFull.into())
    }

    fn create_reserved(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let slot = self.reserve.take().ok_or(ErrorKind::StorageFull)?;
        let created = self.create_in(slot, start, bytes);
        if created.is_err() {
            // Its header may name the segment; it is written again with the next call, or given up once the
            // segment has another slot.
            self.reserve.get_or_insert(slot);
        }
        created
    }

    fn resume(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        // In place: a crash meanwhile is harmless, because each sector of the sound part keeps its contents.
        let slot = self.find(start)?;
        self.fill(slot, bytes)?;
        let turn = self.slots[slot].map_or(0, |slot| slot.turn);
        // It, too, may be readable without being durable.
        self.write_at(self.slot_at(slot), &encode(&SLOT_MAGIC, [self.id, start, turn, 0]))?;
        self.flush()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Put back once the bytes are durable: a caller goes on with a new segment after a failure.
        let Some(mut active) = self.active.take() else { return Err(ErrorKind::NotFound.into()) };
        if active.len + bytes.len() as u64 > self.body_bytes() {
            return Err(ErrorKind::StorageFull.into());
        }
        let at = self.body_at(active.slot) + active.len / BLOCK as u64 * BLOCK as u64;
        // What the block has already is written again as it is.
        active.last.extend_from_slice(bytes);
        let kept = active.last.len() / BLOCK * BLOCK;
        let used = active.last.len();
        active.last.resize(used.next_multiple_of(BLOCK), 0);
        self.write_at(at, &active.last)?;
        self.flush()?;
        active.last.truncate(used);
        active.last.drain(..kept);
        active.len += bytes.len() as u64;
        self.active = Some(active);
        Ok(())
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        // None, if an earlier call removed it. The one that counts goes last.
        let mut holders = self.holders(start);
        holders.sort_by_key(|slot| self.slots[*slot].map(|slot| slot.turn));
        holders.into_iter().try_for_each(|slot| self.release(slot))
    }

    fn format(&mut self, at_least: u32) -> u32 {
        self.format = self.format.max(at_least.into());
        self.format as u32
    }

    fn segments_max(&self) -> usize {
        self.slots.len() - 1
    }

    fn segment_bytes_max(&self) -> u64 {
        self.body_bytes()
    }

    fn path(&self, start: u64) -> PathBuf {
        format!("{}/{start:016x}", self.device.name()).into()
    }
}

impl Drop for DeviceMedia {
    fn drop(&mut self) {
        self.device.occupancy().leave(Arc::new(()));
    }
}

/// Both copies of a header: magic, CRC32C of what follows, four numbers.
fn encode(magic: &[u8; 8], numbers: [u64; 4]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(magic);
    for (nth, number) in numbers.into_iter().enumerate() {
        block[16 + 8 * nth..24 + 8 * nth].copy_from_slice(&number.to_le_bytes());
    }
    let sum = pagetier_page::crc32c(&block[16..48]);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
    block.repeat(2)
}

/// The numbers of a header, if one of its copies is sound. The fourth is 0 in format 1, whose checksum ends
/// before it.
fn decode(magic: &[u8; 8], header: &[u8]) -> Option<[u64; 4]> {
    header.chunks(BLOCK).find_map(|block| {
        let numbers = block.get(16..48)?;
        let number = |nth: usize| crate::record::u64_at(numbers, 8 * nth);
        let all = [number(0), number(1), number(2), number(3)];
        let has = |covered: &[u8]| block[8..12] == pagetier_page::crc32c(covered).to_le_bytes();
        let is_sound = has(numbers) || all[3] == 0 && has(&numbers[..24]);
        (block[..8] == *magic && is_sound).then_some(all)
    })
}

fn foreign() -> Error {
    Error::new(ErrorKind::InvalidData, "the device holds data that is not a log's")
}

fn too_small(size: u64, segment_bytes: u64) -> Error {
    let least = SLOTS_AT + SLOTS_MIN * (4 * segment_bytes).max(SLOT_BYTES_MIN);
    let why = format!("the device has {size} bytes, and a log of this capacity needs {least}");
    Error::new(ErrorKind::StorageFull, why)
}

fn joined(bufs: &IoBufs) -> Vec<u8> {
    bufs.iter().map(IoBuf::as_slice).collect::<Vec<_>>().concat()
}

fn failed(error: DeviceError) -> Error {
    match error.kind {
        DeviceErrorKind::NoSpace => Error::new(ErrorKind::StorageFull, error),
        _ => Error::other(error),
    }
}
