//! The list of hot pages that a store keeps in pages of a space of its own: what one page of it has.
//!
//! Each page describes itself, and each entry is a hint. So a list that a crash left half old and half new,
//! or a page of it that is damaged, costs warmth alone.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | where the pages were: 0 in memory, 1 on the SSD |
//! | 12..16 | the number of entries |
//! | 16.. | the entries, 8 bytes each: [`PageId::to_u64`] |
//!
//! All numbers are little-endian.

use pagetier_page::PageId;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// The first bytes of every page.
const MAGIC: &[u8; 8] = b"PTHOTS\x01\0";
const ENTRIES_AT: usize = 16;
const ENTRY_BYTES: usize = 8;

/// Where hot pages were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Was {
    InMemory,
    OnSsd,
}

/// The entries of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part<'a> {
    pub(super) was: Was,
    pub(super) pages: &'a [PageId],
}

/// The number of entries that a payload of `bytes` has room for.
pub(super) fn entries_in(bytes: usize) -> usize {
    bytes.saturating_sub(ENTRIES_AT) / ENTRY_BYTES
}

impl Part<'_> {
    /// Writes the part over a payload that has room for it.
    pub(super) fn put(self, payload: &mut [u8]) {
        payload.fill(0);
        let Some((head, entries)) = payload.split_at_mut_checked(ENTRIES_AT) else { return };
        let mut count = 0_u32;
        for (entry, page) in entries.chunks_exact_mut(ENTRY_BYTES).zip(self.pages) {
            entry.copy_from_slice(&page.to_u64().to_le_bytes());
            count += 1;
        }
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&u32::from(self.was == Was::OnSsd).to_le_bytes());
        head[12..].copy_from_slice(&count.to_le_bytes());
    }

    /// A number that differs for other contents, but for a rare chance.
    pub(super) fn digest(self) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write_u8(u8::from(self.was == Was::OnSsd));
        self.pages.iter().for_each(|page| hasher.write_u64(page.to_u64()));
        hasher.finish()
    }
}

/// The entries of a page; `None` if it is no part of a list.
pub(super) fn read(payload: &[u8]) -> Option<(Was, Vec<PageId>)> {
    let (head, entries) = payload.split_at_checked(ENTRIES_AT)?;
    let number = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let was = match number(8)? {
        0 => Was::InMemory,
        1 => Was::OnSsd,
        _ => return None,
    };
    let count = number(12)? as usize;
    if head[..8] != *MAGIC || count > entries.len() / ENTRY_BYTES {
        return None;
    }
    let page = |entry: &[u8]| entry.try_into().ok().map(u64::from_le_bytes).map(PageId::from_u64);
    Some((was, entries.chunks_exact(ENTRY_BYTES).take(count).filter_map(page).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;

    #[test]
    fn a_page_gives_back_its_entries_and_a_foreign_one_none() {
        let pages: Vec<PageId> = (0..6).map(|no| PageId::new(SpaceId(no % 3), u32::MAX - no)).collect();
        let mut payload = vec![7; ENTRIES_AT + 6 * ENTRY_BYTES + 3];
        assert_eq!(entries_in(payload.len()), 6);
        for was in [Was::InMemory, Was::OnSsd] {
            Part { was, pages: &pages }.put(&mut payload);
            assert_eq!(read(&payload), Some((was, pages.clone())));
        }
        // Longer than what was there before, and shorter: nothing of it is left.
        Part { was: Was::OnSsd, pages: &pages[..1] }.put(&mut payload);
        assert_eq!(read(&payload), Some((Was::OnSsd, pages[..1].to_vec())));
        assert!(payload[ENTRIES_AT + ENTRY_BYTES..].iter().all(|byte| *byte == 0));
        for (at, byte) in [(0, 0), (8, 2), (12, 7), (15, 255)] {
            let mut bad = payload.clone();
            bad[at] = byte;
            assert_eq!(read(&bad), None, "byte {at}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0; 100]), None);
    }

    #[test]
    fn digests_tell_parts_apart() {
        let pages = [PageId::new(SpaceId(1), 1), PageId::new(SpaceId(1), 2)];
        let all = [
            Part { was: Was::InMemory, pages: &pages },
            Part { was: Was::OnSsd, pages: &pages },
            Part { was: Was::OnSsd, pages: &pages[..1] },
            Part { was: Was::OnSsd, pages: &[] },
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.digest() != one.digest()), "{one:?}");
        }
    }
}
