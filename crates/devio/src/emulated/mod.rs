//! Emulated devices (signatures first; the timing follows).
#![allow(missing_docs)]
use crate::device::IoBufs;
use crate::*;
use std::future::Future;
use std::pin::Pin;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Tokio,
    Wall,
}

#[derive(Clone, Debug)]
pub struct Model(());

impl Model {
    #[must_use]
    pub fn paper_hdd() -> Self {
        Self(())
    }
    #[must_use]
    pub fn paper_ssd() -> Self {
        Self(())
    }
    #[must_use]
    pub fn disk_7200rpm(_capacity: u64) -> Self {
        Self(())
    }
    #[must_use]
    pub fn nvme() -> Self {
        Self(())
    }
    #[must_use]
    pub fn with_page_bytes(self, _bytes: u32) -> Self {
        self
    }
    #[must_use]
    pub fn with_write_cache(self, _on: bool) -> Self {
        self
    }
}

#[derive(Debug)]
pub struct EmulatedDevice {
    inner: SharedDevice,
}

impl EmulatedDevice {
    #[must_use]
    pub fn new(inner: SharedDevice, _model: Model, _clock: Clock) -> Self {
        Self { inner }
    }
    pub fn set_timing(&self, _on: bool) {}
}

impl Device for EmulatedDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.inner.read(offset, bufs, class)
    }
    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.inner.write(offset, bufs, class)
    }
    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        self.inner.flush(class)
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.inner.grow(bytes)
    }
    fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        self.inner.discard(offset, len)
    }
    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
    fn backend(&self) -> &'static str {
        "emulated"
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
}
