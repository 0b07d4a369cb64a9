//! The page contents of the campaign and the fuzzer: every word encodes page and version, so a mix of two
//! versions is detected.

use pagetier::PageId;

fn word(page: PageId, version: u32) -> [u8; 8] {
    let owner = page.no ^ (page.space.0 << 20);
    (u64::from(owner) << 32 | u64::from(version)).to_le_bytes()
}

/// Fills `payload` with version `version` of `page`. Version 0 is all zeroes: the page as it was allocated.
pub(crate) fn fill(payload: &mut [u8], page: PageId, version: u32) {
    let word = word(page, version);
    payload.copy_from_slice(&word.repeat(payload.len() / 8));
}

/// The version of `page` in `payload`, if the payload is entirely of one version of that page.
pub(crate) fn version_in(payload: &[u8], page: PageId) -> Result<u32, String> {
    let first = payload.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let version = first as u32;
    let expected = if first == 0 { [0; 8] } else { word(page, version) };
    // Each word repeats the one before it: one comparison, instead of one for each word.
    if payload.starts_with(&expected) && payload[8..] == payload[..payload.len() - 8] {
        Ok(version)
    } else {
        Err(format!("page {page} mixes versions, or is another page (it begins with {first:#018x})"))
    }
}
