//! Devices, and how to implement one.
//!
//! A store uses files, block devices, or anything that implements [`Device`]: see
//! [`Builder::hdd`](crate::Builder::hdd). To implement a device, implement [`RawDevice`]
//! (reads, writes, flushes, a size and a name) and pass [`Metered::over`] to the builder: it checks ranges,
//! counts operations and times, and tracks operations in flight. The package `pagetier-testing` tests the
//! result: `pagetier_testing::conformance::check_device`.
//!
//! ```
//! use pagetier::device::{DeviceErrorKind, IoBufs, IoClass, Metered, RawDevice, RawDone, RawTransfer};
//! use pagetier::device::SharedDevice;
//! use pagetier_testing::conformance::{Growth, check_device};
//! use std::future::ready;
//! use std::sync::{Arc, Mutex};
//!
//! #[derive(Debug)]
//! struct Bytes(Mutex<Vec<u8>>);
//!
//! impl RawDevice for Bytes {
//!     fn read(&self, offset: u64, mut bufs: IoBufs, _class: IoClass) -> RawTransfer {
//!         let (bytes, mut at) = (self.0.lock().unwrap(), offset as usize);
//!         for buf in &mut bufs {
//!             let len = buf.len();
//!             buf.as_mut_slice().copy_from_slice(&bytes[at..at + len]);
//!             at += len;
//!         }
//!         Box::pin(ready((bufs, Ok(()))))
//!     }
//!
//!     fn write(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
//!         let (mut bytes, mut at) = (self.0.lock().unwrap(), offset as usize);
//!         for buf in &bufs {
//!             bytes[at..at + buf.len()].copy_from_slice(buf.as_slice());
//!             at += buf.len();
//!         }
//!         Box::pin(ready((bufs, Ok(()))))
//!     }
//!
//!     fn flush(&self) -> RawDone {
//!         Box::pin(ready(Ok(())))
//!     }
//!
//!     fn size(&self) -> u64 {
//!         self.0.lock().unwrap().len() as u64
//!     }
//!
//!     fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
//!         self.0.lock().unwrap().resize(bytes as usize, 0);
//!         Ok(())
//!     }
//!
//!     fn name(&self) -> &str {
//!         "bytes"
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let device: SharedDevice = Arc::new(Metered::over(Bytes(Mutex::new(vec![0; 8 << 20]))));
//! check_device(&device, Growth::Grows).await;
//!
//! let store = pagetier::PageStore::builder()
//!     .in_memory(Arc::new(pagetier::MemoryManifest::default()))
//!     .hdd(Arc::new(Metered::over(Bytes(Mutex::default()))))
//!     .ssd(Arc::new(Metered::over(Bytes(Mutex::default()))))
//!     .pool_bytes(4 << 20)
//!     .ssd_bytes(16 << 20)
//!     .open()
//!     .await
//!     .unwrap();
//! # store.close().await.unwrap();
//! # });
//! ```

pub use pagetier_devio::{
    BUF_ALIGN, Backend, COST_POINTS, ClassStats, Completion, DataSearch, Device, DeviceError,
    DeviceErrorKind, DeviceStats, DirStats, DirectIo, DoneFuture, ErrorCounts, InFlight, IoBuf, IoBufs,
    IoClass, IoFuture, IoOp, Memory, MemoryDevice, Metered, Occupancy, OpenOptions, Opened, RawDevice,
    RawDone, RawTransfer, Reap, RecentCost, RecentCosts, RetryCounts, SharedDevice, TimeHistogram, open_file,
};
