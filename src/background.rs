//! Runs blocking file work on the runtime's blocking threads.

use std::io::{Error, Result};
use std::path::PathBuf;

/// Runs `work` to its end, even if the future is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::other("the runtime is shutting down")))
}

/// Writes a whole file and renames it to `path`. Does not flush it.
pub(crate) async fn put_file(path: PathBuf, contents: Vec<u8>) -> Result<()> {
    let write = move || {
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}", std::process::id()));
        std::fs::write(&beside, contents)?;
        std::fs::rename(&beside, &path)
    };
    blocking(write).await
}
