//! Simulated devices (signatures first; cuts and faults follow).
#![allow(missing_docs)]
use crate::device::IoBufs;
use crate::*;
use std::future::Future;
use std::pin::Pin;

/// The power of one or several simulated devices: counts operations, and is cut for all at once.
#[derive(Clone, Debug, Default)]
pub struct SimPower(());
impl SimPower {
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
    /// Operations so far, over all devices.
    #[must_use]
    pub fn ops(&self) -> u64 {
        0
    }
    /// After the `n`-th operation nothing lands any more and everything fails with Gone.
    pub fn cut_at(&self, _n: u64) {}
    pub fn cut_now(&self) {}
    #[must_use]
    pub fn is_cut(&self) -> bool {
        false
    }
}

#[derive(Debug)]
pub struct SimDevice {
    inner: MemoryDevice,
}

impl SimDevice {
    #[must_use]
    pub fn new(name: &str, size: u64, _seed: u64, _power: &SimPower) -> Self {
        Self { inner: MemoryDevice::new(name, size) }
    }
    /// What is left after the power went off: each unflushed write kept, dropped or torn by `seed`; runs on `power`, a new one.
    #[must_use]
    pub fn after_power_cut(&self, _seed: u64, _power: &SimPower) -> Self {
        Self { inner: self.inner.fork() }
    }
}

impl Device for SimDevice {
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
        "sim"
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
}
