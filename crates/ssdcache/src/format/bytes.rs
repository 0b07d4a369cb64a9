//! Little-endian fields of on-disk blocks, and the magic and checksum with which every block starts.

use pagetier_page::StoreSeed;

pub(crate) fn put_u32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

pub(crate) fn put_u64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// No count of checkpoints or journal blocks reaches this, not even at a million a second for a hundred
/// thousand years. A block that claims it is not sound, even if its checksum matches.
pub(crate) const COUNT_END: u64 = 1 << 62;

/// Writes magic and checksum: bytes 0..8 are the magic, bytes 8..12 the CRC32C of everything from byte 12 on,
/// starting from `seed`.
pub(crate) fn seal_block(seed: StoreSeed, b: &mut [u8], magic: [u8; 8]) {
    b[..8].copy_from_slice(&magic);
    let sum = seed.checksum(&b[12..]);
    put_u32(b, 8, sum);
}

/// Whether magic and checksum are those of a block of the store of `seed`.
pub(crate) fn block_is_sound(seed: StoreSeed, b: &[u8], magic: [u8; 8]) -> bool {
    b.len() > 12 && b[..8] == magic && u32_at(b, 8) == seed.checksum(&b[12..])
}
