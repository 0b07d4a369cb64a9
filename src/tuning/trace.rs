//! Page traces: every request, recorded to a file.

use crate::store::background::blocking;
use crate::store::handles::Trace;
use pagetier_bufpool::TraceSummary;
use std::io;
use std::path::Path;

impl Trace<'_> {
    /// Starts recording every page request to the file `path` as a page trace (`.ptr`, see
    /// [`TraceRecord`](pagetier_page::TraceRecord)), which `replay` of `pagetier-sim` reads. Overwrites an
    /// existing file.
    ///
    /// # Errors
    /// The file cannot be created, or a recording is already in progress
    /// ([`std::io::ErrorKind::ResourceBusy`]).
    pub fn start(self, path: impl AsRef<Path>) -> io::Result<()> {
        if self.progress().is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let file = std::fs::File::create(path)?;
        if self.0.pool.recorder().start(Box::new(file))? {
            Ok(())
        } else {
            Err(io::ErrorKind::ResourceBusy.into())
        }
    }

    /// The state of the recording in progress.
    #[must_use]
    pub fn progress(self) -> Option<TraceSummary> {
        self.0.pool.recorder().recorded()
    }

    /// Stops the recording; the file is complete when this returns. The recording stops even if the future is
    /// dropped.
    ///
    /// # Errors
    /// The file could not be written.
    pub async fn stop(self) -> io::Result<TraceSummary> {
        let pool = self.0.pool.clone();
        blocking(move || pool.recorder().stop()).await
    }
}
