//! The options of an open.

use crate::Kept;

/// Whether to bypass the operating system's page cache (O_DIRECT).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectIo {
    /// Bypass it; opening fails where that is impossible.
    Required,
    /// Bypass it if the file system can; see [`Opened::direct`](crate::Opened::direct).
    #[default]
    Preferred,
    /// Use the page cache.
    Disabled,
}

/// The implementation that serves the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// io_uring where it can be set up, threads otherwise;
    /// [`Opened::fallback`](crate::Opened::fallback) says why.
    #[default]
    Auto,
    /// io_uring; opening fails without it.
    Uring,
    /// A pool of threads.
    Threads,
}

/// Who reaps io_uring's completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reap {
    /// A thread of the device. Works under any executor.
    #[default]
    Thread,
    /// The reactor of the tokio runtime in whose context the device is opened: saves two wake-ups per read
    /// that a task waits for. That runtime must run whenever operations are awaited, on any runtime; a thread
    /// takes over when it ends. Outside a runtime, in one without I/O, and in a program built with `panic =
    /// "abort"` (the only way to detect a runtime's I/O is to catch a panic), this is the same as `Thread`.
    /// That panic is not reported: the panic hook is replaced for as long as the query takes.
    Reactor,
}

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Whether to bypass the page cache. Default: preferred.
    pub direct: DirectIo,
    /// The implementation. Default: automatic.
    pub backend: Backend,
    /// Create the file (mode 0600) when it is missing. Default: no.
    pub create: bool,
    /// Open for reading only. Default: no.
    pub read_only: bool,
    /// The maximum number of operations that the kernel has at once, 1 to 4096; others wait in order of
    /// class. Default: 128.
    pub queue_depth: u32,
    /// Who reaps io_uring's completions. Default: a thread.
    pub reap: Reap,
    /// The maximum number of threads of the thread-pool backend, which starts them as needed. Default: 16.
    pub threads: u32,
    /// What the device keeps until every descriptor of it is closed, which a runtime's task may do some time
    /// after the device was dropped. Default: nothing.
    pub kept: Option<Kept>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            direct: DirectIo::default(),
            backend: Backend::default(),
            create: false,
            read_only: false,
            queue_depth: 128,
            reap: Reap::default(),
            threads: 16,
            kept: None,
        }
    }
}
