//! The 32-byte header before a page's payload: checksum, format, flags, id, LSN, stamp.

use crate::{Lsn, PageId, SpaceId, Stamp, StoreSeed};
use std::fmt;

/// The header's length in bytes; the payload follows.
pub const HEADER_BYTES: usize = 32;

/// The format of page images that this version writes.
pub const PAGE_FORMAT: u16 = 2;

/// In the place of [`PAGE_FORMAT`]: nothing was written to this home since its space got it.
const UNWRITTEN: u16 = 0;

/// A header's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u16);

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// The image was identical to the page's durable version on the HDD when it was written to its SSD slot.
    pub const CLEAN_COPY: Self = Self(1);

    /// Whether every flag of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags' bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The page that the image belongs to.
    pub page: PageId,
    /// The embedder's log position of the last change.
    pub lsn: Lsn,
    /// The stamp of the image's write.
    pub stamp: Stamp,
    /// The image's flags.
    pub flags: Flags,
}

/// Why an image is not the requested page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Defect {
    /// All zeroes, which is what a lost image reads as, and a home that was not formatted.
    Blank,
    /// A home of the page that was formatted, and to which nothing was written since.
    Unwritten,
    /// The checksum does not match: the image is torn, corrupted, another store's, or not a page.
    Checksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// This version does not read the image's format.
    Format {
        /// The format number found.
        found: u16,
    },
    /// A sound image of another page: a misdirected or lost write.
    WrongPage {
        /// The page found.
        found: PageId,
    },
    /// A sound image of the page, but of another version than expected.
    WrongStamp {
        /// The expected stamp.
        expected: Stamp,
        /// The stamp found.
        found: Stamp,
    },
}

impl Defect {
    /// Whether a home with this defect was never written. `may_be_blank`: the home was not formatted, so that
    /// zeroes there say so.
    #[must_use]
    pub fn is_unwritten(self, may_be_blank: bool) -> bool {
        match self {
            Self::Unwritten => true,
            Self::Blank => may_be_blank,
            _ => false,
        }
    }
}

mod at {
    pub(super) const CHECKSUM: usize = 0;
    pub(super) const FORMAT: usize = 4;
    pub(super) const FLAGS: usize = 6;
    pub(super) const SPACE: usize = 8;
    pub(super) const NO: usize = 12;
    pub(super) const LSN: usize = 16;
    pub(super) const STAMP: usize = 24;
}

const _: () = assert!(at::STAMP + 8 == HEADER_BYTES);

/// The bytes from `at` on. Inlined into other crates with [`Header::peek`], which every change calls.
#[inline]
fn bytes_at<const N: usize>(image: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&image[at..at + N]);
    bytes
}

#[inline]
fn u16_at(image: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(image, at))
}

#[inline]
fn u32_at(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(image, at))
}

#[inline]
fn u64_at(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(image, at))
}

impl Header {
    /// Reads the header's fields from `image` without verification: for images in this process's memory.
    ///
    /// # Panics
    /// When `image` is shorter than a header.
    #[inline]
    #[must_use]
    pub fn peek(image: &[u8]) -> Self {
        Self {
            page: PageId::new(SpaceId(u32_at(image, at::SPACE)), u32_at(image, at::NO)),
            lsn: Lsn(u64_at(image, at::LSN)),
            stamp: Stamp::from_bits(u64_at(image, at::STAMP)),
            flags: Flags(u16_at(image, at::FLAGS)),
        }
    }

    /// Writes the fields into `image`, except for the checksum, which [`seal`] writes.
    ///
    /// # Panics
    /// When `image` is shorter than a header.
    pub fn put(&self, image: &mut [u8]) {
        self.put_as(PAGE_FORMAT, image);
    }

    fn put_as(&self, format: u16, image: &mut [u8]) {
        image[at::FORMAT..at::FLAGS].copy_from_slice(&format.to_le_bytes());
        image[at::FLAGS..at::SPACE].copy_from_slice(&self.flags.0.to_le_bytes());
        image[at::SPACE..at::NO].copy_from_slice(&self.page.space.0.to_le_bytes());
        image[at::NO..at::LSN].copy_from_slice(&self.page.no.to_le_bytes());
        image[at::LSN..at::STAMP].copy_from_slice(&self.lsn.0.to_le_bytes());
        image[at::STAMP..HEADER_BYTES].copy_from_slice(&self.stamp.bits().to_le_bytes());
    }
}

/// Stamps `image` (a whole page whose id and LSN are in its header) and writes its checksum, which only the
/// store of `seed` accepts.
///
/// # Panics
/// When `image` is shorter than a header.
pub fn seal(seed: StoreSeed, image: &mut [u8], stamp: Stamp, flags: Flags) {
    let header = Header { stamp, flags, ..Header::peek(image) };
    header.put(image);
    let sum = seed.checksum(&image[at::FORMAT..]);
    image[at::CHECKSUM..at::FORMAT].copy_from_slice(&sum.to_le_bytes());
}

/// Formats `homes`, which are all zeroes, as those of `first` and the pages that follow, which were never
/// written: zeroes found there later are damage. [`verify`] returns [`Defect::Unwritten`] for each.
///
/// # Panics
/// When `page_bytes` is less than a header.
pub fn format_homes(seed: StoreSeed, homes: &mut [u8], page_bytes: usize, first: PageId) {
    for nth in 0..homes.len() / page_bytes {
        let (before, home) = homes.split_at_mut(nth * page_bytes);
        let home = &mut home[..page_bytes];
        let page = PageId::new(first.space, first.no + nth as u32);
        Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put_as(UNWRITTEN, home);
        let sum_of = |nth: usize| u32_at(&before[nth * page_bytes..], at::CHECKSUM);
        let without_lowest = nth & nth.saturating_sub(1);
        let sum = if without_lowest == 0 || first.no & nth as u32 != 0 {
            seed.checksum(&home[at::FORMAT..])
        } else {
            // The pages differ in bits of their numbers alone, and what a bit changes of a CRC is the same
            // whatever the others are: 7 checksums of mostly zeroes serve 64 pages.
            sum_of(without_lowest) ^ sum_of(nth ^ without_lowest) ^ sum_of(0)
        };
        home[at::CHECKSUM..at::FORMAT].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Verifies that `image` is a sound image of `page`, written by the store of `seed`.
///
/// # Errors
/// The first [`Defect`] found, in the order blank, checksum, format, id, unwritten.
///
/// # Panics
/// When `image` is shorter than a header.
pub fn verify(seed: StoreSeed, image: &[u8], page: PageId) -> Result<Header, Defect> {
    let stored = u32_at(image, at::CHECKSUM);
    let computed = seed.checksum(&image[at::FORMAT..]);
    if stored != computed {
        return Err(if is_blank(image) { Defect::Blank } else { Defect::Checksum { stored, computed } });
    }
    let found = u16_at(image, at::FORMAT);
    if found != PAGE_FORMAT && found != UNWRITTEN {
        return Err(Defect::Format { found });
    }
    let header = Header::peek(image);
    if header.page != page {
        return Err(Defect::WrongPage { found: header.page });
    }
    if found == UNWRITTEN { Err(Defect::Unwritten) } else { Ok(header) }
}

/// Whether `image` is all zeroes.
#[must_use]
pub fn is_blank(image: &[u8]) -> bool {
    // Each byte repeats the one before it: one comparison of memory.
    image.first().is_none_or(|first| *first == 0 && image[1..] == image[..image.len() - 1])
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => write!(f, "all zeroes"),
            Self::Unwritten => write!(f, "nothing was ever written there"),
            Self::Checksum { stored, computed } => {
                write!(f, "checksum {stored:08x} in the header, {computed:08x} over the bytes")
            }
            Self::Format { found } => write!(f, "page format {found}, this version reads {PAGE_FORMAT}"),
            Self::WrongPage { found } => write!(f, "an image of page {found} is there instead"),
            Self::WrongStamp { expected, found } => {
                write!(f, "version {found} where {expected} was expected")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: StoreSeed = StoreSeed::NONE;

    fn image(no: u32) -> Vec<u8> {
        let mut image = vec![7; 4096];
        let header = Header {
            page: PageId::new(SpaceId(3), no),
            lsn: Lsn(99),
            stamp: Stamp::ZERO,
            flags: Flags::NONE,
        };
        header.put(&mut image);
        seal(SEED, &mut image, Stamp::first_of(5), Flags::CLEAN_COPY);
        image
    }

    #[test]
    fn a_sealed_image_verifies_and_reads_back() {
        let header = verify(SEED, &image(4), PageId::new(SpaceId(3), 4)).unwrap();
        assert_eq!(header.lsn, Lsn(99));
        assert_eq!(header.stamp, Stamp::first_of(5));
        assert!(header.flags.contains(Flags::CLEAN_COPY));
    }

    #[test]
    fn every_single_bit_flip_is_noticed() {
        let good = image(4);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(verify(SEED, &bad, PageId::new(SpaceId(3), 4)), Err(Defect::Checksum { .. })));
        }
    }

    #[test]
    fn another_page_and_a_blank_one_are_distinguished() {
        let found = PageId::new(SpaceId(3), 4);
        assert_eq!(verify(SEED, &image(4), PageId::new(SpaceId(3), 5)), Err(Defect::WrongPage { found }));
        assert_eq!(verify(SEED, &[0; 4096], found), Err(Defect::Blank));
    }

    #[test]
    fn a_formatted_home_is_its_pages_alone_and_any_damage_to_it_is_noticed() {
        let page = PageId::new(SpaceId(3), 4);
        let mut home = vec![0; 4096];
        format_homes(SEED, &mut home, 4096, page);
        assert_eq!(verify(SEED, &home, page), Err(Defect::Unwritten));
        let other = PageId::new(SpaceId(3), 5);
        assert_eq!(verify(SEED, &home, other), Err(Defect::WrongPage { found: page }));
        for bit in 0..home.len() * 8 {
            let mut bad = home.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = verify(SEED, &bad, page).unwrap_err();
            assert!(!found.is_unwritten(true), "bit {bit}: {found}");
        }
        home[..512].fill(0);
        let found = verify(SEED, &home, page).unwrap_err();
        assert_eq!((found.is_unwritten(true), found.is_unwritten(false)), (true, false));
    }

    #[test]
    fn homes_that_are_formatted_together_are_those_of_their_pages() {
        for first in [0, 5, 64, 1 << 31] {
            let mut homes = vec![0; 200 * 512];
            format_homes(SEED, &mut homes, 512, PageId::new(SpaceId(3), first));
            for (no, home) in (first..).zip(homes.chunks(512)) {
                assert_eq!(verify(SEED, home, PageId::new(SpaceId(3), no)), Err(Defect::Unwritten), "{no}");
            }
        }
    }

    #[test]
    fn another_stores_image_does_not_verify() {
        let page = PageId::new(SpaceId(3), 4);
        let (ours, theirs) = (StoreSeed::of_store([1; 16]), StoreSeed::of_store([2; 16]));
        let mut image = image(4);
        seal(theirs, &mut image, Stamp::first_of(9), Flags::NONE);
        assert!(verify(theirs, &image, page).is_ok());
        assert!(matches!(verify(ours, &image, page), Err(Defect::Checksum { .. })));
        assert!(matches!(verify(SEED, &image, page), Err(Defect::Checksum { .. })));
    }
}
