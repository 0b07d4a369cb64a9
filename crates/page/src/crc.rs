//! CRC-32C, the checksum of all that a store writes.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// Continues `sum`, the CRC-32C of the bytes so far, with `bytes`.
#[must_use]
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    // A sum is the complement of the register's state.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_agrees_with_another_implementation_at_every_length_and_alignment() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in (0..1100).chain([4092, 4096, 16_380, 65_532]) {
            for (from, sum) in [(0, 0), (1, !0), (7, 0x1234_5678), (64, 1)] {
                let some = &bytes[from..from + len];
                assert_eq!(
                    super::crc32c_append(sum, some),
                    crc32c::crc32c_append(sum, some),
                    "{from}, {len}"
                );
            }
        }
    }
}
