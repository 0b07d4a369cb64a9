//! redb's storage on a [`File`].

use crate::file::File;
use redb::StorageBackend;
use std::io::{ErrorKind, Result};
use std::sync::Arc;

/// A file as redb's storage.
#[derive(Clone, Debug)]
pub struct Backend(pub Arc<File>);

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64> {
        Ok(self.0.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.0.read_at(out, offset)? < out.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write_at(data, offset).map(drop)
    }

    fn close(&self) -> Result<()> {
        self.0.close()
    }
}
