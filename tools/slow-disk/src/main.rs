//! A hard disk's latency on a file: a FUSE file system with one file, `disk`, which serves one request at a
//! time.
//!
//! A request takes the service time however long the file behind it takes, so a queue of them waits as it
//! does before a real disk. The file system is there until it is unmounted. A killed process leaves a dead
//! mount, whose requests fail: a disk that has vanished.

use clap::Parser;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, KernelConfig, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, SessionACL, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How long the kernel may remember names and attributes, which never change.
const FOREVER: Duration = Duration::from_secs(1 << 30);
const DISK: INodeNo = INodeNo(2);
/// The largest request, in bytes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// A hard disk's latency on a file: a FUSE file MOUNT/disk that serves one request at a time.
#[derive(Parser)]
struct Args {
    /// The file that has the disk's contents and size
    #[arg(long)]
    backing: PathBuf,

    /// The folder to mount at; it is made if it is missing
    #[arg(long)]
    mount: PathBuf,

    /// The time that each request takes, in milliseconds
    #[arg(long, default_value_t = 5.0)]
    service_ms: f64,
}

struct SlowDisk {
    file: File,
    bytes: u64,
    service: Duration,
    /// When the disk has served every request so far.
    free_at: Mutex<Instant>,
}

impl SlowDisk {
    /// Carries a request out, and returns once the disk would have.
    fn serve<T>(&self, request: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = Instant::now().max(*free_at) + self.service;
        let result = request();
        std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
        result
    }

    fn attributes(&self, of: INodeNo) -> FileAttr {
        let (kind, size, perm, nlink) = match of {
            DISK => (FileType::RegularFile, self.bytes, 0o644, 1),
            _ => (FileType::Directory, 4096, 0o755, 2),
        };
        FileAttr {
            ino: of,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for SlowDisk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel's own limits are smaller by default. What it refuses, it replaces with the nearest.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        // The disk does the waiting: the kernel must not hold requests back.
        let _ = config.set_max_background(256);
        let _ = config.set_congestion_threshold(192);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match (parent, name.to_str()) {
            (INodeNo::ROOT, Some("disk")) => {
                reply.entry(&FOREVER, &self.attributes(DISK), fuser::Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, of: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(of));
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let all = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (DISK, FileType::RegularFile, "disk"),
        ];
        for (next, (ino, kind, name)) in (1..).zip(all).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Each request reaches the disk, and writers do not wait for one another in the kernel.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; self.bytes.saturating_sub(offset).min(size.into()) as usize];
        match self.serve(|| self.file.read_exact_at(&mut bytes, offset)) {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.saturating_add(data.len() as u64) > self.bytes {
            return reply.error(Errno::ENOSPC);
        }
        match self.serve(|| self.file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    /// What it has taken it keeps: the file behind it outlives the process, and no power cut is tried on it.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let Args { backing, mount, service_ms } = Args::parse();
    std::fs::create_dir_all(&mount)?;
    let file = File::options().read(true).write(true).open(backing)?;
    let bytes = file.metadata()?.len();
    let service = Duration::from_secs_f64(service_ms / 1e3);
    let disk = SlowDisk { file, bytes, service, free_at: Mutex::new(Instant::now()) };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("slow-disk".into()), MountOption::NoSuid];
    config.acl = SessionACL::All;
    fuser::mount(disk, mount, &config)
}
