//! Bytes written in format 2, which every later version must read.

use pagetier_page::{
    Defect, Flags, Header, Lsn, PageId, SpaceId, Stamp, StoreSeed, TraceRecord, format_homes, seal, verify,
};

/// The header of the page below, as in `docs/format.md`.
const HEADER_V2: [u8; 32] = [
    0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x01, 0x00, 0x2a, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x39,
    0x30, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00,
];

/// The CRC32C of the store id below: the seed of its checksums.
const SEED: u32 = 0xa70f_5a6b;

fn seed() -> StoreSeed {
    StoreSeed::of_store(*b"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f")
}

fn page() -> Vec<u8> {
    let mut image: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    let page = PageId::new(SpaceId(42), 7);
    Header { page, lsn: Lsn(12345), stamp: Stamp::ZERO, flags: Flags::NONE }.put(&mut image);
    seal(seed(), &mut image, Stamp::from_bits(Stamp::first_of(3).bits() + 9), Flags::CLEAN_COPY);
    image
}

#[test]
fn format_2_bytes_are_what_the_format_says() {
    let image = page();
    assert_eq!(&image[4..32], &HEADER_V2[4..]);
    assert_eq!(u32::from_le_bytes(image[..4].try_into().unwrap()), crc32c::crc32c_append(SEED, &image[4..]));
}

#[test]
fn format_2_bytes_are_read() {
    let mut image: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    image[..32].copy_from_slice(&HEADER_V2);
    image[..4].copy_from_slice(&0x0000_0000u32.to_le_bytes());
    let sum = crc32c::crc32c_append(SEED, &image[4..]);
    image[..4].copy_from_slice(&sum.to_le_bytes());
    let header = verify(seed(), &image, PageId::new(SpaceId(42), 7)).unwrap();
    assert_eq!(header.lsn, Lsn(12345));
    assert_eq!(header.stamp.epoch(), 3);
}

/// The header of a formatted home of the page above: no version of it.
const HEADER_UNWRITTEN: [u8; 32] = [
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x2a, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

#[test]
fn formatted_homes_are_what_the_format_says() {
    let page = PageId::new(SpaceId(42), 7);
    let mut home = vec![0; 4096];
    home[..32].copy_from_slice(&HEADER_UNWRITTEN);
    let sum = crc32c::crc32c_append(SEED, &home[4..]);
    home[..4].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(verify(seed(), &home, page), Err(Defect::Unwritten));
    let mut formatted = vec![0; 4096];
    format_homes(seed(), &mut formatted, 4096, page);
    assert_eq!(formatted, home);
}

/// Page trace records as in `docs/format.md`, and their meaning: space and number, write and sequential.
const TRACE: [([u8; 12], [u32; 2], [bool; 2]); 4] = [
    ([0x39, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0], [42, 12345], [false, false]),
    ([0x07, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x02, 0x01], [0x0102, 7], [true, false]),
    ([0, 0, 0, 0x80, 0x34, 0x12, 0, 0, 0, 1, 0x78, 0x56], [0x1234_5678, 0x8000_0000], [false, true]),
    ([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 1, 0xff, 0xff], [u32::MAX; 2], [true, true]),
];

#[test]
fn trace_records_are_what_the_format_says() {
    for (bytes, [space, no], [write, sequential]) in TRACE {
        let record = TraceRecord { page: PageId::new(SpaceId(space), no), write, sequential };
        assert_eq!(TraceRecord::decode(&bytes), Some(record));
        assert_eq!(record.encode(), bytes);
    }
    let beyond_48_bits = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    let no_operation = [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
    let no_flag = [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0];
    for bytes in [beyond_48_bits, no_operation, no_flag] {
        assert_eq!(TraceRecord::decode(&bytes), None, "{bytes:?}");
    }
}
