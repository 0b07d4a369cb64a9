//! Checks that a device about to become a store's holds no data.
//!
//! Of a regular file every byte is checked: a disk image may be zero at its edges, and a short file has no
//! whole block. Holes need no read. Block devices and devices of the embedder may be too large for that.

use crate::error::OpenError;
use crate::manifest::saver::in_thread;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, IoOp, SharedDevice};
use std::sync::Arc;

/// Bytes checked at the start and at the end of a device.
const EDGE_BYTES: u64 = 1 << 20;
/// Offsets of the inner copies of file systems' superblocks: btrfs keeps them at 64 MiB and 256 GiB.
const INNER: [u64; 2] = [64 << 20, 256 << 30];
/// Bytes checked at each such offset.
const INNER_BYTES: u64 = 128 << 10;
/// The largest alignment that a device requires.
const STEP: u64 = 4096;

/// The ranges (offset, length) that are checked on a device of `size` bytes. Labels of file systems, arrays
/// and partition tables lie there: ext4 and xfs at the start, md at the start, at 4 KiB or at the end, GPT
/// and ZFS at both ends, btrfs at 64 KiB and further in.
fn places(size: u64) -> Vec<(u64, u64)> {
    let size = size / STEP * STEP;
    let inner = INNER.into_iter().map(|at| (at, INNER_BYTES));
    let last = (size.saturating_sub(EDGE_BYTES), EDGE_BYTES);
    let all = std::iter::once((0, EDGE_BYTES)).chain(inner).chain([last]);
    all.map(|(at, len)| (at, len.min(size.saturating_sub(at)))).filter(|(_, len)| *len > 0).collect()
}

/// Refuses a file with a byte that is not zero, and another device that is not all zeroes in these ranges.
pub(crate) async fn refuse_data(device: &SharedDevice) -> Result<(), OpenError> {
    // In a thread: reading a large file would block the runtime.
    if let Some(search) = device.data_search() {
        let found = in_thread(search).await;
        return match found.unwrap_or_else(|| Err(std::io::Error::other("the search panicked"))) {
            Ok(false) => Ok(()),
            Ok(true) => Err(OpenError::Foreign { device: device.name().to_owned() }),
            Err(error) => {
                let (device, kind) = (Arc::from(device.name()), DeviceErrorKind::Io(Arc::new(error)));
                Err(DeviceError { device, op: IoOp::Read, offset: 0, len: 0, kind }.into())
            }
        };
    }
    for (at, len) in places(device.size()) {
        let bufs = IoBufs::from_iter([IoBuf::zeroed(len as usize)]);
        let done = device.read(at, bufs, IoClass::Recovery).await;
        done.result?;
        if !done.bufs.iter().all(|buf| pagetier_page::is_blank(buf.as_slice())) {
            return Err(OpenError::Foreign { device: device.name().to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::MemoryDevice;

    #[test]
    fn places_lie_within_the_device() {
        assert_eq!(places(0), []);
        assert_eq!(places(4095), []);
        assert_eq!(places(8192 + 512), [(0, 8192), (0, 8192)]);
        assert_eq!(places(2 << 20), [(0, 1 << 20), (1 << 20, 1 << 20)]);
        for size in [3 << 20, 65 << 20, (64 << 20) + 4096, 1 << 40] {
            assert!(places(size).iter().all(|(at, len)| at + len <= size && at % STEP == 0));
        }
        assert_eq!(places(1 << 40).len(), 4);
    }

    #[tokio::test]
    async fn the_labels_of_file_systems_and_arrays_are_noticed() {
        const SIZE: u64 = 100 << 20;
        let refused = |at: u64| async move {
            let device: SharedDevice = Arc::new(MemoryDevice::new("disk", SIZE));
            let mut sector = IoBuf::zeroed(512);
            sector.as_mut_slice()[64] = b'_';
            device.write(at, IoBufs::from_iter([sector]), IoClass::Meta).await.result.unwrap();
            matches!(refuse_data(&device).await, Err(OpenError::Foreign { .. }))
        };
        // xfs, ext4, md 1.2, ZFS, btrfs and its second copy, ZFS again, md 1.0, GPT's backup header.
        for at in [0, 1024, 4096, 16 << 10, 64 << 10, 64 << 20, SIZE - (256 << 10), SIZE - 8192, SIZE - 512] {
            assert!(refused(at).await, "data at {at}");
        }
        let blank: SharedDevice = Arc::new(MemoryDevice::new("disk", SIZE));
        refuse_data(&blank).await.unwrap();
    }
}
