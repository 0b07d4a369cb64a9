//! Refuses devices that are in use or hold data, before a bench writes to them.
//!
//! A device in use is refused always: mounted, swapped to, claimed (O_EXCL), held by another one, or the same
//! of one of its partitions. A device that holds data is refused unless `PAGETIER_OVERWRITE=1` is set. It
//! holds data if `blkid` names a signature, or if any of the places is not zero that the store checks when it
//! formats a device.
//!
//! A store checks both once more when it opens the device. The benches never use `Create::Overwriting`: a
//! device whose data may be overwritten has those places zeroed first.

use super::describe::node_of;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes at both ends that must be zero, and the inner copies of btrfs' superblock.
const EDGE_BYTES: u64 = 1 << 20;
const INNER: [u64; 2] = [64 << 20, 256 << 30];

/// Why a bench does not run on a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{path}: refused, because it is in use: {by}", path = .path.display())]
    InUse { path: PathBuf, by: String },
    #[error(
        "{path}: refused, because it holds data ({what}); PAGETIER_OVERWRITE=1 allows a bench to destroy it",
        path = .path.display()
    )]
    HoldsData { path: PathBuf, what: String },
    #[error("{path}: {what}", path = .path.display())]
    Io { path: PathBuf, what: String, source: io::Error },
}

impl Refused {
    pub(crate) fn io(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Self {
        let (path, what) = (path.to_owned(), what.to_owned());
        move |source| Self::Io { path, what: format!("{what}: {source}"), source }
    }
}

/// Checks a block device, and makes it look blank if it holds data that may be overwritten.
pub(crate) fn block_device(path: &Path, may_overwrite: bool) -> Result<(), Refused> {
    let number = std::fs::metadata(path).map_err(Refused::io(path, "it cannot be examined"))?.rdev();
    let in_use = |by: String| Refused::InUse { path: path.to_owned(), by };
    if let Some(by) = user_of(number) {
        return Err(in_use(by));
    }
    // Only the kernel knows all claims: file systems, arrays, volumes, other stores.
    let claimed = rustix::fs::open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
    let device = match claimed {
        Ok(fd) => File::from(fd),
        Err(Errno::BUSY) => return Err(in_use("another program or the kernel has claimed it".to_owned())),
        Err(error) => return Err(Refused::io(path, "it cannot be opened")(error.into())),
    };
    match data_on(path, &device).map_err(Refused::io(path, "it cannot be read"))? {
        None => Ok(()),
        Some(_) if may_overwrite => blank(&device).map_err(Refused::io(path, "it cannot be written")),
        Some(what) => Err(Refused::HoldsData { path: path.to_owned(), what }),
    }
}

/// Checks a file, and empties it if it holds data that may be overwritten. Returns whether it is new.
pub(crate) fn file(path: &Path, may_overwrite: bool) -> Result<bool, Refused> {
    let Ok(metadata) = std::fs::metadata(path) else {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        return created.map(|_| true).map_err(Refused::io(path, "it cannot be created"));
    };
    let in_use = |by: &str| Refused::InUse { path: path.to_owned(), by: by.to_owned() };
    let path_full = path.canonicalize().map_err(Refused::io(path, "it cannot be examined"))?;
    if swaps().contains(&path_full) {
        return Err(in_use("the system swaps to it"));
    }
    let backs = |node: std::fs::DirEntry| {
        let backing = std::fs::read_to_string(node.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(backing.trim()) == path_full
    };
    if std::fs::read_dir("/sys/block").into_iter().flatten().flatten().any(backs) {
        return Err(in_use("a loop device lies on it"));
    }
    // A file without allocated blocks reads as zeros.
    if metadata.blocks() > 0 && !may_overwrite {
        return Err(Refused::HoldsData { path: path.to_owned(), what: format!("{} bytes", metadata.len()) });
    }
    let file = OpenOptions::new().write(true).open(path).map_err(Refused::io(path, "it cannot be opened"))?;
    // A store locks its files so.
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(in_use("another program has locked it")),
        locked => locked.map_err(|error| Refused::io(path, "it cannot be locked")(error.into()))?,
    }
    file.set_len(0).map(|()| false).map_err(Refused::io(path, "it cannot be emptied"))
}

/// Whether two paths lead to one device or file. Both tiers may have files in one folder.
pub(crate) fn are_same(one: &Path, other: &Path) -> bool {
    if !one.exists() {
        return one == other;
    }
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok().filter(|m| !m.is_dir())?;
        let is_device = metadata.file_type().is_block_device();
        Some(if is_device { (metadata.rdev(), 0) } else { (metadata.dev(), metadata.ino()) })
    };
    identity(one).is_some_and(|identity_of_one| Some(identity_of_one) == identity(other))
}

/// Zeroes the places where data would be noticed.
pub(crate) fn blank(device: &File) -> io::Result<()> {
    for (at, len) in places(device)? {
        device.write_all_at(&vec![0; len], at)?;
    }
    device.sync_all()
}

/// What uses a device, or one of its partitions, as far as `/proc` and `/sys` say.
fn user_of(number: u64) -> Option<String> {
    let node = node_of(number);
    let entries = node.iter().flat_map(|node| std::fs::read_dir(node).into_iter().flatten().flatten());
    let parts: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("partition").exists()).collect();
    let part_numbers = parts.iter().filter_map(|part| number_of_node(part));
    let numbers: Vec<u64> = std::iter::once(number).chain(part_numbers).collect();
    let is_own = |path: &str| {
        let metadata = std::fs::metadata(path).ok().filter(|m| m.file_type().is_block_device());
        metadata.is_some_and(|m| numbers.contains(&m.rdev()))
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    if let Some(mut words) = mounts.find(|words| words.clone().next().is_some_and(is_own)) {
        return Some(format!("it is mounted at {}", words.nth(1).unwrap_or("an unknown place")));
    }
    if swaps().iter().any(|path| is_own(&path.to_string_lossy())) {
        return Some("the system swaps to it".to_owned());
    }
    let holders = node.iter().chain(&parts).find_map(|node| {
        let holder = std::fs::read_dir(node.join("holders")).ok()?.flatten().next()?;
        Some(holder.file_name().to_string_lossy().into_owned())
    });
    holders.map(|holder| format!("{holder} lies on it"))
}

fn number_of_node(node: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(node.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn swaps() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(PathBuf::from).collect()
}

/// What a device holds: a signature that `blkid` names, a store, or bytes that are not zero.
fn data_on(path: &Path, device: &File) -> io::Result<Option<String>> {
    if let Some(signature) = signature(path) {
        return Ok(Some(signature));
    }
    for (at, len) in places(device)? {
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, at)?;
        if at == 0 && bytes.starts_with(b"PGTIER") {
            return Ok(Some("a Pagetier store".to_owned()));
        }
        if let Some(within) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(format!("byte {} is not zero", at + within as u64)));
        }
    }
    Ok(None)
}

/// The signature that `blkid` finds by probing the device. Without `blkid`, or if it fails, the check for
/// bytes that are not zero remains.
fn signature(path: &Path) -> Option<String> {
    let out = Command::new("blkid").args(["-p", "-o", "export"]).arg(path).output();
    let Ok(out) = out else {
        eprintln!(
            "note: blkid does not start; {} is only checked for bytes that are not zero",
            path.display()
        );
        return None;
    };
    // Status 2: nothing was found. Status 8: more than one signature was found, and none is printed.
    if out.status.code() == Some(8) {
        return Some("several signatures".to_owned());
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let name = |key: &str| text.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned));
    name("TYPE=").or_else(|| name("PTTYPE=").map(|table| format!("a partition table, {table}")))
}

/// The places (offset, length) to check, within the device.
fn places(device: &File) -> io::Result<Vec<(u64, usize)>> {
    let mut device = device;
    let size = device.seek(SeekFrom::End(0))?;
    let first = std::iter::once((0, EDGE_BYTES));
    let inner = INNER.into_iter().map(|at| (at, 128 << 10));
    let all = first.chain(inner).chain([(size.saturating_sub(EDGE_BYTES), EDGE_BYTES)]);
    let within = all.map(|(at, len)| (at, len.min(size.saturating_sub(at)) as usize));
    Ok(within.filter(|(_, len)| *len > 0).collect())
}
