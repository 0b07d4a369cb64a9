//! The file `ssd-policy`: what the SSD's policy knew when the store was closed, so that it need not learn it
//! again.
//!
//! It is knowledge, never truth: without it, or with a wrong one, the store is slower for a while. So it is
//! written once the close is recorded, without a flush, and used only by the opening that follows this very
//! close: its header names the close, the store, the SSD and the policy, and its checksum covers every byte.
//! An opening raises the epoch, so after a crash no file fits. What a checksum cannot exclude, a policy
//! survives ([`SlotPolicy::restore`]).

use super::contents::Manifest;
use super::id::id_bytes;
use super::memory::MemoryManifest;
use crate::tenure::held_dir::HeldDir;
use pagetier_policy::{Millis, SlotPolicy, SsdPolicy};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{BufReader, BufWriter, Cursor, Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const POLICY: &str = "ssd-policy";

const MAGIC: &[u8; 8] = b"PGTIERPL";
const FORMAT: u32 = 1;
/// The length of what precedes the policy's name, and of what follows the policy's bytes.
const FIXED_BYTES: usize = 56;
const TRAILER_BYTES: u64 = 12;

/// How long a close may write the file: beyond that, relearning costs less than waiting. 64 million slots
/// take some 2 GiB. The policy then still says the rest, which is not written.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// The buffer for reading and writing, in bytes.
const BUFFER: usize = 256 << 10;

/// Where the file is.
#[derive(Clone, Debug)]
pub(crate) enum PolicyFile {
    Directory(Arc<HeldDir>),
    Memory(Arc<MemoryManifest>),
}

/// The close that a file follows, and the policy that it is for.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) store: String,
    pub(crate) ssd: String,
    pub(crate) closed: u32,
    pub(crate) slots: u32,
    pub(crate) policy: SsdPolicy,
}

impl Owner {
    /// That of the last clean close of the store with this manifest; `None` if it was not closed, or without
    /// an SSD.
    pub(crate) fn of(manifest: &Manifest, slots: u32, policy: SsdPolicy) -> Option<Self> {
        let ssd = manifest.ssd.clone().filter(|_| manifest.closed > 0 && slots > 0)?;
        Some(Self { store: manifest.store.clone(), ssd, closed: manifest.closed, slots, policy })
    }

    fn header(&self) -> Vec<u8> {
        let name = self.policy.to_string();
        let mut header = Vec::with_capacity(FIXED_BYTES + name.len());
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&FORMAT.to_le_bytes());
        header.extend_from_slice(&self.closed.to_le_bytes());
        header.extend_from_slice(&id_bytes(&self.store));
        header.extend_from_slice(&id_bytes(&self.ssd));
        header.extend_from_slice(&self.slots.to_le_bytes());
        header.extend_from_slice(&(name.len() as u32).to_le_bytes());
        header.extend_from_slice(name.as_bytes());
        header
    }
}

impl PolicyFile {
    /// The file of a store with its manifest in memory, or with a directory.
    pub(crate) fn of(memory: Option<&Arc<MemoryManifest>>, held: Option<&Arc<HeldDir>>) -> Option<Self> {
        let in_directory = || held.map(|held| Self::Directory(Arc::clone(held)));
        memory.map(|memory| Self::Memory(Arc::clone(memory))).or_else(in_directory)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Writes what `policy` knows. A failure is logged, and leaves no file.
    pub(crate) fn save(&self, owner: &Owner, policy: &dyn SlotPolicy, now: Millis) {
        let began = Instant::now();
        let saved = match self {
            Self::Memory(memory) => {
                let mut bytes = Vec::new();
                let saved = write(&mut bytes, owner, policy, now, None);
                memory.set_policy_file(saved.as_ref().is_ok_and(Option::is_some).then_some(bytes));
                saved
            }
            Self::Directory(held) => {
                // Beforehand: for a large SSD it takes seconds, for which the close waits.
                tracing::info!(slots = owner.slots, "the close saves what the SSD's policy has learned");
                let file = held.file(POLICY, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | ITSELF);
                file.and_then(|file| {
                    // Not a disk that someone has made a node for under this name.
                    regular(&file)?;
                    let until = Some(began + WRITE_MAX);
                    let saved = write(BufWriter::with_capacity(BUFFER, file), owner, policy, now, until);
                    if !saved.as_ref().is_ok_and(Option::is_some) {
                        // An opening would ignore it, but it takes room.
                        let _ = held.remove(POLICY);
                    }
                    saved
                })
            }
        };
        match saved {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                let ms = began.elapsed().as_millis() as u64;
                tracing::info!(bytes, ms, "saved what the SSD's policy has learned");
            }
            Err(error) => tracing::warn!(
                %error,
                "what the SSD's policy has learned could not be saved in the file {POLICY}: after the next \
                 opening it learns anew"
            ),
        }
    }

    /// Tells `policy` what its predecessor knew, if the file is that of `owner`.
    pub(crate) fn tell(&self, owner: &Owner, policy: &mut dyn SlotPolicy) {
        let told = match self {
            Self::Memory(memory) => match memory.policy_file() {
                Some(bytes) => read(Cursor::new(bytes), owner, policy),
                None => return,
            },
            Self::Directory(held) => match held.file(POLICY, OFlags::RDONLY | ITSELF) {
                // It is missing after a close by an earlier version, or on another machine.
                Err(error) if error.kind() == ErrorKind::NotFound => return,
                file => file.and_then(|file| {
                    regular(&file)?;
                    read(file, owner, policy)
                }),
            },
        };
        match told {
            Ok(bytes) => tracing::info!(bytes, "the SSD's policy continues with what it had learned"),
            Err(why) => tracing::info!(%why, "the file {POLICY} is not used: the SSD's policy learns anew"),
        }
    }
}

/// Opens no other file through a link, and does not wait for the other end of a pipe.
const ITSELF: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);

fn regular(file: &File) -> Result<()> {
    if file.metadata()?.is_file() { Ok(()) } else { Err(unfit("it is not a regular file")) }
}

fn unfit(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// Writes the file. Returns its length, `None` if the policy saves nothing.
fn write(
    out: impl Write,
    owner: &Owner,
    policy: &dyn SlotPolicy,
    now: Millis,
    until: Option<Instant>,
) -> Result<Option<u64>> {
    let mut sink = Sink { out, crc: 0, bytes: 0, ended: Ok(()) };
    let header = owner.header();
    sink.put(&header);
    let saves = policy.save(now, &mut |bytes| {
        // The policy cannot be stopped, but it takes longer to write than to say what it knows.
        if until.is_some_and(|until| Instant::now() > until) && sink.ended.is_ok() {
            sink.ended = Err(Error::new(ErrorKind::TimedOut, format!("it takes over {WRITE_MAX:?}")));
        }
        sink.put(bytes);
    });
    let body = sink.bytes - header.len() as u64;
    sink.put(&body.to_le_bytes());
    let crc = sink.crc;
    sink.put(&crc.to_le_bytes());
    let Sink { mut out, bytes, ended, .. } = sink;
    ended?;
    out.flush()?;
    Ok(saves.then_some(bytes))
}

struct Sink<W> {
    out: W,
    /// Of everything written so far.
    crc: u32,
    bytes: u64,
    /// After a failure nothing more is written.
    ended: Result<()>,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) {
        if self.ended.is_ok() {
            self.crc = crc32c::crc32c_append(self.crc, bytes);
            self.bytes += bytes.len() as u64;
            self.ended = self.out.write_all(bytes);
        }
    }
}

/// Tells `policy` what the file says, if it is sound and that of `owner`. Returns the file's length.
fn read(mut file: impl Read + Seek, owner: &Owner, policy: &mut dyn SlotPolicy) -> Result<u64> {
    let header = owner.header();
    let bytes = file.seek(SeekFrom::End(0))?;
    let at_body = header.len() as u64;
    let body = bytes.checked_sub(at_body + TRAILER_BYTES).ok_or_else(|| unfit("it is too short"))?;
    let _ = file.seek(SeekFrom::Start(0))?;
    let mut found = vec![0; header.len()];
    file.read_exact(&mut found)?;
    check_header(&header, &found)?;
    // The whole file first: half of what was known would mislead the policy about the rest.
    let (mut crc, mut buffer) = (crc32c::crc32c(&header), vec![0; BUFFER]);
    let mut left = body;
    while left > 0 {
        let n = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
        file.read_exact(&mut buffer[..n])?;
        crc = crc32c::crc32c_append(crc, &buffer[..n]);
        left -= n as u64;
    }
    let (mut length, mut sum) = ([0; 8], [0; 4]);
    file.read_exact(&mut length)?;
    file.read_exact(&mut sum)?;
    if u64::from_le_bytes(length) != body || u32::from_le_bytes(sum) != crc32c::crc32c_append(crc, &length) {
        return Err(unfit("it is damaged"));
    }
    let _ = file.seek(SeekFrom::Start(at_body))?;
    let mut body = BufReader::with_capacity(BUFFER, file.take(body));
    // A read error ends it like a file that is too short.
    if policy.restore(&mut |buf| body.read(buf).unwrap_or(0)) {
        Ok(bytes)
    } else {
        Err(unfit("the policy cannot use all of it"))
    }
}

fn check_header(expected: &[u8], found: &[u8]) -> Result<()> {
    let same = |from: usize, to: usize| expected[from..to] == found[from..to];
    let why = if !same(0, 12) {
        "it is no file of this kind, or of another version"
    } else if !same(16, 48) {
        "it is another store's or another SSD's"
    } else if !same(12, 16) {
        "it is not of the last close"
    } else if expected[48..] != found[48..] {
        "it is another policy's, or for another number of slots"
    } else {
        return Ok(());
    };
    Err(unfit(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_policy::{Access, Cause, Location, PageId, SlotId, Verdict};

    /// Saves these bytes, and notes what it is told.
    #[derive(Debug, Default)]
    struct Knows(Vec<u8>);

    type Asked<'a> = &'a mut dyn FnMut(SlotId) -> bool;

    impl SlotPolicy for Knows {
        fn read(&mut self, _: PageId, _: Option<Location>, _: Access, _: Millis) {}

        fn consider(&mut self, _: PageId, _: Cause, _: usize, _: Asked<'_>, _: Millis) -> Verdict {
            Verdict::Reject
        }

        fn inserted(&mut self, _: PageId, _: SlotId, _: Millis) {}

        fn removed(&mut self, _: PageId, _: bool, _: Millis) {}

        fn start_zone(&mut self, _: usize, _: Asked<'_>, _: Millis, _: &mut Vec<SlotId>) {}

        fn next_victims(&mut self, _: usize, _: Millis, _: &mut Vec<SlotId>) {}

        fn save(&self, _: Millis, out: &mut dyn FnMut(&[u8])) -> bool {
            self.0.chunks(3).for_each(out);
            !self.0.is_empty()
        }

        fn restore(&mut self, from: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
            let mut buf = [0; 5];
            loop {
                match from(&mut buf) {
                    0 => return true,
                    n => self.0.extend_from_slice(&buf[..n]),
                }
            }
        }

        fn memory_bytes(&self) -> usize {
            0
        }

        fn validate(&self) -> std::result::Result<(), String> {
            Ok(())
        }
    }

    fn owner() -> Owner {
        let id = |digit: &str| format!("{0}{0}-{1}-{1}-{1}-{0}{0}{0}", digit.repeat(4), digit.repeat(4));
        let (store, ssd) = (id("1"), id("2"));
        Owner { store, ssd, closed: 7, slots: 64, policy: SsdPolicy::Auto }
    }

    fn knows() -> Knows {
        Knows((0..=255).cycle().take(1000).collect())
    }

    /// What a policy learns from `file`, if it belongs to `owner`.
    fn told(file: &PolicyFile, owner: &Owner) -> Vec<u8> {
        let mut policy = Knows::default();
        file.tell(owner, &mut policy);
        policy.0
    }

    #[test]
    fn no_file_belongs_to_a_store_that_was_not_closed_or_has_no_ssd() {
        let of = |closed, ssd: Option<&str>, slots| {
            let new = Manifest::new("store".into(), pagetier_page::PageSize::MIN);
            let manifest = Manifest { closed, ssd: ssd.map(str::to_owned), ..new };
            Owner::of(&manifest, slots, SsdPolicy::Auto).is_some()
        };
        assert!(of(1, Some("ssd"), 64));
        assert!(!of(0, Some("ssd"), 64) && !of(1, None, 64) && !of(1, Some("ssd"), 0));
    }

    #[test]
    fn only_the_opening_after_this_close_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldDir::open(directory.path(), crate::seam::Seam::default()).unwrap();
        for file in [PolicyFile::Directory(held), PolicyFile::Memory(Arc::default())] {
            assert!(told(&file, &owner()).is_empty(), "there is none");
            file.save(&owner(), &knows(), Millis(0));
            assert_eq!(told(&file, &owner()), knows().0);
            let other = |change: &dyn Fn(&mut Owner)| {
                let mut owner = owner();
                change(&mut owner);
                told(&file, &owner)
            };
            assert!(other(&|owner| owner.closed = 8).is_empty());
            assert!(other(&|owner| owner.slots = 65).is_empty());
            assert!(other(&|owner| owner.policy = SsdPolicy::None).is_empty());
            assert!(other(&|owner| std::mem::swap(&mut owner.ssd, &mut owner.store)).is_empty());
            // A policy that saves nothing leaves no file.
            file.save(&owner(), &Knows::default(), Millis(0));
            assert!(told(&file, &owner()).is_empty());
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let memory = Arc::new(MemoryManifest::default());
        PolicyFile::Memory(Arc::clone(&memory)).save(&owner(), &Knows(vec![1, 2, 3]), Millis(0));
        let bytes = memory.policy_file().unwrap();
        let fields = [&b"PGTIERPL"[..], &[1, 0, 0, 0, 7, 0, 0, 0], &[0x11; 16], &[0x22; 16]].concat();
        let rest = [&[64, 0, 0, 0, 4, 0, 0, 0][..], b"auto", &[1, 2, 3], &[3, 0, 0, 0, 0, 0, 0, 0]].concat();
        let (summed, sum) = bytes.split_at(bytes.len() - 4);
        assert_eq!(summed, [fields, rest].concat());
        assert_eq!(sum, crc32c::crc32c(summed).to_le_bytes());
    }

    #[test]
    fn any_damage_is_noticed() {
        let memory = Arc::new(MemoryManifest::default());
        let file = PolicyFile::Memory(Arc::clone(&memory));
        file.save(&owner(), &knows(), Millis(0));
        let sound = memory.policy_file().unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << (at % 8);
            memory.set_policy_file(Some(damaged));
            assert!(told(&file, &owner()).is_empty(), "byte {at} changed");
            memory.set_policy_file(Some(sound[..at].to_vec()));
            assert!(told(&file, &owner()).is_empty(), "cut to {at} bytes");
        }
        memory.set_policy_file(Some([&sound[..], &[0]].concat()));
        assert!(told(&file, &owner()).is_empty(), "too long");
        memory.set_policy_file(Some(sound));
        assert_eq!(told(&file, &owner()), knows().0);
    }

    #[test]
    fn a_writer_that_fails_or_takes_too_long_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> Result<usize> {
                Err(ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> Result<()> {
                Ok(())
            }
        }
        let kind = |saved: Result<Option<u64>>| saved.unwrap_err().kind();
        assert_eq!(kind(write(Full, &owner(), &knows(), Millis(0), None)), ErrorKind::StorageFull);
        let past = Instant::now().checked_sub(Duration::from_secs(1));
        let late = write(Vec::new(), &owner(), &knows(), Millis(0), Some(past.unwrap()));
        assert_eq!(kind(late), ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_no_regular_file_is_neither_read_nor_written() {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldDir::open(directory.path(), crate::seam::Seam::default()).unwrap();
        let (target, at) = (directory.path().join("target"), directory.path().join(POLICY));
        std::fs::write(&target, b"another's").unwrap();
        std::os::unix::fs::symlink(&target, &at).unwrap();
        let file = PolicyFile::Directory(Arc::clone(&held));
        assert!(told(&file, &owner()).is_empty());
        file.save(&owner(), &knows(), Millis(0));
        assert_eq!(std::fs::read(&target).unwrap(), b"another's");
        let _ = std::fs::remove_file(&at);
        std::fs::create_dir(&at).unwrap();
        file.save(&owner(), &knows(), Millis(0));
        assert!(told(&file, &owner()).is_empty());
        assert!(at.is_dir());
    }
}
