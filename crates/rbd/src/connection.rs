//! The client of librados: a connection and the pools that are open over it.

use crate::error::checked;
use crate::flight::Flight;
use crate::{ImageName, RbdError};
use rados_sys as rados;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long an owner whose image was taken over stays banned: a year, in seconds.
const EXCLUDED_SECONDS: u64 = 31_536_000;

/// An operation that has waited for so long is reported.
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// How often a wait that goes on is reported again.
const REMIND_EVERY: Duration = Duration::from_secs(30);

/// How long the cluster's monitors may take to answer the question what is wrong, in seconds.
const MONITOR_SECONDS: &str = "10";

/// How to connect to a cluster.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConnectOptions {
    configuration: Option<PathBuf>,
    user: Option<String>,
    io_timeout: Option<Duration>,
    settings: Vec<(String, String)>,
}

impl ConnectOptions {
    /// The configuration file. Default: `$CEPH_CONF`, or Ceph's usual places.
    pub fn configuration(mut self, file: impl Into<PathBuf>) -> Self {
        self.configuration = Some(file.into());
        self
    }

    /// The user's name without `client.`. Default: `admin`.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// The time after which an operation that the cluster has not carried out fails. Default: none, because a
    /// cluster that is down usually returns, and a store waits for it with everything it has.
    ///
    /// A write that failed for this reason may still land: the store writes the page again.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = Some(timeout);
        self
    }

    /// One setting of Ceph's, by its name there. Overrides the file.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// The images whose operations are watched.
type Watched = Vec<(String, Weak<Flight>)>;

/// A connected client of librados.
pub(crate) struct Connection {
    handle: rados::rados_t,
    /// The images that are being closed, and the opens in progress.
    pub(crate) closing: watch::Sender<Vec<String>>,
    watched: Mutex<Watched>,
}

// SAFETY: librados' handles may be used from any thread, by several at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(options: &ConnectOptions) -> Result<Self, RbdError> {
        let user = options.user.as_deref().map(c_string).transpose().map_err(RbdError::Configuration)?;
        let mut handle: rados::rados_t = ptr::null_mut();
        // SAFETY: valid pointers; no user means the default.
        let created = unsafe {
            rados::rados_create(&raw mut handle, user.as_deref().map_or(ptr::null(), CStr::as_ptr))
        };
        checked(created).map_err(RbdError::Configuration)?;
        // From here on dropped like a connected one.
        let connection = Self { handle, closing: watch::Sender::default(), watched: Mutex::default() };
        connection.configure(options).map_err(RbdError::Configuration)?;
        // SAFETY: a handle that is not connected yet.
        checked(unsafe { rados::rados_connect(handle) }).map_err(RbdError::Connect)?;
        Ok(connection)
    }

    fn configure(&self, options: &ConnectOptions) -> Result<(), std::io::Error> {
        let file =
            options.configuration.as_ref().map(|file| c_string(&file.to_string_lossy())).transpose()?;
        // SAFETY: a valid handle; no file means the usual places.
        let read = unsafe {
            rados::rados_conf_read_file(self.handle, file.as_deref().map_or(ptr::null(), CStr::as_ptr))
        };
        checked(read)?;
        // The store is the cache. See the crate's documentation.
        self.set("rbd_cache", "false")?;
        self.set("rados_mon_op_timeout", MONITOR_SECONDS)?;
        self.set("rbd_blocklist_on_break_lock", "true")?;
        if let Some(timeout) = options.io_timeout {
            self.set("rados_osd_op_timeout", &timeout.as_secs_f64().to_string())?;
        }
        options.settings.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    fn set(&self, name: &str, value: &str) -> Result<(), std::io::Error> {
        let (c_name, c_value) = (c_string(name)?, c_string(value)?);
        // SAFETY: a valid handle and two strings.
        let set = unsafe { rados::rados_conf_set(self.handle, c_name.as_ptr(), c_value.as_ptr()) };
        checked(set)
            .map(drop)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{name} = {value}: {error}")))
    }

    /// The list of images that are watched; a thread does so from the first on.
    pub(crate) fn watched(self: &Arc<Self>) -> MutexGuard<'_, Watched> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.is_empty() {
            let connection = Arc::downgrade(self);
            // Without it, waits go unreported: no reason to refuse the image.
            drop(std::thread::Builder::new().name("pagetier-rbd".into()).spawn(move || report(&connection)));
        }
        watched
    }

    /// Notes that `name` is not among those that are being closed any more.
    pub(crate) fn closed(&self, name: &str) {
        self.closing.send_modify(|names| {
            if let Some(at) = names.iter().position(|closing| closing == name) {
                names.swap_remove(at);
            }
        });
    }

    /// Bans a client's connection for a year. librbd's own ban ends after an hour, and a stopped machine may
    /// resume later. The monitors do not prolong a ban, so this one comes before the lock is broken.
    pub(crate) fn exclude(&self, address: &str) -> Result<(), std::io::Error> {
        // As a number: librados 16 passes the time as a string, which its monitors refuse.
        let command = format!(
            r#"{{"prefix": "osd blocklist", "blocklistop": "add", "addr": "{address}", "expire": {EXCLUDED_SECONDS}.0}}"#
        );
        self.ask(&command).map(drop)
    }

    /// What the cluster says of its health.
    fn health(&self) -> String {
        let said = self.ask(r#"{"prefix": "health", "format": "plain"}"#);
        said.unwrap_or_else(|error| format!("its monitors do not answer ({error})"))
    }

    /// A monitor's answer to a command in Ceph's JSON.
    fn ask(&self, command: &str) -> Result<String, std::io::Error> {
        let command = c_string(command)?;
        let mut commands = [command.as_ptr()];
        let (mut said, mut len): (*mut c_char, _) = (ptr::null_mut(), 0);
        // SAFETY: one valid command, no input; the answer is written to two valid places.
        let asked = unsafe {
            rados::rados_mon_command(
                self.handle,
                commands.as_mut_ptr(),
                1,
                ptr::null(),
                0,
                &raw mut said,
                &raw mut len,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        checked(asked)?;
        if said.is_null() {
            return Ok(String::new());
        }
        // SAFETY: librados wrote `len` bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(said.cast::<u8>(), len) };
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        // SAFETY: the buffer is librados', and `text` is a copy.
        unsafe { rados::rados_buffer_free(said) };
        Ok(text)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: every pool has its own reference to this connection, so none is open any more.
        unsafe { rados::rados_shutdown(self.handle) };
    }
}

/// Warns of operations that wait, until the connection has no image any more.
fn report(connection: &Weak<Connection>) {
    let mut reported: Option<Instant> = None;
    loop {
        std::thread::park_timeout(Duration::from_secs(1));
        let Some(connection) = connection.upgrade() else { return };
        let mut watched = connection.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|(_, flight)| flight.strong_count() > 0);
        if watched.is_empty() {
            return;
        }
        let waits = |(name, flight): &(String, Weak<Flight>)| {
            let (count, waited) = flight.upgrade()?.waiting()?;
            (waited >= SLOW_AFTER).then(|| (name.clone(), count, waited))
        };
        let waiting: Vec<_> = watched.iter().filter_map(waits).collect();
        drop(watched);
        if waiting.is_empty() {
            if reported.take().is_some() {
                tracing::info!("the Ceph cluster answers again");
            }
            continue;
        }
        if reported.is_some_and(|at| at.elapsed() < REMIND_EVERY) {
            continue;
        }
        reported = Some(Instant::now());
        let health = connection.health();
        for (image, count, waited) in waiting {
            let waited_s = waited.as_secs();
            tracing::warn!(%image, count, waited_s, %health, "operations wait for the Ceph cluster");
        }
    }
}

/// A pool of the cluster, in one namespace.
pub(crate) struct Pool {
    handle: rados::rados_ioctx_t,
    pub(crate) connection: Arc<Connection>,
}

// SAFETY: as for `Connection`.
unsafe impl Send for Pool {}
// SAFETY: as for `Connection`.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn of(connection: &Arc<Connection>, name: &ImageName) -> Result<Self, RbdError> {
        let failed = |source| RbdError::Pool { pool: name.pool.clone(), source };
        let (pool, namespace) =
            (c_string(&name.pool).map_err(failed)?, c_string(&name.namespace).map_err(failed)?);
        let mut handle: rados::rados_ioctx_t = ptr::null_mut();
        // SAFETY: a connected handle, a string, and a valid place for the result.
        let created = unsafe { rados::rados_ioctx_create(connection.handle, pool.as_ptr(), &raw mut handle) };
        checked(created).map_err(failed)?;
        // SAFETY: the handle from above.
        unsafe { rados::rados_ioctx_set_namespace(handle, namespace.as_ptr()) };
        // In a full pool what takes no more space goes on, such as a takeover or a page that was written
        // before; what does fails. Otherwise every write would wait, and no one would hear why.
        // SAFETY: the handle from above.
        unsafe { rados::rados_set_pool_full_try(handle) };
        Ok(Self { handle, connection: Arc::clone(connection) })
    }

    pub(crate) fn raw(&self) -> rbd_sys::rados_ioctx_t {
        self.handle.cast()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: no image of it is open: each has this pool inside.
        unsafe { rados::rados_ioctx_destroy(self.handle) };
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString, std::io::Error> {
    CString::new(text).map_err(Into::into)
}
