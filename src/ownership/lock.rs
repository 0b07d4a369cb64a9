//! One store at a time per directory and device, and no I/O by a store that was dropped.
//!
//! | what | how |
//! | --- | --- |
//! | the store's directory | `flock` on its file `lock`, which names the holder's process and says whether it is leaving |
//! | a regular file used as a device | `flock` on it: a copied directory may refer to the same file |
//! | a block device | opened with O_EXCL: neither mounted, nor part of an array, nor another store's; and `flock`, for readers |
//! | a ready-made device | its [`Occupancy`](pagetier_devio::Occupancy) |
//!
//! **Leaving.** When a store is dropped, its [`Fence`] closes and no further operation starts. Operations in
//! flight continue in the kernel, so the locks pass to the devices, which release them when the last
//! operation has completed. An opener that meets a leaving store waits; one that meets a running store is
//! refused at once.
//!
//! **A refused open** removes the files and directories that it created, while it still has the locks.
//!
//! **After `kill -9`** the kernel is slow to close the files of a process that used io_uring: over a second
//! on a busy disk. An opener therefore also waits for a lock whose holder is dead.

use super::held_dir::{At, HeldDir};
use crate::error::OpenError;
use pagetier_devio::files::Identity;
use pagetier_devio::{Fence, InFlight, Joint, Kept, Occupied, Owner, SharedDevice};
use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;
use std::future::Future;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long an opener waits for a leaving store, or for the kernel to clean up after a killed process.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The polling interval of these waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a block device that is not mounted may stay busy: the kernel may be cleaning up after a killed
/// process.
const BUSY_MAX: Duration = Duration::from_secs(3);

/// The name of a directory's lock file.
const LOCK: &str = "lock";

const RUNNING: u8 = b'R';
const LEAVING: u8 = b'L';

/// Lives as long as a part of the store: [`Ownership::left`] waits until every clone is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present(Arc<watch::Sender<()>>);

/// What one open holds: the right to do I/O, and its locks.
#[derive(Debug)]
pub(crate) struct Ownership {
    present: Present,
    fence: Fence,
    held: Mutex<Option<Held>>,
    /// What the open has created so far, in case it is refused.
    created: Mutex<Created>,
    owner: Owner,
}

/// What an open created.
#[derive(Debug, Default)]
pub(crate) struct Created {
    files: Vec<(At, Identity)>,
    /// The directory whose lock file is new.
    lock: Option<Arc<HeldDir>>,
    /// From the outermost to the innermost.
    directories: Vec<PathBuf>,
}

impl Created {
    /// Removes all of it, unless it has been put to use.
    fn remove(self) {
        // Innermost first: a directory can be removed only when empty, and the lock goes last among the
        // files, since it keeps other openers out while we remove.
        self.files.iter().for_each(|(at, created)| at.remove_empty(*created));
        if let Some(directory) = self.lock {
            let _ = directory.remove(LOCK);
        }
        for directory in self.directories.iter().rev() {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    devices: Vec<SharedDevice>,
    locks: Locks,
}

/// Dropped in field order: an opener that gets the directory also gets the devices.
#[derive(Debug, Default)]
struct Locks {
    devices: Vec<DeviceLock>,
    directory: Option<DirectoryLock>,
    _read: ReadLocks,
    _present: Option<Present>,
}

/// The shared locks of a read-only open, the directory's last, as in [`Locks`].
#[derive(Debug, Default)]
pub(crate) struct ReadLocks {
    pub(crate) _held: Vec<FileLock>,
}

/// A lock on an open file, released when dropped. Closing the file would not release it while a child process
/// that another thread starts shares the file, which lasts until the child runs its program. (Only that ends
/// the claim on a block device, for which an opener waits.)
#[derive(Debug)]
pub(crate) struct FileLock {
    fd: OwnedFd,
    /// The process that took the lock. A child process that runs no program and drops its copy of the store
    /// must not release the lock of its parent.
    pid: u32,
}

impl FileLock {
    /// For the lock that was taken on `fd`.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, pid: std::process::id() }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

#[derive(Debug)]
struct DeviceLock {
    path: PathBuf,
    _lock: FileLock,
}

/// Ends the ownership when dropped: with the store, or with an open that failed or was cancelled.
#[derive(Debug)]
pub(crate) struct Leave(Arc<Ownership>);

impl Leave {
    pub(crate) fn ownership(&self) -> Arc<Ownership> {
        Arc::clone(&self.0)
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        drop(self.0.leave());
    }
}

impl Ownership {
    /// Begins with the locks of a read-only open, if it is one.
    pub(crate) fn new(read: ReadLocks) -> (Arc<Self>, Leave) {
        let present = Present::default();
        let locks = Locks { _read: read, _present: Some(present.clone()), ..Locks::default() };
        let held = Mutex::new(Some(Held { locks, ..Held::default() }));
        let (fence, created, owner) = (Fence::default(), Mutex::default(), Owner::here());
        let ownership = Arc::new(Self { present, fence, held, created, owner });
        (Arc::clone(&ownership), Leave(ownership))
    }

    pub(crate) async fn lock_directory(&self, directory: &Arc<HeldDir>) -> Result<(), OpenError> {
        let (lock, is_new) = DirectoryLock::take(directory).await?;
        match &mut *self.held.lock() {
            Some(held) => held.locks.directory = Some(lock),
            // The ownership has ended: nothing would release what is taken now.
            None => return Err(already_open(directory.path(), None)),
        }
        if is_new {
            self.created.lock().lock = Some(Arc::clone(directory));
        }
        Ok(())
    }

    /// Notes that the open created this file.
    pub(crate) fn created_file(&self, at: &At) {
        // Note the identity, not the name: a refused open may remove only the files that it has made.
        self.created.lock().files.extend(at.identity().map(|file| (at.clone(), file)));
    }

    /// Notes that the open created these directories, from the outermost to the innermost.
    pub(crate) fn created_directories(&self, directories: Vec<PathBuf>) {
        self.created.lock().directories.extend(directories);
    }

    /// What was created is in use from here on. Returns it, in case it is not put to use after all.
    pub(crate) fn keep_created(&self) -> Created {
        std::mem::take(&mut *self.created.lock())
    }

    /// What [`Ownership::keep_created`] returned is not in use.
    pub(crate) fn created_in_vain(&self, created: Created) {
        *self.created.lock() = created;
    }

    /// Removes what was created since it was last kept.
    pub(crate) fn remove_created(&self) {
        std::mem::take(&mut *self.created.lock()).remove();
    }

    /// The device behind the ownership's fence: no operation begins once the store has been dropped.
    pub(crate) fn guard(&self, device: SharedDevice) -> SharedDevice {
        self.fence.guard(device)
    }

    /// The first user's view of a device with two users, behind the ownership's fence.
    pub(crate) fn guard_joint(&self, joint: &Arc<Joint>) -> SharedDevice {
        self.fence.guard_joint(joint)
    }

    /// Takes `device` exclusively for this store, along with the file or block device at `path`, if given.
    pub(crate) async fn take(&self, device: &SharedDevice, path: Option<&At>) -> Result<(), OpenError> {
        // Two processes meet only at the file or block device: the occupancy below is known to this process
        // alone.
        if let Some(path) = path {
            self.lock_device(path).await?;
        }
        if !self.has(device) {
            self.occupy(device).await?;
        }
        match &mut *self.held.lock() {
            Some(held) if held.devices.iter().any(|held| Arc::ptr_eq(held, device)) => {}
            Some(held) => held.devices.push(Arc::clone(device)),
            None => {
                // The ownership has ended, for example because the store was dropped during an exchange of
                // the SSD.
                device.occupancy().leave(Arc::new(()));
                return Err(already_open(Path::new(device.name()), None));
            }
        }
        Ok(())
    }

    /// Holds the locks until the result is dropped, even if the store is dropped first. `None`: the store is
    /// already dropped.
    pub(crate) fn hold_locks(&self) -> Option<Vec<InFlight>> {
        let held = self.held.lock();
        held.as_ref().map(|held| held.devices.iter().map(|device| device.occupancy().enter()).collect())
    }

    /// Runs `act` unless the store has been dropped, and delays a drop until `act` returns.
    pub(crate) fn while_open<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        self.fence.while_open(act)
    }

    /// Begins work on the store's files, unless the store has been dropped. Such work is not waited for by a
    /// drop: it gets what keeps the locks until it ends.
    pub(crate) fn begin<T>(&self, work: impl FnOnce(Vec<InFlight>) -> T) -> Option<T> {
        self.while_open(|| work(self.hold_locks().unwrap_or_default()))
    }

    /// The token that a part of the store holds as long as it exists.
    pub(crate) fn present(&self) -> Present {
        self.present.clone()
    }

    /// Waits until nothing of the open is left: no lock and no part of the store.
    pub(crate) fn left(&self) -> impl Future<Output = ()> + Send + Sync + 'static + use<> {
        let mut present = self.present.0.subscribe();
        async move { while present.changed().await.is_ok() {} }
    }

    fn has(&self, device: &SharedDevice) -> bool {
        let held = self.held.lock();
        held.as_ref().is_some_and(|held| held.devices.iter().any(|held| Arc::ptr_eq(held, device)))
    }

    async fn occupy(&self, device: &SharedDevice) -> Result<(), OpenError> {
        // Only this process knows the occupancy.
        let refused = || already_open(Path::new(device.name()), Some(std::process::id()));
        let occupancy = device.occupancy();
        while let Err(by) = occupancy.occupy() {
            // A store that runs may do so for months. One that leaves takes seconds.
            if by == Occupied::Running {
                return Err(refused());
            }
            tokio::time::timeout(WAIT_MAX, occupancy.vacated()).await.map_err(|_| refused())?;
        }
        Ok(())
    }

    /// Locks the device at `path`. A device that was locked before (an SSD put back) is locked again, because
    /// another device may have taken its place.
    async fn lock_device(&self, at: &At) -> Result<(), OpenError> {
        if let Some(held) = &mut *self.held.lock() {
            // Release the old lock before the new one is tried, or the attempt would meet our own lock.
            held.locks.devices.retain(|lock| lock.path != at.shown);
        }
        let lock = DeviceLock { path: at.shown.clone(), _lock: lock_device(at).await? };
        if let Some(held) = &mut *self.held.lock() {
            held.locks.devices.push(lock);
        }
        Ok(())
    }

    /// Closes the fence; the locks are released when the last operation in flight completes, which the result
    /// waits for, for at most 30 s. Idempotent.
    pub(crate) fn leave(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let held = if self.owner.is_here() {
            // First, so that the operations in flight, which are waited for below, can only become fewer
            // (I18).
            self.fence.close();
            self.remove_created();
            self.held.lock().take()
        } else {
            self.abandon();
            None
        };
        let devices = held.map(Held::release).unwrap_or_default();
        let vacated = async move {
            for device in &devices {
                device.occupancy().vacated().await;
            }
        };
        async move {
            let _ = tokio::time::timeout(WAIT_MAX, vacated).await;
        }
    }
}

impl Ownership {
    /// In a process forked from the one that opened the store: closes the descriptors of the locks, which the
    /// parent keeps. A child that ran on with them would keep the store locked after its parent's death.
    fn abandon(&self) {
        // A thread that does not exist here may hold the mutex.
        if let Some(held) = self.held.try_lock().and_then(|mut held| held.take()) {
            let Held { devices, locks: Locks { devices: of_devices, directory, _read, _present } } = held;
            drop((of_devices, directory, _read));
            std::mem::forget((devices, _present));
        }
    }
}

impl Held {
    /// Passes the locks to the devices, which release them after their last operations. Returns the devices.
    fn release(self) -> Vec<SharedDevice> {
        let Self { devices, locks } = self;
        if let Some(directory) = &locks.directory {
            // Tells an opener that waiting is worth its while; the kernel's lock alone does not say so.
            directory.leave();
        }
        // One set of locks, shared by all devices: the last operation on any of them releases all.
        let kept: Kept = Arc::new(locks);
        for device in &devices {
            device.occupancy().leave(Arc::clone(&kept));
        }
        devices
    }
}

fn already_open(path: &Path, owner: Option<u32>) -> OpenError {
    OpenError::AlreadyOpen { path: path.to_owned(), owner }
}

/// The lock on a store's directory. The file `lock` holds a byte that says whether its holder is leaving, the
/// holder's process id, and that process's start time.
#[derive(Debug)]
struct DirectoryLock(FileLock);

impl DirectoryLock {
    /// Takes the lock; returns whether its file is new.
    async fn take(directory: &Arc<HeldDir>) -> Result<(Self, bool), OpenError> {
        let failed = |what| move |e| OpenError::directory(directory.path(), what, e);
        loop {
            // Exclusively first, to learn whether it is new: a refused open removes only what it created.
            let file = directory.file(LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
            let (file, is_new) = match file {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                    (directory.file(LOCK, OFlags::RDWR | OFlags::CREATE), false)
                }
                file => (file, true),
            };
            let fd = OwnedFd::from(file.map_err(failed("is not writable"))?);
            let locked = flock(&fd, || Holder::read(&fd).is_running()).await;
            if !locked.map_err(|e| failed("cannot be locked")(e.into()))? {
                let signed = Holder::read(&fd);
                let owner = if let Holder::Process { pid, .. } = signed { Some(pid) } else { None };
                return Err(already_open(directory.path(), owner.or_else(|| owner_of(&fd))));
            }
            let lock = Self(FileLock::new(fd));
            // A refused open removes the file that it created: a lock on that one excludes no opener.
            let named = directory.identity_of(LOCK).map_err(failed("cannot be locked"))?;
            if rustix::fs::fstat(&lock.0.fd).is_ok_and(|stat| Some(Identity::of(&stat)) == named) {
                lock.sign();
                return Ok((lock, is_new));
            }
        }
    }

    /// Writes the holder's identity. Only other openers' diagnosis depends on it, since the kernel keeps the
    /// lock itself; a failure on a full disk does not matter.
    fn sign(&self) {
        let pid = std::process::id();
        let text = format!("{} {pid} {}\n", char::from(RUNNING), started_at(pid).unwrap_or_default());
        let _ = rustix::fs::ftruncate(&self.0.fd, 0);
        self.write(text.as_bytes());
    }

    /// Says that the holder is leaving.
    fn leave(&self) {
        // A full file system that copies on write (btrfs) takes not even one byte, and the next opener would
        // be refused by a store that runs no more. A file without a holder makes it wait, too.
        if !self.write(&[LEAVING]) {
            let _ = rustix::fs::ftruncate(&self.0.fd, 0);
        }
    }

    /// Returns whether the bytes were written.
    fn write(&self, bytes: &[u8]) -> bool {
        // The kernel would answer a write beyond the limit with a signal that ends the process.
        pagetier_devio::check_file_bytes(bytes.len() as u64).is_ok()
            && rustix::io::pwrite(&self.0.fd, bytes, 0) == Ok(bytes.len())
    }
}

/// The holder of a directory's lock according to the lock file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Leaving,
    Process {
        pid: u32,
        started: u64,
    },
    /// Not recorded yet.
    Unknown,
}

impl Holder {
    fn read(fd: &OwnedFd) -> Self {
        let mut bytes = [0; 64];
        let len = rustix::io::pread(fd, &mut bytes, 0).unwrap_or(0);
        Self::parse(&bytes[..len])
    }

    fn parse(bytes: &[u8]) -> Self {
        // Its process may run on for long, but it gives this store up.
        if bytes.first() == Some(&LEAVING) {
            return Self::Leaving;
        }
        let mut words = std::str::from_utf8(bytes).unwrap_or_default().split_ascii_whitespace().skip(1);
        let (pid, started) = (words.next().map(str::parse), words.next().map(str::parse));
        match (pid, started) {
            (Some(Ok(pid)), Some(Ok(started))) => Self::Process { pid, started },
            _ => Self::Unknown,
        }
    }

    fn is_running(self) -> bool {
        match self {
            // The number alone is not enough: after a reboot or a long time, another process may have it.
            Self::Process { pid, started } => started_at(pid) == Some(started),
            Self::Leaving | Self::Unknown => false,
        }
    }
}

/// When the process started, in the kernel's ticks; `None`: it is dead or about to be.
fn started_at(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before it may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") { None } else { fields.nth(18)?.parse().ok() }
}

/// Locks the regular file or block device against all other stores, in any directory.
async fn lock_device(at: &At) -> Result<FileLock, OpenError> {
    let path = &at.shown;
    let open = |flags| at.open(OFlags::RDWR | flags);
    let failed = |e: Errno| OpenError::DeviceInUse { device: path.to_owned(), why: e.to_string() };
    // Opened without O_EXCL to find out what it is: for a regular file that flag has no meaning without
    // O_CREAT.
    let fd = open(OFlags::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        // Our own descriptor would keep the device busy.
        drop(fd);
        let until = Instant::now() + BUSY_MAX;
        loop {
            match open(OFlags::EXCL) {
                Ok(fd) => return lock_claimed(fd, path, until).await,
                Err(Errno::INTR) => {}
                // Waiting would not help. Without this case, the user would wait three seconds for a vaguer
                // message.
                Err(Errno::BUSY) if is_mounted(stat.st_rdev) => {
                    return Err(OpenError::DeviceInUse {
                        device: path.to_owned(),
                        why: "it is mounted".into(),
                    });
                }
                Err(Errno::BUSY) if Instant::now() >= until => {
                    let why = "another store, an array or a volume uses it".into();
                    return Err(OpenError::DeviceInUse { device: path.to_owned(), why });
                }
                Err(Errno::BUSY) => sleep(LOOK_EVERY).await,
                Err(e) => return Err(failed(e)),
            }
        }
    }
    if !flock(&fd, || flock_holder(stat.st_ino).is_some()).await.map_err(failed)? {
        return Err(already_open(path, owner_of(&fd)));
    }
    Ok(FileLock::new(fd))
}

/// Locks a block device that is claimed for writing against those that read it.
async fn lock_claimed(fd: OwnedFd, path: &Path, until: Instant) -> Result<FileLock, OpenError> {
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(FileLock::new(fd)),
            Err(Errno::INTR) => {}
            // udev, too, holds a shared lock for a moment, while it looks at a device.
            Err(Errno::WOULDBLOCK) if Instant::now() < until => sleep(LOOK_EVERY).await,
            Err(Errno::WOULDBLOCK) => return Err(already_open(path, owner_of(&fd))),
            Err(e) => return Err(OpenError::DeviceInUse { device: path.to_owned(), why: e.to_string() }),
        }
    }
}

/// Takes an exclusive `flock` on `fd`. Waits at most [`WAIT_MAX`], and only while no running holder is known.
/// Returns whether it has the lock.
async fn flock(fd: &OwnedFd, holder_runs: impl Fn() -> bool) -> Result<bool, Errno> {
    let until = Instant::now() + WAIT_MAX;
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(e),
        }
        // Ask at each turn: the holder may have begun to leave, or died, meanwhile.
        if holder_runs() || Instant::now() >= until {
            return Ok(false);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The process that holds a lock on the open file, if it runs and this process can see it.
pub(crate) fn owner_of(fd: &OwnedFd) -> Option<u32> {
    flock_holder(rustix::fs::fstat(fd).ok()?.st_ino)
}

/// A running process that holds an `flock` on the inode, as far as this process can see.
fn flock_holder(inode: u64) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        // A line is, for example: `1: FLOCK  ADVISORY  WRITE 1234 08:01:131 0 EOF`. Only the inode is
        // compared: the device number there differs from the file's on btrfs.
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        let of_file = file.rsplit(':').next().and_then(|no| no.parse().ok()) == Some(inode);
        pid.parse().ok().filter(|pid| of_file && started_at(*pid).is_some())
    })
}

/// Whether a file system is mounted from the device with this number.
fn is_mounted(device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_running_only_if_its_process_is_the_one_that_signed() {
        let me = std::process::id();
        let started = started_at(me).unwrap();
        let signed = |pid, started| Holder::parse(format!("R {pid} {started}\n").as_bytes());
        assert!(signed(me, started).is_running());
        assert!(!signed(me, started + 1).is_running(), "another process had the number before");
        assert!(!signed(u32::MAX, started).is_running());
        assert_eq!(Holder::parse(format!("L {me} {started}\n").as_bytes()), Holder::Leaving);
        for unsigned in ["", "R", "R 7", "R x y"] {
            assert_eq!(Holder::parse(unsigned.as_bytes()), Holder::Unknown);
        }
    }

    #[test]
    fn a_process_that_was_killed_and_not_waited_for_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(started_at(child.id()).is_some());
        child.kill().unwrap();
        while started_at(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(started_at(child.id()), None);
    }

    /// Whether an opener would get the lock on the file at `path`.
    fn is_free(path: &Path) -> bool {
        let file = std::fs::File::open(path).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    #[tokio::test]
    async fn a_dropped_lock_is_free_while_a_starting_child_process_shares_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("device");
        std::fs::write(&file, []).unwrap();
        let held = HeldDir::open(folder.path()).unwrap();
        let (directory, _) = DirectoryLock::take(&held).await.unwrap();
        let device = lock_device(&At::named(file.clone(), None)).await.unwrap();
        // A child process shares open files until it runs its program.
        let shared = [&directory.0, &device].map(|lock| lock.fd.try_clone().unwrap());
        drop((device, directory));
        assert!(is_free(&folder.path().join("lock")) && is_free(&file));
        drop(shared);
    }

    #[tokio::test]
    async fn a_child_process_that_drops_its_copy_of_a_lock_does_not_release_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = lock_device(&At::named(file.path().to_owned(), None)).await.unwrap();
        let copy = FileLock { fd: lock.fd.try_clone().unwrap(), pid: lock.pid + 1 };
        drop(copy);
        assert!(!is_free(file.path()));
        drop(lock);
        assert!(is_free(file.path()));
    }
}
