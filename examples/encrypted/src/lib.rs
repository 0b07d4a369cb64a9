//! A device that encrypts what another device stores: AES-256 in XTS mode, as used by dm-crypt and BitLocker.
//!
//! Copy this file to adapt it. Four things make it a device for a store:
//!
//! - **Buffers.** A write encrypts a copy, because it must return its buffers unchanged. A read decrypts in
//!   place.
//! - **Sectors.** The alignment is one sector, so no operation touches part of one. The tweak is the sector's
//!   number, so equal pages at two places do not look alike.
//! - **Blank space.** A store takes zeroes for space that was never written. So a sector whose ciphertext is
//!   all zeroes reads as zeroes. This reveals to an observer of the device which sectors were never written.
//! - **Crashes.** A write torn inside a sector decrypts to noise in 16-byte blocks. The store's checksums
//!   detect it like any torn page, and the store repairs it from the ring.
//!
//! XTS hides contents but does not authenticate them: the store's checksums detect damage, not forgery. Keep
//! the key elsewhere, so that a thief of the device does not get it too.

use aes::Aes256;
use aes::cipher::KeyInit;
use pagetier::device::{
    DeviceErrorKind, IoBuf, IoBufs, IoClass, Metered, RawDevice, RawDone, RawTransfer, SharedDevice,
};
use std::fmt;
use std::sync::Arc;
use xts_mode::{Xts128, get_tweak_default};

/// Bytes of a sector, which is encrypted as a whole.
pub const SECTOR_BYTES: usize = 4096;

/// Bytes of a key: one AES-256 key for the data, one for the tweaks.
pub const KEY_BYTES: usize = 64;

/// The key has the wrong length, or its two halves are equal, which XTS forbids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadKey;

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key has {KEY_BYTES} bytes, and its halves differ")
    }
}

impl std::error::Error for BadKey {}

/// Wraps `base` in a device that encrypts what it writes.
///
/// # Errors
/// The key has the wrong length, or its halves are equal.
pub fn encrypted(base: SharedDevice, key: &[u8]) -> Result<SharedDevice, BadKey> {
    let (data, tweak) = key.split_at_checked(KEY_BYTES / 2).ok_or(BadKey)?;
    if data == tweak {
        return Err(BadKey);
    }
    let cipher = |half| Aes256::new_from_slice(half).map_err(|_| BadKey);
    let xts = Xts128::new(cipher(data)?, cipher(tweak)?);
    Ok(Arc::new(Metered::over(Encrypted(Arc::new(Inner { base, xts })))))
}

struct Encrypted(Arc<Inner>);

struct Inner {
    base: SharedDevice,
    xts: Xts128<Aes256>,
}

impl fmt::Debug for Encrypted {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").field("base", &self.0.base).finish_non_exhaustive()
    }
}

impl Inner {
    fn encrypt(&self, offset: u64, bufs: &IoBufs) -> IoBufs {
        let mut number = offset / SECTOR_BYTES as u64;
        let copy = |buf: &IoBuf| {
            let mut copy = IoBuf::copy_of(buf.as_slice());
            self.xts.encrypt_area(copy.as_mut_slice(), SECTOR_BYTES, number.into(), get_tweak_default);
            number += (buf.len() / SECTOR_BYTES) as u64;
            copy
        };
        bufs.iter().map(copy).collect()
    }

    fn decrypt(&self, offset: u64, bufs: &mut IoBufs) {
        let sectors = bufs.iter_mut().flat_map(|buf| buf.as_mut_slice().chunks_exact_mut(SECTOR_BYTES));
        for (number, sector) in (offset / SECTOR_BYTES as u64..).zip(sectors) {
            if sector.iter().any(|byte| *byte != 0) {
                self.xts.decrypt_sector(sector, get_tweak_default(number.into()));
            }
        }
    }
}

impl RawDevice for Encrypted {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let mut done = inner.base.read(offset, bufs, class).await;
            if done.result.is_ok() {
                inner.decrypt(offset, &mut done.bufs);
            }
            (done.bufs, done.result.map_err(|error| error.kind))
        })
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer {
        let written = self.0.base.write(offset, self.0.encrypt(offset, &bufs), class);
        Box::pin(async move { (bufs, written.await.result.map_err(|error| error.kind)) })
    }

    fn flush(&self) -> RawDone {
        let flushed = self.0.base.flush(IoClass::Meta);
        Box::pin(async move { flushed.await.map_err(|error| error.kind) })
    }

    fn size(&self) -> u64 {
        self.0.base.size()
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceErrorKind> {
        self.0.base.grow(bytes).map_err(|error| error.kind)
    }

    fn discard(&self, offset: u64, len: u64) -> RawDone {
        let discarded = self.0.base.discard(offset, len);
        Box::pin(async move { discarded.await.map_err(|error| error.kind) })
    }

    fn alignment(&self) -> usize {
        SECTOR_BYTES
    }

    fn backend(&self) -> &'static str {
        "encrypted"
    }

    fn name(&self) -> &str {
        self.0.base.name()
    }
}
