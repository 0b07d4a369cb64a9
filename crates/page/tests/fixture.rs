//! Bytes that version 1 wrote: every later version must read them.

use pagetier_page::{Flags, Header, Lsn, PageId, SpaceId, Stamp, seal, verify};

/// The header of the page below, as `docs/format.md` prints it.
const HEADER_V1: [u8; 32] = [
    0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00, 0x2a, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x39,
    0x30, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00,
];

fn page() -> Vec<u8> {
    let mut image: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    let page = PageId::new(SpaceId(42), 7);
    Header { page, lsn: Lsn(12345), stamp: Stamp::ZERO, flags: Flags::NONE }.put(&mut image);
    seal(&mut image, Stamp::from_bits(Stamp::first_of(3).bits() + 9), Flags::CLEAN_COPY);
    image
}

#[test]
fn version_1_bytes_are_what_the_format_says() {
    let image = page();
    assert_eq!(&image[4..32], &HEADER_V1[4..]);
    assert_eq!(u32::from_le_bytes(image[..4].try_into().unwrap()), crc32c::crc32c(&image[4..]));
}

#[test]
fn version_1_bytes_are_read() {
    let mut image: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    image[..32].copy_from_slice(&HEADER_V1);
    image[..4].copy_from_slice(&0x0000_0000u32.to_le_bytes());
    let sum = crc32c::crc32c(&image[4..]);
    image[..4].copy_from_slice(&sum.to_le_bytes());
    let header = verify(&image, PageId::new(SpaceId(42), 7)).unwrap();
    assert_eq!(header.lsn, Lsn(12345));
    assert_eq!(header.stamp.epoch(), 3);
}
