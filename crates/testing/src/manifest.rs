//! What the file of a store's manifest holds.

/// The contents of the manifest, and their tail: the area of the highest save (`docs/format.md`).
///
/// # Panics
/// The file has no area.
#[must_use]
pub fn newest_area(file: &[u8]) -> &[u8] {
    let headers = (0..2).map(|area| &file[(1 + 2 * area) << 12..]).enumerate();
    let found = headers.filter(|(_, header)| header.starts_with(b"PGTIERMF")).map(|(area, header)| {
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes")) as usize;
        let from = (64 << 10) + area * long(24);
        (long(16), &file[from..from + long(32)])
    });
    found.max_by_key(|(save, _)| *save).expect("a save").1
}
