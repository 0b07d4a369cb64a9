//! An open image and its lock.

use crate::connection::{Connection, Pool, c_string};
use crate::error::{checked, kind_of, read_only};
use crate::flight::Flight;
use crate::{ImageName, RbdError};
use libc::c_int;
use pagetier_devio::DeviceErrorKind;
use rbd_sys as rbd;
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The image's metadata in which its owner says who it is.
const OWNER_KEY: &CStr = c"pagetier.owner";

/// How an image is opened.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ImageOptions {
    take_over: bool,
    read_only: bool,
    bytes_max: Option<u64>,
}

impl ImageOptions {
    /// Takes the image from its present owner: bans the owner's connection from the cluster, then breaks the
    /// lock. None of the owner's later writes lands, even if it was only stopped and resumes. Default:
    /// `false`.
    ///
    /// What only that owner had, in memory or on its SSD, is lost, as after the loss of the SSD.
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// Opens the image, or a snapshot of it, for reading alone: for `Builder::open_read_only` and
    /// `Builder::inspect`, and for a user of the cluster who may do no more. Takes no lock, so an image that
    /// is in use is refused; one that an owner opens meanwhile changes under the reader. A snapshot does not:
    /// make one to read a store that is in use. Default: `false`.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// The size in bytes up to which a store may grow the image. Default: no limit of its own. Ceph's quotas
    /// apply as well.
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = Some(bytes);
        self
    }
}

pub(crate) fn create(pool: &Pool, name: &ImageName, bytes: u64) -> Result<(), RbdError> {
    let failed = |source| RbdError::Image { image: name.to_string(), what: "create it", source };
    let image = c_string(&name.image).map_err(failed)?;
    let features = u64::from(rbd::RBD_FEATURE_LAYERING) | u64::from(rbd::RBD_FEATURE_EXCLUSIVE_LOCK);
    // Objects of 4 MiB, as everywhere.
    let mut order: c_int = 0;
    // SAFETY: an open pool, a string, and a valid place.
    checked(unsafe { rbd::rbd_create2(pool.raw(), image.as_ptr(), bytes, features, &raw mut order) })
        .map(drop)
        .map_err(failed)
}

/// An open image. Owns its lock.
pub(crate) struct Image {
    handle: rbd::rbd_image_t,
    pub(crate) name: String,
    pub(crate) flight: Arc<Flight>,
    bytes: AtomicU64,
    read_only: bool,
    bytes_max: u64,
    /// The bytes in a row that are in one object.
    unit: u64,
    /// `None` once [`Image::drop`] has passed it on.
    pool: Option<Pool>,
}

// SAFETY: librbd's handles may be used from any thread, by several at once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    pub(crate) fn open(
        connection: &Arc<Connection>,
        name: &ImageName,
        options: &ImageOptions,
    ) -> Result<Self, RbdError> {
        let pool = Pool::of(connection, name)?;
        let failed = |what| move |source| RbdError::Image { image: name.to_string(), what, source };
        if name.snapshot.is_some() && !options.read_only {
            return Err(RbdError::Snapshot(name.to_string()));
        }
        let image = c_string(&name.image).map_err(failed("open it"))?;
        let snapshot = name.snapshot.as_deref().map(c_string).transpose().map_err(failed("open it"))?;
        let snapshot = snapshot.as_deref().map_or(ptr::null(), CStr::as_ptr);
        let open = if options.read_only { rbd::rbd_open_read_only } else { rbd::rbd_open };
        let mut handle: rbd::rbd_image_t = ptr::null_mut();
        // SAFETY: an open pool, a string, a valid place, and a string or none.
        let opened = unsafe { open(pool.raw(), image.as_ptr(), &raw mut handle, snapshot) };
        checked(opened).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => RbdError::NotFound(name.to_string()),
            _ => failed("open it")(source),
        })?;
        let bytes_max = options.bytes_max.unwrap_or(u64::MAX);
        let mut image = Self {
            handle,
            name: name.to_string(),
            flight: Arc::default(),
            bytes: AtomicU64::new(0),
            read_only: options.read_only,
            bytes_max,
            unit: 0,
            pool: Some(pool),
        };
        match (options.read_only, &name.snapshot) {
            (true, Some(_)) => {}
            (true, None) => image.refuse_in_use()?,
            (false, _) => image.lock(options.take_over)?,
        }
        let (mut bytes, mut unit) = (0, 0);
        // SAFETY: an open image and a valid place.
        checked(unsafe { rbd::rbd_get_size(handle, &raw mut bytes) }).map_err(failed("learn its size"))?;
        image.bytes.store(bytes, Ordering::Relaxed);
        // SAFETY: an open image and a valid place.
        checked(unsafe { rbd::rbd_get_stripe_unit(handle, &raw mut unit) })
            .map_err(failed("learn its stripe unit"))?;
        image.unit = unit;
        Ok(image)
    }

    pub(crate) fn raw(&self) -> rbd::rbd_image_t {
        self.handle
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether aligned ranges of `bytes` are each within one object, to which a write is one transaction.
    pub(crate) fn writes_whole(&self, bytes: usize) -> bool {
        self.unit > 0 && self.unit.is_multiple_of(bytes as u64)
    }

    pub(crate) fn size(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(crate) fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        if bytes > self.bytes_max {
            return Err(DeviceErrorKind::NoSpace);
        }
        if self.read_only {
            return Err(read_only());
        }
        if self.flight.is_fenced() {
            return Err(DeviceErrorKind::Fenced);
        }
        // SAFETY: an open image.
        checked(unsafe { rbd::rbd_resize(self.handle, bytes) })
            .map_err(|error| kind_of(error.raw_os_error().unwrap_or(libc::EIO)))?;
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    /// Acquires the exclusive lock. From then on librbd refuses other clients' requests for it.
    fn lock(&self, take_over: bool) -> Result<(), RbdError> {
        let acquire = || {
            // SAFETY: an open image.
            checked(unsafe {
                rbd::rbd_lock_acquire(self.handle, rbd::rbd_lock_mode_t::RBD_LOCK_MODE_EXCLUSIVE)
            })
        };
        if let Some(owner) = self.owner_address() {
            // An owner that crashed is not among the watchers once its watch has timed out.
            if !take_over && self.watchers()?.contains(&owner) {
                return Err(RbdError::AlreadyOpen { image: self.name.clone(), owner: self.owner(&owner) });
            }
            self.exclude(&owner)?;
        }
        let acquired = acquire();
        match acquired.map_err(|error| error.raw_os_error()) {
            Ok(_) => {
                self.say_who_owns();
                Ok(())
            }
            Err(Some(libc::EINVAL)) => Err(RbdError::NoLock(self.name.clone())),
            Err(Some(libc::EROFS | libc::EAGAIN | libc::EBUSY)) => {
                let address = self.owner_address().unwrap_or_else(|| c"an unknown address".to_owned());
                Err(RbdError::AlreadyOpen { image: self.name.clone(), owner: self.owner(&address) })
            }
            Err(code) => {
                let source = io::Error::from_raw_os_error(code.unwrap_or(libc::EIO));
                Err(self.failed("acquire its lock", source))
            }
        }
    }

    /// Refuses an image that another client has open. One that crashed is not among the watchers once its
    /// watch has timed out. librbd does not say who owns an image that is opened for reading.
    fn refuse_in_use(&self) -> Result<(), RbdError> {
        match self.watchers()?.first() {
            Some(client) => Err(RbdError::InUse { image: self.name.clone(), owner: self.owner(client) }),
            None => Ok(()),
        }
    }

    /// Bans the owner from the cluster, so that none of its writes lands any more, and breaks its lock.
    fn exclude(&self, owner: &CStr) -> Result<(), RbdError> {
        let failed = |source| self.failed("exclude its owner", source);
        if let Some(pool) = &self.pool {
            pool.connection.exclude(&owner.to_string_lossy()).map_err(failed)?;
        }
        // SAFETY: an open image and a string.
        let broken = unsafe {
            rbd::rbd_lock_break(self.handle, rbd::rbd_lock_mode_t::RBD_LOCK_MODE_EXCLUSIVE, owner.as_ptr())
        };
        match checked(broken) {
            Ok(_) => Ok(()),
            // It has closed the image, or lost it to another, meanwhile: acquiring the lock decides.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBUSY)) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// The addresses of the clients that have the image open for writing and are alive. librbd leaves this
    /// one out.
    fn watchers(&self) -> Result<Vec<CString>, RbdError> {
        let mut watchers = [const { MaybeUninit::<rbd::rbd_image_watcher_t>::zeroed() }; 64];
        let mut count = watchers.len();
        // SAFETY: an open image and room for `count` watchers.
        let listed =
            unsafe { rbd::rbd_watchers_list(self.handle, watchers.as_mut_ptr().cast(), &raw mut count) };
        checked(listed).map_err(|source| self.failed("list its clients", source))?;
        let addresses = watchers[..count].iter().map(|watcher| {
            // SAFETY: librbd filled in `count` of them.
            let watcher = unsafe { watcher.assume_init_ref() };
            // SAFETY: its address is a string.
            unsafe { CStr::from_ptr(watcher.addr) }.to_owned()
        });
        let addresses = addresses.collect();
        // SAFETY: the strings of these watchers are librbd's.
        unsafe { rbd::rbd_watchers_list_cleanup(watchers.as_mut_ptr().cast(), count) };
        Ok(addresses)
    }

    fn failed(&self, what: &'static str, source: io::Error) -> RbdError {
        RbdError::Image { image: self.name.clone(), what, source }
    }

    /// The owner's address in the cluster, as librbd wants it.
    fn owner_address(&self) -> Option<CString> {
        let mut mode: rbd::rbd_lock_mode_t = rbd::rbd_lock_mode_t::RBD_LOCK_MODE_EXCLUSIVE;
        // An exclusive lock has one owner; librbd says how many there are if the space is too little.
        let mut owners: [*mut c_char; 8] = [ptr::null_mut(); 8];
        let mut count = owners.len();
        // SAFETY: an open image and room for `count` pointers.
        let asked = unsafe {
            rbd::rbd_lock_get_owners(self.handle, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        if checked(asked).is_err() || count == 0 {
            return None;
        }
        // SAFETY: librbd wrote `count` strings.
        let owner = unsafe { CStr::from_ptr(owners[0]) }.to_owned();
        // SAFETY: these strings are librbd's, and `owner` is a copy.
        unsafe { rbd::rbd_lock_get_owners_cleanup(owners.as_mut_ptr(), count) };
        Some(owner)
    }

    /// The owner at this address in words.
    fn owner(&self, address: &CStr) -> String {
        let address = address.to_string_lossy();
        let mut said = vec![0_u8; 256];
        let mut len = said.len();
        // SAFETY: an open image, a string, and `len` bytes of room.
        let read = unsafe {
            rbd::rbd_metadata_get(self.handle, OWNER_KEY.as_ptr(), said.as_mut_ptr().cast(), &raw mut len)
        };
        match (checked(read), CStr::from_bytes_until_nul(&said)) {
            (Ok(_), Ok(said)) if !said.is_empty() => format!("{} ({address})", said.to_string_lossy()),
            _ => address.into_owned(),
        }
    }

    /// Notes this process as the owner, for the message that a second opener gets. In a thread of its own:
    /// the cluster tells all who have the image open, and waits for a former owner that was stopped.
    fn say_who_owns(&self) {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let owner = format!("process {} on {}", std::process::id(), host.trim());
        let Ok(owner) = c_string(&owner) else { return };
        let image = Noting { handle: self.handle, name: self.name.clone(), flight: Arc::clone(&self.flight) };
        // Closing the image waits for it, as for an operation.
        self.flight.begin();
        let note = move || {
            // The whole of it: a part of a raw handle cannot be sent.
            let image = image;
            // SAFETY: an open image, which is closed once nothing is in flight, and two strings.
            let noted = unsafe { rbd::rbd_metadata_set(image.handle, OWNER_KEY.as_ptr(), owner.as_ptr()) };
            if let Err(error) = checked(noted) {
                // A convenience: the lock itself is held.
                tracing::debug!(image = %image.name, %error, "the owner's name could not be noted");
            }
        };
        let spawned = std::thread::Builder::new().name("pagetier-rbd-note".into()).spawn(note);
        if let Err(error) = spawned {
            tracing::debug!(image = %self.name, %error, "the owner's name could not be noted");
        }
    }
}

impl Drop for Image {
    /// Closes the image once its operations have ended. Not here: closing talks to the cluster, and the last
    /// operation may wait for one that is down.
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let closing = Closing {
            handle: self.handle,
            name: std::mem::take(&mut self.name),
            flight: Arc::clone(&self.flight),
            pool: Arc::new(pool),
        };
        closing.pool.connection.closing.send_modify(|names| names.push(closing.name.clone()));
        let closing = Box::new(closing);
        let spawned =
            std::thread::Builder::new().name("pagetier-rbd-close".into()).spawn(move || drop(closing));
        if let Err(error) = spawned {
            // The closure, and with it the image, was dropped in this thread.
            tracing::debug!(%error, "an image was closed in the thread that dropped it");
        }
    }
}

/// An image on which a note is in flight; it ends when this is dropped.
struct Noting {
    handle: rbd::rbd_image_t,
    name: String,
    flight: Arc<Flight>,
}

// SAFETY: as for `Image`.
unsafe impl Send for Noting {}

impl Drop for Noting {
    fn drop(&mut self) {
        self.flight.end();
    }
}

/// An image on its way to being closed.
struct Closing {
    handle: rbd::rbd_image_t,
    name: String,
    flight: Arc<Flight>,
    pool: Arc<Pool>,
}

// SAFETY: as for `Image`.
unsafe impl Send for Closing {}

impl Drop for Closing {
    fn drop(&mut self) {
        self.flight.wait_empty();
        let connection = Arc::clone(&self.pool.connection);
        if self.flight.is_fenced() {
            // Its lock and its watch are another's, and there is nothing to give back. librbd throws
            // exceptions when it closes such an image (seen with version 16), which would end the process. It
            // stays open, and its pool and connection with it.
            std::mem::forget(Arc::clone(&self.pool));
        } else {
            // SAFETY: an open image without operations, which nothing else has any more.
            let closed = checked(unsafe { rbd::rbd_close(self.handle) });
            if let Err(error) = closed {
                tracing::warn!(image = %self.name, %error, "an image was not closed cleanly; its lock lapses by itself");
            }
        }
        connection.closed(&self.name);
    }
}
