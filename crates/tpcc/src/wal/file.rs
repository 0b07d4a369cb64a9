//! The log as segment files: `<16 hex digits of the first position>.log`, with contiguous records.
//!
//! A segment starts at a record's first byte and holds whole records, so the names alone identify segments. A
//! new one is started once the last is full; all but the last are complete and durable.

use super::{Records, WalError};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FileLog {
    dir: PathBuf,
    /// The start of each segment, oldest first; the last segment is open.
    starts: VecDeque<u64>,
    active: File,
    active_bytes: u64,
    /// Held while the log is open.
    _lock: OwnedFd,
}

impl FileLog {
    /// Opens the log in `dir`; also returns its start and end.
    pub(super) fn open(dir: &Path, first_lsn: u64) -> Result<(Self, u64, u64), WalError> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        let lock = lock(dir)?;
        let mut starts = list(dir)?;
        let mut end = starts.first().copied().unwrap_or(first_lsn);
        for (i, &start) in starts.iter().enumerate() {
            if start != end {
                return Err(WalError::Damaged { path: path(dir, start), at: end });
            }
            end = sound_end(dir, start)?;
            let bytes = end - start;
            let file = path(dir, start);
            if i + 1 < starts.len() {
                if fs::metadata(&file).map_err(at(&file))?.len() != bytes {
                    return Err(WalError::Damaged { path: file, at: end });
                }
            } else {
                cut(&file, bytes)?;
            }
        }
        if starts.is_empty() {
            create(dir, end)?;
            starts.push(end);
        }
        let oldest = starts[0];
        let last = starts[starts.len() - 1];
        let file = path(dir, last);
        let active = OpenOptions::new().append(true).open(&file).map_err(at(&file))?;
        let log =
            Self { dir: dir.into(), starts: starts.into(), active, active_bytes: end - last, _lock: lock };
        Ok((log, oldest, end))
    }

    pub(super) fn starts(&self) -> Vec<u64> {
        self.starts.iter().copied().collect()
    }

    pub(super) fn read(&self, start: u64) -> Result<Vec<u8>, WalError> {
        read(&self.dir, start)
    }

    /// Appends `bytes`, whole records of which the first starts at `start`, and syncs.
    pub(super) fn append(&mut self, start: u64, bytes: &[u8], segment_bytes: u64) -> Result<(), WalError> {
        if self.active_bytes >= segment_bytes {
            self.active = create(&self.dir, start)?;
            self.active_bytes = 0;
            self.starts.push_back(start);
        }
        let file = path(&self.dir, self.starts[self.starts.len() - 1]);
        self.active.write_all(bytes).map_err(at(&file))?;
        self.active.sync_data().map_err(at(&file))?;
        self.active_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Removes the segments whose records all precede `keep`; returns the log's new start.
    pub(super) fn truncate(&mut self, keep: u64) -> Result<u64, WalError> {
        while self.starts.len() > 1 && self.starts[1] < keep {
            let file = path(&self.dir, self.starts[0]);
            fs::remove_file(&file).map_err(at(&file))?;
            self.starts.pop_front();
        }
        Ok(self.starts[0])
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WalError {
    let path = path.to_path_buf();
    move |error| WalError::Io { path, source: Arc::new(error) }
}

/// Locks out a second opener, which would treat records being written as a torn tail.
fn lock(dir: &Path) -> Result<OwnedFd, WalError> {
    let file = dir.join("lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR).map_err(|e| at(&file)(e.into()))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(WalError::InUse { path: dir.into() }),
        Err(error) => Err(at(&file)(error.into())),
    }
}

fn path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:016x}.log"))
}

fn list(dir: &Path) -> Result<Vec<u64>, WalError> {
    let mut starts = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let name = entry.map_err(at(dir))?.file_name();
        let start = name.to_str().and_then(|n| n.strip_suffix(".log")).filter(|n| n.len() == 16);
        starts.extend(start.and_then(|n| u64::from_str_radix(n, 16).ok()));
    }
    starts.sort_unstable();
    Ok(starts)
}

fn read(dir: &Path, start: u64) -> Result<Vec<u8>, WalError> {
    let file = path(dir, start);
    let mut bytes = Vec::new();
    File::open(&file).and_then(|mut f| f.read_to_end(&mut bytes)).map_err(at(&file))?;
    Ok(bytes)
}

/// The end of a segment's sound records.
fn sound_end(dir: &Path, start: u64) -> Result<u64, WalError> {
    let bytes = read(dir, start)?;
    let mut records = Records::new(start, &bytes);
    records.by_ref().for_each(drop);
    Ok(records.position())
}

fn create(dir: &Path, start: u64) -> Result<File, WalError> {
    let file = path(dir, start);
    let created = OpenOptions::new().append(true).create(true).mode(0o600).open(&file).map_err(at(&file))?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(at(dir))?;
    Ok(created)
}

/// Cuts off a torn tail, durably.
fn cut(file: &Path, bytes: u64) -> Result<(), WalError> {
    let open = OpenOptions::new().write(true).open(file).map_err(at(file))?;
    if open.metadata().map_err(at(file))?.len() > bytes {
        open.set_len(bytes).and_then(|()| open.sync_all()).map_err(at(file))?;
    }
    Ok(())
}
