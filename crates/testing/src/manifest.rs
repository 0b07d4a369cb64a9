//! What the file of a store's manifest holds.

use std::ops::Range;

/// Where the manifest's contents and their tail are: the area of the highest save (`docs/format.md`).
///
/// # Panics
/// The file has no area.
#[must_use]
pub fn newest_area(file: &[u8]) -> Range<usize> {
    let headers = (0..2).map(|area| &file[(1 + 2 * area) << 12..]).enumerate();
    let found = headers.filter(|(_, header)| header.starts_with(b"PGTIERMF")).map(|(area, header)| {
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes")) as usize;
        let from = (64 << 10) + area * long(24);
        (long(16), from..from + long(32))
    });
    found.max_by_key(|(save, _)| *save).expect("a save").1
}
