//! Why a hot set cannot be saved or loaded.

use std::path::PathBuf;

/// Why a hot set cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotSetError {
    /// The file cannot be read or written.
    #[error("{path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The hot set's file, as the caller named it.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a hot set.
    #[error("{path}: line {line} is not part of a hot set", path = .path.display())]
    Malformed {
        /// The hot set's file, as the caller named it.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}
