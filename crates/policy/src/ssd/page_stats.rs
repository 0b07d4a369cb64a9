//! CAC's and CC's statistics of a page (2013 paper, section 5.1): with its place, 36 bytes.

use super::tracked::{Kept, PLACE_BITS, Record, Stored};
use crate::{Location, Millis, PageCounts};

/// The bits of the page's place.
const PLACE: u16 = ((1 << PLACE_BITS) - 1) << PLACE_SHIFT;
const PLACE_SHIFT: u32 = 10;
const READ_WAITS_SSD: u16 = 1 << 13;
const READ_WAITS_HDD: u16 = 1 << 14;
const LOGICAL_WAITS_SSD: u16 = 1 << 15;
const SUBRANGE: u16 = (1 << PLACE_SHIFT) - 1;
const NO_SUBRANGE: u16 = SUBRANGE;

/// The maximum number of subranges per space that a record can distinguish.
pub(crate) const SUBRANGES_MAX: u16 = NO_SUBRANGE;

/// A page's counts. Reads that *wait* are not in the group's sums yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageStats {
    /// r_D: random physical reads while the page was not on the SSD.
    pub(crate) reads_hdd: u32,
    /// r_S: random physical reads while the page was on the SSD.
    pub(crate) reads_ssd: u32,
    /// w_D: writes to the HDD.
    pub(crate) writes_hdd: u32,
    /// w_S: writes to the SSD.
    pub(crate) writes_ssd: u32,
    /// Logical reads while not on the SSD, without the waiting ones.
    pub(crate) logical_hdd: u32,
    /// Logical reads while on the SSD, without the waiting ones.
    pub(crate) logical_ssd: u32,
    /// The time at which tracking began, in tenths of a second.
    born_ds: u32,
    /// The page's place, which reads wait, and the subrange of its group.
    tag: u16,
    /// Logical reads that wait, all from one home.
    pub(crate) waiting: u16,
}

/// A page's record under CAC and CC.
pub(crate) type PageRecord<'a> = Record<&'a PageStats>;
/// The same, to change the counts.
pub(crate) type PageRecordMut<'a> = Record<&'a mut PageStats>;

const _: () = assert!(size_of::<Stored<PageStats>>() == 36);

impl Kept for PageStats {
    fn place(&self) -> u8 {
        ((self.tag & PLACE) >> PLACE_SHIFT) as u8
    }

    fn set_place(&mut self, place: u8) {
        self.tag = self.tag & !PLACE | u16::from(place) << PLACE_SHIFT;
    }
}

/// A page's share of its group's sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) reads_ssd: u32,
    pub(crate) reads_hdd: u32,
    pub(crate) logical_ssd: u32,
    pub(crate) logical_hdd: u32,
}

impl PageStats {
    /// Of a page whose tracking begins.
    pub(crate) fn new(now: Millis) -> Self {
        Self { born_ds: deciseconds(now), tag: NO_SUBRANGE, ..Self::default() }
    }

    /// The group's subrange, once the page has a group.
    pub(crate) fn subrange(&self) -> Option<u16> {
        let subrange = self.tag & SUBRANGE;
        (subrange != NO_SUBRANGE).then_some(subrange)
    }

    pub(crate) fn set_subrange(&mut self, subrange: u16) {
        debug_assert!(subrange < SUBRANGES_MAX);
        self.tag = self.tag & !SUBRANGE | subrange;
    }

    /// Minutes since tracking began.
    pub(crate) fn age_min(&self, now: Millis) -> f64 {
        f64::from(deciseconds(now).saturating_sub(self.born_ds)) / 600.0
    }

    /// All counts, including the reads that wait.
    pub(crate) fn counts(&self) -> PageCounts {
        let waiting = u64::from(self.waiting);
        let (on_ssd, off_ssd) = if self.tag & LOGICAL_WAITS_SSD != 0 { (waiting, 0) } else { (0, waiting) };
        PageCounts {
            reads_hdd: u64::from(self.reads_hdd),
            reads_ssd: u64::from(self.reads_ssd),
            logical_hdd: u64::from(self.logical_hdd) + off_ssd,
            logical_ssd: u64::from(self.logical_ssd) + on_ssd,
            writes_hdd: u64::from(self.writes_hdd),
            writes_ssd: u64::from(self.writes_ssd),
        }
    }

    /// All logical reads.
    pub(crate) fn logical(&self) -> u64 {
        u64::from(self.logical_hdd) + u64::from(self.logical_ssd) + u64::from(self.waiting)
    }

    /// Counts a random physical read from `location`. Only one read can wait: the caller settles the record
    /// first if one does.
    pub(crate) fn count_read(&mut self, location: Location) {
        debug_assert!(!self.read_waits());
        let (count, waits) = match location {
            Location::Ssd => (&mut self.reads_ssd, READ_WAITS_SSD),
            Location::Hdd => (&mut self.reads_hdd, READ_WAITS_HDD),
        };
        // At its maximum a count stops, and the group's sums with it: a wrapped one would make the hottest
        // page the coldest.
        if let Some(more) = count.checked_add(1) {
            *count = more;
            self.tag |= waits;
        }
    }

    pub(crate) fn read_waits(&self) -> bool {
        self.tag & (READ_WAITS_SSD | READ_WAITS_HDD) != 0
    }

    pub(crate) fn count_write(&mut self, location: Location) {
        let count = match location {
            Location::Ssd => &mut self.writes_ssd,
            Location::Hdd => &mut self.writes_hdd,
        };
        *count = count.saturating_add(1);
    }

    /// Counts up to `n` logical reads at `location`, and returns the number not counted: they require that
    /// the record is settled first.
    #[must_use]
    pub(crate) fn count_logical(&mut self, n: u32, location: Location) -> u32 {
        let at = if location == Location::Ssd { LOGICAL_WAITS_SSD } else { 0 };
        if self.waiting == 0 {
            // The first waiting read decides whose reads wait.
            self.tag = self.tag & !LOGICAL_WAITS_SSD | at;
        } else if self.tag & LOGICAL_WAITS_SSD != at {
            // Reads at the other home wait: they would be added to the wrong sum.
            return n;
        }
        let taken = n.min(u32::from(u16::MAX - self.waiting));
        self.waiting += taken as u16;
        n - taken
    }

    /// The record's share of its group's sums.
    pub(crate) fn counted(&self) -> Counted {
        // A read that waits is in the count already but not in the sums.
        let waits = |flag: u16| u32::from(self.tag & flag != 0);
        Counted {
            reads_ssd: self.reads_ssd - waits(READ_WAITS_SSD),
            reads_hdd: self.reads_hdd - waits(READ_WAITS_HDD),
            logical_ssd: self.logical_ssd,
            logical_hdd: self.logical_hdd,
        }
    }

    /// Ends all waiting, and returns the record's new share of its group's sums.
    pub(crate) fn settle(&mut self) -> Counted {
        let logical =
            if self.tag & LOGICAL_WAITS_SSD != 0 { &mut self.logical_ssd } else { &mut self.logical_hdd };
        *logical = logical.saturating_add(u32::from(self.waiting));
        self.waiting = 0;
        self.tag &= !(READ_WAITS_SSD | READ_WAITS_HDD | LOGICAL_WAITS_SSD);
        self.counted()
    }
}

fn deciseconds(at: Millis) -> u32 {
    u32::try_from(at.0 / 100).unwrap_or(u32::MAX)
}
