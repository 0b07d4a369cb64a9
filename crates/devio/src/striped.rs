//! Several devices as one: consecutive chunks are distributed over the devices in turn.
//!
//! Every member carries a label in its first chunk: the set's id, the number of members, its own number and
//! the chunk size. So members may be passed in any order, and a missing, foreign or extra one is an error
//! before anything is read through the set. A set is as durable as its weakest member: losing one loses the
//! set.

use crate::device::{Completion, IoBufs, SharedDevice};
use crate::metered::{Metered, RawDevice, RawDone, RawTransfer};
use crate::{BUF_ALIGN, DeviceError, DeviceErrorKind, DoneFuture, IoBuf, IoClass};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"PGTIERST";
/// The format of labels that this version reads and writes.
const LABEL_FORMAT: u32 = 1;
/// The size of a label in bytes.
const LABEL_BYTES: usize = 4096;
/// The maximum number of members.
const MEMBERS_MAX: usize = 64;

/// Several devices as one: consecutive chunks are distributed over the devices in turn. Every member carries
/// a label, so members may be passed in any order, and a missing, foreign or extra one is an error before
/// anything is read. Losing one member loses the set.
pub type StripedDevice = Metered<Striped>;

/// How to create a set; an existing one keeps its own settings.
#[derive(Clone, Copy, Debug)]
pub struct StripeOptions {
    /// The chunk size in bytes: a power of two from 64 KiB (the largest page) to 16 MiB. Default: 256 KiB.
    pub chunk_bytes: u64,
    /// Whether to label blank members as a new set. Default: yes.
    pub create: bool,
}

impl Default for StripeOptions {
    fn default() -> Self {
        Self { chunk_bytes: 256 << 10, create: true }
    }
}

/// Why devices do not form a set. Nothing was changed, unless labelling itself failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripeError {
    /// Too few or too many devices, or a chunk size that is not allowed.
    #[error("{0}")]
    Options(String),
    /// A device's start holds other data.
    #[error("{device}: it holds data, but no label of a striped set; blank its first chunk to use it")]
    Foreign {
        /// The device.
        device: String,
    },
    /// A label has a format that this version does not read.
    #[error("{device}: its label has format {found}, this version reads 1")]
    Format {
        /// The device.
        device: String,
        /// The format found.
        found: u32,
    },
    /// The labels do not belong to one whole set.
    #[error("the devices are not one whole set: {0}")]
    Mixed(String),
    /// A member failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A member's label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Label {
    set: u128,
    members: u32,
    number: u32,
    chunk_bytes: u64,
}

enum FoundLabel {
    Blank,
    Label(Label),
    Format(u32),
    Foreign,
}

impl Label {
    /// Encodes it as a block: magic, checksum, format, set, members, number, chunk size.
    fn encode(&self) -> IoBuf {
        let mut buf = IoBuf::zeroed(LABEL_BYTES);
        let b = buf.as_mut_slice();
        b[..8].copy_from_slice(&MAGIC);
        b[16..20].copy_from_slice(&LABEL_FORMAT.to_le_bytes());
        b[20..24].copy_from_slice(&self.members.to_le_bytes());
        b[24..28].copy_from_slice(&self.number.to_le_bytes());
        b[32..40].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        b[40..56].copy_from_slice(&self.set.to_le_bytes());
        let sum = checksum(&b[16..]);
        b[8..16].copy_from_slice(&sum.to_le_bytes());
        buf
    }

    fn decode(b: &[u8]) -> FoundLabel {
        if b.iter().all(|byte| *byte == 0) {
            return FoundLabel::Blank;
        }
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if b[..8] != MAGIC || long(8) != checksum(&b[16..]) {
            return FoundLabel::Foreign;
        }
        if word(16) != LABEL_FORMAT {
            return FoundLabel::Format(word(16));
        }
        let set = u128::from(long(40)) | u128::from(long(48)) << 64;
        FoundLabel::Label(Self { set, members: word(20), number: word(24), chunk_bytes: long(32) })
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// The members of a [`StripedDevice`].
#[derive(Debug)]
pub struct Striped {
    name: String,
    members: Vec<SharedDevice>,
    chunk: u64,
    alignment: usize,
}

impl Metered<Striped> {
    /// The set of `devices`, in any order. Labels them as a new set if all are blank and the options allow
    /// it. Nothing else may use the members: a store takes the set exclusively, not its members.
    ///
    /// # Errors
    /// [`StripeError`]: devices of other sets, missing or foreign ones, or a failed read or write.
    pub async fn open(devices: Vec<SharedDevice>, options: StripeOptions) -> Result<Self, StripeError> {
        let count = devices.len();
        if !(2..=MEMBERS_MAX).contains(&count) {
            return Err(StripeError::Options(format!("{count} devices: a set has 2 to {MEMBERS_MAX}")));
        }
        let chunk = options.chunk_bytes;
        if !chunk.is_power_of_two() || !((64 << 10)..=(16 << 20)).contains(&chunk) {
            let why = format!("{chunk} bytes per chunk: not a power of two from 64 KiB to 16 MiB");
            return Err(StripeError::Options(why));
        }
        let mut labels = Vec::with_capacity(count);
        for device in &devices {
            labels.push(read_label(device).await?);
        }
        if labels.iter().all(Option::is_none) {
            if !options.create {
                return Err(StripeError::Mixed("none has a label".into()));
            }
            let set = u128::from(random()) << 64 | u128::from(random());
            for (number, device) in devices.iter().enumerate() {
                let label = Label { set, members: count as u32, number: number as u32, chunk_bytes: chunk };
                device.grow(chunk)?;
                device.write(0, IoBufs::from_iter([label.encode()]), IoClass::Meta).await.result?;
                device.flush(IoClass::Meta).await?;
                labels[number] = Some(label);
            }
        }
        let (members, chunk) = in_order(devices, &labels)?;
        let names: Vec<&str> = members.iter().map(|device| device.name()).collect();
        let name = names.join("+");
        let alignment = members.iter().map(|device| device.alignment()).max().unwrap_or(BUF_ALIGN);
        Ok(Self::over(Striped { name, members, chunk, alignment }))
    }
}

/// A random number from the source from which hash maps draw their keys.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

async fn read_label(device: &SharedDevice) -> Result<Option<Label>, StripeError> {
    if device.size() < LABEL_BYTES as u64 {
        return Ok(None);
    }
    let done = device.read(0, IoBufs::from_iter([IoBuf::zeroed(LABEL_BYTES)]), IoClass::Meta).await;
    done.result?;
    let name = || device.name().to_owned();
    match done.bufs.first().map_or(FoundLabel::Blank, |buf| Label::decode(buf.as_slice())) {
        FoundLabel::Blank => Ok(None),
        FoundLabel::Label(label) => Ok(Some(label)),
        FoundLabel::Format(found) => Err(StripeError::Format { device: name(), found }),
        FoundLabel::Foreign => Err(StripeError::Foreign { device: name() }),
    }
}

/// The devices in the order of their labels, which must form one whole set; and the chunk size.
fn in_order(
    devices: Vec<SharedDevice>,
    labels: &[Option<Label>],
) -> Result<(Vec<SharedDevice>, u64), StripeError> {
    let mut first = None;
    let mut placed: Vec<Option<SharedDevice>> = vec![None; devices.len()];
    for (device, label) in devices.into_iter().zip(labels) {
        let mixed = |why: String| StripeError::Mixed(format!("{}: {why}", device.name()));
        let Some(label) = label else { return Err(mixed("it has no label, but others have one".into())) };
        let one = *first.get_or_insert(*label);
        if (one.set, one.members, one.chunk_bytes) != (label.set, label.members, label.chunk_bytes) {
            return Err(mixed("it belongs to another set".into()));
        }
        if one.members as usize != placed.len() {
            let why = format!("its set has {} members, {} are given", one.members, placed.len());
            return Err(mixed(why));
        }
        match placed.get_mut(label.number as usize) {
            Some(place @ None) => *place = Some(device),
            _ => return Err(mixed(format!("its number {} is given twice or out of range", label.number))),
        }
    }
    let chunk = first.map_or(0, |label| label.chunk_bytes);
    if !chunk.is_power_of_two() || chunk < LABEL_BYTES as u64 {
        return Err(StripeError::Mixed(format!("their label has chunks of {chunk} bytes")));
    }
    Ok((placed.into_iter().flatten().collect(), chunk))
}

/// A part of a transfer on one member: a whole buffer, or a part of one that crosses chunks.
struct Piece {
    /// The index of the buffer, and the range in it.
    buf: usize,
    range: Range<usize>,
}

/// One member's share of a transfer.
#[derive(Default)]
struct Share {
    offset: u64,
    pieces: Vec<Piece>,
    bufs: IoBufs,
}

impl Striped {
    /// The member that holds the byte at `offset`, and the offset there.
    fn place(&self, offset: u64) -> (usize, u64) {
        let (chunk, within) = (offset / self.chunk, offset % self.chunk);
        let members = self.members.len() as u64;
        // The first chunk of each member holds its label.
        ((chunk % members) as usize, (chunk / members + 1) * self.chunk + within)
    }

    /// Splits a transfer. A contiguous range is contiguous on every member, so each gets one vectored
    /// operation. A buffer within a chunk is passed on; one that crosses chunks is transferred through copies
    /// of its parts.
    fn split(&self, offset: u64, bufs: &mut IoBufs, write: bool) -> Vec<Share> {
        let mut shares: Vec<Share> = self.members.iter().map(|_| Share::default()).collect();
        let mut at = offset;
        for (index, buf) in bufs.iter_mut().enumerate() {
            let len = buf.len();
            let mut from = 0;
            while from < len {
                let (member, local) = self.place(at);
                let room = (self.chunk - at % self.chunk) as usize;
                let part = room.min(len - from);
                let io = match (part == len, write) {
                    (true, _) => std::mem::replace(buf, IoBuf::zeroed(0)),
                    (false, true) => IoBuf::copy_of(&buf.as_slice()[from..from + part]),
                    (false, false) => IoBuf::zeroed(part),
                };
                let share = &mut shares[member];
                if share.pieces.is_empty() {
                    share.offset = local;
                }
                share.pieces.push(Piece { buf: index, range: from..from + part });
                share.bufs.push(io);
                (from, at) = (from + part, at + part as u64);
            }
        }
        shares
    }

    fn transfer(&self, offset: u64, mut bufs: IoBufs, class: IoClass, write: bool) -> RawTransfer {
        let shares = self.split(offset, &mut bufs, write);
        let mut running = Vec::new();
        // Every operation has started when its call returns, so the members work in parallel.
        for (member, share) in self.members.iter().zip(shares).filter(|(_, share)| !share.pieces.is_empty()) {
            let Share { offset, pieces, bufs } = share;
            let started =
                if write { member.write(offset, bufs, class) } else { member.read(offset, bufs, class) };
            running.push((pieces, started));
        }
        Box::pin(async move {
            let mut result = Ok(());
            for (pieces, started) in running {
                let Completion { bufs: back, result: one } = started.await;
                for (Piece { buf, range }, io) in pieces.into_iter().zip(back) {
                    if bufs[buf].is_empty() {
                        bufs[buf] = io;
                    } else if !write {
                        bufs[buf].as_mut_slice()[range].copy_from_slice(io.as_slice());
                    }
                }
                result = result.and(one.map_err(of_member));
            }
            (bufs, result)
        })
    }
}

/// Waits for the members' operations, which have started; the first error.
fn all_done(started: Vec<DoneFuture>) -> RawDone {
    Box::pin(async move {
        let mut result = Ok(());
        for one in started {
            result = result.and(one.await.map_err(of_member));
        }
        result
    })
}

/// The kind of a member's error; an I/O error names the member.
fn of_member(error: DeviceError) -> DeviceErrorKind {
    match &error.kind {
        DeviceErrorKind::Io(source) => {
            DeviceErrorKind::Io(Arc::new(io::Error::new(source.kind(), error.to_string())))
        }
        kind => kind.clone(),
    }
}

impl RawDevice for Striped {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer {
        self.transfer(offset, bufs, class, false)
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer {
        self.transfer(offset, bufs, class, true)
    }

    fn flush(&self) -> RawDone {
        all_done(self.members.iter().map(|member| member.flush(IoClass::Meta)).collect())
    }

    /// Up to the first byte that a member lacks.
    fn size(&self) -> u64 {
        let members = self.members.len() as u64;
        let end = |(number, member): (u64, &SharedDevice)| {
            let local = member.size().saturating_sub(self.chunk);
            (local / self.chunk * members + number) * self.chunk + local % self.chunk
        };
        (0..).zip(&self.members).map(end).min().unwrap_or(0)
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        let row = self.members.len() as u64 * self.chunk;
        for (number, member) in (0..).zip(&self.members) {
            let last = (bytes % row).saturating_sub(number * self.chunk).min(self.chunk);
            // The first chunk holds the label.
            let wanted = (bytes / row + 1).checked_mul(self.chunk).and_then(|full| full.checked_add(last));
            member.grow(wanted.ok_or(DeviceErrorKind::NoSpace)?).map_err(of_member)?;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> RawDone {
        let mut started = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let part = (self.chunk - at % self.chunk).min(offset + len - at);
            let (member, local) = self.place(at);
            started.push(self.members[member].discard(local, part));
            at += part;
        }
        all_done(started)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn backend(&self) -> &'static str {
        "striped"
    }

    fn name(&self) -> &str {
        &self.name
    }
}
