//! The seed of a store's checksums.

use crate::crc::{crc32c, crc32c_append};

/// The seed of every checksum that a store writes on its pages, map checkpoints and journal. It is derived
/// from the store's id, so another store's bytes do not verify, however sound they are.
///
/// Superblocks use [`StoreSeed::NONE`]: every store can read which store owns a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoreSeed(u32);

impl StoreSeed {
    /// No seed: plain CRC32C.
    pub const NONE: Self = Self(0);

    /// The seed of the store with this id (the bytes of its UUID). Two stores share a seed with probability
    /// 2^-32.
    #[must_use]
    pub fn of_store(id: [u8; 16]) -> Self {
        Self(crc32c(&id))
    }

    /// The CRC32C of `bytes`, continued from the seed. For equal bytes, different seeds give different
    /// checksums.
    #[must_use]
    pub fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c_append(self.0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_never_agree_on_a_checksum_and_no_seed_is_plain_crc32c() {
        let (a, b) = (StoreSeed::of_store([1; 16]), StoreSeed::of_store([2; 16]));
        for len in [0, 1, 511, 4092] {
            let bytes: Vec<u8> = (0..len).map(|i: u32| (i * 31) as u8).collect();
            assert_ne!(a.checksum(&bytes), b.checksum(&bytes));
            assert_eq!(StoreSeed::NONE.checksum(&bytes), crc32c::crc32c(&bytes));
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            assert_eq!(crc32c_append(a.checksum(head), tail), a.checksum(&bytes));
        }
    }
}
