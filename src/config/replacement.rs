//! What `replace_ssd` puts into use.

use super::choices::Place;
use pagetier_devio::SharedDevice;
use std::path::Path;

/// The SSD that replaces the one in use; see [`PageStore::replace_ssd`](crate::PageStore::replace_ssd).
#[derive(Clone, Debug)]
#[must_use]
pub struct SsdReplacement {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
}

impl SsdReplacement {
    /// A file or block device. A file is created if it does not exist. A relative path leads from the
    /// present working directory.
    pub fn path(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        // Now, not when it is attached: the working directory may have changed by then.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { place: Place::Path(path), bytes: 256 << 20 }
    }

    /// A device; [`device`](crate::device) says how to write one.
    pub fn device(device: SharedDevice) -> Self {
        Self { place: Place::Device(device), bytes: 256 << 20 }
    }

    /// The number of its bytes to use. Default: 256 MiB.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}
