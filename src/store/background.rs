//! Runs blocking file work on the runtime's blocking threads.

use std::io::{Error, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `work` to its end, even if the future is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::other("the runtime is shutting down")))
}

/// Writes a whole file and renames it to `path`. Does not flush it. A failure leaves `path` unchanged and no
/// other file behind.
pub(crate) async fn put_file(path: PathBuf, contents: Vec<u8>) -> Result<()> {
    // A write whose future was dropped may still run, so each write has its own file name.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let write = move || {
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}.{number}", std::process::id()));
        let put = std::fs::write(&beside, contents).and_then(|()| std::fs::rename(&beside, &path));
        // Or each failed export would leave a file.
        if put.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        put
    };
    blocking(write).await
}
